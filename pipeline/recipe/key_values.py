"""The values of a data recipe's keys: sizes, counts, names, patterns, each read or refused by itself."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import codecs
import re
from collections import Counter
from decimal import Decimal
from operator import not_
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt

from shards.config import Text, in_form
from shards.format.tokenizer_json import MAX_ENTRY_CHARACTERS

# `K` and `k` are one unit; `m` is a thousandth. There is no half a byte.
_SIZE = re.compile(r"\s*(\d[\d_]{0,30}(?:\.\d{1,9}(?=\s*[kKMGT]))?)\s*([kKMGT]i?)?B?\s*")
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_SCALE = {**_DECIMAL, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_COUNT = re.compile(r"\s*(\d[\d_]{0,30}(?:\.\d{1,9})?(?:[eE]\d{1,2})?)\s*([kKmMbBgGtT])?\s*")

_NOT_OF_FILES = ("idna", "punycode", "raw-unicode-escape", "unicode-escape")
"""Python's text encodings that are for parts of texts."""


def parse_size(value: Any) -> Any:
    """Turn a key's value, `"1 GB"`, `"512 MiB"` or a number, into bytes; leave other values for the model to refuse."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if not match:
        raise ValueError('expected bytes as a number, or as text such as "1 GB" or "512 MiB"')
    return int(Decimal(match[1]) * _SCALE[(match[2] or "").upper()])


def parse_count(value: Any) -> Any:
    """Turn a key's value, `"1B"`, `"500M"`, `"1e9"` or 1e9, into a whole number; leave other values to the model.

    Raises:
        ValueError: a text that begins with a digit and is not a count.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    # Words such as "max" are for the model; what begins as a number must be one.
    if not isinstance(value, str):
        return value
    match = _COUNT.fullmatch(value)
    if not match:
        if value[:1].isdigit():
            raise ValueError("expected a whole number such as 16_000, 16K, 500M, 1.5B or 1e9")
        return value
    count = Decimal(match[1].replace("_", "")) * _DECIMAL[(match[2] or "").upper()]
    return int(count) if count == int(count) else value


def distinct(values: list[str]) -> list[str]:
    """Refuse a key's value that is a list with equal items."""
    repeated = sorted(value for value, count in Counter(values).items() if count > 1)
    if repeated:
        raise ValueError(f"listed more than once: {', '.join(map(repr, repeated[:9]))}. Keep one of each")
    return values


def normal_encoding(name: str) -> str:
    """Return a key's encoding by the name that Python gives it, or refuse one that is not of files.

    It is `utf-8` also for UTF-8 with a byte order mark.
    """
    try:
        b"a".decode(name, "replace")  # refuses codecs that are not of text; of no byte, it would accept any name
        found = codecs.lookup(name).name
    except (LookupError, UnicodeError):
        found = _NOT_OF_FILES[0]
    if found in _NOT_OF_FILES:
        raise ValueError("expected a text encoding that Python knows, such as latin-1 or utf-16")
    return "utf-8" if found == "utf-8-sig" else found


Proportion = Annotated[float, Field(ge=0, le=1)]
SizeBytes = Annotated[int, BeforeValidator(parse_size), Field(gt=0, lt=1 << 63)]
Count = BeforeValidator(parse_count)
SomeTokens = Annotated[PositiveInt, Count]
"""A number of tokens, one at least."""


def _refuse_thousands(value: Any) -> Any:
    """Refuse a key's value such as `"16K"`, which for a vocabulary may be 16,000 or 16,384."""
    if match := re.fullmatch(r"\s*(\d+)\s*[kK]", value) if isinstance(value, str) else None:
        size = int(match[1])
        raise ValueError(f"expected a whole number: {size * 1000:_} or {size * 1024:_}")
    return value


Entries = BeforeValidator(_refuse_thousands)


Weight = Annotated[float, Field(ge=1e-18, le=1e18)]
"""Within bounds in which no sum of weights overflows, and no share of one loses digits."""
SourceWeight = Annotated[float, Field(ge=0, le=1e18)]
"""The same, or less: a recipe refuses what is next to nothing of the sum of its weights."""
ValueT = TypeVar("ValueT")
IfGiven = Annotated[ValueT | None, Field(exclude_if=not_)]
"""A key that a recipe in JSON has only if it is given."""


MATCH_GROUP = "the_match"
"""Name of the group that `in_group` makes."""


def check_pattern(pattern: str) -> str:
    """Check the syntax of a key's value that is a pattern, and return it.

    Raises:
        ValueError: with RE2's message, or because the pattern matches everything.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from pipeline.arrow_arrays import unwrap_mask, wrap_texts

    empty = wrap_texts(pa.large_string(), [b""])
    try:
        everything = bool(unwrap_mask(pc.match_substring_regex(empty, pattern))[0])
        pc.match_substring_regex(empty, in_group(pattern))  # a quote \Q that is left open would swallow the bracket
    except pa.ArrowInvalid as error:
        message = str(error).removeprefix("Invalid regular expression: ").replace(in_group(pattern), pattern)
        raise ValueError(f"not a pattern: {message}. The syntax is RE2's, without look-around") from error
    if everything:
        raise ValueError("the pattern matches the empty text, so every document. Ask for at least one character")
    return pattern


_GROUP = re.compile(
    r"(?s)\\Q.*?(?:\\E|$)|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|(?P<opens>\((?:\?P?<[^>]*>|(?!\?)))"
)
"""A group's opening bracket, with its name, or what is skipped to find one: a quote, an escape, a class."""


def in_group(pattern: str) -> str:
    """Return a key's pattern, in the same syntax, as a group named `MATCH_GROUP`, whose place can be asked for.

    pyarrow refuses unnamed groups, and names that occur twice, where it is asked for places: groups capture nothing.
    """
    named = _GROUP.sub(lambda found: "(?:" if found["opens"] else found[0], pattern)
    return f"(?P<{MATCH_GROUP}>{named})"


Patterns = Annotated[list[Annotated[str, AfterValidator(check_pattern)]], AfterValidator(distinct)]
MOST_NAMES = 100
"""In the name of a column, which may be in others."""
Column = Annotated[
    Text, in_form(rf"[^.]*(\.[^.]*){{0,{MOST_NAMES - 1}}}", f"at most {MOST_NAMES} names with dots between them")
]
"""A column of a source, which may be in another one."""
Token = Annotated[
    str,
    Field(max_length=MAX_ENTRY_CHARACTERS),
    in_form(r"(?s).*\S.*", "a text with a visible character, such as <|name|>"),
]
Delimiter = Annotated[str, in_form(r"[\x01-\x7f]", 'one ASCII character, such as ";"')]
"""One ASCII character."""
Quote = Literal['"', ""]
FormatName = Literal["auto", "parquet", "arrow", "jsonl", "json", "csv", "text", "html", "ipynb", "file"]
"""The formats of files; `pipeline/sources/formats/contract.py` has the table of them."""
Name = Annotated[
    str,
    in_form(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
        'at most 100 ASCII letters, digits, ".", "_" and "-", the first a letter or a digit, such as "web-2"',
    ),
]
