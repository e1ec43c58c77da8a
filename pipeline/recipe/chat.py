"""The table `[chat]` of a data recipe: what stands around the content of a message.

A format is a table, not a program: a message is written from itself alone, so no later message changes an earlier one.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import permutations
from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.recipe.key_values import SomeTokens
from shards.config import Settings, table_of
from shards.format.chat import ROLES, TRAINED_ROLE
from shards.format.manifest import Role

MOST_CHARACTERS = 400
"""A longer text of a table is refused: every reader looks for it."""
_TOKEN = re.compile(r"<\|[^<>|\s]+\|>")
"""What a format's table names as a special token by its form alone; others are those that the tokenizer has."""

FORMATS: dict[str, tuple[dict[Role, str], str]] = {
    "chatml": ({role: f"<|im_start|>{role}\n" for role in ROLES}, "<|im_end|>\n"),
    "roles": ({role: f"<|{role}|>" for role in ROLES}, ""),
}
"""What stands before and after a message in known formats. ChatML is as OpenAI published it with its models of 2023;
`roles` has the special tokens of GPUburnout-1B, where the next message or EOS ends an answer."""


class ChatRecipe(Settings):
    """How conversations become tokens."""

    format: Literal["chatml", "roles"] | None = None
    """A known format: `chatml` (`<|im_start|>user`, a line end, the content, `<|im_end|>`, a line end), or `roles`
    (`<|user|>`, the content). Or give `before` and `after`."""
    before: dict[Role, Annotated[str, Field(max_length=MOST_CHARACTERS)]] = {}
    """What stands before the content of a message of `system`, `user` and `assistant`. Each begins with a special
    token, and none with another. Tokens such as `<|im_start|>` are added to the tokenizer."""
    after: Annotated[str, Field(max_length=MOST_CHARACTERS)] = ""
    """What stands after it: empty, or a text that begins with a special token, which ends an answer."""
    max_tokens: SomeTokens | None = None
    """Longer conversations are dropped when the set is mixed, and counted: a model whose context is shorter cannot
    train on them."""

    def rules(self) -> Iterator[str]:
        """Yield the faults between the keys of `[chat]`."""
        if self.format is not None:
            yield from self.refuse(("before", "after"), f"format = {self.format!r} decides it. Leave one of them out.")
            return
        # Of a table with other faults, those of its texts alone.
        texts = {role: text for role, text in table_of(self.before).items() if isinstance(text, str)}
        if missing := [role for role in ROLES if role not in table_of(self.before)]:
            yield f"before: no text for {', '.join(missing)}. Give one for each role, or a `format`."
        for (role, text), (other, longer) in permutations(texts.items(), 2):
            if longer.startswith(text) and (longer != text or role < other):
                yield (
                    f"before: {role}'s {text!r} begins {other}'s {longer!r}, so a reader cannot tell them apart. Give "
                    "them other texts."
                )
        opening = texts.get(TRAINED_ROLE)
        if opening and isinstance(self.after, str) and opening in self.after:  # pyright: ignore[reportUnnecessaryIsInstance]
            yield f"after: {self.after!r} holds {TRAINED_ROLE}'s {opening!r}, which opens answers. Change one of them."

    @property
    def has_texts(self) -> bool:
        """Whether all of the table is text: a table with refused values keeps them."""
        texts: list[Any] = [*table_of(self.before).values(), self.after]
        return self.format in (None, *FORMATS) and all(isinstance(text, str) for text in texts)

    def check_tokens(self, special: Collection[str], ends: Collection[str]) -> Iterator[str]:
        """Yield the faults between the table and the special tokens of a tokenizer.

        Args:
            special: all of them, the table's included.
            ends: those that end or begin documents.
        """
        before, after = self.table
        texts = {**{f"before.{role}": text for role, text in before.items()}, **({"after": after} if after else {})}
        for key, text in texts.items():
            if not text.startswith(tuple(special)):
                yield (
                    f"chat.{key}: {text!r} does not begin with a special token; there are {sorted(set(special))}. "
                    "Begin it with one of them or one such as <|name|>, or list another in `tokenizer.special_tokens`."
                )
            for token in ends:
                if token in text:
                    yield (
                        f"chat.{key}: {text!r} has {token!r}, which begins or ends documents, so a model could not "
                        "tell the end of a turn from that of a conversation. Choose another one here, or there."
                    )

    @property
    def table(self) -> tuple[dict[Role, str], str]:
        """What stands before a message by its role, and after it."""
        return (self.before, self.after) if self.format is None else FORMATS[self.format]

    def name_tokens(self) -> Sequence[str]:
        """Return the special tokens that the table needs by their form, in its order."""
        before, after = self.table
        return list(dict.fromkeys(_TOKEN.findall("".join([*before.values(), after]))))
