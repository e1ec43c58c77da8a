"""The tokenizer of a set with conversations: its special tokens, and whether its ids suit the format's table."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.recipe.chat import ROLES, ChatRecipe
from shards.errors import InputError
from shards.format.chat import TRAINED_ROLE, ChatIds, make_chat_ids
from shards.format.tokenizer_json import (
    Part,
    find_entries,
    find_special,
    find_spelling,
    list_parts,
    make_plain,
    run_tokenizers,
    without_prefix,
)

_BEGINNINGS = ("a", "1", "(", "\u4e2d")
"""Of answers: a letter, a digit, a symbol, a letter of a script without spaces."""
EXACT = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
"""How a special token of a table matches in text: as it is written."""


def add_chat_tokens(tokenizer: Part, tokens: Sequence[str]) -> Part:
    """Return a parsed tokenizer.json with a table's special tokens: those that it lacks have the next ids."""
    added: list[Part] = list(tokenizer.get("added_tokens") or [])
    have = {token["content"] for token in added if token.get("special")}
    following = 1 + max([*find_entries(tokenizer).values(), *(token["id"] for token in added)])
    added = [token | EXACT if token["content"] in tokens else token for token in added]
    for number, text in enumerate(token for token in tokens if token not in have):
        added.append({"id": following + number, "content": text, "special": True, **EXACT})
    return tokenizer | {"added_tokens": added}


def find_chat_faults(tokenizer: Part, chat: ChatRecipe, eos_token: str) -> Iterator[str]:
    """Yield the faults of a parsed tokenizer.json for which conversations cannot be written with it."""
    before, after = chat.table
    entries = find_entries(tokenizer)
    if eos_token in "".join([*before.values(), after]):
        yield (
            f"chat: {eos_token!r} ends documents and also stands in the format's table, so a model could not tell the "
            "end of a turn from the end of a conversation. Choose another `tokenizer.eos_token`."
        )
    for token in chat.name_tokens():
        if token in entries and entries[token] != find_special(tokenizer).get(token):
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
        InputError: a text of the table does not begin with a special token where it must, the openings of two roles
            begin with the same ids, or the assistant's opening has other ids before some answers.
    """
    from tokenizers import Tokenizer

    loaded: Any = Tokenizer.from_str(json.dumps(make_plain(without_prefix(tokenizer))))

    def encode(text: str) -> list[int]:
        return run_tokenizers(tokenizer, "", loaded.encode, text, add_special_tokens=False).ids

    (before, after), special = chat.table, find_special(tokenizer)
    ids = make_chat_ids(before, after, special, encode)
    # The assistant's opening is encoded alone, since a model is asked with it; elsewhere it must have the same ids.
    opening = before[TRAINED_ROLE]
    lead = make_chat_ids({"user": opening}, "", special, encode).leads["user"]
    for answer in _BEGINNINGS if lead else ():
        alone, joined = encode(lead), encode(lead + answer)
        if joined[: len(alone)] != alone:
            raise InputError(
                f"chat.before.{TRAINED_ROLE}: {opening!r} has the ids {ids.opening} alone, and others before "
                f"{answer!r}: its end joins the answer. End it with one line end or a special token, or use another "
                "pre-tokenizer."
            )
    for role in ROLES:
        whole = [*ids.heads[role], *encode(ids.leads[role])]
        if role != TRAINED_ROLE and whole[: len(ids.opening)] == ids.opening:
            raise InputError(
                f"chat.before: {role}'s {before[role]!r} begins with the ids of {TRAINED_ROLE}'s {opening!r}. Give "
                "them other texts."
            )
    return ids
