"""Overlays at the client: locks as untrusted input, what must agree with them, where they go."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.errors import ContractError, KvregError, VerificationError
from kvreg.integrity import check_runtime
from kvreg.model.protected import PROTECTED_PACKAGES, is_protected
from kvreg.overlay import OverlayEntry, parse_lock
from tests.support.overlays import lock_of, publish_overlay
from tests.support.wheels import write_wheel

ANY = "py3-none-any"
HEX = "a" * 64


@pytest.fixture
def wheels(tmp_path: Path) -> tuple[Path, Path]:
    """A native wheel and one for the overlay."""
    folder = tmp_path / "wheels"
    return write_wheel(folder), write_wheel(folder, "extra_pkg", "3", ANY)


def put(tmp_path, wheels, **options):
    return publish_overlay(tmp_path, wheels[0], [wheels[1]], **options)


def test_overlay_wheels_are_staged_beside_the_native_one(tmp_path, wheels, monkeypatch):
    published = put(tmp_path, wheels)
    runtime = published.pull().runtime
    assert {wheel.role for wheel in runtime.wheels} == {"native", "overlay"}
    assert check_runtime(runtime).ok
    assert (runtime.site / "demo_pkg/__init__.py").is_file()
    assert not (runtime.site / "extra_pkg").exists()
    info = runtime.overlay / "extra_pkg-3.dist-info"
    assert not (info / "REQUESTED").exists()
    assert (info / "INSTALLER").read_text() == "kvreg\n"
    assert (runtime.folder / "overlay.lock").read_bytes() == lock_of([wheels[1]])
    # What is changed there is found there.
    (runtime.overlay / "extra_pkg/data.bin").write_bytes(b"other")
    (runtime.overlay / "extra_pkg/new.py").write_bytes(b"")
    report = check_runtime(runtime)
    assert report.changed == ("../overlay/extra_pkg/data.bin",)
    assert report.added == ("../overlay/extra_pkg/new.py",)
    assert published.pull().staged, "a damaged overlay is staged again"


def test_a_profile_without_an_overlay_takes_none(tmp_path, wheels):
    published = put(tmp_path, wheels, lock=b"# nothing\n")
    refused(published, VerificationError, "extra-pkg: is in the artifact, not in the lock")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw + f"more==1 --hash=sha256:{HEX}\n".encode(), "more: is in the lock"),
        (lambda raw: raw.replace(b"==3", b"==4"), "extra-pkg: is in the lock, not in the artifact"),
        (lambda raw: raw[:-10] + b"0" * 9 + b"\n", "extra-pkg: is in the artifact, not in"),
    ],
)  # fmt: skip
def test_wheels_and_lock_must_agree(tmp_path, wheels, change, said):
    refused(put(tmp_path, wheels, lock=change(lock_of([wheels[1]]))), VerificationError, said)


def test_the_lock_must_be_the_one_that_the_profile_names(tmp_path, wheels):
    other = lock_of([wheels[1]]) + b"# changed\n"
    published = put(tmp_path, wheels, published_lock=other)
    refused(published, VerificationError, "does not hold the overlay lock of its profile")


@pytest.mark.parametrize("name", ["torch", "numpy", "nvidia_nccl_cu12", "NVIDIA_Something"])
def test_a_protected_package_is_refused_before_it_is_fetched(tmp_path, wheels, name):
    bad = write_wheel(tmp_path / "wheels", name, "1", ANY)
    published = publish_overlay(tmp_path, wheels[0], [bad])
    refused(published, ContractError, "belong to the host")
    left = [path for path in published.left() if bad.stat().st_size == _size(published, path)]
    assert left == []


def test_a_module_of_the_host_under_another_name_is_refused(tmp_path, wheels):
    sly = write_wheel(tmp_path / "wheels", "sly", "1", ANY, extra={"numpy/__init__.py": b""})
    refused(publish_overlay(tmp_path, wheels[0], [sly]), ContractError, "shadow modules")


def _size(published, path):
    return (published.home.root / path).stat().st_size


def refused(published, kind, said):
    with pytest.raises(kind) as caught:
        published.pull()
    assert said in str(caught.value)
    assert not [path for path in published.left() if path.startswith("runtimes")]
    assert json.dumps(caught.value.to_dict())


@pytest.mark.parametrize(
    "line",
    [
        "-i https://index.example/simple",
        "--extra-index-url https://index.example",
        "a @ https://files.example/a-1-py3-none-any.whl",
        "a==1",
        "a>=1 --hash=sha256:" + HEX,
        "a==1 --hash=md5:" + "a" * 32,
        f"a==1 --hash=sha256:{HEX} --hash=sha256:{HEX}",
        f"a==1.* --hash=sha256:{HEX}",
        f"a==nonsense --hash=sha256:{HEX}",
        f"a==1 ; python_version < '4' --hash=sha256:{HEX}",
        f"./a==1 --hash=sha256:{HEX}",
        f"a==1 --hash=sha256:{HEX.upper()}",
        "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    ],
)
def test_what_is_not_an_entry_is_refused(line):
    with pytest.raises(VerificationError):
        parse_lock(f"b==1 --hash=sha256:{HEX}\n{line}\n".encode())


def test_every_fault_is_named_at_once():
    raw = f"a==1 --hash=sha256:{HEX}\nA==2 --hash=sha256:{HEX}\nnonsense\n".encode()
    with pytest.raises(VerificationError) as caught:
        parse_lock(raw)
    assert [problem.where for problem in caught.value.problems] == ["line 2", "line 3"]


def test_a_lock_as_pip_and_uv_write_it_is_read():
    raw = f"# head\nDemo_Pkg==1.0 \\\n    --hash=sha256:{HEX}\n    # via x\n"
    raw += f"b==2 --hash=sha256:{HEX}  # why\n"
    assert parse_lock(raw.encode()) == (
        OverlayEntry("demo-pkg", "1.0", HEX),
        OverlayEntry("b", "2", HEX),
    )


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(raw):
    try:
        entries = parse_lock(raw)
    except KvregError:
        return
    assert all(len(entry.sha256) == 64 for entry in entries)


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,5}){0,2}", fullmatch=True)


@given(st.dictionaries(NAMES, st.integers(0, 99), max_size=8))
def test_what_is_written_is_read_back(pins):
    pins = {name: n for name, n in pins.items() if not is_protected(name)}
    lines = [
        f"{n}=={v} --hash=sha256:{hashlib.sha256(n.encode()).hexdigest()}" for n, v in pins.items()
    ]
    found = parse_lock("\n".join(lines).encode())
    assert {entry.name: entry.version for entry in found} == {n: str(v) for n, v in pins.items()}


def test_protected_names_are_what_the_design_says():
    assert set(PROTECTED_PACKAGES) == {
        "torch", "torchvision", "torchaudio", "triton", "numpy", "nvidia-*",
    }  # fmt: skip
    assert is_protected("nvidia-ml-py")
    assert not is_protected("torchao")
    assert not is_protected("numpy-financial")


def test_the_overlay_counts_in_the_space_that_is_required(tmp_path, wheels, monkeypatch):
    import shutil

    import kvreg.home

    big = write_wheel(tmp_path / "wheels", "big", "1", ANY, extra={"big/zeros": bytes(8 << 20)})
    published = publish_overlay(tmp_path, wheels[0], [big])
    usage = shutil.disk_usage("/")._replace(free=(64 << 20) + (6 << 20))
    monkeypatch.setattr(kvreg.home.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(KvregError, match="too little disk space") as caught:
        published.pull()
    assert caught.value.exit_code == 5


def test_the_build_digest_knows_no_overlay(tmp_path, wheels):
    published = put(tmp_path, wheels)
    profile = published.profile
    assert profile.build_digest != profile.digest
    lock = replace(profile.locks["overlay"], sha256="b" * 64)
    other = replace(profile, locks={**profile.locks, "overlay": lock})
    assert other.digest != profile.digest
    assert other.build_digest == profile.build_digest
    source = replace(profile.locks["source"], sha256="b" * 64)
    rebuilt = replace(profile, locks={**profile.locks, "source": source})
    assert rebuilt.build_digest != profile.build_digest
