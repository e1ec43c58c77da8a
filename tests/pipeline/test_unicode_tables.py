"""The characters that gigatoken and `tokenizers` take for different kinds, computed from both libraries."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
from collections.abc import Iterator
from typing import Any

import awkward as ak
import gigatoken
import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, normalizers

from pipeline.tokenizer.encoder import Encoder
from pipeline.tokenizer.train import pre_tokenizer
from pipeline.tokenizer.unicode_tables import LETTERS, MARKS, find_documents
from shards.format.tokenizer_json import byte_characters
from tests.support.tokenizers import split_ids

CONTEXTS = ("a{}b", "1{}2", " {0}{0}a")
NFC_CONTEXTS = ("e{}\u0301", "e\u0301{}", "e\u0327{}", "{}\u0307", "e{}\u0327", "e{}\u0334")
COMPOSING = ((0x105C0, 0x10600), (0x11380, 0x11400), (0x16100, 0x16140), (0x16D40, 0x16D80), (0x11930, 0x11939))
"""Blocks whose letters compose with one another since Unicode 13."""


def make_tokenizer(pattern: str, *, nfc: bool) -> dict[str, Any]:
    """Return a tokenizer whose ids show where it splits: it joins a letter, digit, mark or space with any byte."""
    letters = byte_characters()
    marks = [letters[ord(character)] for character in "aAbB1 !"]
    merges = list(dict.fromkeys((*((a, b) for a in marks for b in letters), *((b, a) for a in marks for b in letters))))
    entries = list(dict.fromkeys((*letters, *(a + b for a, b in merges))))
    tokenizer = Tokenizer(models.BPE(vocab={entry: index for index, entry in enumerate(entries)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizer(pattern)
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    return json.loads(tokenizer.to_str())


def find_different(tokenizer: dict[str, Any], texts: list[str]) -> Iterator[str]:
    """Yield the texts that the two libraries encode differently: first they are the lines of longer ones."""
    text = json.dumps(tokenizer)
    reference, fast = Tokenizer.from_str(text), gigatoken.Tokenizer.from_json(text)
    for size in (1000, 1):
        blocks = [texts[i : i + size] for i in range(0, len(texts), size)]
        joined = ["\n".join(block) for block in blocks]
        found = fast.encode_batch(ak.from_arrow(pa.array(joined, pa.large_string())), parallel=False).tolist()
        expected = [one.ids for one in reference.encode_batch_fast(joined)]
        different = [i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
        texts = [line for i in different for line in blocks[i]]
    yield from texts


def code_points() -> list[str]:
    """Return the characters beyond ASCII, without planes that no version of Unicode uses."""
    return [chr(point) for point in (*range(0x80, 0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200))]


def listed(ranges: np.typing.NDArray[np.uint32]) -> set[str]:
    return {chr(point) for first, end in ranges.reshape(-1, 2).tolist() for point in range(first, end)}


@pytest.mark.long
def test_the_list_of_letters_is_what_the_libraries_differ_in():
    found: set[str] = set()
    for pattern, context in (("gpt2", CONTEXTS[0]), *(("o200k", context) for context in CONTEXTS)):
        texts = {context.format(character): character for character in code_points()}
        found |= {texts[text] for text in find_different(make_tokenizer(pattern, nfc=False), list(texts))}
    # Another version of a library that changes this: compute the list again.
    assert found == listed(LETTERS)


@pytest.mark.long
def test_the_list_of_marks_has_what_the_libraries_normalize_differently():
    tokenizer, known = make_tokenizer("gpt2", nfc=True), listed(LETTERS) | listed(MARKS)
    found: set[str] = set()
    some = [c for c in code_points() if not "\U00020100" < c < "\U0002f800"]  # of ideographs that compose with nothing
    for context in NFC_CONTEXTS:
        texts = {context.format(c): c for c in some if c not in "\u0301\u0307\u0327\u0334"}
        found |= {texts[text] for text in find_different(tokenizer, list(texts))}
    assert len(found) > 100
    assert found <= known
    pairs = [
        chr(a) + chr(b) for first, end in COMPOSING for a in range(first, end) for b in (*range(first, end), 0x307)
    ]
    assert len([text for text in find_different(tokenizer, pairs) if set(text) & known]) > 30
    assert not [text for text in find_different(tokenizer, pairs) if not set(text) & known]


@pytest.mark.parametrize("nfc", [False, True])
def test_documents_with_such_characters_have_the_ids_of_tokenizers(nfc: bool):
    data = make_tokenizer("gpt2", nfc=nfc)
    encoder, reference = Encoder(data), Tokenizer.from_str(json.dumps(data))
    assert encoder.slow_because == ""
    odd = ["\u088f", "\U00010940", "a\ua7ceb", "\U000323b0\U000323b1", "\u07fd\u1ac1", "e\u1adde\u0327\u0897\u0301"]
    plain = ["", "plain", "🙂 ไทย हिन्दी \u1e9b", "\uabff\ua7c0", "\u07fb\U00010900"]
    texts = [*plain, *odd, *plain, "a" + odd[0], *odd, ""]
    array = pa.array(["left out", *texts, "left out"], pa.large_string()).slice(1, len(texts))
    assert split_ids(*encoder.encode(array)) == [one.ids for one in reference.encode_batch(texts)]
    found = find_documents(array, has_normalizer=nfc).tolist()
    known = listed(LETTERS) | (listed(MARKS) if nfc else set())
    assert found == [number for number, text in enumerate(texts) if set(text) & known]
