"""The parts of oras-py that the transport is built on; the one place that imports it.

oras-py imports jsonschema, for checks of its own that are not used here, and requests imports
charset_normalizer, to guess encodings. Both are slow to import; where jsonschema's optional format
checkers are installed it even compiles a grammar for seconds. So while they are imported, a module
that loads the real one when it is used stands in for it. For that, requests is imported here too.
"""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_SLOW = ("jsonschema", "charset_normalizer")


class _OnDemand(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _on_demand() -> Iterator[None]:
    absent = [name for name in _SLOW if name not in sys.modules and importlib.util.find_spec(name)]
    sys.modules.update((name, _OnDemand(name)) for name in absent)
    try:
        with warnings.catch_warnings():
            # requests asks a detector for its version, and warns when it does not tell.
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in absent:
            del sys.modules[name]


with _on_demand():
    import requests
    from oras.auth.token import TokenAuth
    from oras.provider import Registry

request_once = Registry.do_request.__wrapped__  # type: ignore[attr-defined]
"""One request with an answered challenge: oras-py's method without the retry loop around it."""

__all__ = ["Registry", "TokenAuth", "request_once", "requests"]
