"""Building what was built before: unchanged, from a registry, from a cache, after a kill."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.cache import InputCache
from tests.e2e.conftest import TOOLCHAIN, Commands
from tests.support.toolchain import engine, toolchain_image

__all__ = ["engine", "toolchain_image"]

pytestmark = pytest.mark.engine

BUILD = ("builder", "build", "--profile", "t4-probe", "--toolchain", TOOLCHAIN, "--json")
NO_ENGINE = "unix:///nonexistent/engine.sock"


@pytest.fixture
def other(commands, checkout, tmp_path) -> Commands:
    """Another checkout on another machine: nothing is built, and no object is cached."""
    for name in ("profiles", "dockerfiles"):
        shutil.copytree(checkout / name, tmp_path / "far away" / name)
    root, cache = tmp_path / "far away", tmp_path / "cache"
    cache.mkdir()
    # What is downloaded and the toolchain's record are not what is tested here.
    for name in ("sha256", "toolchains"):
        (cache / name).symlink_to(InputCache().root / name)
    return Commands(
        root,
        commands.environment
        | {
            "KVREG_CHECKOUT": str(root),
            "KVREG_PROFILES": str(root / "profiles"),
            "KVREG_BUILD_CACHE": str(cache),
        },
    )


def record(commands: Commands) -> dict:
    return json.loads((commands.root / "dist/t4-probe/record.json").read_text())


def test_an_unchanged_build_is_answered_without_an_engine(commands, built_probe):
    start = time.monotonic()
    again = commands(*BUILD, DOCKER_HOST=NO_ENGINE)
    assert again.json()["sha256"] == built_probe["sha256"]
    assert "nothing changed" in again.err
    assert time.monotonic() - start < 15  # seconds on a busy machine; a compile takes more


def test_a_published_build_is_taken_from_the_registry(commands, other, layout, built_probe):
    store = f"oci-layout:{commands.root / 'store'}"
    taken = other(*BUILD, "--from", store, DOCKER_HOST=NO_ENGINE)
    assert taken.json()["sha256"] == built_probe["sha256"]
    assert record(other) == record(commands)
    assert (other.root / "dist/t4-probe/sbom.cdx.json").read_bytes() == (
        commands.root / "dist/t4-probe/sbom.cdx.json"
    ).read_bytes()
    # It can be published from there as if it had been built there: the same artifact.
    tag = other("builder", "publish", "--profile", "t4-probe", "--to", store, "--json").json()
    assert tag["uploaded_bytes"] == 0


def test_another_recipe_is_another_build(other, layout, commands):
    """The definition of the toolchain is part of the key, and so is every other input."""
    path = other.root / "dockerfiles" / TOOLCHAIN / "toolchain.toml"
    path.write_text(path.read_text() + "# changed\n")
    plan = [*BUILD, "--dry-run"]
    assert other(*plan).json()["key"] != commands(*plan).json()["key"]
    store = f"oci-layout:{commands.root / 'store'}"
    ended = other(*BUILD, "--from", store, code=None, DOCKER_HOST=NO_ENGINE)
    assert ended.code != 0
    assert "no build with this key" in ended.err


def test_a_wheel_that_was_changed_in_the_registry_is_refused(
    commands, other, layout, built_probe, tmp_path
):
    store = tmp_path / "spoilt"
    shutil.copytree(commands.root / "store", store)
    blob = store / "blobs" / "sha256" / str(built_probe["sha256"])
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    data[1000] ^= 1
    blob.write_bytes(data)
    ended = other(*BUILD, "--from", f"oci-layout:{store}", code=1, DOCKER_HOST=NO_ENGINE)
    assert str(built_probe["sha256"]) in ended.out
    assert not list((other.root / "dist").rglob("*.whl"))


def test_a_killed_build_goes_on_from_its_last_object(other, built_probe, toolchain_image):
    program = Path(sys.executable).parent / "builder"
    running = subprocess.Popen(
        [program, *BUILD[1:], "--jobs", "1"],
        cwd=other.root,
        env=other.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    cache = Path(other.environment["KVREG_BUILD_CACHE"]) / "ccache"
    deadline = time.monotonic() + 300
    while len(done := list(cache.glob("*/?/?/*R"))) < 3:
        assert running.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    result = other(*BUILD).json()
    assert result["sha256"] == built_probe["sha256"]
    counters = record(other)["compile_cache"]
    assert counters["direct_cache_hit"] >= len(done) - 1
    assert counters["cache_miss"] > 0


def test_an_empty_runner_restores_the_compile_cache(
    commands, other, built_probe, toolchain_image, tmp_path
):
    store = f"oci-layout:{tmp_path / 'caches'}"
    pushed = commands("builder", "cache", "push", store, "--toolchain", TOOLCHAIN, "--json")
    pull = ("builder", "cache", "pull", store, "--toolchain", TOOLCHAIN, "--json")
    pulled = other(*pull).json()
    assert pulled["digest"] == pushed.json()["digest"]
    assert pulled["moved_entries"] == pushed.json()["entries"]
    result = other(*BUILD).json()
    assert result["sha256"] == built_probe["sha256"]
    found = record(other)
    assert found["compile_cache"]["direct_cache_hit"] >= 10
    assert found["compile_cache_storage"]["restored"] == pulled["digest"]
    assert found["compile_cache_storage"]["limit_bytes"] == 5_000_000_000
    # That it is the same wheel from no cache at all is shown in `test_rebuild.py`.
    entry = next(Path(other.environment["KVREG_BUILD_CACHE"]).glob("ccache/*/?/?/*R"))
    entry.chmod(0o644)
    entry.write_bytes(b"poison")
    ended = other(*BUILD, "--again", code=1)
    problem = ended.json()["error"]["problems"][0]
    assert problem["expected"] != problem["found"]
    assert other("builder", "cache", "prune", "--damaged", "--json").json()["pruned"][0]["entries"]


def test_a_runner_builds_and_publishes_in_one_step(other, tmp_path, toolchain_image, built_probe):
    store = f"oci-layout:{tmp_path / 'registry'}"
    step = ("builder", "ci", "build", "--profile", "t4-probe", "--registry", store)
    step = (*step, "--toolchain", TOOLCHAIN, "--json")
    first = other(*step).json()
    assert not first["answered"]
    assert first["cache"]["saved"]["entries"] > 0
    assert "restored" not in first["cache"]
    second = other(*step).json()
    assert second["answered"]
    assert second["published"]["digest"] == first["published"]["digest"]
    assert second["published"]["uploaded_bytes"] == 0
