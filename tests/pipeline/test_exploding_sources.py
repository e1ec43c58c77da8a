"""Small files that hold very much: refused by name, within 2 GB."""

# pyright: basic
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.sources.base import SourceError
from pipeline.sources.formats import jsonl
from tests.support.reading import files_source, read_batches
from tests.support.recipes import source, to_lines, write_recipe

MOST = 8_000_000
TEXT_BYTES = 20_000_000
ROWS = 10_000
TEXT = "of a word " * (TEXT_BYTES // 10)

_READ = """
import json, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from pipeline.sources.files import SourceError, read_span
from tests.support.reading import files_source, list_spans_of
found = {}
for path in Path(sys.argv[1]).iterdir():
    separator = "--" if ".txt" in path.name else None
    source = files_source(path, separator=separator, max_document_bytes=int(sys.argv[2]))
    try:
        for span in list_spans_of(source):
            for batch in read_span(source, span):
                pass
    except SourceError as error:
        found[path.name] = str(error)
print(json.dumps(found))
"""


def as_dictionary(text: str) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array([text]))


def write_parquet(path: Path, text: str, **options: Any) -> None:
    options = {"store_schema": False, "dictionary_pagesize_limit": 1 << 30, "write_statistics": False} | options
    pq.write_table(pa.table({"text": as_dictionary(text)}), path, compression="zstd", data_page_size=1 << 30, **options)


def write_repeats(path: Path, text: str) -> None:
    """Write a text of which each row repeats the beginning of the one before."""
    column: Any = pa.array([text] * 25, pa.large_string())
    table = pa.table({"text": column})
    options: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    pq.write_table(table, path, compression="zstd", write_statistics=False, data_page_size=1 << 30, **options)


def as_views(text: str) -> pa.Array[Any]:
    views = np.zeros((ROWS, 4), np.int32)
    views[:, 0], views[:, 1] = len(text), np.frombuffer(text[:4].encode(), np.int32)[0]
    data = pa.py_buffer(text.encode())
    return pa.Array.from_buffers(pa.string_view(), ROWS, [None, pa.py_buffer(views.tobytes()), data])


def write_arrow(path: Path, column: Any, new: Any, compression: str = "zstd") -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(path, pa.schema({"text": column.type}), options=options) as writer:
        writer.write_batch(pa.record_batch({"text": column}))


def write_batch(path: Path) -> None:
    """Write one record batch with 1.5 GB of text in documents of 100 KB."""
    with path.open("wb") as file:
        file.truncate(1_500_000_000)
    ends = np.arange(15_001) * 100_000
    buffers: Any = [None, pa.py_buffer(ends), pa.memory_map(str(path)).read_buffer()]
    path.unlink()
    write_arrow(path, pa.Array.from_buffers(pa.large_string(), 15_000, buffers), pa.ipc.new_file)


HEADS = {
    "a.md.zst": ("", 0),
    "a.txt.zst": ("one--two--", 2),
    "a.jsonl.zst": ('{"text": "one"}\n{"text": "', 1),
    "a.json.zst": ('[{"text": "one"}, {"text": "', 1),
    "a.csv.zst": ('text\none\n"', 1),
}
"""What stands before 4 GB of text in a file of 400 KB, and the number of the record that this text is in."""
TABLES: dict[str, Callable[[Path], None]] = {
    "dictionary.parquet": lambda path: write_parquet(path, TEXT),
    "stored.parquet": lambda path: write_parquet(path, TEXT, store_schema=True),
    "repeats.parquet": lambda path: write_repeats(path, TEXT),
    "dictionary.arrow": lambda path: write_arrow(path, as_dictionary(TEXT), pa.ipc.new_file),
    "stream.arrow": lambda path: write_arrow(path, as_dictionary(TEXT), pa.ipc.new_stream),
    "batch.arrow": write_batch,
    "views.arrow": lambda path: write_arrow(path, as_views(TEXT), pa.ipc.new_file),
}
"""Files with a document of `TEXT_BYTES` in thousands of rows, and a batch that is decompressed whole."""


def test_files_that_explode_are_refused_within_two_gigabytes(tmp_path: Path):
    for name, (head, _) in HEADS.items():
        (tmp_path / name).write_bytes(zstandard.compress(head.encode()) + 200 * zstandard.compress(TEXT.encode()))
    for name, write in TABLES.items():
        write(tmp_path / name)
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 1_000_000
    line = [sys.executable, "-c", _READ, str(tmp_path), str(MOST)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    for name in [*HEADS, *TABLES]:
        _, record = HEADS.get(name, ("", 0))
        where = f"{name}: record {record}( after byte [0-9]+)?: is longer than {MOST:,} bytes"
        if name == "batch.arrow":
            where = f"{name}: cannot be read: .*No memory is left"
        assert re.search(where, found.get(name, "nothing")), found.get(name, name)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl.zst"])
def test_a_file_of_many_documents_may_grow_a_hundred_times(name: str, tmp_path: Path):
    text, path = "words " * 1000, tmp_path / name
    if name == "a.parquet":
        write_parquet(path, text)
    elif name == "a.arrow":
        write_arrow(path, as_dictionary(text), pa.ipc.new_file)
    else:
        path.write_bytes(zstandard.compress((json.dumps({"text": text}) + "\n").encode() * ROWS))
    with pytest.raises(SourceError, match=f"^{name}: record [0-9]+: .* stored bytes become more than 8,000,000 bytes"):
        read_batches(files_source(path, max_document_bytes=MOST))
    batches = read_batches(files_source(path, max_document_bytes=ROWS * len(text)))
    assert sum(len(batch.text) for batch in batches) == ROWS


def test_too_little_memory_names_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' * 2)
    parse_lines = jsonl.parse_lines

    def fail(*arguments: Any) -> Any:
        if arguments[3]:
            raise MemoryError
        return parse_lines(*arguments)

    monkeypatch.setattr("pipeline.sources.formats.byte_io.BATCH_BYTES", 8)
    monkeypatch.setattr(jsonl, "parse_lines", fail)
    said = r"a\.jsonl: record 1 or one soon after: cannot be read: MemoryError\. No memory is left"
    with pytest.raises(SourceError, match=said):
        read_batches(files_source(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl.zst"])
def test_a_file_that_memory_is_too_small_for_is_not_called_damaged(name: str, tmp_path: Path):
    texts = [os.urandom(500_000).hex() for _ in range(60)]
    table, lines = pa.table({"text": texts}), to_lines({"text": text} for text in texts).encode()
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(table, path, compression="none")
    elif name == "a.arrow":
        write_arrow(path, pa.array(texts), pa.ipc.new_file, "lz4")
    else:
        path.write_bytes(zstandard.compress(lines))
    recipe = write_recipe(tmp_path / "recipe.toml", source("m", name, max_bytes=1_000_000))
    line = f"ulimit -v 400000; exec '{sys.executable}' -m tokenmill build '{recipe}' --workers 1 --out '{tmp_path}/o'"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr[-1000:]
    assert "Restore" not in done.stderr, done.stderr[-1000:]
    assert done.returncode == -signal.SIGABRT or "error: " in done.stderr  # a library may end the process itself
