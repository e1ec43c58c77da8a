"""Conversations in a set: the form of their text, how they are written as tokens, and which tokens are targets.

The mask of a loss is a function of the ids; nothing is stored. It holds because the content of a message never has a
special id: what a message says is text, and what a special token says is the format. shards/FORMAT.md states both.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shards.format.arrays import Bools, Int64s, Tokens, UInt8s
from shards.format.manifest import ChatEntry, Manifest, Role
from shards.format.vocabulary import Vocabulary

ROLE_MARKS: dict[Role, str] = {"system": "\ufdd0", "user": "\ufdd1", "assistant": "\ufdd2"}
"""What stands before the content of a message in the text of a conversation, three bytes of UTF-8. They are no
characters: Unicode keeps these code points for programs."""
ROLES: tuple[Role, ...] = tuple(ROLE_MARKS)
TRAINED_ROLE: Role = "assistant"

NO_TARGET = -100
"""The label of what is no target: what `cross_entropy` of PyTorch ignores."""

MARK_BYTES = 3
_MARKS = [mark.encode() for mark in ROLE_MARKS.values()]

Message = tuple[Role, str]
Encode = Callable[[str], list[int]]
"""Returns the ids of a text in which no special token is matched."""


def find_chat_faults(chat: ChatEntry, special: Mapping[str, int], vocab_size: int) -> Iterator[str]:
    """Yield what is wrong with a format of conversations for a vocabulary with some special tokens."""
    for place, text in (*chat.before.items(), ("after", chat.after)):
        if not (place == "after" and not text) and not text.startswith(tuple(special)):
            yield f"chat: {place} is {text!r:.200}; expected a special token at its beginning"
    if chat.opening[0] not in special.values() or max(chat.opening) >= vocab_size:
        yield f"chat.opening is {chat.opening[:8]}; expected ids of which the first is special"


def find_targets(manifest: Manifest, tokens: Tokens, bounds: Int64s) -> Bools:
    """Return which tokens of a set are targets: those whose prediction counts in a loss.

    Args:
        manifest: the set's.
        tokens: documents, or parts of some, one after the other, `(tokens,)`.
        bounds: where each begins, and where the last one ends, int64 `(documents + 1,)`.

    Returns:
        bool `(tokens,)`.
    """
    if manifest.chat is None:
        return np.ones(len(tokens), np.bool_)
    return mark_targets(tokens, bounds, manifest.tokenizer.special_tokens.values(), manifest.chat.opening)


def mark_targets(tokens: Tokens, bounds: Int64s, special_ids: Collection[int], opening: Sequence[int]) -> Bools:
    """Return which tokens are targets, from the ids alone; arguments and result as for `find_targets`.

    A token is a target if it follows the assistant's opening, up to and including the next special token. In a document
    without that opening every token is a target.
    """
    openings = find_openings(tokens, opening)
    if not len(openings):
        return np.ones(len(tokens), np.bool_)
    # In a document with an opening nothing counts but what follows each opening.
    answers = np.zeros(len(bounds) - 1, np.bool_)
    answers[np.searchsorted(bounds, openings, "right") - 1] = True
    targets = ~np.repeat(answers, np.diff(bounds))
    special = np.zeros(1 + max(*special_ids, int(tokens.max())), np.bool_)
    special[list(special_ids)] = True
    marks = np.flatnonzero(special[tokens])
    begins = openings + len(opening)
    ends = np.append(marks, len(tokens) - 1)[np.searchsorted(marks, begins)]
    changes = np.zeros(len(tokens) + 1, np.int64)
    changes[begins] += 1
    changes[ends + 1] -= 1
    return targets | (np.cumsum(changes)[:-1] > 0)


def find_openings(tokens: Tokens, opening: Sequence[int]) -> Int64s:
    """Return where the ids of the assistant's opening begin among tokens, int64 `(openings,)`."""
    found = np.flatnonzero(tokens == opening[0])
    for offset, token in enumerate(opening[1:], 1):
        found = found[found + offset < len(tokens)]
        found = found[tokens[found + offset] == token]
    return found


def locate_messages(chat: ChatEntry, vocabulary: Vocabulary, tokens: Tokens) -> Iterator[tuple[Role, int, int, int]]:
    """Yield the messages among tokens: role, first token, the content's first token, one past its last.

    A token that begins before the content, and ends in it, is not taken for one of the content.
    """
    places = [*np.flatnonzero(np.isin(tokens, [*vocabulary.special.values()])).tolist(), len(tokens)]
    texts: list[tuple[Role, bytes]] = [(role, text.encode()) for role, text in chat.before.items()]
    for number, place in enumerate(places[:-1], 1):
        said = vocabulary.decode(tokens[place : place + max(len(text) for _, text in texts)])
        for role, text in texts:
            if said.startswith(text):
                first, left = place, len(text)
                while left > 0:
                    left -= len(vocabulary.entries[int(tokens[first])])
                    first += 1
                yield role, place, first, places[bisect_left(places, first, number)]


@dataclass(frozen=True)
class ChatIds:
    """How a message is written as ids: those before its content, the content with a text before it, those after it.

    Attributes:
        heads: the ids before the content, by role.
        leads: the text that is encoded together with the content, by role; none for the assistant, whose opening is
            encoded alone, as it is when a model is asked.
        tail: the ids after the content.
    """

    heads: dict[Role, list[int]]
    leads: dict[Role, str]
    tail: list[int]

    @property
    def opening(self) -> list[int]:
        """The ids that open an answer."""
        return self.heads[TRAINED_ROLE]

    def encode(self, messages: Iterable[Message], encode: Encode) -> list[int]:
        """Return the ids of messages, without BOS and EOS."""
        ids: list[int] = []
        for role, content in messages:
            ids += [*self.heads[role], *encode(self.leads[role] + content), *self.tail]
        return ids


def make_chat_ids(before: Mapping[Role, str], after: str, special: Mapping[str, int], encode: Encode) -> ChatIds:
    """Return how a table of a format writes messages.

    Args:
        before: what stands before the content, by role; each begins with a special token.
        after: what stands after it: nothing, or a text that begins with one.
        special: the special tokens, text to id.
        encode: of the set's tokenizer.
    """
    heads: dict[Role, list[int]] = {}
    leads: dict[Role, str] = {}
    for role, text in before.items():
        parts = split_special(text, special)
        has_lead = role != TRAINED_ROLE and parts and parts[-1] not in special
        leads[role] = parts.pop() if has_lead else ""
        heads[role] = _encode_parts(parts, special, encode)
    return ChatIds(heads, leads, _encode_parts(split_special(after, special), special, encode))


def _encode_parts(parts: Iterable[str], special: Mapping[str, int], encode: Encode) -> list[int]:
    return [token for part in parts for token in ([special[part]] if part in special else encode(part))]


def split_special(text: str, special: Iterable[str]) -> list[str]:
    """Return a text of a chat's table in parts: special tokens, of two at one place the longer, and what is between."""
    known = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
    return [part for part in re.split(f"({known})", text) if part]


def find_marks(text: UInt8s) -> tuple[Int64s, Int64s]:
    """Return where the marks of messages are in UTF-8, and the role of each as its place in `ROLES`, `(messages,)`."""
    # No other character begins with these two bytes and has such a third one.
    places = np.flatnonzero(text[: 1 - MARK_BYTES] == _MARKS[0][0])
    places = places[text[places + 1] == _MARKS[0][1]]
    roles = text[places + 2].astype(np.int64) - _MARKS[0][2]
    own = (roles >= 0) & (roles < len(_MARKS))
    return places[own], roles[own]


def parse_conversation(text: str) -> list[Message]:
    """Return the messages of a conversation's text."""
    roles: dict[str, Role] = {mark: role for role, mark in ROLE_MARKS.items()}
    parts = re.split(f"([{''.join(roles)}])", text)[1:]
    return [(roles[mark], content) for mark, content in zip(parts[::2], parts[1::2], strict=True)]
