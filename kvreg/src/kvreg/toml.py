"""TOML for every Python that the client runs on: ``tomllib`` came with 3.11.

Before that it is ``tomli``, else the copy that pip brings along.
"""

from typing import Any

from kvreg.errors import NotFoundError

try:
    from tomllib import TOMLDecodeError, loads
except ModuleNotFoundError:  # CPython 3.10
    try:
        from tomli import TOMLDecodeError, loads  # type: ignore[import-not-found, no-redef]
    except ModuleNotFoundError:
        try:
            from pip._vendor.tomli import TOMLDecodeError, loads  # type: ignore[assignment]
        except ModuleNotFoundError:
            TOMLDecodeError = ValueError  # type: ignore[assignment, misc]

            def loads(text: str, /) -> dict[str, Any]:  # type: ignore[misc]
                """Nothing here reads TOML."""
                raise NotFoundError(
                    "this Python has nothing that reads TOML",
                    expected="Python 3.11 or later, or the package tomli",
                    remedy="pip install tomli",
                )


__all__ = ["TOMLDecodeError", "loads"]
