"""Text that comes from elsewhere, made fit for a terminal."""

import json
from pathlib import PurePath

import requests

_MAX_ERROR_BYTES = 16 * 1024


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


def error_text(response: requests.Response) -> str:
    """Code and message of an answer in the distribution-spec's error format, or nothing."""
    try:
        body = next(response.iter_content(_MAX_ERROR_BYTES), b"")
        first = json.loads(body)["errors"][0]
        code, message = str(first["code"]), str(first.get("message", ""))
    except (ValueError, LookupError, TypeError, AttributeError, requests.RequestException):
        return ""
    return f" ({printable(code)}: {printable(message)})"
