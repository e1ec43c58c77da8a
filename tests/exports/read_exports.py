"""Read what write_exports.py wrote with the real libraries, and write the same with theirs: every byte must be equal.

Usage: python -m tests.exports.read_exports FOLDER (in .venv-exports; `make test-exports` does it). datatrove's reader
shares the main environment and is tested there, in tests/shards/test_export.py.

mosaicml-streaming imports torchvision for its pictures; torchvision's wheels want a CUDA build of torch, so two names
of it are stood in for here. What reads and writes MDS is the library's own.
"""

import json
import os
import shutil
import struct
import sys
import tempfile
import types
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np

HUGE_BYTES = 1 << 40


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


def read_mds(folder, split, expected):
    """Read with mosaicml-streaming's StreamingDataset; compare with what its MDSWriter writes."""
    stand_in_for_torchvision()
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    data = StreamingDataset(local=str(folder), split=split, batch_size=1, shuffle=False)
    documents = [data[i]["tokens"] for i in range(data.num_samples)]
    streamed = [sample["tokens"] for sample in data]
    assert len(streamed) == len(documents)
    assert all(map(np.array_equal, streamed, documents))
    limit = json.loads((folder / split / "index.json").read_bytes())["shards"][0]["size_limit"]
    with tempfile.TemporaryDirectory() as theirs:
        dtype = expected["tokens"].dtype.name
        with MDSWriter(out=f"{theirs}/x", columns={"tokens": f"ndarray:{dtype}"}, size_limit=limit) as writer:
            for document in expected["documents"]:
                writer.write({"tokens": document})
        for path in Path(f"{theirs}/x").iterdir():
            assert_same_bytes(path, folder / split / path.name)
        assert len(os.listdir(f"{theirs}/x")) == len(os.listdir(folder / split)) > (4 if split == "train" else 1)
    return np.concatenate(documents), [len(document) for document in documents]


def read_litdata(folder, split, expected):
    """Read with litdata's StreamingDataset and TokensLoader, block by block; compare with what its writer writes.

    TokensLoader gives blocks, not documents: these are read from the offsets, which must be those its writer writes.
    """
    from litdata import StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    index = json.loads((folder / split / "index.json").read_bytes())
    assert len(index["chunks"]) > 4 or split == "val"
    for block_size in (128, 1) if split == "val" else (128,):
        data = StreamingDataset(str(folder / split), item_loader=TokensLoader(block_size=block_size), shuffle=False)
        blocks, first = [], 0
        for chunk in index["chunks"]:
            whole = chunk["dim"] // block_size * block_size
            blocks.append(expected["tokens"][first : first + whole].reshape(-1, block_size))
            first += chunk["dim"]
        rows = np.array([np.asarray(data[i]) for i in range(len(data))])
        assert np.array_equal(rows, np.concatenate(blocks))
        assert np.array_equal(np.array([np.asarray(row) for row in data]), rows)
    documents = iter(expected["documents"])
    tokens, lengths = [], []
    for chunk in index["chunks"]:
        ours = folder / split / chunk["filename"]
        data = ours.read_bytes()
        offsets = np.frombuffer(data, np.uint32, chunk["chunk_size"] + 1, 4)
        tokens.append(np.frombuffer(data[offsets[0] :], expected["tokens"].dtype))
        lengths += (np.diff(offsets) // expected["tokens"].itemsize).tolist()
        with tempfile.TemporaryDirectory() as theirs:
            writer = BinaryWriter(theirs, chunk_bytes=HUGE_BYTES, item_loader=TokensLoader())
            for number in range(chunk["chunk_size"]):
                writer[number] = next(documents)
            writer.done()
            writer.merge(1)
            assert_same_bytes(Path(theirs) / "chunk-0-0.bin", ours)
            written = json.loads((Path(theirs) / "index.json").read_bytes())
            written["config"]["chunk_bytes"] = index["config"]["chunk_bytes"]
            assert written["config"] == index["config"], (written["config"], index["config"])
            assert written["chunks"] == [{**chunk, "filename": "chunk-0-0.bin"}]
    return np.concatenate(tokens), lengths


READERS = {
    "nanogpt": read_nanogpt,
    "llmc": read_llmc,
    "megatron": read_megatron,
    "mds": read_mds,
    "litdata": read_litdata,
}


def assert_same_bytes(theirs, ours):
    assert theirs.read_bytes() == ours.read_bytes(), f"{ours} differs from what the library writes"


def load_expected(folder, split):
    """Return what write_exports.py put down for a split."""
    arrays = np.load(folder / "expected.npz")
    found = {key: arrays[f"{split}_{key}"] for key in ("tokens", "lengths", "shards")}
    found["documents"] = np.split(found["tokens"], np.cumsum(found["lengths"])[:-1])
    found["eos"] = json.loads((folder / "litdata" / "export.json").read_bytes())["eos_id"]
    return found


def stand_in_for_torchvision():
    """Register the two names of torchvision that mosaicml-streaming imports and MDS does not use.

    transformers, which it imports too, looks for torchvision: it comes first, and finds none.
    """
    import_module("transformers.feature_extraction_utils")
    import_module("transformers.models.auto.tokenization_auto")
    names = ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")
    modules = {name: types.ModuleType(name) for name in names}
    modules["torchvision.datasets"].VisionDataset = type("VisionDataset", (), {})
    modules["torchvision.transforms.functional"].to_tensor = None
    sys.modules.update(modules)


def main(folder):
    """Read every export; return how many were wrong."""
    passed = failed = 0
    for dtype in ("uint16", "uint32"):
        for layout, read in READERS.items():
            if not (folder / dtype / layout).exists() and dtype == "uint32" and layout in ("nanogpt", "llmc"):
                continue
            for split in ("train", "val"):
                expected = load_expected(folder / dtype, split)
                try:
                    tokens, lengths = read(folder / dtype / layout, split, expected)
                    assert np.array_equal(tokens, expected["tokens"]), "other tokens"
                    assert np.array_equal(lengths, expected["lengths"]), "other documents"
                except Exception as error:  # noqa: BLE001
                    failed += 1
                    print(f"FAILED {layout} {dtype} {split}: {type(error).__name__}: {error}", flush=True)
                else:
                    passed += 1
                    print(f"{layout} {dtype} {split}: {len(tokens):,} tokens, {len(lengths)} documents", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    work = Path(sys.argv[1])
    status = main(work)
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if status else 0)
