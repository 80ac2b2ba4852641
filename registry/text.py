"""Text that comes from elsewhere, made fit for a terminal."""

from pathlib import PurePath


def printable(text: str, limit: int = 300) -> str:
    """`text` without control characters, cut at `limit`.

    >>> printable("read\\x1b[31m only")
    'read?[31m only'
    """
    return "".join(char if char.isprintable() else "?" for char in text[:limit])


def is_plain_name(title: str) -> bool:
    """Whether a title is a file name and nothing that could lead elsewhere.

    >>> is_plain_name("vllm-0.18.1-cp312-cp312-linux_x86_64.whl"), is_plain_name("../x")
    (True, False)
    """
    return (
        title not in ("", ".", "..")
        and PurePath(title).name == title
        and "\\" not in title
        and title.isprintable()
    )
