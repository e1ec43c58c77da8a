"""Compare the speed of learning merges with `tokenizers`' BpeTrainer on the same documents, and compare the merges.

Processor seconds count, since both use all cores where they can and the machine may be busy. Compiling what numba
compiles is timed apart: it happens once on a machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.material import MB, SPECIAL_TOKENS, VOCAB_SIZE, corpus_files, write_sample


def bench_bpe(work: Path, *, quick: bool = False) -> dict[str, Any]:
    """Train a 32 K byte-level BPE for each pre-tokenizer on bulk_prose and finemath.

    Returns:
        `text_mb`; of each pre-tokenizer `NAME_s` and `NAME_tokenizers_s` by the clock, `NAME_cpu_s` and
        `NAME_tokenizers_cpu_s`; `ratio`, how many times fewer processor seconds we take where it is least; `compile_s`;
        and `merges_identical`, for all.

    Raises:
        TopicSkippedError: the corpora are not there.
    """
    import gigatoken  # noqa: F401 - loaded, like `tokenizers`, before the clock starts
    import tokenizers  # noqa: F401

    from pipeline.tokenizer.train import train_merges, train_merges_slowly

    files = corpus_files("bulk_prose") + corpus_files("finemath")
    sample, first = work / "bpe.sample", work / "bpe-first.sample"
    size = write_sample(files, sample, max_bytes=30 * MB if quick else 150 * MB)
    write_sample(files[:1], first, max_bytes=MB)
    _, _, compile_cpu_s = _time(lambda: train_merges(first, 300, [], "llama3"))
    figures: dict[str, Any] = {"text_mb": size / MB, "compile_s": compile_cpu_s}
    ratios: list[float] = []
    identical = True
    for name in ("gpt2", "llama3", "qwen2", "o200k"):
        ours, seconds, cpu_s = _time(lambda name=name: train_merges(sample, VOCAB_SIZE, SPECIAL_TOKENS, name))
        theirs, their_s, their_cpu_s = _time(
            lambda name=name: train_merges_slowly(sample, VOCAB_SIZE, SPECIAL_TOKENS, name)
        )
        figures |= {f"{name}_s": seconds, f"{name}_tokenizers_s": their_s}
        figures |= {f"{name}_cpu_s": cpu_s, f"{name}_tokenizers_cpu_s": their_cpu_s}
        ratios.append(their_cpu_s / cpu_s)
        identical &= ours == theirs
    sample.unlink()
    return figures | {"ratio": min(ratios), "merges_identical": identical}


def _time(train: Callable[[], list[tuple[str, str]]]) -> tuple[list[tuple[str, str]], float, float]:
    """Return the merges, the seconds by the clock, and the processor seconds of all threads."""
    start, cpu_start = time.perf_counter(), time.process_time()
    merges = train()
    return merges, time.perf_counter() - start, time.process_time() - cpu_start
