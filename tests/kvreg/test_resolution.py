"""Which source is chosen, what is said of the others, and what no lock or source may change."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import kvreg
from kvreg.errors import ContractError, NetworkError, NotFoundError, UsageError, VerificationError
from kvreg.lockfile import read_lockfile
from kvreg.model.digest import sha256_bytes
from kvreg.reference import parse_reference
from kvreg.request import parse_request
from kvreg.resolution import Candidate, Resolver, candidates
from kvreg.sources import open_source
from tests.kvreg.profiles import make_profile
from tests.support import faults
from tests.support.layouts import add_blob, blob_path, runtime_manifest, write_layout

NOWHERE = "127.0.0.1:1/a"


@pytest.fixture
def place(published, monkeypatch, tmp_path):
    """Where a notebook works: its directory, and the home."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KVREG_HOME", str(published.home.root))
    return folder


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Write the settings file."""

    def write(text):
        path = tmp_path / "config/config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        monkeypatch.setenv("KVREG_CONFIG", str(path))
        return path

    return write


def reference(published):
    return f"oci-layout:{published.layout}"


def empty_layout(folder):
    folder.mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
    return folder


def move_tag(published, note="again"):
    """Publish another artifact of the profile under its tag; the digest of its manifest."""
    manifest = runtime_manifest(published.profile, [(published.wheel, "native")], {"built": note})
    (published.layout / "index.json").unlink()
    write_layout(published.layout, published.profile, [], manifest=manifest)
    return sha256_bytes(manifest.to_bytes())


# -- sources ----------------------------------------------------------------------------------


def test_the_option_is_the_only_source(published, place, settings, monkeypatch):
    settings(f'registry = "{reference(published)}"')
    monkeypatch.setenv("KVREG_REGISTRY", reference(published))
    (only,) = candidates(f"oci-layout:{place}")
    assert only == Candidate(parse_reference(f"oci-layout:{place}"), "--registry")
    with pytest.raises(NotFoundError, match="not an OCI image layout"):
        kvreg.pull("demo", registry=f"oci-layout:{place}")


def test_the_order_is_environment_settings_attached(published, place, settings, monkeypatch):
    path = settings('registry = ["oci-layout:beside", "127.0.0.1:5/a"]')
    monkeypatch.setenv("KVREG_REGISTRY", NOWHERE)
    monkeypatch.setenv("KVREG_INPUTS", str(published.layout.parent))
    found = [(str(item.reference), item.origin) for item in candidates(None)]
    assert found == [
        (NOWHERE, "$KVREG_REGISTRY"),
        (f"oci-layout:{path.parent}/beside", str(path)),
        ("127.0.0.1:5/a", str(path)),
        (reference(published), "attached input"),
    ]


def test_what_has_nothing_is_passed_over_and_said(published, place, settings, monkeypatch):
    empty_layout(place / "empty")
    settings(f'registry = ["{NOWHERE}", "oci-layout:{place}/empty", "{reference(published)}"]')
    monkeypatch.setenv("KVREG_REGISTRY", f"oci-layout:{place}/absent")
    monkeypatch.setattr("kvreg.sources.transport.RetryPolicy.delay", lambda *arguments: None)
    found = kvreg.resolve("demo")
    assert [(item.outcome, item.origin.split("/")[-1]) for item in found.tried] == [
        ("absent", "$KVREG_REGISTRY"),
        ("unreachable", "config.toml"),
        ("absent", "config.toml"),
        ("used", "config.toml"),
    ]
    assert "cannot be reached" in found.tried[1].reason
    assert found.source == f"{reference(published)}@{found.manifest_digest}"
    assert kvreg.pull("demo", progress=False).runtime.reference == found.source


def test_when_no_source_has_it_all_are_named(published, place, settings, monkeypatch):
    empty_layout(place / "one")
    empty_layout(place / "two")
    settings(f'registry = ["oci-layout:{place}/one", "oci-layout:{place}/two"]')
    with pytest.raises(NotFoundError, match="none of the 2 sources") as caught:
        kvreg.pull("demo")
    tried = caught.value.to_dict()["tried"]
    assert [item["where"].split("/")[-1] for item in tried] == ["one", "two"]
    # One that cannot be asked might have had it: that is another exit code.
    monkeypatch.setenv("KVREG_REGISTRY", NOWHERE)
    monkeypatch.setattr("kvreg.sources.transport.RetryPolicy.delay", lambda *arguments: None)
    with pytest.raises(NetworkError, match="none of the 3 sources") as caught:
        kvreg.pull("demo")
    assert "cannot be reached" in str(caught.value)


def test_no_source_at_all_says_what_could_have_named_one(published, place, monkeypatch):
    monkeypatch.setenv("KVREG_INPUTS", f"{place}:{place}/absent")
    with pytest.raises(UsageError, match="no registry was named") as caught:
        kvreg.pull("demo")
    text = str(caught.value)
    for said in ("$KVREG_REGISTRY: is not set", "config.toml: names no registry",
                 f"{place}: no layout", f"{place}/absent: is not there"):  # fmt: skip
        assert said in text


def test_a_source_that_fails_verification_is_never_passed_over(published, place, settings):
    bad = shutil.copytree(published.layout, place / "bad")
    manifest = blob_path(bad, sha256_bytes(published.manifest.to_bytes()))
    manifest.write_bytes(manifest.read_bytes().replace(b"native", b"evil99"))
    empty_layout(place / "empty")
    settings(
        f'registry = ["oci-layout:{place}/empty", "oci-layout:{bad}", "{reference(published)}"]'
    )
    with pytest.raises(VerificationError, match="does not match its digest") as caught:
        kvreg.pull("demo")
    # What was tried before is said all the same.
    assert [problem.where for problem in caught.value.tried] == [f"oci-layout:{place}/empty"]
    assert published.left() == []


def test_a_spoilt_blob_is_never_passed_over(published, place, settings):
    bad = shutil.copytree(published.layout, place / "bad")
    blob = blob_path(bad, published.manifest.layers[0].digest)
    blob.write_bytes(blob.read_bytes()[:-1] + b"~")
    settings(f'registry = ["oci-layout:{bad}", "{reference(published)}"]')
    with pytest.raises(VerificationError, match="wrong digest"):
        kvreg.pull("demo", progress=False)
    assert not (published.home.runtimes).exists() or not list(published.home.runtimes.iterdir())


def test_a_source_that_lacks_a_blob_is_passed_over(published, place, settings):
    bad = shutil.copytree(published.layout, place / "bad")
    blob_path(bad, published.manifest.layers[0].digest).unlink()
    settings(f'registry = ["oci-layout:{bad}", "{reference(published)}"]')
    pulled = kvreg.pull("demo", progress=False)
    assert pulled.runtime.reference.startswith(reference(published))


def test_a_registry_that_fails_on_the_way_is_passed_over(published, place, settings, faulty):
    settings(f'registry = ["{faulty.reference}", "{reference(published)}"]')
    faulty.faults["blobs"] += [faults.status(410)] * 40
    pulled = kvreg.pull("demo", progress=False, timeout=5)
    assert pulled.staged
    assert pulled.runtime.reference.startswith(reference(published))


def test_the_manifest_is_asked_for_once(published, place, faulty):
    kvreg.pull("demo", registry=faulty.reference, progress=False)
    assert len(faulty.paths("manifests")) == 1


def test_a_second_pull_asks_no_source(published, place, monkeypatch):
    kvreg.pull("demo", registry=reference(published), progress=False)
    shutil.rmtree(published.layout)
    monkeypatch.setenv("KVREG_REGISTRY", NOWHERE)
    assert not kvreg.pull("demo", progress=False).staged
    assert kvreg.runtime("demo").profile_name == "demo"


# -- requests ---------------------------------------------------------------------------------


def test_a_name_with_a_digest_of_a_profile_or_of_an_artifact(published, place, tmp_path):
    artifact = sha256_bytes(published.manifest.to_bytes())
    # Neither is what the catalogue has under the name now.
    (tmp_path / "catalogue/demo/source.lock").write_text("version = 1\n# changed\n")
    for digest in (published.profile.digest, artifact):
        found = kvreg.resolve(f"demo@{digest}", registry=reference(published))
        assert (found.profile_digest, found.manifest_digest) == (published.profile.digest, artifact)
    moved = move_tag(published)
    pulled = kvreg.pull(f"demo@{artifact}", registry=reference(published), progress=False)
    assert pulled.runtime.manifest_digest == artifact != moved
    # It is staged now: no source is needed, and commands find it by either digest.
    shutil.rmtree(published.layout)
    for digest in (published.profile.digest, artifact):
        assert not kvreg.pull(f"demo@{digest}", progress=False).staged
        assert kvreg.runtime(f"demo@{digest}").manifest_digest == artifact


@pytest.mark.parametrize("kind", ["profile", "artifact"])
def test_a_digest_of_another_profile_than_named(published, place, kind):
    digest = published.profile.digest
    if kind == "artifact":
        digest = sha256_bytes(published.manifest.to_bytes())
    with pytest.raises(VerificationError, match="of another profile") as caught:
        kvreg.pull(f"other@{digest}", registry=reference(published))
    assert (caught.value.expected, caught.value.found) == ("other", "demo")
    assert published.left() == []


def test_a_digest_that_is_nowhere(published, place):
    digest = sha256_bytes(b"nothing")
    with pytest.raises(NotFoundError, match="nothing of this digest") as caught:
        kvreg.pull(f"demo@{digest}", registry=reference(published))
    assert digest in caught.value.expected


@pytest.mark.parametrize("text", ["demo@sha256:12", "De@sha256:" + "0" * 64, "@sha256:" + "0" * 64])
def test_what_is_no_request(published, place, text):
    with pytest.raises(UsageError):
        parse_request(text)


def test_an_unknown_profile_by_its_digest(published, place, monkeypatch, tmp_path):
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path / "none"))
    digest = published.profile.digest
    assert kvreg.pull(digest, registry=reference(published), progress=False).staged


# -- locks ------------------------------------------------------------------------------------


def lock_path(place):
    return place / "kvreg.lock"


def pull_and_lock(published, place, **options):
    return kvreg.pull(
        "demo",
        registry=reference(published),
        lock=lock_path(place),
        progress=False,
        **options,
    )


def test_a_pull_writes_what_it_took(published, place):
    pull_and_lock(published, place)
    entry = read_lockfile(lock_path(place)).entries["demo"]
    (layer,) = published.manifest.layers
    assert entry.to_dict() == {
        "blobs": {published.wheel.name: layer.digest},
        "manifest": sha256_bytes(published.manifest.to_bytes()),
        "profile": published.profile.digest,
    }
    raw = lock_path(place).read_bytes()
    # Also where it was staged before: the manifest was kept.
    lock_path(place).unlink()
    shutil.rmtree(published.layout)
    pull_and_lock(published, place)
    assert lock_path(place).read_bytes() == raw


def test_locked_takes_what_the_lock_says_and_not_the_catalogue(published, place, tmp_path):
    pull_and_lock(published, place)
    raw = lock_path(place).read_bytes()
    shutil.rmtree(published.home.root)
    (tmp_path / "catalogue/demo/source.lock").write_text("version = 1\n# changed\n")
    pulled = kvreg.pull("demo", registry=reference(published), locked=True, progress=False)
    assert pulled.staged
    assert pulled.runtime.profile_digest == published.profile.digest
    assert lock_path(place).read_bytes() == raw
    # And from here on without any source.
    shutil.rmtree(published.layout)
    assert not kvreg.pull("demo", locked=True, progress=False).staged


def test_a_moved_tag_is_refused_under_locked_and_reported_otherwise(published, place, capsys):
    old = pull_and_lock(published, place).runtime.manifest_digest
    new = move_tag(published)
    shutil.rmtree(published.home.root)
    with pytest.raises(VerificationError, match="moved since it was locked") as caught:
        pull_and_lock(published, place, locked=True)
    assert caught.value.expected == f"artifact {old}"
    assert caught.value.found == f"artifact {new}"
    assert not published.home.runtimes.exists()
    # The locked one is still there by its digest.
    pulled = kvreg.pull(f"demo@{old}", registry=reference(published), progress=False)
    assert pulled.runtime.manifest_digest == old
    assert not pull_and_lock(published, place, locked=True).staged
    shutil.rmtree(published.home.root)
    capsys.readouterr()
    assert pull_and_lock(published, place).runtime.manifest_digest == new


def test_a_moved_tag_is_told_with_both_digests(published, place):
    from click.testing import CliRunner

    from kvreg.cli import main

    words = ["pull", "demo", "--registry", reference(published)]
    CliRunner().invoke(main, words, catch_exceptions=False)
    old = read_lockfile(lock_path(place)).entries["demo"].manifest
    new = move_tag(published)
    shutil.rmtree(published.home.root)
    result = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    assert f"artifact {old} then, {new} now" in result.stderr
    lock = json.loads(result.stdout)["lock"]
    assert (lock["moved"], lock["written"]) == (True, True)
    assert (lock["previous"]["manifest"], lock["entry"]["manifest"]) == (old, new)
    assert read_lockfile(lock_path(place)).entries["demo"].manifest == new


def test_a_locked_artifact_without_its_tag_is_found_by_digest(published, place):
    digest = pull_and_lock(published, place).runtime.manifest_digest
    shutil.rmtree(published.home.root)
    index = json.loads((published.layout / "index.json").read_bytes())
    other = make_profile(place / "others", "other")
    manifest = runtime_manifest(other, [])
    index["manifests"] = [manifest.descriptor().to_dict()]
    add_blob(published.layout, manifest.to_bytes())
    (published.layout / "index.json").write_text(json.dumps(index))
    assert pull_and_lock(published, place, locked=True).runtime.manifest_digest == digest


def test_a_lock_with_another_blob_is_refused(published, place):
    pull_and_lock(published, place)
    shutil.rmtree(published.home.root)
    (layer,) = published.manifest.layers
    text = lock_path(place).read_text()
    lock_path(place).write_text(text.replace(layer.digest, sha256_bytes(b"other")))
    with pytest.raises(VerificationError, match="contradicts itself") as caught:
        pull_and_lock(published, place, locked=True)
    assert published.wheel.name in str(caught.value)


def test_locked_needs_a_lock_and_an_entry(published, place):
    with pytest.raises(NotFoundError, match="no lock file"):
        pull_and_lock(published, place, locked=True)
    pull_and_lock(published, place)
    with pytest.raises(NotFoundError, match="no entry for other") as caught:
        kvreg.pull("other", locked=True)
    assert caught.value.expected == "one of: demo"


@pytest.mark.parametrize("form", ["sha256", "name", "folder"])
def test_an_argument_that_contradicts_the_lock(published, place, tmp_path, form):
    pull_and_lock(published, place)
    (tmp_path / "catalogue/demo/source.lock").write_text("version = 1\n# changed\n")
    digest = sha256_bytes(b"another")
    text = {"sha256": digest, "name": f"demo@{digest}", "folder": str(tmp_path / "catalogue/demo")}
    error = NotFoundError if form == "sha256" else VerificationError
    with pytest.raises(error, match="lock"):
        kvreg.pull(text[form], locked=True)


def test_a_lock_file_that_nobody_named_need_not_be_writable(published, place, monkeypatch):
    from kvreg import acquisition

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(acquisition, "lock_profile", refuse)
    notes = []
    policy = acquisition.LockPolicy.chosen(None, locked=False)
    options = {
        "places": candidates(reference(published)),
        "open_source": open_source,
        "home": published.home,
    }
    reporter = acquisition.Reporter(note=notes.append)
    found = acquisition.acquire("demo", policy=policy, reporter=reporter, **options)
    assert found.lock is None
    assert "could not be written" in notes[-1]
    with pytest.raises(PermissionError):
        acquisition.acquire("demo", policy=replace(policy, optional=False), **options)


def test_a_resolver_gives_up_only_what_it_opened(published, place):
    resolver = Resolver(parse_request("demo"), candidates(reference(published)), open_source)
    assert not resolver.failed(NetworkError("nothing was opened"))
    assert resolver.artifact().digest == sha256_bytes(published.manifest.to_bytes())
    assert resolver.failed(NetworkError("broke"))
    with pytest.raises(NetworkError, match="broke"):
        resolver.open()
    assert Path.cwd() == place


def test_what_this_python_cannot_load_is_refused_before_it_is_fetched(
    published, place, faulty, monkeypatch
):
    from packaging.tags import Tag

    elsewhere = [Tag("cp39", "cp39", "linux_aarch64")]
    monkeypatch.setattr("packaging.tags.sys_tags", lambda: iter(elsewhere))
    with pytest.raises(ContractError, match="the Python that runs kvreg") as caught:
        kvreg.pull("demo", registry=faulty.reference, progress=False)
    assert "--any-host" in caught.value.remedy
    wheel = published.manifest.layers[0].digest
    assert not [path for path in faulty.paths("blobs") if wheel in path]
    pulled = kvreg.pull("demo", registry=faulty.reference, progress=False, any_host=True)
    assert pulled.staged
