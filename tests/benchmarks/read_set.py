"""Read batches from one set with one loader, as a training loop does, and print what it took as JSON.

    python -m tests.benchmarks.read_set KIND PATH SAMPLES BATCH SEQ_LEN

A process of its own for each loader, so that start and memory are its own: `tests.benchmarks.loaders` starts them.
All give int64 inputs and labels `(BATCH, SEQ_LEN)`, without workers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from tests.benchmarks.harness import memory_of

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def read_tokenmill(path: Path, samples: int, batch: int, seq_len: int) -> Callable[[], Batches]:
    """Read with `TokenWindows` through a DataLoader: every window once, shuffled, decompressed as it goes."""
    from shards.torch import TokenWindows, collate_windows

    def batches() -> Batches:
        windows = TokenWindows(path, seq_len=seq_len, samples=samples)
        for part in DataLoader(windows, batch_size=batch, collate_fn=collate_windows):
            yield part["input_ids"], part["labels"]

    return batches


def read_memory_map(path: Path, samples: int, batch: int, seq_len: int) -> Callable[[], Batches]:
    """Read random slices of a memory map. Source: get_batch in karpathy/nanoGPT's train.py."""

    def batches() -> Batches:
        data = np.memmap(path / "train.bin", dtype=np.uint16, mode="r")
        while True:
            ix = torch.randint(len(data) - seq_len, (batch,))
            yield (
                torch.stack([torch.from_numpy(data[i : i + seq_len].astype(np.int64)) for i in ix]),
                torch.stack([torch.from_numpy(data[i + 1 : i + 1 + seq_len].astype(np.int64)) for i in ix]),
            )

    return batches


READERS = {"tokenmill": read_tokenmill, "memory_map": read_memory_map}


def measure(kind: str, path: Path, samples: int, batch: int, seq_len: int) -> dict[str, float]:
    """Return the seconds to import, to the first batch, and to the last, with processor seconds, and peak memory."""
    began = time.perf_counter()
    batches = READERS[kind](path, samples, batch, seq_len)
    imported = time.perf_counter()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = memory_of("self", "VmRSS")
    cpu, start = time.process_time(), time.perf_counter()
    first, first_cpu, read = 0.0, 0.0, 0
    for inputs, labels in batches():
        assert inputs.shape == labels.shape == (batch, seq_len), inputs.shape
        assert inputs.dtype == labels.dtype == torch.int64
        assert torch.equal(inputs[:, 1:], labels[:, :-1])
        first, first_cpu = first or time.perf_counter() - start, first_cpu or time.process_time() - cpu
        read += batch
        if read >= samples:
            break
    seconds = time.perf_counter() - start
    assert read == samples, read
    return {
        "import_s": imported - began,
        "first_batch_s": first,
        "first_batch_processor_s": first_cpu,
        "seconds": seconds,
        "processor_s": time.process_time() - cpu,
        "resident_bytes": memory_of("self", "VmHWM") - before,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:6]))))
