"""Which CPython is taken, why others are not, and what of it is copied."""

import sys
from pathlib import Path

import pytest

from builder.cache import InputCache
from builder.toolchain_definition import PythonPolicy
from builder.toolchain_python import (
    Candidate,
    Rejection,
    copy_python,
    find_candidates,
    inspect,
    none_works,
)

POLICY = PythonPolicy("3.12", ("environment", "path", "pyenv", "uv"), "3.12.13", "0.13.9")

FACTS = """#!/bin/sh
echo '{{"implementation": "{implementation}", "version": "{version}", "machine": "x86_64",
"prefix": "{prefix}", "build": "x", "gil": {gil}, "debug": false, "standalone": {standalone}}}'
"""


def fake_python(folder: Path, **facts: str) -> Path:
    """A folder with what an interpreter must have, and a script that answers for it."""
    executable = folder / "bin/python3.12"
    for path in (
        executable,
        folder / "include/python3.12/Python.h",
        folder / "lib/python3.12/ensurepip/_bundled/pip-23-py3-none-any.whl",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    answers = {"implementation": "CPython", "version": "3.12.7", "prefix": str(folder)}
    answers |= {"gil": "true", "standalone": "false"} | facts
    executable.write_text(FACTS.format(**answers))
    executable.chmod(0o755)
    return executable


def test_the_named_one_is_the_only_one(tmp_path: Path) -> None:
    named = fake_python(tmp_path / "named")
    pyenv = fake_python(tmp_path / "pyenv/versions/3.12.9", version="3.12.9")
    environment = {"KVREG_PYTHON312": str(named), "PYENV_ROOT": str(tmp_path / "pyenv")}
    found = list(find_candidates(POLICY, InputCache(tmp_path), environment))
    assert [(c.origin, c.version) for c in found if isinstance(c, Candidate)] == [
        ("environment", "3.12.7")
    ]
    assert pyenv.exists() and len(found) == 1


def test_places_are_searched_in_order_newest_first(tmp_path: Path) -> None:
    for version in ("3.12.9", "3.12.11", "3.11.2"):
        fake_python(tmp_path / "pyenv/versions" / version, version=version)
    uv = tmp_path / "uv"
    fake_python(uv / "cpython-3.12.13-linux-x86_64-gnu", version="3.12.13")
    fake_python(uv / "cpython-3.12.12-linux-x86_64-gnu", version="3.12.12", gil="false")
    environment = {
        "PATH": str(tmp_path / "empty"),
        "PYENV_ROOT": str(tmp_path / "pyenv"),
        "UV_PYTHON_INSTALL_DIR": str(uv),
    }
    found = list(find_candidates(POLICY, InputCache(tmp_path), environment))
    assert [(c.origin, c.version, c.portable) for c in found if isinstance(c, Candidate)] == [
        ("pyenv", "3.12.11", False),
        ("pyenv", "3.12.9", False),
        ("uv", "3.12.13", True),
    ]
    assert [(r.origin, r.reason) for r in found if isinstance(r, Rejection)] == [
        ("environment", "none there"),
        ("path", "none there"),
        ("uv", "is not an ordinary x86-64 build (free-threaded, debug or another machine)"),
    ]


@pytest.mark.parametrize(
    "facts, reason",
    [
        ({"version": "3.13.1"}, "is CPython 3.13.1, not CPython 3.12"),
        ({"implementation": "PyPy"}, "is PyPy 3.12.7, not CPython 3.12"),
        ({"gil": "false"}, "is not an ordinary x86-64 build"),
        ({"prefix": "/usr"}, "is the distribution's own"),
    ],
)
def test_what_does_not_do_says_why(tmp_path: Path, facts: dict[str, str], reason: str) -> None:
    found = inspect("path", fake_python(tmp_path / "p", **facts))
    assert isinstance(found, Rejection)
    assert found.reason.startswith(reason)


def test_what_lacks_a_part_or_does_not_run_says_so(tmp_path: Path) -> None:
    executable = fake_python(tmp_path / "p")
    (tmp_path / "p/include/python3.12/Python.h").unlink()
    assert inspect("path", executable) == Rejection("path", str(executable), "has no headers")
    executable.write_text("#!/bin/sh\necho 'no version is set' >&2; exit 127\n")
    found = inspect("path", executable)  # what a shim without a version does
    assert isinstance(found, Rejection)
    assert found.reason == "does not run: no version is set"
    found = inspect("path", tmp_path / "absent")
    assert isinstance(found, Rejection) and found.reason.startswith("does not run")


def test_the_error_lists_all_that_was_tried() -> None:
    error = none_works([Rejection("path", "", "none there"), Rejection("uv", "/x", "has no pip")])
    assert error.exit_code == 3
    text = str(error)
    assert "path: none there" in text and "uv: /x: has no pip" in text
    assert "KVREG_PYTHON312" in text


def test_a_copy_names_its_new_home_and_leaves_the_rest(tmp_path: Path) -> None:
    prefix = tmp_path / "old/3.12.7"
    fake_python(prefix)
    library = prefix / "lib/python3.12"
    for name in (
        *("os.py", "lib-dynload/_ssl.so", "lib-dynload/_testcapi.so", "test/test_os.py"),
        *("unittest/mock.py", "unittest/test/x.py", "site-packages/foreign/__init__.py"),
        *("json/__pycache__/x.pyc", "tkinter/__init__.py", "config-3.12-x/libpython3.12.a"),
        "config-3.12-x/Makefile",
    ):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text("x")
    (library / "_sysconfigdata.py").write_text(f"A = '{prefix}/lib'\nB = '{prefix}-other'\n")
    (prefix / "lib/libpython3.12.so.1.0").write_bytes(b"\x7fELF\0" + str(prefix).encode())
    (prefix / "lib/libpython3.12.so").symlink_to("libpython3.12.so.1.0")
    (prefix / "share").mkdir()
    candidate = inspect("pyenv", prefix / "bin/python3.12")
    assert isinstance(candidate, Candidate)
    target = tmp_path / "new"
    copy_python(candidate, target)
    copied = {p.relative_to(target).as_posix() for p in target.rglob("*") if not p.is_dir()}
    assert copied == {
        *("bin/python", "bin/python3", "bin/python3.12", "include/python3.12/Python.h"),
        *("lib/libpython3.12.so", "lib/libpython3.12.so.1.0", "lib/python3.12/os.py"),
        *("lib/python3.12/_sysconfigdata.py", "lib/python3.12/config-3.12-x/Makefile"),
        *("lib/python3.12/lib-dynload/_ssl.so", "lib/python3.12/unittest/mock.py"),
        "lib/python3.12/ensurepip/_bundled/pip-23-py3-none-any.whl",
    }
    assert (target / "lib/libpython3.12.so").is_symlink()
    text = (target / "lib/python3.12/_sysconfigdata.py").read_text()
    assert text == f"A = '/opt/python3.12/lib'\nB = '{prefix}-other'\n"


@pytest.mark.skipif(sys.version_info[:2] != (3, 12), reason="needs CPython 3.12")
def test_a_virtual_environment_answers_for_its_base() -> None:
    found = inspect("path", Path(sys.executable))
    if isinstance(found, Rejection):
        assert "distribution" in found.reason or "no headers" in found.reason
    else:
        assert found.prefix == Path(sys.base_prefix)
        assert str(found.prefix) not in found.to_dict().values()
