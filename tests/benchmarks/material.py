"""The material of the benchmarks: the corpora, and a neutral tokenizer trained on them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.harness import MB, ROOT, TopicSkippedError

SPECIAL_TOKENS = ["<|endoftext|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>"]
VOCAB_SIZE = 32_005
COPIES = 4
"""How many times the text the larger corpus of a benchmark has."""


def prose_files() -> list[Path]:
    """Return the parquet files of `bulk_prose`, in order.

    Raises:
        TopicSkippedError: there are none.
    """
    root = Path(os.environ.get("TOKENMILL_CORPORA", ROOT / "../shared/corpora"))
    folder = (root / "bulk_prose").resolve()
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise TopicSkippedError(f"no parquet files in {folder}; set TOKENMILL_CORPORA to the folder of bulk_prose/")
    return files


def text_bytes(files: Sequence[Path]) -> int:
    """Return the UTF-8 bytes of the files' `text` column, without a Python object per document."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    return sum(
        pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0
        for file in files
        for batch in pq.ParquetFile(file).iter_batches(columns=["text"])
    )


def recipe_text(files: Sequence[Path], tokenizer: Path, *, val_tokens: int = 100_000) -> str:
    """Return a recipe of one source with a given tokenizer, so that only encode, mix and assemble have work to do."""
    return (
        f'name = "bench"\n[[sources]]\nname = "text"\nweight = 1\npaths = {json.dumps([*map(str, files)])}\n'
        f"[tokenizer]\nfile = {json.dumps(str(tokenizer))}\n[split]\nval_tokens = {val_tokens}\n"
    )


def write_tokenizer(files: Sequence[Path], path: Path, *, max_bytes: int = 40 * MB) -> Path:
    """Write the tokenizer that every contestant is given, unless it is there: a BPE of evenly spaced documents."""
    import pyarrow.parquet as pq

    from tests.support.shard_sets import train_bpe

    if path.exists():
        return path
    step = max(1, -(-text_bytes(files) // max_bytes))
    texts = (text for file in files for text in pq.read_table(file)["text"].to_pylist()[::step] if text)
    train_bpe(texts, VOCAB_SIZE, SPECIAL_TOKENS).save(str(path))
    return path


def prose_tokenizer(work: Path) -> Path:
    """Return the tokenizer of `bulk_prose`, written once."""
    return write_tokenizer(prose_files(), work / "tokenizer.json")


def write_copies(work: Path, copies: int = COPIES) -> list[Path]:
    """Write copies of `bulk_prose` in which each document begins with its copy's number: all are distinct."""
    folder = work / "copies"
    folder.mkdir(exist_ok=True)
    return [_write_copy(file, folder / f"copy-{k}-{file.name}", k) for k in range(copies) for file in prose_files()]


def _write_copy(source: Path, target: Path, number: int) -> Path:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            text = table["text"]
            marked = pc.binary_join_element_wise(
                pa.scalar(f"Copy {number}.", text.type), text, pa.scalar("\n", text.type)
            )
            writer.write_table(table.set_column(table.schema.get_field_index("text"), table.field("text"), marked))
    return target
