"""The demo corpus: distinct and honest rows, the same bytes every time."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.demo import corpus as demo
from pipeline.demo import docstrings
from tests.support.builds import digests

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("corpus")
    return folder, demo.write_demo_corpus(folder)


def _read(folder: Path, source: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in sorted((folder / source).glob("*.parquet")))


def test_the_corpus_is_what_its_summary_says(corpus: tuple[Path, list[dict[str, Any]]]):
    folder, summary = corpus
    assert [row["name"] for row in summary] == [*demo.SOURCES, demo.HELD_OUT]
    tables = {row["name"]: _read(folder, row["name"]) for row in summary}
    for row in summary:
        table = tables[row["name"]]
        columns = ["prompt", "completion"] if row["name"] == "questions" else ["text"]
        size = sum(pc.sum(pc.binary_length(table[column])).as_py() for column in columns)
        assert (row["documents"], row["bytes"]) == (table.num_rows, size)
        assert table.column_names == [*columns, "release", "path", "name"]
        assert table["release"].null_count == 0
    questions = tables.pop("questions").to_pylist()
    texts = [text for name in tables if name != demo.HELD_OUT for text in tables[name]["text"].to_pylist()]
    assert len(texts) == len(set(texts))
    assert max(map(len, texts)) <= demo.MAX_CHARS
    sizes = {row["name"]: row["bytes"] for row in summary}
    assert max(sizes.values()) == sizes["docs-prose"] >= 8_000_000
    assert sizes["docs-maths"] >= 800_000
    held_out = tables[demo.HELD_OUT]["text"].to_pylist()
    assert not set(texts).intersection(held_out)
    # Each answer begins the docstring of what is asked for.
    beginnings = {" ".join(text.partition("\n\n")[0].split()) for text in texts}
    assert {row["completion"] for row in questions} <= beginnings
    assert all(row["prompt"].endswith(f".{row['name']}?") for row in questions)


def test_repeated_and_long_documents_are_left_out():
    def keep(texts: list[str]) -> tuple[list[str], list[str]]:
        documents = [docstrings.Docstring(text, "r 1", "p.py", str(n)) for n, text in enumerate(texts)]
        long: list[docstrings.Docstring] = []
        kept = [document.name for document in demo._distinct(documents, 6000, long)]
        return kept, [document.name for document in long]

    new, old = ("a line of thirty characters or more: ", "it says the same in each docstring")
    texts = [f"{new}{n}\n{old}\n{'x ' * n}" for n in (0, 100, 600)]  # the line is little of the last one
    assert keep([*texts, "y " * 4000, "\u23a2 a matrix \u23a5"]) == (["0", "2"], ["3"])
    # A long one is held out unless a later document has its lines.
    line = "a line of thirty characters or more: it says"
    kept, long = keep([f"{line}\n" * 150, "x " * 4000, "\ud800" * 7000, f"{line}\n{'y ' * 20}"])
    assert (kept, long) == (["3"], ["1"])
    assert docstrings.harvest_docstrings([("r 1", "gone.py", "gone.py")]) == []


def test_another_run_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of three releases: several tasks for the processes, and each of the sources."""
    few = [release for release in demo._installed() if demo._normal_name(release) in ("mpmath", "networkx", "numpy")]
    monkeypatch.setattr(demo, "_installed", lambda: iter(few))
    summaries = [demo.write_demo_corpus(tmp_path / name) for name in ("first", "second")]
    assert all(row["documents"] > 100 for row in summaries[0][: len(demo.SOURCES)])
    assert summaries[0] == summaries[1]
    assert digests(tmp_path / "first") == digests(tmp_path / "second")
