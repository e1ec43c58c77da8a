"""The address of a folder of a dataset repository on the Hub: `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from shards.errors import InputError

HUB_SCHEME = "hf://"
_NAME = r"(?![^/@]*\.\.)[A-Za-z0-9](?:[\w.-]*\w)?"
_ADDRESS = re.compile(
    rf"(?:hf://datasets/|datasets/)?(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/@]+))?"
    r"(?:/(?P<folder>.*))?",
    re.ASCII,
)
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class HubAddressError(InputError):
    """A text that is not an address on the Hub."""


@dataclass(frozen=True, slots=True)
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


def parse_hub_address(text: str, *, revision: str | None = None) -> HubAddress:
    """Parse `OWNER/NAME[@REVISION][/FOLDER]`, with or without `hf://datasets/` before it.

    Raises:
        HubAddressError: the text is not such an address, or it names a revision that differs from `revision`.
    """
    found = _ADDRESS.fullmatch(text)
    folder = (found["folder"] or "").strip("/") if found else ""
    if found is None or (folder and not _PLAIN_FOLDER.fullmatch(folder)):
        raise HubAddressError(f"{text!r} is not an address on the Hub; expected OWNER/NAME[@REVISION][/FOLDER].")
    named = unquote(found["revision"]) if found["revision"] else None
    if named and revision and named != revision:
        raise HubAddressError(f"{text}: names revision {named!r}, and --revision says {revision!r}. Give one.")
    return HubAddress(found["repo"], revision or named or "main", folder)
