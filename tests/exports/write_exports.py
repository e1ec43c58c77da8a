"""Write two sets, uint16 and uint32, for megatron-core, and beside them what its reader must find.

Usage: python -m tests.exports.write_exports FOLDER (in the main environment; `make test-exports` does it). Documents
are random ids of lengths at which layouts change: one token (EOS alone), around 255 and 65,535. `SET/expected.npz`
holds each split's tokens and document lengths.
"""

import shutil
import sys
from pathlib import Path

import numpy as np

from shards.convert.export import export_set
from shards.format.reader import open_set
from tests.support.shard_sets import Document, Plan, write_set

LENGTHS = [1, 2, 254, 255, 256, 257, 65_534, 65_535, 65_536, 65_537]


def plan_documents(rng: np.random.Generator, vocab_size: int, eos_id: int, count: int, *, long: bool) -> list[Document]:
    """Draw documents of all ids but EOS, which ends each."""
    lengths = [*rng.integers(1, 900, count).tolist(), *(length for length in LENGTHS if long or length < 1000)]
    documents = []
    for row, length in enumerate(rng.permutation(lengths)):
        ids = rng.integers(0, vocab_size - 1, length).astype("<u4")
        ids[ids >= eos_id] += 1
        ids[-1] = eos_id
        documents.append(Document(f"{vocab_size} {row}".encode(), ids, "prose", "unit", row))
    return documents


def write_all(folder: Path, dtype: str, *, vocab_size: int, eos_id: int) -> None:
    """Write one set and its exports."""
    rng = np.random.default_rng(vocab_size)
    documents = {
        "train": [plan_documents(rng, vocab_size, eos_id, 400, long=index == 1) for index in range(3)],
        "val": [plan_documents(rng, vocab_size, eos_id, 30, long=False)],
    }
    plan = Plan(documents, '{"added_tokens": []}', eos_id, vocab_size, {"prose": 1.0}, "{}", {"prose": 1})
    write_set(folder / "set", plan)
    expected = {}
    for split, shards in documents.items():
        every = [document.tokens for shard in shards for document in shard]
        expected[f"{split}_tokens"] = np.concatenate(every).astype(dtype)
        expected[f"{split}_lengths"] = np.array([len(tokens) for tokens in every])
    np.savez(folder / "expected.npz", **expected)
    export_set(open_set(folder / "set"), folder / "megatron", layout="megatron")
    shutil.rmtree(folder / "set")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]) / "uint16", "uint16", vocab_size=65_536, eos_id=40_000)
    write_all(Path(sys.argv[1]) / "uint32", "uint32", vocab_size=128_256, eos_id=128_001)
