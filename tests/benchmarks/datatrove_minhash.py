"""The comparison: datatrove's four MinHash stages as a process of their own.

    python -m tests.benchmarks.datatrove_minhash INPUT OUT

Its defaults, which are FineWeb's: 14 buckets of 8 hashes, 5-grams of words. Words are split at white space: spaCy, its
default for English, takes several times as long, so the comparison favours it. It prints as JSON the seconds that the
stages take, and the ids of the documents that they remove. The caller allows one thread a process.
"""

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import xxhash

TASKS, WORKERS = 4, 2


class SplitTokenizer:
    """The fastest way to split text into words."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return text.split()


def find_duplicates(folder: str, out: Path) -> None:
    """Run signatures, buckets, clusters and the filter as datatrove's own example does, each after the one before."""
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
    keep = MinhashDedupFilter(clusters, exclusion_writer=ParquetWriter(str(out / "removed")))
    for name, tasks, pipeline in (
        ("sign", TASKS, [ParquetReader(folder, glob_pattern="*.parquet"), sign]),
        ("buckets", config.num_buckets, [MinhashDedupBuckets(signatures, buckets, config=config)]),
        ("clusters", 1, [MinhashDedupCluster(buckets, clusters, config=config)]),
        ("filter", TASKS, [ParquetReader(folder, glob_pattern="*.parquet"), keep, ParquetWriter(str(out / "kept"))]),
    ):
        logs = str(out / f"logs-{name}")
        LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=WORKERS, logging_dir=logs).run()


if __name__ == "__main__":
    begun = time.perf_counter()
    find_duplicates(sys.argv[1], Path(sys.argv[2]))
    seconds = time.perf_counter() - begun
    files = sorted((Path(sys.argv[2]) / "removed").rglob("*.parquet"))
    print(json.dumps({"seconds": seconds, "ids": [i for path in files for i in pq.read_table(path)["id"].to_pylist()]}))
