"""Puts a bill of materials into a compiled wheel (PEP 770), byte for byte the same each time.

The packed members stay where they are, untouched: packing them again would make the wheel depend on
this machine's zlib. RECORD, which comes last, makes room for the document and a RECORD with its
row; both are stored unpacked, for the same reason. An SBOM that lies inside a wheel cannot hold
the wheel's own hash; the one that is attached to the artifact does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvreg.errors import VerificationError
from kvreg.wheel.record import RecordRow, read_record, write_record

SBOM_NAME = "kvreg-builder.cdx.json"
"""Named after the tool, as PEP 770 asks for, so that other tools' documents find room beside it."""

_FIRST_YEAR = datetime(1980, 1, 1, tzinfo=UTC)
_MODE = stat.S_IFREG | 0o644


@dataclass(frozen=True)
class Embedded:
    """A document in a wheel: its path there, and whether the wheel had to be changed for it."""

    path: str
    changed: bool


def embed_sbom(wheel: Path, document: bytes, source_date_epoch: int) -> Embedded:
    """Put `document` into the wheel's ``.dist-info/sboms/``; the wheel appears in one step.

    A wheel that holds these bytes already is left alone. Raises VerificationError for what is no
    wheel with one ``.dist-info`` and a RECORD.
    """
    with _reading(wheel) as archive:
        info = _dist_info(wheel, archive)
        path = f"{info}/sboms/{SBOM_NAME}"
        if path in archive.namelist() and archive.read(path) == document:
            return Embedded(path, changed=False)
        record = _new_record(archive, f"{info}/RECORD", path, document)
    temporary = wheel.with_name(f".{wheel.name}.{os.getpid()}")
    try:
        shutil.copy(wheel, temporary)
        members = {path: document, f"{info}/RECORD": record}
        _replace_tail(temporary, members, _zip_time(source_date_epoch))
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(wheel)
    finally:
        temporary.unlink(missing_ok=True)
    return Embedded(path, changed=True)


def read_embedded(wheel: Path) -> bytes | None:
    """The document that `embed_sbom` put into a wheel, None when there is none."""
    with _reading(wheel) as archive:
        path = f"{_dist_info(wheel, archive)}/sboms/{SBOM_NAME}"
        return archive.read(path) if path in archive.namelist() else None


def _new_record(archive: zipfile.ZipFile, record: str, path: str, document: bytes) -> bytes:
    """RECORD with the row of the document."""
    rows, problems = read_record(archive.read(record), record)
    if problems:
        raise VerificationError(f"{record} of the wheel cannot be read", problems=problems)
    rows.pop(record, None)
    rows[path] = RecordRow(path, "sha256", hashlib.sha256(document).digest(), len(document))
    return write_record([*rows.values(), RecordRow(record, None, None, None)])


def _replace_tail(
    wheel: Path, members: dict[str, bytes], moment: tuple[int, int, int, int, int, int]
) -> None:
    """Write `members` in place of those of their names, which must be the last of the archive."""
    with zipfile.ZipFile(wheel, "a") as archive:
        by_place = sorted(archive.infolist(), key=lambda member: member.header_offset)
        tail = [member for member in by_place if member.filename in members]
        if by_place[-len(tail) :] != tail:
            raise VerificationError(
                f"RECORD of {wheel.name} is not the last member",
                expected="RECORD last, as the wheel format recommends and build backends do",
                found=by_place[-1].filename,
            )
        for member in tail:
            archive.filelist.remove(member)
            del archive.NameToInfo[member.filename]
        # Where the next member is written, over what was there.
        archive.start_dir = tail[0].header_offset
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, moment)
            entry.create_system = 3
            entry.external_attr = _MODE << 16
            archive.writestr(entry, data)
        assert archive.fp is not None
        archive.fp.truncate()


def _zip_time(epoch: int) -> tuple[int, int, int, int, int, int]:
    moment = max(datetime.fromtimestamp(epoch, UTC), _FIRST_YEAR)
    # Zip files count in two seconds.
    return (
        *(moment.year, moment.month, moment.day, moment.hour, moment.minute),
        moment.second // 2 * 2,
    )


def _dist_info(wheel: Path, archive: zipfile.ZipFile) -> str:
    tops = {name.split("/")[0] for name in archive.namelist()}
    found = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(found) != 1 or f"{found[0]}/RECORD" not in archive.namelist():
        raise VerificationError(
            f"{wheel.name} is not a whole wheel",
            expected="one .dist-info folder with RECORD",
            found=", ".join(found) or "no .dist-info",
        )
    return found[0]


@contextmanager
def _reading(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise VerificationError(f"{wheel.name} is not a whole wheel", found=str(error)) from error
