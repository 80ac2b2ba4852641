"""What a store has of the profiles here, and what of it nobody has built again yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from builder.matrix import Job
from kvreg.errors import NotFoundError
from kvreg.model.tag import digest_tag
from registry.describe import MEDIA_TYPE_VERDICT
from registry.store import Store


@dataclass(frozen=True)
class Rebuild:
    """One artifact to build again, by its digest: a tag may have moved when its turn comes."""

    job: Job
    artifact: str

    def to_dict(self) -> dict[str, Any]:
        """As an entry of a matrix."""
        found = self.job.to_dict()
        # The artifact's provenance says with which toolchain, whatever the profile has first.
        del found["toolchain"], found["key"]
        return {**found, "artifact": self.artifact}


def backlog(store: Store, jobs: Iterable[Job], *, unjudged: bool = False) -> tuple[Rebuild, ...]:
    """What `store` has of the profiles of `jobs` as they are here, by profile digest.

    unjudged: leave out what has a verdict, whatever it is. Raises NetworkError, VerificationError.
    """
    found = []
    for job in jobs:
        try:
            artifact = store.resolve(digest_tag(job.digest))
        except NotFoundError:
            return ()  # a store in which nothing was published yet
        if artifact is None or (unjudged and store.referrers(artifact.digest, MEDIA_TYPE_VERDICT)):
            continue
        found.append(Rebuild(job, artifact.digest))
    return tuple(found)
