"""Pulling: what appears, what does not, and that a second pull does nothing."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest

import kvreg.home
from kvreg.errors import (
    ContractError,
    KvregError,
    NetworkError,
    NotFoundError,
    StorageError,
    UsageError,
    VerificationError,
)
from kvreg.integrity import check_runtime
from kvreg.model.digest import sha256_bytes
from kvreg.model.oci import (
    ANNOTATION_ROLE,
    ANNOTATION_TITLE,
    ANNOTATION_UNPACKED_SIZE,
    MEDIA_TYPE_RUNTIME,
    MEDIA_TYPE_WHEEL,
    Descriptor,
    Index,
)
from tests.kvreg.profiles import make_profile
from tests.support import faults
from tests.support.distribution import PASSWORD, USER, push_layout
from tests.support.layouts import blob_path, runtime_manifest, write_layout
from tests.support.wheels import write_wheel


def republish(published, manifest):
    """Put another manifest under the profile's tag."""
    (published.layout / "index.json").unlink()
    write_layout(published.layout, published.profile, [], manifest=manifest)


def refused(published, error, match, reference=None):
    """The pull fails and leaves nothing but, at most, whole verified blobs."""
    with pytest.raises(error, match=match) as caught:
        published.pull(reference)
    assert all(path.startswith("blobs/sha256/") for path in published.left())
    assert not any(path.endswith(".partial") for path in published.left())
    return caught.value


def test_a_pull_from_a_layout(published):
    pulled = published.pull()
    assert pulled.staged
    tree = json.loads((pulled.runtime.folder / "runtime.json").read_bytes())
    wheel = hashlib.sha256(published.wheel.read_bytes()).hexdigest()
    assert tree["profile"] == {"name": "demo", "digest": published.profile.digest}
    assert tree["manifest"]["digest"] == sha256_bytes(published.manifest.to_bytes())
    assert tree["manifest"]["annotations"] == {"vnd.kvreg.toolchain.name": "cuda-12.4-debian12"}
    assert tree["wheels"][0]["sha256"] == wheel
    assert tree["wheels"][0]["role"] == "native"
    site = pulled.runtime.site
    files = [path for path in site.rglob("*") if path.is_file()]
    assert tree["files"] == len(files)
    assert tree["bytes"] == sum(path.stat().st_size for path in files)
    assert (pulled.runtime.folder / "profile.json").read_bytes() == published.profile.canonical()
    assert check_runtime(pulled.runtime).ok


def test_the_same_comes_out_of_a_registry(published, distribution):
    push_layout(f"http://{distribution.host}", "pull/same", published.layout)
    local = published.pull()
    away = replace(published, home=kvreg.home.Home(published.home.root.with_name("other")))
    remote = away.pull(f"{distribution.host}/pull/same")
    assert remote.runtime.manifest_digest == local.runtime.manifest_digest
    assert remote.runtime.wheels == local.runtime.wheels
    assert remote.runtime.reference == f"{distribution.host}/pull/same"


def test_a_registry_that_asks_for_a_login(published, distribution_with_login, monkeypatch):
    host = distribution_with_login.host
    reference = f"{host}/pull/login"
    error = refused(published, NetworkError, "absent or private", reference)
    assert "anonymous" in error.found
    auth = "Basic dGVzdGVyOnNlY3JldA=="
    assert (USER, PASSWORD) == ("tester", "secret")
    push_layout(f"http://{host}", "pull/login", published.layout, headers={"Authorization": auth})
    folder = published.home.root.with_name("docker")
    folder.mkdir()
    config = {"auths": {host: {"auth": auth.removeprefix("Basic ")}}}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    pulled = published.pull(reference)
    assert "secret" not in (pulled.runtime.folder / "runtime.json").read_text()


def test_a_second_pull_needs_no_source(published):
    first = published.pull()
    before = {path: path.stat().st_mtime_ns for path in first.runtime.folder.rglob("*")}
    shutil.rmtree(published.layout)
    second = published.pull()
    assert not second.staged
    assert second.runtime == first.runtime
    assert before == {path: path.stat().st_mtime_ns for path in first.runtime.folder.rglob("*")}


@pytest.mark.parametrize("name", ["runtime.json", "profile.json", "site/demo_pkg/data.bin"])
def test_a_damaged_runtime_is_staged_again(published, name):
    first = published.pull()
    (first.runtime.folder / name).write_bytes(b"{}")
    second = published.pull()
    assert second.staged
    assert check_runtime(second.runtime).ok
    assert not list(published.home.runtimes.glob(".*"))


def test_an_explicit_digest_chooses_another_artifact_of_the_profile(published):
    first = published.pull()
    other = runtime_manifest(published.profile, [(published.wheel, "native")], {"built": "again"})
    write_layout(published.layout, published.profile, [], manifest=other, tag="")
    digest = sha256_bytes(other.to_bytes())
    second = published.pull(f"oci-layout:{published.layout}@{digest}")
    assert second.staged
    assert second.runtime.manifest_digest == digest != first.runtime.manifest_digest
    assert not published.pull(f"oci-layout:{published.layout}@{digest}").staged
    assert not published.pull().staged


def test_a_layout_without_the_tag_is_searched(published):
    index = published.layout / "index.json"
    untagged = [replace(item, annotations={}) for item in Index.parse(index.read_bytes()).manifests]
    index.write_bytes(Index(tuple(untagged)).to_bytes())
    assert published.pull().staged


def test_a_layout_with_two_artifacts_and_no_tag(published):
    (published.layout / "index.json").unlink()
    for note in ("one", "two"):
        manifest = runtime_manifest(published.profile, [(published.wheel, "native")], {"n": note})
        write_layout(published.layout, published.profile, [], manifest=manifest, tag="")
    refused(published, UsageError, "2 artifacts")


def test_an_artifact_that_is_not_there(published, distribution):
    error = refused(published, NotFoundError, "no artifact", f"{distribution.host}/pull/absent")
    assert published.profile.digest_tag in error.expected
    (published.layout / "index.json").write_bytes(Index(()).to_bytes())
    refused(published, NotFoundError, "no artifact")


def test_an_artifact_of_another_profile(published, tmp_path):
    other = make_profile(tmp_path / "others", "other")
    republish(published, runtime_manifest(other, [(published.wheel, "native")]))
    error = refused(published, VerificationError, "another profile")
    assert other.digest in error.found


def spoil_artifact_type(manifest):
    return replace(manifest, artifact_type="application/vnd.other")


def spoil_config_type(manifest):
    config = replace(manifest.config, media_type="application/json")
    return replace(manifest, config=config)


def retitle(title):
    def change(manifest):
        (layer,) = manifest.layers
        annotations = {**layer.annotations, ANNOTATION_TITLE: title}
        return replace(manifest, layers=(replace(layer, annotations=annotations),))

    return change


def set_role(role):
    def change(manifest):
        (layer,) = manifest.layers
        annotations = {**layer.annotations, ANNOTATION_ROLE: role}
        return replace(manifest, layers=(replace(layer, annotations=annotations),))

    return change


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (spoil_artifact_type, VerificationError, MEDIA_TYPE_RUNTIME),
        (spoil_config_type, VerificationError, "not a profile"),
        (lambda m: replace(m, layers=()), VerificationError, "one wheel of role native"),
        (lambda m: replace(m, layers=m.layers * 2), VerificationError, "two wheels of one name"),
        (retitle("../../evil.whl"), VerificationError, "not a wheel's file name"),
        (retitle("other-1-py3-none-any.whl"), ContractError, "not the runtime"),
        (retitle("demo_pkg-1.3-py3-none-any.whl"), ContractError, "not the runtime"),
        (
            retitle("demo_pkg-1.2+cu128.sm75-cp313-cp313-linux_x86_64.whl"),
            ContractError,
            "cannot be loaded",
        ),
        (set_role("overlay"), VerificationError, "one wheel of role native"),
        (set_role("probe"), VerificationError, "one wheel of role native"),
        (set_role("evil"), VerificationError, "unknown role"),
    ],
)
def test_manifests_that_make_no_sense_for_the_profile(published, change, error, match):
    republish(published, change(published.manifest))
    with pytest.raises(KvregError) as caught:
        published.pull()
    assert isinstance(caught.value, error)
    assert match in str(caught.value)
    assert not [path for path in published.left() if path.startswith("runtimes")]


@pytest.mark.parametrize("what", ["config", "layer"])
@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data[:-1] + b"~", lambda data: b""]
)
def test_blobs_that_are_spoilt_in_the_layout(published, what, change):
    manifest = published.manifest
    descriptor = manifest.config if what == "config" else manifest.layers[0]
    path = blob_path(published.layout, descriptor.digest)
    path.write_bytes(change(path.read_bytes()))
    refused(published, VerificationError, "wrong|does not match its digest")


@pytest.mark.parametrize(
    "fault", [faults.replaced(b"x"), faults.without_length(b"x" * 5000), faults.html()]
)
def test_blobs_that_are_spoilt_on_the_way(published, faulty, fault):
    faulty.faults["blobs"] += [fault] * 2
    with pytest.raises(KvregError) as caught:
        published.pull(faulty.reference)
    assert caught.value.exit_code in (1, 4)
    assert published.left() == []


def test_a_wheel_that_does_not_match_its_record(publish):
    def spoil(files):
        files["demo_pkg/__init__.py"] = files["demo_pkg/__init__.py"].replace(b"1.2", b"6.6")

    error = refused(publish(spoil=spoil), VerificationError, "does not match its RECORD")
    assert error.exit_code == 1
    assert [problem.where for problem in error.problems] == ["demo_pkg/__init__.py"]


def test_a_config_that_is_not_a_profile(published):
    data = b'{"schema":1}'
    digest = sha256_bytes(data)
    config = replace(published.manifest.config, digest=digest, size=len(data))
    republish(published, replace(published.manifest, config=config))
    blob_path(published.layout, digest).write_bytes(data)
    away = replace(published, profile=FakeProfile(digest))
    refused(away, VerificationError, "not a valid profile")


class FakeProfile:
    """Something with a digest, asked for by nothing else."""

    def __init__(self, digest):
        self.digest = digest


def test_other_layers_are_left_alone(published):
    lock = Descriptor.of_bytes("application/vnd.kvreg.overlay-lock.v1+text", b"# none\n")
    republish(published, replace(published.manifest, layers=(*published.manifest.layers, lock)))
    assert published.pull().staged


def test_too_little_space_is_said_before_anything_is_written(published, faulty, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=(64 << 20) + 5000)
    monkeypatch.setattr(kvreg.home.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="too little disk space") as caught:
        published.pull(faulty.reference)
    assert caught.value.exit_code == 5
    assert not [path for path in published.left() if path.startswith("runtimes")]


def test_what_the_publisher_says_of_the_size_is_believed_first(published, faulty, monkeypatch):
    (layer,) = published.manifest.layers
    annotations = {**layer.annotations, ANNOTATION_UNPACKED_SIZE: str(10**12)}
    republish(
        published,
        replace(published.manifest, layers=(replace(layer, annotations=annotations),)),
    )
    usage = shutil.disk_usage("/")._replace(free=10**10)
    monkeypatch.setattr(kvreg.home.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="for the artifact"):
        published.pull(faulty.reference)
    digest = layer.digest.removeprefix("sha256:")
    assert not [path for path in faulty.paths("blobs") if digest in path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_disk_that_is_full_in_the_middle(published, monkeypatch):
    from kvreg.wheel import staging

    real = staging._write

    def write(site, path, data):
        if path.endswith("RECORD"):
            Path("/dev/full").write_bytes(data)
        return real(site, path, data)

    monkeypatch.setattr(staging, "_write", write)
    with pytest.raises(StorageError, match="is full"):
        published.pull()
    assert published.left() == []


def snapshot(folder):
    """Every file below a directory with its content's hash, links by their target."""
    result = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if "__pycache__" in path.parts:
                continue
            content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
            result[str(path)] = hashlib.sha256(content).hexdigest()
    return result


def test_the_host_is_unchanged(published, tmp_path):
    """Installed packages before and after a pull are the same, file for file."""
    host = tmp_path / "host"
    for name in ("torch", "numpy", "demo_pkg"):
        wheel = write_wheel(tmp_path / "host-wheels", name, "1", "py3-none-any")
        shutil.unpack_archive(wheel, host, "zip")

    def installed():
        found = distributions(path=[str(host)])
        return sorted((item.metadata["Name"], item.version) for item in found)

    own = sorted((item.metadata["Name"], item.version) for item in distributions())
    before, packages = snapshot(host), installed()
    published.pull()
    assert snapshot(host) == before
    assert installed() == packages == [("demo_pkg", "1"), ("numpy", "1"), ("torch", "1")]
    assert own == sorted((item.metadata["Name"], item.version) for item in distributions())
    # And nothing was written anywhere but into the home.
    assert {path.name for path in tmp_path.iterdir()} == {
        "catalogue", "home", "host", "host-wheels", "layout", "wheels",
    }  # fmt: skip
    assert MEDIA_TYPE_WHEEL in published.manifest.to_bytes().decode()
