"""Where the documents of samples begin and end: their numbers, positions in them, and cumulative lengths."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def number_documents(ids: Tensor, eos_id: int) -> Tensor:
    """Number the documents of each row from 0, int64 of the shape of ids; an EOS belongs to the document it ends."""
    ends = (ids == eos_id).long()
    return ends.cumsum(-1) - ends


def positions_in_documents(documents: Tensor) -> Tensor:
    """Return each token's position in its document, counted from the row's start for the first, int64."""
    index = torch.arange(documents.shape[-1], device=documents.device).expand_as(documents)
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    return index - (index * begins).cummax(-1).values


def cumulative_lengths(documents: Tensor) -> Tensor:
    """Return the boundaries of documents in rows laid end to end, with the last end, int32 `(documents + 1,)`.

    Takes their numbers, `(batch, length)`. A row begins a document, also in the middle of one.
    """
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True).flatten()
    return F.pad(begins.nonzero().flatten(), (0, 1), value=documents.numel()).int()
