"""Pulling a runtime: find, fetch, verify, stage, and make it appear with one rename."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvreg.errors import KvregError
from kvreg.home import Home
from kvreg.integrity import check_runtime, require_settled
from kvreg.model.digest import parse_digest
from kvreg.runtime import Runtime, read_runtime
from kvreg.settings import is_trusted
from kvreg.sources import Source

if TYPE_CHECKING:
    from kvreg.publickey import PublicKey


@dataclass(frozen=True)
class Reporter:
    """How a pull tells what it does; the defaults tell nothing.

    `bar` makes a context manager with ``update(count)`` from a total in bytes and a description.
    """

    note: Callable[[str], object] = lambda text: None
    bar: Callable[[int, str], Any] | None = None

    @contextmanager
    def progress(self, total: int, description: str) -> Iterator[Callable[[int], object]]:
        """A function that takes counts of bytes, for as long as the context lasts."""
        if self.bar is None:
            yield lambda count: None
        else:
            with self.bar(total, description) as bar:
                yield bar.update


@dataclass(frozen=True)
class Work:
    """What a pull did: bytes `received` over the network and `reused` from earlier runtimes, and
    the library and the number of threads that unpacked the others."""

    received: int
    reused: int
    inflate: str
    inflate_version: str
    workers: int


@dataclass(frozen=True)
class Pulled:
    """A runtime that is staged now; `work` is None when it already was, and verified."""

    runtime: Runtime
    work: Work | None

    @property
    def staged(self) -> bool:
        """Whether this pull staged it."""
        return self.work is not None

    def to_dict(self) -> dict[str, Any]:
        """The content of ``runtime.json``, the folder, and what this pull did."""
        return {
            **self.runtime.to_dict(),
            "folder": str(self.runtime.folder),
            "staged": self.staged,
            "work": asdict(self.work) if self.work is not None else None,
        }


def pull(
    profile_digest: str,
    open_source: Callable[[], Source],
    target: str | None,
    home: Home,
    reporter: Reporter | None = None,
    profile_name: str | None = None,
    *,
    keys: tuple["PublicKey", ...] = (),
    any_host: bool = False,
) -> Pulled:
    """Make the runtime of a profile digest available in `home`.

    A runtime that is there already and intact is returned without opening the source, unless
    `target` (the tag or digest that the caller's reference names) asks for a certain artifact.
    `profile_name` is for messages alone. With `keys`, one of them must have signed the artifact:
    this is checked before anything of it is fetched, and one that is staged already counts only
    when it was checked so. What the Python that runs this cannot load is refused, unless it is
    for `any_host`.
    Only one process at a time works on a profile; another one waits and then finds it done.
    Raises a `KvregError` of the kind that fits; nothing half-made is left behind.
    """
    reporter = reporter or Reporter()
    name = f"runtime-{parse_digest(profile_digest)}"
    with home.lock(name, lambda: reporter.note("another pull of this profile runs; waiting")):
        existing = _existing(home, profile_digest, reporter)
        trusted = existing is not None and (not keys or is_trusted(existing, keys))
        if existing is not None and trusted and target in (None, existing.manifest_digest):
            return Pulled(existing, None)
        # What it takes to make one is not imported to find that it is there.
        from kvreg.artifact import find_artifact

        source = open_source()
        artifact = find_artifact(source, profile_digest, profile_name)
        signature = None
        if keys:
            from kvreg.signatures import require_signature

            location = str(source.reference.with_target())
            signature = require_signature(source, artifact.digest, keys, location)
        if existing is not None and existing.manifest_digest == artifact.digest:
            return Pulled(existing.signed(signature) if signature else existing, None)
        from kvreg.making import make

        return Pulled(*make(source, artifact, signature, home, reporter, any_host=any_host))


def _existing(home: Home, profile_digest: str, reporter: Reporter) -> Runtime | None:
    """The runtime that is staged already, if it is intact as far as a quick look can tell."""
    folder = home.runtime(profile_digest)
    if not folder.exists():
        return None
    try:
        runtime = read_runtime(folder)
        require_settled(runtime)
        report = check_runtime(runtime, quick=True)
    except KvregError as error:
        reporter.note(f"{error.what}; staging it again")
        return None
    if report.missing or report.changed:
        count = len(report.missing) + len(report.changed)
        reporter.note(f"the staged runtime has {count} missing or changed files; staging it again")
        return None
    return report.runtime
