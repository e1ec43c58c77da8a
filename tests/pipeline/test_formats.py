"""File formats: the same records from each, whatever it is cut into; what is broken or ambiguous is refused."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.recipe.key_values import FormatName
from pipeline.recipe.sources import FilesSource
from pipeline.sources import files
from pipeline.sources.base import MALFORMED, SourceError, Span, TextBatch
from pipeline.sources.files import list_files, list_spans
from pipeline.sources.formats import byte_io
from pipeline.sources.formats.contract import FORMATS
from pipeline.tokenizer.sample import split_groups
from tests.support.provenance import read_unit
from tests.support.recipes import source as table_of
from tests.support.recipes import write_recipe

ROWS: list[dict[str, Any]] = [
    {"id": f"{n:03}", "text": text, "score": n / 4, "meta": {"url": f"https://example.org/{n}"}}
    for n, text in enumerate(
        ["true", "NA", "001", "1.50", 'a "quoted" text,\nwith a comma', "Grüße, 世界\r\n", "null", "x" * 500, "[{]}"]
        * 3
    )
]
Write = Callable[[Path], Any]


def test_recipes_name_the_formats_of_the_table() -> None:
    assert set(get_args(FormatName)) == {"auto", *FORMATS}


def table() -> pa.Table:
    return pa.Table.from_pylist(ROWS)


def write_ipc(path: Path, new: Any, **options: Any) -> None:
    with new(path, table().schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table(), max_chunksize=4)


def to_csv(delimiter: str = ",", end: str = "\r\n") -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    writer.writerow(["id", "text", "score", "meta.url"])
    writer.writerows([row["id"], row["text"], row["score"], row["meta"]["url"]] for row in ROWS)
    return out.getvalue().encode()


def write_bytes(data: bytes) -> Write:
    return lambda path: path.write_bytes(data)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
}
LINES = [json.dumps(row).encode() + b"\n" for row in ROWS]
JSON_LINES, HALVES = b"".join(LINES), (b"".join(LINES[:12]), b"".join(LINES[12:]))
PARQUET_TYPES: dict[str, pa.DataType] = {
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


def write_typed(path: Path, kind: str) -> None:
    texts: Any = table()["text"].cast(PARQUET_TYPES[kind])
    pq.write_table(table().set_column(table().schema.names.index("text"), "text", texts), path, row_group_size=4)


WRITERS: dict[str, Write] = {
    "a.arrow": lambda path: write_ipc(path, pa.ipc.new_stream),
    "file.arrow": lambda path: write_ipc(path, pa.ipc.new_file),
    "lz4.feather": lambda path: write_ipc(path, pa.ipc.new_file, compression="lz4"),
    "zstd.arrow": lambda path: write_ipc(path, pa.ipc.new_stream, compression="zstd"),
    "noname": lambda path: write_ipc(path, pa.ipc.new_stream),
    "a.csv": write_bytes(to_csv()),
    "bom.csv": write_bytes(b"\xef\xbb\xbf" + to_csv()),
    "a.tsv": write_bytes(to_csv("\t", "\n")),
    "a.csv.gz": write_bytes(gzip.compress(to_csv())),
    "a.csv.bz2": write_bytes(bz2.compress(to_csv())),
    "a.psv.zst": write_bytes(zstandard.ZstdCompressor().compress(to_csv("|"))),
    "a.json": write_bytes(json.dumps(ROWS).encode()),
    "indented.json": write_bytes(b"\xef\xbb\xbf\n " + json.dumps(ROWS, indent=2, ensure_ascii=False).encode() + b"\n"),
    "a.json.gz": write_bytes(gzip.compress(json.dumps(ROWS).encode())),
    "array": write_bytes(json.dumps(ROWS).encode()),
    "a.parquet": lambda path: pq.write_table(table(), path, row_group_size=4),
    "dots.parquet": lambda path: pq.write_table(table().flatten(), path, row_group_size=4),
    **{f"{kind}.parquet": partial(write_typed, kind=kind) for kind in PARQUET_TYPES},
    "a.jsonl": write_bytes(JSON_LINES),
    "a.ndjson": write_bytes(JSON_LINES),
    "lines.json": write_bytes(JSON_LINES),
    "c4-train.00000.json.gz": write_bytes(gzip.compress(JSON_LINES)),
    "part-00000": write_bytes(JSON_LINES),
    "part-00000.zst": write_bytes(COMPRESS[".zst"](JSON_LINES)),
    "part-0": lambda path: pq.write_table(table(), path, row_group_size=4),
    "a.tab": write_bytes(to_csv("\t")),
    **{f"a.jsonl{ending}": write_bytes(compress(JSON_LINES)) for ending, compress in COMPRESS.items()},
    # several streams in a row are one
    **{
        f"joined.jsonl{end}": write_bytes(compress(HALVES[0]) + compress(HALVES[1]))
        for end, compress in COMPRESS.items()
    },
}
"""A file of each format with columns, and of each variant, with the records `ROWS`."""
SEPARATOR = "\n<<<document>>>\n"
TEXTS: dict[str, Write] = {
    f"a.txt{end}": write_bytes(compress(SEPARATOR.join(row["text"] for row in ROWS).encode()))
    for end, compress in {"": bytes, **COMPRESS}.items()
}
"""A file of each format without columns of a recipe's own, with the texts of `ROWS`."""
UNCUT = (".gz", ".bz2", ".zst")


def read_spans(recipe: FilesSource, unit_bytes: int | None = None) -> list[tuple[Span, list[TextBatch]]]:
    return [(span, list(files.read_span(recipe, span))) for span in list_spans(recipe, list_files(recipe), unit_bytes)]


def read_records(recipe: FilesSource, unit_bytes: int | None = None) -> list[str]:
    """Return the text of each row, and check that rows count from 0 in each span."""
    records: list[str] = []
    for _, batches in read_spans(recipe, unit_bytes):
        rows = itertools.count()
        for batch in batches:
            for text, row in zip(batch.text.to_pylist(), batch.rows.tolist(), strict=True):
                assert recipe.keep or recipe.max_malformed or row == next(rows)
                records.append(text.decode() if isinstance(text, bytes) else text)
    return records


@pytest.fixture(params=[*WRITERS, *TEXTS])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    (WRITERS | TEXTS)[request.param](path)
    return path


def source_of(path: Path | str, **keys: Any) -> FilesSource:
    separator = SEPARATOR if ".txt" in str(path) else None
    return FilesSource(name="s", weight=1.0, paths=[str(path)], separator=separator, **keys)


@pytest.mark.parametrize("unit_bytes", [None, 1], ids=["whole", "cut"])
def test_the_records_are_those_of_the_file(
    written: Path, unit_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_io, "BATCH_BYTES", 300)  # less than the longest document
    spans = read_spans(source_of(written), unit_bytes)
    assert texts_of(spans) == [row["text"] for row in ROWS]
    assert (len(spans) > 3) == (unit_bytes is not None and not written.name.endswith(UNCUT))
    assert sum(span.stored_bytes for span, _ in spans) > 0
    if written.name in WRITERS:
        kept = read_records(source_of(written, keep={"score": ">= 2", "id": "!= '010'"}), unit_bytes)
        assert kept == [row["text"] for row in ROWS if row["score"] >= 2 and row["id"] != "010"]
    for span, batches in spans:
        if span.kind == "b":
            assert batches[-1].read_bytes == span.stored_bytes


def texts_of(spans: list[tuple[Span, list[TextBatch]]]) -> list[str]:
    texts = [text for _, batches in spans for batch in batches for text in batch.text.to_pylist()]
    return [text.decode() if isinstance(text, bytes) else text for text in texts]


def test_a_document_over_the_limit_is_refused_by_its_number(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = max(len(row["text"].encode()) for row in ROWS)
    assert len(read_records(source_of(written, max_document_bytes=longest))) == len(ROWS)
    monkeypatch.setattr(byte_io, "BATCH_BYTES", 100)
    with pytest.raises(SourceError, match=f"^{written.name}: record 7: is longer than {longest - 1} bytes"):
        read_records(source_of(written, max_document_bytes=longest - 1))
    (cut := written.with_name("cut.txt")).write_text(f"{'x' * 20}{SEPARATOR}{'y' * 40}")
    with pytest.raises(
        SourceError, match=rf"^cut\.txt: record 0 after byte {20 + len(SEPARATOR)}: is longer than 30 bytes"
    ):
        read_records(source_of(cut, max_document_bytes=30), 1)


def test_provenance_leads_back_to_the_document(written: Path) -> None:
    recipe = source_of(written)
    ((span, batches), *_) = read_spans(recipe)
    row, expected = batches[0].rows.tolist()[-1], texts_of([(span, batches[:1])])[-1]
    assert read_unit(recipe, span.label("x"))[row] == expected.encode()
    parts = split_groups(span)
    assert sum(len(batch.rows) for part in parts for batch in files.read_span(recipe, part)) == sum(
        len(batch.rows) for batch in batches
    )


def test_files_of_another_file_system_hold_the_same(written: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe(f"/formats/{written.name}", written.read_bytes())
    recipe = source_of(f"memory://formats/{written.name}")
    assert texts_of(read_spans(recipe, 1)) == [row["text"] for row in ROWS]
    # A local file at the same place is another one, and one by all its names.
    fsspec.filesystem("memory").pipe(str(written), b"another")
    names = [str(written), f"{written.parent}/./{written.name[0]}*", f"file://{written}", f"memory:/{written}"]
    assert len(files.list_files(source_of(written).model_copy(update={"paths": names}))) == 2


def test_dictionaries_of_a_stream_are_those_before_the_batch(tmp_path: Path, source: Any) -> None:
    texts: Any = pa.chunked_array([pa.array(part).dictionary_encode() for part in (["a", "b", "a"], ["c"], ["b", "d"])])
    kinds: dict[str, Any] = {"stream.arrow": pa.ipc.new_stream, "file.arrow": pa.ipc.new_file}
    for name, new in kinds.items():
        options = pa.ipc.IpcWriteOptions(unify_dictionaries=name.startswith("file"))
        with new(tmp_path / name, pa.schema({"text": texts.type}), options=options) as writer:
            writer.write_table(pa.table({"text": texts}))
        assert read_records(source(tmp_path / name), 1) == list("abacbd")
    kind = pa.dictionary(pa.int8(), pa.string())
    with pa.ipc.new_file(tmp_path / "full.arrow", pa.schema({"text": kind})) as writer:
        writer.write_batch(pa.record_batch({"text": pa.array([*map(str, range(128)), None]).cast(kind)}))
    assert read_records(source(tmp_path / "full.arrow")) == [*map(str, range(128)), None]


def ipc_bytes(new: Any, rows: int = len(ROWS)) -> bytes:
    sink = io.BytesIO()
    with new(sink, table().schema) as writer:
        writer.write_table(table().slice(0, rows), max_chunksize=4)
    return sink.getvalue()


def csv_of(*lines: str) -> bytes:
    return "\n".join(lines).encode() + b"\n"


MALFORMED_FILES = {
    "a.jsonl": (
        b'{"text": "a", "n": 1}\n\n{"text": \n{"text": "c", "n": 1}\n[1]\n{"text": 4}\n{"text": "f\\ng", "n": 3}\n',
        ["a", "c", "f\ng"],
        [1, 3, 4],
    ),
    "a.csv": (csv_of("text,n", "a,1", "b", "c,1", "d,1,2", "e,x", '"f', 'g",3'), ["a", "c", "f\ng"], [1, 3, 4]),
    "a.json": (
        b'[{"text": "a", "n": 1}, 5, {"text": "c", "n": 1}, {"text": "d" "n": 1}, {"text": 4}, '
        b'{"text": "f\\ng", "n": 3}]',
        ["a", "c", "f\ng"],
        [1, 3, 4],
    ),
}


@pytest.mark.parametrize("batch_bytes", [6, 8 << 20], ids=["many batches", "one"])
@pytest.mark.parametrize("name", MALFORMED_FILES)
def test_malformed_records_are_counted_by_their_number(
    name: str, batch_bytes: int, tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_io, "BATCH_BYTES", batch_bytes)
    data, texts, records = MALFORMED_FILES[name]
    (tmp_path / name).write_bytes(data)
    ((_, batches),) = read_spans(source(tmp_path / name, max_malformed=0.9, keep={"n": ">= 1"}))
    found = [text for batch in batches for text in batch.text.to_pylist()]
    assert [text.decode() if isinstance(text, bytes) else text for text in found] == texts
    assert sum(batch.rejected.get(MALFORMED, 0) for batch in batches) == len(records)
    assert [row for batch in batches for row in batch.rows.tolist()] == [0, 2, 5]
    lines = [line for batch in batches for line in batch.malformed]
    assert all(line.startswith(f"{name}: record {n}:") for n, line in zip(records, lines, strict=True)), lines


def test_an_empty_number_is_null(tmp_path: Path, source: Any) -> None:
    (tmp_path / "a.csv").write_bytes(csv_of("text,n", "a, 1 ", "b,", "c,2"))
    ((_, (batch,)),) = read_spans(source(tmp_path / "a.csv", keep={"n": ">= 1"}))
    assert (batch.text.to_pylist(), batch.rejected) == ([b"a", b"c"], {"not n >= 1: null": 1})


def parquet_without_rows() -> bytes:
    sink = io.BytesIO()
    pq.write_table(table().slice(0, 0), sink)
    return sink.getvalue()


EMPTY: dict[str, bytes] = {
    "a.parquet": parquet_without_rows(),
    "a.jsonl": b"",
    "a.jsonl.gz": gzip.compress(b""),
    "a.txt": b"",
    "a.csv": b"",
    "header.csv": b"text,n\n",
    "a.json": b"[\n]\n",
    "a.arrow": ipc_bytes(pa.ipc.new_stream, rows=0),
}


def test_empty_files_among_others_are_counted_and_shown(tmp_path: Path, run_cli: Any) -> None:
    (tmp_path / "data").mkdir()
    for name, data in EMPTY.items():
        (tmp_path / "data" / name).write_bytes(data)
    write_recipe(tmp_path / "r.toml", table_of("s", "data/*", separator="--"), split={"val_tokens": 100})
    (tmp_path / "data" / "whole.jsonl").write_text(
        "".join(json.dumps({"text": f"{n} words"}) + "\n" for n in range(500))
    )
    words = f"files of s: {len(EMPTY)} files without a record: a.arrow, a.csv, a.json, a.jsonl, a.jsonl.gz, ..."
    assert words in run_cli("plan", "r.toml").stdout
    built = run_cli("build", "r.toml", "--out", "out", "--workers", "1")
    assert words in built.stdout, built.stderr


def test_excluded_files_are_left_out(tmp_path: Path, source: Any) -> None:
    (tmp_path / "notes" / "old").mkdir(parents=True)
    for name in ("a.md", "b.md", "old/c.md", "b.md.bak"):
        (tmp_path / "notes" / name).write_text(name)
    recipe = source(tmp_path / "notes/**/*", exclude=[f"{tmp_path}/notes/old/**", f"{tmp_path}/**/*.bak"])
    assert [file.name for file in list_files(recipe)] == ["a.md", "b.md"]


def test_a_folder_is_read_if_datasets_saved_it(tmp_path: Path, source: Any) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    dataset = datasets.Dataset.from_list(ROWS)
    dataset.save_to_disk(tmp_path / "saved", num_shards=2)
    (tmp_path / "saved" / "notes.arrow").write_bytes(b"")  # not among the files with the rows
    assert read_records(source(tmp_path / "saved")) == [row["text"] for row in ROWS]


NUMBERS = [f"{n}" for n in (2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64 - 1, 2**64, 10**400, 10**400 + 1)]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (f"> {2**53}", "1 2 3 5 6 7 8 10"),
        (f">= {2**63}", "3 5 6 7 8 10"),
        (f"== {2**64 - 1}", "5"),
        (f"< {-(2**63)}", "4"),
        (f"!= {10**400}", "0 1 2 3 4 5 6 8 9 10"),
        (f"> {10**400}", "8 10"),
        ([2**53 + 1, 2**63 - 1, 10**400 + 1], "1 2 8"),
        ("< 0.5", "4 9"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_whole_numbers_of_any_length_are_compared_exactly(
    name: str, condition: Any, kept: str, tmp_path: Path, source: Any
) -> None:
    rows = [(number, str(row)) for row, number in enumerate(['"no"', *NUMBERS, "0.25", "9" * 5000], -1)]
    if name == "a.csv":
        text = "n,text\n" + "".join(f"{n},{t}\n" for n, t in rows)
    else:
        records = [f'{{"n": {n}, "text": "{t}"}}' for n, t in rows]
        # A million empty lines would take half an hour if each were looked at from all before it.
        text = "\n".join(["\n" * 10**6, *records, ""]) if name == "a.jsonl" else f"[{', '.join(records)}]"
    (tmp_path / name).write_text(text)
    ((_, (batch,)),) = read_spans(source(tmp_path / name, max_malformed=0.5, keep={"n": condition}))
    assert [text.decode() if isinstance(text, bytes) else text for text in batch.text.to_pylist()] == kept.split()


LONG_LINES = b"".join(json.dumps({"text": "x" * 70_000}).encode() + b"\n" for _ in range(2))
UNNAMED = {
    "a.py": b"import os\n\nx = {'a': 1}\n",
    "a.md": b"[link]: https://example.org\n\n# A page\n",
    "a.py.gz": gzip.compress(b"import os\n"),
    "notes": b"Some notes,\nwith a comma, here and there,\nand more.\n",
    "empty.py": b"",
    "table.md": b"| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n",
    "a.json": codecs.BOM_UTF8 + LONG_LINES,
}


@pytest.mark.parametrize("name", UNNAMED)
def test_json_lines_are_records_and_other_text_is_one_document_a_file(
    name: str, tmp_path: Path, source: Any, read_all: Any
) -> None:
    (tmp_path / name).write_bytes(UNNAMED[name])
    texts = [text for _, _, text in read_all(source(tmp_path / name))]
    whole = gzip.decompress(UNNAMED[name]) if name.endswith(".gz") else UNNAMED[name]
    assert texts == (["x" * 70_000] * 2 if name == "a.json" else [whole])
