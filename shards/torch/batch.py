"""A batch of samples that are rows of the same tensors, what makes one of samples, and where its documents are.

`TokenWindows` reads a batch as whole tensors. `collate_windows` hands them on as they are; the collate function of
torch takes them apart and stacks them again, which takes longer than to read them.
"""

# pyright: reportUnknownMemberType=false
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Sample = dict[str, Tensor]


class WindowBatch(Sequence[Sample]):
    """Samples as the rows of tensors; each is made when it is first asked for."""

    def __init__(self, fields: dict[str, Tensor], *, documents: Tensor | None = None):
        """Hold a batch's tensors `(batch, seq_len)` by field; with the numbers of documents, it has `cu_seqlens`."""
        self._fields, self._documents = fields, documents

    def __len__(self) -> int:
        return len(self._fields["input_ids"])

    def __getitem__(self, index: Any) -> Any:
        samples: Any = self._samples
        return samples[index]

    def stacked(self) -> Sample:
        """Return the batch's tensors, `(batch, seq_len)` each; `cu_seqlens` is of the rows laid end to end."""
        if self._documents is None:
            return self._fields
        return {**self._fields, "cu_seqlens": cumulative_lengths(self._documents)}

    @cached_property
    def _samples(self) -> list[Sample]:
        # `unbind` makes all rows in one call: indexing takes 1 us for each of them.
        rows = zip(*(tensor.unbind() for tensor in self._fields.values()), strict=True)
        samples = [dict(zip(self._fields, row, strict=True)) for row in rows]
        if self._documents is not None:
            for row, sample in enumerate(samples):
                sample["cu_seqlens"] = cumulative_lengths(self._documents[row : row + 1])
        return samples


def collate_windows(samples: Sequence[Sample]) -> Sample:
    """Make a batch of samples: fields stacked to `(batch, seq_len)`, and `cu_seqlens` joined for rows laid end to end.

    The fastest `collate_fn` for a DataLoader over `TokenWindows`, and the only one for samples with `cu_seqlens`, whose
    lengths differ.
    """
    if isinstance(samples, WindowBatch):
        return samples.stacked()
    batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0] if name != "cu_seqlens"}
    if "cu_seqlens" in samples[0]:
        # Each row's boundaries are shifted to where it lies when rows are laid end to end.
        length = batch["input_ids"].shape[1]
        parts = [sample["cu_seqlens"][:-1] + row * length for row, sample in enumerate(samples)]
        end = torch.tensor([len(samples) * length], dtype=torch.int32)
        batch["cu_seqlens"] = torch.cat([*parts, end])
    return batch


def number_documents(ids: Tensor, eos_id: int, *, eos: Literal["ends", "begins"] = "ends") -> Tensor:
    """Number the documents of each row of a batch from 0, int64 of the shape of ids; an EOS is of what it ends, or of
    what it begins."""
    marks = (ids == eos_id).long()
    return marks.cumsum(-1) - (marks if eos == "ends" else 0)


def positions_in_documents(documents: Tensor) -> Tensor:
    """Return each token's position in its document in a batch, from the row's start for the first, int64."""
    index = torch.arange(documents.shape[-1], device=documents.device).expand_as(documents)
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    return index - (index * begins).cummax(-1).values


def cumulative_lengths(documents: Tensor) -> Tensor:
    """Return the boundaries of documents in a batch's rows laid end to end, with the end, int32 `(documents + 1,)`.

    Takes their numbers, `(batch, length)`. A row begins a document, also in the middle of one.
    """
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True).flatten()
    return F.pad(begins.nonzero().flatten(), (0, 1), value=documents.numel()).int()
