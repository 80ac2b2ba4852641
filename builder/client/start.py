"""What ``kvreg.pyz`` runs first: it unpacks itself once, finds what it needs, and starts kvreg.

Unpacked it lies in ``$KVREG_HOME/client/<digest>``, so nowhere that the host's Python looks, and
starts as fast as an installed package. Packages that the host has are used; those that it lacks, or
has in too old a version, come with the file.
"""

import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

NEEDED: dict = {}
"""import name -> (distribution, least version), as the client's pyproject.toml asks for them; this
and the digest of the content are filled in when the file is made."""
DIGEST = ""


def main() -> None:
    """Start kvreg in the place of the archive, from which nothing is imported any more."""
    if sys.version_info < (3, 10):  # noqa: UP036  (the host's Python is not ours to choose)
        sys.exit("kvreg.pyz needs Python 3.10 or later; this is " + sys.version.split()[0])
    archive = Path(__file__).parent
    folder = unpacked(archive)
    sys.path[:] = [entry for entry in sys.path if Path(entry) != archive]
    first, last = [str(folder / "client")], []
    for name, (distribution, least) in NEEDED.items():
        place = folder / "vendored" / distribution
        (last if host_has(name, distribution, least) else first).append(str(place))
    # The host's packages come before ours, except those that are too old or not there.
    sys.path[:] = [*first, *sys.path, *last]
    from kvreg.cli import main

    main(prog_name="kvreg")


def unpacked(archive: Path) -> Path:
    """The folder with the archive's content: made by one rename, or only for this run where the
    home cannot be written to."""
    home = os.environ.get("KVREG_HOME") or "~/.local/share/kvreg"
    final = Path(home).expanduser().absolute() / "client" / DIGEST
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=final.parent))
    except OSError:
        import atexit

        fresh = final = Path(tempfile.mkdtemp(prefix="kvreg-"))
        atexit.register(shutil.rmtree, fresh, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as content:
            content.extractall(fresh)
        if fresh != final:
            fresh.chmod(0o755)
            fresh.rename(final)
    except (OSError, zipfile.BadZipFile) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        # Another process may have been first: its folder is as good.
        if not final.is_dir():
            sys.exit(f"error: kvreg.pyz could not unpack itself: {error}")
    return final


def host_has(name: str, distribution: str, least: str) -> bool:
    """Whether an import would find the host's package, in a version that will do."""
    for entry in map(Path, sys.path):
        if (entry / name / "__init__.py").is_file():
            start = distribution.replace("-", "_") + "-"
            for item in entry.iterdir():
                found = item.name.lower()
                if found.startswith(start) and item.suffix in (".dist-info", ".egg-info"):
                    return numbers(found[len(start) :]) >= numbers(least)
            return False
    return False


def numbers(version: str) -> list:
    """The release of a version as numbers.

    >>> numbers("8.1.7.dist-info"), numbers("25.0rc1")
    ([8, 1, 7], [25, 0])
    """
    found = []
    for part in version.partition("-")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if digits:
            found.append(int(digits))
        if digits != part:
            break
    return found


if __name__ == "__main__":
    main()
