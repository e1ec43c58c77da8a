"""Read batches from one set with one loader, as a training loop does, and print what it took as JSON.

    python -m tests.benchmarks.read_set KIND PATH SAMPLES BATCH SEQ_LEN

A process of its own for each loader, so that start and memory are its own: `tests.benchmarks.loaders` starts them.
All give int64 inputs and labels `(BATCH, SEQ_LEN)`, without workers.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from shards.torch import TokenWindows, collate_windows

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def read_tokenmill(path: Path, samples: int, batch: int, seq_len: int) -> Batches:
    """Read with `TokenWindows` through a DataLoader: every window once, shuffled, decompressed as it goes."""
    windows = TokenWindows(path, seq_len=seq_len, samples=samples)
    for part in DataLoader(windows, batch_size=batch, collate_fn=collate_windows):
        yield part["input_ids"], part["labels"]


def read_memory_map(path: Path, _samples: int, batch: int, seq_len: int) -> Batches:
    """Read random slices of a memory map. Source: get_batch in karpathy/nanoGPT's train.py."""
    data = np.memmap(path / "train.bin", dtype=np.uint16, mode="r")
    while True:
        ix = torch.randint(len(data) - seq_len, (batch,))
        yield (
            torch.stack([torch.from_numpy(data[i : i + seq_len].astype(np.int64)) for i in ix]),
            torch.stack([torch.from_numpy(data[i + 1 : i + 1 + seq_len].astype(np.int64)) for i in ix]),
        )


READERS = {"tokenmill": read_tokenmill, "memory_map": read_memory_map}


def measure(kind: str, path: Path, samples: int, batch: int, seq_len: int) -> dict[str, float]:
    """Return the seconds from opening the set to the first batch and to the last, and those of the processor."""
    cpu, start = time.process_time(), time.perf_counter()
    first, read = 0.0, 0
    for inputs, labels in READERS[kind](path, samples, batch, seq_len):
        assert inputs.shape == labels.shape == (batch, seq_len), inputs.shape
        assert inputs.dtype == labels.dtype == torch.int64
        assert torch.equal(inputs[:, 1:], labels[:, :-1])
        first = first or time.perf_counter() - start
        read += batch
        if read >= samples:
            break
    assert read == samples, read
    seconds = time.perf_counter() - start
    return {"first_batch_s": first, "seconds": seconds, "processor_s": time.process_time() - cpu}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:6]))))
