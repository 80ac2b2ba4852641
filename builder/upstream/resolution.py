"""Does the overlay still resolve: uv asked for many releases at once, each question asked once.

Only whether a solution exists is asked here, with what the index has now; `builder overlay lock`
finds, explains and locks the solution itself. Where a release pins another torch than the host's,
the host is taken as it would be with that torch, so that everything else is judged too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.index import PackageIndex
from builder.overlay import Resolver
from builder.upstream.judgement import Finding
from builder.upstream.once import Once
from builder.upstream.release import ReleaseFiles, exact_pin
from kvreg.errors import KvregError
from kvreg.model.profile import Profile

_FAMILY = ("torch", "torchvision", "torchaudio")
_OF_TORCH = ("triton",)
"""What torch itself pins: where torch moves, it moves with it."""


class OverlayQuestions:
    """Answers questions from many threads; equal ones share one answer, and the first goes alone.

    `scratch` is a folder that outlives the questions, for uv's configuration.
    """

    def __init__(self, index: PackageIndex, scratch: Path) -> None:
        self._index = index
        self._once: Once[Finding] = Once()
        self._first = threading.Lock()
        self._warm = False
        configuration = scratch / "uv.toml"
        # The index's pages are taken as fresh for an hour and files as what they are, for ever:
        # without it uv asks for everything again in every one of these runs.
        url = index.url.replace("\\", "\\\\").replace('"', '\\"')
        configuration.touch(mode=0o600)
        configuration.write_text(
            f'[[index]]\nname = "configured"\nurl = "{url}"\ndefault = true\n'
            'cache-control = { api = "max-age=3600", files = "max-age=31536000, immutable" }\n'
        )
        self._options = ("--config-file", str(configuration))

    def ask(self, profile: Profile, host: Mapping[str, str], release: ReleaseFiles) -> Finding:
        """Whether the overlay of a release resolves for a host with these packages."""
        assumed, moved = assumed_host(host, release)
        resolver = Resolver(profile, release.raw_metadata, assumed, self._index)
        policy = sorted(item.name for item in resolver.policy.omissions)
        question = (
            profile.host.python.validated,
            profile.host.glibc.validated,
            "\n".join(sorted(map(str, resolver.roots))),
            "\n".join(f"{n}=={v}" for n, v in sorted(assumed.items())),
            "\n".join(policy),
        )
        return self._once(question, lambda: self._find(resolver, moved))

    def _find(self, resolver: Resolver, moved: Mapping[str, str]) -> Finding:
        # The first run fills uv's cache; until then others would fetch the same again.
        with self._first:
            if not self._warm:
                self._warm = True
                return _answer(resolver, moved, self._options)
        return _answer(resolver, moved, self._options)


def _answer(resolver: Resolver, moved: Mapping[str, str], options: tuple[str, ...]) -> Finding:
    assumed = ", ".join(f"{name} {version}" for name, version in moved.items())
    given = f" on a host with {assumed}" if assumed else ""
    try:
        found = resolver.versions(options)
    except KvregError as error:
        why = "; ".join(map(str, error.problems)) or (error.found or error.what)
        return Finding("overlay", "profile", f"does not resolve{given}: {_short(why)}")
    count = sum(not resolver.of_host(name, version) for name, version in found.items())
    return Finding(
        "overlay", "same", f"resolves{given}: {count} packages that it lacks or has older"
    )


def assumed_host(
    host: Mapping[str, str], release: ReleaseFiles
) -> tuple[dict[str, str], dict[str, str]]:
    """The host as it would be with the torch that the release pins, and what was changed for it."""
    pins = {
        canonicalize_name(item.name): pin
        for item in release.requirements
        if canonicalize_name(item.name) in _FAMILY and (pin := exact_pin(item))
    }
    moved = {
        name: pin
        for name, pin in pins.items()
        if name in host and Version(Version(host[name]).public) != Version(pin)
    }
    if "torch" not in moved:
        return dict(host), {}
    kept = {name: v for name, v in host.items() if name not in _OF_TORCH}
    return {**kept, **moved}, moved


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 600 else words[:600] + " …"
