"""Resolution: from what was asked for to one artifact in one source, as a value with reasons.

Sources are tried in this order: ``--registry`` (and then no other), ``$KVREG_REGISTRY``, those of
the settings file, layouts found under attached inputs. One that does not have the artifact, or that
cannot be reached, is passed over, and it is said why. What fails verification is an error at once:
damage or an attack must not look like an absence.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvreg.attached import find_layouts
from kvreg.errors import (
    KvregError,
    NetworkError,
    NotFoundError,
    Problem,
    UsageError,
    VerificationError,
)
from kvreg.lockfile import Locked, layer_digests
from kvreg.model.oci import Descriptor
from kvreg.model.tag import digest_tag
from kvreg.reference import Reference, parse_reference
from kvreg.request import Request
from kvreg.settings import REGISTRY_VARIABLE, read_settings
from kvreg.sources import BlobStream, RawManifest, Source

if TYPE_CHECKING:
    from kvreg.artifact import Artifact

Outcome = Literal["used", "absent", "unreachable"]

OPTION = "--registry"
STAGED = "staged"
"""The origin of what was here already: no source was asked."""


@dataclass(frozen=True)
class Candidate:
    """A place to look, and what named it."""

    reference: Reference
    origin: str


@dataclass(frozen=True)
class Attempt:
    """A source that was tried: what came of it, and why where that was nothing."""

    source: str
    origin: str
    outcome: Outcome
    reason: str | None = None

    def to_dict(self) -> dict[str, str]:
        """The attempt as JSON-ready data."""
        fields = {"source": self.source, "origin": self.origin, "outcome": self.outcome}
        return fields if self.reason is None else {**fields, "reason": self.reason}

    def problem(self) -> Problem:
        """The attempt as part of an error."""
        return Problem(self.source, f"{self.outcome}: {self.reason}", found=f"from {self.origin}")


@dataclass(frozen=True)
class Resolution:
    """The decision: this artifact, from that source. `size` is of its layers, in bytes.

    `source` is the reference with the artifact's digest. Of what was staged already `blobs` may be
    unknown (empty) and `origin` is `STAGED`.
    """

    name: str | None
    profile_digest: str
    manifest_digest: str
    source: str
    origin: str
    tried: tuple[Attempt, ...]
    blobs: Mapping[str, str] = field(hash=False, default_factory=dict)
    size: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The resolution as JSON-ready data."""
        return {
            "name": self.name,
            "profile": self.profile_digest,
            "manifest": self.manifest_digest,
            "source": self.source,
            "origin": self.origin,
            "tried": [attempt.to_dict() for attempt in self.tried],
            "blobs": dict(sorted(self.blobs.items())),
            "size": self.size,
        }


def candidates(chosen: str | None) -> Iterator[Candidate]:
    """The places to look, best first. `chosen` is what ``--registry`` says; then it is the only
    one. Attached inputs are searched only when the places before them were not enough.
    """
    if chosen:
        yield Candidate(parse_reference(chosen), OPTION)
        return
    if named := os.environ.get(REGISTRY_VARIABLE):
        yield Candidate(parse_reference(named), f"${REGISTRY_VARIABLE}")
    settings = read_settings()
    for reference in settings.registries:
        yield Candidate(reference, str(settings.path))
    for layout in find_layouts().layouts:
        yield Candidate(layout, "attached input")


def wanted_target(chosen: str | None) -> str | None:
    """The tag or digest that the most important reference names: no other artifact is meant."""
    named = chosen or os.environ.get(REGISTRY_VARIABLE)
    if named:
        return parse_reference(named).target
    registries = read_settings().registries
    return registries[0].target if registries else None


class Resolver:
    """Finds what is asked for, in one candidate after the other; remembers what was tried.

    `open_source` opens a reference; `note` tells people of a source that was passed over.
    """

    def __init__(
        self,
        request: Request,
        places: Iterable[Candidate],
        open_source: Callable[[Reference], Source],
        note: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._request = request
        self._places = iter(places)
        self._open_source = open_source
        self._note = note
        self._attempts: list[Attempt] = []
        self._errors: list[KvregError | OSError] = []
        self._current: tuple[Candidate, Artifact, Source] | None = None

    def open(self) -> Source:
        """The source that has the artifact, seen through it: its reference names the digest.

        Once found it is the same until it `failed`. Raises `NotFoundError`, or `NetworkError` when
        one of the sources could not be asked, with all that was tried; `VerificationError` of any
        source at once; `UsageError` when there is no place to look.
        """
        while self._current is None:
            candidate = next(self._places, None)
            if candidate is None:
                raise self._exhausted()
            try:
                source = _Remembering(self._open_source(candidate.reference))
                artifact = self._find(source)
            except (NotFoundError, NetworkError, OSError) as error:
                self._pass_over(candidate, error)
            except KvregError as error:
                error.tried = self._problems()
                raise
            else:
                self._current = candidate, artifact, source.pinned(artifact.digest)
        return self._current[2]

    def failed(self, error: KvregError) -> bool:
        """Give up the source that was opened; False when there was none, as that was no source's
        fault."""
        if self._current is None:
            return False
        candidate, self._current = self._current[0], None
        self._pass_over(candidate, error)
        return True

    def artifact(self) -> "Artifact":
        """The artifact that was found: opens a source if need be."""
        self.open()
        assert self._current is not None
        return self._current[1]

    def raw_manifest(self) -> RawManifest | None:
        """The bytes of the manifest that was found, if one was."""
        if self._current is None:
            return None
        _, artifact, source = self._current
        return source.manifest(artifact.digest)

    def resolution(self) -> Resolution:
        """The decision; raises as `open` does."""
        self.open()
        assert self._current is not None
        candidate, artifact, source = self._current
        used = Attempt(str(candidate.reference), candidate.origin, "used")
        return Resolution(
            name=self._request.name,
            profile_digest=artifact.manifest.config.digest,
            manifest_digest=artifact.digest,
            source=str(source.reference),
            origin=candidate.origin,
            tried=(*self._attempts, used),
            blobs=layer_digests(artifact.manifest),
            size=sum(layer.size for layer in artifact.manifest.layers),
        )

    def _find(self, source: "_Remembering") -> "Artifact":
        # Not imported for a runtime that is staged already.
        from kvreg.artifact import find_artifact, find_by_digest

        request = self._request
        if request.profile is None:
            assert request.digest is not None and request.name is not None
            return find_by_digest(source, request.digest, request.name)
        try:
            artifact = find_artifact(source, request.profile, request.name)
        except NotFoundError:
            # Without its tag an artifact is still found by the digest that is asked for.
            if request.manifest is None or source.reference.target is not None:
                raise
            if source.manifest(request.manifest) is None:
                raise
            artifact = find_artifact(source.pinned(request.manifest), request.profile)
        if request.locked is not None:
            _check_locked(artifact, request.locked, source)
        elif request.manifest is not None and artifact.digest != request.manifest:
            artifact = find_artifact(source.pinned(request.manifest), request.profile)
        return artifact

    def _pass_over(self, candidate: Candidate, error: KvregError | OSError) -> None:
        outcome: Outcome = "absent" if isinstance(error, NotFoundError) else "unreachable"
        reason = error.what if isinstance(error, KvregError) else str(error)
        self._attempts.append(Attempt(str(candidate.reference), candidate.origin, outcome, reason))
        self._errors.append(error)
        if candidate.origin != OPTION:
            self._note(f"{candidate.reference} ({candidate.origin}): {reason}")

    def _problems(self) -> tuple[Problem, ...]:
        return tuple(attempt.problem() for attempt in self._attempts)

    def _exhausted(self) -> KvregError | OSError:
        if not self._errors:
            return nowhere()
        if len(self._errors) == 1:
            return self._errors[0]
        unreachable = any(not isinstance(error, NotFoundError) for error in self._errors)
        kind = NetworkError if unreachable else NotFoundError
        count = len(self._errors)
        error = kind(
            f"none of the {count} sources has {self._request.text}",
            remedy="name another one with --registry"
            + (", or try again when those that could not be reached can be" if unreachable else ""),
        )
        error.tried = self._problems()
        return error


def nowhere() -> UsageError:
    """The error that says that there is no place to look, and what could have named one."""
    settings, found = read_settings(), find_layouts()
    error = UsageError(
        "no registry was named, and no attached input holds a layout",
        expected=f"--registry REF, ${REGISTRY_VARIABLE}, or registry in {settings.path}",
        remedy="for example: --registry oci-layout:./dist/registry",
    )
    limit = "no layout" if found.complete else "no layout before the search gave up"
    error.tried = (
        Problem(f"${REGISTRY_VARIABLE}", "is not set"),
        Problem(str(settings.path), "names no registry"),
        *(
            Problem(str(folder), limit if folder.is_dir() else "is not there")
            for folder in found.searched
        ),
    )
    return error


def _check_locked(artifact: "Artifact", locked: Locked, source: Source) -> None:
    """Refuse an artifact that is not the one of the lock."""
    if artifact.digest != locked.manifest:
        tag = source.reference.target or digest_tag(locked.profile)
        raise VerificationError(
            f"{tag} in {source.reference} moved since it was locked",
            expected=f"artifact {locked.manifest}",
            found=f"artifact {artifact.digest}",
            remedy="pull without --locked to take the new one and to renew the lock, or pull"
            " NAME@sha256:... with the locked artifact's digest",
        )
    found = layer_digests(artifact.manifest)
    problems = [
        Problem(name, "is another blob in the artifact", digest, found.get(name, "none"))
        for name, digest in sorted(locked.blobs.items())
        if found.get(name) != digest
    ]
    if problems:
        raise VerificationError(
            f"the lock contradicts itself: artifact {artifact.digest} has other blobs",
            problems=problems,
            remedy="take the lock from version control, or pull without --locked to renew it",
        )


class _Remembering:
    """A source that asks for a manifest once; a `Source`, too."""

    def __init__(self, source: Source, known: dict[str, RawManifest] | None = None) -> None:
        self._source = source
        self._known = {} if known is None else known
        self.reference = source.reference

    def pinned(self, digest: str) -> "_Remembering":
        """The same source, opened for one artifact of it."""
        pinned = _Remembering(self._source, self._known)
        pinned.reference = self.reference.with_target(digest=digest)
        return pinned

    def manifest(self, target: str) -> RawManifest | None:
        """See `Source.manifest`."""
        found = self._known.get(target) or self._source.manifest(target)
        if found is not None:
            self._known[target] = self._known[found.digest] = found
        return found

    def manifest_digests(self) -> list[str]:
        """See `Source.manifest_digests`."""
        return self._source.manifest_digests()

    def local_path(self, descriptor: Descriptor) -> Path | None:
        """See `Source.local_path`."""
        return self._source.local_path(descriptor)

    def referrers(self, digest: str) -> list[Descriptor]:
        """See `Source.referrers`."""
        return self._source.referrers(digest)

    def read_small(self, descriptor: Descriptor) -> bytes:
        """See `Source.read_small`."""
        return self._source.read_small(descriptor)

    def stream(
        self, descriptor: Descriptor, start: int, end: int
    ) -> AbstractContextManager[BlobStream]:
        """See `Source.stream`."""
        return self._source.stream(descriptor, start, end)

    def __getattr__(self, name: str) -> Any:
        # What a kind of source can do beyond the protocol.
        return getattr(self._source, name)
