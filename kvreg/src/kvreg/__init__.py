"""Verified, side-by-side vLLM runtimes for managed GPU notebooks: the client.

Importing this package imports nothing else, so that ``import kvreg`` costs next to nothing. What
a notebook calls is imported when it is used first:

===================  ================================================================
``kvreg.pull``       make a profile's runtime available here, verified: `kvreg.api.pull`
``kvreg.runtime``    a runtime that is staged here: `kvreg.api.runtime`
``kvreg.resolve``    where a runtime would come from: `kvreg.api.resolve`
``kvreg.facts``      what is known of this host: `kvreg.facts.collect`
``kvreg.activate``   import from a staged runtime, here and in children: `kvreg.kernel.activate`
``kvreg.deactivate`` undo that: `kvreg.kernel.deactivate`
``kvreg.LLM``        upstream's ``vllm.LLM`` on a checked host: `kvreg.llm.LLM`
``kvreg.serve``      upstream's server, ready, for as long as a block lasts: `kvreg.serve.serve`
===================  ================================================================

>>> import kvreg
>>> callable(kvreg.pull)
True
"""

import sys

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kvreg.api import pull as pull
    from kvreg.api import resolve as resolve
    from kvreg.api import runtime as runtime
    from kvreg.facts.collection import collect as facts  # noqa: F401
    from kvreg.kernel import activate as activate
    from kvreg.kernel import deactivate as deactivate
    from kvreg.llm import LLM as LLM
    from kvreg.serve import serve as serve

_API = {
    "facts": ("kvreg.facts.collection", "collect"),
    "pull": ("kvreg.api", "pull"),
    "resolve": ("kvreg.api", "resolve"),
    "runtime": ("kvreg.api", "runtime"),
    "activate": ("kvreg.kernel", "activate"),
    "deactivate": ("kvreg.kernel", "deactivate"),
    "LLM": ("kvreg.llm", "LLM"),
    "serve": ("kvreg.serve", "serve"),
}
"""What is called on the package: name -> (module, attribute). A row for each function."""

_Module = type(sys)


def __getattr__(name: str) -> object:
    if name not in _API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = _function(name)
    # Where a submodule bears the name, it is that: `kvreg.facts.HostFacts` works from the start.
    return globals().get(name, function)


def _function(name: str) -> "Callable[..., object]":
    import importlib

    module, attribute = _API[name]
    return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})


class _CallableModule(_Module):  # type: ignore[valid-type, misc]
    """A submodule that bears the name of a function, such as `kvreg.pull`: calls that."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        return _function(self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Package(_Module):  # type: ignore[valid-type, misc]
    """This package: the import system binds submodules to it, also over names of functions."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _API and isinstance(value, _Module):
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
