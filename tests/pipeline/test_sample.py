"""The tokenizer's sample: in the weights' proportions, the same for the same seed, whole documents only."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.engine.tasks import Report
from pipeline.recipe.schema import SourceRecipe, TokenizerRecipe
from pipeline.tokenizer.sample import (
    PART_BYTES,
    PIECE_BYTES,
    Drawn,
    TokenizerTask,
    draw_sample,
    iter_sample,
    sample_budgets,
)
from tests.support.builds import build_here
from tests.support.reading import files_source, list_spans_of
from tests.support.recipes import source, write_recipe

TEXT = "0123456789" * 5


@pytest.fixture
def make_task(tmp_path: Path) -> Any:
    """Return `make(weights, sizes, sample_bytes, seed=1)`: sources of documents of 60 bytes, `sizes` of each."""

    def make(weights: list[float], sizes: list[int], sample_bytes: int, *, seed: int = 1, **keys: Any) -> TokenizerTask:
        sources: list[SourceRecipe] = []
        for index, size in enumerate(sizes):
            texts = [f"{TEXT} {index:02d} {row:06d}" for row in range(size)]
            path = tmp_path / f"{index}.parquet"
            pq.write_table(pa.table({"text": texts}), path, row_group_size=20)
            sources.append(files_source(path, name=f"s{index}", **keys))
        spans = {item.name: tuple(list_spans_of(item)) for item in sources}
        recipe = TokenizerRecipe(vocab_size=270, sample_bytes=sample_bytes)
        return TokenizerTask(recipe, tuple(sources), spans, dict(zip(spans, weights, strict=True)), seed, {})

    return make


def draw(task: TokenizerTask, path: Path) -> list[list[str]]:
    """Return the documents drawn from each source."""
    facts = draw_sample(path, task, Report()).values()
    documents = list(iter_sample(path))
    drawn = [[text for text in documents if text[51:53] == f"{index:02d}"] for index in range(len(task.sources))]
    assert [fact.text_bytes for fact in facts] == [60 * len(own) for own in drawn]
    return drawn


def test_proportions(make_task: Any, tmp_path: Path):
    task = make_task([87, 10, 3], [1000, 1000, 1000], 30_000)
    assert sample_budgets(task) == [26_100, 3_000, 900]
    assert [len(own) for own in draw(task, tmp_path / "s")] == [435, 50, 15]
    # A share of less than a byte needs no text.
    tiny = replace(task, weights={"s0": 9, "s1": 1, "s2": 1e-6}, spans={**task.spans, "s2": ()})
    assert sample_budgets(tiny) == [26_999, 2_999, 0]
    # Too little text keeps the proportions.
    first, second = draw(make_task([1, 1], [100, 1000], 10**9), tmp_path / "s")
    assert len(first) == 100
    # The footer's size counts the lengths and headers of the column too.
    assert 100 <= len(second) <= 125


def test_the_same_seed_draws_the_same_and_another_does_not(make_task: Any, tmp_path: Path):
    drawn = [draw(make_task([1], [1000], 9000, seed=seed), tmp_path / "s") for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert len(set(drawn[0][0])) == 150


PHRASES = "".join(chr(0x4E00 + n * 7 % 3500) * (n % 9 + 1) + "\uff0c\u3002\uff1b"[n % 3] for n in range(2000))
"""Chinese with marks and no space: 36 kB."""
ENDLESS = ["a" * 40_000, "word " * 9_000 + "\u00e9" * 20_000, " " * 30_000, "7" * 16_385, PHRASES]
WHOLE = ["word, 12 words. " * 3_000, "x" * 16_384]


def draw_texts(folder: Path, texts: list[str], budget: int = 10**9) -> tuple[Drawn, list[str]]:
    """Return what is counted and written of a source of such documents."""
    pq.write_table(pa.table({"text": texts}), folder / "a.parquet")
    recipe = files_source(folder / "a.parquet", name="a")
    tokenizer = TokenizerRecipe(vocab_size=300, sample_bytes=budget)
    task = TokenizerTask(tokenizer, (recipe,), {"a": tuple(list_spans_of(recipe))}, {"a": 1.0}, 1, {})
    drawn = draw_sample(folder / "sample.bin", task, Report())["a"]
    return drawn, list(iter_sample(folder / "sample.bin"))


def test_documents_with_endless_words_are_sampled_in_parts(tmp_path: Path):
    drawn, pieces = draw_texts(tmp_path, [*ENDLESS, *WHOLE])
    texts = {*ENDLESS, *WHOLE}
    for piece in pieces:  # each document's are there in turn
        texts = {text[len(piece) :] if text.startswith(piece) else text for text in texts}
    assert texts == {""}
    assert all(len(piece.encode()) <= PART_BYTES for piece in pieces if piece not in WHOLE)
    assert drawn.records == 7
    assert not drawn.left_out
    # A part ends with a mark, so that no phrase is cut.
    _, pieces = draw_texts(tmp_path, [PHRASES])
    assert len(pieces) > 1
    assert all(piece[-1] in "\uff0c\u3002\uff1b" for piece in pieces)


def test_of_endless_words_a_sample_takes_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.tokenizer.sample.MOST_UNBROKEN_BYTES", 50_000)
    drawn, pieces = draw_texts(tmp_path, ["a" * 40_000, "b" * 40_000, "c" * 40_000, *WHOLE])
    assert drawn == Drawn(text_bytes=sum(map(len, pieces)), left_out=2, records=5)
    assert {*WHOLE} < {*pieces}
    assert 40_000 < sum(len(piece) for piece in pieces if piece not in WHOLE) <= 50_000
    # Each source has one part at least.
    monkeypatch.setattr("pipeline.tokenizer.sample.MOST_UNBROKEN_BYTES", 0)
    assert draw_texts(tmp_path, ["a" * 40_000])[1] == ["a" * PART_BYTES]


def test_a_build_samples_text_without_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "zh.txt").write_text(PHRASES * 2)
    recipe = write_recipe(tmp_path / "r.toml", source("web", "zh.txt", format="file"), split={"val_tokens": 0})
    built = build_here(recipe, tmp_path / "whole")
    assert "sampled" not in built["stderr"]
    # What is left out is said, and why the sample is small.
    monkeypatch.setattr("pipeline.tokenizer.sample.MOST_UNBROKEN_BYTES", 50_000)
    built = build_here(recipe, tmp_path / "part", "--set", "tokenizer.vocab_size=310")
    assert ", by the sizes of the files, are escapes, other contents of the files, text that no " in built["stderr"]
    assert "only a part of 1 document is in the sample: of documents with 16,384 bytes" in built["stderr"]


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("Some words, then a line ends.\n" * 50_000, "\n"),
        ("Some words without a line end. " * 50_000, ""),
        ("a=b;c=" * 400_000, ""),
        ("\u4e2d,\u6587," * 200_000, ""),
    ],
    ids=["lines", "spaces", "symbols", "characters"],
)
def test_long_documents_are_sampled_in_pieces(tmp_path: Path, text: str, end: str):
    for budget in (10**9, 1000):
        drawn, pieces = draw_texts(tmp_path, [text], budget)
        assert drawn.records == 1
        assert all(piece.endswith(end) and 0 < len(piece.encode()) <= PIECE_BYTES for piece in pieces)
        assert drawn.text_bytes == sum(len(piece.encode()) for piece in pieces)
        # No more than the budget asks for.
        assert pieces[0] == text[: len(pieces[0])] if budget == 1000 else "".join(pieces) == text
        assert (len(pieces) == 1) == (budget == 1000)
