"""The speed of learning merges beside `tokenizers`' BpeTrainer on the same documents, and whether the merges are equal.

Processor seconds count, since both use all cores where they can and the machine may be busy. Compiling what numba
compiles is timed apart: it happens once on a machine.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.benchmarks.harness import MB, Figures, timed
from tests.benchmarks.material import SPECIAL_TOKENS, VOCAB_SIZE, corpus_files, write_sample


def bench_bpe(work: Path, quick: bool) -> Figures:
    """Train a 32 K byte-level BPE for each pre-tokenizer on bulk_prose and finemath.

    `ratio` is how many times fewer processor seconds we take where it is least.
    """
    import gigatoken  # noqa: F401 - loaded, like `tokenizers`, before the clock starts
    import tokenizers  # noqa: F401

    from pipeline.tokenizer.train import train_merges, train_merges_slowly

    files = corpus_files("bulk_prose") + corpus_files("finemath")
    sample, first = work / "bpe.sample", work / "bpe-first.sample"
    size = write_sample(files, sample, max_bytes=30 * MB if quick else 150 * MB)
    write_sample(files[:1], first, max_bytes=MB)
    compiling, _ = timed(partial(train_merges, first, 300, [], "llama3"))
    figures: Figures = {"text_mb": size / MB, "compile_s": compiling.core_seconds}
    ratios: list[float] = []
    identical = True
    for name in ("gpt2", "llama3", "qwen2", "o200k"):
        arguments = (sample, VOCAB_SIZE, SPECIAL_TOKENS, name)
        ours, merges = timed(partial(train_merges, *arguments))
        theirs, their_merges = timed(partial(train_merges_slowly, *arguments))
        figures |= {f"{name}_s": ours.seconds, f"{name}_tokenizers_s": theirs.seconds}
        figures |= {f"{name}_cpu_s": ours.core_seconds, f"{name}_tokenizers_cpu_s": theirs.core_seconds}
        ratios.append(theirs.core_seconds / ours.core_seconds)
        identical &= merges == their_merges
    sample.unlink()
    return figures | {"ratio": min(ratios), "merges_identical": identical}
