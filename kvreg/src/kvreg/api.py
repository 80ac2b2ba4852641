"""What notebooks call: the functions of the package, such as ``kvreg.pull``.

They do what the commands of the same names do, print nothing on standard output, and raise
`kvreg.errors.KvregError`, whose text says what was wrong, what was expected, what was found and
what to do.
"""

import os
from pathlib import Path

from kvreg.acquisition import LockPolicy, acquire, request_of
from kvreg.console import note
from kvreg.console import progress as progress_bar
from kvreg.home import Home
from kvreg.pull import Pulled, Reporter
from kvreg.resolution import Resolution, Resolver, candidates, wanted_target
from kvreg.runtime import Runtime
from kvreg.settings import required_keys
from kvreg.sources import open_source

PathLike = str | os.PathLike[str]


def pull(
    profile: str,
    *,
    registry: str | None = None,
    home: PathLike | None = None,
    locked: bool = False,
    lock: PathLike | None = None,
    verify_key: str | None = None,
    any_host: bool = False,
    timeout: float = 30.0,
    progress: bool = True,
) -> Pulled:
    """Make the runtime of `profile` available here: resolved, fetched, verified and staged.

    `profile` is a name, ``NAME@sha256:<hex>``, ``sha256:<hex>`` or the path of a profile's folder.
    `registry` is ``oci-layout:PATH`` or ``HOST[:PORT]/REPOSITORY``; without it the sources of the
    environment, the settings and the attached inputs are tried in turn. `locked` takes exactly
    what the lock file says (`lock`, else ``kvreg.lock`` in the current directory); unlike the
    command, this writes a lock file only when `lock` names one. `any_host` stages also what this
    Python cannot load, for another machine. `timeout` is in seconds and of one read. `progress`
    shows bars on standard error, in terminals and notebooks.

    The runtime is complete and verified, or an error is raised and nothing is half-made. One that
    is here already and intact needs no source and is returned with ``staged=False``. Raises
    `ContractError`, `VerificationError` (1), `UsageError` (2), `NotFoundError` (3), `NetworkError`
    (4) or `StorageError` (5): the exit codes of the command.
    """
    policy = LockPolicy()
    if locked or lock is not None:
        policy = LockPolicy.chosen(_path(lock), locked=locked)
    return acquire(
        profile,
        candidates(registry),
        lambda reference: open_source(reference, timeout=timeout),
        Home.find(_path(home)),
        policy=policy,
        target=wanted_target(registry),
        reporter=Reporter(note=note, bar=progress_bar) if progress else Reporter(),
        keys=required_keys(verify_key),
        any_host=any_host,
    ).pulled


def resolve(
    profile: str,
    *,
    registry: str | None = None,
    locked: bool = False,
    lock: PathLike | None = None,
    timeout: float = 30.0,
) -> Resolution:
    """Which artifact `profile` means and where it would come from; nothing is fetched but it.

    The parameters and errors are those of `pull`; the result says which sources were tried.
    """
    policy = LockPolicy.chosen(_path(lock), locked=locked)
    resolver = Resolver(
        request_of(profile, policy),
        candidates(registry),
        lambda reference: open_source(reference, timeout=timeout),
    )
    return resolver.resolution()


def runtime(profile: str, *, home: PathLike | None = None) -> Runtime:
    """The staged runtime of `profile`: a name, ``NAME@sha256:<hex>``, a folder or a digest.

    Raises `NotFoundError` when it is not staged here, `VerificationError` when its records are
    damaged. Its files are not hashed: that is ``kvreg verify``.
    """
    from kvreg.activation import find_runtime

    return find_runtime(Home.find(_path(home)), profile)


def _path(value: PathLike | None) -> Path | None:
    return None if value is None else Path(value)
