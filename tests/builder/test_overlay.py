"""Overlays: resolved by uv against a real index on loopback, explained, locked, published."""

import hashlib
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from builder.cache import InputCache
from builder.cli import main
from builder.freeze import freeze_text, parse_freeze, read_freeze
from builder.index import PackageIndex
from builder.overlay import Resolver
from builder.overlay_lock import lock_text, overlay_inputs, overlay_layers, wheel_metadata
from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.model.oci import MEDIA_TYPE_OVERLAY_LOCK
from kvreg.model.profile import load_profile
from kvreg.overlay import parse_lock
from tests.kvreg.profiles import write_profile
from tests.support.package_index import loopback_index
from tests.support.wheels import write_wheel

OVERLAY = """
[overlay]
extras = ["bench"]
exclude_newer = "2026-05-23"
[[overlay.omission]]
name = "jit"
reason = "no kernels here"
"""


class World:
    """An index, a host and a runtime's requirements, to be resolved."""

    def __init__(self, index, folder: Path) -> None:
        self.index = index
        self.folder = folder
        self.host: dict[str, str] = {}
        self.profile_folder = write_profile(
            folder / "profiles",
            source='source = "source.lock"\noverlay = "overlay.lock"',
        )
        text = (self.profile_folder / "profile.toml").read_text()
        text = text.replace("[locks]", f"{OVERLAY}\n[locks]")
        text = text.replace(
            next(line for line in text.splitlines() if line.startswith("python_tag")),
            'python_tag = { require = "cp312", validated = "cp312" }',
        )
        (self.profile_folder / "profile.toml").write_text(text)

    def add(self, name: str, version: str, *requires: str, uploaded: str = "", **extras) -> str:
        """A release in the index; its sha256."""
        lines = [f"Requires-Dist: {text}" for text in requires]
        for extra, texts in extras.items():
            lines.append(f"Provides-Extra: {extra}")
            lines += [f"Requires-Dist: {text}; extra == '{extra}'" for text in texts]
        path = write_wheel(
            self.folder / "files",
            name.replace("-", "_"),
            version,
            "py3-none-any",
            spoil=lambda files: _append(files, lines),
        )
        if uploaded:
            self.index.uploaded[path.name] = uploaded
        return self.index.add(name, path.name, path.read_bytes())

    def installed(self, name: str, version: str, *requires: str) -> None:
        """A release that the host has too."""
        self.add(name, version, *requires)
        self.host[name] = version

    def resolve(self, *requires: str, **extras):
        text = "Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.2\n"
        text += "".join(f"Requires-Dist: {item}\n" for item in requires)
        for extra, items in extras.items():
            text += f"Provides-Extra: {extra}\n"
            text += "".join(f"Requires-Dist: {i}; extra == '{extra}'\n" for i in items)
        self.said: list[str] = []
        profile = load_profile(self.profile_folder, allow_missing_locks=True)
        resolver = Resolver(
            profile,
            text.encode(),
            self.host,
            PackageIndex(self.index.url),
            profile.overlay.exclude_newer,
        )
        return resolver.resolve(self.said.append)


def _append(files, lines):
    name = next(path for path in files if path.endswith("/METADATA"))
    files[name] += "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture
def world(tmp_path):
    with loopback_index() as index:
        yield World(index, tmp_path)


def names(overlay):
    return {entry.name: entry.version for entry in overlay.entries}


def test_what_the_host_has_is_kept_and_what_it_lacks_is_brought(world):
    world.installed("old", "1.0")
    world.add("old", "2.0")
    world.add("absent", "1.0", "deep>=1", "old")
    world.add("deep", "1.5")
    overlay = world.resolve("old>=0.5", "absent")
    assert names(overlay) == {"absent": "1.0", "deep": "1.5"}
    assert overlay.kept == {"old": "1.0"}
    absent, deep = overlay.entries
    assert (absent.host_version, deep.host_version) == (None, None)
    assert [str(need) for need in deep.because] == ["absent 1.0 needs deep>=1"]


def test_a_shadow_says_which_requirement_the_host_fails(world):
    world.installed("shadowed", "5.0")
    world.add("shadowed", "4.9")
    world.add("shadowed", "4.8")
    world.installed("user", "1.0", "shadowed>=4")
    overlay = world.resolve("shadowed<5,>=4", "user")
    (entry,) = overlay.entries
    assert (entry.name, entry.version, entry.host_version) == ("shadowed", "4.9", "5.0")
    assert [str(n) for n in entry.because] == ["demo-pkg 1.2+cu128.sm75 needs shadowed<5,>=4"]
    assert [str(n) for n in entry.affects] == ["user 1.0 needs shadowed>=4"]


def test_what_depends_on_a_shadow_and_breaks_is_shadowed_too(world):
    world.installed("core", "2.0")
    world.add("core", "1.0")
    world.installed("user", "2.0", "core>=2")
    world.add("user", "1.0", "core<2")
    overlay = world.resolve("core<2", "user")
    assert names(overlay) == {"core": "1.0", "user": "1.0"}
    assert overlay.entries[1].host_version == "2.0"


def test_protected_packages_bind_and_are_never_brought(world):
    for name, version in (("numpy", "2.0.2"), ("torch", "2.10.0"), ("triton", "3.6.0")):
        world.add(name, version)
    world.add("numpy", "2.3.0")
    world.host |= {"numpy": "2.0.2", "torch": "2.10.0+cu128", "triton": "3.6.0"}
    world.add("fast", "2.0", "numpy>=2.1")
    world.add("fast", "1.0", "numpy>=1.0", "torch")
    overlay = world.resolve("fast", "torch==2.10.0", "numpy")
    assert names(overlay) == {"fast": "1.0"}


def test_a_host_without_what_is_taken_from_it_is_refused(world):
    world.add("torch", "2.11.0")
    world.host["torch"] = "2.11.0+cu128"
    with pytest.raises(ContractError) as caught:
        world.resolve("torch==2.10.0", "triton")
    assert [problem.where for problem in caught.value.problems] == ["torch", "triton"]


def test_a_protected_package_that_only_a_dependency_wants_is_refused(world):
    world.add("absent", "1.0", "nvidia-thing>=1")
    world.add("nvidia-thing", "1.0")
    with pytest.raises(ContractError, match="would not satisfy itself") as caught:
        world.resolve("absent")
    assert "nvidia-thing" in str(caught.value)


def test_what_is_omitted_takes_what_only_it_needs_along(world):
    world.add("jit", "1.0", "compiler")
    world.add("compiler", "1.0")
    world.add("absent", "1.0", "jit>=1")
    overlay = world.resolve("jit==1.0", "absent")
    assert names(overlay) == {"absent": "1.0"}


def test_extras_of_the_profile_count_and_others_do_not(world):
    world.add("plot", "1.0")
    world.add("sound", "1.0")
    overlay = world.resolve(bench=["plot"], audio=["sound"])
    assert names(overlay) == {"plot": "1.0"}


def test_newer_releases_than_the_day_are_not_seen(world):
    world.add("absent", "1.0")
    world.add("absent", "2.0", uploaded="2026-05-23T00:00:01Z")
    assert names(world.resolve("absent")) == {"absent": "1.0"}


def test_a_shadow_that_nobody_needs_is_dropped(world):
    """The host has a release of which the index has only the source: uv cannot keep it."""
    world.add("kept", "1.1")
    world.host["kept"] = "1.0"
    overlay = world.resolve("kept>=1.0")
    assert names(overlay) == {}
    assert any("kept 1.1 is not needed" in text for text in world.said)


def test_nothing_that_resolves_is_said_with_uvs_words(world):
    world.add("absent", "1.0")
    with pytest.raises(UsageError, match="cannot be resolved") as caught:
        world.resolve("absent>=2")
    assert "absent" in str(caught.value.found)


def test_the_lock_is_a_function_of_its_inputs_and_names_no_host(world, tmp_path):
    sha = world.add("absent", "1.0")
    world.installed("shadowed", "5.0")
    world.add("shadowed", "4.9")
    overlay = world.resolve("absent", "shadowed<5")
    profile = load_profile(world.profile_folder, allow_missing_locks=True)
    text = lock_text(overlay, profile, world.host, "2026-05-23")
    assert lock_text(overlay, profile, world.host, "2026-05-23") == text
    assert "127.0.0.1" not in text
    assert "://" not in text
    for said in (
        f"absent==1.0 --hash=sha256:{sha}\n",
        "# absent on the host; demo-pkg 1.2+cu128.sm75 needs absent\n",
        "# shadows the host's 5.0; demo-pkg 1.2+cu128.sm75 needs shadowed<5\n",
        "# Left out: jit: no kernels here.\n",
        "1 that the host lacks, 1 that shadow",
        "as of 2026-05-23",
    ):
        assert said in text
    (world.profile_folder / "overlay.lock").write_text(text)
    profile = load_profile(world.profile_folder)
    inputs = overlay_inputs(profile, world.profile_folder)
    assert {(i.name, i.version, i.sha256) for i in inputs} == {
        (e.name, e.version, e.sha256) for e in parse_lock(text.encode())
    }
    assert all(i.size == len(world.index.files[i.filename][1]) for i in inputs)


def test_pip_installs_from_the_lock(world, tmp_path):
    """The lock is what pip calls a requirements file with hashes."""
    import subprocess
    import sys

    world.add("absent", "1.0")
    profile = load_profile(world.profile_folder, allow_missing_locks=True)
    path = tmp_path / "overlay.lock"
    path.write_text(lock_text(world.resolve("absent"), profile, world.host, ""))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--isolated"),
            *("--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", path),
            *("--index-url", world.index.url, "--target", tmp_path / "target"),
        ],
        check=True,
    )
    assert (tmp_path / "target/absent/__init__.py").is_file()


def test_layers_are_fetched_by_hash_and_bear_their_names(world, tmp_path, monkeypatch):
    monkeypatch.setenv("KVREG_INDEX_URL", world.index.url)
    sha = world.add("absent", "1.0")
    profile = load_profile(world.profile_folder, allow_missing_locks=True)
    text = lock_text(world.resolve("absent"), profile, world.host, "")
    (world.profile_folder / "overlay.lock").write_text(text)
    profile = load_profile(world.profile_folder)
    cache = InputCache(tmp_path / "cache")
    for _ in range(2):
        lock, wheel = overlay_layers(profile, world.profile_folder, cache)
        assert lock.media_type == MEDIA_TYPE_OVERLAY_LOCK
        assert (wheel.role, wheel.path.name) == ("overlay", "absent-1.0-py3-none-any.whl")
        assert hashlib.sha256(wheel.path.read_bytes()).hexdigest() == sha


def test_a_lock_with_a_protected_package_is_refused_at_build(world, tmp_path):
    line = f"# wheel: numpy-1-py3-none-any.whl (1 bytes)\nnumpy==1 --hash=sha256:{'a' * 64}\n"
    (world.profile_folder / "overlay.lock").write_text(line)
    profile = load_profile(world.profile_folder)
    with pytest.raises(ContractError, match="belong to the host"):
        overlay_layers(profile, world.profile_folder, InputCache(tmp_path / "cache"))


@pytest.mark.parametrize("wheel", ["", "other-1-py3-none-any.whl", "a-2-py3-none-any.whl"])
def test_a_lock_that_does_not_name_its_files_is_refused(world, wheel):
    comment = f"# wheel: {wheel} (1 bytes)\n" if wheel else ""
    text = f"{comment}a==1 --hash=sha256:{'a' * 64}\n"
    (world.profile_folder / "overlay.lock").write_text(text)
    profile = load_profile(world.profile_folder)
    with pytest.raises(UsageError, match="does not say which file a 1 is"):
        overlay_inputs(profile, world.profile_folder)


def test_the_command_writes_lock_and_list(world, tmp_path, monkeypatch):
    monkeypatch.setenv("KVREG_INDEX_URL", world.index.url)
    world.add("absent", "1.0")
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("# pip freeze\nHas_It==1.0\nb @ https://files.example/b-2-py3-none-any.whl\n")
    wheel = write_wheel(
        tmp_path / "wheels", spoil=lambda files: _append(files, ["Requires-Dist: absent"])
    )
    profile = str(world.profile_folder)
    words = ["overlay", "lock", "-p", profile, "--wheel", str(wheel)]
    missing = CliRunner().invoke(main, words)
    assert missing.exit_code == 3
    assert "pip freeze" in missing.stderr
    words += ["--host-freeze", str(freeze), "--exclude-newer", "2026-06-01"]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert "1 are absent on the host: absent 1.0" in result.stdout
    assert (world.profile_folder / "host-freeze.txt").read_text() == "b==2\nhas-it==1.0\n"
    profile_now = load_profile(world.profile_folder)
    assert profile_now.overlay.exclude_newer == "2026-06-01"
    assert profile_now.digest in result.stdout
    shown = CliRunner().invoke(main, ["overlay", "show", "-p", profile], catch_exceptions=False)
    assert "absent 1.0" in shown.stdout
    refused = CliRunner().invoke(main, [*words[:-1], "yesterday"])
    assert refused.exit_code == 2


def test_metadata_comes_from_the_right_wheel(world, tmp_path):
    profile = load_profile(world.profile_folder, allow_missing_locks=True)
    right = write_wheel(tmp_path / "right")
    assert b"Name: demo_pkg" in wheel_metadata(None, tmp_path / "right", profile)
    assert wheel_metadata(right, tmp_path, profile)
    with pytest.raises(ContractError, match="is not the wheel"):
        wheel_metadata(write_wheel(tmp_path / "wrong", version="9"), tmp_path, profile)
    with pytest.raises(NotFoundError, match="wheel is needed"):
        wheel_metadata(None, tmp_path / "none", profile)
    assert zipfile.is_zipfile(right)


def test_a_freeze_is_read_in_all_its_forms(tmp_path):
    text = "\n".join(
        [
            "# comment",
            "A.b_C==1.0+cu128",
            "-e git+https://x/y#egg=z",
            "broken==not a version",
            "wheel @ https://h/wheel-2.1-cp312-cp312-linux_x86_64.whl#sha256=00",
            "sdist @ file:///x/sdist-1.0.0.tar.gz",
            "commit @ git+https://h/c@b134e9945",
        ]
    )
    found = parse_freeze(text)
    assert found == {"a-b-c": "1.0+cu128", "wheel": "2.1", "sdist": "1.0.0"}
    assert parse_freeze(freeze_text(found)) == found
    (tmp_path / "empty").write_text("nothing\n")
    with pytest.raises(UsageError, match="not the output of pip freeze"):
        read_freeze(tmp_path / "empty")


def amend(world, old, new):
    path = world.profile_folder / "profile.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_package_may_have_a_date_of_its_own_and_the_hosts_own_need_none(world):
    world.add("absent", "1.0", "numpy", uploaded="2026-05-01T00:00:00Z")
    world.add("absent", "2.0", "numpy", uploaded="2026-06-01T00:00:00Z")
    world.add("other", "1.0", uploaded="2026-05-01T00:00:00Z")
    world.add("other", "2.0", uploaded="2026-06-01T00:00:00Z")
    # Newer than the day, and the host has it all the same.
    world.add("numpy", "2.5.2", uploaded="2026-08-01T00:00:00Z")
    world.host["numpy"] = "2.5.2"
    day = 'exclude_newer = "2026-05-23"'
    amend(world, day, f'{day}\nexclude_newer_package = {{ absent = "2026-06-02" }}')
    assert names(world.resolve("absent", "other")) == {"absent": "2.0", "other": "1.0"}


def test_a_direct_omission_drops_the_wheels_own_pin_alone(world):
    world.add("ffi", "1.0")
    world.add("ffi", "1.2")
    world.add("grammar", "1.0", "ffi>=1.1")
    direct = '\n[[overlay.omission]]\nname = "ffi"\ndirect = true\nreason = "the pin is for jit"\n'
    amend(world, "\n[locks]", f"{direct}\n[locks]")
    overlay = world.resolve("ffi==1.0", "grammar")
    assert names(overlay) == {"ffi": "1.2", "grammar": "1.0"}
    profile = load_profile(world.profile_folder, allow_missing_locks=True)
    assert "# Left out: the wheel's own ffi: the pin is for jit." in lock_text(
        overlay, profile, world.host, ""
    )
