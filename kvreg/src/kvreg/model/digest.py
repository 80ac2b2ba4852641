"""SHA-256 digests in the form that OCI uses: ``sha256:<64 lower-case hex digits>``."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from kvreg.errors import UsageError

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_CHUNK = 1 << 20


def sha256_bytes(data: bytes) -> str:
    """The digest of `data`.

    >>> sha256_bytes(b"{}")
    'sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a'
    """
    return "sha256:" + hashlib.sha256(data).hexdigest()


def sha256_file(path: Path, progress: Callable[[int], object] | None = None) -> str:
    """The digest of the file at `path`; `progress` is called with each count of bytes read."""
    state = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            state.update(chunk)
            if progress is not None:
                progress(len(chunk))
    return "sha256:" + state.hexdigest()


def is_digest(text: object) -> bool:
    """Whether `text` is a well-formed digest."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def parse_digest(text: str) -> str:
    """The 64 hex digits of ``sha256:<hex>``; `UsageError` for anything else.

    >>> parse_digest("sha256:" + "0" * 64) == "0" * 64
    True
    """
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise UsageError(
            "this is not a digest",
            expected="sha256: and 64 lower-case hex digits",
            found=repr(text),
        )
    return match.group(1)
