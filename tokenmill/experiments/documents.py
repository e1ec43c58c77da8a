"""The documents of two sets compared by content hash: how many both hold, how many only one of them does, examples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from shards.format.content_hash import split_column
from shards.format.document_table import iter_documents, number_sources, read_lengths
from shards.format.equal_hashes import find_hashes, mark_first, sort_hashes
from shards.format.manifest import Manifest
from shards.format.reader import ShardSet, open_set
from shards.report.shown_documents import read_shown_document
from shards.stores.files import write_text
from shards.terminal.display import format_json
from shards.terminal.program import Row
from shards.trace.locate import find_places

if TYPE_CHECKING:
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

Documents = npt.NDArray[np.uint64]
"""Documents of a set, `(documents, 6)`: both halves of the hash, source, tokens of all repeats, shard and row."""
_SOURCE, _TOKENS, _PLACE = 2, 3, 4


def record_documents(out: Path, first: Arm, arm: Arm, open_arm: Callable[[Arm], Path]) -> Row:
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
    # The mix of the arm's set is recorded in any case; documents only of another set.
    ours = open_set(open_arm(arm))
    record: Row = {"data": [first.data, arm.data], "first": first.name, "arm": arm.name}
    record |= {"same_set": first.data == arm.data, "other_tokenizer": False, "mix": describe_mix(ours.manifest)}
    record |= {"counts": [], "examples": {"only_first": [], "only_arm": []}}
    if not record["same_set"]:
        base = open_set(open_arm(first))
        record["other_tokenizer"] = base.manifest.tokenizer.sha256 != ours.manifest.tokenizer.sha256
        record["counts"], record["examples"] = compare_documents(base, ours)
    # Read back, so that the first call and later ones return the same.
    file = _record_file(out, arm)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, format_json(record) + "\n")
    return read_record(out, first, arm) or record


def read_record(out: Path, first: Arm, arm: Arm) -> Row | None:
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


def summarize_record(record: Row) -> Row:
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


def describe_mix(manifest: Manifest) -> list[Row]:
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


def compare_documents(first: ShardSet, arm: ShardSet) -> tuple[list[Row], dict[str, list[Row]]]:
    """Compare the training splits of two sets by the content hashes of their documents: 100 bytes of memory each.

    Returns:
        A row for each source with the keys `COUNTED`: a document that both hold counts for its source in the first
        set. And the examples, with their text, as in `record_documents`.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    names = list(dict.fromkeys(source.name for one in (first, arm) for source in one.manifest.sources))
    ours, theirs = (_read_documents(one, names) for one in (first, arm))
    found = find_hashes(*ours[:, :2].T.copy(), *theirs[:, :2].T.copy())
    # Documents of both sets, then those of one alone.
    same = found >= 0
    both, in_arm = ours[same], theirs[found[same]]
    alone = (ours[~same], np.delete(theirs, found[same], axis=0))

    # Each source in turn: what is counted of it, and its examples. Documents come in hash order.
    rows: list[Row] = []
    chosen: tuple[list[list[int]], ...] = ([], [])
    for number, name in enumerate(names):
        is_own = both[:, _SOURCE] == number
        only_first, only_arm = (documents[documents[:, _SOURCE] == number] for documents in alone)
        counts = [int(is_own.sum()), *(_sum_tokens(documents[is_own]) for documents in (both, in_arm))]
        for documents in (only_first, only_arm):
            counts += [len(documents), _sum_tokens(documents)]
        rows.append({"source": name, **dict(zip(COUNTED, counts, strict=True))})
        for places, documents in zip(chosen, (only_first, only_arm), strict=True):
            places += documents[:EXAMPLES, _PLACE:].tolist()
    examples = [_read_examples(one, places, names) for one, places in zip((first, arm), chosen, strict=True)]
    return rows, dict(zip(("only_first", "only_arm"), examples, strict=True))


def _sum_tokens(documents: Documents) -> int:
    return int(documents[:, _TOKENS].sum())


def _read_documents(shard_set: ShardSet, names: list[str]) -> Documents:
    """Return the distinct documents of the training split of a set, in hash order."""
    numbers = {name: index for index, name in enumerate(names)}
    parts = [np.empty((0, 6), np.uint64)]
    for place, shard in enumerate(shard_set.splits.get("train", ())):
        first = 0
        for batch in iter_documents(shard, ["length", "source", "hash"]):
            hashes, lengths = split_column(batch.column("hash")), read_lengths(batch)
            rows = np.arange(first, first + len(lengths))
            sources = number_sources(shard, batch, numbers)
            parts.append(np.array([*hashes.T, sources, lengths, np.full_like(rows, place), rows], np.uint64).T)
            first += len(lengths)
    every = np.concatenate(parts)
    if not len(every):
        return every
    # Repeats of a document follow each other in hash order: their tokens are added up.
    order, _ = sort_hashes(every[:, 0].copy(), every[:, 1].copy())
    every = every[order]
    begins = np.flatnonzero(mark_first(every[:, 0], every[:, 1]))
    distinct = every[begins]
    distinct[:, _TOKENS] = np.add.reduceat(every[:, _TOKENS], begins)
    return distinct


def _read_examples(shard_set: ShardSet, places: list[list[int]], names: list[str]) -> list[Row]:
    """Return documents with the beginnings of their texts, by source and hash."""
    found: list[Row] = []
    for number in sorted({number for number, _ in places}):
        shard = shard_set.splits["train"][number]
        for place in find_places(shard, [row for own, row in places if own == number]):
            shown = read_shown_document(shard, place, shard_set.vocabulary)
            origin = {"file": place.unit.rpartition("@")[0] or place.unit, "row": place.row}
            told = {"source": place.source, "hash": place.hash, "tokens": place.tokens, **origin}
            found.append(told | {"text": shown.text, "whole": shown.whole})
    return sorted(found, key=lambda example: (names.index(example["source"]), example["hash"]))
