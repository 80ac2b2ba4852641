"""Facts of a host, collected without importing torch: ``kvreg.facts()`` or ``kvreg facts``.

`HostFacts` is the value, `collect` makes it of this host, `load` of a file that another host wrote.
`current` is what commands judge by: with ``kvreg --facts FILE``, that file.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvreg.facts.collection import collect
    from kvreg.facts.files import current, load, require_own_host
    from kvreg.facts.model import HostFacts
    from kvreg.facts.replay import replayed

_NAMES = {
    "HostFacts": "kvreg.facts.model",
    "collect": "kvreg.facts.collection",
    "current": "kvreg.facts.files",
    "load": "kvreg.facts.files",
    "replayed": "kvreg.facts.replay",
    "require_own_host": "kvreg.facts.files",
}
__all__ = ["HostFacts", "collect", "current", "load", "replayed", "require_own_host"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_NAMES[name]), name)
