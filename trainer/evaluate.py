"""Validation loss by source, in nats a token and bits a byte.

Every target token belongs to the document that holds it, and through the document table to a source. The val split is
read from its start, in windows of seq_len tokens without shuffling, up to a number of targets: deterministic, and the
same tokens each time. A last window that is shorter is evaluated too; only the first token of each shard is never a
target. Contexts cross document ends where they do in training.

Bits a byte is what it costs to transmit the text: the loss of all targets, end-of-document tokens included, over the
bytes that they decode to (an end of document decodes to none). It compares models with different vocabularies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from shards.samples import read_sources
from trainer.device import autocast
from trainer.model import label_documents

if TYPE_CHECKING:
    import numpy.typing as npt

    from shards import Shard, ShardSet
    from trainer.model import LanguageModel


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """The summed loss of one source, or of all."""

    nats: float
    tokens: int
    bytes: int | None
    """Text bytes of the targets; None when the tokenizer does not tell."""

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats a token."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float | None:
        """Bits to transmit one byte of text."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None


@dataclass(frozen=True, slots=True)
class Validation:
    """The loss of all targets, and of each source that had any, by name."""

    total: SourceLoss
    sources: dict[str, SourceLoss]

    def to_metrics(self) -> dict[str, Any]:
        """Return the fields of a validation line in metrics.jsonl."""
        return {
            "val_tokens": self.total.tokens,
            "val_loss": self.total.loss,
            "val_bits_per_byte": self.total.bits_per_byte,
            "val_loss_by_source": {name: source.loss for name, source in self.sources.items()},
            "val_bits_per_byte_by_source": {name: source.bits_per_byte for name, source in self.sources.items()},
        }


def evaluate(
    model: LanguageModel,
    shard_set: ShardSet,
    *,
    seq_len: int,
    max_tokens: int,
    batch: int,
    precision: Literal["fp32", "bf16"],
    token_bytes: npt.NDArray[np.int64] | None,
    document_mask: bool = False,
) -> Validation:
    """Evaluate a model on the val split.

    Args:
        model: the model; left in the mode it was in.
        shard_set: the set; its val split holds at least two tokens.
        seq_len: targets in a window.
        max_tokens: targets in all, or fewer when the split is smaller.
        batch: windows in a forward pass.
        precision: arithmetic of the forward pass.
        token_bytes: text bytes of each id, int64 `(vocab_size,)`.
        document_mask: whether contexts end with their document.

    Raises:
        ShardSetError: a shard is corrupt.
    """
    names = [source.name for source in shard_set.manifest.sources]
    nats = np.zeros(len(names))
    tokens = np.zeros(len(names), dtype=np.int64)
    text_bytes = np.zeros(len(names), dtype=np.int64)
    was_training = model.training
    model.eval()
    for shard, targets in _iter_shards(shard_set, max_tokens):
        content = shard.read(0, targets + 1)
        sources = label_sources(shard, names, targets + 1)[1:]
        losses = _token_losses(model, content, seq_len, batch, precision, shard_set.eos_id, document_mask)
        nats += np.bincount(sources, weights=losses, minlength=len(names))
        tokens += np.bincount(sources, minlength=len(names))
        if token_bytes is not None:
            weights = token_bytes[content[1:]]
            text_bytes += np.bincount(sources, weights=weights, minlength=len(names)).astype(np.int64)
    model.train(was_training)

    def bytes_or_none(count: int) -> int | None:
        return count if token_bytes is not None else None

    return Validation(
        SourceLoss(float(nats.sum()), int(tokens.sum()), bytes_or_none(int(text_bytes.sum()))),
        {
            name: SourceLoss(float(nats[i]), int(tokens[i]), bytes_or_none(int(text_bytes[i])))
            for i, name in enumerate(names)
            if tokens[i]
        },
    )


def label_sources(shard: Shard, names: list[str], stop: int) -> npt.NDArray[np.int64]:
    """Return the source of each token in [0, stop) of a shard as an index into `names`, int64 `(stop,)`.

    Raises:
        ShardSetError: the document table names a source that is not in `names`.
    """
    lengths, sources = read_sources(shard, names)
    documents = int(np.searchsorted(np.cumsum(lengths), stop)) + 1
    return np.repeat(sources[:documents], lengths[:documents])[:stop]


def _iter_shards(shard_set: ShardSet, max_tokens: int) -> Iterator[tuple[Shard, int]]:
    """Yield the shards of the val split, each with the targets to take of it, until there are `max_tokens`."""
    for shard in shard_set.splits["val"]:
        targets = min(shard.num_tokens - 1, max_tokens)
        if targets > 0:
            yield shard, targets
            max_tokens -= targets


@torch.no_grad()
def _token_losses(
    model: LanguageModel,
    content: npt.NDArray[np.unsignedinteger],
    seq_len: int,
    batch: int,
    precision: Literal["fp32", "bf16"],
    eos_id: int,
    document_mask: bool,
) -> npt.NDArray[np.float64]:
    """Return the loss of each token but the first, float64 `(len(content) - 1,)`."""
    device = next(model.parameters()).device
    targets = len(content) - 1
    windows = -(-targets // seq_len)
    # The last window is filled up; attention is causal, so the filling changes no loss before it, and is cut off.
    padded = np.full(windows * seq_len + 1, eos_id, dtype=np.int64)
    padded[: len(content)] = content
    inputs = torch.from_numpy(padded[:-1]).view(windows, seq_len)
    wanted = torch.from_numpy(padded[1:]).view(windows, seq_len)
    parts: list[torch.Tensor] = []
    for start in range(0, windows, batch):
        ids = inputs[start : start + batch].to(device)
        documents = label_documents(ids, eos_id) if document_mask else None
        with autocast(precision, device):
            losses = model(ids, wanted[start : start + batch].to(device), reduction="none", documents=documents)
        parts.append(losses.double().cpu())
    return torch.cat(parts).flatten()[:targets].numpy()
