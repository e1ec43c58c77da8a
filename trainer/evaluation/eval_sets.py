"""Eval sets: documents that no training has seen, scored in bits per byte with a standard error by documents.

A document is scored whole, as `trainer.evaluation.document_losses` describes. Bits per byte is the loss of all
documents, end-of-document tokens included, over the bytes of their text: it compares models with different
vocabularies. Where the tokenizer rewrites text, the bytes of tokens are scaled to those of the source's own text, as
for the validation split. The documents that are scored stay in memory: 2 or 4 bytes a token, 30 a document.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shards import ShardSet, open_set
from shards.errors import InputError, plural
from shards.format.content_hash import split_hashes
from shards.format.document_table import iter_checked_documents, read_hashes, read_lengths
from shards.format.manifest import Split
from shards.format.reader import Shard
from shards.terminal.arguments import parse_place
from shards.terminal.reporter import Note, Progress
from trainer.eval_config import EvalSetConfig
from trainer.evaluation.document_losses import measure_documents
from trainer.evaluation.eval_set_builds import build_text_set
from trainer.evaluation.evaluated_model import EvaluatedModel
from trainer.evaluation.held_documents import find_held_documents
from trainer.evaluation.scores import Scores, check_finite, estimate_ratio
from trainer.evaluation.validation import find_text_scales


class Origin(NamedTuple):
    """Where a document of an eval set is from."""

    source: str
    unit: str
    row: int

    def __str__(self) -> str:
        return f"{self.source} {self.unit} row {self.row}"


@dataclass(frozen=True)
class Documents:
    """Whole documents of a shard set, in memory."""

    tokens: npt.NDArray[np.unsignedinteger]
    bounds: npt.NDArray[np.int64]
    """Where each begins in `tokens`, and where the last one ends, `(documents + 1,)`."""
    text_bytes: npt.NDArray[np.float64]
    """The bytes of their text, `(documents,)`."""
    hashes: npt.NDArray[np.uint64]
    """The halves of their content hashes, `(documents, 2)`."""
    origins: list[Origin]

    def __len__(self) -> int:
        return len(self.origins)

    def only(self, mask: npt.NDArray[np.bool_]) -> Documents:
        """Return some of the documents."""
        lengths = np.diff(self.bounds)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[mask])])
        origins = [origin for origin, kept in zip(self.origins, mask.tolist(), strict=True) if kept]
        tokens = self.tokens[np.repeat(mask, lengths)]
        return Documents(tokens, bounds, self.text_bytes[mask], self.hashes[mask], origins)


@dataclass(frozen=True)
class EvalSet:
    """An eval set, ready to be scored."""

    name: str
    documents: Documents
    notes: dict[str, Any]
    """`sha256` of the content hashes of the documents, which tells them from others; then what was counted: documents
    that are scored, their tokens and bytes, and documents that are not."""

    def score(self, evaluated: EvaluatedModel, progress: Progress) -> Scores:
        """Return bits per byte; see `Scorer.score`."""
        score_name, documents = f"{self.name}_bpb", self.documents
        nats = measure_documents(evaluated, documents.tokens, documents.bounds, progress)
        check_finite(score_name, {str(documents.origins[at]): nats[at] for at in np.flatnonzero(~np.isfinite(nats))})
        bits = nats / math.log(2)
        return Scores({score_name: estimate_ratio(bits, documents.text_bytes)}, {self.name: self.notes})


def open_eval_set(config: EvalSetConfig, evaluated: EvaluatedModel, say: Note) -> EvalSet:
    """Open an eval set: build it if it is text, read its documents, leave out those that the training set holds.

    Raises:
        InputError: it cannot be built or read, has another tokenizer or no text, or training holds all of it.
    """
    place = f"eval.sets.{config.name}"
    with _open_shard_set(config, evaluated, say) as shard_set:
        if shard_set.manifest.tokenizer.sha256 != evaluated.tokenizer_sha256:
            found = f"{shard_set.store} has a tokenizer with the sha256 {shard_set.manifest.tokenizer.sha256}"
            expected = f"expected the model's, {evaluated.tokenizer_sha256}"
            remedy = "Give its text as paths, or build it with `tokenizer.file` = the training set's tokenizer.json."
            raise InputError(f"{place}: {found}; {expected}. {remedy}")
        given = config.split if config.shards else "train"
        split: Split = "val" if given == "val" or (given is None and shard_set.splits.get("val")) else "train"
        documents = read_documents(shard_set, split, config.max_tokens, place)
        if shard_set.vocabulary.keeps != "bytes" and not find_text_scales(shard_set):
            say(
                f"eval set {config.name}: its bytes are those of rewritten text: its set does not count the text before"
            )
        # Text is built only until `max_tokens`: what it has beyond is in the counts of the build.
        built = shard_set.manifest.sources[0] if config.shards is None else None
        in_split = sum(shard.num_documents for shard in shard_set.splits.get(split, ()))
    held = np.zeros(len(documents), np.bool_)
    if evaluated.trained_on is not None:
        held = find_held_documents(evaluated.trained_on, documents.hashes, config.name, show=evaluated.rank == 0)
    kept = documents.only(~held)
    if not len(kept):
        found = f"the training set holds all {plural(len(documents), 'document')} of it"
        remedy = "Leave its text out of the data recipe's sources, or evaluate on other text."
        raise InputError(f"{place}: {found}, by content hash. {remedy}")
    notes = {
        "sha256": hashlib.sha256(kept.hashes.tobytes()).hexdigest(),
        "documents": len(kept),
        "tokens": len(kept.tokens),
        "bytes": round(kept.text_bytes.sum()),
        "held_by_training": int(held.sum()) if evaluated.trained_on is not None else None,
        "past_max_tokens": (built.documents_available if built else in_split) - len(documents),
    }
    if built:
        notes |= {"unread_bytes": built.unread_bytes, "dropped": built.dropped}
    say(f"eval set {config.name}: {describe_notes(notes)}")
    return EvalSet(config.name, kept, notes)


def describe_notes(notes: dict[str, Any]) -> str:
    """Return in words what an eval set counts."""
    size = f"{plural(notes['bytes'], 'byte')} in {plural(notes['tokens'], 'token')}"
    parts = [f"{plural(notes['documents'], 'document')} of {size}"]
    if notes["held_by_training"] is None:
        parts.append("documents held by training are not known")
    elif notes["held_by_training"]:
        parts.append(f"{plural(notes['held_by_training'], 'document')} held by training left out")
    if notes["past_max_tokens"]:
        parts.append(f"{plural(notes['past_max_tokens'], 'document')} past max_tokens not scored")
    if notes.get("unread_bytes"):
        parts.append(f"{plural(notes['unread_bytes'], 'stored byte')} past max_tokens not read")
    if dropped := notes.get("dropped"):
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in dropped.items())
        parts.append(f"{plural(sum(dropped.values()), 'record')} dropped ({reasons})")
    return ", ".join(parts)


def read_documents(shard_set: ShardSet, split: Split, max_tokens: int, place: str) -> Documents:
    """Read the documents of a split from its start: whole ones that fit into a number of tokens, or else the first.

    Raises:
        InputError: the split has no document, or the tokenizer's entries have no fixed bytes.
        ShardSetError: a file is not what the manifest says.
    """
    shards = shard_set.splits.get(split, ())
    tokens, lengths = list[npt.NDArray[np.unsignedinteger]](), [np.empty(0, np.int64)]
    hashes, origins = [np.empty((0, 2), np.uint64)], list[Origin]()
    left = max_tokens
    for shard in shards:
        taken = _read_rows(shard, left, at_least=0 if origins else 1)
        count = int(taken.lengths.sum())
        tokens.append(shard.read(0, count))
        lengths.append(taken.lengths)
        hashes.append(taken.hashes)
        origins += taken.origins
        left -= count
        if len(taken.lengths) < shard.num_documents:
            break
    if not origins:
        raise InputError(f"{place}: {shard_set.store} has no document in its {split} split. Give it text.")
    content, bounds = (
        np.concatenate(tokens),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))]),
    )
    return Documents(
        content, bounds, _measure_text(shard_set, content, bounds, origins), np.concatenate(hashes), origins
    )


class _Rows(NamedTuple):
    lengths: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    origins: list[Origin]


def _read_rows(shard: Shard, most_tokens: int, *, at_least: int) -> _Rows:
    """Return the first rows of a shard's document table, with no more tokens than that, but `at_least` so many rows."""
    rows = _Rows(np.empty(0, np.int64), np.empty((0, 2), np.uint64), [])
    for batch in iter_checked_documents(shard, ["length", "source", "unit", "row", "hash"]):
        lengths = read_lengths(batch)
        room = most_tokens - int(rows.lengths.sum())
        count = max(int(np.searchsorted(np.cumsum(lengths), room, "right")), at_least - len(rows.lengths))
        table: dict[str, list[Any]] = batch.slice(0, count).select(["source", "unit", "row"]).to_pydict()
        rows = _Rows(
            np.concatenate([rows.lengths, lengths[:count]]),
            np.concatenate([rows.hashes, split_hashes(read_hashes(batch))[:count]]),
            [*rows.origins, *map(Origin, table["source"], table["unit"], table["row"])],
        )
        if count < len(lengths):
            break
    return rows


def _measure_text(
    shard_set: ShardSet,
    tokens: npt.NDArray[np.unsignedinteger],
    bounds: npt.NDArray[np.int64],
    origins: Sequence[Origin],
) -> npt.NDArray[np.float64]:
    """Return the bytes of each document's text, as its source has it if the tokenizer rewrote it, `(documents,)`."""
    sizes = np.add.reduceat(shard_set.vocabulary.text_lengths()[tokens], bounds[:-1]).astype(np.float64)
    scales = find_text_scales(shard_set)
    return sizes * [scales.get(origin.source, 1.0) for origin in origins]


@contextlib.contextmanager
def _open_shard_set(config: EvalSetConfig, evaluated: EvaluatedModel, say: Note) -> Generator[ShardSet]:
    """Open the shard set of an eval set: the one that it names, or one that the pipeline makes of its text."""
    if config.shards is None:
        with build_text_set(config, evaluated, say) as shard_set:
            yield shard_set
        return
    try:
        shard_set = open_set(parse_place(config.shards))
        shard_set.manifest  # noqa: B018  # read here, so that a place without a set is told as such
    except (InputError, OSError) as error:
        raise InputError(f"eval.sets.{config.name}.shards = {config.shards!r}: {error}") from error
    yield shard_set
