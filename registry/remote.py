"""A repository of a registry as a store, through oras-py and the distribution API."""

import random
import secrets
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode

from kvreg.console import storage_error
from kvreg.errors import NetworkError, NotFoundError, VerificationError
from kvreg.model.digest import is_digest, parse_digest
from kvreg.model.oci import (
    EMPTY_BLOB,
    MAX_MANIFEST_BYTES,
    MEDIA_TYPE_INDEX,
    Descriptor,
    Manifest,
    empty_descriptor,
)
from kvreg.reference import RegistryReference, is_tag
from registry.content import MANIFEST_TYPES, Content, parse_content
from registry.download import blob_chunks
from registry.files import write_all, write_atomically
from registry.oras_base import requests
from registry.outgoing import Hashing, Upload
from registry.referrers import (
    fallback_tag,
    filtered,
    is_fallback_tag,
    parse_referrers,
    with_referrer,
    without_referrers,
)
from registry.refusal import error_text
from registry.store import Store, check_tag, refuse_move
from registry.stream import BlobSource, HashedFile, Progress, Verified, check_bytes, verified
from registry.transport import Client, origin_of
from registry.upload import BlobUpload, UploadPolicy, check_stored, start_upload

_ACCEPT = {"Accept": ", ".join(MANIFEST_TYPES)}
_DELETED = (200, 202, 204)
_MAX_PAGES = 10_000
_ATTACH_ROUNDS = 20


class Remote:
    """The repository that `reference` names. One object serves one thread."""

    def __init__(
        self,
        reference: RegistryReference,
        *,
        client: Client | None = None,
        upload: UploadPolicy | None = None,
    ) -> None:
        self.location = str(reference.with_target())
        self.reference = reference.with_target()
        self._client = client or Client(reference)
        self._upload = upload or UploadPolicy()
        self._opened: list[requests.Response] = []
        self._has_referrers_api: bool | None = None

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connections, and leave an upload that was opened for nothing."""
        while self._opened and error[0] is None:
            self._client.abandon(self._opened.pop())
        self._client.close()

    def twin(self) -> "Remote":
        """See `registry.store.Store.twin`: connections of its own, what is known taken over."""
        other = Remote(self.reference, client=self._client.twin(), upload=self._upload)
        other._opened = self._opened
        other._has_referrers_api = self._has_referrers_api
        return other

    def prepare(self) -> None:
        """Open an upload, for the first blob: a registry that does not let us write says so now."""
        if not self._opened:
            self._opened.append(start_upload(self._client))

    def resolve(self, name: str) -> Descriptor | None:
        """See `registry.store.Store.resolve`. `UsageError` for what can be no tag."""
        if not is_digest(name):
            check_tag(name)
        found = self._fetch(name)
        return None if found is None else found[1].descriptor

    def fetch_manifest(self, digest: str) -> bytes:
        """See `registry.store.Store.fetch_manifest`."""
        parse_digest(digest)
        found = self._fetch(digest)
        if found is None:
            raise NotFoundError(f"{self.location} has no manifest {digest}")
        return found[0]

    def has_blob(self, descriptor: Descriptor) -> bool:
        """See `registry.store.Store.has_blob`."""
        answer = self._client.call("HEAD", f"blobs/{descriptor.digest}", expect=(200, 404))
        if answer.status_code == 404:
            return False
        return answer.headers.get("Content-Length", str(descriptor.size)) == str(descriptor.size)

    def read_blob(self, descriptor: Descriptor, progress: Progress | None = None) -> Verified:
        """See `registry.store.Store.read_blob`."""
        chunks = blob_chunks(self._client, descriptor)
        return verified(chunks, descriptor, self.location, progress)

    def fetch_blob(
        self, descriptor: Descriptor, destination: Path, progress: Progress | None = None
    ) -> None:
        """See `registry.store.Store.fetch_blob`."""
        write_atomically(destination, self.read_blob(descriptor, progress))

    def blob_path(self, descriptor: Descriptor) -> Path | None:
        """Always None: a registry has no files here."""
        return None

    def push_blob(
        self, source: BlobSource, descriptor: Descriptor, progress: Progress | None = None
    ) -> bool:
        """See `registry.store.Store.push_blob`."""
        if self.has_blob(descriptor):
            return False
        with Upload(source, descriptor, progress) as upload:
            return BlobUpload(self._client, upload, self._upload, self._opened).run()

    def push_file(self, path: Path, progress: Progress | None = None) -> tuple[HashedFile, bool]:
        """See `registry.store.Store.push_file`. It is sent while it is hashed, because the registry
        wants the digest last; when that turns out to be there, no more is sent."""
        asker = self.twin()
        with asker, Hashing(path, lambda file: not asker.has_blob(file.descriptor())) as hashing:
            with Upload(hashing, None, progress) as upload:
                sent = BlobUpload(self._client, upload, self._upload, self._opened).run()
            return hashing.hashed, sent

    def push_stream(self, chunks: Iterable[bytes], descriptor: Descriptor) -> bool:
        """See `registry.store.Store.push_stream`. The bytes wait in a temporary file, so that
        they can be sent again after a fault."""
        if self.has_blob(descriptor):
            return False
        try:
            with tempfile.TemporaryDirectory(prefix="kvreg-") as folder:
                path = Path(folder) / "blob"
                with path.open("wb", buffering=0) as stream:
                    for chunk in verified(chunks, descriptor, "the source"):
                        write_all(stream, chunk)
                return self.push_blob(path, descriptor)
        except OSError as error:
            raise storage_error(error, "could not keep a blob in a temporary file") from error

    def mount(self, descriptor: Descriptor, source: Store) -> bool:
        """See `registry.store.Store.mount`."""
        if not isinstance(source, Remote) or self.has_blob(descriptor):
            return False
        if origin_of(self._client.url("")) != origin_of(source._client.url("")):
            return False
        query = urlencode({"mount": descriptor.digest, "from": source.reference.repository})
        url = self._client.url(f"blobs/uploads/?{query}")
        try:
            answer = self._client.do_request(url, "POST", data=b"")
        except NetworkError:
            # Some registries forbid what they cannot do. Whether we may push, the upload tells.
            return False
        if answer.status_code == 202:
            self._client.abandon(answer)
        return answer.status_code == 201

    def push_manifest(
        self, raw: bytes, media_type: str | None = None, tag: str | None = None
    ) -> Descriptor:
        """See `registry.store.Store.push_manifest`."""
        content = parse_content(raw, media_type)
        if tag is not None:
            check_tag(tag)
        answer = self._put(raw, content, tag or content.descriptor.digest)
        subject = content.subject
        # A registry with the referrers API says that it has seen the subject; for any other the
        # distribution-spec has the client keep the list.
        if subject is not None and answer.headers.get("OCI-Subject") != subject.digest:
            self._list_referrer(subject.digest, content.as_referrer)
        return content.descriptor

    def tag(self, descriptor: Descriptor, tag: str, *, move: bool = True) -> None:
        """See `registry.store.Store.tag`."""
        check_tag(tag)
        if not move:
            refuse_move(self.location, tag, self.resolve(tag), descriptor)
        raw = self.fetch_manifest(descriptor.digest)
        self._put(raw, parse_content(raw, descriptor.media_type), tag)

    def untag(self, tag: str) -> None:
        """See `registry.store.Store.untag`.

        CNCF Distribution 2 deletes by digest alone, which takes every tag of the manifest. There
        the tag is given to a placeholder first, and the placeholder is deleted.
        """
        check_tag(tag)
        found = self.resolve(tag)
        if found is None:
            raise NotFoundError(f"{self.location} has no tag {tag}")
        answer = self._client.do_request(self._client.url(f"manifests/{tag}"), "DELETE")
        if answer.status_code in _DELETED:
            return
        # Deleted once without the tag: a registry that does not delete says so before the tag
        # has moved.
        raw = self._placeholder()
        content = parse_content(raw)
        self._put(raw, content, content.descriptor.digest)
        self.delete_manifest(content.descriptor.digest)
        self._put(raw, content, tag)
        try:
            self.delete_manifest(content.descriptor.digest)
        except BaseException:
            self.tag(found, tag)
            raise

    def delete(self, digest: str) -> None:
        """See `registry.store.Store.delete`. `NetworkError` when the registry does not delete."""
        content = parse_content(self.fetch_manifest(digest))
        subject = content.subject
        self.delete_manifest(digest)
        if subject is not None and not self._lists_referrers(subject.digest):
            self.unlist_referrers(subject.digest, {digest})

    def unlist_referrers(self, subject: str, gone: Container[str]) -> None:
        """Take entries out of the list under a fallback tag; a list without any is deleted."""
        self._change_list(subject, lambda listed: without_referrers(listed, gone))
        if not self._from_tag(subject):
            self.delete_list(subject)

    def delete_list(self, subject: str) -> None:
        """Delete the list under a fallback tag, whatever it names."""
        found = self._fetch(fallback_tag(subject))
        if found is not None:
            self.delete_manifest(found[1].descriptor.digest)

    def pause(self, seconds: float) -> None:
        """Wait, as this store waits between its requests."""
        self._client.sleep(seconds)

    def fallback_tags(self) -> tuple[str, ...]:
        """The tags that the referrers tag schema makes, sorted."""
        return tuple(tag for tag in self._tags() if is_fallback_tag(tag))

    def list_tags(self) -> tuple[str, ...]:
        """See `registry.store.Store.list_tags`."""
        return tuple(tag for tag in self._tags() if not is_fallback_tag(tag))

    def _tags(self) -> list[str]:
        tags: set[str] = set()
        for page in self._pages("tags/list?n=1000"):
            if page.status_code == 404:
                break
            try:
                if page.status_code != 200:
                    raise ValueError
                names = page.json().get("tags") or []
                tags.update(name for name in names if isinstance(name, str) and is_tag(name))
            except (ValueError, AttributeError, TypeError):
                raise self._client.unexpected("GET", page, (200,)) from None
        return sorted(tags)

    def referrers(self, digest: str, artifact_type: str | None = None) -> tuple[Descriptor, ...]:
        """See `registry.store.Store.referrers`: through the referrers API, else the tag schema."""
        parse_digest(digest)
        if self._has_referrers_api is not False:
            found = self._from_api(digest)
            self._has_referrers_api = found is not None
            if found is not None:
                return filtered(found, artifact_type)
        return filtered(self._from_tag(digest), artifact_type)

    def _lists_referrers(self, digest: str) -> bool:
        """Whether the registry has the referrers API; it is asked once."""
        if self._has_referrers_api is None:
            self._has_referrers_api = self._from_api(digest) is not None
        return self._has_referrers_api

    def _fetch(self, name: str) -> tuple[bytes, Content] | None:
        """A manifest by tag or digest: its bytes, checked against every digest that is known."""
        answer = self._client.call("GET", f"manifests/{name}", expect=(200, 404), headers=_ACCEPT)
        if answer.status_code == 404:
            return None
        raw = answer.content
        if len(raw) > MAX_MANIFEST_BYTES:
            raise VerificationError(f"{name} of {self.location} is too large for a manifest")
        claimed = name if is_digest(name) else answer.headers.get("Docker-Content-Digest")
        if is_digest(claimed):
            check_bytes(raw, str(claimed), self.location)
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind not in MANIFEST_TYPES:
            raise VerificationError(
                f"{self.location} answered something else than a manifest for {name}",
                expected=" or ".join(MANIFEST_TYPES),
                found=repr(kind)[:100],
            )
        return raw, parse_content(raw, kind)

    def _put(self, raw: bytes, content: Content, name: str) -> requests.Response:
        found = content.descriptor
        headers = {"Content-Type": found.media_type}
        answer = self._client.call(
            "PUT", f"manifests/{name}", expect=(201,), data=raw, headers=headers
        )
        check_stored(self._client, answer, found.digest)
        return answer

    def _pages(
        self, path: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[requests.Response]:
        """The answers of any status to a list and to what its Link headers lead to."""
        url = self._client.url(path)
        for _ in range(_MAX_PAGES):
            answer = self._client.do_request(url, "GET", headers=headers)
            yield answer
            following = self._client.next_page(answer)
            if following is None:
                return
            url = following
        raise NetworkError(f"{self.location}: the registry sent a list that does not end")

    def _from_api(self, digest: str, *, ask_again: bool = True) -> list[Descriptor] | None:
        """The referrers by the API; None where there is no such API."""
        found: list[Descriptor] = []
        pages = self._pages(f"referrers/{digest}", {"Accept": MEDIA_TYPE_INDEX})
        for number, page in enumerate(pages):
            kind = page.headers.get("Content-Type", "").partition(";")[0].strip()
            if page.status_code == 200 and kind == MEDIA_TYPE_INDEX:
                found += parse_referrers(page.content, digest)
            elif number > 0:
                raise self._client.unexpected("GET", page, (200,))
            elif page.status_code == 200 and ask_again:
                # Either a web server that shows a page for any path it does not know, or a proxy
                # that got in between once: then an empty list would be a wrong one.
                return self._from_api(digest, ask_again=False)
            else:
                return None
        return found

    def _from_tag(self, digest: str) -> tuple[Descriptor, ...]:
        """The referrers by the tag schema."""
        found = self._fetch(fallback_tag(digest))
        return () if found is None else parse_referrers(found[0], digest)

    def _list_referrer(self, subject: str, referrer: Descriptor) -> None:
        """Add to the list under the fallback tag, and make sure that it stays there."""
        self._change_list(subject, lambda listed: with_referrer(listed, referrer))

    def _change_list(
        self, subject: str, change: Callable[[tuple[Descriptor, ...]], bytes | None]
    ) -> None:
        """Write the list under the fallback tag until `change` finds nothing more to change.

        The distribution API has no conditional write: a writer that read the list before us and
        writes after us undoes our change. So we look again after the time that such a writer
        needs, and write again until it stays.
        """
        for _ in range(_ATTACH_ROUNDS):
            begun = time.monotonic()
            raw = change(self._from_tag(subject))
            if raw is None:
                return
            self._put(raw, parse_content(raw, MEDIA_TYPE_INDEX), fallback_tag(subject))
            took = time.monotonic() - begun
            self._client.sleep(0.05 + 2 * took + random.uniform(0, 0.05 + took))
        raise NetworkError(
            f"{self.location}: other writers kept replacing the list of referrers of {subject}",
            remedy="run the same command again when they have ended",
        )

    def delete_manifest(self, digest: str) -> None:
        """Delete a manifest and leave lists of referrers alone; that it is gone is no error.

        `NetworkError` when the registry does not delete.
        """
        answer = self._client.do_request(self._client.url(f"manifests/{digest}"), "DELETE")
        if answer.status_code in (400, 405):
            raise NetworkError(
                f"{self.location}: the registry does not delete manifests",
                expected="202",
                found=f"{answer.status_code}{error_text(answer)}",
                remedy="allow deletion in its configuration, or delete in its own user interface",
            )
        if answer.status_code not in (*_DELETED, 404):
            raise self._client.unexpected("DELETE", answer, _DELETED)

    def _placeholder(self) -> bytes:
        """A manifest that nobody else has, its one blob in place."""
        config = empty_descriptor()
        self.push_blob(EMPTY_BLOB, config)
        unique = {"vnd.kvreg.placeholder": secrets.token_hex(16)}
        return Manifest(config, (config,), "application/vnd.kvreg.placeholder", unique).to_bytes()
