"""The patterns of `drop_if_matches`: their syntax is RE2's, which takes time linear in the text."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

MATCH_GROUP = "the_match"
"""Name of the group that `in_group` makes."""


def check_pattern(pattern: str) -> str:
    """Check the syntax of a pattern, and return it.

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
    except UnicodeEncodeError as error:
        raise ValueError("not a pattern: a lone surrogate is not text") from error
    except pa.ArrowInvalid as error:
        message = str(error).removeprefix("Invalid regular expression: ").replace(in_group(pattern), pattern)
        raise ValueError(f"not a pattern: {message}. The syntax is RE2's, without look-around") from error
    if everything:
        raise ValueError("the pattern matches the empty text, so every document. Ask for at least one character")
    return pattern


def in_group(pattern: str) -> str:
    """Return, in the same syntax, the pattern as a group named `MATCH_GROUP`, whose place can be asked for."""
    return f"(?P<{MATCH_GROUP}>{pattern})"
