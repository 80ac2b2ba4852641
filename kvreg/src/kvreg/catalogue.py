"""Where profiles are found, and what a PROFILE argument means.

Profiles come from, in this order: the directories of ``$KVREG_PROFILES``, the client's own bundled
profiles, and the ``profiles`` directory of the checkout that an editable install points into. A
PROFILE argument is a name, the path of a profile's folder, or a profile digest.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvreg.errors import KvregError, NotFoundError, UsageError
from kvreg.model.digest import parse_digest
from kvreg.model.profile import PROFILE_FILE, Profile, load_profile

ENVIRONMENT = "KVREG_PROFILES"

_PACKAGE = Path(__file__).resolve().parent
_BUNDLED = _PACKAGE / "_profiles"
# <checkout>/kvreg/src/kvreg in an editable install
_CHECKOUT = _PACKAGE.parents[2] / "profiles"


@dataclass(frozen=True)
class Entry:
    """One folder of the catalogue: its profile, or the error that says why it has none."""

    name: str
    folder: Path
    profile: Profile | None
    error: KvregError | None


def directories() -> list[Path]:
    """The directories that hold profile folders, most important first."""
    named = [Path(item) for item in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if item]
    for path in named:
        if not path.is_dir():
            raise NotFoundError(
                f"${ENVIRONMENT} names a directory that does not exist", found=str(path)
            )
    own = _BUNDLED if _BUNDLED.is_dir() else _CHECKOUT
    return [*named, own] if own.is_dir() else named


def folders() -> dict[str, Path]:
    """The folder of every known profile, by name, in order of names."""
    found: dict[str, Path] = {}
    for directory in directories():
        for path in directory.iterdir():
            if (path / PROFILE_FILE).is_file():
                found.setdefault(path.name, path)
    return dict(sorted(found.items()))


def entries() -> Iterator[Entry]:
    """Every known profile, valid or not."""
    for name, folder in folders().items():
        try:
            yield Entry(name, folder, load_profile(folder), None)
        except KvregError as error:
            yield Entry(name, folder, None, error)


def find_folder(text: str) -> Path:
    """The folder of the profile that `text` names: by name, path or digest."""
    if text.startswith("sha256:"):
        parse_digest(text)
        for entry in entries():
            if entry.profile is not None and entry.profile.digest == text:
                return entry.folder
        raise NotFoundError(
            f"no known profile has the digest {text}", remedy="see: kvreg profile list"
        )
    if is_path(text):
        path = Path(text)
        if path.name == PROFILE_FILE:
            path = path.parent
        if not (path / PROFILE_FILE).is_file():
            raise NotFoundError(f"there is no {path / PROFILE_FILE}")
        return path
    known = folders()
    if text not in known:
        raise NotFoundError(
            f"no profile is named {text!r}",
            expected="one of: " + (", ".join(known) or "(none are known)"),
            remedy=f"see: kvreg profile list; a folder is written as ./{text}",
        )
    return known[text]


def find_profile(text: str, *, allow_missing_locks: bool = False) -> Profile:
    """The valid profile that `text` names; its name and its folder's must agree."""
    folder = find_folder(text)
    profile = load_profile(folder, allow_missing_locks=allow_missing_locks)
    if not is_path(text) and profile.name != folder.name:
        raise UsageError(
            "a profile's folder bears another name than the profile",
            expected=profile.name,
            found=str(folder),
            remedy="rename the folder",
        )
    return profile


def is_path(text: str) -> bool:
    """Whether a PROFILE argument is the path of a folder."""
    return os.sep in text or not text.strip(".")
