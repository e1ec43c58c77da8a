"""Read a `tokenizer.json`, and find everything that prevents its use before the work begins.

What is kept of text differs between kinds (`Keeps` of `shards.format.tokenizer_json`); what is refused here would lose
text without anybody seeing it, or has no fixed bytes for its ids.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pipeline.recipe.chat import ChatRecipe
from pipeline.recipe.schema import BOS_TEXTS
from pipeline.sources.formats.detect import STAND_INS, look_up
from pipeline.tokenizer.chat_tokens import add_chat_tokens, find_chat_faults, find_chat_ids
from shards.errors import InputError, plural, unread
from shards.format.chat import ChatIds
from shards.format.tokenizer_json import (
    Part,
    Spelling,
    byte_characters,
    describe_error,
    find_entries,
    find_special,
    find_spelling,
    find_twins,
    is_byte_level,
    list_added,
    list_parts,
    make_set_tokenizer,
)
from shards.format.vocabulary import MAX_TOKENIZER_BYTES, MAX_VOCAB_SIZE
from shards.stores.files import read_file


class TokenizerError(InputError):
    """A tokenizer that cannot be trained or used."""


_NO_SPACES = (
    "its entries do not record the white space between them, so text would be lost. Use a BPE or Unigram, or train one."
)
_KINDS = {
    "a SentencePiece model": rb"\n(?s:.){0,250}<unk>",
    "a tiktoken file": rb"[A-Za-z0-9+/]+=* \d+\r?\n",
    "a merges.txt: merges without entries": rb"(#version.*\n)?(\S+ \S+\n){2,}\s*\Z",
}
"""How other files of tokenizers begin."""


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """A `tokenizer.json`, and the values that the build needs from it."""

    path: str
    file_sha256: str
    """Of the file at `path`."""
    text: str = field(repr=False)
    """The `tokenizer.json` of the set: the file, or the file without what would give other ids than training."""
    sha256: str
    """Of `text`."""
    vocab_size: int
    eos_id: int
    special_tokens: dict[str, int]
    task: str | None = None
    """The address of the folder of the task that trained it; None if the recipe names the file."""
    bos_id: int | None = None
    """The id that begins each document; None if none does."""
    chat: ChatIds | None = None
    """How conversations are written; None if the recipe has no `[chat]`."""
    added: tuple[str, ...] = ()
    """Special tokens of `[chat]` that the file does not have."""
    ignored: tuple[str, ...] = ()
    """Requests of the file that training ignores, and the set's own file does not have."""


def read_encoder_file(
    path: Path | str,
    *,
    eos_token: str,
    bos: bool | str = False,
    content: bytes | None = None,
    task: str | None = None,
    chat: ChatRecipe | None = None,
) -> TokenizerInfo:
    """Read a `tokenizer.json`, and check it as far as possible without loading the encoder.

    Args:
        path: the file.
        eos_token: the special token that ends documents.
        bos: the special token that begins documents; True for the file's own, False for none.
        content: the file's bytes, if they have been read and checked; None to read the file.
        task: the address of the folder of the task that trained it.
        chat: the format of conversations, whose special tokens it gets; None for none.

    Raises:
        TokenizerError: it cannot be read, is of a kind that cannot be used, or lacks the EOS or BOS token.
    """
    try:
        content = read_file(Path(path), MAX_TOKENIZER_BYTES) if content is None else content
    except OSError as error:
        raise TokenizerError(f"{path}: {unread(error, 'Use another file, or train one.')}") from error
    # Whatever is missing or of another type than in a tokenizer.json raises one of these errors.
    try:
        read: Part = json.loads(content)
        data = read if chat is None else add_chat_tokens(read, chat.name_tokens())
        special = find_special(data)
        bos_token = _find_bos(data) if bos is True else bos or None
        faults = list(_find_faults(data))
        if chat is not None and not faults:
            faults = list(find_chat_faults(data, chat, [token for token in (eos_token, bos_token) if token]))
        if task is None and not faults:
            faults = list(_find_wrong_ids(data))
        ignored = tuple(_describe_ignored(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found = _describe_kind(Path(path), content) or (
            f"not a tokenizer.json with a vocabulary: {describe_error(error)}. Use another file, or train one."
        )
        raise TokenizerError(f"{path}: {found}") from error
    # The tokens that end and begin documents must be special: text never yields them.
    if eos_token not in special:
        faults.append(f"no special token {eos_token!r} to end documents; there are {sorted(special)}.")
    if bos and bos_token not in special:
        found = "which special token begins documents is not clear" if bos is True else f"no special token {bos!r}"
        faults.append(f"tokenizer.bos: {found}; there are {sorted(special)}. Give one of them as `bos`.")
    elif bos_token == eos_token:
        faults.append(f"tokenizer.bos: {bos_token!r} ends documents already. Give another one, or leave `bos` out.")
    if faults:
        raise TokenizerError("\n".join(f"{path}: {fault}" for fault in faults))
    own = make_set_tokenizer(data, bos_token)
    text = (
        content.decode()
        if own == read and content[:1] == b"{"
        else json.dumps(own, indent=2, ensure_ascii=False) + "\n"
    )
    special = find_special(own)
    try:
        chat_ids = None if chat is None else find_chat_ids(own, chat)
    except InputError as error:
        raise TokenizerError(f"{path}: {error}") from error
    return TokenizerInfo(
        path=str(path),
        file_sha256=hashlib.sha256(content).hexdigest(),
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        vocab_size=1 + max([*find_entries(own).values(), *special.values()]),
        eos_id=special[eos_token],
        special_tokens=special,
        task=task,
        bos_id=None if bos_token is None else special[bos_token],
        chat=chat_ids,
        added=tuple(token for token in find_special(data) if token not in find_special(read)),
        ignored=ignored,
    )


def _find_faults(data: Part) -> Iterator[str]:
    """Yield the faults of a given tokenizer, a parsed `tokenizer.json`: one line each, with its remedy."""
    model: Part = data["model"]
    kind = model.get("type", "BPE")
    if kind not in ("BPE", "Unigram"):
        yield f"has the model {kind!r}: {_NO_SPACES}"
        return
    spelling, entries = find_spelling(data), find_entries(data)
    parts = list(list_parts(data.get("pre_tokenizer"), "pretokenizers"))
    if not spelling.space and not is_byte_level(data):
        yield (
            f"expected a byte-level or SentencePiece-style tokenizer, got model {kind!r} with the pre-tokenizers "
            f"{[part.get('type') for part in parts]}. Use another file, or train one."
        )
        return
    # What text could not be spelled with, and what would change what it is spelled with.
    yield from _find_missing(data, entries, spelling)
    if twins := find_twins(entries):
        yield f"{twins}: text with one would come back as the other. Give each an id of its own."
    if max(entries.values()) >= MAX_VOCAB_SIZE:
        yield f"has ids of {MAX_VOCAB_SIZE} and above. Number its entries from 0."
    changing = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    for key in changing if spelling.space else (*changing, "byte_fallback"):
        if model.get(key):
            yield f"model.{key} is {model[key]!r}, which changes what text becomes. Set it to null in the file."
    # A special token that text can yield would end a document in its middle.
    if kind == "BPE":
        ordinary = _ordinary_ids(model, spelling)
        for token, token_id in find_special(data).items():
            if token_id in ordinary:
                found = f"special token {token!r} has the id of an ordinary word"
                yield f"{found}: text yields it. Give it an id of its own."
    if not spelling.space:
        if any(part.get("add_prefix_space") for part in parts):
            yield (
                "its pre-tokenizer adds a space before each document, which then would not decode back. "
                'Set "add_prefix_space" to false in the file.'
            )
        if len(parts) == 1 and parts[0].get("use_regex") is False:
            yield "its pre-tokenizer does not split text into words. Use a gpt2, llama3, qwen2 or o200k pre-tokenizer."


def _find_bos(data: Part) -> str | None:
    """Return the special token with which a given tokenizer begins documents, by its file or name; None if unclear."""
    special = find_special(data)
    added = _list_begun(data)
    if added and added[0] in special:
        return added[0]
    known = [text for text in BOS_TEXTS if text in special]
    return known[0] if len(known) == 1 else None


def _list_begun(data: Part) -> list[str]:
    """Return the tokens that a given tokenizer's post-processor puts before a document."""
    added: list[str] = []
    for part in list_parts(data.get("post_processor"), "processors"):
        if part.get("type") == "TemplateProcessing":
            single: list[Part] = part.get("single") or []
            for piece in single:
                if "Sequence" in piece:
                    break
                added.append(piece["SpecialToken"]["id"])
        elif part.get("type") in ("BertProcessing", "RobertaProcessing"):
            added.append(part["cls"][0])
    return added


def _find_wrong_ids(data: Part) -> Iterator[str]:
    """Yield a fault if added tokens have other ids in a given tokenizer's file than `tokenizers` gives them.

    Raises:
        ValueError: `tokenizers` cannot read it.
    """
    added, entries = list_added(data), find_entries(data)
    if all(entries.get(token["content"]) == token["id"] for token in added):
        return  # an entry of the model keeps its id, so that nothing has to be loaded: 0.06 s
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # tokenizers raises a bare Exception
        raise ValueError(f"`tokenizers` cannot read it: {error}") from error
    wrong: list[str] = []
    for token in added:
        found = tokenizer.token_to_id(token["content"])
        if found != token["id"]:
            wrong.append(f"{token['content']!r} ({token['id']}, and {found})")
    if wrong:
        yield (
            f"{plural(len(wrong), 'added token')} with other ids in the file than `tokenizers` gives: "
            f"{', '.join(wrong[:5])}. A model that is exported would read other tokens than it was trained on. "
            "`tokenizers` numbers added tokens that are no entries of the model in the order of the file, from the "
            "number of entries on: number them so, with an added token for each id that is left out."
        )


def _describe_kind(path: Path, content: bytes) -> str:
    """Return what a file given as tokenizer is if it is none, and how to make one of it; empty if that is not known."""
    if what := look_up(content, STAND_INS):
        return f"holds {what}."
    if not content.strip():
        return "is empty. Restore it, or train one."
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        values = cast("Part", data)
        kind = "a tokenizer_config.json" if "tokenizer_class" in values else ""
        if values and all(type(value) is int for value in values.values()):
            kind = "a vocab.json: entries without merges"
    else:
        kind = next((name for name, pattern in _KINDS.items() if re.match(pattern, content + b"\n")), "")
        if {b"[UNK]", b"[CLS]"} & set(content.splitlines()):
            return f"a WordPiece's vocab.txt, not a tokenizer.json: {_NO_SPACES} {explain_making(path.parent)}"
    return kind and f"{kind}, not a tokenizer.json. {explain_making(path.parent)}"


def explain_making(folder: Path) -> str:
    """Return how to make a `tokenizer.json` if what is given is a folder with the files of a published tokenizer."""
    return (
        "transformers makes one of the folder of a published tokenizer:\n"
        "    from transformers import AutoTokenizer\n"
        f'    AutoTokenizer.from_pretrained("{folder}").backend_tokenizer.save("tokenizer.json")'
    )


def _describe_ignored(data: Part) -> list[str]:
    """Return what a given tokenizer's file asks for that a set does not do: one phrase each."""
    ignored = [f"{key} (no document is cut or padded)" for key in ("truncation", "padding") if data.get(key)]
    if added := _list_begun(data):
        ignored.append(f"a post-processor that begins documents with {', '.join(added)} (tokenizer.bos decides)")
    others: list[str] = [token["content"] for token in list_added(data) if not token.get("special")]
    if others:
        ignored.append(f"{plural(len(others), 'added token')} not marked as special, such as {json.dumps(others[0])}")
    return ignored


def _find_missing(data: Part, entries: dict[str, int], spelling: Spelling) -> Iterator[str]:
    """Yield a given tokenizer's missing entries without which text would be lost, and entries without bytes."""
    # A byte-level tokenizer needs all bytes, and nothing else; others an entry for what they do not know.
    if not spelling.space:
        own = entries.keys() - {token["content"] for token in list_added(data)}
        if foreign := set[str]().union(*own) - set(byte_characters()):
            text, character = min((text, character) for text in own for character in foreign & set(text))
            found = f"entry {text!r} holds {character!r}, which is not in the byte-level alphabet"
            yield f"{found}: it has no bytes. Use another file, or train one."
        missing = [byte for byte, character in enumerate(byte_characters()) if character not in entries]
        if missing:
            yield (
                f"has no entry for {len(missing)} of the 256 bytes, {missing[0]:#04x} first; text with them would be "
                "lost. Use another file, or train one."
            )
        return
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in entries]
    if spelling.unknown is None and (missing or not spelling.byte_fallback):
        has = "byte_fallback without all 256 bytes" if spelling.byte_fallback else "no byte_fallback"
        yield f"has {has} and no unknown token; characters that it does not know would be lost. Use another file."


def _ordinary_ids(model: Part, spelling: Spelling) -> set[int | None]:
    """Return the ids that text can yield in a given BPE: of bytes, of single characters and of merges; None if any has
    none."""
    merges: list[str | list[str]] = model.get("merges") or []
    joined = ["".join(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in merges]
    single = byte_characters()
    if spelling.space:
        single = (*(text for text in model["vocab"] if len(text) == 1), *(f"<0x{byte:02X}>" for byte in range(256)))
    return {*map(model["vocab"].get, (*single, *joined))}
