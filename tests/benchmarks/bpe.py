"""Compare the speed of learning merges with `tokenizers`' BpeTrainer on the same documents, and compare the merges.

The comparison favours `tokenizers`: its documents are strings in memory before the clock starts, ours are a file.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.material import (
    MB,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    corpus_files,
    median,
    train_with_tokenizers,
    write_sample,
)


def bench_bpe(work: Path, *, quick: bool = False) -> dict[str, Any]:
    """Train a 32 K byte-level BPE on bulk_prose and finemath, in turns.

    Returns:
        `text_mb`, `ours_s`, `tokenizers_s`, `ratio` (how many times faster we are) and `merges_identical`.

    Raises:
        TopicSkippedError: the corpora are not there.
    """
    import gigatoken  # noqa: F401 - loaded, like `tokenizers`, before the clock starts

    from pipeline.tokenizer.sample import iter_sample
    from pipeline.tokenizer.train import train_merges

    files = corpus_files("bulk_prose") + corpus_files("finemath")
    sample, theirs_file = work / "bpe.sample", work / "bpe-tokenizers.json"
    size = write_sample(files, sample, max_bytes=30 * MB if quick else 500 * MB)
    documents = list(iter_sample(sample))
    ours, theirs = [], []
    merges: list[tuple[str, str]] = []
    for _ in range(1 if quick else 2):
        start = time.perf_counter()
        merges = train_merges(sample, VOCAB_SIZE, SPECIAL_TOKENS, "gpt2")
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        train_with_tokenizers(documents, theirs_file)
        theirs.append(time.perf_counter() - start)
    expected = [tuple(merge) for merge in json.loads(theirs_file.read_text())["model"]["merges"]]
    sample.unlink()
    return {
        "text_mb": size / MB,
        "ours_s": median(ours),
        "tokenizers_s": median(theirs),
        "ratio": median(theirs) / median(ours),
        "merges_identical": merges == expected,
    }
