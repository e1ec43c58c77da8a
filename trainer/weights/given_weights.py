"""`train --weights`: a model that begins with the weights of another, on any set whose tokenizer begins with its own.

Entries are compared by id, in the form that a set's tokenizer has. Rows of embedding and output that nothing has
trained begin as the mean of those that something has: those of new tokens, of special tokens that no text of the
earlier training had, and of padding.
"""

# pyright: reportUnknownMemberType=false
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch

from shards import ShardSet
from shards.config import show_value
from shards.errors import InputError, plural
from shards.format.tokenizer_json import parse_tokenizer
from shards.format.vocabulary import read_vocabulary
from shards.stores.files import open_named
from shards.terminal.reporter import Note
from trainer.model.decoder import TABLES, LanguageModel
from trainer.model.generate import TrainedModel
from trainer.weights.trained_model import read_model

_CHOSEN_ANEW = {"vocab_size", "zero_init_residual"}
"""Keys of a model that the weights do not fix."""


@dataclass(frozen=True)
class GivenWeights:
    """The weights that a run begins with."""

    place: Path
    """The run or the folder, absolute."""
    trained: TrainedModel
    sha256: str
    """Of the files that have them, one after the other."""


def open_weights(place: Path, say: Note) -> GivenWeights:
    """Read the weights of a run, or of a folder of transformers, on the CPU.

    Raises:
        InputError: there are none, or they cannot be used.
    """
    trained = read_model(place, say)
    digest = hashlib.sha256()
    for path in trained.files:
        with open_named(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return GivenWeights(place.resolve(), trained, digest.hexdigest())


def find_untrained(shard_set: ShardSet, given: GivenWeights | None) -> frozenset[int]:
    """Return the ids of special tokens that neither a set nor the training before it has in a text."""
    manifest = shard_set.manifest
    special, chat = manifest.tokenizer.special_tokens, manifest.chat
    written = "".join([*chat.before.values(), chat.after]) if chat else ""
    unseen = {index for token, index in special.items() if token not in written} - {shard_set.eos_id, shard_set.bos_id}
    if given is not None:
        unseen -= {*range(parse_tokenizer(given.trained.tokenizer_json).size)} - given.trained.untrained
    return frozenset(unseen)


def begin_from(given: GivenWeights, model: LanguageModel, shard_set: ShardSet, say: Note) -> None:
    """Set a new model's weights to those of another; say which tokens are new.

    Args:
        given: the weights.
        model: on the CPU.
        shard_set: what it will be trained on.
        say: called with each line the user should know.

    Raises:
        InputError: the model, the set's tokenizer or its conversations are of another kind; with every reason.
    """
    earlier, place = given.trained, given.place
    entries = read_vocabulary(earlier.tokenizer_json).entries
    if problems := [*_find_faults(given, model, shard_set)]:
        raise InputError(problems)
    trained = torch.tensor([index for index, entry in enumerate(entries) if entry and index not in earlier.untrained])
    state = earlier.model.state_dict()
    for name, tensor in model.state_dict().items():
        if name in TABLES:
            tensor[:] = state[name][trained].mean(dim=0)
            tensor[trained] = state[name][trained]
        else:
            tensor.copy_(state[name])
    new = sorted({*range(len(entries), shard_set.vocab_size), *earlier.untrained})
    names = ", ".join(repr(shard_set.vocabulary.spell(index)) for index in new[:20])
    more = f" and {len(new) - 20:,} more" if len(new) > 20 else ""
    say(f"begins with the weights of {place}, step {earlier.step:,}")
    if new:
        say(f"the rows of {plural(len(new), 'token')} begin as the mean of the trained rows: {names}{more}")


def _find_faults(given: GivenWeights, model: LanguageModel, shard_set: ShardSet) -> Iterator[str]:
    """Yield why a model and its set cannot go on from given weights."""
    earlier, place, where = given.trained, given.place, shard_set.store
    for key, own in model.config.model_dump().items():
        theirs = getattr(earlier.model.config, key)
        rotary = key == "max_position_embeddings" and model.config.kind == "llama"
        if own != theirs and key not in _CHOSEN_ANEW and not rotary:
            yield (
                f"model.{key} = {show_value(own)}: the weights of {place} have {show_value(theirs)}. Take that value, "
                "or leave [model] out."
            )
    remedy = f"Build the set with [tokenizer] file = the tokenizer.json of {place}."
    found, known = shard_set.vocabulary, read_vocabulary(earlier.tokenizer_json)
    pairs = enumerate(zip_longest(found.entries[: len(known)], known.entries))
    if differing := [index for index, (own, other) in pairs if own != other]:
        index = differing[0]
        own = repr(found.spell(index)) if index < len(found) else "no such id"
        yield f"{where}: id {index} is {own}; in the tokenizer of {place} it is {known.spell(index)!r}. {remedy}"
    for part in ("normalizer", "pre_tokenizer"):
        own, theirs = (json.loads(text).get(part) for text in (shard_set.tokenizer_json, earlier.tokenizer_json))
        if own != theirs:
            yield f"{where}: its tokenizer has another {part} than that of {place}: text gets other ids. {remedy}"
    own, theirs = shard_set.manifest.chat, earlier.chat
    if own and theirs and (own.before, own.after) != (theirs.before, theirs.after):
        yield (
            f"{where}: its conversations are written as {own.before!s}, {own.after!r}; those of {place} as "
            f"{theirs.before!s}, {theirs.after!r}. Build the set with the same [chat] table."
        )
