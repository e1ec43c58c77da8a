"""The ids of training are the ids of use: given tokenizers, and what `tokenizers` and transformers make of them.

For each kind: a file that training refuses before anything is encoded, or one whose set has a `tokenizer.json` with the
same ids by `tokenizers` and by `AutoTokenizer`. `make test-exhaustive` compares 2,000 random texts and 300 documents.
"""

import copy
import json
import os
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pipeline.tokenizer.encoder import Encoder
from pipeline.tokenizer.given_tokenizer import TokenizerError, TokenizerInfo, read_encoder_file
from tests.support.builds import real_documents
from tests.support.tokenizers import (
    SPECIAL,
    TEMPLATE,
    encode,
    texts_of,
    train_byte_level,
    trained_kinds,
    with_normalizers,
    with_pattern,
)

PROBES = 2000 if os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS") else 40
Change = Callable[[dict[str, Any]], dict[str, Any]]


def _add(*contents: str, special: bool = False, gap: int = 0) -> Change:
    """Return a change that appends added tokens, after `gap` ids that no token has."""

    def change(data: dict[str, Any]) -> dict[str, Any]:
        data = copy.deepcopy(data)
        vocabulary = data["model"]["vocab"]
        ids = [entry["id"] for entry in data["added_tokens"]]
        first = max([len(vocabulary) - 1, *ids]) + 1 + gap
        new = [text for text in contents if text not in {entry["content"] for entry in data["added_tokens"]}]
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
        data["added_tokens"] += [{"id": first + i, "content": text, **flags} for i, text in enumerate(new)]
        return data

    return change


def _enter(*contents: str, special: bool) -> Change:
    """Return a change that makes added tokens of new entries of the model."""

    def change(data: dict[str, Any]) -> dict[str, Any]:
        data = copy.deepcopy(data)
        vocabulary = data["model"]["vocab"]
        new = [text for text in contents if text not in {entry["content"] for entry in data["added_tokens"]}]
        for token in data["added_tokens"]:  # those that are no entries come after them
            token["id"] += len(new) if token["id"] >= len(vocabulary) else 0
        for text in new:
            index = len(vocabulary)
            vocabulary.append([text, -20.0]) if isinstance(vocabulary, list) else vocabulary.setdefault(text, index)
            data["added_tokens"].append(data["added_tokens"][0] | {"id": index, "content": text, "special": special})
        return data

    return change


def _processor(processor: Any) -> Change:
    return lambda data: data | {"post_processor": processor}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BEGIN: Any = TEMPLATE
WITH_EOS = BEGIN | {
    "single": [*BEGIN["single"], {"SpecialToken": {"id": "</s>", "type_id": 0}}],
    "special_tokens": BEGIN["special_tokens"] | {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}},
}
CHANGES: dict[str, Change] = {
    "as it is": _processor(None),
    "BOS by its file": _processor(TEMPLATE),
    "BOS and EOS by its file": _processor(WITH_EOS),
    "BERT's post-processor": _processor({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}),
    "Llama 3's post-processor": _processor({"type": "Sequence", "processors": [BYTE_LEVEL, TEMPLATE]}),
    "runs of spaces": _add(*(" " * n for n in range(12, 1, -1))),
    "words that are no special tokens": _add("Hello", "<|user|>", "the the"),
    "a special token after them": lambda data: _add("<|pad|>", special=True)(_add("   ", "<|user|>")(data)),
    "more special tokens": _add("<|pad|>", "<extra_id_0>", "[CLS]", special=True),
    "special tokens among the entries": _enter("<｜User｜>", "——", "中文", "[CLS]", special=True),
    "other added tokens among the entries": _enter("<｜User｜>", "——", "中文", "<unused0>", special=False),
    "a hole before a token": _add("<|pad|>", special=True, gap=3),
    "cut and padded": lambda data: (
        data | {"truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}}
    ),
}


def _merge(*pairs: tuple[str, str]) -> Change:
    """Return a change that adds merges, and entries for what they make, to a BPE."""

    def change(data: dict[str, Any]) -> dict[str, Any]:
        data = copy.deepcopy(data)
        for pair in pairs:
            data["model"]["vocab"].setdefault("".join(pair), len(data["model"]["vocab"]))
            data["model"]["merges"].append(list(pair))
        return data

    return change


RUNS = ["\u2581" * 2, "\u2581" * 3, "\u2581" * 4, "\n\n", "\n\n\n"]
"""Entries of Gemma that merges make and that are added tokens, too."""


@cache
def published_kinds() -> dict[str, dict[str, Any]]:
    """Return tokenizers in the manner of those that are published."""
    kinds = trained_kinds()
    plain, llama2, llama3 = kinds["plain"], kinds["llama2"], kinds["llama3"]
    spaces = [" " * n for n in range(24, 1, -1)]
    space: Any = {"pattern": {"String": " "}}
    gemma: dict[str, Any] = llama2 | {
        "normalizer": {"type": "Replace", **space, "content": "\u2581"},
        "pre_tokenizer": {"type": "Split", **space, "behavior": "MergedWithPrevious", "invert": False},
    }
    gemma = _merge(*((run[:at], run[at:]) for run in RUNS for at in range(1, len(run))))(gemma)
    entries, (token, *_) = gemma["model"]["vocab"], gemma["added_tokens"]
    gemma["added_tokens"] += [token | {"id": entries[run], "content": run, "special": False} for run in RUNS]
    return {
        "gpt2": plain,
        "neox": _add(*spaces)(kinds["nfc"]),
        "phi": _add(*spaces, *("\t" * n for n in range(9, 1, -1)))(plain),
        "llama2": llama2,
        "llama3": llama3 | {"model": llama3["model"] | {"ignore_merges": True}},
        "mistral": kinds["metaspace"],
        "gemma": _enter("<unused0>", special=False)(gemma),
        "qwen": with_normalizers(kinds["qwen2"], {"type": "NFC"}),
        "t5": _enter("<extra_id_1>", "<extra_id_2>", special=True)(kinds["t5"]),
        "bert": kinds["bert"],
        "a Unigram that keeps spaces": kinds["unigram"],
        "a pattern of its own": with_pattern(plain, r"\p{N}{1,3}| ?\p{L}+|\s+|."),
    }


def encode_as_training(encoder: Encoder, info: TokenizerInfo, texts: list[str]) -> list[list[int]]:
    """Return the ids of a set's documents, without EOS."""
    begin = [] if info.bos_id is None else [info.bos_id]
    return [[*begin, *ids] for ids in encode(encoder, texts)[0]]


@pytest.mark.parametrize("bos", [False, "<s>"])
@pytest.mark.parametrize("change", CHANGES)
def test_ids_of_training_are_ids_of_use(change: str, bos: bool | str, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    texts = texts_of(PROBES)
    for name, kind in published_kinds().items():
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "given.json"
        data = CHANGES[change](kind)
        file.write_text(json.dumps(data))
        if name == "bert" or "hole" in change:
            expected = "has the model 'WordPiece'" if name == "bert" else "1 added token with other ids in the file"
            with pytest.raises(TokenizerError, match=expected):
                read_encoder_file(file, eos_token="</s>", bos=bos)
            continue
        info = read_encoder_file(file, eos_token="</s>", bos=bos)
        expected = encode_as_training(Encoder(data), info, texts)
        # What a set and an export have.
        (folder / "tokenizer.json").write_text(info.text)
        own = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "split_special_tokens": True}
        (folder / "tokenizer_config.json").write_text(json.dumps(own))
        plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
        auto = transformers.AutoTokenizer.from_pretrained(folder)
        for text, ids in zip(texts, expected, strict=True):
            if not any(mark in text for mark in info.special_tokens):
                assert plain.encode(text).ids == ids, (name, text)
            assert auto(text)["input_ids"] == ids, (name, text)
        plain.encode_special_tokens = True
        assert [one.ids for one in plain.encode_batch(texts)] == expected, name
        # Special tokens keep their ids, and each is one token for a program that asks for it.
        plain.encode_special_tokens = False
        assert {mark: plain.token_to_id(mark) for mark in info.special_tokens} == info.special_tokens
        assert set(SPECIAL) <= info.special_tokens.keys()
        assert 2 in plain.encode("a</s>b").ids
        # A set of this file has the same file.
        again = read_encoder_file(folder / "tokenizer.json", eos_token="</s>", bos=bos)
        assert again.text == info.text


@pytest.mark.parametrize("special", [True, False])
def test_added_tokens_among_the_entries_take_no_text_from_others(special: bool):
    """gigatoken reads characters outside the byte-level alphabet as text, so that two entries have the same."""
    data = train_byte_level(["one — two —— three 中文 four ไทย"] * 9)
    marks = [chr(code) for code in range(33)] + ["—", " —", "中文", "ไทย"]
    data = _enter(*marks, special=special)(data)
    encoder, texts = Encoder(data), [*marks, "one — two —— three 中文 four ไทย", *real_documents()[:9]]
    assert encoder.slow_because == ""
    assert encode(encoder, texts)[0] == [encoder.encode_reference(text) for text in texts]


def test_runs_of_spaces_that_are_added_tokens_too_are_the_models_own():
    data = published_kinds()["gemma"]
    encoder, model = Encoder(data), Tokenizer.from_str(json.dumps(data))
    texts = ["a  b\n\nc", "    four, eight        ", "def f():\n    return 1\n\n\n", *real_documents()[:40]]
    found, kept = encode(encoder, texts)
    assert found == [model.encode(text, add_special_tokens=False).ids for text in texts]
    assert {data["model"]["vocab"][run] for run in RUNS} <= {*chain(*found)}
    assert (kept.documents, kept.rewritten) == (len(texts), 0)
