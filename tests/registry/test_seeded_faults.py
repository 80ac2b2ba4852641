"""Hundreds of runs through a proxy that does what networks and registries do, by seed.

Every run ends in the right bytes or in a clear error; whatever its end, nothing wrong is stored
anywhere; and the same command again, the faults over, completes.
"""

import datetime
import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvreg.blobs import BlobStore
from kvreg.errors import KvregError
from kvreg.home import Home
from kvreg.model.digest import sha256_file
from kvreg.model.oci import Descriptor, Manifest
from kvreg.model.profile import Profile
from kvreg.reference import RegistryReference, parse_reference
from kvreg.sources.remote import RegistrySource
from kvreg.sources.transport import RetryPolicy as ClientPolicy
from kvreg.sources.transport import Transport
from registry.attach import attach
from registry.copy import copy
from registry.layout import Layout
from registry.publish import Layer, publish
from registry.remote import Remote
from registry.retry import RetryPolicy
from registry.store import Store
from registry.transport import Client, Timeouts
from registry.upload import UploadPolicy
from registry.verify import verify
from tests.kvreg.profiles import make_profile
from tests.registry.proxy import Proxy, running_proxy
from tests.registry.seeded import SeededFaults
from tests.support.distribution import Distribution
from tests.support.layouts import blob_path

RUNS = 200
DAY = datetime.date(2026, 11, 30)
QUICK = Timeouts(connect=1.0, read=0.5, commit=0.5)
PATIENT = Timeouts(connect=20.0, read=20.0, commit=20.0)

fired: list[str] = []
outcomes: list[str] = []


@dataclass(frozen=True)
class Material:
    """What is published: a profile, two wheels, and a layout with the same artifact."""

    profile: Profile
    layers: list[Layer]
    layout: Layout
    artifact: Descriptor
    sbom: Descriptor

    def put(self, store: Store) -> None:
        """Publish and attach."""
        done = publish(store, self.profile, self.layers, date=DAY)
        attach(store, done.descriptor, "application/x-sbom", b"{}1", "sbom.json")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("material")
    chance = random.Random(5)
    layers = []
    for number, size in enumerate((60_000, 25_000)):
        path = folder / f"part_{number}-1.2-py3-none-any.whl"
        path.write_bytes(chance.randbytes(size))
        layers.append(Layer(path, role="native" if number == 0 else "overlay"))
    profile = make_profile(folder / "profiles")
    layout = Layout(folder / "layout")
    done = publish(layout, profile, layers, date=DAY)
    sbom = attach(layout, done.descriptor, "application/x-sbom", b"{}1", "sbom.json")
    return Material(profile, layers, layout, done.descriptor, sbom)


@pytest.fixture(scope="module")
def shared_proxy(distribution: Distribution, material: Material) -> Iterator[Proxy]:
    """One proxy for all runs, with the artifact in two repositories that runs pull from."""
    with running_proxy(distribution.host) as running:
        for has_api in (False, True):
            running.referrers_api = has_api
            with open_remote(running.host, source_repository(has_api)) as remote:
                copy(material.layout, remote, "demo")
        yield running


def source_repository(has_api: bool) -> str:
    """Where the artifact is, by whether the registry lists referrers."""
    return f"seeded/source-{'api' if has_api else 'tags'}"


def open_remote(
    host: str,
    repository: str,
    policy: RetryPolicy | None = None,
    timeouts: Timeouts = PATIENT,
    upload: UploadPolicy | None = None,
) -> Remote:
    """A repository through a client that does not sleep before it tries again."""
    reference = parse_reference(f"{host}/{repository}")
    assert isinstance(reference, RegistryReference)
    client = Client(
        reference, retry=policy, timeouts=timeouts, sleep=lambda delay: None, find=lambda: None
    )
    return Remote(reference, client=client, upload=upload)


class Case:
    """One run: its stores, its faults, and what must be true afterwards."""

    def __init__(
        self, seed: int, name: str, proxy: Proxy, host: str, material: Material, folder: Path
    ) -> None:
        self.chance = random.Random(f"case {seed}")
        self.name, self.proxy, self.material, self.folder = name, proxy, material, folder
        self.pushes = name in ("publish", "push copy")
        has_api = self.chance.random() < 0.3
        self.repository = f"seeded/run-{seed}" if self.pushes else source_repository(has_api)
        self.host = host
        self.upload = self.chance.choice(
            [UploadPolicy(), UploadPolicy(0, 20_000), UploadPolicy(30_000, 20_000)]
        )
        self.faulty = True
        proxy.rules.clear()
        proxy.tokens.clear()
        proxy.token_uses = None
        proxy.sticky_uploads = self.chance.random() < 0.5
        proxy.referrers_api = has_api
        self.layout = Layout(folder / "layout")
        self.home = Home(folder / "home")

    def direct(self) -> Remote:
        """The repository without the proxy."""
        return open_remote(self.host, self.repository)

    def through(self) -> Remote:
        """The repository behind the proxy; impatient while there are faults."""
        if not self.faulty:
            return open_remote(self.proxy.host, self.repository, upload=self.upload)
        policy = RetryPolicy(attempts=4)
        return open_remote(self.proxy.host, self.repository, policy, QUICK, self.upload)

    # What a run does. Each returns only when it believes that all is well.

    def publish(self) -> None:
        """Publish and attach."""
        with self.through() as remote:
            self.material.put(remote)

    def push_copy(self) -> None:
        """Copy a layout to the registry."""
        with self.through() as remote:
            copy(self.material.layout, remote, "demo")

    def pull_copy(self) -> None:
        """Copy the registry's artifact to a layout."""
        with self.through() as remote:
            copy(remote, self.layout, "demo")

    def fetch(self) -> None:
        """Fetch one blob to a file."""
        with self.through() as remote:
            remote.fetch_blob(self._blob(), self.folder / "fetched")

    def client_pull(self) -> None:
        """What ``kvreg pull`` does before it stages: the manifest and its wheels."""
        transport = Transport(
            policy=ClientPolicy(attempts=4),
            read_timeout=QUICK.read if self.faulty else PATIENT.read,
            sleep=lambda delay: None,
        )
        reference = parse_reference(f"{self.proxy.host}/{self.repository}:demo")
        assert isinstance(reference, RegistryReference)
        source = RegistrySource(reference, transport)
        found = source.manifest("demo")
        assert found is not None
        blobs = BlobStore(self.home, stalls=4, sleep=lambda delay: None)
        for layer in Manifest.parse(found.raw).layers:
            blobs.fetch(source, layer, lambda count: None)

    def _blob(self) -> Descriptor:
        manifest = self.material.layout.fetch_manifest(self.material.artifact.digest)
        return Manifest.parse(manifest).layers[0]

    # What must be true.

    def nothing_wrong_is_stored(self) -> None:
        """Wherever bytes may have ended up, they are those of their digest."""
        for folder in (self.layout.path / "blobs/sha256", self.home.root / "blobs/sha256"):
            for path in folder.glob("*"):
                if ".partial" not in path.name:
                    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        if (fetched := self.folder / "fetched").exists():
            expected = blob_path(self.material.layout.path, self._blob().digest).read_bytes()
            assert fetched.read_bytes() == expected
        assert not list(self.folder.glob(".incoming-*"))
        if self.layout.path.exists():
            assert not list(self.layout.path.glob(".incoming-*"))
            self.tags_are_right(self.layout)
        if self.pushes:
            with self.direct() as remote:
                self.tags_are_right(remote)

    def tags_are_right(self, store: Store) -> None:
        """Every tag that there is names the artifact, which is whole."""
        tags = store.list_tags()
        assert {store.resolve(tag) for tag in tags} <= {self.material.artifact}
        assert not tags or verify(store, tags[0], with_referrers=False).ok

    def is_complete(self, store: Store) -> None:
        """The artifact is whole in `store`, with what is attached to it."""
        assert store.resolve("demo") == self.material.artifact
        assert store.resolve(self.material.profile.digest_tag) == self.material.artifact
        report = verify(store, "demo")
        assert report.ok
        referrers = [item for item in report.judgements if item.part == "referrer"]
        assert [item.descriptor.digest for item in referrers] == [self.material.sbom.digest]

    def is_done(self) -> None:
        """What a run that reported no error must have brought about."""
        if self.pushes:
            with self.through() as remote:
                self.is_complete(remote)
        elif self.name == "pull copy":
            self.is_complete(self.layout)
        elif self.name == "fetch":
            assert (self.folder / "fetched").exists()
        else:
            held = {path.name for path in (self.home.root / "blobs/sha256").iterdir()}
            assert held == {sha256_file(layer.path)[7:] for layer in self.material.layers}


Work = Callable[[Case], None]
WORKS: dict[str, tuple[Work, int]] = {
    # How many requests the work makes at least.
    "publish": (Case.publish, 20),
    "push copy": (Case.push_copy, 16),
    "pull copy": (Case.pull_copy, 9),
    "fetch": (Case.fetch, 1),
    "client pull": (Case.client_pull, 3),
}


@pytest.mark.parametrize("seed", range(RUNS))
def test_right_bytes_or_a_clear_error(
    seed: int,
    shared_proxy: Proxy,
    distribution: Distribution,
    material: Material,
    tmp_path: Path,
) -> None:
    name = list(WORKS)[seed % len(WORKS)]
    work, requests = WORKS[name]
    case = Case(seed, name, shared_proxy, distribution.host, material, tmp_path)
    faults = SeededFaults(seed, certain=(seed // len(WORKS)) % requests)
    shared_proxy.rules.append(faults)  # type: ignore[arg-type]
    if case.chance.random() < 0.2:
        shared_proxy.token_uses = case.chance.randint(1, 5)
    outcome = "right"
    try:
        work(case)
    except KvregError as error:
        assert error.what, faults.fired
        assert error.exit_code in (1, 4), (error, faults.fired)
        outcome = type(error).__name__
    case.faulty = False
    shared_proxy.rules.clear()
    shared_proxy.token_uses = None
    fired.extend(faults.fired)
    outcomes.append(outcome)
    assert faults.fired, "this run had no fault"
    case.nothing_wrong_is_stored()
    if outcome == "right":
        case.is_done()
    work(case)
    case.is_done()


def test_there_were_enough_faults_of_every_kind() -> None:
    if len(outcomes) < RUNS:
        pytest.skip("only some of the runs were asked for")
    kinds = {text.rpartition(": ")[2] for text in fired}
    print(f"{len(fired)} faults, {len(kinds)} kinds; outcomes:",
          {name: outcomes.count(name) for name in sorted(set(outcomes))})  # fmt: skip
    assert len(fired) >= 200
    assert len(kinds) >= 18
    assert outcomes.count("right") >= RUNS // 4
    assert RUNS - outcomes.count("right") >= RUNS // 10
