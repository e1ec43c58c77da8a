"""The ids of training are the ids of use: given tokenizers, and what `tokenizers` and transformers make of them.

For each kind: a file that training refuses before anything is encoded, or one whose set has a `tokenizer.json` with the
same ids by `tokenizers` and by `AutoTokenizer`. `TOKENMILL_PROBES` sets how many random texts are compared.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from pipeline.tokenizer.encoder import Encoder, TokenizerInfo, read_encoder_file
from pipeline.tokenizer.given_tokenizer import TokenizerError
from tests.support.builds import real_documents
from tests.support.tokenizers import (
    SPECIAL,
    TEMPLATE,
    train_byte_level,
    train_llama2,
    train_t5,
    train_unigram,
    with_metaspace,
    with_normalizers,
)

PROBES = int(os.environ.get("TOKENMILL_PROBES", "100"))
Change = Callable[[dict[str, Any]], dict[str, Any]]
PIECES = [
    *(
        " ",
        "  ",
        "   ",
        "\n",
        "\t",
        "\r\n",
        "a",
        "the",
        "Hello",
        "x1",
        "12345",
        "'s",
        "DON'T",
        ".",
        ",",
        "\u2581",
        "<s>",
    ),
    *(
        "</s>",
        "<unk>",
        "<0x0A>",
        "<|pad|>",
        "<|user|>",
        "é",
        "e\u0301",
        "\u212b",
        "ﬁ",
        "Ａ",
        "中文",
        "ไทย",
        "ខ្មែរ",
        "हि",
        "عرب",
    ),
    *(
        "🙂",
        "👩\u200d👧",
        "\x00",
        "\ufeff",
        "\u00a0",
        "\u3000",
        "\u200b",
        "ß",
        "İ",
        "\u088f",
        "\U00010940",
        "\U000323b0",
    ),
    *("[CLS]", "<extra_id_0>", "def f():", "        return", "\u2019", "…", "\u0323", "\u1e9b"),
]


def _add(*contents: str, special: bool = False, gap: int = 0) -> Change:
    """Return a change that appends added tokens, after `gap` ids that no token has."""

    def change(data: dict[str, Any]) -> dict[str, Any]:
        data = copy.deepcopy(data)
        vocabulary = data["model"]["vocab"]
        ids = [entry["id"] for entry in data["added_tokens"]]
        first = max([len(vocabulary) - 1, *ids]) + 1 + gap
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
        data["added_tokens"] += [{"id": first + i, "content": text, **flags} for i, text in enumerate(contents)]
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
    "a hole before a token": _add("<|pad|>", special=True, gap=3),
    "cut and padded": lambda data: (
        data | {"truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}}
    ),
}


def make_kinds() -> dict[str, dict[str, Any]]:
    """Train the tokenizers: in the manner of GPT-2, Qwen, Llama 2 (twice), Gemma, SentencePiece, T5 and BERT."""
    texts = real_documents()[:150]
    llama2, byte_level = train_llama2(texts), train_byte_level(texts)
    split = {
        "type": "Split",
        "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+|."},
        "behavior": "Isolated",
        "invert": False,
    }
    llama3 = {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}]}
    return {
        "gpt2": byte_level,
        "llama3": byte_level | {"pre_tokenizer": llama3, "model": byte_level["model"] | {"ignore_merges": True}},
        "qwen": with_normalizers(byte_level, {"type": "NFC"}),
        "llama2": llama2,
        "mistral": with_metaspace(llama2),
        "unigram": train_unigram(texts),
        "t5": train_t5(texts),
        "wordpiece": {
            "version": "1.0",
            "added_tokens": [],
            "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1}},
        },
    }


@pytest.fixture(scope="module")
def kinds() -> dict[str, dict[str, Any]]:
    return make_kinds()


def texts_of(count: int) -> list[str]:
    random_of = random.Random(7)
    made = ["".join(random_of.choices(PIECES, k=random_of.randint(1, 12))) for _ in range(count)]
    return [*PIECES, "", *made, *real_documents()[150 : 150 + max(20, count * 3 // 20)]]


def encode_as_training(encoder: Encoder, info: TokenizerInfo, texts: list[str]) -> list[list[int]]:
    """Return the ids of a set's documents, without EOS."""
    ids, offsets = encoder.encode(pa.array(texts, pa.large_string()))
    begin = [] if info.bos_id is None else [info.bos_id]
    return [[*begin, *ids[a:b].tolist()] for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("bos", [False, "<s>"])
@pytest.mark.parametrize("change", CHANGES)
def test_ids_of_training_are_ids_of_use(
    kinds: dict[str, dict[str, Any]], change: str, bos: bool | str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    texts = texts_of(PROBES)
    for name, kind in kinds.items():
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "given.json"
        data = CHANGES[change](kind)
        file.write_text(json.dumps(data))
        if name == "wordpiece" or "hole" in change:
            expected = "no special token" if name == "wordpiece" else "1 added token with other ids in the file"
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
