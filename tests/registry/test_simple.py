"""The package index: pip and uv install from it, over static files, with the hashes checked."""

import datetime
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pypi_simple
import pytest

from kvreg.errors import ContractError, StorageError, VerificationError
from kvreg.model.oci import MEDIA_TYPE_WHEEL
from registry.inventory import inventory
from registry.layout import Layout
from registry.publish import Layer, publish
from registry.simple import choose, write_index
from registry.store import Store
from tests.kvreg.profiles import make_profile
from tests.registry.conftest import MakeRemote
from tests.registry.samples import push_artifact
from tests.support.distribution import Distribution
from tests.support.wheels import write_wheel

TAG = "py3-none-any"
JSON = "application/vnd.pypi.simple.v1+json"


class _Static(SimpleHTTPRequestHandler):
    """Files and nothing more, as any web server has them; with `negotiates`, as PEP 691 asks."""

    negotiates = False

    def log_message(self, *arguments: object) -> None:
        """Be quiet."""

    def send_head(self):  # type: ignore[no-untyped-def]
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.negotiates and self.path.endswith("/") and JSON in self.headers["Accept"]:
            self.path += "index.json"
        return super().send_head()

    def guess_type(self, path: str) -> str:  # type: ignore[override]
        return JSON if self.negotiates and path.endswith(".json") else super().guess_type(path)


class _Negotiating(_Static):
    negotiates = True


@contextmanager
def serving(folder: Path, handler: type[_Static] = _Static) -> Iterator[tuple[str, list[str]]]:
    """The index URL of a folder, and the paths that are asked for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    server.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        asked: list[str] = server.asked  # type: ignore[attr-defined]
        yield f"http://127.0.0.1:{server.server_port}/simple/", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index, made from a layout with one runtime of two wheels."""
    root = tmp_path_factory.mktemp("index")
    layout = Layout(root / "layout")
    publish_runtime(layout, root)
    push_artifact(layout, "other")
    done = write_index(layout, root / "out")
    assert [wheel.project for wheel in done.wheels] == ["demo-pkg", "overlay-part"]
    return root / "out"


def publish_runtime(store: Store, root: Path, content: bytes = b"1", day: int = 30) -> Path:
    profile = make_profile(root / "profiles")
    folder = root / f"wheels-{content.decode()}"
    folder.mkdir(exist_ok=True)
    native = write_wheel(folder, tag=TAG, extra={"demo_pkg/extra.txt": content})
    overlay = write_wheel(folder, "overlay_part", "2.0", TAG)
    layers = [Layer(native, role="native"), Layer(overlay, role="overlay")]
    publish(store, profile, layers, date=datetime.date(2026, 11, day))
    return native


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return quietly(sys.executable, "-m", "pip", "install", "--no-cache-dir", *arguments)


def uv(*arguments: str) -> subprocess.CompletedProcess[str]:
    options = ("--no-cache", "--no-config", "--python", sys.executable)
    return quietly(sys.executable, "-m", "uv", "pip", "install", *options, *arguments)


def quietly(*command: str) -> subprocess.CompletedProcess[str]:
    """Run an installer that sees this machine's configuration of indexes as little as it can."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    env = {**keep, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


@pytest.mark.parametrize("install", [pip, uv])
@pytest.mark.parametrize("handler", [_Static, _Negotiating])
def test_installing(install, handler, made: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with serving(made, handler) as (url, asked):
        done = install("--index-url", url, "--target", str(tmp_path), "demo-pkg==1.2+cu128.sm75")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo_pkg" / "extra.txt").read_bytes() == b"1"
    assert any(path.endswith(".metadata") for path in asked)


@pytest.mark.parametrize("install", [pip, uv])
def test_a_changed_wheel_is_refused(install, made: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    (wheel,) = copy.glob("files/*/demo_pkg*.whl")
    wheel.write_bytes(write_wheel(tmp_path, tag=TAG).read_bytes())
    with serving(copy) as (url, _):
        done = install("--index-url", url, "--target", str(tmp_path / "site"), "demo-pkg")
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()


def test_pip_reads_it_from_a_directory(made: Path, tmp_path: Path) -> None:
    url = (made / "simple").as_uri()
    done = pip("--index-url", url, "--target", str(tmp_path), "demo-pkg", "overlay-part")
    assert done.returncode == 0, done.stderr


def test_both_forms_say_the_same(made: Path) -> None:
    pages = []
    for accept, handler in ((pypi_simple.ACCEPT_HTML_ONLY, _Static), (JSON, _Negotiating)):
        with (
            serving(made, handler) as (url, _),
            pypi_simple.PyPISimple(url, accept=accept) as index,
        ):
            assert index.get_index_page().projects == ["demo-pkg", "overlay-part"]
            pages.append(index.get_project_page("demo-pkg"))
    html, data = ([p] for page in pages for p in page.packages)
    for one, other in zip(html, data, strict=True):
        assert one.filename == other.filename == "demo_pkg-1.2+cu128.sm75-py3-none-any.whl"
        assert one.digests == other.digests
        assert one.metadata_digests == other.metadata_digests
        assert one.url.partition("/files/")[2] == other.url.partition("/files/")[2]
    assert pages[1].versions == ["1.2+cu128.sm75"]
    assert (
        data[0].size
        == (made / "files" / data[0].digests["sha256"] / data[0].filename).stat().st_size
    )
    assert pages[0].repository_version == pages[1].repository_version == "1.1"


class TestRenewing:
    def test_a_newer_build_takes_the_place_of_an_older_one(self, tmp_path: Path) -> None:
        layout = Layout(tmp_path / "layout")
        first = publish_runtime(layout, tmp_path, b"1", day=29)
        old = write_index(layout, tmp_path / "out")
        publish_runtime(layout, tmp_path, b"2", day=30)
        new = write_index(layout, tmp_path / "out")
        assert [wheel.sha256 for wheel in new.superseded] == [old.wheels[0].sha256]
        assert new.wheels[0].item.tags[0] == "demo"
        files = {path.name for path in (tmp_path / "out" / "files").iterdir()}
        assert files == {wheel.sha256 for wheel in new.wheels}
        assert old.wheels[0].filename == first.name

    def test_dates_decide_when_no_moving_tag_does(self, tmp_path: Path) -> None:
        layout = Layout(tmp_path / "layout")
        for content, day in ((b"2", 30), (b"1", 29)):
            publish_runtime(layout, tmp_path, content, day)
        layout.untag("demo")
        chosen, superseded = choose(inventory(layout))
        assert "demo-v1.2-20261130" in chosen[0].item.tags
        assert "demo-v1.2-20261129" in superseded[0].item.tags
        for tag in list(layout.list_tags()):
            if tag.startswith("demo-v"):
                found = layout.resolve(tag)
                assert found is not None
                layout.tag(found, f"x{tag[-1]}")
                layout.untag(tag)
        with pytest.raises(ContractError, match="no tag says which counts"):
            choose(inventory(layout))

    def test_what_is_no_longer_published_goes(self, tmp_path: Path) -> None:
        layout = Layout(tmp_path / "layout")
        publish_runtime(layout, tmp_path)
        write_index(layout, tmp_path / "out")
        for tag in layout.list_tags():
            layout.untag(tag)
        assert write_index(layout, tmp_path / "out").wheels == ()
        assert list((tmp_path / "out" / "files").iterdir()) == []
        assert {path.name for path in (tmp_path / "out" / "simple").iterdir()} == {
            "index.html",
            "index.json",
        }

    def test_a_damaged_file_is_written_again(self, tmp_path: Path) -> None:
        layout = Layout(tmp_path / "layout")
        publish_runtime(layout, tmp_path)
        write_index(layout, tmp_path / "out")
        (wheel,) = (tmp_path / "out").glob("files/*/demo_pkg*.whl")
        before = wheel.read_bytes()
        wheel.write_bytes(b"x")
        write_index(layout, tmp_path / "out")
        assert wheel.read_bytes() == before

    def test_a_folder_of_somebody_else(self, tmp_path: Path) -> None:
        layout = Layout(tmp_path / "layout")
        publish_runtime(layout, tmp_path)
        (tmp_path / "out" / "simple" / "precious").mkdir(parents=True)
        with pytest.raises(StorageError, match="neither empty nor an index"):
            write_index(layout, tmp_path / "out")
        (tmp_path / "out" / "simple" / "index.json").write_text(json.dumps({"meta": {}}))
        with pytest.raises(StorageError, match="neither empty nor an index"):
            write_index(layout, tmp_path / "out")
        assert (tmp_path / "out" / "simple" / "precious").is_dir()


@pytest.mark.parametrize(
    "name", ["demo-1.0-py3-none-any/../../x.whl", "../demo-1.0-py3-none-any.whl", "demo.whl"]
)
def test_a_hostile_name(name: str, tmp_path: Path) -> None:
    from kvreg.model.oci import Descriptor, Manifest

    layout = Layout(tmp_path / "layout")
    profile = make_profile(tmp_path / "profiles")
    config = Descriptor.of_bytes("application/vnd.kvreg.profile.v1+json", profile.canonical())
    layer = Descriptor.of_bytes(MEDIA_TYPE_WHEEL, b"x", {"org.opencontainers.image.title": name})
    layout.push_blob(profile.canonical(), config)
    layout.push_blob(b"x", layer)
    layout.push_manifest(Manifest(config, (layer,)).to_bytes(), tag="one")
    with pytest.raises(VerificationError, match="not a wheel's"):
        write_index(layout, tmp_path / "out")


def test_what_is_no_wheel_inside(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    wheel = tmp_path / "demo_pkg-1.2-py3-none-any.whl"
    wheel.write_bytes(b"not a zip")
    publish(layout, make_profile(tmp_path / "profiles"), [Layer(wheel, role="native")])
    with pytest.raises(VerificationError, match="cannot be read as a wheel"):
        write_index(layout, tmp_path / "out")


def test_from_a_registry(
    tmp_path: Path, distribution: Distribution, make_remote: MakeRemote, made: Path
) -> None:
    remote = make_remote(distribution.host)
    publish_runtime(remote, tmp_path)
    write_index(remote, tmp_path / "out")
    pages = [
        (root / "simple" / "demo-pkg" / "index.html").read_bytes()
        for root in (made, tmp_path / "out")
    ]
    assert pages[0] == pages[1]
