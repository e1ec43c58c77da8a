"""The proof of an exported `tokenizer.json`: loaded by other libraries, it gives text the ids of training.

The ids of training are those of `make_plain`. Compared are probes, which are texts that tokenizers are known to treat
differently, and documents of the set. If its tokenizer keeps every byte, their text must become the set's own tokens.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from shards.errors import InputError, remedy_of
from shards.format.arrays import Tokens
from shards.format.chat import find_openings
from shards.format.document_table import iter_blocks
from shards.format.reader import ShardSet
from shards.format.tokenizer_json import find_special, make_plain, run_tokenizers
from shards.terminal.display import find_difference

Encode = Callable[[str], list[int]]
DOCUMENTS = 300
"""So many documents are compared, from the first shards of a set."""
_MOST_TOKENS = 1 << 16
"""Longer documents are left out."""
PROBES = (
    "",
    " ",
    "  ",
    " a",
    "a ",
    " a  b   c    d",
    "\t\ta\t",
    "\n\n  b\r\n c\r",
    "    def f(x):\n        return x\n",
    "it's 12345 DON'T \u2019s 3.14e-10 v1.2.3",
    "HTTPServer camelCase snake_case",
    "naïve café e\u0301 \u212b \ufb01",
    "中文 日本語 ไทย ខ្មែរ हिन्दी العربية עברית",
    "👩\u200d👩\u200d👧 🙂🏽 🇩🇪",
    "\x00\x01\x7f\ufeff\u00a0\u3000\u200b\u2028\ufffd",
    "\u2581a \u2581\u2581b",
    "<0x0A><0xFF>",
    "\uff21\uff22 ẛ\u0323 İı ß ﬀ",
    "\u088f \U00010940 \U000323b0 \U0001f642",
    "[CLS] [SEP] <s></s> <unk> <pad> <|endoftext|><|im_start|>user",
    "a" * 300,
    " " * 300,
    "#" * 80 + "\n" * 40,
)


def prove_tokenizer(
    file: Path, *, bos_id: int | None, shard_set: ShardSet | None, others: Mapping[str, Encode] | None = None
) -> dict[str, Any]:
    """Compare the ids of a set's `tokenizer.json` with those of training.

    Args:
        file: the file, as it is exported.
        bos_id: the id that begins each document of the set; None if none does.
        shard_set: whose documents are compared; None for none.
        others: what encodes a text by other libraries than `tokenizers`, by the name of the library.

    Returns:
        The receipt: how many probes and documents were compared, by which versions of which libraries.

    Raises:
        InputError: a text becomes other ids or none, or `tokenizers` cannot read the file.
        ShardSetError: a file of the set is not what the manifest says.
    """
    from tokenizers import Tokenizer

    parsed: dict[str, Any] = json.loads(file.read_bytes())
    if "model" not in parsed:  # of a set of bare ids, which no text becomes
        return {"probes": 0, "documents": 0}
    try:
        plain = Tokenizer.from_str(json.dumps(make_plain(parsed)))
        loaded = Tokenizer.from_file(str(file))  # as its user calls it
    except Exception as error:  # tokenizers raises a bare Exception
        raise InputError(
            f"{file}: tokenizers cannot read it: {error}{remedy_of(error) or '. Restore the file.'}"
        ) from error
    where = f"{file.name}: "
    begin = [] if bos_id is None else [bos_id]

    def expected(text: str) -> list[int]:
        return [*begin, *run_tokenizers(parsed, where, plain.encode, text, add_special_tokens=False).ids]

    loaded.encode_special_tokens = True
    encoders: dict[str, Encode] = {"tokenizers": lambda text: loaded.encode(text).ids, **(others or {})}
    marks = [f"a{text}b {text}" for text in find_special(parsed)]
    texts = [(text, expected(text)) for text in (*PROBES, *marks)]
    probes = len(texts)
    if shard_set is not None:
        for text, ids in islice(iter_documents(shard_set), DOCUMENTS):
            texts.append((text, ids if shard_set.vocabulary.keeps == "bytes" else expected(text)))
    for text, ids in texts:
        for library, encode in encoders.items():
            if (found := run_tokenizers(parsed, where, encode, text)) != ids:
                same = find_difference(found, ids)
                raise InputError(
                    f"{file.name}: {library} gives other ids than training to {text[:120]!r}: from id {same} on "
                    f"{found[same : same + 8]}, expected {ids[same : same + 8]}. Nothing was exported. Use another "
                    f"version of {library}; if that does not help, report it with the tokenizer."
                )
    return {"probes": probes, "documents": len(texts) - probes} | {name: version(name) for name in encoders}


def iter_documents(shard_set: ShardSet) -> Iterator[tuple[str, list[int]]]:
    """Yield what the tokenizer's proof compares: the text of each document and its tokens, without EOS."""
    chat = shard_set.manifest.chat
    for ids in iter_document_tokens(shard_set):
        # A conversation is proved with its template.
        if len(ids) <= _MOST_TOKENS and not (chat and len(find_openings(ids, chat.opening))):
            yield shard_set.vocabulary.decode_document(ids[:-1]).decode(errors="replace"), ids[:-1].tolist()


def iter_document_tokens(shard_set: ShardSet) -> Iterator[Tokens]:
    """Yield what proofs are made of: the tokens of each document of a set, EOS included."""
    for number in range(len(shard_set.shards)):
        for block in iter_blocks(shard_set, number):
            for start, end in zip(block.starts.tolist(), block.ends.tolist(), strict=True):
                yield block.tokens[start:end]
