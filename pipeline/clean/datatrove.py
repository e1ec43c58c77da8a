"""datatrove's filters: constructed by name and asked document by document, as `datatrove.pipeline.filters` has them.

A document has its text and nothing else: no metadata and no `id`. What a filter writes into it is not used.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
import json
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import version
from inspect import getmembers, isclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pipeline.clean.functions.child import Answer, answer, ask_datatrove
from pipeline.clean.functions.modules import installed_version
from pipeline.clean.python import ASKED_TWICE, judge
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.clean_recipe import DatatroveFilter
from shards.errors import import_extra
from shards.terminal.display import printable
from shards.terminal.hints import nearest

_MODULE = "datatrove.pipeline.filters"
REFUSED = {
    "C4BadWordsFilter": "it fetches its lists from the network, and draws at random in the order of the documents. "
    "Put words into drop_if_matches",
    "FastTextClassifierFilter": "it drops parts of documents by a model that may change unnoticed. "
    "[sources.clean.language] takes a fastText model",
    "LambdaFilter": "its function is code, which a recipe cannot contain. [[clean.python]] takes it from a module",
    "LanguageFilter": "it fetches its model from the network. [sources.clean.language] takes a model file",
    "RegexFilter": "a pattern of Python's `re` may take for ever on one text. drop_if_matches takes patterns",
    "SamplerFilter": "it draws at random in the order of the documents, which another number of workers changes. "
    "mix.tokens takes a part of the sources",
    "UnigramLogProbFilter": "it fetches its word counts from the network",
    "URLFilter": "it checks the URL of a document, but filters see only the text. `keep` checks columns",
}
"""Filters that a recipe cannot name, and why."""
_TRIAL = "The committee met on Monday and agreed that the new bridge would be open to everyone before the winter. " * 6


def apply(table: DatatroveFilter, documents: Documents, tally: Tally) -> Documents:
    """Drop the documents that a filter of datatrove rejects.

    Raises:
        InputError: the filter raised an error.
    """
    filter_ = _open_filter(table.filter, json.dumps(table.arguments, sort_keys=True))

    def ask(texts: pa.LargeStringArray, _: bool) -> Answer:
        own = cast("list[str]", texts.to_pylist())
        # One that leaves nothing of a text keeps it: what it writes is not used.
        return answer(lambda texts: [one or None for one in ask_datatrove(filter_, texts)], own)

    left = judge(table, table.step, ask, documents.seen, tally, range(len(documents) - 1, -1, -ASKED_TWICE))
    return documents.only(np.isin(documents.rows, left.rows))


def versions() -> list[str | None]:
    """Return the versions of datatrove and of the library that cuts its words, which decide what its filters reject."""
    return [installed_version("datatrove"), installed_version("spacy")]


def check_filter(name: str, arguments: Any) -> Iterator[str]:
    """Yield the faults of a datatrove filter that a recipe names: construct it, and try it on a few words.

    Raises:
        MissingExtraError: datatrove is not installed.
    """
    known = _filters()
    if name in REFUSED:
        yield f"{name} cannot be used: {REFUSED[name]}."
    elif name not in known:
        yield f"datatrove {version('datatrove')} has no filter {name!r}.{nearest(name, sorted(known.keys() - REFUSED))}"
    elif not isinstance(arguments, dict):
        return
    elif "exclusion_writer" in arguments:
        yield "exclusion_writer cannot be given: dropped documents are counted, not written."
    else:
        try:
            ask_datatrove(known[name](**arguments), [_TRIAL])
        except Exception as error:  # noqa: BLE001 (code of others)
            yield f"{name} cannot be used like this: {type(error).__name__}: {printable(str(error))}"


@lru_cache
def _open_filter(name: str, arguments: str) -> Any:
    return _filters()[name](**json.loads(arguments))


def _filters() -> dict[str, Any]:
    # Every class of the module that is a filter; what cannot be used is refused by name.
    module = import_extra(_MODULE)
    base = module.base_filter.BaseFilter
    return {name: kind for name, kind in getmembers(module, isclass) if issubclass(kind, base) and kind is not base}
