"""A static package index (PEP 503 and 691) over the wheels that a store has published.

Plain files that any web server can serve, or that pip reads from a directory: a page a project as
HTML and as JSON, each wheel under its sha256, and its metadata beside it (PEP 658), so that a
resolver need not fetch hundreds of megabytes to read a list of requirements.
"""

import html
import json
import re
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from packaging.metadata import parse_email
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from kvreg.errors import ContractError, StorageError, VerificationError
from kvreg.model.digest import parse_digest, sha256_bytes, sha256_file
from kvreg.model.oci import MAX_MANIFEST_BYTES, MEDIA_TYPE_WHEEL, Descriptor
from kvreg.model.tag import is_fixed_tag
from registry.files import write_atomically
from registry.inventory import Item, inventory
from registry.store import Store
from registry.stream import Progress
from registry.text import is_plain_name

_API_VERSION = "1.1"
_GENERATOR = "kvreg registry"
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_DATE = re.compile(r"\d{8}\Z")


@dataclass(frozen=True)
class Wheel:
    """A published wheel, and the artifact that it was taken from."""

    project: str
    version: str
    descriptor: Descriptor
    item: Item

    @property
    def filename(self) -> str:
        """The file's name, checked to be a wheel's."""
        return self.descriptor.title or ""

    @property
    def sha256(self) -> str:
        """64 hex digits."""
        return parse_digest(self.descriptor.digest)


@dataclass(frozen=True)
class SimpleIndex:
    """An index that was written; `superseded` are wheels that a newer one of their name hides."""

    folder: Path
    wheels: tuple[Wheel, ...]
    superseded: tuple[Wheel, ...]

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            "folder": str(self.folder),
            "indexUrlPath": "simple/",
            "wheels": [_as_dict(wheel) for wheel in self.wheels],
            "superseded": [_as_dict(wheel) for wheel in self.superseded],
        }


@dataclass(frozen=True)
class _Page:
    """A wheel as an index shows it."""

    wheel: Wheel
    metadata_sha256: str
    requires_python: str | None

    @property
    def url(self) -> str:
        """Relative to the project's page."""
        return f"../../files/{self.wheel.sha256}/{quote(self.wheel.filename)}"


def write_index(store: Store, folder: Path, progress: Progress | None = None) -> SimpleIndex:
    """Write or renew the index in `folder` over all tagged runtimes of `store`.

    Two builds of one version are two wheels of one name, which an index cannot hold: the one that
    the profile's moving tag names is taken, else the one with the latest dated tag. `ContractError`
    when neither decides, `StorageError` when `folder` holds something else.
    """
    _refuse_foreign(folder)
    chosen, superseded = choose(inventory(store))
    top = folder / "simple"
    top.mkdir(parents=True, exist_ok=True)
    if not (top / "index.json").exists():
        # First of all: it says that what is in the folder is ours, should this be killed.
        write_atomically(top / "index.json", [_json({"projects": []})])
    pages: defaultdict[str, list[_Page]] = defaultdict(list)
    for wheel in chosen:
        pages[wheel.project].append(_publish(store, wheel, folder, progress))
    for project, files in pages.items():
        where = top / project
        where.mkdir(exist_ok=True)
        write_atomically(where / "index.html", [_project_html(project, files).encode()])
        write_atomically(where / "index.json", [_json(_project_json(project, files))])
    write_atomically(top / "index.html", [_top_html(sorted(pages)).encode()])
    listed: dict[str, object] = {"projects": [{"name": name} for name in sorted(pages)]}
    write_atomically(top / "index.json", [_json(listed)])
    _prune(folder, set(pages), {wheel.sha256 for wheel in chosen})
    return SimpleIndex(folder, chosen, superseded)


def choose(items: Iterable[Item]) -> tuple[tuple[Wheel, ...], tuple[Wheel, ...]]:
    """The wheels to list and those that they hide, by file name. See `write_index`."""
    by_name: defaultdict[str, list[Wheel]] = defaultdict(list)
    for item in items:
        if item.is_runtime and item.tags:
            for layer in item.content.layers:
                if layer.media_type == MEDIA_TYPE_WHEEL:
                    wheel = _wheel(layer, item)
                    by_name[wheel.filename].append(wheel)
    chosen, superseded = [], []
    for name in sorted(by_name):
        found = sorted(by_name[name], key=_rank, reverse=True)
        best = found[0]
        others = [wheel for wheel in found if wheel.sha256 != best.sha256]
        if others and _rank(others[0]) == _rank(best):
            raise ContractError(
                f"two artifacts have different wheels called {name}, and no tag says which counts",
                found=f"{best.item.digest} and {others[0].item.digest}",
                remedy="give the one that counts the profile's moving tag: registry tag REF NAME",
            )
        chosen.append(best)
        superseded += others
    return tuple(chosen), tuple(superseded)


def _rank(wheel: Wheel) -> tuple[bool, str]:
    """Whether the moving tag names the artifact, and its latest date."""
    profile = wheel.item.profile_name
    dates = [_DATE.findall(tag)[0] for tag in wheel.item.tags if is_fixed_tag(tag)]
    return profile in wheel.item.tags, max(dates, default="")


def _wheel(layer: Descriptor, item: Item) -> Wheel:
    try:
        if not is_plain_name(layer.title or ""):
            raise InvalidWheelFilename(repr(layer.title))
        project, version, _, _ = parse_wheel_filename(layer.title or "")
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise VerificationError(
            f"a wheel of {item.digest} has a name that is not a wheel's", found=str(error)[:200]
        ) from None
    return Wheel(project, str(version), layer, item)


def _publish(store: Store, wheel: Wheel, folder: Path, progress: Progress | None) -> _Page:
    """Put a wheel and its metadata below ``files``."""
    where = folder / "files" / wheel.sha256
    where.mkdir(parents=True, exist_ok=True)
    path = where / wheel.filename
    if not path.is_file() or sha256_file(path) != wheel.descriptor.digest:
        store.fetch_blob(wheel.descriptor, path, progress)
    metadata = _metadata(path)
    write_atomically(where / f"{wheel.filename}.metadata", [metadata])
    requires = parse_email(metadata)[0].get("requires_python")
    try:
        SpecifierSet(requires or "")
    except InvalidSpecifier:
        requires = None
    return _Page(wheel, parse_digest(sha256_bytes(metadata)), requires)


def _metadata(path: Path) -> bytes:
    """The METADATA of a wheel, its exact bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = [item for item in archive.infolist() if _METADATA.fullmatch(item.filename)]
            if len(found) == 1 and found[0].file_size <= MAX_MANIFEST_BYTES:
                return archive.read(found[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise VerificationError(f"{path.name} cannot be read as a wheel: {error}") from None
    raise VerificationError(f"{path.name} is no wheel: it needs one METADATA")


def _project_html(project: str, pages: Iterable[_Page]) -> str:
    links = []
    for page in pages:
        digest = f"sha256={page.metadata_sha256}"
        # Both names of the attribute: pip before 23.2 knows the older one alone.
        extra = f' data-core-metadata="{digest}" data-dist-info-metadata="{digest}"'
        if page.requires_python:
            extra += f' data-requires-python="{html.escape(page.requires_python)}"'
        url = f"{page.url}#sha256={page.wheel.sha256}"
        links.append(f'<a href="{html.escape(url)}"{extra}>{html.escape(page.wheel.filename)}</a>')
    return _html(project, links)


def _top_html(projects: Iterable[str]) -> str:
    return _html("Index", [f'<a href="{name}/">{name}</a>' for name in projects])


def _html(title: str, links: Iterable[str]) -> str:
    body = "".join(f"    {link}<br>\n" for link in links)
    return (
        "<!DOCTYPE html>\n<html>\n  <head>\n"
        f'    <meta name="pypi:repository-version" content="{_API_VERSION}">\n'
        f'    <meta name="generator" content="{_GENERATOR}">\n'
        f"    <title>{html.escape(title)}</title>\n  </head>\n  <body>\n{body}  </body>\n</html>\n"
    )


def _project_json(project: str, pages: Iterable[_Page]) -> Mapping[str, object]:
    files = [
        {
            "filename": page.wheel.filename,
            "url": page.url,
            "hashes": {"sha256": page.wheel.sha256},
            "size": page.wheel.descriptor.size,
            "core-metadata": {"sha256": page.metadata_sha256},
            **({"requires-python": page.requires_python} if page.requires_python else {}),
        }
        for page in pages
    ]
    versions = sorted({page.wheel.version for page in pages}, key=Version)
    return {"name": project, "versions": versions, "files": files}


def _json(value: Mapping[str, object]) -> bytes:
    meta = {"api-version": _API_VERSION, "_generator": _GENERATOR}
    return json.dumps({"meta": meta, **value}, indent=1).encode() + b"\n"


def _refuse_foreign(folder: Path) -> None:
    """What is not an index of ours is never written into: renewing one removes files."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        meta = json.loads((folder / "simple" / "index.json").read_bytes())["meta"]
        if meta["_generator"] == _GENERATOR:
            return
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise StorageError(
        f"{folder} is neither empty nor an index that this command wrote",
        remedy="choose another directory",
    )


def _prune(folder: Path, projects: set[str], hashes: set[str]) -> None:
    """Remove what the pages no longer lead to."""
    for parent, kept in ((folder / "simple", projects), (folder / "files", hashes)):
        if not parent.is_dir():
            continue
        for path in parent.iterdir():
            if path.is_dir() and path.name not in kept:
                shutil.rmtree(path)


def _as_dict(wheel: Wheel) -> dict[str, object]:
    return {
        "project": wheel.project,
        "version": wheel.version,
        "filename": wheel.filename,
        "sha256": wheel.sha256,
        "size": wheel.descriptor.size,
        "artifact": wheel.item.digest,
    }
