"""Check the ids of a shard's documents against the format of conversations, and count their targets.

A conversation is, by its special ids alone: BOS if the set has one, then for each message those before and after its
content, then EOS. It begins with one of them and has an answer. A document of text has none but BOS and EOS. So no
content holds a special id, which is what the mask of the loss relies on.
"""

import re
from dataclasses import dataclass

import numpy as np

from shards.errors import ProblemKind
from shards.format.arrays import Bools, Int64s, Tokens, find_bounds
from shards.format.chat import ROLE_MARKS, find_openings, find_targets, split_special
from shards.format.manifest import ChatEntry, Manifest


@dataclass
class Fault:
    """Faults of one kind in one shard: their number, and the first one."""

    kind: ProblemKind
    count: int = 0
    first: str = ""

    def add(self, count: int, first: str) -> None:
        """Add faults, and what the first of them is."""
        self.count += count
        self.first = self.first or first


class ConversationChecker:
    """Checks the documents of one shard, whose tokens come in any number of parts.

    Memory: the tokens of a part and of one document.

    Attributes:
        fault: of how many documents, and what the first one is.
        targets: the targets of each source of conversations, int64 `(sources,)`.
    """

    def __init__(self, manifest: Manifest, chat: ChatEntry, ends: Int64s, sources: Int64s):
        """Set what is expected.

        Args:
            manifest: the set's.
            chat: its format.
            ends: the last token of each document, `(documents,)`.
            sources: the place of each document's source in `manifest.conversations`, -1 for text, `(documents,)`.
        """
        self.fault = Fault("conversation")
        self.targets = np.zeros(len(manifest.conversations), np.int64)
        self._manifest, self._chat = manifest, chat
        self._ends, self._sources = ends, sources
        self._pending: list[Tokens] = []
        self._start = self._done = 0
        tokenizer = manifest.tokenizer
        self._special = np.zeros(manifest.vocab_size, np.bool_)
        self._special[list(tokenizer.special_tokens.values())] = True
        self._bounds = 1 if tokenizer.bos_id is None else 2
        # A pattern over special ids, each as a character.
        special = tokenizer.special_tokens
        self._letters = {token: chr(0x4E00 + number) for number, token in enumerate(special.values())}

        def spell(text: str) -> str:
            return "".join(self._letters[special[part]] for part in split_special(text, special) if part in special)

        roles = "|".join(dict.fromkeys(spell(chat.before[role]) for role in ROLE_MARKS))
        begin = "" if tokenizer.bos_id is None else self._letters.get(tokenizer.bos_id, "")
        end = self._letters.get(tokenizer.eos_id, "")
        self._pattern = re.compile(f"{begin}(?:(?:{roles}){spell(chat.after)})+{end}")

    def add(self, tokens: Tokens) -> None:
        """Check the documents that end in the next part of a shard."""
        self._pending.append(tokens)
        held = sum(map(len, self._pending))
        last = int(np.searchsorted(self._ends, self._start + held))
        if last == self._done:
            return
        ids = np.concatenate(self._pending)
        bounds = np.append(self._start, self._ends[self._done : last] + 1) - self._start
        self._check(ids[: bounds[-1]], bounds, self._sources[self._done : last])
        self._pending, self._start, self._done = [ids[bounds[-1] :]], self._start + int(bounds[-1]), last

    def _check(self, ids: Tokens, bounds: Int64s, sources: Int64s) -> None:
        special = self._special[ids]
        edges = find_bounds(special)[bounds]
        # Text has no special ids inside; a conversation begins with one and has an answer.
        wrong: Bools = (sources < 0) & (np.diff(edges) != self._bounds)
        answers = np.bincount(np.searchsorted(bounds, find_openings(ids, self._chat.opening), "right") - 1)
        no_answer = np.pad(answers, (0, len(sources) - len(answers)))[: len(sources)] == 0
        begins = np.minimum(bounds[:-1] + self._bounds - 1, len(ids) - 1)
        wrong |= (sources >= 0) & (no_answer | ~special[begins])
        marks: list[int] = ids[special].tolist()
        spelt = "".join([self._letters[token] for token in marks])
        for number in np.flatnonzero(sources >= 0).tolist():
            if not self._pattern.fullmatch(spelt, edges[number], edges[number + 1]):
                wrong[number] = True
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            kind = "conversation" if sources[at] >= 0 else "document of text"
            found = marks[edges[at] : edges[at + 1]]
            self.fault.add(
                int(wrong.sum()),
                f"document {self._done + at} is a {kind} with the special ids {found[:12]}{'...' * (len(found) > 12)}; "
                f"expected {'those of the format, an answer, and EOS' if sources[at] >= 0 else 'none before EOS'}",
            )
        counted = np.add.reduceat(find_targets(self._manifest, ids, bounds), bounds[:-1], dtype=np.int64)
        own = sources >= 0
        self.targets += np.bincount(sources[own], counted[own], len(self.targets)).astype(np.int64)
