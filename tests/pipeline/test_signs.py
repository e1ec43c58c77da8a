"""Signs of the libraries that read text and names, planted in data: each is a character like others, or refused.

Predicates are in `test_predicates.py`, the words of fastText in `test_language.py`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import pipeline
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.clean.patterns import drop_matches
from pipeline.clean.tally import Documents, Tally
from pipeline.sources.base import SourceError
from pipeline.sources.files import list_files
from pipeline.sources.survey import look_at
from shards.trace.search import _match  # pyright: ignore[reportPrivateUsage]
from tests.support.builds import call_here
from tests.support.reading import files_source, read_batches, texts_of
from tests.support.recipes import source, to_lines, write_texts

FOLLOWS = "text follows the quote that ends a field"
SPLIT = "1 field, expected 2"
QUOTES: dict[str, tuple[str, str, Any, Any, Any]] = {
    # Name, records, and what is read without the key, with quotes as characters, and with quotes around fields.
    "one in two records": (
        "a.tsv",
        '0\t"Yes one\n1\ttwo\n2\t"three\n',
        FOLLOWS,
        ['"Yes one', "two", '"three'],
        ["Yes one\n1\ttwo\n2\tthree"],
    ),
    "in one": ("a.csv", '0,"a" b\n1,c\n', FOLLOWS, ['"a" b', "c"], ["a b", "c"]),
    "escaped": ("a.csv", '0,"say \\"hi\\" now"\n', FOLLOWS, ['"say \\"hi\\" now"'], ['say \\hi\\" now"']),
    "at the ends of records": ("a.tsv", '0\t"a\n1\tb"\n', "holds the delimiter '\\\\t'", ['"a', 'b"'], ["a\n1\tb"]),
    "and inches": ("a.csv", '0,5" pipe\n1,"two\nlines"\n', "others have quotes", SPLIT, ['5" pipe', "two\nlines"]),
    "not closed": ("a.csv", '0,a\n1,"b\n2,c\n', 'never closed.* quote = ""', ["a", '"b', "c"], "never closed"),
    "around lines": ("a.csv", '0,"a\nb"\n1,"c ""d"", e"\n', ["a\nb", 'c "d", e'], SPLIT, ["a\nb", 'c "d", e']),
}


@pytest.mark.parametrize("case", QUOTES)
def test_quotes_of_csv_enclose_fields_or_are_characters(case: str, tmp_path: Path):
    name, records, *results = QUOTES[case]
    path = tmp_path / name
    path.write_text(("id\ttext\n" if name == "a.tsv" else "id,text\n") + records)
    (file,) = list_files(files_source(path))
    assert look_at(file)[0].get("quote") == ("" if isinstance(results[0], str) else None), "what `init` writes"
    for quote, result in zip((None, "", '"'), results, strict=True):
        source = files_source(path, quote=quote)
        if isinstance(result, str):
            with pytest.raises(SourceError, match=result):
                read_batches(source)
        else:
            batches = read_batches(source)
            assert texts_of(batches) == result
            odd = {None: any("\n" in text for text in result), "": False, '"': results[0] == FOLLOWS}
            assert sum(batch.odd_quotes for batch in batches) == odd[quote]


@pytest.mark.parametrize(
    ("quote", "field", "said"),
    [
        (None, "a\nb", "line ends. If"),
        ('"', 'a" b"', "text after them, whose quotes are lost. If quotes are characters of"),
    ],
)
def test_fields_that_quotes_may_have_spoilt_are_said(quote: str | None, field: str, said: str, tmp_path: Path):
    text = "".join(f'{n},"note {n} {"word " * n}{field}"\n'.replace('b""', 'b"') for n in range(40))
    (tmp_path / "a.csv").write_text(f"n,text\n{text}")
    given = source("s", tmp_path / "a.csv", **({"quote": quote} if quote else {}))
    notes = pipeline.plan_set({"name": "a", "sources": [given], "tokenizer": {"vocab_size": 270}}).notes
    assert any(f"40 fields in quotes with {said}" in note for note in notes), notes


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


def test_signs_in_text_are_text(tmp_path: Path):
    """Each format gives the texts that were written, with and without all of them in quotes."""
    records = [{"text": text} for text in TEXTS]
    written = {"a.jsonl": to_lines(records), "a.json": json.dumps(records)}
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


def test_dates_that_python_has_not_hide_no_text(tmp_path: Path):
    far = pa.array([2**62, None], pa.int64())
    columns = {
        "us": far.cast(pa.timestamp("us")),
        "ns": far.cast(pa.timestamp("ns")),
        "X/Y": far.cast(pa.timestamp("us", "X/Y")),
    }
    inner = pa.StructArray.from_arrays([pa.array(["a text", "b c"]), columns["us"]], ["text", "date"])
    table = pa.table(columns | {"day": pa.array([10**9, 1], pa.date32()), "body": inner})
    for path, write in ((tmp_path / "a.parquet", pq.write_table), (tmp_path / "a.arrow", feather.write_feather)):
        write(table, path)
        keys, letters = look_at(list_files(files_source(path))[0])
        assert (keys["text"], letters["body.text"]) == ("body.text", len("atextbc"))


NAMES = [
    "~",
    "~root",
    "a[b]*?",
    "**",
    "{a}",
    "{{ 7*7 }}",
    "a'b\"c",
    "a\\n",
    "#a",
    " a\tb\nc\x1b\x7f\u2028 ",
    "$HOME%20",
    "s3:a::b",
]


def test_signs_in_names_are_those_of_the_recipe_that_init_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / name).mkdir()
        for place in (tmp_path / f"{name}.jsonl", tmp_path / name / f"{name}.jsonl"):
            write_texts(place, (f"{place} {number}" for number in range(9)))
    ways = {"folders": ["."], "folder by folder": NAMES, "files": [f"{name}.jsonl" for name in NAMES]}
    for way, given in ways.items():
        call_here("init", "--out", f"{way}.toml", "--", *given, cwd=tmp_path, expect=0)
        found = [file.url for source in load_checked_recipe(f"{way}.toml").sources for file in list_files(source)]
        expected = {str(tmp_path / name / f"{name}.jsonl") for name in NAMES if way != "files"}
        expected |= {str(tmp_path / f"{name}.jsonl") for name in NAMES if way != "folder by folder"}
        assert sorted(map(os.path.normpath, found)) == sorted(expected), way


@pytest.mark.parametrize(
    ("pattern", "text", "drops", "finds"),
    [
        ("^b", "b\nc", True, True),
        ("^b", "a\nb", False, False),
        ("b$", "a\nb", True, True),
        ("b$", "b\nc", False, False),
        ("(?m)^b$", "a\nb\nc", True, True),
        ("(?m)b$", "b\r\nc", False, False),
        (r"\Ab", "a\nb", False, False),
        ("b$", "b\n", False, True),
    ],
)
def test_anchors_are_the_ends_of_the_text(pattern: str, text: str, drops: bool, finds: bool):
    """Of `drop_if_matches`, and of `trace`, whose help names the difference."""
    documents = Documents(pa.array([text], pa.large_string()), np.zeros(1, np.uint32))
    assert len(drop_matches(files_source("a", drop_if_matches=[pattern]), documents, Tally())) == (not drops)
    assert bool(_match(re.compile(pattern), text.encode())[0]) == finds
