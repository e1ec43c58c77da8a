"""A recipe's own Python functions: their verdicts on a batch of texts, which are checked, and what becomes of it.

The batches depend on the files, so a function must decide on each text alone. To check that, a second process, with
another hash seed, is asked about a part of every batch again, in another order and in smaller batches.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from pipeline.clean.functions.child import Answer, find_remedy
from pipeline.clean.functions.modules import find_file
from pipeline.clean.functions.process import close_functions, open_function
from pipeline.clean.tally import MARK, Documents, Tally
from pipeline.recipe.clean_recipe import DatatroveFilter, PythonFilter
from shards.errors import InputError
from shards.terminal.display import find_difference, printable

Ask: TypeAlias = Callable[[pa.LargeStringArray, bool], Answer]
"""Asks about texts; the flag says that it is to check what was answered before."""
CODE_VERSION = 2
"""Increase when the same function would drop or change other documents."""
MOST_REASONS = 100
"""Different reasons of one function in a task, and characters of each: they are counted, and no values."""
ASKED_TWICE = 16
"""One text of a batch in so many is given to the function again."""
_FIRST_TEXTS = 256
"""Of a first batch so many texts are: to find a function that draws once in a hundred times, also in small sources."""


def versions() -> list[int]:
    """Return the versions that decide what becomes of a document, beside the modules of its function."""
    return [CODE_VERSION]


def apply(table: PythonFilter, documents: Documents, tally: Tally) -> Documents:
    """Drop and change documents as the function of a recipe says; see `judge`."""
    last = len(documents) - 1
    is_fresh = open_function(table)[0].is_fresh
    again = range(min(last, _FIRST_TEXTS), -1, -1) if is_fresh else range(last, -1, -ASKED_TWICE)

    def ask(texts: pa.LargeStringArray, second: bool) -> Answer:
        try:
            return open_function(table)[second].ask(texts)
        except ChildProcessError as error:
            close_functions()
            number, index = _find_end(table, texts, second)
            return {"fault": f"{error}. {find_remedy(number)}", "index": index}

    return judge(table, f"{table.step} ({find_file(table)})", ask, documents, tally, again)


def _find_end(table: PythonFilter, texts: pa.LargeStringArray, second: bool) -> tuple[int, int]:
    """Return how many texts together end a function's process, and the index of the first."""
    for index in range(len(texts)):
        try:
            open_function(table)[second].ask(texts[index : index + 1])
        except ChildProcessError:
            close_functions()
            return 1, index
    return len(texts), 0


def judge(
    table: PythonFilter | DatatroveFilter,
    name: str,
    ask: Ask,
    documents: Documents,
    tally: Tally,
    again: Sequence[int],
) -> Documents:
    """Drop and change documents as a recipe's function says, or drop them as a filter of datatrove says.

    Args:
        table: the table of `clean`.
        name: what messages call the function or the filter.
        ask: asks the function, or the filter.
        documents: the documents.
        tally: what is done is added to it.
        again: the documents about which it is asked a second time, by their indices.

    Raises:
        InputError: it fails, returns something else, or does not return the same for the same text.
    """

    def where(index: int) -> str:
        return f"{tally.describe_row(int(documents.rows[index]))}: {name}"

    def ask_about(chosen: Sequence[int], texts: pa.LargeStringArray, *, second: bool) -> list[Any]:
        found = ask(texts, second)
        if fault := found.get("fault"):
            raise InputError(f"{where(chosen[found['index']])} {printable(fault)}")
        return found["verdicts"]

    verdicts = ask_about(range(len(documents)), documents.text, second=False)
    # In another order and company: a function that draws, counts or remembers says something else.
    for chosen in filter(len, (again[: len(again) // 3], again[len(again) // 3 :])):
        repeated = ask_about(chosen, documents.text.take(pa.array(chosen, pa.int64())), second=True)
        for index, verdict in zip(chosen, repeated, strict=True):
            if verdict != verdicts[index]:
                answers = _show(verdicts[index]), _show(verdict)
                # From a little before the first place where they differ.
                start = max(0, find_difference(*answers) - 40)
                first, second = (f"{'...' * (start > 0)}{answer[start:]:.100}" for answer in answers)
                raise InputError(
                    f"{where(index)} returned {first}, and {second} when asked again. A rule must always give the same "
                    "answer for the same text."
                )
    dropped: dict[int, str] = {}
    changed: dict[int, bytes] = {}
    for index, verdict in enumerate(verdicts):
        if isinstance(verdict, str):
            changed[index] = verdict.encode()
            before = documents.text[index].as_buffer()
            if documents.has_marks and MARK.findall(before) != MARK.findall(changed[index]):
                raise InputError(
                    f"{where(index)} returned {_show(verdict):.100}, without the marks of its messages (U+FDD0 to "
                    "U+FDD2) in their order. Change only what is between them."
                )
        elif verdict is not None:
            dropped[index] = f"{table.step}: {printable(verdict[0]):.{MOST_REASONS}}".removesuffix(": ")
    if changed:
        tally.edited[table.label] += len(changed)
    if table.name == "python":  # what a filter of datatrove writes into a text is not used
        documents = documents.with_texts(changed)
    left = tally.drop(table.step, documents, dropped)
    if len(tally.drops.step(table.step).reasons) > MOST_REASONS:
        raise InputError(
            f"{where(0)} returned over {MOST_REASONS} different reasons. Expected few, each a kind of document."
        )
    return left


def _show(verdict: Any) -> str:
    """Return a verdict of an answer as a function returns it."""
    if isinstance(verdict, str):
        return repr(verdict)
    return "True" if verdict is None else repr((False, *verdict) if verdict[0] else False)
