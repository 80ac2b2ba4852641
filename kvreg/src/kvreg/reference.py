"""References: where an artifact is.

Two forms, decided by syntax alone and validated before any work starts::

    oci-layout:PATH[:TAG][@sha256:<hex>]           an OCI image layout directory
    [http://|https://]HOST[:PORT]/REPOSITORY[:TAG][@sha256:<hex>]   a registry

Plain HTTP is the default for loopback hosts alone; ``http://`` asks for it elsewhere.

>>> parse_reference("oci-layout:dist/t4-probe")
LayoutReference(path=PosixPath('dist/t4-probe'), tag=None, digest=None)
>>> parse_reference("127.0.0.1:5000/team/runtimes:latest").base_url
'http://127.0.0.1:5000'
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from kvreg.errors import UsageError
from kvreg.model.digest import is_digest

LAYOUT_PREFIX = "oci-layout:"

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(
    r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
    r"(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*)(?::(?P<port>[0-9]{1,5}))?"
)
_MAX_NAME = 255

_FORMS = "oci-layout:PATH[:TAG] or [http://|https://]HOST[:PORT]/REPOSITORY[:TAG]"


@dataclass(frozen=True)
class LayoutReference:
    """An OCI image layout directory, with a tag or digest in it or neither."""

    path: Path
    tag: str | None = None
    digest: str | None = None

    @property
    def target(self) -> str | None:
        """The digest if there is one, else the tag: a digest is the stronger name."""
        return self.digest or self.tag

    def with_target(self, tag: str | None = None, digest: str | None = None) -> "LayoutReference":
        """The same layout with another tag or digest."""
        return replace(self, tag=tag, digest=digest)

    def __str__(self) -> str:
        return f"{LAYOUT_PREFIX}{self.path}{_suffix(self.tag, self.digest)}"


@dataclass(frozen=True)
class RegistryReference:
    """A repository of a registry. `host` holds the port; it never holds credentials."""

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None
    plain_http: bool = False

    @property
    def target(self) -> str | None:
        """The digest if there is one, else the tag: a digest is the stronger name."""
        return self.digest or self.tag

    @property
    def base_url(self) -> str:
        """Scheme and host, to which ``/v2/...`` is added."""
        return f"{'http' if self.plain_http else 'https'}://{self.host}"

    def with_target(self, tag: str | None = None, digest: str | None = None) -> "RegistryReference":
        """The same repository with another tag or digest."""
        return replace(self, tag=tag, digest=digest)

    def __str__(self) -> str:
        scheme = ""
        if self.plain_http != is_loopback(self.host):
            scheme = "http://" if self.plain_http else "https://"
        return f"{scheme}{self.host}/{self.repository}{_suffix(self.tag, self.digest)}"


Reference = LayoutReference | RegistryReference


def parse_reference(text: str) -> Reference:
    """Read a reference; `UsageError` says what is wrong with it."""
    if text.startswith(LAYOUT_PREFIX):
        return _parse_layout(text.removeprefix(LAYOUT_PREFIX))
    return _parse_registry(text)


def is_tag(text: str) -> bool:
    """Whether `text` is a valid tag of the distribution-spec."""
    return _TAG.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Whether `host` (with or without a port) can only be this machine."""
    match = _HOST.fullmatch(host)
    name = (match.group("name") if match else host).strip("[]").lower()
    return (
        name == "localhost" or name == "::1" or re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None
    )


def _parse_layout(text: str) -> LayoutReference:
    rest, digest = _split_digest(text)
    path, colon, tag = rest.rpartition(":")
    # A colon inside a directory name is part of the path: a tag never holds a slash.
    if not colon or "/" in tag:
        path, tag = rest, ""
    elif not is_tag(tag):
        raise _bad_tag(tag)
    if not path or "\0" in path:
        raise UsageError("a layout reference needs a path", expected=_FORMS)
    return LayoutReference(Path(path), tag or None, digest)


def _parse_registry(text: str) -> RegistryReference:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    elif scheme not in ("http", "https"):
        raise UsageError("unknown scheme in a reference", expected=_FORMS, found=scheme + "://")
    host, _, name = rest.partition("/")
    _check_host(host, explicit=bool(scheme))
    name, digest = _split_digest(name)
    repository, colon, tag = name.partition(":")
    _check_repository(host, repository)
    if colon and not is_tag(tag):
        raise _bad_tag(tag)
    plain = scheme == "http" or (not scheme and is_loopback(host))
    return RegistryReference(host, repository, tag or None, digest, plain)


def _check_host(host: str, *, explicit: bool) -> None:
    if "@" in host:
        # Not repeated in the message: it may hold a password.
        raise UsageError(
            "a reference must not hold credentials",
            expected=_FORMS,
            remedy="log in with your container tool; credentials are read from its config file",
        )
    match = _HOST.fullmatch(host)
    if match is None or int(match.group("port") or 1) not in range(1, 65536):
        raise UsageError("a reference starts with a host", expected=_FORMS, found=repr(host))
    if not (explicit or "." in host or ":" in host or host.lower() == "localhost"):
        raise UsageError(
            "a reference starts with a host; this is a bare word",
            expected=_FORMS,
            found=repr(host),
            remedy=f"name the registry, or write https://{host}/... if {host} is one;"
            f" for a directory write {LAYOUT_PREFIX}{host}/...",
        )


def _check_repository(host: str, repository: str) -> None:
    if _REPOSITORY.fullmatch(repository) is not None:
        if len(host) + 1 + len(repository) > _MAX_NAME:
            raise UsageError(f"host and repository are longer than {_MAX_NAME} characters")
        return
    lowered = repository.lower()
    raise UsageError(
        "this is not a valid repository name",
        expected="lower-case letters, digits and single . _ __ - between them, parts split by /",
        found=repr(repository),
        remedy=f"registries take lower-case names only: {lowered}"
        if _REPOSITORY.fullmatch(lowered)
        else None,
    )


def _split_digest(text: str) -> tuple[str, str | None]:
    rest, separator, digest = text.rpartition("@")
    # A path may hold an @ of its own; only one before "sha256:" starts a digest.
    if not separator or not digest.startswith("sha256:"):
        return text, None
    if not is_digest(digest):
        raise UsageError(
            "the digest of a reference is malformed",
            expected="@sha256: and 64 lower-case hex digits",
            found=repr(digest),
        )
    return rest, digest


def _bad_tag(tag: str) -> UsageError:
    return UsageError(
        "this is not a valid tag",
        expected="1 to 128 of A-Z a-z 0-9 _ . - and no . or - first",
        found=repr(tag),
    )


def _suffix(tag: str | None, digest: str | None) -> str:
    return (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")
