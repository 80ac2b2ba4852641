"""The parts of oras-py that the transport is built on; the one place that imports it.

oras-py imports jsonschema, for checks of its own that are not used here, and jsonschema is slow to
import: where its optional format checkers are installed it even compiles a grammar for seconds. So
while oras-py is imported, a module that loads the real one when it is used stands in for it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_SLOW = "jsonschema"


class _OnDemand(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _on_demand() -> Iterator[None]:
    if _SLOW in sys.modules or importlib.util.find_spec(_SLOW) is None:
        yield
        return
    sys.modules[_SLOW] = _OnDemand(_SLOW)
    try:
        yield
    finally:
        del sys.modules[_SLOW]


with _on_demand():
    from oras.auth.token import TokenAuth
    from oras.provider import Registry

request_once = Registry.do_request.__wrapped__  # type: ignore[attr-defined]
"""One request with an answered challenge: oras-py's method without the retry loop around it."""

__all__ = ["Registry", "TokenAuth", "request_once"]
