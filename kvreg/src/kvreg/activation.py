"""What running a command with a runtime sets in its environment, and nothing else.

======================  ========================================================================
``PYTHONPATH``          the runtime's ``site`` comes first
``PATH``                ``site/bin`` comes first
``PYTHONPYCACHEPREFIX`` compiled files go into the home, so that the runtime stays as it was
                        verified; left alone when it or ``PYTHONDONTWRITEBYTECODE`` is set
``KVREG_PROFILE``       name of the profile
``KVREG_PROFILE_DIGEST``  its digest
``KVREG_MANIFEST_DIGEST`` digest of the artifact's manifest
``KVREG_RUNTIME``       folder of the runtime
======================  ========================================================================
"""

import os
from collections.abc import Mapping
from pathlib import Path

from kvreg import catalogue
from kvreg.errors import NotFoundError
from kvreg.home import Home
from kvreg.model.digest import parse_digest
from kvreg.request import Request, split_identity
from kvreg.runtime import SITE, Runtime, read_runtime, readable_runtimes


def find_runtime(home: Home, text: str) -> Runtime:
    """The staged runtime that a PROFILE argument means: a name, a folder or a digest.

    A name means the profile that this client knows under it; one that it does not know may still
    be staged. Raises `NotFoundError`.
    """
    if text.startswith("sha256:"):
        parse_digest(text)
        return _read(home, text, text)
    name, digest = split_identity(text)
    if digest is not None:
        request = Request(text, name, digest=digest).on(home)
        return _read(home, request.profile or digest, text)
    try:
        profile = catalogue.find_profile(text)
    except NotFoundError:
        named = [runtime for runtime in readable_runtimes(home) if runtime.profile_name == text]
        if len(named) == 1:
            return named[0]
        raise
    return _read(home, profile.digest, text)


def variables(runtime: Runtime, home: Home, base: Mapping[str, str]) -> dict[str, str]:
    """The variables that activate `runtime` on top of the environment `base`."""
    site = str(runtime.site)
    # A runtime that is active already is replaced, not stacked upon.
    active = base.get("KVREG_RUNTIME")
    old = str(Path(active) / SITE) if active else site
    result = {
        "PYTHONPATH": _prepend(site, base.get("PYTHONPATH", ""), {old, site}),
        "PATH": _prepend(
            f"{site}/bin", base.get("PATH", os.defpath), {f"{old}/bin", f"{site}/bin"}
        ),
        "KVREG_PROFILE": runtime.profile_name,
        "KVREG_PROFILE_DIGEST": runtime.profile_digest,
        "KVREG_MANIFEST_DIGEST": runtime.manifest_digest,
        "KVREG_RUNTIME": str(runtime.folder),
    }
    if not base.get("PYTHONPYCACHEPREFIX") and not base.get("PYTHONDONTWRITEBYTECODE"):
        result["PYTHONPYCACHEPREFIX"] = str(home.root / "pycache")
    return result


def _prepend(first: str, rest: str, without: set[str]) -> str:
    # An empty entry would mean the current directory, so it is not made by accident.
    parts = [part for part in rest.split(os.pathsep) if part and part not in without]
    return os.pathsep.join([first, *parts])


def _read(home: Home, digest: str, text: str) -> Runtime:
    try:
        return read_runtime(home.runtime(digest))
    except NotFoundError:
        raise NotFoundError(
            f"the runtime of {text} is not staged in {home.root}",
            expected=f"profile digest {digest}",
            found=_others(home),
            remedy=f"kvreg pull {text} --registry REF",
        ) from None


def _others(home: Home) -> str | None:
    known = [f"{item.profile_name} ({item.profile_digest})" for item in readable_runtimes(home)]
    return "staged: " + ", ".join(known) if known else None
