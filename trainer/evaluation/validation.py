"""Validation loss by source, in nats per token and bits per byte.

The document table gives the source of every target token. The val split is read from its start, in windows of seq_len
tokens, without shuffling, up to a number of targets. So every validation uses the same tokens. A shorter last window
is evaluated too; only the first token of each shard is never a target. Contexts cross document ends as in training.

The losses of `PARTS` equal parts of the targets tell the standard error, as if those were independent; parts shorter
than a window are not. Runs on one set have the same parts, so the error of a difference is known far better.

Bits a byte is the cost of transmitting the text: the loss of all targets, end-of-document tokens included, divided by
the bytes of their text (an end-of-document token has none). It compares models with different vocabularies. Where the
tokenizer rewrites text, the bytes of each source's tokens are scaled to the bytes of its own text, which its build
counted.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F

from shards import ShardSet
from shards.format.arrays import Float64s
from shards.format.document_table import number_token_sources
from shards.terminal.display import JsonObject
from shards.torch.batch import number_documents
from trainer.device import score_eagerly
from trainer.model.decoder import LanguageModel
from trainer.recipe import TrainConfig
from trainer.recipe.schema import ChosenPrecision

PARTS = 32
"""Parts of the validation's targets, if they are no shorter than a window."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model to score, with what decides how it reads text."""

    model: LanguageModel
    train: TrainConfig
    """How the model was trained: `seq_len` and `document_mask`; `micro_batch` sizes the forward passes."""
    precision: ChosenPrecision
    tokenizer_json: bytes
    """The content of `tokenizer.json`."""
    eos_id: int
    bos_id: int | None
    """The token that begins each document, in a set that has one; else an EOS came before each document."""
    trained_on: ShardSet | None
    """The set that the model was trained on; None if it is not known."""

    @property
    def rows(self) -> int:
        """The windows in a forward pass of validation: uncompiled, each takes more memory than in training."""
        return max(1, self.train.micro_batch // 4)

    @cached_property
    def tokenizer_sha256(self) -> str:
        """The digest of the `tokenizer.json` of the validated model."""
        return hashlib.sha256(self.tokenizer_json).hexdigest()


def evaluate(evaluated: EvaluatedModel, shard_set: ShardSet, max_tokens: int) -> JsonObject:
    """Return a model's validation on the val split of a set as a line of metrics.jsonl; what is not known is None.

    Args:
        evaluated: the model, in evaluation mode. `train` says the targets in a window (`seq_len`) and
            `document_mask`.
        shard_set: the set; its val split holds at least two tokens.
        max_tokens: number of targets, 8 bytes of memory each; fewer if the split is smaller.

    Raises:
        ShardSetError: a shard is corrupt.
    """
    names = [source.name for source in shard_set.manifest.sources]
    sums = np.zeros((3, len(names)))  # of each source the loss in nats, the targets, the bytes of their text
    losses: list[Float64s] = []
    token_bytes, text_scales = shard_set.vocabulary.text_lengths(), find_text_scales(shard_set)
    for shard in shard_set.splits["val"]:
        targets = min(shard.num_tokens - 1, max_tokens)
        if targets <= 0:
            continue
        max_tokens -= targets
        # The first token of a shard has nothing before it: it is never a target.
        content = shard.read(0, targets + 1).astype(np.int64)
        losses.append(_token_losses(evaluated, torch.from_numpy(content)))
        sources = number_token_sources(shard, names, targets + 1)[1:]
        weights = (losses[-1], np.ones(targets), token_bytes[content[1:]])
        sums += [np.bincount(sources, own, minlength=len(names)) for own in weights]
    # Where the tokenizer rewrote text, its tokens have other bytes than the text of the source.
    sums[2] *= [text_scales.get(name, 1.0) for name in names]
    parts = np.array_split(np.concatenate(losses), PARTS)
    means = [round(float(part.mean()), 6) for part in parts if len(parts[-1]) >= evaluated.train.seq_len]
    by_source = {name: sums[:, index] for index, name in enumerate(names) if sums[1, index]}
    total = sum(by_source.values(), start=np.zeros(3))
    return {
        "val_tokens": int(total[1]),
        "val_loss": float(total[0] / total[1]),
        "val_loss_by_part": means,
        "val_bits_per_byte": _bits(total),
        "val_loss_by_source": {name: float(row[0] / row[1]) for name, row in by_source.items()},
        "val_bits_per_byte_by_source": {name: _bits(row) for name, row in by_source.items()},
    }


def find_text_scales(shard_set: ShardSet) -> dict[str, float]:
    """Return for validation the bytes of text for each byte of tokens, of sources that the tokenizer rewrote."""
    counted = {source.name: source.rewriting for source in shard_set.manifest.sources}
    return {name: own.text_bytes / own.token_bytes for name, own in counted.items() if own and own.token_bytes}


def _bits(row: Float64s) -> float | None:
    return float(row[0] / math.log(2) / row[2]) if row[2] else None


@torch.no_grad()
def _token_losses(evaluated: EvaluatedModel, content: torch.Tensor) -> Float64s:
    """Return the validation loss of each token but the first, float64 `(len(content) - 1,)`."""
    model, train, targets = evaluated.model, evaluated.train, len(content) - 1
    device = next(model.parameters()).device
    # The last window is padded. Attention is causal, so the padding changes no loss before it; its losses are cut off.
    # A short text is not padded to a whole window: a run's state may say any length.
    width = min(train.seq_len, targets + -targets % 64)
    padded = F.pad(content, (0, -targets % width))
    parts: list[torch.Tensor] = []
    for windows in padded.unfold(0, width + 1, width).split(evaluated.rows):
        ids, wanted = windows[:, :-1].to(device), windows[:, 1:].to(device)
        documents = number_documents(ids, evaluated.eos_id) if train.document_mask else None
        with score_eagerly(evaluated.precision, device):
            losses = model(ids, wanted, reduction="none", documents=documents)
        parts.append(losses.double().cpu())
    return torch.cat(parts).flatten()[:targets].numpy()
