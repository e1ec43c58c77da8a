"""The tokenizer's sample: in the weights' proportions, the same for the same seed, whole documents only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.recipe.schema import SourceRecipe, TokenizerRecipe
from pipeline.recipe.sources import FilesSource
from pipeline.tokenizer.sample import PIECE_BYTES, Drawn, TokenizerTask, draw_sample, iter_sample, sample_budgets
from tests.support.builds import list_spans_of

TEXT = "0123456789" * 5


def source(name: str, path: Path, **keys: Any) -> SourceRecipe:
    return FilesSource(name=name, weight=1.0, paths=[str(path)], **keys)


@pytest.fixture
def make_task(tmp_path: Path, write_parquet: Any) -> Any:
    """Return `make(weights, sizes, sample_bytes, seed=1)`: sources of documents of 60 bytes, `sizes` of each."""

    def make(weights: list[float], sizes: list[int], sample_bytes: int, *, seed: int = 1, **keys: Any) -> TokenizerTask:
        sources: list[SourceRecipe] = []
        for index, size in enumerate(sizes):
            texts = [f"{TEXT} {index:02d} {row:06d}" for row in range(size)]
            path = write_parquet(tmp_path / f"{index}.parquet", texts, row_group_size=20, score=[0] * size)
            sources.append(source(f"s{index}", path, **keys))
        spans = tuple(tuple(list_spans_of(item)) for item in sources)
        recipe = TokenizerRecipe(vocab_size=270, sample_bytes=sample_bytes)
        return TokenizerTask(recipe, tuple(sources), spans, tuple(weights), seed)

    return make


def draw(task: TokenizerTask, path: Path) -> list[list[str]]:
    """Return the documents drawn from each source."""
    facts = draw_sample(path, task, lambda done, tokens: None)
    documents = list(iter_sample(path))
    drawn = [[text for text in documents if text[51:53] == f"{index:02d}"] for index in range(len(task.sources))]
    assert [fact.documents for fact in facts] == [len(own) for own in drawn]
    assert [fact.text_bytes for fact in facts] == [60 * len(own) for own in drawn]
    return drawn


def test_proportions(make_task: Any, tmp_path: Path) -> None:
    task = make_task([87, 10, 3], [1000, 1000, 1000], 30_000)
    assert sample_budgets(task) == [26_100, 3_000, 900]
    assert [len(own) for own in draw(task, tmp_path / "s")] == [435, 50, 15]


def test_too_little_text_keeps_the_proportions(make_task: Any, tmp_path: Path) -> None:
    task = make_task([1, 1], [100, 1000], 10**9)
    first, second = draw(task, tmp_path / "s")
    assert len(first) == 100
    # The footer's size counts the lengths and headers of the column too.
    assert 100 <= len(second) <= 125


def test_the_same_seed_draws_the_same_and_another_does_not(make_task: Any, tmp_path: Path) -> None:
    drawn = [draw(make_task([1], [1000], 9000, seed=seed), tmp_path / "s") for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert len(set(drawn[0][0])) == 150


def test_documents_with_endless_words_are_left_out_and_counted(tmp_path: Path) -> None:
    endless = ["a" * 40_000, "word " * 9_000 + "\u00e9" * 20_000, " " * 30_000, "7" * 16_385]
    kept = ["word, 12 words. " * 3_000, "x" * 16_384]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [*endless, *kept]}), path)
    recipe = source("a", path)
    spans = (tuple(list_spans_of(recipe)),)
    tokenizer = TokenizerRecipe(vocab_size=300, sample_bytes=10**9)
    task = TokenizerTask(tokenizer, (recipe,), spans, (1.0,), 1)
    facts = draw_sample(tmp_path / "sample.bin", task, lambda done, tokens: None)
    assert sorted(iter_sample(tmp_path / "sample.bin")) == sorted(kept)
    assert facts == [Drawn(text_bytes=sum(map(len, kept)), documents=2, left_out=4, records=6)]


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
def test_long_documents_are_sampled_in_pieces(tmp_path: Path, text: str, end: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    recipe = source("a", tmp_path / "a.txt", format="file")
    spans = (tuple(list_spans_of(recipe)),)
    for budget in (10**9, 1000):
        task = TokenizerTask(TokenizerRecipe(vocab_size=300, sample_bytes=budget), (recipe,), spans, (1.0,), 1)
        (drawn,) = draw_sample(tmp_path / "sample.bin", task, lambda done, tokens: None)
        pieces = list(iter_sample(tmp_path / "sample.bin"))
        assert drawn.documents == 1
        assert all(piece.endswith(end) and 0 < len(piece.encode()) <= PIECE_BYTES for piece in pieces)
        assert drawn.text_bytes == sum(len(piece.encode()) for piece in pieces)
        assert text.startswith("".join(pieces))
        if budget == 1000:
            assert len(pieces) == 1  # no more than the budget asks for
        else:
            assert "".join(pieces) == text
