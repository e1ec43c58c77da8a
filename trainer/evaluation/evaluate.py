"""What a model is worth: its loss on the validation split, and its scores on eval sets and eval tasks.

The document table gives the source of every target token. The val split is read from its start, in windows of seq_len
tokens, without shuffling, up to a number of targets. So every validation uses the same tokens. A shorter last window
is evaluated too; only the first token of each shard is never a target. Contexts cross document ends as in training.

With packed rows whole documents are read instead, each from its beginning, up to a number of tokens, and only targets
count; parts are of documents in the set's order.

The losses of `PARTS` equal parts of the targets tell the standard error, as if those were independent; parts shorter
than a window are not. Runs on one set have the same parts, so the error of a difference is known far better.

Bits per byte is the cost of transmitting the text: the loss of all targets, end-of-document tokens included, divided by
the bytes of their text (an end-of-document token has none). It compares models with different vocabularies. Where the
tokenizer rewrites text, the bytes of each source's tokens are scaled to the bytes of its own text, which its build
counted.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from shards import ShardSet
from shards.format.arrays import Float64s, Int64s, Rows
from shards.format.document_table import number_token_sources
from shards.terminal.display import JsonObject
from shards.terminal.reporter import Note, Progress, no_progress
from trainer.evaluation.eval_sets import (
    EvalSet,
    find_text_scales,
    measure_document_losses,
    measure_losses,
    open_eval_set,
    read_documents,
)
from trainer.evaluation.eval_tasks import OpenTask, open_eval_task
from trainer.evaluation.scores import PERPLEXITY, find_perplexity
from trainer.model.generate import TrainedModel
from trainer.recipe.eval_config import EvalConfig

PARTS = 32
"""Parts of the validation's targets, if they are no shorter than a window."""
Weights = tuple[Float64s, Float64s, Rows]
"""Of each target or document the loss in nats, the targets, and the bytes of their text."""


Scorer = EvalSet | OpenTask
"""An eval set or an eval task, ready to be scored. It has

- `name`: that in the recipe;
- `notes`: `sha256` of what is scored, which tells it from other text, and what was counted;
- `score(trained, progress)`: returns the scores of a model in evaluation mode, without gradients. Every rank calls it.
  A number that is not finite is a `RunError`.
"""


def open_scorers(config: EvalConfig, trained: TrainedModel, say: Note) -> list[Scorer]:
    """Open the eval sets and eval tasks of a recipe.

    Raises:
        InputError: one cannot be scored; the message names it.
    """
    sets = [open_eval_set(one, trained, say) for one in config.sets]
    return [*sets, *(open_eval_task(one, trained, say) for one in config.tasks)]


@torch.no_grad()
def evaluate(
    trained: TrainedModel,
    max_tokens: int,
    scorers: Sequence[Scorer],
    show: Callable[[str], contextlib.AbstractContextManager[Progress]],
) -> JsonObject:
    """Validate and score a model; every rank calls it, and has the same scores.

    Args:
        trained: the model, in evaluation mode; without validation tokens in the set that it was trained on, it is only
            scored.
        max_tokens: number of targets of the validation, 8 bytes of memory each; fewer if the split is smaller.
        scorers: of `open_scorers`.
        show: called with the name of each; its context shows the progress.

    Returns:
        A validation line of metrics.jsonl; what is not known is None. With scorers it has the `scores` by name, and
        `score_notes` by eval set or task: what was counted, such as documents that were left out.

    Raises:
        RunError: a number of a score is not finite.
        ShardSetError: a shard is corrupt.
    """
    found = _validate(trained, max_tokens)
    scores: JsonObject = {}
    for scorer in scorers:
        with show(scorer.name) as progress:
            scores |= scorer.score(trained, progress)
    return found | ({"scores": scores, "score_notes": {one.name: one.notes for one in scorers}} if scores else {})


def _validate(trained: TrainedModel, max_tokens: int) -> JsonObject:
    shard_set = trained.trained_on
    if shard_set is None or not any(shard.num_tokens > 1 for shard in shard_set.splits.get("val", ())):
        return {}
    names = shard_set.manifest.source_names
    sums = np.zeros((3, len(names)))  # of each source the loss in nats, the targets, the bytes of their text
    measured: list[Weights] = []
    packed = trained.train.rows == "packed"
    for sources, weights in (_measure_documents if packed else _measure_windows)(trained, shard_set, max_tokens):
        measured.append(weights)
        sums += [np.bincount(sources, own, minlength=len(names)) for own in weights]
    # Where the tokenizer rewrote text, its tokens have other bytes than the text of the source.
    scales = {} if packed else find_text_scales(shard_set)
    sums[2] *= [scales.get(name, 1.0) for name in names]
    losses, counts, _ = map(np.concatenate, zip(*measured, strict=True))
    parts = [*zip(np.array_split(losses, PARTS), np.array_split(counts, PARTS), strict=True)]
    whole = min(int(count.sum()) for _, count in parts) >= trained.train.seq_len
    means = [round(float(part.sum() / count.sum()), 6) for part, count in parts if whole]
    by_source = {name: row for name, row in zip(names, sums.T, strict=True) if row[1]}
    total = sum(by_source.values(), start=np.zeros(3))
    loss = float(total[0] / total[1])
    return {
        "val_tokens": int(total[1]),
        "val_loss": loss,
        PERPLEXITY: find_perplexity(loss),
        "val_loss_by_part": means,
        "val_bits_per_byte": _bits(total),
        "val_loss_by_source": {name: float(row[0] / row[1]) for name, row in by_source.items()},
        "val_bits_per_byte_by_source": {name: _bits(row) for name, row in by_source.items()},
    }


def _measure_windows(trained: TrainedModel, shard_set: ShardSet, max_tokens: int) -> Iterator[tuple[Int64s, Weights]]:
    """Yield the source of each target of validation, and the losses, counts and bytes of targets, shard by shard."""
    numbers, token_bytes = shard_set.source_numbers, shard_set.vocabulary.text_lengths()
    for shard in shard_set.splits["val"]:
        targets = min(shard.num_tokens - 1, max_tokens)
        if targets <= 0:
            continue
        max_tokens -= targets
        # The first token of a shard has nothing before it: it is never a target.
        content = shard.read(0, targets + 1).astype(np.int64)
        # The last window is padded. Attention is causal, so the padding changes no loss before it; its losses are cut
        # off. A short text is not padded to a whole window: a run's state may say any length.
        width = min(trained.train.seq_len, targets + -targets % 64)
        windows = F.pad(torch.from_numpy(content), (0, -targets % width)).unfold(0, width + 1, width)
        parts = [measure_losses(trained, part).cpu() for part in windows.split(trained.rows)]
        losses = torch.cat(parts).flatten()[:targets].numpy()
        sources = number_token_sources(shard, numbers, targets + 1)[1:]
        yield sources, (losses, np.ones(targets), token_bytes[content[1:]])


def _measure_documents(trained: TrainedModel, shard_set: ShardSet, max_tokens: int) -> Iterator[tuple[Int64s, Weights]]:
    """Yield the source of each document of validation, and the losses, counts and bytes of their targets."""
    documents = read_documents(shard_set, "val", max_tokens, "validation")
    numbers = [shard_set.source_numbers[str(name)] for name in documents.rows["source"].to_pylist()]
    counts = np.add.reduceat(documents.targets, documents.bounds[:-1], dtype=np.float64)
    nats = measure_document_losses(trained, documents, no_progress)
    yield np.array(numbers), (nats, counts, documents.text_bytes)


def _bits(row: Float64s) -> float | None:
    return float(row[0] / math.log(2) / row[2]) if row[2] else None
