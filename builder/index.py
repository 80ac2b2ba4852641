"""The configured package index: which files a release has, and bytes of them.

pypi-simple is the client (it knows the index protocol in HTML and JSON and the default index);
where pip or uv are configured with another index, that one is asked.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cached_property

import requests
import urllib3
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from pypi_simple import PYPI_SIMPLE_ENDPOINT, NoSuchProjectError, PyPISimple
from requests.adapters import HTTPAdapter

from kvreg.errors import NetworkError, NotFoundError

TIMEOUT = (20, 120)  # seconds to connect, and between two reads
RETRIES = urllib3.Retry(
    total=6, backoff_factor=0.5, status_forcelist=(408, 429, 500, 502, 503, 504), backoff_max=30
)
RANGE_BLOCK = 512 * 1024


@dataclass(frozen=True)
class IndexFile:
    """A file that the index lists. `url` says where the bytes are and never goes into a lock.

    `yanked` is the reason why it was withdrawn, None when it was not; `uploaded` is when it came
    there, in seconds since 1970, where the index says so.
    """

    project: str
    filename: str
    url: str
    sha256: str
    size: int | None
    has_metadata: bool = False
    yanked: str | None = None
    uploaded: int | None = None


def index_url() -> str:
    """The index that pip or uv are configured with; without configuration pip's own default."""
    for variable in ("KVREG_INDEX_URL", "PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if os.environ.get(variable):
            return os.environ[variable]
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    return configured.stdout.strip() or PYPI_SIMPLE_ENDPOINT


def target_tags(python: tuple[int, int] = (3, 12), glibc: tuple[int, int] = (2, 36)) -> list[Tag]:
    """Wheel tags that the build container accepts, best first (x86-64 Linux)."""
    platforms = [f"manylinux_{glibc[0]}_{minor}_x86_64" for minor in range(glibc[1], 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    platforms += ["linux_x86_64"]
    interpreter = f"cp{python[0]}{python[1]}"
    tags = list(cpython_tags(python, platforms=platforms))
    return tags + list(compatible_tags(python, interpreter=interpreter, platforms=platforms))


class PackageIndex:
    """One index, one HTTP session."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self._pages: dict[str, list[IndexFile]] = {}

    @property
    def url(self) -> str:
        """Where it is; never for a lock."""
        return self._url or index_url()

    @cached_property
    def session(self) -> requests.Session:
        session = requests.Session()
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(max_retries=RETRIES, pool_maxsize=16))
        return session

    @cached_property
    def _client(self) -> PyPISimple:
        return PyPISimple(self.url, session=self.session)

    def files(self, project: str) -> list[IndexFile]:
        """All files of a project. Raises NotFoundError, NetworkError."""
        if project not in self._pages:
            try:
                page = self._client.get_project_page(project, timeout=TIMEOUT)
            except NoSuchProjectError as error:
                raise NotFoundError(
                    f"the package index has no project {project}",
                    remedy="check the name, and which index pip is configured with",
                ) from error
            except requests.RequestException as error:
                raise NetworkError(
                    f"the package index did not answer for {project}",
                    found=type(error).__name__,
                    remedy="check the network and pip's configuration, then run the command again",
                ) from error
            self._pages[project] = [
                IndexFile(
                    project,
                    p.filename,
                    p.url,
                    p.digests["sha256"],
                    p.size,
                    bool(p.has_metadata),
                    (p.yanked_reason or "no reason is given") if p.is_yanked else None,
                    int(p.upload_time.timestamp()) if p.upload_time else None,
                )
                for p in page.packages
                if "sha256" in p.digests
            ]
        return self._pages[project]

    def find(self, project: str, filename: str, sha256: str) -> IndexFile:
        """The listed file with this name and digest.

        Raises NotFoundError: also when the index has the name with other bytes, and says so.
        """
        same_name = [f for f in self.files(project) if f.filename == filename]
        for file in same_name:
            if file.sha256 == sha256:
                return file
        raise NotFoundError(
            f"the package index does not have {filename} as locked",
            expected=f"sha256:{sha256}",
            found=f"sha256:{same_name[0].sha256}" if same_name else "no file of that name",
            remedy="a release must not change after it was locked: find out why first",
        )

    def metadata(self, file: IndexFile) -> bytes:
        """METADATA of a wheel, which the index may serve beside it (PEP 658)."""
        if file.has_metadata:
            url = file.url.partition("#")[0]
            response = self.session.get(f"{url}.metadata", timeout=TIMEOUT)
            if response.status_code == 200:
                return response.content
        with self.open_zip(file) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            return archive.read(name)

    def best_wheel(self, project: str, version: str, tags: list[Tag]) -> IndexFile:
        """The wheel pip would take for these tags: best tag, then highest build number."""
        rank = {tag: position for position, tag in enumerate(tags)}
        found: list[tuple[int, tuple[int, str] | tuple[()], IndexFile]] = []
        for file in self.files(project):
            if not file.filename.endswith(".whl"):
                continue
            try:
                _, wheel_version, build, wheel_tags = parse_wheel_filename(file.filename)
            except InvalidWheelFilename:
                continue  # old releases of some projects have such; no installer takes them
            positions = [rank[tag] for tag in wheel_tags if tag in rank]
            if str(wheel_version) == version and positions:
                found.append((-min(positions), build, file))
        if not found:
            raise NotFoundError(
                f"the package index has no wheel of {project} {version} that can be used",
                expected=f"a wheel for {tags[0]} or what goes with it",
            )
        return max(found, key=lambda item: item[:2])[2]

    def size(self, file: IndexFile) -> int:
        """Size in bytes: as the index states it, else as the server does."""
        if file.size is not None:
            return file.size
        response = self.session.head(file.url, timeout=TIMEOUT, allow_redirects=True)
        return int(response.headers["Content-Length"])

    def open_zip(self, file: IndexFile) -> zipfile.ZipFile:
        """The wheel as a ZipFile whose bytes come by HTTP range."""
        return zipfile.ZipFile(io.BufferedReader(_RangeReader(self, file), RANGE_BLOCK))


class _RangeReader(io.RawIOBase):
    """A seekable file over HTTP ranges; io.BufferedReader around it gives the block size."""

    def __init__(self, index: PackageIndex, file: IndexFile) -> None:
        self._index, self._file = index, file
        self._size = index.size(file)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        end = self._position + wanted - 1
        response = self._index.session.get(
            self._file.url,
            headers={"Range": f"bytes={self._position}-{end}", "Accept-Encoding": "identity"},
            timeout=TIMEOUT,
        )
        if response.status_code != 206 or len(response.content) != wanted:
            raise NetworkError(
                f"the index does not serve ranges of {self._file.filename}",
                expected=f"status 206 with {wanted} bytes",
                found=f"status {response.status_code} with {len(response.content)} bytes",
                remedy="fetch the whole wheel, or use an index that serves byte ranges",
            )
        buffer[:wanted] = response.content
        self._position += wanted
        return wanted
