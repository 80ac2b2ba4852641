"""What running a command with a runtime sets in its environment, and nothing else.

=========================  =====================================================================
``PYTHONPATH``             first the start-up hook (`kvreg.startup`), the runtime's ``site`` and
                           its ``overlay``
``PATH``                   ``site/bin`` and ``overlay/bin`` come first (`kvreg.programs`)
``KVREG_PROFILE``          name of the profile
``KVREG_PROFILE_DIGEST``   its digest
``KVREG_MANIFEST_DIGEST``  digest of the artifact's manifest
``KVREG_RUNTIME``          folder of the runtime
``KVREG_PYTHON``           the Python that it is for, such as ``cpython-312``
``KVREG_PYCACHE``          where compiled files of the runtime go, so that it stays as verified
``PYTHONPYCACHEPREFIX``    the same, for what is imported before the hook; left alone when set
``KVREG_SETTINGS``         names of the profile's settings that were set
the profile's settings     ``[runtime.environment]``, where the user has not set them
=========================  =====================================================================
"""

import hashlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path

from kvreg import catalogue
from kvreg.errors import ContractError, NotFoundError, Problem
from kvreg.home import Home
from kvreg.integrity import require_settled
from kvreg.model.digest import parse_digest
from kvreg.model.profile import Profile
from kvreg.programs import program_folders
from kvreg.request import Request, split_identity
from kvreg.runtime import Runtime, read_runtime, readable_runtimes
from kvreg.startup import (
    PLACES,
    PREFIX_VARIABLE,
    PYCACHE_VARIABLE,
    PYTHON_VARIABLE,
    RUNTIME_VARIABLE,
)

SETTINGS_VARIABLE = "KVREG_SETTINGS"


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
    """The variables that activate `runtime` on top of the environment `base`.

    The start-up hook is written into the home if it is not there. A value of the user's wins over
    the profile's setting; whether it is one that the profile denies is `check_environment`'s.
    Raises `VerificationError` for a runtime that a crash of the machine has damaged.
    """
    require_settled(runtime)
    profile = runtime.profile()
    places = [str(place) for place in runtime.places]
    python = [str(start_up_folder(home)), *places]
    programs = program_folders(runtime, home)
    # A runtime that is active already is replaced, not stacked upon.
    old = _active_entries(base)
    settings = {
        name: value
        for name, value in profile.runtime.environment.set.items()
        if name not in base or name in base.get(SETTINGS_VARIABLE, "").split()
    }
    pycache = str(home.root / "pycache")
    # Until the start-up hook runs; a prefix that the user chose stays.
    prefix = {} if _chosen_prefix(base) else {PREFIX_VARIABLE: pycache}
    return {
        "PYTHONPATH": _prepend(python, base.get("PYTHONPATH", ""), old),
        "PATH": _prepend(programs, base.get("PATH", os.defpath), old),
        "KVREG_PROFILE": runtime.profile_name,
        "KVREG_PROFILE_DIGEST": runtime.profile_digest,
        "KVREG_MANIFEST_DIGEST": runtime.manifest_digest,
        RUNTIME_VARIABLE: str(runtime.folder),
        PYTHON_VARIABLE: cache_tag(profile.host.python_tag.validated),
        PYCACHE_VARIABLE: pycache,
        **prefix,
        SETTINGS_VARIABLE: " ".join(sorted(settings)),
        **settings,
    }


def check_environment(profile: Profile, base: Mapping[str, str]) -> None:
    """Raise `ContractError` naming every variable of `base` that the profile denies."""
    denied = profile.runtime.environment.denied(base)
    if denied:
        raise ContractError(
            f"the environment has settings that {profile.name} cannot run with",
            problems=[Problem(rule.name, rule.reason, found=value) for rule, value in denied],
            remedy="unset " + " ".join(dict.fromkeys(rule.name for rule, _ in denied)),
        )


def cache_tag(python_tag: str) -> str:
    """How an interpreter names itself whose wheels have this tag.

    >>> cache_tag("cp312")
    'cpython-312'
    """
    return "cpython-" + python_tag.removeprefix("cp")


def start_up_folder(home: Home) -> Path:
    """The folder whose ``sitecustomize.py`` is `kvreg.startup`; made when it is not there.

    It is named by its content, so that another version of this client brings another one.
    """
    source = pkgutil.get_data("kvreg", "startup.py")
    assert source is not None
    folder = home.root / "startup" / hashlib.sha256(source).hexdigest()[:16]
    path = folder / "sitecustomize.py"
    if not path.is_file() or path.read_bytes() != source:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{path.name}.{os.getpid()}"
        try:
            temporary.write_bytes(source)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return folder


def _chosen_prefix(base: Mapping[str, str]) -> bool:
    prefix = base.get(PREFIX_VARIABLE)
    return bool(prefix) and prefix != base.get(PYCACHE_VARIABLE)


def _active_entries(base: Mapping[str, str]) -> Callable[[str], bool]:
    """Whether an entry of a path variable was put there by an activation."""
    active = base.get(RUNTIME_VARIABLE)
    if not active:
        return lambda entry: False
    folder = Path(active)
    places = {str(folder / name) for name in PLACES}
    known = places | {f"{place}/bin" for place in places}
    start_up = f"{folder.parent.parent / 'startup'}{os.sep}"
    return lambda entry: entry in known or entry.startswith(start_up)


def _prepend(first: list[str], rest: str, old: Callable[[str], bool]) -> str:
    # An empty entry would mean the current directory, so it is not made by accident.
    parts = [part for part in rest.split(os.pathsep) if part and part not in first]
    return os.pathsep.join([*first, *(part for part in parts if not old(part))])


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
