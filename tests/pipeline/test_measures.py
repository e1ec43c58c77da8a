"""Measures equal a slow reference implementation; presets say which documents fall."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clean.measures import measure
from pipeline.clean.measures.measure import MEASURES, measure_documents
from pipeline.recipe.presets import PRESETS, Gopher, Limit
from tests.support.slow_measures import SLOW_MEASURES, measure_slowly

WHITE = [char for char in map(chr, range(0x110000)) if char.isspace()]
PIECES = ["a", "the", "The", "and", "#", "...", "…", "-", "•", "\n", "\n\n", " ", "  ", "\t", "\r\n", "é", "中文", "🎉"]
PIECES += ["\u2003", "x1"]
TEXTS = st.one_of(
    st.text(min_size=1, max_size=80),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=60).map("".join),
)


def check_equal(texts: list[str]) -> None:
    """Measure texts in one batch, which does not begin at the first offset, and one by one, slowly."""
    names = list(MEASURES)
    whole = pa.array(["before é\n", *texts, "behind"], pa.large_string())
    found = measure_documents(whole.slice(1, len(texts)), names)  # type: ignore[arg-type]
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    for text, row in zip(texts, found, strict=True):
        expected = {name: measure_slowly(text, name) for name in names}
        assert dict(zip(names, row.tolist(), strict=True)) == {k: v.item() for k, v in expected.items()}, text[:200]


@given(texts=st.lists(TEXTS, min_size=1, max_size=6))
def test_measures_equal_the_slow_ones(texts: list[str]) -> None:
    check_equal(texts)


def test_measures_equal_the_slow_ones_on_real_texts(documents: list[str]) -> None:
    check_equal(documents)


def test_measures_equal_the_slow_ones_on_odd_texts() -> None:
    check_equal([*"a\n é中🎉#", "\n\n\n", "a\n", "\na", "a b" * 10, *WHITE, "".join(f"a{char}" for char in WHITE)])


def test_every_measure_has_a_slow_one() -> None:
    assert set(MEASURES) == set(SLOW_MEASURES)


def test_slices_of_a_batch_do_not_show(documents: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text: Any = pa.array(documents, pa.large_string())
    whole = measure_documents(text, list(MEASURES))
    for size in (1, 500, 20_000):
        monkeypatch.setattr(measure, "SLICE_BYTES", size)
        assert (measure_documents(text, list(MEASURES)) == whole).all()
    names = random.Random(0).sample(list(MEASURES), 3)
    assert (measure_documents(text, names) == whole[:, [list(MEASURES).index(name) for name in names]]).all()
    assert measure_documents(text.slice(0, 0), names).shape == (0, 3)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_limit_is_on_a_measure(name: str) -> None:
    preset = PRESETS[name]()
    assert set(preset.measures()) <= set(MEASURES)
    assert [limit.key for limit in preset.limits()] == preset.limit_keys()
    assert preset.limits()[0].reason == f"{name}: {preset.limit_keys()[0]}"
    assert preset.published() == preset


def test_a_document_on_a_limit_stays() -> None:
    values = np.array([0.1, 0.2, 0.3], np.float32)
    assert Limit("p", "max_x", "x", "max", 0.2).find_fallen(values).tolist() == [False, False, True]
    assert Limit("p", "min_x", "x", "min", 0.2).find_fallen(values).tolist() == [True, False, False]


def test_limits_are_moved_and_turned_off() -> None:
    preset = Gopher(min_words="off", max_words=3, when="encode")
    assert tuple(preset.limit_keys()[:2]) == ("min_words", "max_words")
    assert preset.limits()[0] == Limit("gopher", "max_words", "words", "max", 3.0)
    assert "words" in Gopher(min_words="off", max_words="off").measures()
    assert preset.published() == Gopher(when="encode")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"min_words": True}, 'expected a number from 0, or "off"'),
        ({"min_words": -1}, 'expected a number from 0, or "off"'),
        ({"min_words": "none"}, 'expected a number from 0, or "off"'),
        ({"min_words": 10, "max_words": 9}, "min_words is above max_words"),
        ({"min_word": 10}, "min_word"),
    ],
)
def test_limits_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        Gopher(**keys)
