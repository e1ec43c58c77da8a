"""Read what write_exports.py wrote with megatron-core, and write the same with its builder: every byte must be equal.

Usage: python -m tests.exports.read_exports FOLDER (in .venv-exports; `make test-exports` does it). Other layouts are
tested in the main environment, in tests/shards/test_export.py.
"""

import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np


def read_megatron(prefix, expected):
    """Compare with what megatron-core's IndexedDataset reads, and with its builder's bytes.

    Args:
        prefix: the export's path without its suffix.
        expected: the tokens of each document.
    """
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    for mmap in (True, False):
        data = IndexedDataset(str(prefix), mmap=mmap)
        assert np.array_equal(data.document_indices, np.arange(len(expected) + 1))
        assert all(np.array_equal(data[i], document) for i, document in enumerate(expected)), f"{prefix}: other tokens"
    with tempfile.TemporaryDirectory() as theirs:
        dtype = np.uint16 if expected[0].dtype == np.uint16 else np.int32
        builder = IndexedDatasetBuilder(f"{theirs}/x.bin", dtype=dtype)
        for document in expected:
            builder.add_document(document.astype(dtype), [len(document)])
        builder.finalize(f"{theirs}/x.idx")
        for suffix in (".bin", ".idx"):
            ours = prefix.with_suffix(suffix)
            assert Path(f"{theirs}/x{suffix}").read_bytes() == ours.read_bytes(), f"{ours}: other bytes than theirs"


def main(folder):
    """Read every export; the first that is wrong ends it."""
    for dtype in ("uint16", "uint32"):
        arrays = np.load(folder / dtype / "expected.npz")
        for split in ("train", "val"):
            tokens, lengths = arrays[f"{split}_tokens"], arrays[f"{split}_lengths"]
            read_megatron(folder / dtype / "megatron" / split, np.split(tokens, np.cumsum(lengths)[:-1]))
            print(f"megatron {dtype} {split}: {len(tokens):,} tokens, {len(lengths)} documents", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    work = Path(sys.argv[1])
    main(work)
    shutil.rmtree(work, ignore_errors=True)
