"""Messages to text: what a source of conversations has in the columns that `messages` names, and what is dropped.

The text of a conversation is the mark of each message's role (`ROLE_MARKS` of `shards.format.chat`), then its content,
message after message. A batch of conversations becomes text in a few operations on Arrow's buffers.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import as_large_binary, text_offsets, unwrap_mask, wrap_mask, wrap_numbers, wrap_texts
from pipeline.sources.base import NO_CHAT, TextBatch
from shards.errors import InputError
from shards.format.arrays import Bools, Int64s, UInt32s, find_bounds
from shards.format.chat import ROLE_MARKS, TRAINED_ROLE, find_marks
from shards.terminal.display import printable

NO_MESSAGES, _NO_ANSWER = f"{NO_CHAT}none", f"{NO_CHAT}no answer"
_FIELDS = {
    f"{NO_CHAT}tool calls": ("tool_calls", "tool_call_id", "function_call"),
    f"{NO_CHAT}images": ("images", "image"),
    f"{NO_CHAT}weights of messages": ("weight", "train"),
    f"{NO_CHAT}reasoning beside the content": ("reasoning_content", "reasoning", "thinking"),
}
"""Reasons, and the fields of a message that have them if they are neither null nor empty."""
_REASONS = (
    NO_MESSAGES,
    *_FIELDS,
    f"{NO_CHAT}null content",
    f"{NO_CHAT}content with a mark of a role",
    f"{NO_CHAT}unknown role",
    _NO_ANSWER,
    f"{NO_CHAT}empty answer",
)
"""Every reason; of several, a conversation counts under the first."""
_ROLES = ROLE_MARKS | {"human": ROLE_MARKS["user"], "gpt": ROLE_MARKS[TRAINED_ROLE]}
"""The marks of roles, by all their names."""
_ANSWER = ROLE_MARKS[TRAINED_ROLE].encode()
_MARKS = f"[{''.join(ROLE_MARKS.values())}]"
_WHITE = r"\A[\s\x0b\x1c-\x1f\x{85}\p{Z}]*\z"
_NAMES = (("role", "from"), ("content", "value"))
"""The names that the fields of a message have."""
_TEXTS = [(name, pa.large_string()) for names in _NAMES for name in names]
MESSAGES = pa.list_(pa.struct(_TEXTS))
"""The type in which messages of JSON are read."""
PLAIN_MESSAGES = pa.list_(pa.struct([*_TEXTS, *((name, pa.null()) for names in _FIELDS.values() for name in names)]))
"""The type in which they are read that lack all other fields, or have null there."""
_SHOWN = 100
"""Characters of a message that shows why its conversation is dropped."""


def mark_messages(columns: Sequence[Any], rows: UInt32s, listed: Iterable[Any] | None = None) -> TextBatch:
    """Return conversations as text, those that no reason drops.

    Args:
        columns: one of lists of messages, or two of text, the prompts and the completions, `(rows,)`.
        rows: the rows' numbers in their span, `(rows,)`.
        listed: the lists of messages as JSON has them, if a field may be there that `MESSAGES` lacks.
    """
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    roles, contents, offsets, absent, has = _join_pairs(*columns) if len(columns) > 1 else _take_lists(*columns)
    if listed is not None:
        messages = [message or {} for conversation in listed for message in conversation or ()]
        has = {why: np.array([_has_any(one, names) for one in messages], bool) for why, names in _FIELDS.items()}
    named = pc.index_in(roles, value_set=wrap_texts(pa.large_binary(), [role.encode() for role in _ROLES]))
    unknown = unwrap_mask(named.is_null())
    marks = wrap_texts(pa.large_binary(), [mark.encode() for mark in _ROLES.values()]).take(named.fill_null(0))
    answers = ~unknown & unwrap_mask(pc.equal(marks, pa.scalar(_ANSWER, pa.large_binary())))
    given = contents.fill_null(b"")
    # A conversation is a part of the text of all messages, so nothing is copied twice.
    joined = pc.binary_join_element_wise(marks, given, pa.scalar(b"", pa.large_binary()))
    begins = text_offsets(joined)[offsets]
    text = pa.Array.from_buffers(pa.large_string(), len(rows), [None, pa.py_buffer(begins.data), joined.buffers()[2]])

    def matches(pattern: str, among: Bools) -> Bools:
        found, texts = np.zeros(len(roles), bool), given.filter(wrap_mask(among)).view(pa.large_string())
        found[among] = unwrap_mask(pc.match_substring_regex(texts, pattern))
        return found

    # Which messages have each reason, and which conversations.
    nowhere = np.zeros(len(roles), bool)
    data = np.frombuffer(joined.buffers()[2] or b"", np.uint8)
    # To count a mark's first byte takes a third of the time; in most scripts no character has it.
    is_clean = len(roles) == np.count_nonzero(data == _ANSWER[0]) or len(roles) == len(find_marks(data)[0])
    # No other answer is empty or white, as its last byte tells: that of its mark, if it is empty.
    last = data[text_offsets(joined)[1:] - 1]
    ends_white = answers & ((last <= ord(" ")) | (last >= 0x80))
    faults = [nowhere, *(has.get(why, nowhere) for why in _FIELDS), unwrap_mask(contents.is_null())]
    faults += [nowhere if is_clean else matches(_MARKS, ~nowhere)]
    faults += [unknown, nowhere, matches(_WHITE, ends_white)]
    found = np.array([_any_of(fault, offsets) for fault in faults])
    found[_REASONS.index(NO_MESSAGES)] = absent | (offsets[1:] == offsets[:-1])
    found[_REASONS.index(_NO_ANSWER)] = ~_any_of(answers, offsets)
    kept = ~np.any(found, 0)
    batch = TextBatch(text if kept.all() else text.filter(wrap_mask(kept)), rows[kept])
    firsts = np.where(kept, len(_REASONS), found.argmax(axis=0))
    for number, why in enumerate(_REASONS):
        own = np.flatnonzero(firsts == number)
        if len(own):
            batch.rejected[why] = len(own)
            # The message that has the reason, or the first one.
            begin, end = offsets[own[0]], offsets[own[0] + 1]
            place = begin + int(faults[number][begin:end].argmax()) if end > begin else 0
            said = [str(column[place].as_py() or b"", "utf-8", "replace") for column in (roles, given) if end > begin]
            batch.dropped.append((int(rows[own[0]]), why, ": ".join(said)[:_SHOWN]))
    return batch


def read_messages(data: bytes) -> str:
    """Return the text of a conversation in JSON, a list of messages or a record with one; empty if it is none.

    Raises:
        InputError: such a conversation is dropped, or cannot be read.
    """
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    lists = [value for value in (record.values() if isinstance(record, dict) else [record]) if _is_messages(value)]
    if len(lists) != 1:
        return ""
    messages = lists[0]
    try:
        column = pa.array([messages], MESSAGES)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise InputError(f"a message cannot be read: {error}. Expected a role and a content, both text.") from error
    batch = mark_messages([column], np.zeros(1, np.uint32), [messages])
    for _, why, shown in batch.dropped:
        raise InputError(f"such a conversation is dropped while it is read: {why} ({printable(shown)})")
    return batch.text[0].as_py()


def _is_messages(value: Any) -> bool:
    """Return whether a value of JSON is a list of messages, as far as the names of their fields say."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(one, dict) and ("role" in one or {"from", "value"} <= one.keys()) for one in value)


def _any_of(messages: Bools, offsets: Int64s) -> Bools:
    """Return which conversations have a message of some, `(conversations,)`."""
    if not messages.any():  # which is usual
        return np.zeros(len(offsets) - 1, bool)
    counts = find_bounds(messages)
    return counts[offsets[1:]] > counts[offsets[:-1]]


_Messages: TypeAlias = "tuple[Any, Any, Int64s, Bools, dict[str, Bools]]"
"""Messages in one row: their roles and contents as bytes, where each conversation begins and the last one ends, which
conversations are null; by reason, which messages have a field that it names."""


def _join_pairs(prompts: Any, completions: Any) -> _Messages:
    prompts, completions = as_large_binary(prompts), as_large_binary(completions)
    count = len(prompts)
    order = np.arange(2 * count).reshape(2, count).T.reshape(-1)
    contents = pa.concat_arrays([prompts, completions]).take(wrap_numbers(pa.int64(), order))
    both = wrap_texts(pa.large_binary(), [b"user", TRAINED_ROLE.encode()])
    roles = both.take(wrap_numbers(pa.int64(), order // max(count, 1)))
    absent = unwrap_mask(prompts.is_null()) & unwrap_mask(completions.is_null())
    return roles, contents, np.arange(count + 1) * 2, absent, {}


def _take_lists(column: Any) -> _Messages:
    import pyarrow.compute as pc

    offsets = column.offsets.to_numpy().astype(np.int64)
    # A slice of a column has the messages of all.
    flat = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    fields = dict(zip([field.name for field in flat.type], flat.flatten(), strict=True))
    # To look for the first value that is given takes as long as to read it: usually one name alone has any.
    named = ([_take_texts(fields[name]) for name in names if name in fields] for names in _NAMES)
    used = ([texts for texts in own if texts.null_count < len(texts)] or own[:1] for own in named)
    roles, contents = (pc.coalesce(*own) if len(own) > 1 else own[0] for own in used)
    has = {
        why: np.any([_is_given(fields[name]) for name in names if name in fields], axis=0)
        for why, names in _FIELDS.items()
        if fields.keys() & set(names)
    }
    return roles, contents, offsets - offsets[0], unwrap_mask(column.is_null()), has


def _take_texts(values: Any) -> pa.LargeBinaryArray:
    return as_large_binary(values.dictionary_decode() if pa.types.is_dictionary(values.type) else values)


def _is_given(values: Any) -> Bools:
    """Return which values of a field are neither null nor empty."""
    import pyarrow.compute as pc

    if is_list(values.type):
        values = pc.list_value_length(values)
    elif pa.types.is_string(values.type):
        values = pc.binary_length(values)
    else:
        return unwrap_mask(values.is_valid())
    return values.fill_null(0).to_numpy(zero_copy_only=False) > 0


def _has_any(message: dict[str, Any], names: Iterable[str]) -> bool:
    return any(message.get(name) not in (None, "", [], {}) for name in names)


def is_list(kind: Any) -> bool:
    """Return whether a column of a type holds lists of any length."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def check_messages(column: str, kind: Any, texts: Container[Any]) -> Iterator[str]:
    """Yield what is wrong with the type of a column of messages; `texts` are the types of text."""
    if is_list(kind) and kind.value_type in texts:
        yield describe_turns(column)
        return
    inner = kind.value_type if is_list(kind) else pa.null()
    fields = {field.name: field.type for field in inner} if pa.types.is_struct(inner) else {}
    values = [next((fields[name] for name in names if name in fields), pa.null()) for names in _NAMES]
    if not all((value.value_type if pa.types.is_dictionary(value) else value) in texts for value in values):
        yield (
            f"column {column!r} is {kind!s:.200}, not a list of messages: records of text, `role` and `content` or "
            "`from` and `value`. Correct `messages`."
        )


def describe_turns(column: str) -> str:
    """Return the fault of a column of messages that has lists of text."""
    return (
        f"column {column!r} has lists of text; a message has a role, too. Make messages of them first, and name those "
        'by `messages`, in Python:\n  roles = ["user", "assistant"]\n  row["messages"] = [{"role": roles[turn % 2], '
        f'"content": text}} for turn, text in enumerate(row[{column!r}])]'
    )
