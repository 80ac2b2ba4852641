"""The distribution's version: a fixed public part and a local part from the build environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, str]:
    """Answer scikit-build-core's question for `version`.

    `settings` names the public version and the environment variable with the local part, which may
    be absent or empty. Raises ValueError when the two do not make a PEP 440 version, or not in its
    normal form: the wheel's file name and its METADATA must agree.
    """
    variable = settings["environment"]
    local = os.environ.get(variable, "")
    text = f"{settings['version']}+{local}" if local else settings["version"]
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise ValueError(
            f"{variable} is no local version: expected a form such as cu128.sm75, found {local!r}"
        ) from error
    if str(version) != text:
        raise ValueError(
            f"{variable} is not in its normal form: expected {version.local!r}, found {local!r}"
        )
    return {"version": text}
