"""Export the splits of a set in another layout, whole or not at all, and read them back.

The folder also has `tokenizer.json`, as in the set, and `export.json`, which names the set, states the tokens and
documents of each split, and where each phase of the mix begins and ends. Tokens are copied from the set's frames:
nothing is encoded again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.convert.layouts import LayoutName
from shards.convert.layouts.layout import Layout, load_layout
from shards.convert.split_reader import SplitReader
from shards.errors import InputError
from shards.format.listed_files import read_listed_file
from shards.format.manifest import Split
from shards.format.reader import ShardSet
from shards.stores.files import write_folder, write_text
from shards.stores.store import check_outside
from shards.terminal.reporter import Progress, no_progress

if TYPE_CHECKING:
    import numpy.typing as npt

    Blocks = Iterator[npt.NDArray[Any]]

TOKENIZER_FILE = "tokenizer.json"


class ExportError(InputError):
    """An export that cannot be made, or differs from the set; every reason is in `reasons`."""

    def __init__(self, reasons: list[str]):
        super().__init__(reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        return "\n".join(self.reasons)


@dataclass
class Export:
    """The result of an export: tokens and documents by split; bytes of every file by its path in the folder."""

    layout: LayoutName
    path: Path
    usage: str
    splits: dict[Split, dict[str, int]] = field(default_factory=dict[Split, dict[str, int]])
    files: dict[str, int] = field(default_factory=dict[str, int])
    verified: bool = False


def export_set(
    shard_set: ShardSet,
    out: Path,
    *,
    layout: LayoutName,
    splits: tuple[Split, ...] | None = None,
    verify: bool = False,
    progress: Progress = no_progress,
) -> Export:
    """Write a set in another layout.

    Args:
        shard_set: the set.
        out: a folder that does not exist or is empty; it appears when everything is written.
        layout: the layout's name.
        splits: these splits only, or all of the set when None.
        verify: read the files back and compare every token and document boundary, before the folder appears.
        progress: called as tokens are written, and again as they are compared.

    Raises:
        ExportError: the layout cannot hold the set, a split is not in it, the folder is in the set's own, or what
            was read back differs.
        ShardSetError: a file of the set is not what its manifest says.
        OSError: the folder is not empty, or cannot be written.
    """
    module = load_layout(layout)
    chosen = tuple(shard_set.splits) if splits is None else splits
    if missing := [split for split in chosen if not shard_set.splits.get(split)]:
        raise ExportError([f"the set has no split {', '.join(missing)}; it has {', '.join(shard_set.splits)}"])
    check_outside(out, shard_set.store)
    total = sum(SplitReader(shard_set, split).num_tokens for split in chosen) * (2 if verify else 1)
    done = 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, total)

    readers = [SplitReader(shard_set, split, advance) for split in chosen]
    if reasons := [reason for reader in readers for reason in module.find_export_obstacles(reader)]:
        raise ExportError(list(dict.fromkeys(reasons)))
    usage = module.USAGE.format(out=out, split=chosen[0], token_size=shard_set.dtype.itemsize)
    found = Export(layout, out, usage, verified=verify)
    tokenizer = shard_set.manifest.tokenizer
    with write_folder(out) as folder:
        for reader in readers:
            module.write_split(folder, reader)
            found.splits[reader.split] = {"tokens": reader.num_tokens, "documents": reader.num_documents}
        (folder / TOKENIZER_FILE).write_bytes(read_listed_file(shard_set.store, tokenizer.file, tokenizer.sha256))
        write_text(folder / "export.json", json.dumps(_describe(shard_set, found), indent=2) + "\n")
        if verify:
            for reader in readers:
                compare_split(module, folder, reader)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        found.files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    return found


def compare_split(layout: Layout, folder: Path, reader: SplitReader) -> None:
    """Compare every token and document boundary of a split's export with the set.

    Raises:
        ExportError: they differ, or the files are not of the layout; says where.
    """
    where = f"{reader.split}: what was read back differs from the set"
    try:
        token = _find_difference(layout.read_tokens(folder, reader), reader.iter_tokens())
        document = _find_difference(layout.read_lengths(folder, reader), reader.iter_lengths())
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        raise ExportError([f"{where}: {error}"]) from error
    if token is not None:
        raise ExportError([f"{where}: tokens differ from token {token} on"])
    if document is not None:
        raise ExportError([f"{where}: documents differ from document {document} on"])


def _find_difference(left: Blocks, right: Blocks) -> int | None:
    """Return the first index at which two streams of numbers differ; if one ends early, its length."""
    a = b = np.empty(0, np.int64)
    position = 0
    while True:
        a, b = _refill(a, left), _refill(b, right)
        size = min(len(a), len(b))
        if not size:
            return position if len(a) or len(b) else None
        different = a[:size] != b[:size]
        if different.any():
            return position + int(different.argmax())
        a, b, position = a[size:], b[size:], position + size


def _refill(block: npt.NDArray[Any], stream: Blocks) -> npt.NDArray[Any]:
    while not len(block):
        following = next(stream, None)
        if following is None:
            return block
        block = following
    return block


def _describe(shard_set: ShardSet, found: Export) -> dict[str, Any]:
    return {
        "layout": found.layout,
        "set": {"name": shard_set.manifest.name, "manifest_sha256": shard_set.manifest_sha256},
        "dtype": shard_set.manifest.dtype,
        "vocab_size": shard_set.vocab_size,
        "eos_id": shard_set.eos_id,
        **({} if shard_set.bos_id is None else {"bos_id": shard_set.bos_id}),
        "tokenizer": TOKENIZER_FILE,
        "splits": found.splits,
        **({"phases": _find_phases(shard_set)} if "train" in found.splits and shard_set.manifest.phases else {}),
    }


def _find_phases(shard_set: ShardSet) -> list[dict[str, Any]]:
    """Return the place of each phase of the mix in the export of the training split: half-open ranges, from 0."""
    found: list[dict[str, Any]] = []
    tokens = documents = 0
    for phase in shard_set.manifest.phases:
        stop = (tokens + phase.tokens, documents + phase.documents)
        found.append({"name": phase.name, "tokens": [tokens, stop[0]], "documents": [documents, stop[1]]})
        tokens, documents = stop
    return found
