"""The SBOM inside a wheel: the same bytes each time, accepted by pip, and nothing else touched."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from builder.audit import audit_wheel
from builder.wheelfile import SBOM_NAME, embed_sbom, read_embedded
from kvreg.errors import VerificationError
from kvreg.wheel.archive import WheelArchive
from kvreg.wheel.tags import parse_wheel_name
from tests.kvreg.profiles import make_profile
from tests.support.wheels import write_wheel

EPOCH = 1774917781
DOCUMENT = b'{"bomFormat": "CycloneDX"}\n'
INFO = "demo_pkg-1.2+cu128.sm75.dist-info"
PLACE = f"{INFO}/sboms/{SBOM_NAME}"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(tmp_path, extra={"demo_pkg/tool.sh": b"#!/bin/sh\n", "demo_pkg/a,b": b"x"})


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_it_is_there_and_the_rest_is_as_it_was(wheel: Path) -> None:
    before = wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
        assert members[-1].filename == f"{INFO}/RECORD"
    done = embed_sbom(wheel, DOCUMENT, EPOCH)
    assert (done.path, done.changed) == (PLACE, True)
    assert read_embedded(wheel) == DOCUMENT
    kept = members[-1].header_offset
    assert wheel.read_bytes()[:kept] == before[:kept]
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        for old in members[:-1]:
            new = archive.getinfo(old.filename)
            assert (new.external_attr, new.date_time) == (old.external_attr, old.date_time)
        added = archive.getinfo(PLACE)
    assert names == [*(m.filename for m in members[:-1]), PLACE, f"{INFO}/RECORD"]
    assert added.date_time == (2026, 3, 31, 0, 43, 0)
    assert added.external_attr >> 16 == 0o100644


def test_the_same_bytes_however_often_and_whatever_was_there(wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / wheel.name
    other.parent.mkdir()
    shutil.copy(wheel, other)
    embed_sbom(wheel, DOCUMENT, EPOCH)
    first = sha256(wheel)
    assert not embed_sbom(wheel, DOCUMENT, EPOCH).changed
    embed_sbom(other, DOCUMENT * 100, EPOCH)
    assert sha256(other) != first
    embed_sbom(other, DOCUMENT, EPOCH)
    assert sha256(other) == sha256(wheel) == first
    assert not list(tmp_path.glob(".*"))


def test_pip_installs_it_and_its_record_holds(wheel: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "demo_pkg-1.2+cu128.sm75-py3-none-any.whl"
    embed_sbom(wheel, DOCUMENT, EPOCH)
    shutil.copy(wheel, renamed)
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", str(target), str(renamed)], check=True, timeout=120)
    assert (target / PLACE).read_bytes() == DOCUMENT
    lines = (target / INFO / "RECORD").read_text().splitlines()
    assert sum(line.startswith(f"{PLACE},sha256=") for line in lines) == 1


def test_client_and_audit_accept_it(wheel: Path, tmp_path: Path) -> None:
    embed_sbom(wheel, DOCUMENT, EPOCH)
    with WheelArchive(wheel, parse_wheel_name(wheel.name)) as archive:
        assert PLACE in {member.name for member in archive.members}
    report = audit_wheel(wheel, make_profile(tmp_path))
    status = {check.name: check.status for check in report.checks}
    assert (status["record"], status["build paths"], status["secrets"]) == ("pass",) * 3


def test_a_wheel_with_record_elsewhere_is_refused_and_left(wheel: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.whl"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(odd, "w") as target:
        for name in [f"{INFO}/RECORD", *(n for n in source.namelist() if "RECORD" not in n)]:
            target.writestr(name, source.read(name))
    before = sha256(odd)
    with pytest.raises(VerificationError, match="not the last member"):
        embed_sbom(odd, DOCUMENT, EPOCH)
    assert sha256(odd) == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more"])
def test_what_is_no_wheel(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(content)
    with pytest.raises(VerificationError, match="not a whole wheel"):
        embed_sbom(path, DOCUMENT, EPOCH)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.py", b"")
    with pytest.raises(VerificationError, match="not a whole wheel"):
        embed_sbom(path, DOCUMENT, EPOCH)
