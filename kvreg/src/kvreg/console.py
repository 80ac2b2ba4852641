"""What the commands of all three tools share: errors, results and progress on a terminal.

Results go to standard output, everything else to standard error, so that ``--json`` can be piped.
"""

import dataclasses
import errno
import functools
import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvreg.errors import KvregError, StorageError

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result (or the error) as JSON."
)

_STORAGE_REMEDIES = {
    errno.ENOSPC: "free some disk space, or choose another directory, and try again",
    errno.EDQUOT: "free some of your disk quota, or choose another directory, and try again",
    errno.EACCES: "choose a directory that you may write to",
    errno.EPERM: "choose a directory that you may write to",
    errno.ENOTDIR: "choose a directory whose parents are directories",
    errno.EIO: "the disk may be failing: choose another one",
    errno.EROFS: "choose a directory on a writable file system",
}


def storage_error(error: OSError, doing: str = "could not use the file system") -> StorageError:
    """Turn an `OSError` into the `StorageError` that explains it."""
    where = f" {error.filename}" if error.filename else ""
    return StorageError(
        f"{doing}:{where} {error.strerror or error}".replace(":  ", ": "),
        remedy=_STORAGE_REMEDIES.get(error.errno or 0),
    )


def handled(command: Command) -> Command:
    """Make a click command report `KvregError` as text or JSON and exit with its code.

    The JSON form is chosen when the command (or a group above it) has a true ``as_json``
    parameter, see `json_option`. A full disk or a missing permission becomes a `StorageError`.
    """

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except KvregError as error:
            _report(error)
        except OSError as error:
            if error.errno not in _STORAGE_REMEDIES:
                raise
            _report(storage_error(error))

    return wrapper  # type: ignore[return-value]


def _report(error: KvregError) -> None:
    if _wants_json():
        click.echo(json.dumps({"error": error.to_dict()}, indent=2))
    else:
        click.echo(f"error: {error}", err=True)
    sys.exit(error.exit_code)


def _wants_json() -> bool:
    context = click.get_current_context(silent=True)
    while context is not None:
        if context.params.get("as_json"):
            return True
        context = context.parent
    return False


def emit(obj: Any, as_json: bool, text: Callable[[Any], str]) -> None:
    """Print a result: as indented JSON, or as `text(obj)`.

    An object with a ``to_dict`` method is converted with it, a dataclass field by field.
    """
    if not as_json:
        click.echo(text(obj))
        return
    if hasattr(obj, "to_dict"):
        obj = obj.to_dict()
    elif dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        obj = dataclasses.asdict(obj)
    click.echo(json.dumps(obj, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Tell the user something on standard error."""
    click.echo(text, err=True)


def progress(total: int | None, desc: str, unit: str = "B") -> Any:
    """A tqdm bar with rate and remaining time, in terminals and notebooks; silent elsewhere.

    Use as a context manager and call ``update(n)``. Unit ``"B"`` counts in KiB, MiB, …
    """
    notebook = in_notebook()
    if not (notebook or sys.stderr.isatty()):
        return SilentBar()
    kind = _bar(notebook)
    return kind(
        total=total,
        desc=desc,
        unit=unit,
        unit_scale=unit == "B",
        unit_divisor=1024 if unit == "B" else 1000,
        file=sys.stderr,
        leave=False,
        # A notebook's output has no width to ask for.
        dynamic_ncols=not notebook,
    )


class SilentBar:
    """What `progress` gives where nobody watches: tqdm is not imported for it."""

    disable = True
    n = 0

    def __enter__(self) -> "SilentBar":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, count: float = 1) -> None:
        """Show nothing."""

    def close(self) -> None:
        """There is nothing to take away."""


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook: IPython is only asked where it runs already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def _bar(notebook: bool) -> Any:
    """The class of bars: a widget where the notebook has widgets, else a line of text.

    As ``tqdm.auto`` chooses, without the event loop that importing that brings along.
    """
    if notebook and importlib.util.find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as widget

        return widget
    from tqdm import tqdm  # only when something long runs

    return tqdm


def human_bytes(count: int) -> str:
    """A byte count for people.

    >>> human_bytes(36976345)
    '35.3 MiB'
    >>> human_bytes(512)
    '512 B'
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
