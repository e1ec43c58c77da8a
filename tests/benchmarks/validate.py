"""Measure how fast full validation is, compared with plain decompression of the same files, in one run.

Run alone it takes a shard set's folder, or builds a small set from the standard library's source first:

    python -m tests.benchmarks.validate [DIR]
"""

from __future__ import annotations

import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import shards
from shards.format import codec
from shards.validation.validate import validate

ROUNDS = 3
"""Each side is timed this often, in turns, and its best round counts: a shared machine only ever makes it slower."""


def bench_validate(set_path: str | Path) -> dict[str, float]:
    """Time full validation and plain decompression of a set, each on one thread.

    Returns:
        `tokens`, `validate_tokens_per_s`, `decompress_tokens_per_s` and `ratio` (validation's speed as a fraction of
        decompression's).

    Raises:
        RuntimeError: the set is not whole, so that the timing would mean nothing.
    """
    shard_set = shards.open_set(set_path)
    tokens = sum(shard.num_tokens for shard in shard_set.shards)
    validating: list[float] = []
    decompressing: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for shard in shard_set.shards:
            for _frame in codec.iter_frames(shard.tokens_file, shard.frames):
                pass
        decompressing.append(time.perf_counter() - start)
        start = time.perf_counter()
        report = validate(set_path, level="full", threads=1)
        validating.append(time.perf_counter() - start)
        if not report.ok:
            raise RuntimeError(f"{set_path}: not a whole set; {len(report.problems)} problems: {report.problems[:3]}")
    return {
        "tokens": tokens,
        "validate_tokens_per_s": tokens / min(validating),
        "decompress_tokens_per_s": tokens / min(decompressing),
        "ratio": min(decompressing) / min(validating),
    }


def build_sample_set(folder: Path, *, copies: int = 4) -> None:
    """Write a set of the standard library's source, each file once in every one of `copies` shards."""
    import numpy as np
    import pyarrow as pa
    import xxhash
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from shards.format import manifest, writer
    from shards.format.document_table import document_schema

    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if "site-packages" not in file.parts]
    texts = [text for text in dict.fromkeys(texts) if text]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=32_000, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
        ),
    )
    tokenizer.encode_special_tokens = True
    eos_id = tokenizer.token_to_id("<|endoftext|>")
    chunks = [np.array([*encoding.ids, eos_id], "<u2") for encoding in tokenizer.encode_batch_fast(texts)]
    lengths = np.array([len(chunk) for chunk in chunks], np.uint32)
    schema = document_schema()
    names = schema.field("source").type
    table = pa.Table.from_arrays(
        [
            pa.array(np.cumsum(lengths, dtype=np.uint64) - lengths),
            pa.array(lengths),
            pa.array(["stdlib"] * len(texts)).dictionary_encode().cast(names),
            pa.array(["stdlib"] * len(texts)).dictionary_encode().cast(names),
            pa.array(np.arange(len(texts), dtype=np.uint32)),
            pa.array([xxhash.xxh3_128_digest(text.encode()) for text in texts], pa.binary(16)),
        ],
        schema=schema,
    )
    tokenizer_file = writer.write_entry(folder / "tokenizer.json", tokenizer.to_str())
    recipe = writer.write_entry(folder / "recipe.json", "{}\n")
    vocab_size = tokenizer.get_vocab_size()
    properties = writer.SetProperties(vocab_size=vocab_size, eos_id=eos_id, tokenizer_sha256=tokenizer_file.sha256)
    entries = [
        writer.write_shard(folder, split="train", index=k, properties=properties, chunks=chunks, documents=table)
        for k in range(copies)
    ]
    tokens, documents = int(lengths.sum()) * copies, len(texts) * copies
    counts = manifest.SourceCounts(tokens=tokens, documents=documents)
    source = manifest.SourceEntry(
        name="stdlib",
        weight=1.0,
        revision=sys.version.split()[0],
        tokens_available=tokens // copies,
        documents_available=len(texts),
        dropped={},
        epochs=copies,
    )
    mix = manifest.MixEntry(
        source="stdlib", requested=1.0, achieved=1.0, requested_tokens=tokens, achieved_tokens=tokens
    )
    writer.write_manifest(
        folder,
        manifest.Manifest(
            name="stdlib",
            dtype=manifest.dtype_for(vocab_size),
            vocab_size=vocab_size,
            tokenizer=manifest.TokenizerEntry(
                file="tokenizer.json",
                sha256=tokenizer_file.sha256,
                eos_id=eos_id,
                special_tokens={"<|endoftext|>": eos_id},
            ),
            recipe=manifest.RecipeEntry(file="recipe.json", sha256=recipe.sha256),
            sources=[source],
            mix=[mix],
            splits={
                "train": manifest.SplitEntry(
                    requested_tokens=tokens, tokens=tokens, documents=documents, sources={"stdlib": counts}
                )
            },
            shards=entries,
        ),
    )


def main() -> None:
    """Time the set named on the command line, or a sample."""
    if len(sys.argv) > 1:
        result = bench_validate(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            build_sample_set(Path(folder))
            result = bench_validate(folder)
    validating, decompressing = result["validate_tokens_per_s"] / 1e6, result["decompress_tokens_per_s"] / 1e6
    print(
        f"{result['tokens']:,.0f} tokens on one thread: validate {validating:.0f} M tokens/s, "
        f"decompress {decompressing:.0f} M tokens/s, ratio {result['ratio']:.2f}"
    )


if __name__ == "__main__":
    main()
