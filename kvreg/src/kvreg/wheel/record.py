"""RECORD files: read as untrusted input, written as pip writes them."""

import base64
import binascii
import csv
import io
from collections.abc import Iterable
from typing import NamedTuple

from kvreg.errors import Problem

ALGORITHMS = ("sha256", "sha384", "sha512")
"""Hashes that count; RECORD must not use md5 or sha1 (binary distribution format)."""


class RecordRow(NamedTuple):
    """One line of RECORD. `algorithm`, `digest` and `size` are None where the line has none.

    A tuple, as members and placements are: there are thousands of each.
    """

    path: str
    algorithm: str | None
    digest: bytes | None
    size: int | None

    def fields(self) -> tuple[str, str, str]:
        """The row as it is written."""
        size = "" if self.size is None else str(self.size)
        if self.algorithm is None or self.digest is None:
            return self.path, "", size
        text = base64.urlsafe_b64encode(self.digest).rstrip(b"=").decode("ascii")
        return self.path, f"{self.algorithm}={text}", size


def read_record(raw: bytes, where: str) -> tuple[dict[str, RecordRow], list[Problem]]:
    """Parse RECORD bytes into rows by path, with all problems; `where` names the file."""
    problems: list[Problem] = []
    rows: dict[str, RecordRow] = {}
    try:
        lines = list(csv.reader(io.StringIO(raw.decode("utf-8"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        return {}, [Problem(where, f"is not CSV in UTF-8: {error}")]
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if len(line) != 3:
            problems.append(
                Problem(f"{where} line {number}", "wrong line", "path,hash,size", ",".join(line))
            )
            continue
        path, hash_text, size_text = line
        if path in rows:
            problems.append(Problem(f"{where} line {number}", "path is listed twice", found=path))
            continue
        algorithm, digest, problem = _parse_hash(hash_text)
        if problem is None and size_text and not _is_count(size_text):
            problem = f"{size_text!r} is not a size"
        if problem is not None:
            problems.append(Problem(f"{where} line {number}", problem, found=path))
            continue
        rows[path] = RecordRow(path, algorithm, digest, int(size_text) if size_text else None)
    return rows, problems


def write_record(rows: Iterable[RecordRow]) -> bytes:
    """RECORD bytes: sorted, one line a row, as pip writes them."""
    output = io.StringIO(newline="")
    csv.writer(output, lineterminator="\n").writerows(sorted(row.fields() for row in rows))
    return output.getvalue().encode("utf-8")


def _parse_hash(text: str) -> tuple[str | None, bytes | None, str | None]:
    if not text:
        return None, None, None
    algorithm, separator, encoded = text.partition("=")
    if not separator or algorithm not in ALGORITHMS:
        return None, None, f"{text[:80]!r} is not a hash by {', '.join(ALGORITHMS)}"
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        digest = base64.b64decode(padded, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None, None, f"{text[:80]!r} is not base64"
    return algorithm, digest, None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
