"""The loss of whole documents, each read by itself from its beginning, as after a document boundary in training.

A document of a set with BOS begins with it; in a set without, an EOS comes before the document. Every other token is
predicted once, EOS included. A document with more than `seq_len` tokens to predict is read in windows that predict
`seq_len` tokens each; the last window begins earlier, so that it is full, and tokens that were predicted before count
once. So the first token of a later window has one token of context, and no token is dropped. Source:
`get_rolling_token_windows` of lm-evaluation-harness, with a context of 1.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from shards.format.arrays import Float64s, Int64s, Tokens
from shards.terminal.reporter import Progress
from shards.torch.batch import number_documents
from trainer.device import add_over_ranks, score_eagerly, share_batches
from trainer.evaluation.validation import EvaluatedModel

LENGTH_MULTIPLE = 64
"""Windows of a forward pass are padded to a multiple of this: kernels are chosen for few shapes."""


class _Window(NamedTuple):
    document: int
    start: int
    """The first input, as an index into the document with the boundary token before it."""
    length: int
    """Inputs, and targets: each is the token after its input."""
    skipped: int
    """Targets at the start that an earlier window has predicted."""


def measure_document_losses(
    evaluated: EvaluatedModel,
    tokens: Tokens,
    bounds: Int64s,
    progress: Progress,
) -> Float64s:
    """Return the loss of each document in nats, float64 `(documents,)`.

    Ranks take turns at the forward passes, and all of them have the same sums.

    Args:
        evaluated: the model, in evaluation mode, without gradients.
        tokens: documents one after the other, each with its boundary tokens as in a shard.
        bounds: where each document begins in `tokens`, and where the last one ends, `(documents + 1,)`.
        progress: told how many documents are done, and of how many.
    """
    before = 1 if evaluated.bos_id is None else 0  # an EOS is put before documents without BOS
    lengths = np.diff(bounds) - 1 + before
    seq_len = evaluated.train.seq_len
    windows = sorted(_cut_windows(lengths.tolist(), seq_len), key=lambda one: -one.length)
    sizes = [_pad(window.length, seq_len) for window in windows]
    device = next(evaluated.model.parameters()).device
    sums = torch.zeros(len(lengths), dtype=torch.float64, device=device)
    for part, counts in share_batches(sizes, evaluated.rows * seq_len, len(lengths), progress):
        batch = windows[part]
        losses = _score_windows(evaluated, tokens, bounds, batch, before)
        if counts:
            numbers = torch.tensor([window.document for window in batch], device=device)
            sums.index_add_(0, numbers, losses)
    add_over_ranks(sums)
    return sums.cpu().numpy()


def _cut_windows(lengths: list[int], seq_len: int) -> Iterator[_Window]:
    for document, length in enumerate(lengths):
        for start in range(0, length, seq_len):
            # The last window begins earlier if it can, so that its tokens have more context.
            begin = max(0, min(start, length - seq_len))
            yield _Window(document, begin, min(seq_len, length - begin), start - begin)


def _pad(length: int, seq_len: int) -> int:
    return min(-(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, seq_len)


def _score_windows(
    evaluated: EvaluatedModel,
    tokens: Tokens,
    bounds: Int64s,
    batch: list[_Window],
    before: int,
) -> torch.Tensor:
    """Return the loss of each document window's targets but the skipped ones, float64 `(windows,)`."""
    # Attention is causal, so the padding at the end changes no loss before it; its losses are not counted.
    width = _pad(batch[0].length, evaluated.train.seq_len)
    content = np.full((len(batch), width + 1), evaluated.eos_id, np.int64)
    counted = np.zeros((len(batch), width), np.bool_)
    for row, (document, start, length, skipped) in enumerate(batch):
        # With an EOS before the document, its index 0 is that EOS.
        begin = bounds[document] + start - before
        own = tokens[max(begin, bounds[document]) : begin + length + 1]
        content[row, length + 1 - len(own) : length + 1] = own
        counted[row, skipped:length] = True
    device = next(evaluated.model.parameters()).device
    ids = torch.from_numpy(content).to(device)
    documents = number_documents(ids[:, :-1], evaluated.eos_id) if evaluated.train.document_mask else None
    with score_eagerly(evaluated.precision, device):
        losses = evaluated.model(ids[:, :-1], ids[:, 1:], reduction="none", documents=documents)
    return losses.double().mul(torch.from_numpy(counted).to(device)).sum(-1)
