"""Staging gives what pip gives, file for file, and an interpreter can use it."""

import csv
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreg.wheel.archive import WheelArchive
from kvreg.wheel.plan import plan_wheel
from kvreg.wheel.staging import stage
from kvreg.wheel.tags import parse_wheel_name
from tests.support.wheels import write_wheel

INFO = "demo_pkg-1.2.dist-info"
DATA = "demo_pkg-1.2.data"
TAG = "py3-none-any"


def stage_wheel(wheel, site):
    with WheelArchive(wheel, parse_wheel_name(wheel.name)) as archive:
        site.mkdir()
        return stage(plan_wheel(archive, requested=True), site, sys.executable)


def pip_install(wheel, target):
    """What pip makes of the wheel when it is asked for by name."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-compile", "--disable-pip-version-check", "--target", str(target)]
    command += ["--find-links", str(wheel.parent), "demo-pkg==1.2"]
    subprocess.run(command, check=True, capture_output=True, text=True)


def tree(root):
    """Every file's content and whether it is executable, by path."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in root.rglob("*")
        if path.is_file()
    }


def record_rows(raw):
    """RECORD as a set of rows, pip's paths that point out of the directory turned inward."""
    rows = set()
    for path, digest, size in csv.reader(raw.decode().splitlines()):
        inward = path.replace("../../", "")
        if inward.startswith("include/site/python"):
            inward = "include/python/" + inward.split("/", 3)[3]
        rows.add((inward, digest, size))
    return rows


def without_generated(files):
    """Files that pip and we write from the wheel; what differs on purpose is compared apart."""
    skipped = {f"{INFO}/RECORD", f"{INFO}/INSTALLER"}
    result = {}
    for path, content in files.items():
        if path in skipped or path.startswith("bin/demo"):
            continue
        if path.startswith("include/site/python"):
            path = "include/python/" + path.split("/", 3)[3]
        result[path] = content
    return result


def compare(wheel, folder):
    ours, theirs = folder / "ours", folder / "theirs"
    stage_wheel(wheel, ours)
    pip_install(wheel, theirs)
    mine, pips = tree(ours), tree(theirs)
    assert without_generated(mine) == without_generated(pips)
    assert mine[f"{INFO}/INSTALLER"][0] == b"kvreg\n"
    generated = (f"{INFO}/INSTALLER", "bin/demo")
    assert {row for row in record_rows(mine[f"{INFO}/RECORD"][0]) if row[0] not in generated} == {
        row for row in record_rows(pips[f"{INFO}/RECORD"][0]) if row[0] not in generated
    }
    return mine, pips


def test_everything_that_a_wheel_can_hold(tmp_path):
    extra = {
        "demo_pkg/command.py": b"def main():\n    print('demo says hello')\n",
        "demo_pkg/empty.py": b"",
        "demo_pkg/tool.sh": b"#!/bin/sh\necho tool\n",
        "demo_pkg/with, comma.txt": b"comma\n",
        f"{DATA}/purelib/pure_module.py": b"pure = 1\n",
        f"{DATA}/platlib/plat_module.py": b"plat = 1\n",
        f"{DATA}/headers/demo.h": b"int demo;\n",
        f"{DATA}/scripts/python-script": b"#!python\nprint('python script')\n",
        f"{DATA}/scripts/shell-script": b"#!/bin/sh\necho shell script\n",
        f"{DATA}/data/share/demo/file.txt": b"shared\n",
        f"{DATA}/data/etc/demo.conf": b"conf\n",
    }
    wheel = write_wheel(
        tmp_path / "wheels",
        version="1.2",
        tag=TAG,
        extra=extra,
        # Scripts that the archive does not mark are made executable by us and not by pip.
        mode=lambda path: 0o100755 if path.endswith((".sh", "-script")) else 0o100644,
        entry_points="[console_scripts]\ndemo = demo_pkg.command:main\n[other]\nx = y:z\n",
    )
    mine, pips = compare(wheel, tmp_path)
    # pip's own script differs by pip's version; it must call the same thing in the same way.
    script, mode = mine["bin/demo"]
    assert mode == pips["bin/demo"][1]
    assert script.splitlines()[0] == pips["bin/demo"][0].splitlines()[0]
    assert b"from demo_pkg.command import main" in script
    for name, said in (
        ("demo", "demo says hello"),
        ("python-script", "python script"),
        ("shell-script", "shell script"),
    ):
        output = subprocess.run(
            [tmp_path / "ours/bin" / name],
            env={"PYTHONPATH": str(tmp_path / "ours"), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert output.strip() == said


names = st.from_regex(r"\A[a-z][a-z0-9_]{0,6}(/[a-z][a-z0-9_]{0,6}){0,2}\.(py|txt|so|sh)\Z")


@settings(max_examples=4)
@given(members=st.dictionaries(names, st.binary(max_size=300), max_size=8))
def test_any_small_wheel(members, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    # A prefix of its own keeps generated names from being standard modules or directories.
    extra = {f"demo_pkg/x/{path}": data for path, data in members.items()}
    compare(write_wheel(folder / "wheels", version="1.2", tag=TAG, extra=extra), folder)


def test_data_below_lib_which_pip_loses_is_kept(tmp_path):
    extra = {f"{DATA}/data/lib/demo/file.txt": b"kept\n"}
    wheel = write_wheel(tmp_path / "wheels", version="1.2", tag=TAG, extra=extra)
    stage_wheel(wheel, tmp_path / "ours")
    assert (tmp_path / "ours/lib/demo/file.txt").read_bytes() == b"kept\n"


def test_staging_is_deterministic(tmp_path):
    wheel = write_wheel(tmp_path / "wheels", version="1.2", tag=TAG)
    one, two = (stage_wheel(wheel, tmp_path / name) for name in ("one", "two"))
    assert one == two
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_modes_follow_the_umask(tmp_path, mask):
    wheel = write_wheel(
        tmp_path / "wheels", version="1.2", tag=TAG, extra={"demo_pkg/a.sh": b"#!/bin/sh\n"}
    )
    script = (
        "import os, sys; from pathlib import Path; os.umask(int(sys.argv[1]));"
        "from tests.kvreg.test_staging import stage_wheel;"
        "stage_wheel(Path(sys.argv[2]), Path(sys.argv[3]))"
    )
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-c", script, str(mask), wheel, site], check=True)
    assert stat.S_IMODE((site / "demo_pkg/__init__.py").stat().st_mode) == 0o666 & ~mask
    assert stat.S_IMODE((site / "demo_pkg/a.sh").stat().st_mode) == (0o777 & ~mask) | 0o111
