"""Checks of a given `tokenizer.json`: find everything that prevents exact encoding before the work begins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from shards.errors import InputError
from shards.format.tokenizer import MAX_VOCAB_SIZE, byte_characters, find_special


class TokenizerError(InputError):
    """A tokenizer that cannot be trained or used."""


def find_faults(data: dict[str, Any]) -> Iterator[str]:
    """Yield the faults of a parsed `tokenizer.json`, one line each, with its remedy."""
    model: dict[str, Any] = data["model"]
    splitter: dict[str, Any] = data.get("pre_tokenizer") or {}
    if normalizer := data.get("normalizer"):
        kind = cast("dict[str, Any]", normalizer).get("type") if isinstance(normalizer, dict) else normalizer
        yield (
            f"has a normalizer ({kind}), which rewrites text, so that documents would not decode back. "
            'Set "normalizer" to null in the file.'
        )
    if model.get("type", "BPE") != "BPE" or "ByteLevel" not in json.dumps(splitter):
        kinds = f"model {model.get('type')!r} with pre-tokenizer {splitter.get('type')!r}"
        yield f"expected a byte-level BPE, got {kinds}. Use another file, or train one."
        return
    missing = [byte for byte, character in enumerate(byte_characters()) if character not in model["vocab"]]
    if missing:
        yield (
            f"has no entry for {len(missing)} of the 256 bytes, {missing[0]:#04x} first; text with them would be lost. "
            "Use another file, or train one."
        )
    if max(model["vocab"].values()) >= MAX_VOCAB_SIZE:
        yield f"has ids of {MAX_VOCAB_SIZE} and above. Number its entries from 0."
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            yield f"model.{key} is {model[key]!r}, which changes what text becomes. Set it to null in the file."
    ordinary = _ordinary_ids(model)
    for token, token_id in find_special(data).items():
        if token_id in ordinary:
            yield f"special token {token!r} has the id of an ordinary word: text yields it. Give it an id of its own."
    parts: list[dict[str, Any]] = splitter.get("pretokenizers") or [splitter]
    if any(part.get("add_prefix_space") for part in parts):
        yield (
            "its pre-tokenizer adds a space before each document, which then would not decode back. "
            'Set "add_prefix_space" to false in the file.'
        )
    if len(parts) == 1 and parts[0].get("use_regex") is False:
        yield "its pre-tokenizer does not split text into words. Use a gpt2, llama3, qwen2 or o200k pre-tokenizer."


def _ordinary_ids(model: dict[str, Any]) -> set[int]:
    """Return the ids that text can yield: those of bytes and of merges."""
    merges: list[str | list[str]] = model.get("merges") or []
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
    return {model["vocab"].get(entry, -1) for entry in (*byte_characters(), *("".join(pair) for pair in pairs))}
