"""A real registry on loopback: CNCF Distribution as Debian packages it (`docker-registry`).

Use the context manager, or import the fixtures into a conftest::

    from tests.support.distribution import distribution, distribution_with_login  # noqa: F401
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urljoin

import pytest
import urllib3

from kvreg.model.oci import ANNOTATION_REF_NAME, Index

USER = "tester"
PASSWORD = "secret"
# bcrypt of PASSWORD at the lowest cost: the registry checks it at every request.
_HTPASSWD = f"{USER}:$2b$04$DVM9iNgCkwoJWkddGUFtG.LTXbXzJm6BNP/a1CcSyIU9jWyIODtq.\n"

_CONFIG = """\
version: 0.1
log: {{level: info, accesslog: {{disabled: false}}}}
storage:
  filesystem: {{rootdirectory: {root}}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@dataclass(frozen=True)
class Distribution:
    """A running registry: `host` is ``127.0.0.1:PORT``, `root` its storage, `log` its output."""

    host: str
    root: Path
    log: Path
    process: subprocess.Popen[bytes]

    def requests(self) -> list[str]:
        """The access log's lines so far."""
        return [line for line in self.log.read_text().splitlines() if "HTTP/1.1" in line]


@contextmanager
def running_distribution(folder: Path, *, login: bool = False) -> Iterator[Distribution]:
    """Run a registry that keeps everything under `folder`; with `login` it asks for USER."""
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.fail("no docker-registry on this machine; install Debian's package of that name")
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(5):
        started = _start(program, folder, login)
        if started is not None:
            break
    else:
        pytest.fail(f"the registry did not start, see {folder / 'registry.log'}")
    try:
        yield started
    finally:
        started.process.terminate()
        try:
            started.process.wait(10)
        except subprocess.TimeoutExpired:
            started.process.kill()
            started.process.wait()


@pytest.fixture(scope="session")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distribution]:
    """A registry that anyone may write to. Shared: use a repository name of your own."""
    with running_distribution(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session")
def distribution_with_login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distribution]:
    """A registry that asks for USER and PASSWORD."""
    with running_distribution(tmp_path_factory.mktemp("registry"), login=True) as running:
        yield running


def _start(program: str, folder: Path, login: bool) -> Distribution | None:
    # Another process may take the port between these two lines: the caller tries again.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = _CONFIG.format(root=folder / "storage", port=port)
    if login:
        users = folder / "htpasswd"
        users.write_text(_HTPASSWD)
        config += f"auth: {{htpasswd: {{realm: test, path: {users}}}}}\n"
    path = folder / "config.yml"
    path.write_text(config)
    log = folder / "registry.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [program, "serve", str(path)], stdout=output, stderr=subprocess.STDOUT
        )
    host = f"127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib3.request("GET", f"http://{host}/v2/", timeout=1, retries=False)
        except urllib3.exceptions.HTTPError:
            time.sleep(0.05)
            continue
        return Distribution(host, folder / "storage", log, process)
    process.kill()
    process.wait()
    return None


def push_layout(base_url: str, repository: str, layout: Path, **options: object) -> None:
    """Push everything of a layout to a registry, its tags too; `options` go to each request."""
    client = urllib3.PoolManager()
    index = Index.parse((layout / "index.json").read_bytes())
    manifests = {descriptor.digest: descriptor for descriptor in index.manifests}
    for path in (layout / "blobs/sha256").iterdir():
        digest = f"sha256:{path.name}"
        if digest in manifests:
            continue
        url = f"{base_url}/v2/{repository}/blobs/uploads/"
        started = client.request("POST", url, **options)
        assert started.status == 202, started.data
        location = urljoin(base_url, started.headers["Location"])
        location += ("&" if "?" in location else "?") + urlencode({"digest": digest})
        done = client.request("PUT", location, body=path.read_bytes(), **options)
        assert done.status == 201, done.data
    for descriptor in index.manifests:
        raw = (layout / "blobs/sha256" / descriptor.digest.removeprefix("sha256:")).read_bytes()
        target = descriptor.annotations.get(ANNOTATION_REF_NAME, descriptor.digest)
        headers = {**dict(options.get("headers", {})), "Content-Type": descriptor.media_type}
        url = f"{base_url}/v2/{repository}/manifests/{target}"
        done = client.request("PUT", url, body=raw, headers=headers)
        assert done.status == 201, done.data
