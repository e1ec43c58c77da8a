"""Faults of the document tables, and of the set as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.faults import edit, names, reseal
from tests.support.shard_sets import Document, Plan


def change_table(folder: Path, change: Callable[[pa.Table], pa.Table], shard: str = "train-00000") -> None:
    """Rewrite a document table and make the checksums fit."""
    path = folder / f"{shard}.docs.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    reseal(folder, shard)


def set_values(table: pa.Table, column: str, change: Callable[[np.ndarray], Any]) -> pa.Table:
    """Change a numeric column's values in place."""
    index = table.schema.get_field_index(column)
    values = table[column].to_numpy().copy()
    change(values)
    return table.set_column(index, table.schema.field(column), pa.array(values))


@names("document_table")
def table_has_a_gap(folder: Path) -> None:
    change_table(folder, lambda t: set_values(t, "start", lambda v: v.__setitem__(slice(9, None), v[9:] + 1)))


@names("document_table")
def table_starts_beyond_zero(folder: Path) -> None:
    change_table(folder, lambda t: set_values(t, "start", lambda v: v.__setitem__(0, 1)))


@names("document_table")
def table_start_wraps_around(folder: Path) -> None:
    change_table(folder, lambda t: set_values(t, "start", lambda v: v.__setitem__(5, 2**64 - 1)))


@names("document_table")
def table_has_an_empty_document(folder: Path) -> None:
    def merge(table: pa.Table) -> pa.Table:
        lengths, starts = table["length"].to_numpy().copy(), table["start"].to_numpy().copy()
        lengths[0] += lengths[1]
        lengths[1], starts[1] = 0, lengths[0]
        table = table.set_column(0, table.schema.field("start"), pa.array(starts))
        return table.set_column(1, table.schema.field("length"), pa.array(lengths))

    change_table(folder, merge)


@names("document_table", "source_sum")
def table_is_short_of_tokens(folder: Path) -> None:
    change_table(folder, lambda t: set_values(t, "length", lambda v: v.__setitem__(-1, v[-1] - 1)))


@names("document_table")
def table_lacks_a_row(folder: Path) -> None:
    change_table(folder, lambda t: t.slice(0, t.num_rows - 1))


@names("document_table")
def table_lacks_a_column(folder: Path) -> None:
    change_table(folder, lambda t: t.drop_columns(["row"]))


@names("document_table")
def table_has_another_type(folder: Path) -> None:
    change_table(folder, lambda t: t.set_column(4, "row", t["row"].cast(pa.uint64())))


@names("document_table")
def table_is_not_parquet(folder: Path) -> None:
    (folder / "train-00000.docs.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    reseal(folder)


@names("document_table")
def table_pages_are_garbage(folder: Path) -> None:
    path = folder / "train-00000.docs.parquet"
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    reseal(folder)


@names("source_sum", "mix_share")
def table_sources_are_not_the_manifests(folder: Path) -> None:
    def rename(table: pa.Table) -> pa.Table:
        source = pa.array(["code"] * table.num_rows).dictionary_encode().cast(table.schema.field("source").type)
        return table.set_column(2, table.schema.field("source"), source)

    change_table(folder, rename, "val-00000")
    change_table(folder, rename, "train-00000")
    change_table(folder, rename, "train-00001")


def copy_of(document: Document, like: Document) -> Document:
    """Return a copy of a document under another row. It replaces `like` and has its length: shares do not change."""
    text = document.tokens.tolist()[:-1]
    tokens = (text * (len(like.tokens) // max(1, len(text)) + 1))[: len(like.tokens) - 1]
    tokens = np.array([*tokens, document.tokens[-1]], document.tokens.dtype)
    return dataclasses.replace(document, tokens=tokens, source=like.source)


@names("split_leak")
def document_in_both_splits(plan: Plan) -> None:
    shard = plan.documents["train"][1]
    shard[5] = copy_of(plan.documents["val"][0][2], shard[5])


@names("document_repeated")
def document_twice_in_train(plan: Plan) -> None:
    shard = plan.documents["train"][1]
    shard[5] = copy_of(plan.documents["train"][0][2], shard[5])


@names("document_repeated")
def document_twice_in_val(plan: Plan) -> None:
    shard = plan.documents["val"][0]
    shard[5] = copy_of(shard[2], shard[5])
    plan.epochs.update(prose=2, code=2)


@names("document_repeated")
def document_more_often_than_epochs(plan: Plan) -> None:
    plan.epochs.update(prose=2, code=2)
    first, second = plan.documents["train"]
    second[5] = copy_of(first[2], second[5])
    second[6] = copy_of(first[2], second[6])


@names("mix_share")
def share_wrong_in_shards(plan: Plan) -> None:
    """The whole set has its shares; its shards do not."""
    first, second = plan.documents["train"]
    for document in [d for d in first if d.source == "code"][:40]:
        first.remove(document)
        second.append(document)


@names("mix_share")
def share_wrong_in_the_set(plan: Plan) -> None:
    for shard in plan.documents["train"]:
        code = [d for d in shard if d.source == "code"]
        for document in code[:10]:
            shard.remove(document)


@names("mix_share")
def share_wrong_in_val(plan: Plan) -> None:
    shard = plan.documents["val"][0]
    for document in [d for d in shard if d.source == "code"][:20]:
        shard.remove(document)


@names("mix_share")
def requested_tokens_are_not_the_share(folder: Path) -> None:
    edit(
        folder, lambda manifest: manifest["mix"][0].update(requested_tokens=manifest["mix"][0]["requested_tokens"] + 20)
    )
