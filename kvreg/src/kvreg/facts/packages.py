"""The installed packages by name and version.

Names and versions stand in the names of the ``.dist-info`` folders, so that no METADATA is read: a
notebook image has hundreds of packages. Of two with one name the first on the path counts, as for
an import.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")


def packages(path: Sequence[str] | None = None) -> dict[str, str]:
    """Versions by normalised name (PEP 503) of what lies on `path`, by default ``sys.path``."""
    found: dict[str, str] = {}
    for entry in sys.path if path is None else path:
        try:
            names = sorted(item.name for item in Path(entry or ".").iterdir())
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                known = _named(Path(entry or ".") / name)
                if known:
                    found.setdefault(*known)
    return dict(sorted(found.items()))


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 writes it.

    >>> normalised("Nvidia_NCCL.cu12")
    'nvidia-nccl-cu12'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _named(info: Path) -> tuple[str, str] | None:
    match = _INFO.fullmatch(info.name)
    if match:
        return normalised(match["name"]), match["version"]
    # An editable install of the old kind has its version inside alone.
    try:
        file = info / "PKG-INFO" if info.is_dir() else info
        text = file.read_text("utf-8", "replace").partition("\n\n")[0]
    except OSError:
        return None
    headers = dict(re.findall(r"^(Name|Version): *(\S+) *$", text, re.MULTILINE))
    if len(headers) == 2:
        return normalised(headers["Name"]), headers["Version"]
    return None
