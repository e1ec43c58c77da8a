"""Tokenizers that rewrite text: the ids are those of `tokenizers`, and what is kept of the text is counted exactly."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.tokenizer.encoder import Encoder
from pipeline.tokenizer.given_tokenizer import TokenizerInfo, read_encoder_file
from pipeline.tokenizer.kept_text import KeptText
from shards.format.vocabulary import Vocabulary, read_vocabulary
from tests.support.builds import real_documents
from tests.support.tokenizers import MARK, encode, trained_kinds

KEEPS = {
    "llama2": "normalized",
    "metaspace": "normalized",
    "nfc": "normalized",
    "nfkc lower": "normalized",
    "quotes": "normalized",
    "unigram": "normalized",
    "unigram bytes": "normalized",
    "t5": "words",
    **dict.fromkeys(["plain", "llama3", "qwen2", "o200k", "words", "digits", "punctuation"], "bytes"),
}
TEXTS = [
    "",
    " ",
    "  two before, two after  ",
    "line\r\nline\n\n\ttab",
    "caf\u00e9 cafe\u0301 \u212bngstr\u00f6m \ufb01ne \uff21\uff22 \u1e9b\u0323",
    "\U0001f642 \U0001f469\u200d\U0001f469\u200d\U0001f467 \u4e2d\u6587 \u0e01\u0e33",
    "\x00\x01\x7f\u0085\u2028\u00a0\u3000|",
    f"{MARK}marked {MARK}{MARK} blocks \u2582\u2583",
    "<s>one</s> <unk> <0x0A> <pad>",
    "\u201cQuoted\u201d UPPER Lower",
    "x" * 3000,
]
SOME_TEXT = st.lists(
    st.one_of(
        st.text(),
        st.sampled_from([*TEXTS[:10], *" \n\r\x85", MARK, "e\u0301", "the ", "'s", "'S", "'\u017f", "\u0130", "12"]),
    ),
    max_size=5,
)


@cache
def open_kind(name: str) -> tuple[dict[str, Any], Encoder, Vocabulary]:
    data = trained_kinds()[name]
    return data, Encoder(data), read_vocabulary(json.dumps(data).encode())


def load(data: dict[str, Any], folder: Path, **options: Any) -> TokenizerInfo:
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return read_encoder_file(folder / "tokenizer.json", eos_token="</s>", **options)


def reference(data: dict[str, Any]) -> Tokenizer:
    """Return `tokenizers` itself; a Unigram's special tokens have no text there, so that they match none."""
    plain = data | {"added_tokens": [], "post_processor": None}
    if data["model"]["type"] == "Unigram":
        vocab = [["" if text in ("<unk>", "<s>", "</s>") else text, score] for text, score in data["model"]["vocab"]]
        plain |= {"model": data["model"] | {"vocab": vocab}}
    return Tokenizer.from_str(json.dumps(plain))


def expected_text(name: str, data: dict[str, Any], text: str) -> str | None:
    """Return what the tokens of a text must say, with other code than the pipeline's; None if that is not promised."""
    if name == "t5" or (name == "unigram bytes" and "<0x" in text):
        return None  # white space is dropped; the text `<0x0A>` is the entry of a byte
    tokenizer = reference(data)
    normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
    if KEEPS[name] == "bytes" or name in ("nfc", "nfkc lower", "quotes"):
        return normal
    normal = normal.replace(MARK, " ")
    has_space = name in ("metaspace", "unigram", "unigram bytes") and not normal.startswith(" ")
    return normal if has_space else normal[1:]


def check(name: str, texts: list[str]) -> tuple[list[list[int]], KeptText]:
    """Check the ids of texts, and how many are rewritten; return the ids, and what is kept."""
    data, encoder, vocabulary = open_kind(name)
    found, kept = encode(encoder, texts)
    plain = reference(data)
    assert found == [plain.encode(text, add_special_tokens=False).ids for text in texts]
    rewritten = 0
    for text, ids in zip(texts, found, strict=True):
        held = vocabulary.decode_document(np.array([token for token in ids if token != vocabulary.unknown], np.uint32))
        rewritten += held != text.encode()
        expected = expected_text(name, data, text)
        if expected is not None and vocabulary.unknown not in ids:
            assert held == expected.encode()
    assert rewritten == kept.rewritten  # none of a tokenizer that keeps every byte
    return found, kept


@pytest.mark.parametrize("name", KEEPS)
def test_real_text_encodes_as_tokenizers_does(name: str, tmp_path: Path):
    data, _, vocabulary = open_kind(name)
    info = load(data, tmp_path)
    assert (vocabulary.keeps, info.eos_id, info.bos_id) == (KEEPS[name], 2, None)
    texts = [*TEXTS, *real_documents()[100:200]]
    found, kept = check(name, texts)
    if KEEPS[name] == "bytes":
        return
    sizes = vocabulary.text_lengths()
    assert (kept.documents, kept.unknown) == (len(texts), sum(ids.count(vocabulary.unknown) for ids in found))
    assert (kept.tokens, kept.text_bytes) == (sum(map(len, found)), sum(len(text.encode()) for text in texts))
    assert kept.token_bytes == sum(int(sizes[ids].sum()) for ids in found if ids)
    assert 0 < kept.rewritten < len(texts) or name == "t5"
    assert bool(kept.unknown) == (name in ("unigram", "t5"))


@pytest.mark.parametrize("name", KEEPS)
@settings(max_examples=40)
@given(parts=SOME_TEXT)
@example(parts=[" a", MARK])
@example(parts=["\n"])
def test_any_text_encodes_as_tokenizers_does(name: str, parts: list[str]):
    text = "".join(parts).encode("utf-8", "ignore").decode()
    [ids], _ = check(name, [text])
    assert not {1, 2}.intersection(ids)


def test_gigatoken_encodes_what_it_can():
    slow = {name: open_kind(name)[1].slow_because for name in KEEPS}
    assert not any(slow[name] for name in ("plain", "llama2", "metaspace", "llama3", "qwen2", "o200k"))
    assert "Unigram" in slow["t5"]
    assert all(slow[name].startswith("gigatoken cannot run it (") for name in ("words", "digits", "punctuation"))


@pytest.mark.parametrize(("bos", "expected"), [(False, None), (True, 1), ("<unk>", 0)])
def test_bos(bos: bool | str, expected: int | None, tmp_path: Path):
    data = trained_kinds()["llama2"]
    for own in (data, data | {"post_processor": None}):  # by its file, and by its name
        assert load(own, tmp_path, bos=bos).bos_id == expected


def test_what_a_file_asks_for_and_a_set_does_not_do_is_said(tmp_path: Path):
    assert load(trained_kinds()["nfc"], tmp_path).ignored == ()
    llama2 = trained_kinds()["llama2"]
    cut = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    word = llama2["added_tokens"][0] | {"content": "the set", "id": len(llama2["model"]["vocab"]), "special": False}
    data = llama2 | {"truncation": cut, "added_tokens": [*llama2["added_tokens"], word]}
    assert load(data, tmp_path).ignored == (
        "truncation (no document is cut or padded)",
        "a post-processor that begins documents with <s> (tokenizer.bos decides)",
        '1 added token not marked as special, such as "the set"',
    )
    assert encode(Encoder(data), ["the set"])[0] == [reference(llama2).encode("the set").ids]
