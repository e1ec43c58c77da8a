"""Patterns that drop documents: which match, how they are counted, what is shown, and when a build stops."""

import random
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.clean.patterns import drop_matches
from pipeline.clean.reasons import PATTERN, SHOWN_DOCUMENTS
from pipeline.clean.tally import Documents, Tally
from pipeline.sources.base import Span
from tests.support.reading import files_source

PATTERNS = [
    r"\bPerson(X|Y)\b",
    r"(?i)(f[])e(]){3}",
    "@\\.@|\\d{4}-\\d{2}",
    r"(?P<the_match>x)yz",
    r"(?P<the_match>z)yx",
    r"(?s)first.*last",
]


def make_texts(seed: int, number: int) -> list[str]:
    rng = random.Random(seed)
    pieces = ["PersonX", "PersonXY", "FeFeFe", "@.@", "2026-11", "xyz", "zyx", "first\n", "last", "é世界", "\x00", "a "]
    return ["".join(rng.choices([*pieces, "plain words "], k=rng.randrange(1, 6))) for _ in range(number)]


def find(texts: list[str], patterns: list[str]) -> tuple[list[bool], Tally]:
    """Look in texts that are the middle of an array."""
    array: Any = pa.array(["PersonX", *texts, "PersonX"], pa.large_string()).slice(1, len(texts))
    tally = Tally(lambda row: (Span("", "f", "", "jsonl", "b", 0, 1, 1, None, 1), row))
    rows = np.arange(50, 50 + len(texts), dtype=np.uint32)
    left = drop_matches(files_source("x", drop_if_matches=patterns), Documents(array, rows), tally)
    return [row not in set(left.rows.tolist()) for row in rows.tolist()], tally


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [1, 3, 6])  # six hold a name twice, so that they cannot be taken together
def test_documents_match_as_pythons_re_says_and_count_for_the_first_pattern(seed: int, count: int):
    texts = make_texts(seed, 200)
    patterns = PATTERNS[:count]
    reference = [next((p for p in patterns if re.search(p, text, re.ASCII)), None) for text in texts]
    found, tally = find(texts, patterns)
    assert found == [pattern is not None for pattern in reference]
    assert tally.dropped == {PATTERN + p: reference.count(p) for p in patterns if p in reference}
    for pattern in patterns:
        own = [match for match in tally.shown if match.reason == PATTERN + pattern]
        holding = [row for row, p in enumerate(reference) if p == pattern][:SHOWN_DOCUMENTS]
        assert [match.row - 50 for match in own] == holding
        for match in own:
            first = re.search(pattern, texts[match.row - 50], re.ASCII)
            assert first is not None
            before, _, rest = match.text.partition(">>>")
            assert rest.startswith(f"{first[0]}<<<")
            assert texts[match.row - 50].startswith(before + first[0])
