"""A recipe whose last unit has a row group that cannot be decoded, and what a build of it must say and keep."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.builds import build_here, real_documents
from tests.support.recipes import source, write_recipe

MESSAGE = "bad.parquet: row group 1 cannot be decoded"


def write_corrupt_recipe(folder: Path, tokenizer: Path) -> Path:
    """Write the recipe and its sources, and return the recipe's path. The tokenizer is trained: no sample is read."""
    _write(folder / "good.parquet", real_documents()[300:])
    _mend(folder)
    path = folder / "bad.parquet"
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 100] = bytes(100)
    path.write_bytes(data)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    sources = [source(name, f"{name}.parquet") for name in ("good", "bad")]
    tables = {"tokenizer": {"file": "tokenizer.json"}, "mix": {"when_short": "shrink"}}
    return write_recipe(folder / "recipe.toml", *sources, name="damaged", **tables)


def _mend(folder: Path) -> None:
    """Write the damaged file as it should have been. It has less text than the other: its task is the last one."""
    _write(folder / "bad.parquet", real_documents()[:300])


def check_what_is_kept(recipe: Path, out: Path) -> None:
    """Mend the file and build again, here: only what had not finished runs."""
    _mend(recipe.parent)
    assert build_here(recipe, out)["ran"]["encode"] == 1


def _write(path: Path, documents: list[str]) -> None:
    table = pa.table({"text": documents})
    pq.write_table(table, path, row_group_size=150, compression="zstd", use_dictionary=False, write_page_checksum=True)
