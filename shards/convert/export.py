"""Export the splits of a set in another layout, whole or not at all.

The folder also has `tokenizer.json`, as in the set, and `export.json`, which names the set, states the tokens and
documents of each split, where each phase of the mix begins and ends, and how the tokenizer was proved. Tokens are
copied from the set's frames: nothing is encoded again. Equal sets give equal bytes.
"""

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from shards.convert.layouts import LAYOUTS, UINT16_LAYOUTS, LayoutName
from shards.convert.layouts.layout import SplitReader
from shards.convert.tokenizer_proof import prove_tokenizer
from shards.errors import InputError
from shards.format.document_table import iter_shard_lengths
from shards.format.manifest import Split
from shards.format.reader import ShardSet
from shards.stores.files import atomic_open, write_folder, write_text
from shards.stores.store import check_outside
from shards.terminal.display import JsonObject, Table
from shards.terminal.reporter import Progress, count_up, no_progress

TOKENIZER_FILE, EXPORT_FILE = "tokenizer.json", "export.json"

MAX_INT32 = (1 << 31) - 1
"""Loaders count a document's tokens in int32, and llm.c's those of a whole shard."""


def export_set(
    shard_set: ShardSet,
    out: Path,
    *,
    layout: LayoutName,
    splits: tuple[Split, ...] | None = None,
    progress: Progress = no_progress,
) -> JsonObject:
    """Write a set in another layout.

    Args:
        shard_set: the set.
        out: a folder that does not exist or is empty; it appears when everything is written.
        layout: the layout's name.
        splits: these splits only, or all of the set when None.
        progress: called as tokens are written.

    Returns:
        layout, out, usage: the layout, the folder, and how to load what is in it.
        splits: tokens and documents by split.
        files, bytes: bytes of every file by its path in the folder, and of all.

    Raises:
        InputError: the layout cannot hold the set, a split is not in it, or the folder is in the set's own.
        ShardSetError: a file of the set is not what its manifest says.
        OSError: the folder is not empty, or cannot be written.
    """
    module = import_module(f"shards.convert.layouts.{layout}")
    chosen = tuple(shard_set.splits) if splits is None else splits
    # What cannot be exported is refused before a file is written.
    if missing := [split for split in chosen if not shard_set.splits.get(split)]:
        raise InputError(f"the set has no split {', '.join(missing)}; it has {', '.join(shard_set.splits)}")
    check_outside(out, shard_set.store)
    advance = count_up(progress, sum(shard_set.splits[split].num_tokens for split in chosen))
    readers = [SplitReader(shard_set, split, advance) for split in chosen]
    _check_counts(layout, shard_set, readers)
    usage = module.USAGE.format(out=out, split=chosen[0], token_size=shard_set.dtype.itemsize)
    held = {
        reader.split: {"tokens": reader.shards.num_tokens, "documents": reader.shards.num_documents}
        for reader in readers
    }
    with write_folder(out) as folder:
        # The files, then what describes them.
        for reader in readers:
            module.write_split(partial(_create, folder), reader)
        (folder / TOKENIZER_FILE).write_bytes(shard_set.tokenizer_json)
        proof = prove_tokenizer(folder / TOKENIZER_FILE, bos_id=shard_set.bos_id, shard_set=shard_set)
        about = _describe(shard_set, layout, held) | {"tokenizer_proof": proof}
        write_text(folder / EXPORT_FILE, json.dumps(about, indent=2) + "\n")
        # Sizes by path, for the report.
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    done = {"layout": layout, "out": str(out), "splits": held, "usage": usage}
    return done | {"bytes": sum(sizes.values()), "files": sizes}


def _check_counts(layout: LayoutName, shard_set: ShardSet, readers: Iterable[SplitReader]) -> None:
    """Refuse to export ids or counts of tokens that a layout's numbers cannot hold."""
    if layout in UINT16_LAYOUTS and shard_set.dtype.itemsize > 2:
        others = " or ".join(name for name in LAYOUTS if name not in UINT16_LAYOUTS)
        raise InputError(
            f"{layout} has uint16; a vocabulary of {shard_set.vocab_size} does not fit. Export to {others}."
        )
    for shard in (shard for reader in readers for shard in reader.shards if shard.num_tokens > MAX_INT32):
        most = shard.num_tokens
        if layout != "llmc":
            most = max(int(lengths.max()) for lengths in iter_shard_lengths(shard))
        if most > MAX_INT32:
            what = "has" if layout == "llmc" else "has a document of"
            raise InputError(
                f"{shard.name} {what} {most:,} tokens; {layout} counts to {MAX_INT32:,}. Build smaller ones."
            )


def _create(folder: Path, name: str) -> AbstractContextManager[BinaryIO]:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    return atomic_open(path)


def _describe(shard_set: ShardSet, layout: LayoutName, splits: JsonObject) -> JsonObject:
    return {
        "layout": layout,
        "set": {"name": shard_set.manifest.name, "manifest_sha256": shard_set.manifest_sha256},
        "dtype": shard_set.manifest.dtype,
        "vocab_size": shard_set.vocab_size,
        "eos_id": shard_set.eos_id,
        **({} if shard_set.bos_id is None else {"bos_id": shard_set.bos_id}),
        "tokenizer": TOKENIZER_FILE,
        "splits": splits,
        **({"phases": _find_phases(shard_set)} if "train" in splits and shard_set.manifest.phases else {}),
    }


def _find_phases(shard_set: ShardSet) -> Table:
    """Return the place of each phase of the mix in the export of the training split: half-open ranges, from 0."""
    found: Table = []
    tokens = documents = 0
    for phase in shard_set.manifest.phases:
        begin, tokens, documents = (tokens, documents), tokens + phase.tokens, documents + phase.documents
        found.append({"name": phase.name, "tokens": [begin[0], tokens], "documents": [begin[1], documents]})
    return found
