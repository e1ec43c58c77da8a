"""What the benchmarks read: the corpora, a neutral tokenizer trained on them, and how figures are summed up."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPECIAL_TOKENS = ["<|endoftext|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>"]
VOCAB_SIZE = 32_005
MB = 1_000_000


class TopicSkippedError(Exception):
    """A topic cannot run here; the message says why."""


def corpus_folder(name: str) -> Path:
    """Return the folder of one corpus, such as `bulk_prose`.

    Raises:
        TopicSkippedError: it is not there.
    """
    root = Path(os.environ.get("TOKENMILL_CORPORA", ROOT / "../shared/corpora"))
    folder = (root / name).resolve()
    if not any(folder.glob("*.parquet")):
        raise TopicSkippedError(f"no parquet files in {folder}; set TOKENMILL_CORPORA to the folder that holds {name}/")
    return folder


def corpus_files(name: str) -> list[Path]:
    """Return the parquet files of one corpus, in order."""
    return sorted(corpus_folder(name).glob("*.parquet"))


def text_bytes(files: Sequence[Path]) -> int:
    """Return the UTF-8 bytes of the files' `text` column, without a Python object per document."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    return sum(
        pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0
        for file in files
        for batch in pq.ParquetFile(file).iter_batches(columns=["text"])
    )


def write_sample(files: Sequence[Path], path: Path, *, max_bytes: int) -> int:
    """Write documents, evenly spaced over the files and one blank line apart, to a text file; return its bytes."""
    import pyarrow.parquet as pq

    total = text_bytes(files)
    step = max(1, -(-total // max_bytes))
    with path.open("wb") as out:
        for file in files:
            for text in pq.read_table(file, columns=["text"])["text"].to_pylist()[::step]:
                if text:
                    out.write(text.encode() + b"\n\n")
    return path.stat().st_size


def write_tokenizer(files: Sequence[Path], path: Path, *, max_bytes: int = 40 * MB) -> Path:
    """Train the tokenizer that every contestant gets, with the `tokenizers` library, unless it is there already."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if path.exists():
        return path
    sample = path.with_suffix(".sample.txt")
    write_sample(files, sample, max_bytes=max_bytes)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample.read_text("utf-8").split("\n\n"), trainer=trainer)
    tokenizer.save(str(path))
    sample.unlink()
    return path


def median(values: Sequence[float]) -> float:
    """Return the median: one slow run on a shared machine must not decide a figure."""
    return statistics.median(values)
