"""Addresses of remote stores: folders of dataset repositories on the Hub, and folders in buckets.

`hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`, and `s3://BUCKET/PREFIX` or the same with `gs` or `az`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from shards.errors import InputError

HUB_SCHEME = "hf://"
_NAME = r"(?![^/@]*\.\.)[A-Za-z0-9](?:[\w.-]*\w)?"
_HUB_ADDRESS = re.compile(
    rf"(?:hf://datasets/|datasets/)?(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/@]+))?"
    r"(?:/(?P<folder>.*))?",
    re.ASCII,
)
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")

OBJECT_SCHEMES = ("s3", "gs", "az")
_OBJECT_ADDRESS = re.compile(
    r"(?P<scheme>s3|gs|az)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]*)"
    r"(?P<prefix>/[^\\{^}%`\]\">\[~<#|*?\s]*)?"
)
"""The characters left out are those that obstore would encode, so a key is what the address says."""


@dataclass(frozen=True)
class HubAddress:
    """A folder of a dataset repository: `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`, revision main by default."""

    repo: str
    revision: str = "main"
    folder: str = ""

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision.replace('/', '%2F')}"
        return f"{HUB_SCHEME}datasets/{self.repo}{revision}{'/' if self.folder else ''}{self.folder}"

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
        raise InputError(f"{text!r} is not an address on the Hub; expected OWNER/NAME[@REVISION][/FOLDER].")
    return HubAddress(found["repo"], unquote(found["revision"] or "main"), folder)


@dataclass(frozen=True)
class ObjectAddress:
    """A folder in a bucket: `s3://BUCKET/PREFIX`; `gs` and `az` (a container) likewise."""

    scheme: str
    bucket: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}{'/' if self.prefix else ''}{self.prefix}"

    def object_key(self, name: str) -> str:
        """Return the key of a file in this folder."""
        return f"{self.prefix}/{name}" if self.prefix else name


def parse_object_address(text: str) -> ObjectAddress:
    """Parse `s3://BUCKET/PREFIX`, or the same with `gs` or `az`.

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
    return ObjectAddress(found["scheme"], found["bucket"], prefix)
