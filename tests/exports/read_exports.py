"""Read what write_exports.py wrote with the real libraries, and write the same with theirs: every byte must be equal.

Usage: python -m tests.exports.read_exports FOLDER (in .venv-exports; `make test-exports` does it). datatrove's reader
shares the main environment and is tested there, in tests/shards/test_export.py.
"""

import json
import shutil
import struct
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np


def read_nanogpt(folder, split, expected):
    """np.memmap, as nanoGPT's get_batch does."""
    tokens = np.memmap(folder / f"{split}.bin", np.uint16, "r")
    ends = np.flatnonzero(tokens == expected["eos"]) + 1
    return tokens, np.diff(ends, prepend=0)


def read_llmc(folder, split, expected):
    """Read header and size as llm.c's dataloader.h checks them."""
    parts = []
    for path in sorted(folder.glob(f"{split}_*.bin")):
        with path.open("rb") as file:
            header = struct.unpack("<256i", file.read(1024))
            parts.append(np.frombuffer(file.read(), np.uint16))
        assert header == (20240520, 1, len(parts[-1]), *[0] * 253), header[:4]
    assert [len(part) for part in parts] == expected["shards"].tolist()
    tokens = np.concatenate(parts)
    return tokens, np.diff(np.flatnonzero(tokens == expected["eos"]) + 1, prepend=0)


def read_megatron(folder, split, expected):
    """megatron-core's IndexedDataset, and its builder's bytes."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    prefix = folder / split
    for mmap in (True, False):
        data = IndexedDataset(str(prefix), mmap=mmap)
        documents = [data[i] for i in range(len(data))]
        assert np.array_equal(data.document_indices, np.arange(len(data) + 1))
        assert np.array_equal(data.sequence_lengths, [len(document) for document in documents])
    with tempfile.TemporaryDirectory() as theirs:
        dtype = np.uint16 if expected["tokens"].dtype == np.uint16 else np.int32
        builder = IndexedDatasetBuilder(f"{theirs}/x.bin", dtype=dtype)
        for document in expected["documents"]:
            builder.add_document(document.astype(dtype), [len(document)])
        builder.finalize(f"{theirs}/x.idx")
        for suffix in (".bin", ".idx"):
            assert_same_bytes(Path(f"{theirs}/x{suffix}"), prefix.with_suffix(suffix))
    return np.concatenate(documents), [len(document) for document in documents]


READERS = {"nanogpt": read_nanogpt, "llmc": read_llmc, "megatron": read_megatron}


def assert_same_bytes(theirs, ours):
    assert theirs.read_bytes() == ours.read_bytes(), f"{ours} differs from what the library writes"


def load_expected(folder, split):
    """Return what write_exports.py put down for a split."""
    arrays = np.load(folder / "expected.npz")
    found = {key: arrays[f"{split}_{key}"] for key in ("tokens", "lengths", "shards")}
    found["documents"] = np.split(found["tokens"], np.cumsum(found["lengths"])[:-1])
    found["eos"] = json.loads((folder / "megatron" / "export.json").read_bytes())["eos_id"]
    return found


def main(folder):
    """Read every export; the first that is wrong ends it."""
    for dtype in ("uint16", "uint32"):
        for layout, read in READERS.items():
            if dtype == "uint32" and layout in ("nanogpt", "llmc"):  # which read uint16 alone
                assert not (folder / dtype / layout).exists()
                continue
            for split in ("train", "val"):
                expected, place = load_expected(folder / dtype, split), f"{layout} {dtype} {split}"
                tokens, lengths = read(folder / dtype / layout, split, expected)
                assert np.array_equal(tokens, expected["tokens"]), f"{place}: other tokens"
                assert np.array_equal(lengths, expected["lengths"]), f"{place}: other documents"
                print(f"{place}: {len(tokens):,} tokens, {len(lengths)} documents", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    work = Path(sys.argv[1])
    main(work)
    shutil.rmtree(work, ignore_errors=True)
