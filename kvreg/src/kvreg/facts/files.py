"""Facts in files: written whole, and read as untrusted."""

import json
import os
from pathlib import Path

from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.facts.model import HostFacts
from kvreg.facts.replay import FACTS_VARIABLE, replayed

_LARGEST = 16 << 20


def current(home: Path | None = None) -> HostFacts:
    """The facts to judge by: those of the file that stands for this host, else this host's.

    Raises what `load` raises.
    """
    from kvreg.facts.collection import collect  # what replays a file needs none of it

    path = replayed()
    return load(path) if path else collect(home=home)


def require_own_host(doing: str) -> None:
    """Raise `UsageError` when facts of another host stand for this one: what runs, runs here."""
    path = replayed()
    if path is not None:
        raise UsageError(
            f"{doing} happens on this host, which the facts of another cannot stand for",
            found=f"--facts {path}",
            remedy=f"leave --facts (or ${FACTS_VARIABLE}) out",
        )


def load(path: Path) -> HostFacts:
    """The facts that ``kvreg facts --output`` wrote, on whatever host.

    Raises `NotFoundError` when there is no such file and `ContractError` when it holds no facts.
    """
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= _LARGEST else b""
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"there is no file {path}", remedy="kvreg facts --output FILE"
        ) from None
    except IsADirectoryError:
        raise NotFoundError(f"{path} is a directory", expected="a file of facts") from None
    if size > _LARGEST:
        raise ContractError(
            f"{path} does not hold host facts",
            expected=f"at most {_LARGEST:,} bytes",
            found=f"{size:,}",
        )
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ContractError(
            f"{path} is not JSON", found=str(error)[:200], remedy="kvreg facts --output FILE"
        ) from None
    return HostFacts.from_dict(tree, str(path))


def save(facts: HostFacts, path: Path) -> None:
    """Write facts so that the file is whole or not there."""
    text = json.dumps(facts.to_dict(), indent=2, ensure_ascii=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
