"""The log-likelihoods of texts after their contexts. The texts of a group begin alike: that is computed once.

A group is a row: the shared tokens, then a branch for each text with the rest of it (`Branches`). Rows of about the
same length go through the model together. The ranks of a run share the rows.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F

from shards.terminal.reporter import Progress, no_progress
from trainer.device import find_rank, score_eagerly
from trainer.model.attention import Branches
from trainer.model.decoder import LanguageModel


class Text(NamedTuple):
    """A text whose end is scored."""

    ids: list[int]
    """Its tokens, from the one that begins a document."""
    scored: int
    """How many of the last ones are scored; at least one is not."""


class _Row(NamedTuple):
    """A group as the model reads it; lists of equal length."""

    ids: list[int]
    targets: list[int]
    """The token after each, where it is scored; else -1."""
    numbers: list[int]
    positions: list[int]


@torch.no_grad()
def measure_likelihoods(
    model: LanguageModel,
    groups: Sequence[Sequence[Text]],
    *,
    precision: Literal["fp32", "bf16"],
    batch_tokens: int,
    progress: Progress = no_progress,
) -> list[npt.NDArray[np.float64]]:
    """Return the log-likelihoods of each group's texts. Under torchrun every rank calls it, and gets all of them.

    Args:
        model: the model; its mode does not change.
        groups: texts that begin alike. No text has more tokens than the model's context and one more.
        precision: arithmetic of the forward pass.
        batch_tokens: tokens in one forward pass, but at least one row.
        progress: told how many groups are done, and of how many.

    Returns:
        For each group float64 `(2, texts)`: the log-likelihood of the scored tokens of each text in nats, and 1 where
        each of these tokens was the likeliest one, else 0.
    """
    device, was_training = next(model.parameters()).device, model.training
    edges = np.cumsum([0, *map(len, groups)]).tolist()
    rows = list(zip(edges, map(_lay_out, groups), strict=False))  # each with the place of its first text among all
    found = torch.zeros(2, edges[-1], dtype=torch.float64)
    batches = list(_batch(rows, batch_tokens))
    rank, ranks = find_rank()

    model.eval()
    done = 0
    # Every rank makes as many calls, as split weights need: the last ones may be of a batch that another rank has, too.
    for first in range(0, len(batches), ranks):
        batch = batches[min(first + rank, len(batches) - 1)]
        scores = _score_rows(model, [row for _, row in batch], precision, device)
        if first + rank < len(batches):
            for (place, _), own in zip(batch, scores, strict=True):
                found[:, place : place + own.shape[1]] = own
        done += sum(len(one) for one in batches[first : first + ranks])
        progress(done, len(rows))
    model.train(was_training)

    if ranks > 1:
        found = found.to(device)
        dist.all_reduce(found)
    values = found.cpu().numpy()
    return [values[:, start:stop] for start, stop in itertools.pairwise(edges)]


def _lay_out(texts: Sequence[Text]) -> _Row:
    # A branch begins with the token after which its first scored one is predicted, or earlier. So each token is
    # followed by one scored token at most.
    contexts = [text.ids[: len(text.ids) - text.scored] for text in texts]
    columns = zip(*(context[:-1] for context in contexts), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    ids = texts[0].ids[:shared]
    row = _Row(ids, [-1] * shared, [0] * shared, list(range(shared)))
    for number, (text, context) in enumerate(zip(texts, contexts, strict=True), 1):
        length = len(text.ids) - 1 - shared
        row.ids.extend(text.ids[shared:-1])
        row.targets.extend([-1] * (len(context) - 1 - shared) + text.ids[len(context) :])
        row.numbers.extend([number] * length)
        row.positions.extend(range(shared, shared + length))
    return row


def _batch(rows: list[tuple[int, _Row]], batch_tokens: int) -> Iterator[list[tuple[int, _Row]]]:
    """Yield batches of rows, the longest first: memory runs out at once or never."""
    batch: list[tuple[int, _Row]] = []
    for row in sorted(rows, key=lambda row: -len(row[1].ids)):
        if batch and (len(batch) + 1) * len(batch[0][1].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _score_rows(
    model: LanguageModel, rows: list[_Row], precision: Literal["fp32", "bf16"], device: torch.device
) -> list[torch.Tensor]:
    """Return the log-likelihood of each row's texts, and whether they are greedy: float64 `(2, texts)`."""
    ids, targets, numbers, positions = (
        torch.stack([F.pad(torch.tensor(values), (0, longest - len(values)), value=padding) for values in column])
        for column, padding in zip(zip(*rows, strict=True), (0, -1, -1, 0), strict=True)
        for longest in [max(map(len, column))]
    )
    chosen = targets >= 0
    branches = Branches(numbers.to(device), positions.to(device), chosen.to(device))
    with score_eagerly(precision, device):
        logits = model(ids.to(device), branches=branches)
    wanted = targets[chosen].to(device)
    nats = logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(1)
    greedy = (logits.argmax(1) == wanted).cpu()
    nats = nats.double().cpu()

    # Add up the tokens of each text: the texts of a row are numbered from 1.
    sizes = [max(row.numbers) for row in rows]
    first = torch.tensor([0, *sizes]).cumsum(0)[:-1]
    of_text = (first[:, None] + numbers - 1)[chosen]
    sums = torch.zeros(sum(sizes), dtype=torch.float64).index_add_(0, of_text, nats)
    misses = torch.zeros(sum(sizes), dtype=torch.float64).index_add_(0, of_text, (~greedy).double())
    return [*torch.stack((sums, (misses == 0).double())).split(sizes, dim=1)]
