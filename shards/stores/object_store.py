"""A store for a folder in a bucket of an object store: `s3://BUCKET/PREFIX`, `gs://` or `az://`, through obstore.

A file is there whole or not at all, since a store shows an object when its upload is complete. Every answer is checked
to have the number of bytes that was requested. Failures that may pass are retried by `shards.stores.retry`, reported
and counted. A store is its address: it can be pickled, and each process makes its own client from its environment.

`s3://` is tested against servers, `az://` against an emulator if it is installed; `gs://` goes through the same code
and obstore's interface, and was never run.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shards.errors import InputError, TokenmillError
from shards.stores.files import TMP_SUFFIX
from shards.stores.object_client import Connection, connect, to_store_error
from shards.stores.retry import StoreError, TransientError, note_reached, retry
from shards.stores.store import ListedFile, WritableStore

if TYPE_CHECKING:
    from obstore import ObjectMeta

Result = TypeVar("Result")

OBJECT_SCHEMES = ("s3", "gs", "az")
_OBJECT_ADDRESS = re.compile(
    r"(?P<scheme>s3|gs|az)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]*)"
    r"(?P<prefix>/[^\\{^}%`\]\">\[~<#|*?\s]*)?"
)
"""The characters left out are those that obstore would encode, so a key is what the address says."""


REQUEST_BYTES = 8 << 20

PART_BYTES = 8 << 20
PARTS_AT_ONCE = 4
WHOLE_BYTES = PART_BYTES * PARTS_AT_ONCE
"""A file up to this size is sent with one request. In parts of `PART_BYTES`, which is how a larger one goes,
`PARTS_AT_ONCE` at a time, 17 MB would take six requests and as much memory."""

DELETED_AT_ONCE = 1000  # objects in one request of S3

_WRITER = "tokenmillwriter"
"""The metadata key under which an object names the request that wrote it."""


@dataclass(frozen=True)
class ObjectStore:
    """A folder in a bucket: `s3://BUCKET/PREFIX`; `gs` and `az` (a container) likewise.

    Use `open_objects`, or `shards.stores.open.open_store`.
    """

    scheme: str
    bucket: str
    prefix: str
    folder = None
    request_bytes = REQUEST_BYTES

    def size(self, name: str) -> int:
        key = self._key(name)
        try:
            return self._ask(name, "read", lambda at: at.single.head(key)["size"])
        except FileNotFoundError:
            self._ask(name, "read", lambda at: at.single.get(key))  # only this answer says that there is no bucket
            raise

    def read(self, name: str) -> bytes:
        def attempt(at: Connection) -> bytes:
            answer = at.single.get(self._key(name))
            return self._check_length(name, bytes(answer.bytes()), answer.meta["size"])

        return self._ask(name, "read", attempt)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        key = self._key(name)
        if start >= stop:
            self.size(name)
            return b""

        def attempt(at: Connection) -> bytes:
            answer = at.single.get(key, options={"range": (start, stop)})
            if answer.meta["size"] < stop:
                size = answer.meta["size"]
                raise OSError(f"{self}/{name}: ends {stop - size} bytes before byte {stop}. Copy or build it again.")
            return self._check_length(name, bytes(answer.bytes()), stop - start)

        return self._ask(name, "read", attempt)

    def child(self, name: str) -> ObjectStore:
        return _parse_address(f"{self}/{name}")

    def find(self, name: str) -> ListedFile | None:
        try:
            entry = self._ask(name, "read", lambda at: at.single.head(self._key(name)))
        except FileNotFoundError:
            return None
        return ListedFile(name, entry["size"], _version(entry))

    def list(self) -> Iterator[ListedFile]:
        start = len(self._key(""))
        pages: Iterator[Sequence[ObjectMeta]] | None = None
        last: str | None = None

        def attempt(at: Connection) -> Sequence[ObjectMeta] | None:
            nonlocal pages
            if pages is None:
                pages = iter(at.single.list(self.prefix or None, offset=last, chunk_size=1000))
            try:
                return next(pages, None)
            except BaseException:
                pages = None  # a listing that broke off goes on after the last name
                raise

        while (page := self._ask("", "list", attempt)) is not None:
            for entry in page:
                last = entry["path"]
                if name := last[start:]:  # the console of S3 writes an empty object for a folder itself
                    yield ListedFile(name, entry["size"], _version(entry))

    def put(self, name: str, content: bytes | Path) -> str:
        """Write a whole object; a large one is read and sent in parts, of which `WHOLE_BYTES` are in memory.

        An upload that fails is removed; a killed process leaves parts that only the bucket's lifecycle rules remove.

        Raises:
            OSError: the file on this machine cannot be read, or changes meanwhile.
        """
        key = self._key(name)
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        if size <= WHOLE_BYTES:
            whole = content if isinstance(content, bytes) else content.read_bytes()
            tag = self._ask(name, "write", lambda at: at.single.put(key, whole, use_multipart=False)["e_tag"])
            return _quoted(tag or "")

        def send_parts(at: Connection) -> str:
            at.parts.put(key, content, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            written = at.single.head(key)
            if written["size"] != size:
                raise OSError(
                    f"{self}/{name}: {written['size']} bytes were written of {size}. Did the file change? Run the "
                    "same command again."
                )
            return _version(written)

        return self._ask(name, "write", send_parts)

    def create(self, name: str, content: bytes) -> bool:
        """Write a whole object unless one of that name exists; `require_abilities` finds stores that cannot."""
        from obstore import exceptions

        key, writer = self._key(name), uuid.uuid4().hex
        lost = False

        def attempt(at: Connection) -> bool:
            nonlocal lost
            try:
                at.single.put(key, content, mode="create", attributes={_WRITER: writer})
            except exceptions.AlreadyExistsError as error:
                if "ConditionalRequestConflict" in str(error):
                    raise
                if not lost:
                    return False
                return self._is_written_by(at, key, writer)
            except Exception:
                lost = True  # if this failure passes, the object may be there, and may be ours
                raise
            return True

        return self._ask(name, "write", attempt)

    def delete(self, name: str) -> None:
        try:
            self._ask(name, "delete", lambda at: at.single.delete(self._key(name)))
        except FileNotFoundError:  # S3 does not say so, others do
            return

    def delete_all(self) -> None:
        """Delete every object of the folder, 1,000 with a request.

        Raises:
            InputError: the store is a whole bucket.
        """
        if not self.prefix:
            raise InputError(f"{self}: is a whole bucket, which is never emptied. Give a folder in it.")
        keys = [self._key(file.name) for file in self.list()]
        for first in range(0, len(keys), DELETED_AT_ONCE):
            batch = keys[first : first + DELETED_AT_ONCE]
            self._ask("", "delete", lambda at, batch=batch: at.single.delete(batch))

    def _is_written_by(self, at: Connection, key: str, writer: str) -> bool:
        """Return whether an object is the result of this request, the answer to which was lost."""
        try:
            return at.single.get(key, options={"head": True}).attributes.get(_WRITER) == writer
        except FileNotFoundError:
            return False

    def _check_length(self, name: str, content: bytes, expected: int) -> bytes:
        if len(content) != expected:
            raise TransientError(f"{self}/{name}: got {len(content)} bytes; expected {expected}")
        return content

    def _ask(self, name: str, doing: str, request: Callable[[Connection], Result]) -> Result:
        """Make a request, with retries, and turn the errors of obstore into ours."""
        from obstore import exceptions

        what = f"{self}/{name}" if name else str(self)
        at = connect(self.scheme, self.bucket)

        def attempt() -> Result:
            try:
                result = request(at)
            except (exceptions.BaseError, FileNotFoundError) as error:
                if isinstance(error, FileNotFoundError) and error.filename is not None:
                    raise  # a file on this machine
                # obstore's own text may quote the account's keys.
                raise to_store_error(
                    error, what=what, doing=doing, scheme=self.scheme, bucket=self.bucket, at=at
                ) from None
            note_reached(at.endpoint)
            return result

        return retry(what, attempt)

    def _key(self, name: str) -> str:
        """Return the key of an object in this folder."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}{'/' if self.prefix else ''}{self.prefix}"


def _version(entry: ObjectMeta) -> str:
    """Return an object's ETag in quotation marks, which Azure writes in the answer to a HEAD but not in a listing."""
    return _quoted(entry["e_tag"]) if entry["e_tag"] else str(entry["last_modified"])


def _quoted(tag: str) -> str:
    return tag if tag.endswith('"') else f'"{tag}"'


def open_objects(place: str) -> ObjectStore:
    """Return the store at `s3://BUCKET/PREFIX`, `gs://...` or `az://...`. Nothing is requested yet.

    Raises:
        InputError: the place is not such an address, or the environment cannot be used.
    """
    store = _parse_address(place)
    connect(store.scheme, store.bucket)
    return store


def _parse_address(text: str) -> ObjectStore:
    """Return the store at an address.

    Raises:
        InputError: the text is not such an address. The message does not repeat what may be a secret.
    """
    found = _OBJECT_ADDRESS.fullmatch(text)
    if found is None:
        scheme = text.partition("://")[0]
        shown = f"an address that begins with {scheme}://" if "@" in text else repr(text)
        raise InputError(
            f"{shown} is not the address of a folder in a bucket; expected {scheme}://BUCKET/PREFIX, without "
            'credentials, spaces or any of \\ { ^ } % ` ] " > [ ~ < # | * ?. Credentials come from the environment.'
        )
    prefix = (found["prefix"] or "").strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise InputError(f"{text!r} has an empty part, `.` or `..` in its path. Correct the address.")
    return ObjectStore(found["scheme"], found["bucket"], prefix)


def require_abilities(store: WritableStore) -> None:
    """Refuse a bucket's store that cannot create a file only if it is absent, before any write, by three requests.

    Stores call themselves S3 and differ: some ignore the condition of a creation, and then two writers both believe
    that they were first. The file that is created is `.tokenmill-probe.ID.tmp`, a temporary one.

    Raises:
        StoreError: the store cannot do that, or cannot be written to at all; the message says what to use instead.
        OSError: a folder cannot be written to.
    """
    name = f".tokenmill-probe.{uuid.uuid4().hex}{TMP_SUFFIX}"
    first = store.create(name, b"first")
    try:
        second = store.create(name, b"second")
    finally:
        with contextlib.suppress(OSError, TokenmillError):
            store.delete(name)
    if not first or second:
        raise StoreError(
            f"{store}: cannot create a file only if it is absent, so two builds at once would not notice each other. "
            "Use Amazon S3, Google Cloud Storage, Azure, another store that can, or a folder."
        )
