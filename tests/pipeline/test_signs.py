"""Signs of the libraries that read text and names, planted in data: each is a character like others, or refused.

Predicates are in `test_predicates.py`, the words of fastText in `test_language.py`.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.sources.base import SourceError
from tests.support.builds import build_here, call_here
from tests.support.reading import files_source, read_batches, texts_of

FOLLOWS = "text follows the quote that ends a field"
SPLIT = "1 field, expected 2"
QUOTES: dict[str, tuple[str, str, Any, Any, Any]] = {
    # Name, records, and what is read without the key, with quotes as characters, and with quotes around fields.
    "one in two records": (
        "a.tsv",
        '0\t"Yes one\n1\ttwo\n2\t"three\n',
        FOLLOWS,
        ['"Yes one', "two", '"three'],
        FOLLOWS,
    ),
    "in one": ("a.csv", '0,"a" b\n1,c\n', FOLLOWS, ['"a" b', "c"], FOLLOWS),
    "escaped": ("a.csv", '0,"say \\"hi\\" now"\n', FOLLOWS, ['"say \\"hi\\" now"'], FOLLOWS),
    "at the ends of records": ("a.tsv", '0\t"a\n1\tb"\n', "holds the delimiter '\\\\t'", ['"a', 'b"'], ["a\n1\tb"]),
    "and inches": ("a.csv", '0,5" pipe\n1,"two\nlines"\n', "others have quotes", SPLIT, ['5" pipe', "two\nlines"]),
    "not closed": ("a.csv", '0,a\n1,"b\n2,c\n', 'never closed.* quote = ""', ["a", '"b', "c"], "never closed"),
    "around lines": ("a.csv", '0,"a\nb"\n1,"c ""d"", e"\n', ["a\nb", 'c "d", e'], SPLIT, ["a\nb", 'c "d", e']),
}


@pytest.mark.parametrize("case", QUOTES)
def test_quotes_of_csv_enclose_fields_or_are_characters(case: str, tmp_path: Path) -> None:
    name, records, *results = QUOTES[case]
    path = tmp_path / name
    path.write_text(("id\ttext\n" if name == "a.tsv" else "id,text\n") + records)
    for quote, result in zip((None, "", '"'), results, strict=True):
        source = files_source(path, quote=quote)
        if isinstance(result, str):
            with pytest.raises(SourceError, match=result):
                read_batches(source)
        else:
            batches = read_batches(source)
            assert texts_of(batches) == result
            joined = quote is None and any("\n" in text for text in result)
            assert sum(batch.joined for batch in batches) == joined


def test_records_with_wrong_quotes_are_malformed_if_quotes_enclose_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text\n\n0,a\n\r\n1,"b" c\n2,"d\n\ne"\n3,"x"y\n4\n5,f\n')
    (batch,) = read_batches(files_source(path, quote='"', max_malformed=0.9))
    assert (texts_of([batch]), batch.rows.tolist()) == (["a", "d\n\ne", "f"], [0, 2, 5])
    assert [fault.partition(": ")[2][:8] for fault in batch.malformed] == ["record 1", "record 3", "record 4"]


SIGNS = [
    *"\"'\\`#~*?[]{}$^|,;\t%@&",
    "{{ 7*7 }}",
    "${HOME}",
    "null",
    "NA",
    "2020-01-31",
    "1e5",
    "</s>",
    "__label__x",
    "\\N",
    "=1+1",
]
TEXTS = [
    text for sign in SIGNS for text in (sign, f"{sign} at the beginning", f"at the end {sign}", f"{sign * 2}\n{sign}")
]


def test_signs_in_text_are_text(tmp_path: Path) -> None:
    """Each format gives the texts that were written, with and without all of them in quotes."""
    records = [{"text": text} for text in TEXTS]
    written = {"a.jsonl": "".join(json.dumps(record) + "\n" for record in records), "a.json": json.dumps(records)}
    for name, delimiter, quoting in (
        ("a.csv", ",", csv.QUOTE_MINIMAL),
        ("b.csv", ",", csv.QUOTE_ALL),
        ("a.psv", "|", 1),
    ):
        out = io.StringIO(newline="")
        csv.writer(out, delimiter=delimiter, quoting=quoting).writerows([["text", "n"], *([text, 1] for text in TEXTS)])
        written[name] = out.getvalue()
    written["plain.tsv"] = "n\ttext\n" + "".join(f"1\t{text}\n" for text in TEXTS if not {*"\t\n"} & {*text})
    written["a.txt"] = "\0".join(TEXTS)
    for name, content in written.items():
        (tmp_path / name).write_bytes(content.encode())
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    for path in tmp_path.iterdir():
        keys: dict[str, Any] = {"a.txt": {"separator": "\0"}, "plain.tsv": {"quote": ""}}.get(path.name, {"quote": '"'})
        expected = [text for text in TEXTS if path.name != "plain.tsv" or not {*"\t\n"} & {*text}]
        assert texts_of(read_batches(files_source(path, **keys))) == expected, path.name
