"""The tokenizer of a set with conversations: its special tokens, and whether its ids suit the format's table."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from pipeline.recipe.chat import ChatRecipe
from shards.errors import InputError
from shards.format.chat import ROLES, TRAINED_ROLE, ChatIds, find_openings, make_chat_ids, split_special
from shards.format.tokenizer_json import (
    Part,
    find_entries,
    find_special,
    find_spelling,
    is_byte_level,
    list_added,
    list_parts,
    make_plain,
    run_tokenizers,
    without_prefix,
)

_BEGINNINGS = (*map(chr, range(0x21, 0x7F)), "\u00e9", "\u4e2d")
"""Of answers: each letter, digit and symbol of ASCII, and letters of other scripts."""
EXACT = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
"""How a special token of a table matches in text: as it is written."""


def add_chat_tokens(tokenizer: Part, tokens: Sequence[str]) -> Part:
    """Return a parsed tokenizer.json with a table's special tokens: those that it lacks have the next ids."""
    added, have = list_added(tokenizer), find_special(tokenizer)
    following = 1 + max([*find_entries(tokenizer).values(), *(token["id"] for token in added)])
    added = [token | EXACT if token["content"] in tokens else token for token in added]
    for number, text in enumerate(token for token in tokens if token not in have):
        added.append({"id": following + number, "content": text, "special": True, **EXACT})
    return tokenizer | {"added_tokens": added}


def write_chat_tokens(tokenizer_json: bytes, tokens: Sequence[str]) -> bytes:
    """Return a `tokenizer.json` with a table's special tokens."""
    return json.dumps(add_chat_tokens(json.loads(tokenizer_json), tokens)).encode() if tokens else tokenizer_json


def find_chat_faults(tokenizer: Part, chat: ChatRecipe, ends: Collection[str]) -> Iterator[str]:
    """Yield the faults of a parsed tokenizer.json for which conversations cannot be written with it.

    Args:
        tokenizer: the parsed file, with the table's tokens.
        chat: the format.
        ends: the special tokens that end and begin documents.
    """
    entries, special = find_entries(tokenizer), find_special(tokenizer)
    yield from chat.check_tokens(special, ends)
    for token in chat.name_tokens():
        if token in entries and entries[token] != special.get(token):
            yield f"chat: {token!r} is an ordinary entry of the vocabulary. Give the table another text."
    if find_spelling(make_plain(tokenizer)).unknown is not None:
        yield "chat: it has an unknown token, which text yields, and which is special. Use another file, or train one."
    pre_tokenizers = list_parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
    normalizers = list_parts(tokenizer.get("normalizer"), "normalizers")
    if any(
        part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") == "always" for part in pre_tokenizers
    ) or any(part.get("type") == "Prepend" for part in normalizers):
        yield (
            "chat: it puts a space before each text, also after special tokens, so ids depend on who splits a "
            "conversation. Use another file, or train one."
        )


def find_chat_ids(tokenizer: Part, chat: ChatRecipe) -> ChatIds:
    """Return how conversations are written with the ids of a parsed tokenizer.json that has the table's tokens.

    Raises:
        InputError: the assistant's opening has other ids before some answers, or its ids occur elsewhere in the table.
    """
    from tokenizers import Tokenizer

    loaded: Any = Tokenizer.from_str(json.dumps(make_plain(without_prefix(tokenizer))))

    def encode(text: str) -> list[int]:
        return run_tokenizers(tokenizer, "", loaded.encode, text, add_special_tokens=False).ids

    (before, after), special = chat.table, find_special(tokenizer)
    ids = make_chat_ids(before, after, special, encode)
    # The assistant's opening is encoded alone, since a model is asked with it; elsewhere it must have the same ids.
    opening = before[TRAINED_ROLE]
    lead = split_special(opening, special)[-1]
    for answer in () if lead in special else _BEGINNINGS:
        alone, joined = encode(lead), encode(lead + answer)
        # Where words are told apart, one must begin with the answer: longer answers join what shorter ones do not.
        words: Any = loaded.pre_tokenizer.pre_tokenize_str(lead + answer) if is_byte_level(tokenizer) else []
        begins = not words or len(lead) in [place[0] for _, place in words]
        if joined[: len(alone)] != alone or not begins:
            raise InputError(
                f"chat.before.{TRAINED_ROLE}: {opening!r} has the ids {ids.opening} alone, and may have others before "
                f"an answer such as {answer!r}: its end joins the answer. End it with one line end or a special token, "
                "or use another pre-tokenizer."
            )
    # Nothing else in a conversation may look like the opening: what is trained depends on it alone.
    for role in ROLES:
        around = np.array([*ids.tail, *ids.heads[role], *encode(ids.leads[role])])
        expected = [len(ids.tail)] if role == TRAINED_ROLE else []
        if find_openings(around, ids.opening).tolist() != expected:
            raise InputError(
                f"chat: the ids of {TRAINED_ROLE}'s {opening!r} also occur in {after + before[role]!r}, what stands "
                f"between a message and one of {role}. Give them other texts."
            )
    return ids
