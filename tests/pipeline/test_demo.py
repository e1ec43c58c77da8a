"""The demo corpus: distinct and honest rows, the same bytes every time."""

from __future__ import annotations

import ast
import json
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.demo import corpus as demo
from pipeline.demo import docstrings, held_out

pytestmark = pytest.mark.long


LONG = "A sentence that says what the object is for. " * 10


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("corpus")
    return folder, demo.write_demo_corpus(folder)


def _read(folder: Path, source: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in sorted((folder / source).glob("*.parquet")))


def test_documents_are_distinct_and_not_empty(corpus: tuple[Path, list[dict[str, Any]]]) -> None:
    texts = [text for source in demo.SOURCES for text in _read(corpus[0], source)["text"].to_pylist()]
    assert len(texts) == len(set(texts))
    assert all(text.strip() for text in texts)
    assert all(text.encode("utf-8", "strict") for text in texts)
    assert max(map(len, texts)) <= demo.MAX_CHARS


def test_documents_that_repeat_lines_of_others_are_left_out() -> None:
    new, old = ("a line of thirty characters or more: ", "it says the same in each docstring")
    texts = [f"{new}{n}\n{old}\n{'x ' * n}" for n in (0, 100, 600)]  # the line is little of the last one
    documents = [docstrings.Docstring(text, "r 1", "p.py", str(n)) for n, text in enumerate([*texts, "y " * 4000])]
    skipped: dict[str, int] = {}
    long: list[docstrings.Docstring] = []
    assert [document.name for document in demo._distinct(documents, 6000, skipped, long)] == ["0", "2"]
    assert skipped == {"duplicate": 1, "long": 1, "not_utf8": 0}
    assert [document.name for document in long] == ["3"]


def test_long_documents_are_held_out_unless_a_later_document_has_their_lines() -> None:
    line = "a line of thirty characters or more: it says"
    texts = [f"{line}\n" * 150, "x " * 4000, "\ud800" * 7000, f"{line}\n{'y ' * 20}"]
    documents = [docstrings.Docstring(text, "r 1", "p.py", str(n)) for n, text in enumerate(texts)]
    long: list[docstrings.Docstring] = []
    assert [document.name for document in demo._distinct(documents, 6000, {}, long)] == ["3"]
    assert [document.name for document in long] == ["1"]


def test_prose_is_the_largest_source_in_several_files(corpus: tuple[Path, list[dict[str, Any]]]) -> None:
    sizes = {row["name"]: row["bytes"] for row in corpus[1]}
    assert tuple(sizes) == (*demo.SOURCES, demo.HELD_OUT)
    assert sizes["docs-prose"] >= 8_000_000
    assert sizes["docs-maths"] >= 800_000
    assert max(sizes, key=lambda name: sizes[name]) == "docs-prose"
    files = sorted((corpus[0] / "docs-prose").glob("*.parquet"))
    assert len(files) > 1
    assert pq.ParquetFile(files[0]).num_row_groups > 1


def test_summary_counts_what_was_written(corpus: tuple[Path, list[dict[str, Any]]]) -> None:
    for row in corpus[1]:
        table = _read(corpus[0], row["name"])
        assert row["files"] == len(list((corpus[0] / row["name"]).iterdir()))
        assert row["documents"] == table.num_rows
        assert row["bytes"] == pc.sum(pc.binary_length(table["text"])).as_py()
        assert table.column_names == ["text", "release", "path", "name"]
        assert table["release"].null_count == 0


def test_code_is_a_definition_of_its_file(corpus: tuple[Path, list[dict[str, Any]]]) -> None:
    stdlib = Path(sysconfig.get_path("stdlib"))
    for row in _read(corpus[0], "stdlib-code").to_pylist():
        content = row["text"].encode()
        assert content.rstrip(b"\n") in (stdlib / row["path"].removeprefix("Lib/")).read_bytes()
        (definition,) = ast.parse(row["text"]).body
        assert isinstance(definition, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        assert definition.name == row["name"]


def test_code_holds_no_tests_and_no_installed_packages(corpus: tuple[Path, list[dict[str, Any]]]) -> None:
    paths = _read(corpus[0], "stdlib-code")["path"].to_pylist()
    assert not [path for path in paths if {"test", "tests", "site-packages"}.intersection(path.split("/"))]
    assert "Lib/argparse.py" in paths


def test_mathematics_says_where_it_comes_from(corpus: tuple[Path, list[dict[str, Any]]]) -> None:
    releases = _read(corpus[0], "docs-maths")["release"].to_pylist()
    assert {"numpy", "torch", "python"} <= {release.split(" ")[0] for release in releases}


def test_another_run_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three releases: several tasks for the processes, and each of the three sources."""
    few = [release for release in demo._installed() if demo._normal_name(release) in ("mpmath", "networkx", "numpy")]
    monkeypatch.setattr(demo, "_installed", lambda: iter(few))
    summaries = [demo.write_demo_corpus(tmp_path / name) for name in ("first", "second")]
    assert all(row["documents"] > 100 for row in summaries[0][: len(demo.SOURCES)])
    assert summaries[0] == summaries[1]
    written = [
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("first", "second")
    ]
    assert written[0] == written[1]


def test_what_is_held_out_is_the_text_of_no_document_and_has_the_right_answer_among_four(
    corpus: tuple[Path, list[dict[str, Any]]],
) -> None:
    documents = {text for source in demo.SOURCES for text in _read(corpus[0], source)["text"].to_pylist()}
    held_out = _read(corpus[0], demo.HELD_OUT)["text"].to_pylist()
    assert len(held_out) > 100
    assert not documents.intersection(held_out)
    assert max(map(len, held_out)) <= 1500
    items = [json.loads(line) for line in (corpus[0] / demo.ITEMS_FILE).read_text().splitlines()]
    assert len(items) > 100
    assert all(len(set(item["choices"])) == 4 and all(item["choices"]) for item in items)
    places = Counter(item["answer"] for item in items)
    assert set(places) == {0, 1, 2, 3}
    assert max(places.values()) < len(items) / 2


def test_a_right_choice_goes_on_in_its_document_and_the_wrong_ones_in_others() -> None:
    def prose(word: str) -> str:
        return f"{word} begins a paragraph of words alone, which is long enough to be taken for prose by its letters."

    def make(number: int) -> docstrings.Docstring:
        text = "\n\n".join(prose(f"part {part} of document {number}") for part in range(30))
        return docstrings.Docstring(text, "r 1", "p.py", str(number))

    documents = [make(number) for number in range(9)]
    items = [json.loads(line) for line in held_out.write_items(documents).splitlines()]
    (excerpts,) = {len(excerpt.text) for excerpt in held_out.cut_excerpts(documents)}
    assert 1300 < excerpts <= 1500
    assert len(items) == 9
    for number, item in enumerate(items):
        assert item["document"] == f"r 1 p.py {number}"
        assert len(item["question"]) <= 200
        for place, choice in enumerate(item["choices"]):
            assert len(choice) <= 120
            assert (choice in documents[number].text) == (place == item["answer"])
        question, right = (
            documents[number].text.index(text) for text in (item["question"], item["choices"][item["answer"]])
        )
        assert excerpts < question < right


def test_an_equal_part_is_not_touched_and_a_stale_one_goes(tmp_path: Path) -> None:
    rows = [docstrings.Docstring(text, "r 1", "p.py", text) for text in ("one", "two")]
    assert demo._write_parts(tmp_path, rows) == 1
    before = (tmp_path / "part-00000.parquet").stat()
    (tmp_path / "part-00001.parquet").write_bytes(b"of an earlier corpus")
    assert demo._write_parts(tmp_path, rows) == 1
    after = (tmp_path / "part-00000.parquet").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.parquet"]


def test_docstrings_are_found_at_every_level() -> None:
    source = f'''
"""{LONG}module"""
class A:
    """{LONG}class"""
    if True:
        async def f(self):
            """{LONG}
                indented
            """
add_docstr(torch.abs, r"""{LONG}given""")
add_newdoc("numpy._core", "empty", """{LONG}""")
add_docstr(torch.add, """{LONG}{{x}}""".format(x=1))
def short():
    """Too short."""
'''
    found = dict(docstrings.parse_docstrings(source.encode()))
    assert list(found) == ["", "A", "A.f", "torch.abs", "numpy._core.empty"]
    assert found["A.f"].endswith("\nindented")


def test_files_of_mostly_code_are_not_parsed() -> None:
    source = f'"""{LONG}"""\n' + "x = 1\n" * 2000
    assert list(docstrings.parse_docstrings(source.encode())) == []


def test_unparsable_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "template.py").write_text(f'"""{LONG}"""\nclass {{{{ name }}}}:\n    pass\n')
    (tmp_path / "good.py").write_text(f'"""{LONG}"""\n')
    files = [docstrings.SourceFile("x 1", name, str(tmp_path / name)) for name in ("template.py", "good.py")]
    found = docstrings.harvest_docstrings(files)
    assert found.unparsable == 1
    assert [docstring.path for docstring in found.docstrings] == ["good.py"]
