"""The text of test items, read again from the evaluation files: a work folder holds only the hashes of their words.

A text is shown only if its n-grams are those that the build searched for: the file may have changed since then.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from pipeline.builder.stored_build import Build
from pipeline.clean.evaluations.items import Items, ItemsResult, find_item_ngrams, load_items, source_of
from pipeline.clean.provenance import read_documents_again
from pipeline.engine.receipts import TaskOutput
from pipeline.recipe.schema import EvaluationRecipe
from shards.errors import InputError
from shards.eval_tasks.known import KNOWN_TASKS
from shards.eval_tasks.read import read_items

ITEM_CHARACTERS = 1500
"""The beginning of an item's text that is shown."""


def read_item_texts(build: Build, evaluations: list[dict[str, Any]]) -> None:
    """Give each copy that a report lists the text of its item, `item_text`; None if it cannot be read.

    The evaluation set then says why, `items_unread`.

    Args:
        build: the build that found them.
        evaluations: the evaluation sets, each with its copies, `held`.

    Raises:
        WorkFileDamagedError: the work folder's list of items is not as it was written.
    """
    if build.evaluations is None:
        return
    items, read = load_items(str(build.evaluations)), TaskOutput(build.evaluations, ItemsResult).result.evaluations
    for number, (evaluation, given) in enumerate(zip(evaluations, build.recipe.evaluations, strict=True)):
        source = {} if given.task else source_of(given, "/").model_dump(mode="json") | {"folder": "/"}
        spans = read[number].spans
        evaluation["items_unread"] = None
        by_span: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for copy in evaluation["held"]:
            copy["item_text"] = None
            by_span[copy["item"]].append(copy)

        # Read each part of a file once, for all of its items.
        for span, copies in by_span.items():
            try:
                found = _read_again(given, source, span, [copy["item_row"] for copy in copies])
            except (InputError, OSError) as error:
                evaluation["items_unread"] = str(error)
                continue
            for copy, text in zip(copies, found, strict=True):
                # A changed file must not show another item.
                if text is not None and _is_item(text, items, (number, spans.index(span), copy["item_row"])):
                    copy["item_text"] = text.decode("utf-8", "replace")[:ITEM_CHARACTERS]
                else:
                    evaluation["items_unread"] = f"{span}: has changed since the build"


def _read_again(given: EvaluationRecipe, source: dict[str, Any], span: str, rows: list[int]) -> list[bytes | None]:
    if given.task is None:
        return read_documents_again(source, span, rows)
    items = read_items(KNOWN_TASKS[given.task]).items
    return [items[row].text.encode() for row in rows]


def _is_item(text: bytes, items: Items, place: tuple[int, int, int]) -> bool:
    """Return whether a text has the n-grams of the item of an evaluation set, span and row."""
    names = ("evaluation", "span", "row")
    own = np.flatnonzero(np.logical_and.reduce([items.rows[name] == at for name, at in zip(names, place, strict=True)]))
    if len(own) != 1:
        return False
    start, stop = items.offsets[own[0] : own[0] + 2].tolist()
    _, _, hashes = find_item_ngrams(memoryview(text))
    return np.array_equal(items.ngrams[items.of_items[start:stop]], hashes[:, 0])
