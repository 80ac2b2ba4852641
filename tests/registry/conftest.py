"""Fixtures of the registry's tests: a real registry, a proxy before it, a profile, a wheel."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvreg.model.profile import Profile
from kvreg.reference import RegistryReference, parse_reference
from registry.credentials import Credentials
from registry.remote import Remote
from registry.retry import RetryPolicy
from registry.transport import Client, Timeouts
from registry.upload import UploadPolicy
from tests.kvreg.profiles import make_profile
from tests.registry.proxy import Proxy, running_proxy
from tests.support.distribution import Distribution, distribution, distribution_with_login
from tests.support.tools import oras, skopeo

__all__ = ["distribution", "distribution_with_login", "oras", "skopeo"]

_numbers = itertools.count()

MakeRemote = Callable[..., Remote]


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the credentials of whoever runs it."""
    for name in ("USERNAME", "PASSWORD", "HOST"):
        monkeypatch.delenv(f"KVREG_REGISTRY_{name}", raising=False)
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker-config"))


@pytest.fixture
def repository() -> str:
    """A repository name that no other test uses."""
    return f"team/runtimes-{next(_numbers)}"


@pytest.fixture
def proxy(distribution: Distribution) -> Iterator[Proxy]:
    """A proxy before the real registry, with no fault yet."""
    with running_proxy(distribution.host) as running:
        yield running


@pytest.fixture
def make_remote(repository: str) -> Iterator[MakeRemote]:
    """Makes a `Remote` of this test's repository at a host, that waits for nothing.

    The seconds that it would have slept are in its attribute ``slept``.
    """
    made: list[Remote] = []

    def make(
        host: str,
        *,
        name: str = repository,
        credentials: Credentials | None = None,
        upload: UploadPolicy | None = None,
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
    ) -> Remote:
        reference = parse_reference(f"{host}/{name}")
        assert isinstance(reference, RegistryReference)
        slept: list[float] = []
        client = Client(
            reference,
            retry=retry,
            timeouts=timeouts or Timeouts(5, 5, 5),
            sleep=slept.append,
            find=lambda: credentials,
        )
        remote = Remote(reference, client=client, upload=upload)
        remote.slept = slept  # type: ignore[attr-defined]
        made.append(remote)
        return remote

    yield make
    for remote in made:
        remote.__exit__(None, None, None)


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    """A valid profile named ``demo``."""
    return make_profile(tmp_path / "profiles")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A file with a wheel's name; no test here looks inside."""
    path = tmp_path / "demo_pkg-1.2+cu128.sm75-cp312-cp312-linux_x86_64.whl"
    path.write_bytes(random.Random(7).randbytes(300_000))
    return path
