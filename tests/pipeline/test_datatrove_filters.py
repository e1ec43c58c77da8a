"""datatrove's filters, named in a recipe: they drop exactly what they drop when called alone."""

# pyright: basic

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import datatrove.pipeline.filters as datatrove_filters
import pytest
from datatrove.data import Document
from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.clean.datatrove import REFUSED
from pipeline.clean.documents import DocumentStream
from pipeline.clean.steps import clean_batch
from pipeline.clean.tally import Tally
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.selection import open_sources
from tests.support.builds import real_documents
from tests.support.reading import batch_of, files_source
from tests.support.recipes import source, write_recipe, write_texts

pytestmark = pytest.mark.long


NAMED = [
    ("GopherQualityFilter", {"min_doc_words": 20}),
    ("GopherRepetitionFilter", {}),
    ("C4QualityFilter", {"min_num_sentences": 3}),
    ("C4ParagraphFilter", {}),
    ("FineWebQualityFilter", {}),
]


def python_pages() -> list[str]:
    """Return pages of six paragraphs of the language reference, each on one line as on a web page."""
    lines = [" ".join(paragraph.split()) for paragraph in real_documents()]
    return ["\n".join(lines[first : first + 6]) for first in range(0, len(lines), 6)]


def texts(count: int) -> list[str]:
    """Return pages of Python's documentation, with some of a bad kind."""
    good = [text for text in python_pages() if len(text) < 4000]
    bad = ["- a\n- b\n- c\n" * 30, "word " * 300, "# # # # " * 90, "Too short.", "no stop words " * 60, "é世界 " * 99]
    mixed = itertools.chain.from_iterable(zip(good, itertools.cycle(bad), strict=False))
    return list(dict.fromkeys(mixed))[:count]


def table(name: str, arguments: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"filter": name, "arguments": arguments, **keys}


def source_of(*tables: dict[str, Any]) -> SourceRecipe:
    return files_source("x", clean={"datatrove": list(tables)})


@pytest.mark.parametrize(("name", "arguments"), NAMED)
def test_a_filter_drops_what_it_drops_alone(name: str, arguments: dict[str, Any]):
    documents = texts(150)
    alone = getattr(datatrove_filters, name)(**arguments)
    results = [get_filter_result(alone.filter(Document(text=text, id=""))) for text in documents]
    reasons = [f"{name}: {reason}" if reason else name for kept, reason in results if not kept]
    tally = Tally()
    left = clean_batch(source_of(table(name, arguments)), batch_of(documents), tally)
    assert left.rows.tolist() == [row for row, (kept, _) in enumerate(results) if kept]
    assert left.text.to_pylist() == [text for text, (kept, _) in zip(documents, results, strict=True) if kept]
    assert tally.dropped == Counter(reasons)
    assert 0 < len(reasons) < len(documents)
    step = tally.drops.steps[name]
    assert (step.decided.documents, step.found.documents) == (len(documents), len(reasons))
    assert bool(tally.edited) == (name == "C4QualityFilter")


def test_every_filter_is_offered_or_refused():
    every = {
        name
        for name, value in vars(datatrove_filters).items()
        if isinstance(value, type) and issubclass(value, BaseFilter) and value is not BaseFilter
    }
    assert every == {name for name, _ in NAMED} | set(REFUSED)


def test_a_filter_of_a_module_is_a_function(tmp_path: Path):
    write_texts(tmp_path / "a.jsonl", ["short", "long enough\x00", "long enough?"])
    clean = {"python": [{"function": "mine:keep", "max_dropped": 1.0}]}
    path = write_recipe(tmp_path / "recipe.toml", source("a", "a.jsonl", clean=clean))
    (tmp_path / "mine.py").write_text(
        "from datatrove.pipeline.filters import LambdaFilter\n"
        "def change(doc):\n    doc.text = doc.text.upper()\n    return len(doc.text) > 5 and ('?' in doc.text, 'odd')\n"
        "keep = LambdaFilter(change)\n"
    )
    loaded = load_checked_recipe(path, allow_code=True)
    stream = DocumentStream(loaded.sources[0], open_sources(loaded)[0].listed)
    assert [documents.text.to_pylist() for _, documents in stream] == [["LONG ENOUGH?"]]
    assert stream.tally.dropped == {"mine:keep": 1, "mine:keep: odd": 1}
