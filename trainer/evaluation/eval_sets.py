"""Eval sets: documents that no training has seen, scored in bits per byte with a standard error by documents.

A document is scored whole, by itself, from its beginning, as after a document boundary in training: one of a set with
BOS begins with it; otherwise an EOS comes before it. Every other token is predicted once, EOS included. A document with
more than `seq_len` tokens to predict is read in windows that predict `seq_len` tokens each; the last window begins
earlier, so that it is full, and tokens that were predicted before count once. So the first token of a later window has
one token of context, and no token is dropped. Source: `get_rolling_token_windows` of lm-evaluation-harness, with a
context of 1.

Bits per byte is the loss of all documents, end-of-document tokens included, over the bytes of their text: it compares
models with different vocabularies. Of text that the tokenizer rewrites, the source's own bytes count, as in validation.
Documents stay in memory: 2 or 4 bytes per token, 30 per document.

Documents that the training set holds too are found by content hash: the column of hashes of every document table of the
training split is read once, batch by batch, so that memory grows with the eval set only.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from shards import ShardSet, open_set
from shards.errors import InputError, any_remedy, plural
from shards.format.arrays import Bools, Float64s, Int64s, Tokens, find_bounds
from shards.format.chat import find_targets
from shards.format.content_hash import split_column
from shards.format.document_table import iter_checked_documents
from shards.format.manifest import MANIFEST_FILE, Split
from shards.format.shard import iter_documents
from shards.format.tokenizer_json import parse_tokenizer
from shards.format.vocabulary import read_vocabulary
from shards.stores.cache import default_cache_folder
from shards.stores.files import lock_folder, write_bytes, write_text
from shards.terminal.arguments import parse_place
from shards.terminal.display import JsonObject
from shards.terminal.reporter import Note, Progress
from trainer.device import add_over_ranks, score_eagerly, share_batches
from trainer.evaluation.scores import Score, check_finite, describe_counts, estimate_ratio
from trainer.model.generate import TrainedModel
from trainer.recipe.eval_config import EvalSetConfig

LENGTH_MULTIPLE = 64
"""Windows of a forward pass are padded to a multiple of this: kernels are chosen for few shapes."""
EXCERPT_BYTES = 200
"""Bytes of a document's text that are shown, from its beginning."""


@dataclass(frozen=True)
class Documents:
    """Whole documents of a shard set, in memory."""

    tokens: Tokens
    bounds: Int64s
    """Where each begins in `tokens`, and where the last one ends, `(documents + 1,)`."""
    targets: Bools
    """Which tokens are predicted, `(tokens,)`: all but BOS, of conversations the answers."""
    text_bytes: Float64s
    """The bytes of the text that is predicted, `(documents,)`."""
    rows: pa.Table
    """Their rows of the document tables: `source`, `unit`, `row` and `hash`."""

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, at: int) -> JsonObject:
        """Return a document's row, with its hash in hex."""
        row = self.rows.slice(at, 1).to_pylist()[0]
        return row | {"hash": row["hash"].hex()}

    def only(self, mask: Bools) -> Documents:
        """Return some of the documents."""
        lengths = np.diff(self.bounds)
        kept = np.repeat(mask, lengths)
        tokens, targets, bounds = self.tokens[kept], self.targets[kept], find_bounds(lengths[mask])
        return Documents(tokens, bounds, targets, self.text_bytes[mask], self.rows.filter(pa.array(mask)))


def describe_origin(row: JsonObject) -> str:
    """Return in words where a document of an eval set or of validation is from, by its row."""
    return f"{row['source']} {row['unit']} row {row['row']}"


@dataclass(frozen=True)
class EvalSet:
    """An eval set, ready to be scored."""

    name: str
    documents: Documents
    notes: JsonObject
    """`sha256` of the content hashes of the documents, which tells them from others; then what was counted: documents
    that are scored, their tokens and bytes, and documents that are not."""

    def score(self, trained: TrainedModel, progress: Progress) -> dict[str, Score]:
        """Return its bits per byte; see `trainer.evaluation.evaluate.Scorer`."""
        documents, name = self.documents, f"{self.name}_bpb"
        nats = measure_document_losses(trained, documents, progress)
        broken: list[int] = np.flatnonzero(~np.isfinite(nats)).tolist()
        check_finite(name, {describe_origin(documents.row(at)): nats[at] for at in broken})
        return {name: estimate_ratio(nats / math.log(2), documents.text_bytes)}


def open_eval_set(config: EvalSetConfig, trained: TrainedModel, say: Note) -> EvalSet:
    """Open an eval set: build it if it is text, read its documents, leave out those that the training set holds.

    Raises:
        InputError: it cannot be built or read, has another tokenizer or no text, or training holds all of it.
    """
    place = f"eval.sets.{config.name}"
    with _open_shard_set(config, trained, say) as shard_set:
        check_set_tokenizer(shard_set, trained, place)
        given = config.split if config.shards else "train"
        split: Split = "val" if given == "val" or (given is None and shard_set.splits.get("val")) else "train"
        documents = read_documents(shard_set, split, config.max_tokens, place)
        if shard_set.vocabulary.keeps != "bytes" and not find_text_scales(shard_set):
            say(f"eval set {config.name}: its bytes count the rewritten text; its set does not count the original")
        # Text is built only until `max_tokens`: what it has beyond is in the counts of the build.
        built = shard_set.manifest.sources[0] if config.shards is None else None
        in_split = sum(shard.num_documents for shard in shard_set.splits.get(split, ()))
    held = find_held_documents(trained.trained_on, documents)
    kept = documents.only(~held)
    if not len(kept):
        raise InputError(
            f"{place}: the training set holds all {plural(len(documents), 'document')} of it, by content hash. Leave "
            "its text out of the data recipe's sources, or evaluate on other text."
        )
    notes = {
        "sha256": hashlib.sha256(split_column(kept.rows["hash"].combine_chunks()).tobytes()).hexdigest(),
        "documents": len(kept),
        "tokens": len(kept.tokens),
        "bytes": round(kept.text_bytes.sum()),
        "held_by_training": int(held.sum()) if trained.trained_on is not None else None,
        "past_max_tokens": (built.documents_available if built else in_split) - len(documents),
    }
    if built:
        notes |= {"unread_bytes": built.unread_bytes, "dropped": built.dropped}
    say(f"eval set {config.name}: {describe_counts(notes)}")
    return EvalSet(config.name, kept, notes)


def check_set_tokenizer(shard_set: ShardSet, trained: TrainedModel, place: str) -> None:
    """Refuse a set, named at a place, that has another tokenizer than a model."""
    found, expected = shard_set.manifest.tokenizer.sha256, trained.tokenizer_sha256
    if found != expected:
        raise InputError(
            f"{place}: {shard_set.store} has a tokenizer with the sha256 {found}; expected the model's, {expected}. "
            "Build it with `tokenizer.file` = the model's tokenizer.json, or give an eval set its text as paths."
        )


def read_documents(shard_set: ShardSet, split: Split, max_tokens: int, place: str) -> Documents:
    """Read the documents of an eval set's split from its start: whole ones within a number of tokens, or the first.

    Raises:
        InputError: the split has no document, or the tokenizer's entries have no fixed bytes.
        ShardSetError: a file is not what the manifest says.
    """
    tables: list[pa.Table] = []
    parts: list[Tokens] = []
    room = max_tokens
    for shard in shard_set.splits.get(split, ()):
        if not shard.num_documents:
            continue
        # The rows that still fit; of the first shard with documents one row in any case.
        batches = iter_checked_documents(shard, ["source", "unit", "row", "hash"])
        table = pa.Table.from_batches(batch for batch, _, _ in batches)
        ends = np.cumsum(table["length"].to_numpy(), dtype=np.int64)
        count = max(int(np.searchsorted(ends, room, "right")), 0 if tables else 1)
        tables.append(table.slice(0, count))
        parts.append(shard.read(0, int(ends[count - 1]) if count else 0))
        room -= len(parts[-1])
        if count < len(ends):
            break
    if not tables:
        raise InputError(f"{place}: {shard_set.store} has no document in its {split} split. Give it text.")
    rows, tokens = pa.concat_tables(tables).unify_dictionaries().combine_chunks(), np.concatenate(parts)
    bounds = find_bounds(rows["length"].to_numpy())

    # The bytes of each document's text, as its source has it if the tokenizer rewrote it.
    targets = find_targets(shard_set.manifest, tokens, bounds)
    if shard_set.bos_id is not None:
        targets[bounds[:-1]] = False
    sizes = np.add.reduceat(shard_set.vocabulary.text_lengths()[tokens] * targets, bounds[:-1]).astype(np.float64)
    scales = find_text_scales(shard_set)
    text_bytes = sizes * [scales.get(str(source), 1.0) for source in rows["source"].to_pylist()]
    return Documents(tokens, bounds, targets, text_bytes, rows.drop_columns(["start", "length"]))


RECIPE_FILE, TOKENIZER_FILE, SET_FOLDER = "recipe.json", "tokenizer.json", "set"


@contextlib.contextmanager
def _open_shard_set(config: EvalSetConfig, trained: TrainedModel, say: Note) -> Generator[ShardSet]:
    """Open the shard set of an eval set: the one that it names, or one that is built of its text, in a cache.

        CACHE/DIGEST/recipe.json       the data recipe that the trainer wrote: one source, the run's tokenizer
        CACHE/DIGEST/tokenizer.json
        CACHE/DIGEST/set, set.work     what `tokenmill build`, as a program, makes of them

    CACHE is `tokenmill/eval_sets` in XDG_CACHE_HOME or ~/.cache. DIGEST is that of the source's keys, `max_tokens` and
    the tokenizer. The build runs again whenever the eval set is opened: the pipeline compares the source's files with
    those that it has read, and does nothing if none has changed. Others, such as the ranks of a run, wait for it: no
    other process changes the set while it is open.

    Raises:
        InputError: the set cannot be opened; or the keys of the source, its files or the tokenizer cannot be used.
    """
    place = f"eval.sets.{config.name}"
    if config.shards is not None:
        try:
            shard_set = open_set(parse_place(config.shards))
        except (InputError, OSError) as error:
            raise InputError(f"{place}.shards = {config.shards!r}: {error}") from error
        yield shard_set
        return
    if "weight" in config.source:
        raise InputError(f"{place}.weight: unknown key. An eval set is one source: leave it out.")
    chat = trained.chat
    if chat is None and "messages" in config.source:
        raise InputError(f"{place}.messages: the model was trained on no conversations. Name a column of `text`.")
    names = {token: text for text, token in parse_tokenizer(trained.tokenizer_json).special.items()}
    bos = {} if trained.bos_id is None else {"bos": names[trained.bos_id]}
    recipe = {
        "name": "eval-set",
        "sources": [{**config.source, "name": config.name, "weight": 1}],
        "tokenizer": {"file": TOKENIZER_FILE, "eos_token": names[trained.eos_id], **bos},
        "mix": {"tokens": config.max_tokens, "when_short": "shrink"},
        **({"chat": {"before": chat.before, "after": chat.after}} if chat and "messages" in config.source else {}),
    }
    content = json.dumps(recipe, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    digest = hashlib.sha256(f"{trained.tokenizer_sha256}\n{content}".encode()).hexdigest()[:32]
    folder = default_cache_folder().parent / "eval_sets" / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder, wait=f"eval set {config.name}: another process builds it in {folder}"):
            if not (folder / SET_FOLDER / MANIFEST_FILE).is_file():
                say(f"eval set {config.name}: encoding the text into {folder}")
            write_bytes(folder / TOKENIZER_FILE, trained.tokenizer_json)
            write_text(folder / RECIPE_FILE, content)
            _run_build(config.name, folder)
            yield open_set(folder / SET_FOLDER)
    except OSError as error:
        raise InputError(
            f"{place}: {folder} cannot be used: {error.strerror or error}{any_remedy(error)} XDG_CACHE_HOME chooses "
            "another cache."
        ) from error


def _run_build(name: str, folder: Path) -> None:
    """Run the pipeline on a recipe in the cache; an InputError has the problems for which it refuses it, or fails."""
    # A program, since the trainer imports no pipeline. -P: a folder `pipeline` in the working directory is not it.
    command = [sys.executable, "-P", "-m", "tokenmill", "build", RECIPE_FILE, "--out", SET_FOLDER, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    try:
        found: list[str | dict[str, str]] = json.loads(done.stdout)["problems"]
        problems = [one if isinstance(one, str) else f"{one['where']}: {one['message']}" for one in found]
    except (ValueError, KeyError, TypeError):
        problems = [done.stderr[-2000:].strip() or f"exit status {done.returncode}"]
    *others, last = (f"eval.sets.{name}: {problem.removeprefix(f'{RECIPE_FILE}: ')}" for problem in problems)
    raise InputError([*others, f"{last} Or leave the eval sets out: --set 'eval.sets=[]'."])


def find_held_documents(shard_set: ShardSet | None, documents: Documents) -> Bools:
    """Return which of an eval set's documents the training split of a set, if it is known, holds: bool `(documents,)`.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    import pyarrow.compute as pc

    hashes = documents.rows["hash"].combine_chunks()
    held = np.zeros(len(hashes), np.bool_)
    for shard in shard_set.splits.get("train", ()) if shard_set is not None else ():
        for batch in iter_documents(shard, ["hash"]):
            own = batch.column("hash")
            found = own.filter(pc.is_in(own, value_set=hashes))
            if len(found):
                held |= pc.is_in(hashes, value_set=pc.unique(found)).to_numpy(zero_copy_only=False)
    return held


def find_worst_documents(
    trained: TrainedModel, group: str, documents: Documents, limit: int, progress: Progress
) -> list[JsonObject]:
    """Return the documents of eval sets with the most bits per byte, the worst first; one not finite is worst.

    Args:
        trained: the model, in evaluation mode, without gradients.
        group: the name of the eval set, or `val`.
        documents: the documents.
        limit: how many to return.
        progress: told how many documents are done, and of how many.

    Returns:
        For each its `set` (the group), `bits_per_byte`, `bytes` of its text, `source`, `unit` and `row`, `hash` in hex,
        and an `excerpt`, the beginning of its text; bytes that are not UTF-8 are lone surrogates.
    """
    nats = measure_document_losses(trained, documents, progress)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = nats / math.log(2) / documents.text_bytes
    bits[~np.isfinite(bits)] = np.inf
    vocabulary = replace(read_vocabulary(trained.tokenizer_json), bos=trained.bos_id)
    found: list[JsonObject] = []
    for at in np.argsort(-bits, kind="stable")[:limit].tolist():
        begin, end = documents.bounds[at], documents.bounds[at + 1]
        text = vocabulary.decode_document(documents.tokens[begin : min(end - 1, begin + EXCERPT_BYTES)])
        found.append(
            {
                "set": group,
                "bits_per_byte": float(bits[at]),
                "bytes": round(float(documents.text_bytes[at])),
                **documents.row(at),
                "excerpt": text[:EXCERPT_BYTES].decode("utf-8", "surrogateescape"),
            }
        )
    return found


def find_text_scales(shard_set: ShardSet) -> dict[str, float]:
    """Return the bytes of text for each byte of tokens, of sources that the tokenizer rewrote."""
    counted = {source.name: source.rewriting for source in shard_set.manifest.sources}
    return {name: own.text_bytes / own.token_bytes for name, own in counted.items() if own and own.token_bytes}


class _Window(NamedTuple):
    document: int
    start: int
    """The first input, as an index into the document with the boundary token before it."""
    length: int
    """Inputs, and targets: each is the token after its input."""
    skipped: int
    """Targets at the start that an earlier window has predicted."""


def measure_document_losses(trained: TrainedModel, documents: Documents, progress: Progress) -> Float64s:
    """Return the loss of each document's targets in nats, float64 `(documents,)`.

    Ranks take turns at the forward passes, and all of them have the same sums.

    Args:
        trained: the model, in evaluation mode, without gradients.
        documents: the documents.
        progress: told how many documents are done, and of how many.
    """
    tokens, bounds = documents.tokens, documents.bounds
    before = 1 if trained.bos_id is None else 0  # an EOS is put before documents without BOS
    lengths = np.diff(bounds) - 1 + before
    seq_len, device = trained.train.seq_len, trained.device
    windows = sorted(_cut_windows(lengths.tolist(), seq_len), key=lambda one: -one.length)
    sizes = [min(-(-window.length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, seq_len) for window in windows]
    sums = torch.zeros(len(lengths), dtype=torch.float64, device=device)
    for part, counts in share_batches(sizes, trained.rows * seq_len, len(lengths), progress):
        # Attention is causal, so the padding at the end changes no loss before it; its losses are not counted.
        batch, width = windows[part], sizes[part][0]
        content = np.full((len(batch), width + 1), trained.eos_id, np.int64)
        counted = np.zeros((len(batch), width), np.bool_)
        for row, (document, start, length, skipped) in enumerate(batch):
            # With an EOS before the document, its index 0 is that EOS.
            begin = bounds[document] + start - before
            own = tokens[max(begin, bounds[document]) : begin + length + 1]
            content[row, length + 1 - len(own) : length + 1] = own
            counted[row, skipped:length] = documents.targets[begin + 1 :][skipped:length]
        losses = measure_losses(trained, torch.from_numpy(content)).mul(torch.from_numpy(counted).to(device))
        if counts:
            numbers = torch.tensor([window.document for window in batch], device=device)
            sums.index_add_(0, numbers, losses.sum(-1))
    add_over_ranks(sums)
    return sums.cpu().numpy()


def _cut_windows(lengths: list[int], seq_len: int) -> Iterator[_Window]:
    for document, length in enumerate(lengths):
        for start in range(0, length, seq_len):
            # The last window begins earlier if it can, so that its tokens have more context.
            begin = max(0, min(start, length - seq_len))
            yield _Window(document, begin, min(seq_len, length - begin), start - begin)


def measure_losses(trained: TrainedModel, windows: torch.Tensor) -> torch.Tensor:
    """Return the loss in nats of each token of some windows but their first, float64 `(windows, length - 1)`."""
    return measure_labels(trained, windows[:, :-1], windows[:, 1:], trained.number_documents(windows[:, :-1]))


def measure_labels(
    trained: TrainedModel, ids: torch.Tensor, labels: torch.Tensor, documents: torch.Tensor | None
) -> torch.Tensor:
    """Return the loss in nats of each label of a batch, 0 of -100, float64 `(samples, length)`."""
    ids, labels = ids.to(trained.device), labels.to(trained.device)
    documents = documents if documents is None else documents.to(trained.device)
    with score_eagerly(trained.train.precision, trained.device):
        return trained.model(ids, labels, reduction="none", documents=documents).double()
