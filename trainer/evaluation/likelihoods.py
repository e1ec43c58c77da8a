"""The log-likelihoods of texts after their contexts.

Texts of about the same length go through the model together. The ranks of a run share the batches.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from shards.format.arrays import Float64s
from shards.terminal.reporter import Progress, no_progress
from trainer.device import add_over_ranks, score_eagerly, share_batches
from trainer.model.decoder import LanguageModel
from trainer.recipe.schema import ChosenPrecision


class Text(NamedTuple):
    """A text whose end is scored."""

    ids: list[int]
    """Its tokens, from the one that begins a document."""
    scored: int
    """How many of the last ones are scored; at least one is not."""


@torch.no_grad()
def measure_likelihoods(
    model: LanguageModel,
    groups: Sequence[Sequence[Text]],
    *,
    precision: ChosenPrecision,
    batch_tokens: int,
    progress: Progress = no_progress,
) -> list[Float64s]:
    """Return the log-likelihoods of each group's texts. Under torchrun every rank calls it, and gets all of them.

    Args:
        model: the model, in evaluation mode.
        groups: the texts of each item. No text has more tokens than the model's context and one more.
        precision: arithmetic of the forward pass.
        batch_tokens: tokens in one forward pass, but at least one text.
        progress: told how many groups are done, and of how many.

    Returns:
        For each group float64 `(2, texts)`: the log-likelihood of the scored tokens of each text in nats, and 1 where
        each of these tokens was the likeliest one, else 0.
    """
    device = next(model.parameters()).device
    texts = [text for group in groups for text in group]
    found = torch.zeros(2, len(texts), dtype=torch.float64)
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place].ids))
    sizes = [len(texts[place].ids) for place in order]
    for part, counts in share_batches(sizes, batch_tokens, len(groups), progress):
        batch = order[part]
        scores = _score_texts(model, [texts[place] for place in batch], precision, device)
        if counts:
            found[:, batch] = scores
    found = found.to(device)
    add_over_ranks(found)
    edges = np.cumsum([0, *map(len, groups)]).tolist()
    values = found.cpu().numpy()
    return [values[:, start:stop] for start, stop in itertools.pairwise(edges)]


def _score_texts(
    model: LanguageModel, texts: Sequence[Text], precision: ChosenPrecision, device: torch.device
) -> torch.Tensor:
    """Return the log-likelihood of each text, and whether it is greedy: float64 `(2, texts)`."""
    # Attention is causal, so the padding at the end changes nothing before it.
    width = max(len(text.ids) for text in texts) - 1
    ids = torch.zeros(len(texts), width, dtype=torch.int64)
    targets = torch.full_like(ids, -1)
    for row, text in enumerate(texts):
        length = len(text.ids) - 1
        ids[row, :length] = torch.tensor(text.ids[:-1])
        targets[row, length - text.scored : length] = torch.tensor(text.ids[-text.scored :])
    chosen = targets >= 0
    with score_eagerly(precision, device):
        logits = model(ids.to(device), chosen=chosen.to(device))
    wanted = targets[chosen].to(device)
    nats = (logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(1)).double().cpu()
    misses = (logits.argmax(1) != wanted).double().cpu()

    # Add up the tokens of each text.
    sums = torch.zeros(2, len(texts), dtype=torch.float64)
    sums.index_add_(1, chosen.nonzero()[:, 0], torch.stack((nats, misses)))
    return torch.stack((sums[0], (sums[1] == 0).double()))
