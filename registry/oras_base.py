"""The parts of oras-py that the transport is built on; the one place that imports it.

oras-py imports jsonschema, and jsonschema, where its optional format checkers are installed,
compiles a grammar of internationalised URLs that takes seconds. The grammar is of no use here, so
while oras-py is imported its module is stood in for by a function that loads it when it is called:
nothing is lost to others who validate with it in the same process.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_GRAMMAR = "rfc3987_syntax"


@contextmanager
def _grammar_on_demand() -> Iterator[None]:
    if _GRAMMAR in sys.modules or importlib.util.find_spec(_GRAMMAR) is None:
        yield
        return

    def is_valid_syntax(*arguments: Any, **options: Any) -> Any:
        return importlib.import_module(_GRAMMAR).is_valid_syntax(*arguments, **options)

    stand_in = ModuleType(_GRAMMAR)
    stand_in.is_valid_syntax = is_valid_syntax  # type: ignore[attr-defined]
    sys.modules[_GRAMMAR] = stand_in
    try:
        yield
    finally:
        del sys.modules[_GRAMMAR]


with _grammar_on_demand():
    from oras.auth.token import TokenAuth
    from oras.provider import Registry

request_once = Registry.do_request.__wrapped__  # type: ignore[attr-defined]
"""One request with an answered challenge: oras-py's method without the retry loop around it."""

__all__ = ["Registry", "TokenAuth", "request_once"]
