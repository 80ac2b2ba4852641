"""Errors of building; the rest are kvreg's."""

from __future__ import annotations

from kvreg.errors import KvregError


class BuildError(KvregError):
    """The build itself failed: sources that do not compile, a script that stopped."""

    exit_code = 1
