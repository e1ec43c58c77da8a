"""A block list: the content hashes of documents, for a data recipe's `drop_hashes`.

One hash a line in hex; lines that begin with `#` say where they come from. Each document is listed once, in order of
hashes, so that the file depends only on the documents found.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shards.errors import InputError
from shards.format.reader import ShardSet
from shards.stores.files import atomic_open

if TYPE_CHECKING:
    import numpy.typing as npt


class FoundDocuments(Protocol):
    """Documents that a trace found: `hashes` uint8 `(documents, 16)`, and the flags of the search (`asked`)."""

    @property
    def hashes(self) -> npt.NDArray[np.uint8]: ...

    @property
    def asked(self) -> str: ...


def check_out(path: Path, set_folder: Path | None) -> None:
    """Check the path of a block list, before anything is searched.

    Raises:
        InputError: the path is in the set's own folder, is a folder, or is in a folder that does not exist or is not
            writable.
    """
    folder = path.absolute().parent
    if set_folder is not None and path.resolve().is_relative_to(set_folder.resolve()):
        raise InputError(f"{path}: inside the set's own folder, which may hold no other files. Write it elsewhere.")
    if path.is_dir():
        raise InputError(f"{path}: a folder; expected the name of a file. Give a name in it.")
    if not folder.is_dir():
        raise InputError(f"{path}: there is no folder {folder}. Make it, or give another file.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: the folder {folder} cannot be written to. Give another file.")


def write_block_list(path: Path, found: FoundDocuments, shard_set: ShardSet) -> int:
    """Write the hashes of the documents found, and return how many there are.

    Raises:
        InputError: as `check_out`.
        OSError: it cannot be written.
    """
    check_out(path, shard_set.store.folder)
    hashes = np.unique(found.hashes, axis=0)
    asked = found.asked.encode("unicode_escape").decode("ascii")
    with atomic_open(path) as file:
        head = (
            f"# Block list: the content hashes (XXH3-128) of {len(hashes)} documents\n"
            f"# set {shard_set.manifest.name}, manifest {shard_set.manifest_sha256}\n"
            f"# found by {asked}\n"
        )
        file.write(head.encode())
        for first in range(0, len(hashes), 1 << 16):
            part = hashes[first : first + (1 << 16)]
            file.write("".join(f"{bytes(row).hex()}\n" for row in part).encode())
    return len(hashes)
