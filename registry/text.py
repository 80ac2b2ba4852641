"""Text that comes from elsewhere, made fit for a terminal."""


def printable(text: str, limit: int = 300) -> str:
    """`text` without control characters, cut at `limit`.

    >>> printable("read\\x1b[31m only")
    'read?[31m only'
    """
    return "".join(char if char.isprintable() else "?" for char in text[:limit])
