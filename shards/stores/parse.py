"""Parse the JSON and TOML that a person wrote, or a build or a training run recorded, within bounds.

An object of JSON that has a key twice is refused, since some readers take the first of the two and others the last.
"""

import json
import re
import tomllib
from collections import Counter
from typing import Any, cast

from shards.errors import InputError

MOST_DEPTH = 100
"""How deep tables and lists may be in each other. Python's parser takes memory by the square of the parts of a key."""
_MOST_CHARACTERS = 4_000
"""Most characters of a number, which takes a hundred times their size and of which Python reads 4,300, or of a key."""
_QUOTED = re.compile(
    r'"""(?:[^"\\]++|\\.?|"(?!""))*+(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)|"(?:[^"\\\n]++|\\.)*+"?|\'[^\'\n]*\'?|#[^\n]*',
    re.DOTALL,
)
"""A text in TOML, also one that is left open, or a comment: none holds the dots of a key."""

HALF = re.compile("[\ud800-\udfff]")
"""Half of a pair of UTF-16: JSON can spell it, and bytes of a command line that are not UTF-8 are such."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of TOML; raise a ValueError if it is none or has a huge key or number, or a RecursionError."""
    for found in re.finditer(r"[\w.+ \t-]+", _QUOTED.sub("", text)):
        if found[0].count(".") >= MOST_DEPTH or len(found[0]) > _MOST_CHARACTERS:
            raise ValueError(f"a key or a number of {len(found[0]):,} characters is too long")
    return tomllib.loads(text)


def check_values(value: Any, depth: int = 0) -> None:
    """Raise a ValueError if values are too deep in each other, a number is too large for any key, or a text is none."""
    if depth > MOST_DEPTH:
        raise ValueError(f"tables and lists are more than {MOST_DEPTH} deep in each other, or one is in itself")
    if isinstance(value, str):
        if not value.isascii() and HALF.search(value):  # whether it is ASCII takes no time to know
            raise ValueError(f"{value!r:.80} has a character that UTF-8 cannot encode")
    elif isinstance(value, int):
        if value.bit_length() > 1000:
            raise ValueError("a whole number has more than 1,000 bits")
    elif isinstance(value, dict | list | tuple):
        items = cast("dict[str, Any] | list[Any] | tuple[Any, ...]", value)
        for item in [*items, *items.values()] if isinstance(items, dict) else items:
            check_values(item, depth + 1)


def load_json(text: bytes | str) -> Any:
    """Return a JSON text's value; raise a ValueError if it has a key twice or is none, or a RecursionError."""
    return json.loads(text, object_pairs_hook=make_object)


def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON from its keys and values; raise an InputError if it has a key twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise InputError(f"the key {twice[:80]!r} occurs twice; expected once")
    return made
