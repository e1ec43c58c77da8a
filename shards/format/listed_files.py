"""A set's files as its manifest lists them: sizes compared when a set is opened, bytes compared with digests.

A size costs one stat in a folder, and in a store its part of one listing; no file is read for it. Equal sizes do not
prove equal bytes: a digest does, and costs reading the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from shards.errors import Problem, ShardSetError
from shards.format.manifest import FileEntry, Manifest
from shards.stores.store import Store

AGAIN = "Copy or build it again."


def compare_sizes(store: Store, manifest: Manifest) -> list[Problem]:
    """Return a problem for each listed file that is missing, or has another size than the manifest says.

    Raises:
        OSError: the folder cannot be read.
        InputError: the store cannot be listed.
    """
    # One listing of a store; a stat for each file of a folder.
    if store.folder is None:
        sizes: Mapping[str, int] = {file.name: file.bytes for file in store.list()}
    else:
        sizes = {name: size for name in manifest.digests if (size := find_size(store, name)) is not None}
    unsized = (manifest.tokenizer.file, manifest.recipe.file)  # these have only a digest in the manifest
    problems = [_missing(store, name) for name in unsized if name not in sizes]
    found = (compare_size(store, file, sizes.get(file.path)) for file in manifest.files)
    return problems + [problem for problem in found if problem is not None]


def find_size(store: Store, name: str) -> int | None:
    """Return the size in bytes of a listed file, or None if it is missing."""
    try:
        return store.size(name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def compare_size(store: Store, file: FileEntry, size: int | None) -> Problem | None:
    """Return the problem of a listed file of this size, None if missing; none if the manifest says the same."""
    if size is None:
        return _missing(store, file.path)
    if size != file.bytes:
        found = f"{size:,} bytes in {store}; expected {file.bytes:,} by the manifest"
        return Problem("file_size", file.path, f"{found}. {say_remedy(store)}")
    return None


def say_remedy(store: Store) -> str:
    """Return the remedy for a listed file that is missing or is not what the manifest says."""
    again = "Copy, pull or build it again" if store.folder is not None else "Push or build it again"
    return f"{again}; tokenmill validate {store} finds what is damaged."


def read_listed_file(store: Store, name: str, sha256: str) -> bytes:
    """Read a whole file that a set's manifest lists, and check it against its SHA-256.

    Raises:
        ShardSetError: its bytes do not have that digest, or it is missing.
        OSError: it cannot be read.
    """
    try:
        content = store.read(name)
    except FileNotFoundError as error:
        if find_size(store, name) is not None:
            raise
        raise ShardSetError([_missing(store, name)]) from error
    if problems := compare_digest(name, sha256, hashlib.sha256(content).hexdigest(), remedy=say_remedy(store)):
        raise ShardSetError(problems)
    return content


def compare_digest(name: str, expected: str, digest: str, *, remedy: str = AGAIN) -> list[Problem]:
    """Return the problem of a listed file whose SHA-256 is not the manifest's."""
    message = f"sha256 is {digest}; expected {expected} by the manifest. {remedy}"
    return [] if digest == expected else [Problem("file_checksum", name, message)]


def _missing(store: Store, name: str) -> Problem:
    return Problem("file_missing", name, f"in the manifest, but not in {store}. {say_remedy(store)}")
