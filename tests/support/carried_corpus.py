"""A corpus whose sources have columns to carry: parquet, compressed JSON lines and files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.builds import real_documents

CARRY = {
    "prose": ["url", "score: float64", "meta.lang", "good"],
    "docs": ["url", "meta.id"],
}


def rows_of(source: str) -> list[dict[str, Any]]:
    """Return the rows of a source with all their columns; every seventh value is null."""
    documents = real_documents()
    half = len(documents) // 2
    texts = documents[:half] if source == "prose" else [*documents[half:], *documents[:10]]
    rows: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        url = None if index % 7 == 6 else f"https://{'a' if index % 3 else 'b'}.example/{source}/{index}?q=é"
        meta = {"id": 10**15 + index, "lang": "en" if index % 2 else None}
        rows.append({"text": text, "url": url, "score": index % 5, "good": index % 4 == 0, "meta": meta})
    return rows


def write_carried_corpus(folder: Path) -> None:
    """Write two parquet files, in one of which `score` is an integer, compressed JSON lines, and plain files."""
    folder.mkdir()
    rows = rows_of("prose")
    middle = len(rows) // 2
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.slice(0, middle), folder / "prose-0.parquet", row_group_size=100)
    table = table.slice(middle)
    floats = table.set_column(2, "score", table["score"].cast(pa.float32()))
    urls = floats.set_column(1, "url", floats["url"].combine_chunks().dictionary_encode())
    pq.write_table(urls, folder / "prose-1.parquet", row_group_size=100)
    lines = "".join(json.dumps(row) + "\n" for row in rows_of("docs"))
    (folder / "docs.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "code").mkdir()
    for name in ("ast.py", "heapq.py", "queue.py", "random.py", "shlex.py", "textwrap.py"):
        (folder / "code" / name).write_bytes((Path(json.__file__).parent.parent / name).read_bytes())


def carried_recipe(folder: Path, *, carry: bool = True, rest: str = "") -> Path:
    """Write the recipe of the corpus in `folder / "corpus"`, and return its path."""
    given = {name: f"carry = {json.dumps(items)}" if carry else "" for name, items in CARRY.items()}
    path = folder / f"recipe-{'on' if carry else 'off'}.toml"
    path.write_text(
        f"""
name = "carried"
seed = 7
[[sources]]
name = "prose"
paths = ["corpus/*.parquet"]
weight = 60
keep = {{ score = ">= 1" }}
{given["prose"]}
[[sources]]
name = "docs"
paths = ["corpus/docs.jsonl.gz"]
weight = 30
{given["docs"]}
[[sources]]
name = "code"
paths = ["corpus/code/*.py"]
weight = 10
[tokenizer]
vocab_size = 600
sample_bytes = "200 KB"
[mix]
tokens = "max"
when_short = "shrink"
[split]
val_tokens = 4_000
[shards]
tokens = 10_000
{rest}
"""
    )
    return path
