"""Fixtures of the client's tests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from kvreg.home import Home
from kvreg.model.oci import Manifest
from kvreg.model.profile import Profile
from kvreg.publickey import PublicKey
from kvreg.pull import Pulled, pull
from kvreg.reference import parse_reference
from kvreg.sources import open_source
from tests.kvreg.profiles import make_profile
from tests.support.distribution import distribution, distribution_with_login
from tests.support.faults import FaultyRegistry, faulty_registry
from tests.support.layouts import write_layout
from tests.support.wheels import write_wheel

__all__ = ["distribution", "distribution_with_login"]

# A machine that compiles beside the tests is slow without being wrong.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


@dataclass(frozen=True)
class Published:
    """A profile whose artifact lies in a layout, and an empty home."""

    profile: Profile
    wheel: Path
    manifest: Manifest
    layout: Path
    home: Home

    def pull(
        self,
        reference: str | None = None,
        *,
        timeout: float = 30,
        keys: tuple[PublicKey, ...] = (),
    ) -> Pulled:
        """Pull the profile into the home."""
        parsed = parse_reference(reference or f"oci-layout:{self.layout}")
        return pull(
            self.profile.digest,
            lambda: open_source(parsed, timeout=timeout),
            parsed.target,
            self.home,
            keys=keys,
        )

    def left(self) -> list[str]:
        """What lies in the home besides locks."""
        paths = (path.relative_to(self.home.root) for path in self.home.root.rglob("*"))
        files = [str(path) for path in paths if (self.home.root / path).is_file()]
        return sorted(path for path in files if not path.startswith("locks/"))


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Published]:
    """Make a profile, a wheel (options as for `write_wheel`) and a layout with them."""
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path / "catalogue"))
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ("KVREG_HOME", "KVREG_REGISTRY", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE")
    for name in (*names, "KVREG_VERIFY_KEY", "KVREG_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KVREG_INPUTS", "")
    # Commands write their lock file where they are run.
    monkeypatch.chdir(tmp_path)

    def make(role: str = "native", **options) -> Published:
        profile = make_profile(tmp_path / "catalogue")
        wheel = write_wheel(tmp_path / "wheels", **options)
        layout = tmp_path / "layout"
        manifest = write_layout(layout, profile, [(wheel, role)])
        return Published(profile, wheel, manifest, layout, Home(tmp_path / "home"))

    return make


@pytest.fixture
def published(publish: Callable[..., Published]) -> Published:
    """The usual artifact: a module, data, an executable and a script."""
    return publish(
        extra={"demo_pkg/tool.sh": b"#!/bin/sh\necho tool\n"},
        entry_points="[console_scripts]\ndemo = demo_pkg.command:main\n",
    )


@pytest.fixture
def faulty(published: Published) -> Iterator[FaultyRegistry]:
    """A registry that serves `published` and takes faults."""
    with faulty_registry(published.layout) as server:
        yield server
