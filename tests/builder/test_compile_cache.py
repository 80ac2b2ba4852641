"""The compile cache as files and as an artifact: sealed, refused when changed, limited."""

import doctest
import os
import time
from pathlib import Path

import pytest

import builder.compile_cache as module
from builder.compile_cache import CompileCache, parse_size
from builder.compile_cache_artifact import ARTIFACT_TYPE, cache_tag, pull, push
from kvreg.errors import ContractError, NotFoundError, UsageError, VerificationError
from kvreg.model.digest import sha256_bytes
from kvreg.model.oci import Manifest
from registry.layout import Layout

COMPILERS = sha256_bytes(b"compilers")


def entry(number: int, kind: str = "R") -> str:
    return f"{number % 16:x}/{number // 16 % 16:x}/{'e' * 20}{number:04d}{kind}"


def fill(cache: CompileCache, numbers: range, size: int = 1000) -> None:
    """Entries as ccache leaves them, with what is not one beside them."""
    cache.prepare()
    for number in numbers:
        for kind in "RM":
            path = cache.folder / entry(number, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"{number}{kind}".encode() * (size // 5))
    (cache.folder / "0").mkdir(exist_ok=True)
    (cache.folder / "0" / "stats").write_text("1")
    (cache.folder / "ccache.conf").write_text("max_size = 1\n")


@pytest.fixture
def cache(tmp_path):
    found = CompileCache(tmp_path / "ccache", "cuda-12.4-debian12", COMPILERS)
    fill(found, range(40))
    found.seal()
    return found


@pytest.fixture
def store(tmp_path):
    return Layout(tmp_path / "store")


def bytes_of(cache: CompileCache) -> dict[str, bytes]:
    return {path: file.read_bytes() for path, file in cache.entries().items()}


def other(tmp_path: Path, compilers: str = COMPILERS) -> CompileCache:
    return CompileCache(tmp_path / "elsewhere", "cuda-12.4-debian12", compilers)


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_what_one_machine_saves_another_restores(cache, store, tmp_path):
    pushed = push(cache, store)
    assert pushed.entries == 80
    assert store.resolve(cache_tag(cache)).artifact_type == ARTIFACT_TYPE
    there = other(tmp_path)
    moved = pull(there, store)
    assert (moved.digest, moved.moved_entries) == (pushed.digest, 80)
    assert bytes_of(there) == bytes_of(cache)
    assert there.restored == pushed.digest
    assert there.describe()["sealed"] == 80
    # What it restored goes back as the same bytes, whoever made the archive and when.
    assert push(there, store).moved_bytes == 0


def test_only_parts_that_changed_are_sent(cache, store):
    first = push(cache, store)
    fill(cache, range(40, 41))
    second = push(cache, store)
    assert second.digest != first.digest
    assert 0 < second.moved_bytes < first.moved_bytes / 4
    assert push(cache, store).moved_bytes == 0


def test_entries_that_are_here_stay(cache, store, tmp_path):
    push(cache, store)
    there = other(tmp_path)
    fill(there, range(2))
    mine = there.folder / entry(0, "M")
    mine.write_bytes(b"newer")
    moved = pull(there, store)
    assert moved.moved_entries == 76
    assert mine.read_bytes() == b"newer"


def test_other_compilers_are_refused_under_whatever_name(cache, store, tmp_path):
    pushed = push(cache, store)
    theirs = sha256_bytes(b"another image under the same name")
    there = other(tmp_path, theirs)
    with pytest.raises(NotFoundError):
        pull(there, store)
    for name in (cache_tag(cache), pushed.digest):
        with pytest.raises(ContractError) as caught:
            pull(there, store, name)
        assert COMPILERS in caught.value.found
        assert theirs in caught.value.expected
    assert there.entries() == {}


def test_a_blob_that_was_changed_in_the_store_is_refused(cache, store, tmp_path):
    push(cache, store)
    manifest = Manifest.parse(store.fetch_manifest(store.resolve(cache_tag(cache)).digest))
    path = store.blob_path(manifest.layers[3])
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(VerificationError) as caught:
        pull(other(tmp_path), store)
    assert caught.value.expected == manifest.layers[3].digest
    assert caught.value.found == sha256_bytes(bytes(data))


def test_an_entry_that_its_config_does_not_name_is_refused(cache, store, tmp_path, monkeypatch):
    """A poisoned artifact with right blob digests: its archive holds other bytes than it names."""
    honest = cache.seal

    def lie(restored=None):
        sealed = honest(restored)
        path = entry(7)
        (cache.folder / path).write_bytes(b"poison" + b"!" * (sealed[path].size - 6))
        return sealed

    good = (cache.folder / entry(7)).read_bytes()
    monkeypatch.setattr(type(cache), "seal", lambda self, restored=None: lie(restored))
    push(cache, store)
    monkeypatch.undo()
    there = other(tmp_path)
    with pytest.raises(VerificationError) as caught:
        pull(there, store)
    poison = b"poison" + b"!" * (len(good) - 6)
    assert caught.value.expected == sha256_bytes(good)
    assert caught.value.found == sha256_bytes(poison)
    assert entry(7) not in there.entries()


def test_an_artifact_of_another_kind_is_refused(cache, store, tmp_path):
    from tests.registry.samples import push_artifact

    store.prepare()
    push_artifact(store, tag=cache_tag(cache))
    with pytest.raises(VerificationError, match="no compile cache"):
        pull(other(tmp_path), store)


def test_nothing_to_save_and_nothing_to_restore(store, tmp_path):
    empty = other(tmp_path)
    empty.prepare()
    with pytest.raises(NotFoundError):
        push(empty, store)
    store.prepare()
    with pytest.raises(NotFoundError):
        pull(empty, store)


def test_an_entry_that_was_changed_is_refused_before_a_build(cache):
    path = cache.folder / entry(3)
    before = sha256_bytes(path.read_bytes())
    path.write_bytes(b"changed")
    with pytest.raises(VerificationError) as caught, cache.in_use():
        pytest.fail("the build began")
    (problem,) = caught.value.problems
    assert problem.where.endswith(entry(3))
    assert (problem.expected, problem.found) == (before, sha256_bytes(b"changed"))
    assert cache.prune(damaged=True)[0] == 1
    with cache.in_use():
        pass


def test_a_build_renews_the_seal(cache):
    with cache.in_use():
        fill(cache, range(40, 42))
        (cache.folder / entry(1, "M")).write_bytes(b"a manifest grows")
    with cache.in_use():
        pass
    assert len(cache.sealed()) == 84


def test_a_killed_build_is_not_mistaken_for_tampering(cache):
    process = os.fork()
    if process == 0:
        with cache.in_use():
            fill(cache, range(40, 42))
            (cache.folder / entry(1, "M")).write_bytes(b"a manifest grows")
            os._exit(9)
    os.waitpid(process, 0)
    with cache.in_use():
        assert len(cache.entries()) == 84
    # Results never change, killed or not.
    process = os.fork()
    if process == 0:
        with cache.in_use():
            os._exit(9)
    os.waitpid(process, 0)
    (cache.folder / entry(5)).write_bytes(b"x")
    with pytest.raises(VerificationError), cache.in_use():
        pass


def test_the_longest_unused_go_first(cache):
    old = [entry(n) for n in range(10)]
    for number, path in enumerate(old):
        moment = time.time() - 90 * 86400 + number
        os.utime(cache.folder / path, (moment, moment))
    total = cache.describe()["bytes"]
    size = (cache.folder / old[0]).stat().st_size
    count, removed = cache.prune(limit=total - 3 * size)
    assert count == 3
    assert removed >= 3 * size - 300
    assert not any((cache.folder / path).exists() for path in old[:3])
    assert cache.prune(older_than_days=30)[0] == 7
    assert cache.prune(limit=0)[0] == 70
    assert cache.describe()["objects"] == 0


def test_sizes_are_as_ccache_reads_them():
    assert parse_size("0") == 0
    for wrong in ("", "5X", "-1G", "5 G", "G", "5i"):
        with pytest.raises(UsageError):
            parse_size(wrong)
