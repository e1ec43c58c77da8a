"""Evaluation items in scripts that are written without spaces."""

from __future__ import annotations

import os
import unicodedata

import pytest

from pipeline.clean.decontamination.items import find_item_ngrams
from tests.support.held_items import find_held
from tests.support.unspaced_text import SCRIPTS, TextMaker

EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
CLEAN = 2000 if EXHAUSTIVE else 100
PLANTED = 40 if EXHAUSTIVE else 20  # of fewer, a search that loses one in ten would find all; they take 0.1 s


def count_found(script: str, words: int) -> tuple[int, int, int]:
    """Return how many items are found verbatim, and changed, and how many are found that no document holds."""
    maker = TextMaker(script, words)
    items = [maker.item(words) for _ in range(2 * PLANTED)]
    clean = [maker.text() for _ in range(CLEAN)]
    planted = [maker.around(item) for item in items[:PLANTED]]
    changed = [maker.around(maker.changed(item)) for item in items[PLANTED:]]
    held = find_held(items, planted + changed + clean)
    own = [document for document, item in held if document == item]
    verbatim = sum(document < PLANTED for document in own)
    return verbatim, len(own) - verbatim, len(held) - len(own)


@pytest.mark.parametrize(("script", "words"), [*((script, 12) for script in SCRIPTS), ("English", 18)])
def test_items_inside_sentences_are_found_in_every_script(script: str, words: int) -> None:
    verbatim, changed, false = count_found(script, words)
    assert verbatim >= PLANTED * 38 // 40
    assert changed >= PLANTED * 36 // 40
    assert not false


def test_line_breaks_punctuation_and_other_scripts_hide_no_item() -> None:
    item = "小明在2019年用Python写了3个程序，ความเร็วเท่าไร、どれですか？"
    copies = [
        item.replace("了", "\n了").replace("ว", "ว\n\n").replace("す", " す "),
        item.replace("，", "。").replace("？", "的"),
        f"说{item[:-1]}吗",
        item.replace("个", "\u200b个\ufe0f"),
        item.replace("Python", "ＰＹＴＨＯＮ"),
        unicodedata.normalize("NFD", item),
    ]
    others = ["小明在2018年用Rust写了4个程序", "ความเร็วเท่าไร", "3 Python 2019 3"]
    assert find_held([item], [*copies, *others]) == {(number, 0) for number in range(len(copies))}


@pytest.mark.parametrize(
    ("text", "words"), [("法国首都哪", 0), ("法国的首都在哪里", 7), ("ประเทศไทย", 0), ("ประเทศไทยมีกี่จังหวัด", 5)]
)
def test_items_of_three_words_side_by_side_are_searched(text: str, words: int) -> None:
    assert find_item_ngrams(memoryview(text.encode()))[1] == words
