"""File formats: the same records from each, whatever it is cut into; what is broken or ambiguous is refused."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import bz2
import codecs
import gzip
import json
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

from pipeline.recipe.key_values import FormatName
from pipeline.recipe.sources import FilesSource
from pipeline.sources import files
from pipeline.sources.base import MALFORMED, SourceError
from pipeline.sources.formats import byte_io
from pipeline.sources.formats.contract import FORMATS
from pipeline.tokenizer.sample import split_groups
from shards.errors import InputError
from tests.support.file_bytes import COMPRESS, to_csv, to_ipc, to_parquet
from tests.support.provenance import read_unit
from tests.support.reading import files_source, list_spans_of, read_batches, rows_of, texts_of

TEXTS = [
    "true",
    "NA",
    "001",
    "1.50",
    'a "quoted" text,\nwith a comma',
    "Grüße, 世界\r\n",
    "null",
    "x" * 500,
    "[{]}",
] * 3
ROWS: list[dict[str, Any]] = [
    {"id": f"{n:03}", "text": text, "score": n / 4, "meta": {"url": f"https://example.org/{n}"}}
    for n, text in enumerate(TEXTS)
]
TABLE = pa.Table.from_pylist(ROWS)
FLAT = TABLE.flatten().to_pylist()
FILE, STREAM = pa.ipc.new_file, pa.ipc.new_stream


def test_recipes_name_the_formats_of_the_table():
    assert set(get_args(FormatName)) == {"auto", *FORMATS}


LINES = [json.dumps(row).encode() + b"\n" for row in ROWS]
JSON, JSON_LINES = json.dumps(ROWS).encode(), b"".join(LINES)
PARQUET_TYPES: dict[str, pa.DataType] = {
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}
RECORDS: dict[str, bytes] = {
    "a.arrow": to_ipc(TABLE, STREAM),
    "file.arrow": to_ipc(TABLE),
    "lz4.feather": to_ipc(TABLE, compression="lz4"),
    "zstd.arrow": to_ipc(TABLE, STREAM, compression="zstd"),
    "noname": to_ipc(TABLE, STREAM),
    "a.csv": to_csv(FLAT),
    "bom.csv": b"\xef\xbb\xbf" + to_csv(FLAT),
    "a.tsv": to_csv(FLAT, "\t", "\n"),
    "a.csv.gz": gzip.compress(to_csv(FLAT)),
    "a.csv.bz2": bz2.compress(to_csv(FLAT)),
    "a.psv.zst": COMPRESS[".zst"](to_csv(FLAT, "|")),
    "a.json": JSON,
    "indented.json": b"\xef\xbb\xbf\n " + json.dumps(ROWS, indent=2, ensure_ascii=False).encode() + b"\n",
    "a.json.gz": gzip.compress(JSON),
    "array": JSON,
    "a.parquet": to_parquet(TABLE),
    "dots.parquet": to_parquet(TABLE.flatten()),
    **{
        f"{name}.parquet": to_parquet(TABLE.set_column(1, "text", TABLE["text"].cast(kind)))
        for name, kind in PARQUET_TYPES.items()
    },
    "a.jsonl": JSON_LINES,
    "a.ndjson": JSON_LINES,
    "lines.json": JSON_LINES,
    "c4-train.00000.json.gz": gzip.compress(JSON_LINES),
    "part-00000": JSON_LINES,
    "part-00000.zst": COMPRESS[".zst"](JSON_LINES),
    "part-0": to_parquet(TABLE),
    "a.tab": to_csv(FLAT, "\t"),
    **{f"a.jsonl{ending}": compress(JSON_LINES) for ending, compress in COMPRESS.items()},
    # several streams in a row are one
    **{f"joined.jsonl{end}": b"".join(map(compress, LINES)) for end, compress in COMPRESS.items()},
}
"""A file of each format with columns, and of each variant, with the records `ROWS`."""
SEPARATOR = "\n<<<document>>>\n"
WRITTEN = RECORDS | {
    f"a.txt{end}": compress(SEPARATOR.join(TEXTS).encode()) for end, compress in {"": bytes, **COMPRESS}.items()
}
"""The same, and files of the format without columns of a recipe's own, with the texts of `ROWS`."""


@pytest.fixture(params=WRITTEN)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / request.param).write_bytes(WRITTEN[request.param])
    return tmp_path / request.param


def source_of(path: Path | str, **keys: Any) -> FilesSource:
    return files_source(path, separator=SEPARATOR if ".txt" in str(path) else None, **keys)


@pytest.mark.parametrize("unit_bytes", [None, 1], ids=["whole", "cut"])
def test_the_records_are_those_of_the_file(written: Path, unit_bytes: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(byte_io, "BATCH_BYTES", 300)  # less than the longest document
    source, texts = source_of(written), list[str]()
    spans = list_spans_of(source, unit_bytes)
    for span in spans:
        batches = [*files.read_span(source, span)]
        texts += texts_of(batches)
        rows = rows_of(batches)
        assert rows == [*range(len(rows))]
        assert span.kind != "b" or batches[-1].read_bytes == span.stored_bytes
        if unit_bytes is None:  # provenance leads back to the document
            assert read_unit(source, span.label("x"))[rows[-1]] == TEXTS[-1].encode()
            assert texts_of(b for part in split_groups(span) for b in files.read_span(source, part)) == texts
    assert texts == TEXTS
    assert (len(spans) > 3) == (unit_bytes is not None and written.suffix not in COMPRESS)
    assert sum(span.stored_bytes for span in spans) > 0
    if written.name in RECORDS:
        kept = read_batches(source_of(written, keep={"score": ">= 2", "id": "!= '010'"}), unit_bytes)
        assert texts_of(kept) == [row["text"] for row in ROWS if row["score"] >= 2 and row["id"] != "010"]


def test_a_document_over_the_limit_is_refused_by_its_number(written: Path, monkeypatch: pytest.MonkeyPatch):
    assert len(texts_of(read_batches(source_of(written, max_document_bytes=500)))) == len(ROWS)
    monkeypatch.setattr(byte_io, "BATCH_BYTES", 100)
    with pytest.raises(SourceError, match=f"^{written.name}: record 7: is longer than 499 bytes"):
        read_batches(source_of(written, max_document_bytes=499))
    (cut := written.with_name("cut.txt")).write_text(f"{'x' * 20}{SEPARATOR}{'y' * 40}")
    with pytest.raises(SourceError, match=r"^cut\.txt: record 0 after byte 36: is longer than 30 bytes"):
        read_batches(source_of(cut, max_document_bytes=30), 1)


def test_files_of_another_file_system_hold_the_same(written: Path):
    import fsspec

    fsspec.filesystem("memory").pipe(f"/formats/{written.name}", written.read_bytes())
    assert texts_of(read_batches(source_of(f"memory://formats/{written.name}"), 1)) == TEXTS
    # A local file at the same place is another one, and one by all its names.
    fsspec.filesystem("memory").pipe(str(written), b"another")
    names = [str(written), f"{written.parent}/./{written.name[0]}*", f"file://{written}", f"memory:/{written}"]
    assert len(files.list_files(source_of(written).with_values(paths=names))) == 2


def test_dictionaries_of_a_stream_are_those_before_the_batch(tmp_path: Path):
    texts: Any = pa.chunked_array([pa.array(part).dictionary_encode() for part in (["a", "b", "a"], ["c"], ["b", "d"])])
    full: Any = pa.array([*map(str, range(128)), None]).cast(pa.dictionary(pa.int8(), pa.string()))
    for name, new, column in (("stream", STREAM, texts), ("file", FILE, texts), ("full", FILE, full)):
        path = tmp_path / f"{name}.arrow"
        path.write_bytes(to_ipc(pa.table({"text": column}), new, unify_dictionaries=name == "file"))
        assert texts_of(read_batches(files_source(path), 1)) == column.to_pylist()


MALFORMED_FILES = {
    "a.jsonl": b'{"text": "a", "n": 1}\n\n{"text": \n{"text": "c", "n": 1}\n[1]\n{"text": 4}\n'
    b'{"text": "f\\ng", "n": 3}\n',
    "a.csv": b'text,n\na,1\nb\nc,1\nd,1,2\ne,x\n"f\ng",3\n',
    "a.json": b'[{"text": "a", "n": 1}, 5, {"text": "c", "n": 1}, {"text": "d" "n": 1}, {"text": 4}, '
    b'{"text": "f\\ng", "n": 3}]',
}


@pytest.mark.parametrize("batch_bytes", [6, 8 << 20], ids=["many batches", "one"])
@pytest.mark.parametrize("name", MALFORMED_FILES)
def test_malformed_records_are_counted_by_their_number(
    name: str, batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(byte_io, "BATCH_BYTES", batch_bytes)
    (tmp_path / name).write_bytes(MALFORMED_FILES[name])
    batches = read_batches(files_source(tmp_path / name, max_malformed=0.9, keep={"n": ">= 1"}))
    assert texts_of(batches) == ["a", "c", "f\ng"]
    assert sum(batch.rejected.get(MALFORMED, 0) for batch in batches) == 3
    assert rows_of(batches) == [0, 2, 5]
    lines = [line for batch in batches for line in batch.malformed]
    assert all(line.startswith(f"{name}: record {n}:") for n, line in zip([1, 3, 4], lines, strict=True)), lines


def test_an_empty_number_is_null(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"text,n\na, 1 \nb,\nc,2\n")
    (batch,) = read_batches(files_source(tmp_path / "a.csv", keep={"n": ">= 1"}))
    assert (batch.text.to_pylist(), batch.rejected) == ([b"a", b"c"], {"not n >= 1: null": 1})


EMPTY: dict[str, bytes] = {
    "a.parquet": to_parquet(TABLE[:0]),
    "a.jsonl": b"",
    "a.jsonl.gz": gzip.compress(b""),
    "a.txt": b"",
    "a.csv": b"",
    "header.csv": b"text,n\n",
    "a.json": b"[\n]\n",
    "a.arrow": to_ipc(TABLE[:0], STREAM),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_file_without_a_record_has_no_span(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(EMPTY[name])
    assert list_spans_of(source_of(tmp_path / name)) == []


def test_a_folder_is_read_if_datasets_saved_it(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    (tmp_path / "saved" / "notes.arrow").write_bytes(b"")  # not among the files with the rows
    assert texts_of(read_batches(files_source(tmp_path / "saved"))) == TEXTS


NUMBERS = [f"{n}" for n in (2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64 - 1, 2**64, 10**400, 10**400 + 1)]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (f"> {2**53 - 1}", "0 1 2 3 5 6 7 8 10"),
        ("< 0.5", "4 9"),
        ("== 0.25", "9"),
        (f"> {2**53}", ""),
        (f"== {-(2**63)}", ""),
        ([0.25, 10**400 + 1], ""),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_numbers_are_compared_exactly_or_not_at_all(name: str, condition: Any, kept: str, tmp_path: Path):
    rows = [(number, str(row)) for row, number in enumerate(['"no"', *NUMBERS, "0.25", "9" * 5000], -1)]
    if name == "a.csv":
        text = "n,text\n" + "".join(f"{n},{t}\n" for n, t in rows)
    else:
        records = [f'{{"n": {n}, "text": "{t}"}}' for n, t in rows]
        # A million empty lines would take half an hour if each were looked at from all before it.
        text = "\n".join(["\n" * 10**6, *records, ""]) if name == "a.jsonl" else f"[{', '.join(records)}]"
    (tmp_path / name).write_text(text)
    source = files_source(tmp_path / name, max_malformed=0.5, keep={"n": condition})
    if not kept:
        with pytest.raises(InputError, match=r"column 'n': cannot test .* are compared below 2\^53"):
            read_batches(source)
        return
    assert texts_of(read_batches(source)) == kept.split()


LONG_LINES = b'{"text": "%b"}\n' % (b"x" * 70_000) * 2
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
def test_json_lines_are_records_and_other_text_is_one_document_a_file(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(UNNAMED[name])
    whole = gzip.decompress(UNNAMED[name]) if name.endswith(".gz") else UNNAMED[name]
    expected = ["x" * 70_000] * 2 if name == "a.json" else [whole.decode()]
    assert texts_of(read_batches(files_source(tmp_path / name))) == expected
