"""A block list: the content hashes of documents, for a data recipe's `drop_hashes`.

One hash per line, in hex; lines that begin with `#` say where they are from, and why a document is listed. Each
document is listed once, in order of hashes, so that the file depends only on the documents found.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shards.errors import InputError, plural
from shards.format.arrays import UInt8s
from shards.format.reader import ShardSet
from shards.stores.files import atomic_open, check_no_planted_link, hash_file, open_named
from shards.stores.store import check_outside

_FIRST = "# Block list: "
"""How every block list that this module writes begins."""


def check_block_list(path: Path, shard_set: ShardSet) -> None:
    """Check where a block list is to be written, before the set is searched.

    Raises:
        InputError: the path is in the set's own folder, is a folder or another file than a block list, or is in a
            folder that does not exist, is not writable or is another user's; or the set was built with the block list
            there, so that a new one in its place would let its documents back in.
        OSError: the file cannot be read.
    """
    # A search may take hours, and its result must not be lost for a path.
    folder = path.absolute().parent
    check_no_planted_link(path)
    if path.is_dir():
        raise InputError(f"{path}: a folder; expected the name of a file. Give a name in it.")
    if not folder.is_dir():
        raise InputError(f"{path}: there is no folder {folder}. Make it, or give another file.")
    check_outside(folder, shard_set.store)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: the folder {folder} cannot be written to. Give another file.")
    if not path.exists():
        return
    with open_named(path) as file:
        start = file.read(len(_FIRST))
    if start not in (b"", _FIRST.encode()):
        raise InputError(
            f"{path}: exists and is not a block list: expected its first line to begin with {_FIRST!r}. "
            "Give another file."
        )
    used = {entry.sha256 for entry in shard_set.manifest.drop_hashes}
    if used and hash_file(path) in used:
        raise InputError(
            f"{path}: the set was built with this block list; replaced, its documents would come back. "
            "Give another file, and name both in drop_hashes."
        )


def write_block_list(
    path: Path,
    hashes: UInt8s,
    shard_set: ShardSet,
    *,
    asked: str,
    reasons: Mapping[bytes, str] = {},
) -> int:
    """Write the hashes of the documents that a search found, and return how many there are.

    Args:
        path: the file.
        hashes: content hashes of the documents, uint8 `(documents, 16)`.
        shard_set: their set.
        asked: the flags of the search.
        reasons: why each hash is listed: a line above the hash.

    Raises:
        InputError: as `check_block_list`.
        OSError: it cannot be written.
    """
    check_block_list(path, shard_set)
    hashes = np.unique(hashes, axis=0)
    head = (
        f"{_FIRST}the content hashes (XXH3-128) of {plural(len(hashes), 'document')}\n"
        f"# set {_in_one_line(shard_set.manifest.name)}, manifest {shard_set.manifest_sha256}\n"
        f"# found by {_in_one_line(asked)}\n"
    )
    with atomic_open(path) as file:
        file.write(head.encode())
        for row in map(bytes, hashes):
            why = f"# {_in_one_line(reasons[row])}\n" if row in reasons else ""
            file.write(f"{why}{row.hex()}\n".encode())
    return len(hashes)


def _in_one_line(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")
