"""The client's own settings: which keys an artifact must be signed by.

In order of precedence: an option of the command, ``$KVREG_VERIFY_KEY``, and ``verify-key`` in the
settings file (``$KVREG_CONFIG``, else ``kvreg/config.toml`` in ``$XDG_CONFIG_HOME`` or
``~/.config``)::

    verify-key = "team.pub"       # a path, relative to this file, or the PEM text itself

A key that is set is never passed over: where it cannot be read, nothing is pulled or run.
"""

import os
from pathlib import Path

from kvreg import toml
from kvreg.errors import UsageError, VerificationError
from kvreg.publickey import PublicKey, parse_public_keys, read_public_keys
from kvreg.runtime import Runtime

KEY_VARIABLE = "KVREG_VERIFY_KEY"
FILE_VARIABLE = "KVREG_CONFIG"
_KEYS = {"verify-key"}


def required_keys(chosen: str | None = None) -> tuple[PublicKey, ...]:
    """The keys of which one must have signed; none when nothing is required.

    `chosen` is what a command's option says. Raises `UsageError` and `NotFoundError`.
    """
    if chosen:
        return _keys(chosen, Path(), "--verify-key")
    if named := os.environ.get(KEY_VARIABLE):
        return _keys(named, Path(), f"${KEY_VARIABLE}")
    path = settings_path()
    named = _read(path).get("verify-key")
    return _keys(named, path.parent, str(path)) if named else ()


def require_trusted(runtime: Runtime, keys: tuple[PublicKey, ...]) -> None:
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


def is_trusted(runtime: Runtime, keys: tuple[PublicKey, ...]) -> bool:
    """Whether the runtime was found to be signed by one of `keys` when it was pulled."""
    signature = runtime.signature
    return signature is not None and signature.key in {key.fingerprint for key in keys}


def settings_path() -> Path:
    """Where the settings file is, if there is one."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "kvreg" / "config.toml"


def _read(path: Path) -> dict[str, str]:
    try:
        table = toml.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if os.environ.get(FILE_VARIABLE):
            raise UsageError(
                f"${FILE_VARIABLE} names a file that is not there", found=str(path)
            ) from None
        return {}
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a TOML file", found=str(error)) from None
    unknown = sorted(table.keys() - _KEYS)
    if unknown or not all(isinstance(value, str) and value for value in table.values()):
        # A key that was misspelt would otherwise be a check that nobody makes.
        raise UsageError(
            f"{path} has settings that are not known",
            expected=", ".join(sorted(_KEYS)) + ", as text",
            found=", ".join(unknown or sorted(table)),
        )
    return table


def _keys(text: str, folder: Path, where: str) -> tuple[PublicKey, ...]:
    if "-----BEGIN" in text:
        return parse_public_keys(text, where)
    return read_public_keys(folder / Path(text).expanduser())
