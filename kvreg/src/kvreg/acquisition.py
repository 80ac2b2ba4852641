"""From what was asked for to a staged runtime: resolution, pull and lock file together.

What is staged already and intact needs no source. Else the source that resolution chose is pulled
from; one that fails on the way is passed over like one that never answered, and what had arrived
of a blob is kept for the next.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.errors import NetworkError, NotFoundError, VerificationError
from kvreg.files import write_atomically
from kvreg.home import Home
from kvreg.lockfile import (
    LOCK_FILE,
    Locked,
    layer_digests,
    lock_profile,
    read_lockfile,
)
from kvreg.model.digest import sha256_bytes
from kvreg.model.oci import Manifest
from kvreg.pull import Pulled, Reporter, pull
from kvreg.reference import Reference
from kvreg.request import Request, parse_request
from kvreg.resolution import STAGED, Candidate, Resolution, Resolver
from kvreg.runtime import Runtime
from kvreg.sources import Source

if TYPE_CHECKING:
    from kvreg.publickey import PublicKey

STORE_LOCK = "store"
"""Held shared while blobs are used, exclusively while they are collected."""


@dataclass(frozen=True)
class LockPolicy:
    """What to do with the lock file `path` (None: leave locks alone).

    `obey` makes the lock's entry decide, and then nothing is written. A file that nobody named
    (`optional`) may be where nothing can be written: that is said, and is no error.
    """

    path: Path | None = None
    obey: bool = False
    optional: bool = False

    @classmethod
    def chosen(cls, path: Path | None, *, locked: bool, ignored: bool = False) -> "LockPolicy":
        """The policy of a command's ``--lock``, ``--locked`` and ``--no-lock``."""
        if ignored:
            return cls()
        return cls(path or Path(LOCK_FILE), locked, optional=path is None)


@dataclass(frozen=True)
class LockChange:
    """What a pull did to the lock file: `previous` is the entry that it replaced, if any."""

    path: Path
    written: bool
    entry: Locked
    previous: Locked | None

    @property
    def moved(self) -> bool:
        """Whether the profile had been locked to another artifact."""
        return self.previous is not None and self.previous.manifest != self.entry.manifest

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON-ready data."""
        return {
            "path": str(self.path),
            "written": self.written,
            "moved": self.moved,
            "entry": self.entry.to_dict(),
            "previous": self.previous.to_dict() if self.previous else None,
        }


@dataclass(frozen=True)
class Acquired:
    """A runtime that is here now, how it was found, and what became of the lock file."""

    pulled: Pulled
    resolution: Resolution
    lock: LockChange | None

    @property
    def runtime(self) -> Runtime:
        """The runtime."""
        return self.pulled.runtime

    def to_dict(self) -> dict[str, Any]:
        """All three as JSON-ready data."""
        return {
            **self.pulled.to_dict(),
            "resolution": self.resolution.to_dict(),
            "lock": self.lock.to_dict() if self.lock else None,
        }


def acquire(
    text: str,
    places: Iterable[Candidate],
    open_source: Callable[[Reference], Source],
    home: Home,
    *,
    policy: LockPolicy = LockPolicy(),
    target: str | None = None,
    reporter: Reporter | None = None,
    keys: tuple["PublicKey", ...] = (),
    any_host: bool = False,
) -> Acquired:
    """Make what `text` (see `kvreg.request`) asks for available in `home`.

    `target` is the tag or digest that the caller's own reference names: it must be asked for even
    if something of the profile is staged. `any_host` stages also what this Python cannot load.
    Raises a `KvregError` of the kind that fits; where several sources were tried, with what came
    of each.
    """
    reporter = reporter or Reporter()
    request = request_of(text, policy).on(home)
    resolver = Resolver(request, places, open_source, reporter.note)
    with home.lock(STORE_LOCK, lambda: reporter.note("blobs are collected; waiting"), shared=True):

        def work(known: Request) -> Pulled:
            assert known.profile is not None
            return pull(
                known.profile,
                resolver.open,
                known.manifest or target,
                home,
                reporter,
                known.name,
                keys=keys,
                any_host=any_host,
            )

        pulled = _pull(request, resolver, work)
        resolution = _resolution(pulled, resolver, home)
        _check(request, pulled)
        return Acquired(pulled, resolution, _lock(policy, pulled, resolution, home, reporter))


def request_of(text: str, policy: LockPolicy) -> Request:
    """What `text` asks for under a policy."""
    if policy.obey and policy.path is not None:
        return parse_request(text, read_lockfile(policy.path, required=True))
    return parse_request(text)


def _pull(request: Request, resolver: Resolver, work: Callable[[Request], Pulled]) -> Pulled:
    """Do the work with one source after the other, until one does not fail on the way."""
    while True:
        try:
            if request.profile is not None:
                return work(request)
            found = resolver.artifact()
            profile = found.manifest.config.digest
            return work(replace(request, profile=profile, manifest=found.digest))
        except (NotFoundError, NetworkError) as error:
            if not resolver.failed(error):
                raise


def _resolution(pulled: Pulled, resolver: Resolver, home: Home) -> Resolution:
    """The decision that led to what was pulled; its manifest is kept for lock files and `show`."""
    runtime = pulled.runtime
    raw = resolver.raw_manifest()
    if raw is not None:
        path = home.blob(raw.digest)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, raw.raw)
        return resolver.resolution()
    manifest = kept_manifest(home, runtime)
    return Resolution(
        name=runtime.profile_name,
        profile_digest=runtime.profile_digest,
        manifest_digest=runtime.manifest_digest,
        source=runtime.reference,
        origin=STAGED,
        tried=(),
        blobs=layer_digests(manifest) if manifest else _wheel_digests(runtime),
        size=sum(layer.size for layer in manifest.layers) if manifest else None,
    )


def kept_manifest(home: Home, runtime: Runtime) -> Manifest | None:
    """The manifest of a staged runtime, where it was kept and is whole."""
    try:
        raw = home.blob(runtime.manifest_digest).read_bytes()
    except OSError:
        return None
    return Manifest.parse(raw) if sha256_bytes(raw) == runtime.manifest_digest else None


def _wheel_digests(runtime: Runtime) -> dict[str, str]:
    return {wheel.filename: f"sha256:{wheel.sha256}" for wheel in runtime.wheels}


def _check(request: Request, pulled: Pulled) -> None:
    """What was pulled is what was asked for: said once more, of the result."""
    runtime = pulled.runtime
    for asked, found in (
        (request.profile, runtime.profile_digest),
        (request.manifest, runtime.manifest_digest),
    ):
        if asked not in (None, found):
            raise VerificationError(
                f"what is staged is not what {request.text} asks for", expected=asked, found=found
            )


def _lock(
    policy: LockPolicy, pulled: Pulled, resolution: Resolution, home: Home, reporter: Reporter
) -> LockChange | None:
    if policy.path is None:
        return None
    runtime = pulled.runtime
    entry = Locked(runtime.profile_digest, runtime.manifest_digest, resolution.blobs)
    previous = read_lockfile(policy.path).entries.get(runtime.profile_name)
    if policy.obey:
        return LockChange(policy.path, False, entry, previous)
    change = LockChange(policy.path, False, entry, previous)
    if change.moved and previous is not None:
        reporter.note(
            f"{runtime.profile_name} moved since it was locked in {policy.path}:"
            f" artifact {previous.manifest} then, {entry.manifest} now"
        )
    try:
        written = lock_profile(policy.path, runtime.profile_name, entry, home)
    except OSError as error:
        if not policy.optional:
            raise
        reporter.note(f"{policy.path} could not be written: {error.strerror}")
        return None
    return replace(change, written=written)
