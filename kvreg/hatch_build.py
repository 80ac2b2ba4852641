"""Build hook: the profiles of the checkout go into the client's distributions.

In a checkout they lie beside this project's folder; in a source distribution inside it, because
this hook put them there. An editable install has no copy: the client finds the checkout itself.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGED = "kvreg/_profiles"


class ProfilesHook(BuildHookInterface):
    """Includes every file of every folder that has a ``profile.toml``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        source = next(
            (path for path in (root / "profiles", root.parent / "profiles") if path.is_dir()), None
        )
        if source is None:
            raise FileNotFoundError(
                f"no profiles to bundle: neither {root / 'profiles'} nor {root.parent / 'profiles'}"
            )
        target = PACKAGED if self.target_name == "wheel" else "profiles"
        for profile in sorted(source.glob("*/profile.toml")):
            for path in sorted(profile.parent.iterdir()):
                if path.is_file() and not path.name.startswith("."):
                    name = f"{target}/{profile.parent.name}/{path.name}"
                    build_data["force_include"][str(path)] = name
