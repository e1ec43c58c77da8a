"""`TokenWindows`: the samples of a shard set by number, in the order of a training run of `tokenmill train`.

Sample i is window i, or packed row i, of the order of `shards.format.windows`: a pure function of the set, the split,
`seq_len` and the seed. So any sampler gives what it means to give, and a run resumes from the number of samples that it
has read.

Costs: reading forward, a worker decodes every shard once and holds two of them (2 or 4 bytes per token). Each worker of
a DataLoader decodes for itself, and one is faster than most models; the order is shuffled, so none needs another
shuffle. Random numbers cost a frame each, about a millisecond, unless the set has two shards or less; packed rows cost
a frame for each document, and for a new shard its document table.
"""

# pyright: reportUnknownMemberType=false
import operator
import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal, Self, SupportsIndex, TypeGuard, get_args

import numpy as np
import torch
from torch.utils.data import Dataset

from shards.errors import InputError, plural
from shards.format.arrays import Int64s
from shards.format.manifest import Split
from shards.format.reader import ShardSet, open_set
from shards.format.windows.order import ORDER_VERSION
from shards.format.windows.packed import ROW_ORDER_VERSION, RowKind, RowOrder, order_split
from shards.format.windows.window_reader import WindowReader
from shards.stores.cache import Cache
from shards.stores.open import AnyPath, scheme_of
from shards.terminal.hints import nearest
from shards.torch.batch import Sample, WindowBatch, number_documents, positions_in_documents

Labels = Literal["next", "same"]
FieldName = Literal["position_ids", "document_ids", "cu_seqlens"]

DEFAULT_SEED = 1337
"""That of a train recipe."""


class TokenWindows(Dataset[Sample]):
    """The windows of a split as samples, `len` of them. See `__init__`.

    Safe to share between threads, with forked and spawned workers; a pickle holds the set's address and no tokens.

    Attributes:
        shard_set: the set.
        order: the order of its windows; `order.per_epoch` samples are an epoch.
        identity: what decides which sample a number is: the set's digest (`set`), `split`, `seq_len`, `seed`, the
            order's version (`order_version`) and, for packed rows, `rows`.
    """

    def __init__(
        self,
        shard_set: ShardSet | AnyPath,
        *,
        seq_len: int,
        split: Split = "train",
        seed: int = DEFAULT_SEED,
        epochs: int | None = None,
        samples: int | None = None,
        rows: RowKind = "windows",
        labels: Labels = "next",
        fields: Sequence[FieldName] = (),
        cache: AnyPath | None = None,
        cache_limit: int | None = None,
    ):
        """Open a set's windows; no tokens are read yet. For packed rows, all document tables are, once.

        A sample is a dict of int64 tensors `(seq_len,)`:

        - `input_ids`: the first `seq_len` tokens of a window of `seq_len + 1`.
        - `labels`: with "next", **already shifted**: `labels[t]` is the token after `input_ids[t]`, as a plain loop,
          nanoGPT and torchtitan expect (`cross_entropy(logits, labels)`). With "same", equal to `input_ids`: for models
          that shift labels themselves, as all of `transformers` do. Give those "same": with labels shifted twice they
          would learn to predict the token after the next, and no error would tell.
        - `document_ids`, if asked for: documents numbered from 0 in each sample; an EOS belongs to the one it ends.
        - `position_ids`: positions in the document; in the sample's first, counted from the sample's start.
        - `cu_seqlens`: where the sample's documents begin, and its end, int32 `(documents + 1,)`, as FlashAttention's
          functions for variable lengths take it. Lengths differ: use `collate_fn=collate_windows`.

        With `rows="packed"` a sample is a row of whole documents, each from its BOS or the EOS before it; only texts
        longer than `seq_len` are cut. Attention needs `document_ids` or `cu_seqlens`, and positions `position_ids`. The
        end of a row is padded with EOS, as one more document. Labels are -100 there, and where the token is no target:
        in conversations, all but the answers.

        Args:
            shard_set: an open set, a folder, or an address (`s3://`, `gs://`, `az://`, `hf://`).
            seq_len: tokens predicted in each sample.
            split: the split to read.
            seed: decides the order.
            epochs: how often the split is read, each time in another order; 1 if `samples` is not given either.
            samples: the number of samples, over as many epochs as they take, instead of `epochs`.
            rows: "windows", or "packed", as sets with conversations need, see above.
            labels: which labels, see above; packed rows have "next" only.
            fields: further fields of each sample, see above.
            cache: the folder that keeps the shards of an address; the user's cache when None. An open set has its own.
            cache_limit: bytes that the cache may hold; half of the free disk space when None.

        Raises:
            InputError: an argument cannot be used, the set lacks the split, no shard of it or of one of its phases
                holds a window, or conversations would be cut.
            ShardSetError: there is no set at the place, or a file of it is missing or has another size than the
                manifest says.

        Warns:
            UserWarning: some shards are shorter than one window; their tokens are not read.
        """
        # Open the set, check the arguments against it, then plan the order.
        self.shard_set = _open_with_cache(shard_set, cache, cache_limit)
        self.seq_len, self.seed = seq_len, seed
        self.split: Split = split
        self.labels: Labels = labels
        self.rows: RowKind = rows
        self.fields: tuple[FieldName, ...] = tuple(fields)
        self._epochs, self._samples = epochs, samples
        self._check()
        self.seq_len, self.seed = int(seq_len), int(seed)  # of numpy's integers: `identity` is plain JSON
        self._plan()
        self._check_windows()

    @property
    def identity(self) -> dict[str, str | int]:
        """The values that decide which sample a number is."""
        packed = self.rows == "packed"
        return {
            **({"rows": self.rows} if packed else {}),
            "set": self.shard_set.manifest_sha256,
            "split": self.split,
            "seq_len": self.seq_len,
            "seed": self.seed,
            "order_version": ROW_ORDER_VERSION if packed else ORDER_VERSION,
        }

    def __len__(self) -> int:
        return (self._epochs or 1) * self.order.per_epoch if self._samples is None else self._samples

    def __getitem__(self, index: SupportsIndex) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> Sequence[Sample]:
        """Return windows by number: how a DataLoader fetches a batch."""
        return self._make_batch([self._number(index) for index in indices])

    def read(self, numbers: Sequence[int] | Int64s) -> Sample:
        """Return a batch by number, `(len(numbers), seq_len)`: the fastest way, for one's own loop.

        `cu_seqlens` is of the rows laid end to end.

        Raises:
            TypeError: the numbers are not integers.
            IndexError: a number is negative, or after the last sample.
            ShardSetError: a shard's file is missing, or is not what the manifest says.
            OSError: a shard cannot be read.
        """
        return self._make_batch(numbers).stacked()

    def close(self) -> None:
        """Stop the thread that decodes windows ahead, and free the shards; they are read again when needed."""
        if self._process == os.getpid():
            self._reader.close()
        self._reader = self._make_reader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments and the set, whose pickle is its address."""
        left_out = ("order", "_reader", "_process")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._plan()

    def _plan(self) -> None:
        self.order = order_split(self.shard_set, self.split, rows=self.rows, seq_len=self.seq_len, seed=self.seed)
        self._reader = self._make_reader()

    def _number(self, index: SupportsIndex) -> int:
        number, length = operator.index(index), len(self)
        if not -length <= number < length:
            raise IndexError(f"sample {number}: expected one in [{-length}, {length})")
        return number % length

    def _make_batch(self, numbers: Sequence[int] | Int64s) -> WindowBatch:
        # Any sequence of integers, of any width.
        wanted = np.asarray(numbers)
        if not wanted.size:
            wanted = wanted.astype(np.int64)  # an empty list is an array of floats
        if wanted.dtype.kind not in "iu" or wanted.ndim != 1:
            raise TypeError(
                f"samples by number: an array {wanted.shape} of {wanted.dtype}; expected one dimension of integers, "
                "such as range(0, 8)"
            )
        wanted = wanted.astype(np.int64, copy=False)
        for number in (wanted.min(initial=0), wanted.max(initial=0)):
            if not 0 <= number < len(self):
                raise IndexError(
                    f"sample {number}: expected one in [0, {len(self)}). Give larger samples= or epochs= for more."
                )
        if self._process != os.getpid():  # a forked worker has copies of its parent's locks, but not its threads
            self._reader = self._make_reader()
        documents = None
        if isinstance(self.order, RowOrder):
            ids, targets, documents = (torch.from_numpy(part) for part in self._reader.read_rows(wanted, self.order))
        else:
            windows = self._reader.read(wanted)
            # Copies, not views of one tensor: `labels.view(-1)` works, and neither changes when the other is masked.
            ids = torch.from_numpy(windows[:, :-1].astype(np.int64))
            shifted = windows[:, 1:] if self.labels == "next" else windows[:, :-1]
            targets = torch.from_numpy(shifted.astype(np.int64))
        batch = {"input_ids": ids, "labels": targets}
        # Fields that are asked for are computed for the whole batch at once.
        if self.fields:
            documents = number_documents(ids, self.shard_set.eos_id) if documents is None else documents
            if "document_ids" in self.fields:
                batch["document_ids"] = documents
            if "position_ids" in self.fields:
                batch["position_ids"] = positions_in_documents(documents)
        return WindowBatch(batch, documents=documents if "cu_seqlens" in self.fields else None)

    def _make_reader(self) -> WindowReader:
        self._process = os.getpid()
        shards = self.shard_set.splits[self.split]
        return WindowReader(shards, self.order, stop=len(self))

    def _check(self) -> None:
        """Refuse arguments that cannot be used."""
        problems: list[str] = []
        epochs, samples = self._epochs, self._samples
        # Every fault is told at once.
        for name, value in {"seq_len": self.seq_len, "epochs": epochs, "samples": samples}.items():
            if value is not None and (not is_integer(value) or value < 1):
                problems.append(f"{name} = {value!r}: expected an integer, 1 or more.")
        if epochs is not None and samples is not None:
            problems.append(f"epochs = {epochs} and samples = {samples}: expected one of the two. Leave one out.")
        if not is_integer(self.seed) or not 0 <= self.seed < 1 << 32:
            problems.append(f"seed = {self.seed!r}: expected an integer from 0 to 2^32 - 1.")
        if self.split not in self.shard_set.splits:
            has = ", ".join(self.shard_set.splits)
            problems.append(f"split = {self.split!r}: {self.shard_set.store} has no such split. It has: {has}.")
        named = [("labels", self.labels, Labels), ("rows", self.rows, RowKind)]
        for name, value, choices in [*named, *(("fields", field, FieldName) for field in self.fields)]:
            if value not in get_args(choices):
                problems.append(f"{name} = {value!r}: unknown.{nearest(value, get_args(choices))}")
        if self.rows == "packed" and self.labels == "same":
            problems.append(
                'rows = "packed" with labels = "same": a model that shifts labels would learn to predict the next '
                'document. Use "next", and a loss over what they say.'
            )
        if problems:
            raise InputError(problems)

    def _check_windows(self) -> None:
        """Refuse a split or a phase without windows; warn of shards without."""
        shards, length = self.shard_set.splits[self.split], self.seq_len
        # Without a window there is nothing to train on.
        if not self.order.per_epoch:
            most = max((shard.num_tokens for shard in shards), default=0)
            raise InputError(
                f"{self.shard_set.store}: the longest of {plural(len(shards), 'shard')} of {self.split} has "
                f"{plural(most, 'token')}; expected at least seq_len + 1 = {length + 1}. Choose a smaller seq_len."
            )
        if faults := self.order.describe_empty_phases():
            raise InputError([f"{self.shard_set.store}: {fault}" for fault in faults])
        if short := self.order.describe_short_shards(shards):
            warnings.warn(f"{self.shard_set.store}: {short}", stacklevel=3)


def _open_with_cache(
    place: ShardSet | AnyPath,
    cache: AnyPath | None,
    cache_limit: int | None,
) -> ShardSet:
    """Open the set of a dataset for PyTorch; a set not on this machine gets a cache."""
    if isinstance(place, ShardSet):
        if cache is not None or cache_limit is not None:
            raise InputError("cache: the set is open already. Give its address, or open_set(..., cache=...).")
        return place
    if scheme_of(place) is None:
        return open_set(place)
    return open_set(place, cache=Cache(cache, cache_limit))


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value, of a dataset's state or argument, is an integer of Python or numpy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
