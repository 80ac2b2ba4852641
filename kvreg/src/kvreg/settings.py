"""The client's own settings: where artifacts are, and which keys they must be signed by.

In order of precedence: an option of the command, ``$KVREG_REGISTRY`` and ``$KVREG_VERIFY_KEY``, and
the settings file (``$KVREG_CONFIG``, else ``kvreg/config.toml`` in ``$XDG_CONFIG_HOME`` or
``~/.config``)::

    registry = ["registry.example/team/runtimes", "oci-layout:/mnt/share/runtimes"]   # or one text
    verify-key = "team.pub"       # a path, relative to this file, or the PEM text itself

A key that is set is never passed over: where it cannot be read, nothing is pulled or run.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvreg import toml
from kvreg.errors import UsageError, VerificationError
from kvreg.reference import LayoutReference, Reference, parse_reference
from kvreg.runtime import Runtime

if TYPE_CHECKING:
    from kvreg.publickey import PublicKey

KEY_VARIABLE = "KVREG_VERIFY_KEY"
FILE_VARIABLE = "KVREG_CONFIG"
REGISTRY_VARIABLE = "KVREG_REGISTRY"


@dataclass(frozen=True)
class Settings:
    """The settings file, checked. `path` is where it is or would be."""

    path: Path
    registries: tuple[Reference, ...] = ()
    verify_key: str | None = None


def required_keys(chosen: str | None = None) -> tuple["PublicKey", ...]:
    """The keys of which one must have signed; none when nothing is required.

    `chosen` is what a command's option says. Raises `UsageError` and `NotFoundError`.
    """
    if chosen:
        return _keys(chosen, Path(), "--verify-key")
    if named := os.environ.get(KEY_VARIABLE):
        return _keys(named, Path(), f"${KEY_VARIABLE}")
    settings = read_settings()
    if settings.verify_key is None:
        return ()
    return _keys(settings.verify_key, settings.path.parent, str(settings.path))


def require_trusted(runtime: Runtime, keys: tuple["PublicKey", ...]) -> None:
    """`VerificationError` unless one of `keys` signed what is staged; no keys ask for nothing."""
    if not keys or is_trusted(runtime, keys):
        return
    raise VerificationError(
        f"the staged runtime of {runtime.profile_name} is not known to be signed by the key that"
        " is required",
        expected=" or ".join(key.fingerprint for key in keys),
        found=f"verified with {runtime.signature.key}"
        if runtime.signature
        else "staged without a check of its signature",
        remedy=f"kvreg pull {runtime.profile_name} --registry REF (it checks the signature, and"
        " fetches again only what differs)",
    )


def is_trusted(runtime: Runtime, keys: tuple["PublicKey", ...]) -> bool:
    """Whether the runtime was found to be signed by one of `keys` when it was pulled."""
    signature = runtime.signature
    return signature is not None and signature.key in {key.fingerprint for key in keys}


def settings_path() -> Path:
    """Where the settings file is, if there is one."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "kvreg" / "config.toml"


def read_settings() -> Settings:
    """Read the settings file; an absent one says nothing. Raises `UsageError`."""
    path = settings_path()
    try:
        table = toml.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if os.environ.get(FILE_VARIABLE):
            raise UsageError(
                f"${FILE_VARIABLE} names a file that is not there", found=str(path)
            ) from None
        return Settings(path)
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a TOML file", found=str(error)) from None
    registries = table.pop("registry", [])
    registries = [registries] if isinstance(registries, str) else registries
    key = table.pop("verify-key", None)
    # A key that was misspelt would otherwise be a check that nobody makes.
    if table or not _is_texts(registries) or not (key is None or _is_texts([key])):
        raise UsageError(
            f"{path} has settings that are not known",
            expected="registry, as text or a list of texts, and verify-key, as text",
            found=", ".join(sorted(table)) or "a value of another kind",
        )
    return Settings(path, tuple(_reference(text, path.parent) for text in registries), key)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and text for text in value)


def _reference(text: str, folder: Path) -> Reference:
    reference = parse_reference(text)
    if isinstance(reference, LayoutReference):
        return replace(reference, path=folder / reference.path.expanduser())
    return reference


def _keys(text: str, folder: Path, where: str) -> tuple["PublicKey", ...]:
    from kvreg.publickey import parse_public_keys, read_public_keys

    if "-----BEGIN" in text:
        return parse_public_keys(text, where)
    return read_public_keys(folder / Path(text).expanduser())
