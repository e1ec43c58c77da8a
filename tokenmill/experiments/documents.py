"""The documents of two sets compared by content hash: how many both hold, how many only one of them does, examples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from shards.format.content_hash import split_column
from shards.format.document_table import iter_documents, number_sources, read_lengths
from shards.format.equal_hashes import HashRange, divide_hashes, find_hashes, mark_first, sort_hashes
from shards.format.manifest import Manifest
from shards.format.reader import Shard, ShardSet, open_set
from shards.report.shown_documents import read_shown_document
from shards.stores.files import write_text
from shards.terminal.display import format_json
from shards.trace.locate import find_places
from shards.validation.duplicates import PARTITION_DOCUMENTS

if TYPE_CHECKING:
    import numpy.typing as npt

    from tokenmill.experiments.arms import Arm

EXAMPLES = 3
"""Documents of each source that only one of two sets holds and that are shown: those with the lowest hashes."""
SAME_DOCUMENTS = "the same documents"
COUNTED = (
    "both_documents",
    "both_tokens",
    "both_tokens_in_arm",
    "only_first_documents",
    "only_first_tokens",
    "only_arm_documents",
    "only_arm_tokens",
)
"""The counts of each source. Documents are distinct ones; tokens are those in the set, EOS and repeats included."""


class _Documents(NamedTuple):
    """The distinct documents of a set in one range of hashes, in hash order; each array `(documents,)`."""

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    source: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    """Of all its repeats."""
    shard: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]


def record_documents(out: Path, first: Arm, arm: Arm, open_arm: Callable[[Arm], Path]) -> dict[str, Any]:
    """Return what the training split of an arm's set holds, and how its documents differ from those of the first arm.

    The record is kept in OUT/documents/ARM.json; it is read from there if it is of the very same two sets.

    Args:
        out: the folder of the ablation.
        first: the first arm.
        arm: the arm; the record of the first one has only its mix.
        open_arm: makes the set of an arm, if it is missing, and returns its folder.

    Returns:
        `data`, the digests of both sets; `first` and `arm`, their names; `same_set`; `other_tokenizer`; the `mix` of
        the arm's set, a row for each source; `counts`, a row for each source with the keys `COUNTED`; and `examples`:
        documents `only_first` and `only_arm` holds. The last two are empty if both arms have the same set.
    """
    known = read_record(out, first, arm)
    if known is not None:
        return known
    ours = open_set(open_arm(arm))
    record: dict[str, Any] = {"data": [first.data, arm.data], "first": first.name, "arm": arm.name}
    record |= {"same_set": first.data == arm.data, "other_tokenizer": False, "mix": describe_mix(ours.manifest)}
    record |= {"counts": [], "examples": {"only_first": [], "only_arm": []}}
    if not record["same_set"]:
        base = open_set(open_arm(first))
        record["other_tokenizer"] = base.manifest.tokenizer.sha256 != ours.manifest.tokenizer.sha256
        record["counts"], record["examples"] = compare_documents(base, ours)
    file = _record_file(out, arm)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, format_json(record) + "\n")
    return read_record(out, first, arm) or record


def read_record(out: Path, first: Arm, arm: Arm) -> dict[str, Any] | None:
    """Return the record of an arm's documents; None if there is none, or if it is of other sets or names."""
    try:
        record: Any = json.loads(_record_file(out, arm).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(record, dict):
        return None
    expected = {"data": [first.data, arm.data], "first": first.name, "arm": arm.name}
    known = cast("dict[str, Any]", record)
    return known if all(known.get(key) == value for key, value in expected.items()) else None


def summarize_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table of documents: an arm, what is equal in its set, and the sums of its counts."""
    same = record["same_set"]
    sums = {key: None if same else sum(row[key] for row in record["counts"]) for key in COUNTED}
    if same:
        answer = f"the set of {record['first']}"
    elif not sums["only_first_documents"] and not sums["only_arm_documents"]:
        answer = SAME_DOCUMENTS + (", as other tokens" if record["other_tokenizer"] else "")
    else:
        answer = "other documents"
    return {"arm": record["arm"], **sums, "answer": answer}


def _record_file(out: Path, arm: Arm) -> Path:
    return out / "documents" / f"{arm.name}.json"


def describe_mix(manifest: Manifest) -> list[dict[str, Any]]:
    """Return a row for each source of a set's training split: shares, tokens, documents, epochs."""
    entry = manifest.splits.get("train")
    held = entry.sources if entry else {}
    epochs = {source.name: source.epochs for source in manifest.sources}
    return [
        {
            "source": row.source,
            "requested": row.requested,
            "achieved": row.achieved,
            "tokens": row.achieved_tokens,
            "documents": held[row.source].documents if row.source in held else 0,
            "epochs": epochs.get(row.source),
        }
        for row in manifest.mix
    ]


def compare_documents(first: ShardSet, arm: ShardSet) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Compare the training splits of two sets by the content hashes of their documents.

    Hashes are compared one range after the other, so memory does not grow with the sets.

    Returns:
        A row for each source with the keys `COUNTED`: a document that both hold counts for its source in the first
        set. And the examples, with their text, as in `record_documents`.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    sets = (first, arm)
    names = list(dict.fromkeys(source.name for one in sets for source in one.manifest.sources))
    counts = np.zeros((len(COUNTED), len(names)), np.int64)
    chosen: list[list[tuple[int, int]]] = [[], []]  # of each set: places of examples, as shard and row
    left = np.full((2, len(names)), EXAMPLES)
    total = sum(shard.num_documents for one in sets for shard in one.splits.get("train", ()))
    for hashes in divide_hashes(total, PARTITION_DOCUMENTS):
        ours, theirs = (_read_documents(one.splits.get("train", ()), names, hashes) for one in sets)
        found = find_hashes(ours.high, ours.low, theirs.high, theirs.low)
        both, same = np.flatnonzero(found >= 0), found[found >= 0]
        only_arm = np.ones(len(theirs.high), bool)
        only_arm[same] = False
        alone = (np.flatnonzero(found < 0), np.flatnonzero(only_arm))

        # Documents and tokens by source, in the order of COUNTED.
        source = ours.source[both]
        summed = [(source, None), (source, ours.tokens[both]), (source, theirs.tokens[same])]
        for held, own in zip((ours, theirs), alone, strict=True):
            summed += [(held.source[own], None), (held.source[own], held.tokens[own])]
        counts += [_sum_by(sources, values, len(names)) for sources, values in summed]

        # Ranges and documents come in hash order: the first ones have the lowest hashes.
        for side, (held, own) in enumerate(zip((ours, theirs), alone, strict=True)):
            for number in range(len(names)):
                picked = own[held.source[own] == number][: left[side, number]]
                left[side, number] -= len(picked)
                chosen[side] += zip(held.shard[picked].tolist(), held.row[picked].tolist(), strict=True)
    rows = [
        {"source": name, **dict(zip(COUNTED, column, strict=True))}
        for name, column in zip(names, counts.T.tolist(), strict=True)
    ]
    examples = [_read_examples(one, places, names) for one, places in zip(sets, chosen, strict=True)]
    return rows, dict(zip(("only_first", "only_arm"), examples, strict=True))


def _sum_by(sources: npt.NDArray[np.int64], values: npt.NDArray[np.int64] | None, number: int) -> npt.NDArray[np.int64]:
    """Return sums of whole numbers, or counts without them, by source."""
    sums = np.zeros(number, np.int64)
    np.add.at(sums, sources, 1 if values is None else values)  # not `bincount`, which adds in floats
    return sums


def _read_documents(shards: tuple[Shard, ...], names: list[str], hashes: HashRange) -> _Documents:
    """Return the distinct documents of some shards in a range of hashes."""
    numbers = {name: index for index, name in enumerate(names)}
    no_hashes, none = np.empty(0, np.uint64), np.empty(0, np.int64)
    parts = [_Documents(no_hashes, no_hashes, none, none, none, none)]
    for shard_number, shard in enumerate(shards):
        first = 0
        for batch in iter_documents(shard, ["length", "source", "hash"]):
            high, low = split_column(batch.column("hash")).T
            own = np.flatnonzero(hashes.holds(high))
            sources, lengths = number_sources(shard, batch, numbers)[own], read_lengths(batch)[own]
            parts.append(
                _Documents(high[own], low[own], sources, lengths, np.full(len(own), shard_number), own + first)
            )
            first += len(high)
    columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    every = _Documents(*columns)
    if not len(every.high):
        return every
    # Repeats of a document follow each other in hash order.
    order, _ = sort_hashes(every.high, every.low, bits=hashes.bits)
    begins = np.flatnonzero(mark_first(every.high[order], every.low[order]))
    distinct = _Documents(*(column[order[begins]] for column in columns))
    return distinct._replace(tokens=np.add.reduceat(every.tokens[order], begins))


def _read_examples(shard_set: ShardSet, places: list[tuple[int, int]], names: list[str]) -> list[dict[str, Any]]:
    """Return documents with the beginnings of their texts, by source and hash."""
    found: list[dict[str, Any]] = []
    for number in sorted({number for number, _ in places}):
        shard = shard_set.splits["train"][number]
        for place in find_places(shard, [row for own, row in places if own == number]):
            shown = read_shown_document(shard, place, shard_set.vocabulary)
            origin = {"file": place.unit.rpartition("@")[0] or place.unit, "row": place.row}
            told = {"source": place.source, "hash": place.hash, "tokens": place.tokens, **origin}
            found.append(told | {"text": shown.text, "whole": shown.whole})
    return sorted(found, key=lambda example: (names.index(example["source"]), example["hash"]))
