"""The comparison: datatrove's four MinHash stages as a process of their own.

    python -m tests.benchmarks.datatrove_minhash --input FOLDER --out FOLDER --tasks 4 --workers 2

Its defaults, which are FineWeb's: 14 buckets of 8 hashes, 5-grams of words. Words are split at white space: spaCy, its
default for English, takes several times as long, so the comparison favours it. It prints the seconds that the
stages take, then the ids of the documents that they remove, one a line. The caller allows one thread a process.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pyarrow.parquet as pq
import xxhash


class SplitTokenizer:
    """The fastest way to split text into words."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return text.split()


def main() -> None:
    """Run signatures, buckets, clusters and the filter, each with `--workers` processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    begun = time.perf_counter()
    find_duplicates(args.input, Path(args.out), tasks=args.tasks, workers=args.workers)
    print(time.perf_counter() - begun)
    for path in sorted((Path(args.out) / "removed").rglob("*.parquet")):
        for name in pq.read_table(path, columns=["id"])["id"].to_pylist():
            print(name)


def find_duplicates(folder: str, out: Path, *, tasks: int, workers: int) -> None:
    """Run the stages as datatrove's own example does, each after the one before."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
        minhash,
    )
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import ParquetWriter

    config = minhash.MinhashConfig()
    minhash.load_word_tokenizer = lambda language: SplitTokenizer()
    signatures, buckets, clusters = (str(out / name) for name in ("signatures", "buckets", "clusters"))
    sign = MinhashDedupSignature(output_folder=signatures, config=config)
    # Its own function hands text to xxhash, which refuses that from version 4 on.
    sign._hash_func = lambda words: xxhash.xxh64_intdigest(words.encode())

    def run(name: str, pipeline: list[object], tasks: int) -> None:
        LocalPipelineExecutor(
            pipeline=pipeline, tasks=tasks, workers=workers, logging_dir=str(out / f"logs-{name}")
        ).run()

    reader = ParquetReader(folder, glob_pattern="*.parquet")
    run("sign", [reader, sign], tasks)
    run("buckets", [MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets)
    run("clusters", [MinhashDedupCluster(buckets, clusters, config=config)], 1)
    removed = ParquetWriter(str(out / "removed"))
    keep = MinhashDedupFilter(clusters, exclusion_writer=removed)
    run("filter", [ParquetReader(folder, glob_pattern="*.parquet"), keep, ParquetWriter(str(out / "kept"))], tasks)


if __name__ == "__main__":
    main()
