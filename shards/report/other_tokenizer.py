"""Compare the bytes per token of the set's tokenizer and another on the same documents, spread evenly over the set.

If no tokenizer is given, GPT-2's is taken from the Hub's cache on this machine, if it is there. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from shards.errors import InputError
from shards.format.reader import ShardSet
from shards.trace.locate import Place

GPT2 = "GPT-2"
_GPT2_REPOSITORIES = ("openai-community/gpt2", "gpt2")

COMPARED_DOCUMENTS = 256
"""Of each source."""
COMPARED_TOKENS = 1 << 14
"""Maximum taken from each document, so that one long book is not the whole sample."""


def find_gpt2(cache: Path | None = None) -> Path | None:
    """Return the default other tokenizer, GPT-2's, in the Hub's cache, or None; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache

    for repository in _GPT2_REPOSITORIES:
        found = try_to_load_from_cache(repository, "tokenizer.json", cache_dir=cache)
        if isinstance(found, str):
            return Path(found)
    return None


def parse_compare(text: str) -> tuple[str, Path]:
    """Parse the other tokenizer of `report --compare`: `NAME=FILE`, or `FILE`, whose name is then its folder's.

    Raises:
        InputError: the file is not there.
    """
    name, separator, path = text.partition("=")
    if not separator or Path(text).is_file():
        name, path = "", text
    file = Path(path)
    if not file.is_file():
        raise InputError(f"--compare {text!r}: no such file. Give a tokenizer.json, or NAME=tokenizer.json.")
    return name or (file.resolve().parent.name if file.stem == "tokenizer" else file.stem), file


def compare_other_tokenizer(
    shard_set: ShardSet, places: dict[str, list[Place]], *, name: str, file: Path
) -> dict[str, Any]:
    """Encode the documents at `places` with another tokenizer. EOS is not counted.

    Returns:
        `name`, `sha256` and `vocab_size` of the other tokenizer; and in `sources`, of each source, `bytes` of text,
        `tokens` by our tokenizer and `other_tokens`; bytes per token of `ours` and of the `other`; `more_tokens`, how
        many more tokens ours uses, as a fraction.

    Raises:
        InputError: not a file of the `tokenizers` library.
        OSError: a file cannot be read.
    """
    import tokenizers

    data = file.read_bytes()
    try:
        other = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # a bare Exception is what tokenizers raises
        raise InputError(f"{file}: not a tokenizer.json ({error}). Give a file that `tokenizers` wrote.") from error
    other.encode_special_tokens = True  # text that spells a special token is text
    other.no_truncation()
    other.no_padding()
    ratios: dict[str, dict[str, float]] = {}
    for source, own in places.items():
        texts: list[str] = []
        tokens = size = 0
        for place in own:
            # Without EOS, which no other tokenizer has at this place.
            ids = shard_set.shard(place.shard).read(place.start, place.start + min(place.tokens - 1, COMPARED_TOKENS))
            text = shard_set.vocabulary.decode_document(ids)
            tokens, size = tokens + len(ids), size + len(text)
            texts.append(text.decode("utf-8", "replace"))
        encoded = other.encode_batch_fast(texts, add_special_tokens=False)
        if tokens:
            others = sum(len(encoding.ids) for encoding in encoded)
            ratios[source] = {
                "bytes": size,
                "tokens": tokens,
                "other_tokens": others,
                "ours": size / tokens,
                "other": size / max(1, others),
                "more_tokens": tokens / max(1, others) - 1,
            }
    sha256 = hashlib.sha256(data).hexdigest()
    return {"name": name, "sha256": sha256, "vocab_size": other.get_vocab_size(), "sources": ratios}
