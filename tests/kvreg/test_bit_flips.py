"""A flipped bit, wherever it is: named, and never a wrong runtime.

A hundred of them, at places that a seed chooses: in the wheel, the manifest and the profile of a
store, read as a layout and served by a registry, and in every kind of file of a staged runtime.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvreg.cli import main
from kvreg.errors import VerificationError
from kvreg.model.digest import sha256_bytes
from tests.support.faults import faulty_registry
from tests.support.layouts import blob_path

SEED = 20261130
IN_WHEEL, IN_MANIFEST, IN_PROFILE = range(24), range(8), range(8)
IN_STAGED = range(60)


@dataclass(frozen=True)
class Flip:
    """One bit of a file, flipped for as long as the context lasts."""

    path: Path
    bit: int

    @classmethod
    def of(cls, path: Path, number: int) -> "Flip":
        chosen = random.Random(f"{SEED} {path.name} {number}")
        return cls(path, chosen.randrange(path.stat().st_size * 8))

    def _flip(self) -> None:
        data = bytearray(self.path.read_bytes())
        data[self.bit // 8] ^= 1 << self.bit % 8
        self.path.write_bytes(data)

    def __enter__(self) -> "Flip":
        self._flip()
        return self

    def __exit__(self, *error: object) -> None:
        self._flip()


def flips(published):
    """The blobs of the store, how often one of their bits is flipped, and what must be named."""
    (layer,) = published.manifest.layers
    manifest = sha256_bytes(published.manifest.to_bytes())
    config = published.manifest.config.digest
    for digest, numbers, names in (
        (layer.digest, IN_WHEEL, (layer.digest, published.wheel.name)),
        (manifest, IN_MANIFEST, (manifest,)),
        (config, IN_PROFILE, (config,)),
    ):
        for number in numbers:
            yield Flip.of(blob_path(published.layout, digest), number), names


def refused(published, reference, names):
    with pytest.raises(VerificationError) as caught:
        published.pull(reference)
    assert any(name in str(caught.value) for name in names), str(caught.value)
    assert not list(published.home.runtimes.glob("*"))
    # Nothing of it is kept under a digest that it does not have.
    for path in published.home.root.glob("blobs/sha256/*"):
        if len(path.name) == 64:
            assert sha256_bytes(path.read_bytes()) == f"sha256:{path.name}"


@pytest.mark.parametrize("kind", ["layout", "registry"])
def test_flips_in_a_store(published, kind):
    count = 0
    with faulty_registry(published.layout) as server:
        reference = server.reference if kind == "registry" else None
        for flip, names in flips(published):
            with flip:
                refused(published, reference, names)
            count += 1
        assert count == 40
        assert published.pull(reference).staged


def test_flips_in_a_staged_runtime(published, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVREG_HOME", str(published.home.root))
    folder = published.pull().runtime.folder

    def kvreg(*words):
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        return result.exit_code, result.stdout + result.stderr

    # Which boot it was written under is no part of it: a wrong one only means that all is hashed.
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.stat().st_size and path.name != ".written-under"
    ]
    assert {path.name for path in files} >= {"runtime.json", "profile.json", "RECORD", "demo"}
    for number in IN_STAGED:
        path = files[number % len(files)]
        with Flip.of(path, number):
            code, text = kvreg("verify", "demo")
            assert code == 1, text
            assert path.name in text
        assert kvreg("verify", "demo")[0] == 0
    # What verify has named, a pull makes anew, also where the size has not changed.
    changed = Flip.of(folder / "site/demo_pkg/data.bin", 0)
    changed.__enter__()
    assert kvreg("verify", "demo")[0] == 1
    code, text = kvreg("pull", "demo", "--registry", f"oci-layout:{published.layout}")
    assert code == 0
    assert "staged: demo" in text
    assert kvreg("verify", "demo")[0] == 0
