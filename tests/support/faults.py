"""Planted faults: each takes a valid set (or its plan) and damages one thing. `test_validate.py` runs them all.

Those of the manifest and of what lies in the folder are in `tests/golden/refusals.txt`.

`FAULTS` is one table: a name, the kinds of problem that full validation must name, exactly these, and the damage. A
damage of a folder works on a copy of the good set; one of the plan changes the plan, from which a set with consistent
checksums is then written.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.support.damage import flip
from tests.support.fuzz.damage import reseal
from tests.support.shard_sets import Document, Plan

Damage = Callable[[Path], Any]
MANIFEST, TOKENS, DOCUMENTS = "manifest.json", "train-00000.bin.zst", "train-00000.docs.parquet"


class Fault(NamedTuple):
    """One row of the table."""

    name: str
    kinds: str
    """The kinds of problem, with spaces between them."""
    damage: Callable[[Any], Any]
    of_plan: bool = False


# --- Files ---


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], name: str = MANIFEST) -> None:
    """Change a JSON file."""
    data = json.loads((folder / name).read_text())
    change(data)
    (folder / name).write_text(json.dumps(data, indent=2) + "\n")


# --- Tokens ---


def seek_entries(path: Path) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a tokens file's frames, joined, and its seek table's entries."""
    data = path.read_bytes()
    count = struct.unpack("<I", data[-9:-5])[0]
    table = data[-9 - 8 * count : -9]
    return data[: -17 - 8 * count], list(struct.iter_unpack("<II", table))


def write_entries(path: Path, frames: bytes, entries: list[tuple[int, int]]) -> None:
    """Write a tokens file from frames and seek table entries, true or false."""
    table = b"".join(struct.pack("<II", *entry) for entry in entries)
    footer = struct.pack("<IBI", len(entries), 0, 0x8F92EAB1)
    path.write_bytes(frames + struct.pack("<II", 0x184D2A5E, len(table) + len(footer)) + table + footer)


def frames(change: Callable[[bytes, list[tuple[int, int]]], tuple[bytes, list[tuple[int, int]]]]) -> Damage:
    """Return what gives a tokens file other frames, and makes the checksums fit."""

    def damage(folder: Path) -> None:
        write_entries(folder / TOKENS, *change(*seek_entries(folder / TOKENS)))
        reseal(folder)

    return damage


def bomb(data: bytes, entries: list[tuple[int, int]]) -> tuple[bytes, list[tuple[int, int]]]:
    """Let the last frame hold a gigabyte, of which the seek table says a few tokens."""
    last = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(1 << 30))
    return data[: -entries[-1][0]] + last, [*entries[:-1], (len(last), entries[-1][1])]


def lengthen_last_frame(by: int, data: bytes, entries: list[tuple[int, int]]) -> tuple[bytes, list[tuple[int, int]]]:
    """Return frames, of which the last one has so many more bytes; fewer, if it is below zero."""
    return data, [*entries[:-1], (entries[-1][0] + by, entries[-1][1])]


def behind_frames(extra: bytes) -> Damage:
    return frames(lambda data, entries: lengthen_last_frame(len(extra), data + extra, entries))


def flip_frame_checksum(folder: Path) -> None:
    _frames, entries = seek_entries(folder / TOKENS)
    flip(folder / TOKENS, entries[0][0] - 1)


def declare_billions(folder: Path) -> None:
    data = (folder / TOKENS).read_bytes()
    (folder / TOKENS).write_bytes(data[:-9] + struct.pack("<IBI", 0xFFFFFFFF, 0, 0x8F92EAB1))
    reseal(folder)


def tokens_of(split: str, shard: int, number: int, change: Callable[[Plan, list[int]], list[int]]) -> Any:
    """Return what gives a document of the plan other tokens."""

    def damage(plan: Plan) -> None:
        documents = plan.documents[split][shard]
        old = documents[number].tokens
        tokens = np.array(change(plan, old.tolist()), old.dtype)
        documents[number] = dataclasses.replace(documents[number], tokens=tokens)

    return damage


# --- Document tables, and the set as a whole ---


def table(function: Callable[[pa.Table], pa.Table], *shards: str) -> Damage:
    """Return what rewrites document tables and makes the checksums fit."""

    def damage(folder: Path) -> None:
        for shard in shards or ("train-00000",):
            path = folder / f"{shard}.docs.parquet"
            pq.write_table(function(pq.read_table(path)), path)
            reseal(folder)

    return damage


def set_value(column: str, at: int | slice, value: Any) -> Damage:
    """Return what changes values of a numeric column; a function is given the old ones."""

    def change(rows: pa.Table) -> pa.Table:
        values = rows[column].to_numpy().copy()
        values[at] = value(values[at]) if callable(value) else value
        index = rows.schema.get_field_index(column)
        return rows.set_column(index, rows.schema.field(column), pa.array(values))

    return table(change)


def all_code(rows: pa.Table) -> pa.Table:
    source = pa.array(["code"] * rows.num_rows).dictionary_encode().cast(rows.schema.field("source").type)
    return rows.set_column(2, rows.schema.field("source"), source)


def in_table(function: Callable[[bytes], bytes]) -> Damage:
    """Return what gives a document table other bytes and makes the checksums fit."""

    def damage(folder: Path) -> None:
        (folder / DOCUMENTS).write_bytes(function((folder / DOCUMENTS).read_bytes()))
        reseal(folder)

    return damage


def copy_of(document: Document, like: Document) -> Document:
    """Return a copy of a document under another row. It replaces `like` and has its length: shares do not change."""
    text = document.tokens.tolist()[:-1]
    tokens = (text * (len(like.tokens) // max(1, len(text)) + 1))[: len(like.tokens) - 1]
    tokens = np.array([*tokens, document.tokens[-1]], document.tokens.dtype)
    return dataclasses.replace(document, tokens=tokens, source=like.source)


def copies(original: tuple[str, int, int], *places: tuple[str, int, int], epochs: int = 1) -> Any:
    """Return what puts copies of a document, given as (split, shard, number), into other places of the plan."""

    def damage(plan: Plan) -> None:
        plan.epochs.update(prose=epochs, code=epochs)
        split, shard, number = original
        document = plan.documents[split][shard][number]
        for split, shard, number in places:
            documents = plan.documents[split][shard]
            documents[number] = copy_of(document, documents[number])

    return damage


def remove_code(plan: Plan) -> None:
    """Take ten documents of one source out of each training shard."""
    for shard in plan.documents["train"]:
        for document in [d for d in shard if d.source == "code"][:10]:
            shard.remove(document)


def move_code(plan: Plan) -> None:
    """Keep the shares of the whole set, but not those of its shards."""
    first, second = plan.documents["train"]
    for document in [d for d in first if d.source == "code"][:40]:
        first.remove(document)
        second.append(document)


FAULTS = [
    # Tokens files, and bits of files.
    Fault(
        "tokens_digest_wrong",
        "tokens_checksum sidecar_mismatch",
        lambda folder: edit(folder, lambda manifest: manifest["shards"][2].update(tokens_sha256="0" * 64)),
    ),
    Fault("bit_flipped_in_frame_checksum", "file_checksum frame_corrupt", flip_frame_checksum),
    Fault("frame_larger_than_declared", "frame_corrupt", frames(bomb)),
    Fault("frame_hides_another", "frame_corrupt", behind_frames(zstandard.compress(b"hidden"))),
    Fault("frame_has_bytes_behind_it", "frame_corrupt", behind_frames(b"more bytes")),
    Fault(
        "frame_without_its_checksum",
        "frame_corrupt",
        frames(lambda data, entries: lengthen_last_frame(-4, data[:-4], entries)),
    ),
    Fault("seek_table_declares_billions", "seek_table", declare_billions),
    Fault(
        "token_beyond_the_vocabulary",
        "token_out_of_range",
        tokens_of("train", 1, 40, lambda _, tokens: [300, *tokens[1:]]),
        of_plan=True,
    ),
    Fault(
        "eos_inside_a_document",
        "eos_misplaced",
        tokens_of("train", 0, 3, lambda plan, tokens: [plan.eos_id, *tokens[1:]]),
        of_plan=True,
    ),
    Fault(
        "eos_one_token_early",  # as many as there are documents, but one is in the wrong place
        "eos_misplaced",
        tokens_of("train", 1, 7, lambda _, tokens: [*tokens[:-2], tokens[-1], tokens[-2]]),
        of_plan=True,
    ),
    # Document tables.
    Fault("table_has_a_gap", "document_table", set_value("start", slice(9, None), lambda starts: starts + 1)),
    Fault("table_start_wraps_around", "document_table", set_value("start", 5, 2**64 - 1)),
    Fault("table_is_short_of_tokens", "document_table source_sum", set_value("length", -1, lambda length: length - 1)),
    Fault("table_is_not_parquet", "document_table", in_table(lambda _: b"PAR1" + bytes(100) + b"PAR1")),
    Fault(
        "table_sources_are_not_the_manifests",
        "source_sum mix_share",
        table(all_code, "val-00000", "train-00000", "train-00001"),
    ),
    # The set as a whole.
    Fault("document_in_both_splits", "split_leak", copies(("val", 0, 2), ("train", 1, 5)), of_plan=True),
    Fault("document_twice_in_train", "document_repeated", copies(("train", 0, 2), ("train", 1, 5)), of_plan=True),
    Fault(
        "document_more_often_than_epochs",
        "document_repeated",
        copies(("train", 0, 2), ("train", 1, 5), ("train", 1, 6), epochs=2),
        of_plan=True,
    ),
    Fault("share_wrong_in_shards", "mix_share", move_code, of_plan=True),
    Fault("share_wrong_in_the_set", "mix_share", remove_code, of_plan=True),
]
