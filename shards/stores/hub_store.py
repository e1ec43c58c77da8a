"""A store for files of a dataset repository on the Hub, read by ranges at one commit: a set's, or a source's.

All files are read at the commit that the revision names when the store is opened. So files of two commits are never
mixed, even if the branch moves. Every answer is checked: its length, its place in the file, the file's size and the
Hub's digest of it. A file that is read whole is hashed too. Failures that may pass are retried.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from shards.errors import InputError, set_error
from shards.stores.hub_client import ANSWER_S, ask_hub, hub_endpoint, open_hub_client
from shards.stores.retry import StoreError, TransientError
from shards.stores.store import ListedFile

HUB_SCHEME = "hf://"
_NAME = r"(?![^/@]*\.\.)[A-Za-z0-9](?:[\w.-]*\w)?"
_HUB_ADDRESS = re.compile(
    rf"(?:hf://datasets/|datasets/)?(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/@]+))?"
    r"(?:/(?P<folder>.*))?",
    re.ASCII,
)
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")

COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REDIRECT_BYTES = 1 << 16

BLOB_DIGITS = 40
"""Hexadecimal digits of git's id of a file's content."""

_locations: dict[str, str] = {}
"""Where the Hub said last that each file lies: the Hub limits the rate of its own requests, not of their targets."""


@dataclass(frozen=True)
class HubAddress:
    """A folder of a repository: `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`, of a model without `datasets/`."""

    repo: str
    revision: str = "main"
    folder: str = ""
    kind: Literal["dataset", "model"] = "dataset"

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision.replace('/', '%2F')}"
        kind = "datasets/" if self.kind == "dataset" else ""
        return f"{HUB_SCHEME}{kind}{self.repo}{revision}{'/' if self.folder else ''}{self.folder}"

    def path(self, name: str) -> str:
        """Return a file's path in the repository."""
        return f"{self.folder}/{name}" if self.folder else name


def parse_hub_address(text: str) -> HubAddress:
    """Parse `OWNER/NAME[@REVISION][/FOLDER]`, with or without `hf://datasets/` before it.

    Raises:
        InputError: the text is not such an address.
    """
    found = _HUB_ADDRESS.fullmatch(text)
    folder = (found["folder"] or "").strip("/") if found else ""
    if found is None or (folder and not _PLAIN_FOLDER.fullmatch(folder)):
        raise InputError(
            f"{text!r} is not an address on the Hub; expected hf://datasets/OWNER/NAME[@REVISION][/FOLDER]."
        )
    return HubAddress(found["repo"], unquote(found["revision"] or "main"), folder)


@dataclass(frozen=True, eq=False)
class HubStore:
    """A folder of a dataset repository at one commit; subfolders are left out. Use `open_hub`."""

    address: HubAddress
    commit: str
    """40 hexadecimal digits."""
    files: dict[str, ListedFile] = field(repr=False)
    """By name; `version` is the SHA-256 of a large file (LFS), or git's blob id of one that git itself stores."""
    private: bool = False
    folder = None
    request_bytes = 8 << 20

    def size(self, name: str) -> int:
        return self._find(name).bytes

    def read(self, name: str) -> bytes:
        """Return a whole file.

        Raises:
            ShardSetError: its bytes do not have the digest in the Hub's listing.
        """
        known = self._find(name)
        content = self.read_range(name, 0, known.bytes)
        found = blob_id(content) if len(known.version) == BLOB_DIGITS else hashlib.sha256(content).hexdigest()
        if found != known.version:
            raise set_error(
                "file_checksum",
                name,
                f"digest {found} of {len(content)} bytes; expected {known.version}. Read it again, or push it again.",
            )
        return content

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        known = self._find(name)
        parts: list[bytes] = []
        # A long range is fetched in pieces: what fails is asked for again alone.
        for begin in range(start, stop, self.request_bytes):
            end = min(begin + self.request_bytes, stop)
            what = f"{self}/{name}: bytes {begin} to {end}"
            request = partial(self._request, what, name, known, begin, end)
            # Beside the range, there may be an answer that names another place.
            parts.append(ask_hub(what, request, most_bytes=end - begin + _REDIRECT_BYTES))
        return b"".join(parts)

    def list(self) -> Iterator[ListedFile]:
        return iter(self.files.values())

    def _find(self, name: str) -> ListedFile:
        known = self.files.get(name)
        if known is None:
            raise FileNotFoundError(
                f"{self}/{name}: not there at commit {self.commit[:12]}. The set there is not whole: choose another "
                "revision, or push it again."
            )
        return known

    def _request(self, what: str, name: str, known: ListedFile, start: int, stop: int) -> bytes:
        """Ask once for a range, at the address that the Hub gives for the file."""
        import httpx2
        from huggingface_hub import constants
        from huggingface_hub.utils import (
            build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
            get_session,
            hf_raise_for_status,
        )

        endpoint, path = hub_endpoint() or constants.ENDPOINT, quote(self.address.path(name))
        address = f"{endpoint}/datasets/{self.address.repo}/resolve/{self.commit}/{path}"
        location = _locations.get(address)
        if location is None:
            location = _locations[address] = self._locate(what, known, address)
        headers = {"range": f"bytes={start}-{stop - 1}"}
        # The Hub serves small files itself. Large ones lie elsewhere, where the token is not sent.
        if urlsplit(location).netloc == urlsplit(address).netloc:
            headers |= build_hf_headers()
        try:
            with get_session().stream("GET", location, headers=headers, timeout=ANSWER_S) as response:
                # Such an address is good for an hour; the next attempt asks the Hub for another one.
                if response.status_code in (401, 403, 404, 410):
                    _locations.pop(address, None)
                    raise TransientError(f"the address that the Hub gave has expired (HTTP {response.status_code})")
                hf_raise_for_status(response)
                # A server may answer a request for all bytes of a file as if no range was named.
                expected, found = (
                    f"bytes {start}-{stop - 1}/{known.bytes}",
                    response.headers.get("content-range", "none"),
                )
                whole = response.status_code == 200 and (start, stop) == (0, known.bytes)
                if not whole and (response.status_code != 206 or found != expected):
                    raise StoreError(
                        f"{what}: expected HTTP 206 with {expected!r}, got HTTP {response.status_code} with {found!r}. "
                        "Either the file has changed, or a proxy between here and the Hub does not pass ranges on."
                    )
                body = response.read()
                if len(body) != stop - start:
                    raise TransientError(f"{len(body)} bytes; {stop - start} were requested")
                return body
        except httpx2.RequestError:
            # Nothing may listen there any more: the next attempt asks the Hub again.
            _locations.pop(address, None)
            raise

    def _locate(self, what: str, known: ListedFile, address: str) -> str:
        """Return where a file lies, by its address on the Hub, if it is still the same file.

        Raises:
            StoreError: it has changed.
        """
        from huggingface_hub import get_hf_file_metadata  # pyright: ignore[reportUnknownVariableType]

        found = get_hf_file_metadata(address, timeout=ANSWER_S)
        if found.etag != known.version or found.size not in (None, known.bytes):
            raise StoreError(
                f"{what}: the file has changed on the server; expected {known.bytes} bytes with tag {known.version}, "
                f"got {found.size or 'unknown'} bytes with tag {found.etag or 'none'}. Open it again; a build needs a "
                "new work folder."
            )
        return found.location

    def __str__(self) -> str:
        return str(self.address)


def list_file(what: str, name: str, size: Any, version: Any) -> ListedFile:
    """Return a file as the Hub lists it.

    Raises:
        StoreError: its size is not a number of bytes, or its version is no digest.
    """
    if type(size) is int and size >= 0 and isinstance(version, str) and _DIGEST.fullmatch(version):
        return ListedFile(name, size, version)
    raise StoreError(
        f"{what}: the Hub lists {name!r:.300} with size {size!r:.80} and digest {version!r:.80}, which are not valid. "
        "Is HF_ENDPOINT right?"
    )


def check_commit(what: str, commit: Any) -> str:
    """Return the commit that the Hub names for a revision.

    Raises:
        StoreError: it is none.
    """
    if isinstance(commit, str) and COMMIT.fullmatch(commit):
        return commit
    raise StoreError(f"{what}: the Hub names the commit {commit!r:.80}, which is not one. Is HF_ENDPOINT right?")


def blob_id(content: bytes) -> str:
    """Return git's id of a file's content, which the Hub lists for small files."""
    from huggingface_hub.utils.sha import git_hash

    return git_hash(content)


def open_hub(place: str | HubAddress) -> HubStore:
    """Open a folder on the Hub at the commit that its revision names now, and list its files.

    Args:
        place: `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`.

    Raises:
        StoreError: there is no such repository or revision, the token does not give access to it, or the Hub does not
            answer.
        InputError: the place is not an address on the Hub.
    """
    address = parse_hub_address(place) if isinstance(place, str) else place
    return ask_hub(f"{address}", lambda: _list_files(address))


def _list_files(address: HubAddress) -> HubStore:
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.hf_api import RepoFile

    hub = open_hub_client()
    # Without `expand` the answer names every file of the repository.
    expand: Any = ["sha", "private"]
    info = hub.repo_info(address.repo, revision=address.revision, repo_type=address.kind, expand=expand)
    # From here on the commit is named, so that files of two commits are not mixed.
    commit = check_commit(f"{address}", info.sha)
    files: dict[str, ListedFile] = {}
    prefix = address.path("")
    with contextlib.suppress(EntryNotFoundError):  # an absent folder is an empty one
        folder = address.folder or None
        for entry in hub.list_repo_tree(address.repo, folder, revision=commit, repo_type=address.kind):
            if isinstance(entry, RepoFile) and entry.path.startswith(prefix):
                name = entry.path[len(prefix) :]
                version = entry.lfs.sha256 if entry.lfs else entry.blob_id
                files[name] = list_file(f"{address}", name, entry.size, version)
    return HubStore(address, commit, files, bool(info.private))
