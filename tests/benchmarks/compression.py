"""What the order of ids does to the size and speed of compressed tokens, for each choice of compression."""

from __future__ import annotations

import gzip
import itertools
import tarfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.harness import MB, Figures, alternate, timed
from tests.benchmarks.material import SPECIAL_TOKENS, corpus_files, corpus_folder, write_sample

CORPORA = ["bulk_prose", "finemath", "python_edu"]
VOCAB_SIZES = [4096, 32_768, 100_000]
CHOICES = [3, "fast", "balanced", "small"]
ROUNDS = 5
SAMPLE_BYTES = 75 * MB
ENCODED_BYTES = 24 * MB
_FRAME_BYTES = 1 << 20


class Taken(NamedTuple):
    """What one choice of compression took for the tokens of a text."""

    size: float
    write_s: float
    """Core-seconds of compression."""
    read_s: float
    """Core-seconds of decompression."""


def bench_compression(work: Path, quick: bool) -> Figures:
    """Compress the tokens of each corpus as a shard does, with tokenizers trained on it.

    Figures are relative to level 3 with ids in the order of merges, as version 0.1.0 wrote them; seconds are the least
    of the rounds.
    """
    figures: Figures = {}
    for corpus in CORPORA[:1] if quick else CORPORA:
        sample = work / f"{corpus}.sample"
        if corpus == "python_edu":
            _write_code(sample)
        else:
            write_sample(corpus_files(corpus), sample, max_bytes=SAMPLE_BYTES)
        for vocab_size in VOCAB_SIZES[:1] if quick else VOCAB_SIZES:
            compared = _compare(sample, vocab_size, rounds=1 if quick else ROUNDS)
            figures |= {f"{corpus}_{vocab_size}_{name}": value for name, value in compared.items()}
        sample.unlink()
    return figures


def _compare(sample: Path, vocab_size: int, *, rounds: int) -> Figures:
    token_bytes = 2 if vocab_size <= 1 << 16 else 4
    frames = _encode(sample, vocab_size, token_bytes)
    sides = {
        f"{order}_{choice}": partial(_compress, frames[order], choice, token_bytes)
        for order, choice in itertools.product(frames, CHOICES)
    }
    found = alternate(rounds, sides)
    least = {side: Taken(*map(min, zip(*runs, strict=True))) for side, runs in found.items()}
    base = least["merge_3"]
    return {
        f"{side}_{figure}": value / before
        for side, taken in least.items()
        for figure, value, before in zip(Taken._fields, taken, base, strict=True)
    }


def _encode(sample: Path, vocab_size: int, token_bytes: int) -> dict[str, list[bytes]]:
    """Return the frames of the same text by the order of ids."""
    import gigatoken
    import numpy as np

    from pipeline.recipe.schema import TokenizerRecipe
    from pipeline.tokenizer.sample import DOCUMENT_SEPARATOR
    from pipeline.tokenizer.train import build_tokenizer_json, train_merges

    merges = train_merges(sample, vocab_size, SPECIAL_TOKENS, "gpt2")
    with sample.open("rb") as file:
        text = gigatoken.BytesSource(file.read(ENCODED_BYTES).rpartition(DOCUMENT_SEPARATOR)[0], DOCUMENT_SEPARATOR)
    frames: dict[str, list[bytes]] = {}
    for order in ("merge", "frequency"):
        recipe = TokenizerRecipe(special_tokens=SPECIAL_TOKENS, id_order=order)
        encoder: Any = gigatoken.Tokenizer.from_json(build_tokenizer_json(merges, recipe, sample))
        ids = np.asarray(encoder.encode_batch(text, parallel=False).layout.content.data)
        data = ids.astype(f"<u{token_bytes}").tobytes()
        frames[order] = [data[at : at + _FRAME_BYTES] for at in range(0, len(data), _FRAME_BYTES)]
    return frames


def _compress(frames: list[bytes], choice: Any, token_bytes: int) -> Taken:
    import zstandard

    from shards.format.codec import choose_compressor

    compress = choose_compressor(choice, token_bytes=token_bytes)
    written, packed = timed(lambda: [compress(memoryview(frame)) for frame in frames])
    decompressor = zstandard.ZstdDecompressor()
    read, unpacked = timed(lambda: [decompressor.decompress(frame) for frame in packed])
    assert unpacked == frames
    return Taken(sum(map(len, packed)), written.core_seconds, read.core_seconds)


def _write_code(path: Path) -> None:
    """Write the files of the code corpus, which are in an archive, in the pipeline's sample format."""
    from pipeline.tokenizer.sample import DOCUMENT_SEPARATOR

    with tarfile.open(corpus_folder("python_edu") / "swh_content.tar") as archive, path.open("wb") as out:
        for member in archive:
            content = archive.extractfile(member)
            text = gzip.decompress(content.read()) if content else b""
            # The separator is no byte of UTF-8.
            if text and DOCUMENT_SEPARATOR not in text:
                out.write(text)
                out.write(DOCUMENT_SEPARATOR)
