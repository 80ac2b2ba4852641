"""What an audited wheel's device code runs on, as the artifact's annotation says it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from builder.audit.identity import module_member
from kvreg.model.profile import Profile

_CODE = re.compile(r"(sm|compute)_(\d+)(\d[af]?)")


def compute_capabilities(audit: Mapping[str, Any], profile: Profile) -> tuple[str, ...]:
    """The capabilities that every CUDA module which the profile imports has code for.

    `audit` is ``audit.json``. Machine code as ``7.5`` or ``9.0a``, intermediate code as
    ``8.0+PTX``; empty when no module has device code.
    """
    modules = {module["path"]: module for module in audit["modules"]}
    members = [module_member(name, set(modules)) for name in profile.runtime.modules]
    named = [modules[path] for path in members if path is not None]
    coded = [module for module in named if module["sass"] or module["ptx"]]
    if not coded:
        return ()
    common = set.intersection(*({*module["sass"], *module["ptx"]} for module in coded))
    return _names(sorted(common, key=_order))


def _names(targets: Sequence[str]) -> tuple[str, ...]:
    """
    >>> _names(["sm_75", "sm_120a", "compute_80"])
    ('7.5', '12.0a', '8.0+PTX')
    """
    matches = [match for target in targets if (match := _CODE.fullmatch(target))]
    return tuple(f"{m[2]}.{m[3]}" + "+PTX" * (m[1] == "compute") for m in matches)


def _order(target: str) -> tuple[bool, int, str]:
    digits = re.sub(r"\D", "", target)
    return target.startswith("compute"), int(digits or 0), target
