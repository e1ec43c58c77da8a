"""Files that are broken, ambiguous or not what a recipe says: each is named, and refused or counted."""

# pyright: basic
from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.support.builds import error_of
from tests.support.recipes import source as table_of
from tests.support.recipes import write_recipe

ROWS = [{"text": f"text {n} \u00fc", "n": n} for n in range(27)]


def ipc_bytes(new: Any) -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(ROWS)
    with new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return sink.getvalue()


def parquet_bytes(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def csv_of(*lines: str) -> bytes:
    return "\n".join(lines).encode() + b"\n"


PARQUET = parquet_bytes(text=[os.urandom(50).hex() for _ in range(1000)])
RANDOM_LINES = b"\n".join(json.dumps({"text": os.urandom(400).hex()}).encode() for _ in range(300))


BROKEN: dict[str, tuple[bytes, str]] = {
    "a.csv ragged": (csv_of("text,n", "a,1", "b", "c,1"), r"a\.csv: record 1: 1 field, expected 2: b\. Repair"),
    "a.csv ragged and no UTF-8": (csv_of("text,n", "a,1") + b"X=\xd8;\n", "cannot be read: CSV parse error"),
    "a.csv open quote": (
        csv_of("text,n", "a,1", '"b,1', "c,1"),
        'a quote is never closed, in record 1 or after it: "b,1',
    ),
    "a.csv delimiter": (csv_of("text;n", "a;1"), "there are text;n. Correct `text` or `delimiter`"),
    "a.csv no header": (
        csv_of(f'"a\r\nstory {"x" * 140_000}",1', "b,2"),
        r"no column 'text' in its header, .* there are a\\r\\nstory x+\.\.\., 1.* no header",
    ),
    "a.jsonl long names": (
        json.dumps({"k" * 70_000: 1} | {f"key{n}": 1 for n in range(3000)}).encode(),
        r"there are k{60}\.\.\., key0, .{,200} and 2,981 more\. Correct",
    ),
    "a.csv old line ends": (b"text,n\rone,1\rtwo,2\r", "its lines end in a bare carriage return"),
    "a.csv twins": (csv_of("text,n,text", "a,1,b"), "has 'text' as the name of 2 columns"),
    "data by content": (csv_of("text\tn", "a\t1", "b\t2"), 'Set `format` to "csv"'),
    "a.arrow file cut": (ipc_bytes(pa.ipc.new_file)[:-300], "not whole Arrow IPC.*Restore the file"),
    "a.arrow stream cut": (ipc_bytes(pa.ipc.new_stream)[:-300], "cut short"),
    "a.arrow end mark alone cut": (ipc_bytes(pa.ipc.new_stream)[:-8], "cut short"),
    "a.arrow something else": (b"some text", "expected Arrow IPC"),
    "a.arrow.gz gzip": (gzip.compress(ipc_bytes(pa.ipc.new_stream)), "Decompress the file"),
    "a.json object": (json.dumps({"data": ROWS}, indent=1).encode(), "neither one object a line nor one array"),
    "a.json cut": (json.dumps(ROWS).encode()[:-30], "cut short"),
    "a.json no key": (b'[{"body": "a"}]', "there are body. Correct `text`."),
    "a.json goes on": (b'[{"text": "a"}] [{"text": "b"}]', "goes on after the end of its array: "),
    "a.json null": (b'[{"text": "a"}, null]', "record 1: .*expected an object"),
    "a.json no string": (b'[{"text": "a"}, {"text": 5}]', "record 1: "),
    "a.json line end in a string": (b'[{"text": "a"}, {"text": "b\nc"}]', "record 1: "),
    "a.jsonl number": (b'{"text": "a"}\n{"text": 1}', "record 1: .*changed from string to number"),
    "a.jsonl of nothing else": (b'{"text": \n[1]\n{"text": 1}', "record 0: |all are malformed"),
    "a.jsonl cut off": (b'{"text": "a"}\n{"text": "x', "record 1: .*JSON parse error"),
    "a.jsonl.gz jsonl": (gzip.compress(RANDOM_LINES)[:20_000], "ended before the end-of-stream marker"),
    "a.parquet cut": (PARQUET[:-100], "not a whole parquet file"),
    "a.parquet a page": (PARQUET[:100] + bytes(19_900) + PARQUET[20_000:], "row group 0 cannot be decoded"),
}
"""By file and case: the bytes, and words of the message, a pattern."""
ONCE_MALFORMED = (
    "a.csv ragged, a.json null, a.json no string, a.json line end in a string, a.jsonl number, a.jsonl cut off"
)
"""Those whose records are counted if the recipe allows malformed ones."""


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_by_its_name(case: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    name, (data, words) = case.split(" ")[0], BROKEN[case]
    (tmp_path / name).write_bytes(data)
    for tolerance in (0.0,) if case in ONCE_MALFORMED.split(", ") else (0.0, 1.0):
        message = error_of(source(tmp_path / name, max_malformed=tolerance), read_all)
        assert message.startswith((f"source 's': {name}: ", f"{name}: "))
        assert re.search(f"(?s){words}", message), message


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl.zst"])
def test_a_file_that_memory_is_too_small_for_is_not_called_damaged(name: str, tmp_path: Path) -> None:
    texts = [os.urandom(500_000).hex() for _ in range(60)]
    table, lines = pa.table({"text": texts}), "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(table, path, compression="none")
    elif name == "a.arrow":
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_bytes(zstandard.compress(lines))
    recipe = write_recipe(tmp_path / "recipe.toml", table_of("m", name, max_bytes=1_000_000))
    line = f"ulimit -v 400000; exec '{sys.executable}' -m tokenmill build '{recipe}' --workers 1 --out '{tmp_path}/o'"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr[-1000:]
    assert "Restore" not in done.stderr, done.stderr[-1000:]
    assert done.returncode == -signal.SIGABRT or "error: " in done.stderr  # a library may end the process itself
