"""The steps of cleaning before encoding, in their order; each drops documents, counted by reason, or masks text.

Encoding, the tokenizer's sample, a plan, `trace --hash` and digests use all of them. A reason under which a step counts
documents is a row of `REASONS` in `pipeline.clean.reasons`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import as_large_binary, unwrap_mask
from pipeline.clean.limits import drop_beyond_limits
from pipeline.clean.measures import measure
from pipeline.clean.patterns import drop_matches
from pipeline.clean.reasons import EMPTY, INVALID, LONG, NULL, SHORT
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SHOWN_MALFORMED, Span, TextBatch, spans_to_json
from pipeline.sources.formats.encodings import explain_fault, is_utf8

Step = Callable[[SourceRecipe, Documents, Tally], Documents]
"""Returns the documents that a step leaves, and counts the others in the tally; it is given one at least. What measures
or searches reads `Documents.seen`."""


def _drop_by_length(source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
    lengths = np.diff(documents.offsets)
    least, most = source.min_bytes, source.max_bytes if source.max_bytes is not None else np.iinfo(np.int64).max
    empty = int((lengths == 0).sum())
    counts = {EMPTY: empty, SHORT: int((lengths < least).sum()) - empty, LONG: int((lengths > most).sum())}
    tally.drops.count_rows(counts)
    return documents.only((lengths >= least) & (lengths <= most))


def _import_filter(name: str) -> Any:
    """Return the module of a filter's tables, with the functions `apply` and `versions`.

    It is imported when a source has a table: most builds need none, and its patterns take 10 ms.
    """
    return import_module(f"pipeline.clean.{name}")


def _apply_filter(name: str, source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
    for table in source.clean.filters():
        if table.name == name and len(documents):
            documents = _import_filter(name).apply(table, documents, tally)
    return documents


STEPS: tuple[Step, ...] = (
    _drop_by_length,
    drop_matches,
    # Filters that may change the text come first: presets measure the text that is encoded.
    partial(_apply_filter, "python"),
    partial(_apply_filter, "personal_data"),
    drop_beyond_limits,
    partial(_apply_filter, "language"),
    partial(_apply_filter, "datatrove"),
)
"""Every step, in order. What identifies a step beside the keys of a source, `identify_steps` says."""


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
        text, rows = text.drop_null(), rows[unwrap_mask(text.is_valid())]
    tally.drops.count_rows({NULL: len(batch.text) - len(text)})
    found = Documents(cast("Any", text.view(pa.large_string())), rows, source.has_conversations)
    documents = _drop_undecodable(source, found, tally)
    # Then the steps, as long as there is something left.
    for step in STEPS:
        if not len(documents):
            break
        documents = step(source, documents, tally)
    return documents


def name_invalid(source: SourceRecipe) -> str:
    """Return the reason of text that does not decode in the source's encoding."""
    return f"{INVALID}{'UTF-8' if source.encoding == 'utf-8' else source.encoding}"


def _drop_undecodable(source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
    text: Any = documents.text
    try:
        text.validate(full=True)  # one pass over the whole buffer: 0.1 ms per MB
    except pa.ArrowInvalid:
        valid = np.array([is_utf8(value.as_buffer()) for value in text], bool)
        tally.drops.count_rows({name_invalid(source): len(text) - int(valid.sum())})
        for index in np.flatnonzero(~valid)[: SHOWN_MALFORMED - len(tally.malformed)].tolist():
            fault = explain_fault(text[index].as_buffer().to_pybytes(), source.encoding)
            tally.malformed.append(f"{tally.describe_row(int(documents.rows[index]))}: {fault}")
        return documents.only(valid)
    return documents


def identify_steps(source: SourceRecipe) -> dict[str, Any]:
    """Return what decides the result of the steps beside the keys of a source that are set, as JSON values.

    These are the tables of `clean` that a step reads, and the versions of its code and of libraries.
    """
    found: dict[str, Any] = {}
    if source.clean.presets():
        # Of presets with `when = "mix"` only the measures count: their limits are applied later.
        presets = {preset.name: preset.in_digest() for preset in source.clean.presets("encode")}
        measures = source.clean.mix_measures()
        found["clean"] = {"code": measure.CODE_VERSION, "measures": measures, "presets": presets}
    for table in source.clean.filters():
        identity = [_import_filter(table.name).versions(), table.in_digest()]
        found.setdefault(f"clean.{table.name}", []).append(identity)
    return found


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
