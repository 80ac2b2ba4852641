"""The interpreter that runs this program, which is the one that a runtime will be used with."""

import platform
import sys
import sysconfig

from kvreg.facts.model import Python


def python() -> Python:
    """Version, wheel tag and place of the running interpreter."""
    return Python(
        version=platform.python_version(),
        tag=_tag(),
        implementation=sys.implementation.name,
        executable=sys.executable or None,
        prefix=sys.prefix,
    )


def _tag() -> str | None:
    """The tag that wheels for this interpreter alone bear: ``cp312``, ``cp313t`` free-threaded."""
    if sys.implementation.name != "cpython":
        return None
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"cp{sys.version_info.major}{sys.version_info.minor}{threads}"
