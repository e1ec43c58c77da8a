"""Addresses of folders in buckets: `s3://BUCKET/PREFIX`, and the same with `gs` or `az`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shards.errors import InputError

OBJECT_SCHEMES = ("s3", "gs", "az")


_ADDRESS = re.compile(
    r"(?P<scheme>s3|gs|az)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]*)"
    r"(?P<prefix>/[^\\{^}%`\]\">\[~<#|*?\s]*)?"
)
"""The characters left out are those that obstore would encode, so a key is what the address says."""


class StoreAddressError(InputError):
    """A text that is not the address of a store."""


@dataclass(frozen=True, slots=True)
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
        StoreAddressError: the text is not such an address. The message does not repeat what may be a secret.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        scheme = text.partition("://")[0]
        shown = f"an address that begins with {scheme}://" if "@" in text else repr(text)
        raise StoreAddressError(
            f"{shown} is not the address of a folder in a bucket; expected {scheme}://BUCKET/PREFIX, without "
            'credentials, spaces or any of \\ { ^ } % ` ] " > [ ~ < # | * ?. Credentials come from the environment.'
        )
    prefix = (found["prefix"] or "").strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise StoreAddressError(f"{text!r} has an empty part, `.` or `..` in its path. Correct the address.")
    return ObjectAddress(found["scheme"], found["bucket"], prefix)
