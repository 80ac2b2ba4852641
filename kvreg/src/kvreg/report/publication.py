"""Write a report into a directory: tables, figures, page, and the checksums of everything."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvreg.model.digest import sha256_bytes
from kvreg.report.evidence import Evidence
from kvreg.report.figures import figures
from kvreg.report.page import page
from kvreg.report.tables import tables

PAGE = "index.html"
RAW_CHECKSUMS = "raw-files.sha256"
CHECKSUMS = "SHA256SUMS"


def publish(
    evidence: Evidence, out: Path, *, done: Callable[[], object] = lambda: None
) -> dict[str, str]:
    """Write the whole report; returns the digest of each file by its path under `out`.

    The same evidence gives the same bytes. Each file appears whole or not at all.
    """
    files = {f"tables/{name}": data for name, data in tables(evidence).items()}
    for name, data in figures(evidence):
        files[f"figures/{name}"] = data
        done()
    files[PAGE] = page(evidence).encode()
    files[RAW_CHECKSUMS] = "".join(
        f"{file.digest.removeprefix('sha256:')}  {file.path}\n" for file in evidence.raw_files
    ).encode()
    digests = {name: sha256_bytes(data) for name, data in sorted(files.items())}
    files[CHECKSUMS] = "".join(
        f"{digest.removeprefix('sha256:')}  {name}\n" for name, digest in digests.items()
    ).encode()
    for name, data in files.items():
        _write(out / name, data)
    return digests


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as stream:
        try:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), 0o644)
            Path(stream.name).rename(path)
        except BaseException:
            Path(stream.name).unlink(missing_ok=True)
            raise
