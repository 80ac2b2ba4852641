"""A wheel with large and small members, and pulls of it with small ranges."""

import random
from functools import partial
from pathlib import Path

import pytest

import kvreg.making
from kvreg.blobs import BlobStore
from kvreg.home import Home
from kvreg.integrity import check_runtime
from kvreg.model.oci import Index, Manifest
from kvreg.model.profile import load_profile
from kvreg.runtime import Runtime, read_runtime
from kvreg.transfer.journal import recover
from kvreg.transfer.schedule import RangePolicy
from tests.kvreg.conftest import Published
from tests.support.layouts import blob_path

TINY = RangePolicy(least=48 << 10, most=96 << 10, tail=16 << 10)


def members(size: int, seed: int = 1) -> dict[str, bytes]:
    """Members of about `size` bytes in all: a large one, some that do not compress, many small."""
    chance = random.Random(seed)
    found = {
        "demo_pkg/large.so": chance.randbytes(size // 4) + bytes(size // 4),
        "demo_pkg/noise.bin": chance.randbytes(size // 4),
    }
    for number in range(40):
        line = chance.randbytes(20).hex().encode() + b"\n"
        found[f"demo_pkg/part_{number % 7}/module_{number}.py"] = b"# " + line * (size // 8000)
    return found


def use_ranges(
    monkeypatch: pytest.MonkeyPatch, policy: RangePolicy = TINY, stalls: int = 4
) -> None:
    """Let pulls of this process use many ranges, and not sleep before they try again."""
    store = partial(BlobStore, ranges=policy, stalls=stalls, sleep=lambda delay: None)
    monkeypatch.setattr(kvreg.making, "BlobStore", store)


def check_home(
    published: Published, *, quiet: bool = True, received: bool = True
) -> Runtime | None:
    """Whatever lies in a home is right: runtimes, blobs, ranges of partial ones.

    `quiet` says that no killed process can have left its workplace; `received`, that what was
    received was right, so that partial blobs must be as well.
    """
    home: Home = published.home
    layer = published.manifest.layers[0]
    content = published.wheel.read_bytes()
    blob = home.blob(layer.digest)
    if blob.exists():
        assert blob.read_bytes() == content
    partial_blob = blob.with_name(blob.name + ".partial")
    ranges = recover(partial_blob, layer) if received and partial_blob.exists() else []
    for start, end in ranges:
        with partial_blob.open("rb") as file:
            file.seek(start)
            assert file.read(end - start) == content[start:end]
    if quiet:
        assert not list(home.runtimes.glob(".*")) if home.runtimes.exists() else True
    final = home.runtime(published.profile.digest)
    if not final.exists():
        return None
    runtime = read_runtime(final)
    assert check_runtime(runtime).ok
    return runtime


def load_published(folder: Path, home: Home) -> Published:
    """What the `publish` fixture made in `folder`, for another process and with another home."""
    profile = load_profile(folder / "catalogue" / "demo")
    (wheel,) = (folder / "wheels").glob("*.whl")
    index = Index.parse((folder / "layout/index.json").read_bytes())
    raw = blob_path(folder / "layout", index.manifests[0].digest).read_bytes()
    return Published(profile, wheel, Manifest.parse(raw), folder / "layout", home)


def held(home: Home) -> set[Path]:
    """All files of a home but locks."""
    return {
        path
        for path in home.root.rglob("*")
        if path.is_file() and "locks" not in path.relative_to(home.root).parts
    }
