"""The steps of cleaning before encoding, in their order; each drops documents, counted by reason, or masks text.

A step is one object: the keys that set it, what it does, and what decides its result beside these keys. The module of a
step says how it works. Encoding, the tokenizer's sample, a plan, `trace --hash` and digests use all steps of `STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import as_large_binary, unwrap_mask, wrap_mask
from pipeline.clean.drops import NULL, invalid_reason
from pipeline.clean.limits import drop_beyond_limits, identify_limits
from pipeline.clean.patterns import drop_matches
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.clean_recipe import Filter
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SHOWN_MALFORMED, Span, TextBatch, spans_to_json
from pipeline.sources.formats.encodings import explain_fault, is_utf8

EMPTY = "text is empty"
SHORT = "shorter than min_bytes"
LONG = "longer than max_bytes"


class Step(NamedTuple):
    """One step of cleaning."""

    keys: str
    """The keys of a source that set it, for messages."""
    apply: Callable[[SourceRecipe, Documents, Tally], Documents]
    """Returns the documents that the step leaves and counts the others in the tally; it is given one at least."""
    identify: Callable[[SourceRecipe], Any] = lambda source: None
    """Returns JSON values that decide the step's result: the tables of `clean` that it reads, versions of its code and
    of libraries; None if it is off. Other keys of a source that are set decide every result, and need not be named."""


def _drop_by_length(source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
    lengths = np.diff(documents.offsets)
    least, most = source.min_bytes, source.max_bytes if source.max_bytes is not None else np.iinfo(np.int64).max
    empty = int((lengths == 0).sum())
    counts = {EMPTY: empty, SHORT: int((lengths < least).sum()) - empty, LONG: int((lengths > most).sum())}
    tally.drops.count_rows(counts)
    return documents.only((lengths >= least) & (lengths <= most))


def _filter_step(name: str) -> Step:
    """Return the step of a filter's tables: its module has the filter's name, and the functions `apply` and
    `versions`. It is imported when a source has a table: most builds need none, and its patterns take 10 ms."""

    def tables(source: SourceRecipe) -> list[tuple[Any, Filter]]:
        found = [table for table in source.clean.filters() if table.name == name]
        return [(import_module(f"pipeline.clean.{name}"), table) for table in found]

    def apply(source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
        for module, table in tables(source):
            documents = module.apply(table, documents, tally)
        return documents

    def identify(source: SourceRecipe) -> Any:
        return [[module.versions(), table.in_digest()] for module, table in tables(source)] or None

    return Step(f"`clean.{name}`", apply, identify)


_CHANGING = ("python", "personal_data")
"""Filters that may change the text come first: presets measure the text that is encoded."""

STEPS = (
    Step("the length bounds", _drop_by_length),
    Step("`drop_if_matches`", drop_matches),
    *map(_filter_step, _CHANGING),
    Step("the presets of `clean`", drop_beyond_limits, identify_limits),
    *(_filter_step(table.name) for table in Filter.__subclasses__() if table.name not in _CHANGING),
)
"""Every step, in order."""


def clean_batch(source: SourceRecipe, batch: TextBatch, tally: Tally) -> Documents:
    """Put rows through the steps of cleaning, to documents: drop what cannot be encoded or is to go; mask the rest.

    Args:
        source: the source.
        batch: rows of it.
        tally: what is done is added to it.

    Raises:
        InputError: a filter failed.
    """
    # Rows without text, and text that does not decode.
    text, rows = as_large_binary(batch.text), batch.rows
    if text.null_count:
        valid = unwrap_mask(text.is_valid())
        text, rows = text.filter(wrap_mask(valid)), rows[valid]
    tally.drops.count_rows({NULL: len(batch.text) - len(text)})
    documents = _drop_undecodable(source, Documents(cast("Any", text.view(pa.large_string())), rows), tally)
    # Then the steps, as long as there is something left.
    for step in STEPS:
        if not len(documents):
            break
        documents = step.apply(source, documents, tally)
    return documents


def _drop_undecodable(source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
    text: Any = documents.text
    try:
        text.validate(full=True)  # one pass over the whole buffer: 0.1 ms per MB
    except pa.ArrowInvalid:
        valid = np.array([is_utf8(value.as_buffer()) for value in text], bool)
        tally.drops.count_rows({invalid_reason(source): len(text) - int(valid.sum())})
        for index in np.flatnonzero(~valid)[: SHOWN_MALFORMED - len(tally.malformed)].tolist():
            if tally.locate is not None:
                span, row = tally.locate(int(documents.rows[index]))
                place = "" if span.kind == "file" else f" {span.part} row {row}"
                data = text[index].as_buffer().to_pybytes()
                tally.malformed.append(f"{span.name}{place}: {explain_fault(data, source.encoding)}")
        return documents.only(valid)
    return documents


def identify_steps(source: SourceRecipe) -> dict[str, Any]:
    """Return what decides the result of the steps beside the keys of a source, by the key that sets the step."""
    found = {step.keys.split("`")[1]: step.identify(source) for step in STEPS if "`" in step.keys}
    return {key: identity for key, identity in found.items() if identity is not None}


def drop_remedy() -> str:
    """Return what to do about a source of which the steps drop all records, without a full stop."""
    *keys, last = ("`keep`", "`text`", *(step.keys for step in STEPS))
    return f"Correct {', '.join(keys)} or {last}"


def files_by_name(spans: Mapping[str, Sequence[Span]]) -> dict[str, Any]:
    """Return what of the spans to clean goes into a task's digest, by the names of their sources."""
    return {name: {"files": spans_to_json(own)} for name, own in spans.items()}


def reading_keys(source: SourceRecipe) -> dict[str, Any]:
    """Return the keys of a source that determine the documents of given spans: not its name, weight, `take`
    or paths."""
    elsewhere = {*source.place_keys, "weight", "take", "name", "license", "clean"}
    elsewhere |= {"max_missing", "max_dropped", "max_malformed", "max_null", "max_document_bytes"}
    reading = source.model_dump(exclude=elsewhere)
    # A key that is not set leaves the digest as it was before there was such a key.
    return {key: value for key, value in reading.items() if value not in (None, [])} | identify_steps(source)
