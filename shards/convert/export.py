"""Export the splits of a set in another layout, whole or not at all, and read them back.

The folder also has `tokenizer.json`, as in the set, and `export.json`, which names the set, states the tokens and
documents of each split, and where each phase of the mix begins and ends. Tokens are copied from the set's frames:
nothing is encoded again. Equal sets give equal bytes; so an export is verified by making its bytes once more and
comparing them with its files.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from shards.convert.layouts import LayoutName
from shards.convert.layouts.layout import Layout, load_layout
from shards.convert.split_reader import SplitReader
from shards.errors import InputError
from shards.format.listed_files import read_listed_file
from shards.format.manifest import Split
from shards.format.reader import ShardSet
from shards.stores.files import atomic_open, write_folder, write_text
from shards.stores.store import check_outside
from shards.terminal.reporter import Progress, count_up, no_progress

if TYPE_CHECKING:
    from typing_extensions import Buffer

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class Export:
    """The result of an export: tokens and documents by split; bytes of every file by its path in the folder."""

    layout: LayoutName
    path: Path
    usage: str
    splits: dict[Split, dict[str, int]]
    files: dict[str, int]
    verified: bool


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
        verify: read the files back and compare every byte with what the set gives, before the folder appears.
        progress: called as tokens are written, and again as they are compared.

    Raises:
        InputError: the layout cannot hold the set, a split is not in it, the folder is in the set's own, or what was
            read back differs.
        ShardSetError: a file of the set is not what its manifest says.
        OSError: the folder is not empty, or cannot be written.
    """
    module = load_layout(layout)
    chosen = tuple(shard_set.splits) if splits is None else splits
    # What cannot be exported is refused before a file is written.
    if missing := [split for split in chosen if not shard_set.splits.get(split)]:
        raise InputError([f"the set has no split {', '.join(missing)}; it has {', '.join(shard_set.splits)}"])
    check_outside(out, shard_set.store)
    advance = count_up(progress, sum(shard_set.splits[split].num_tokens for split in chosen) * (2 if verify else 1))
    readers = [SplitReader(shard_set, split, advance) for split in chosen]
    if reasons := [reason for reader in readers for reason in module.find_export_obstacles(reader)]:
        raise InputError(list(dict.fromkeys(reasons)))
    usage = module.USAGE.format(out=out, split=chosen[0], token_size=shard_set.dtype.itemsize)
    tokenizer = shard_set.manifest.tokenizer
    held: dict[Split, dict[str, int]] = {}
    with write_folder(out) as folder:
        # The files, then what describes them, then the look back.
        for reader in readers:
            module.write_split(partial(_create, folder), reader)
            held[reader.split] = {"tokens": reader.shards.num_tokens, "documents": reader.shards.num_documents}
        (folder / TOKENIZER_FILE).write_bytes(read_listed_file(shard_set.store, tokenizer.file, tokenizer.sha256))
        write_text(folder / "export.json", json.dumps(_describe(shard_set, layout, held), indent=2) + "\n")
        if verify:
            for reader in readers:
                compare_split(module, folder, reader)
        # Sizes by path, for the report.
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    return Export(layout, out, usage, held, sizes, verify)


def compare_split(layout: Layout, folder: Path, reader: SplitReader) -> None:
    """Compare the files of a split's export with what the set gives.

    Raises:
        InputError: a file differs, is longer or is shorter; says where.
        OSError: a file is missing or cannot be read.
    """
    layout.write_split(partial(_compare, folder), reader)


def _create(folder: Path, name: str) -> AbstractContextManager[BinaryIO]:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    return atomic_open(path)


@contextmanager
def _compare(folder: Path, name: str) -> Generator[BinaryIO]:
    """Yield a file to write an export's file again: what is written must be what it holds, from start to end."""
    with (folder / name).open("rb") as held, _ComparedFile(name, held) as file:
        yield cast("BinaryIO", file)
        if held.read(1):
            raise file.difference(held.tell() - 1)


class _ComparedFile(io.RawIOBase):
    """A file object that compares what is written to it with a file."""

    def __init__(self, name: str, held: BinaryIO):
        super().__init__()
        self._name, self._held = name, held
        self._first: InputError | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._held.tell()

    def write(self, data: Buffer) -> int:
        if self._first is not None:
            raise self._first  # a writer that is closed after a difference writes once more, at another place
        expected = memoryview(data).cast("B")
        begin = self._held.tell()
        found = self._held.read(len(expected))
        if found != bytes(expected):
            same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(found, expected, strict=False))
            self._first = self.difference(begin + sum(1 for _ in same))
            raise self._first
        return len(expected)

    def difference(self, position: int) -> InputError:
        """Return the error of a file that differs from a byte on."""
        return InputError(f"{self._name}: what was read back differs from the set from byte {position} on. Try again.")


def _describe(shard_set: ShardSet, layout: LayoutName, splits: dict[Split, dict[str, int]]) -> dict[str, Any]:
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


def _find_phases(shard_set: ShardSet) -> list[dict[str, Any]]:
    """Return the place of each phase of the mix in the export of the training split: half-open ranges, from 0."""
    found: list[dict[str, Any]] = []
    tokens = documents = 0
    for phase in shard_set.manifest.phases:
        stop = (tokens + phase.tokens, documents + phase.documents)
        found.append({"name": phase.name, "tokens": [tokens, stop[0]], "documents": [documents, stop[1]]})
        tokens, documents = stop
    return found
