"""Tokenizers of the kinds that a recipe may name, trained on a few KB of text with `tokenizers`."""

import json
import random
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from pipeline.tokenizer.encoder import Encoder
from pipeline.tokenizer.kept_text import KeptText
from shards.format.tokenizer_json import PATTERNS
from tests.support.builds import real_documents
from tests.support.held_items import documents_of
from tests.support.shard_sets import train_bpe

MARK = "\u2581"
"""What SentencePiece spells a space with."""
SPECIAL = ["<unk>", "<s>", "</s>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}
"""A post-processor that begins each document with BOS, as Llama 2's does."""

WORDS = (
    "a the Hello x1 12345 's DON'T . , \u2581 <s> </s> <unk> <0x0A> <|pad|> <|user|> é e\u0301 \u212b ﬁ Ａ 中文 "
    "ไทย ខ្មែរ हि عرب 🙂 👩\u200d👧 \x00 \ufeff \u200b ß İ \u088f \U00010940 \U000323b0 <｜User｜> —— <unused0> "
    "[CLS] <extra_id_0> \u2019 … \u0323 \u1e9b"
)
SPACES = [" ", "  ", "   ", "    ", "\n", "\n\n\n", "\t", "\t\t", "\r\n", "\u00a0", "\u3000"]
PIECES = [*WORDS.split(), *SPACES, "def f():", "        return"]


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer as parsed JSON, with the added tokens of `SPECIAL` alone."""
    data: dict[str, Any] = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in SPECIAL]
    return data


def train_llama2(texts: Iterable[str]) -> dict[str, Any]:
    """Train a BPE as Llama 2's: spaces as `▁`, one before each document, bytes for unknown characters."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # words: training is faster
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*SPECIAL, *_BYTES], limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    data = _describe(tokenizer)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    data["pre_tokenizer"] = None
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, spaces]}
    data["post_processor"] = TEMPLATE
    steps = [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    data["decoder"] = {"type": "Sequence", "decoders": steps}
    return data


def with_metaspace(data: dict[str, Any]) -> dict[str, Any]:
    """Return the same tokenizer as later versions of transformers write it: with a Metaspace pre-tokenizer."""
    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}
    return data | {"normalizer": None, "pre_tokenizer": metaspace}


def with_normalizers(data: dict[str, Any], *names: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer that normalizes text first."""
    old = data["normalizer"]
    own = [] if old is None else old.get("normalizers", [old])
    return data | {"normalizer": {"type": "Sequence", "normalizers": [*names, *own]}}


def with_splitter(data: dict[str, Any], splitter: dict[str, Any]) -> dict[str, Any]:
    """Return a byte-level tokenizer that splits text by `splitter` alone before it becomes bytes."""
    parts = [{"behavior": "Isolated", "invert": False} | splitter, data["pre_tokenizer"] | {"use_regex": False}]
    return data | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}


def with_pattern(data: dict[str, Any], pattern: str) -> dict[str, Any]:
    """Return a byte-level tokenizer that splits text by a pattern alone."""
    return with_splitter(data, {"type": "Split", "pattern": {"Regex": pattern}})


def train_unigram(texts: Iterable[str]) -> dict[str, Any]:
    """Train a Unigram with NFKC, as T5's; without its pre-tokenizer that drops white space."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return _describe(tokenizer)


def as_t5(unigram: dict[str, Any]) -> dict[str, Any]:
    """Return a Unigram as T5's, whose pre-tokenizer drops white space."""
    words = [{"type": "WhitespaceSplit"}, unigram["pre_tokenizer"]]
    return unigram | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": words}}


def train_bert(texts: Iterable[str]) -> dict[str, Any]:
    """Train a WordPiece as BERT's, whose entries do not say where spaces were."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return _describe(tokenizer)


def train_byte_level(texts: Iterable[str], *, vocab_size: int = 500) -> dict[str, Any]:
    """Train a byte-level BPE with the same special tokens."""
    return _describe(train_bpe(texts, vocab_size, SPECIAL))


@cache
def trained_kinds() -> dict[str, dict[str, Any]]:
    """Return tokenizers of the kinds that a recipe may name, and BERT's, each with the special tokens of `SPECIAL`."""
    texts = real_documents()[:150]
    llama2, plain, unigram = train_llama2(texts), train_byte_level(texts), train_unigram(texts)
    model = unigram["model"] | {
        "byte_fallback": True,
        "vocab": [*unigram["model"]["vocab"], *([text, -20.0] for text in _BYTES)],
    }
    quotes = {"type": "Replace", "pattern": {"String": "\u201c"}, "content": '"'}
    return {
        "llama2": llama2,
        "metaspace": with_metaspace(llama2),
        "nfc": with_normalizers(plain, {"type": "NFC"}),
        "nfkc lower": with_normalizers(plain, {"type": "NFKC"}, {"type": "Lowercase"}),
        "quotes": with_normalizers(plain, quotes),
        "unigram": unigram,
        "unigram bytes": unigram | {"model": model},
        "t5": as_t5(unigram),
        "plain": plain,
        **{name: with_pattern(plain, PATTERNS[name]) for name in ("llama3", "qwen2", "o200k")},
        "words": with_pattern(plain, r"\s?\w+|."),
        "digits": with_splitter(plain, {"type": "Digits", "individual_digits": True}),
        "punctuation": with_splitter(plain, {"type": "Punctuation"}),
        "bert": train_bert(texts),
    }


def split_ids(ids: Any, offsets: Any) -> list[list[int]]:
    """Return the ids of each document of a batch."""
    return [ids[start:stop].tolist() for start, stop in pairwise(offsets)]


def encode(encoder: Encoder, texts: list[str]) -> tuple[list[list[int]], KeptText]:
    """Return the ids of texts, and what is kept of them."""
    documents = documents_of(texts)
    ids, offsets = encoder.encode(documents.text)
    kept = KeptText()
    if encoder.kept is not None:
        encoder.kept.add(kept, documents, ids, offsets)
    return split_ids(ids, offsets), kept


def texts_of(count: int) -> list[str]:
    """Return texts that tokenizers are known to treat differently: so many random ones, and documents."""
    random_of = random.Random(7)
    pieces = PIECES * 4 + [chr(random_of.choice([0x20, 0x3000, 0xE000]) + random_of.randrange(0x1000)) for _ in PIECES]
    made = ["".join(random_of.choices(pieces, k=random_of.randint(1, 12))) for _ in range(count)]
    return [*PIECES, "", *made, *real_documents()[150 : 150 + max(20, count * 3 // 20)]]
