"""Read from a work folder what cleaning drops at each limit, and near-duplicates, to choose limits by looking.

Mixing writes counts, histograms and the places of documents into `cleaning.json`, and the places of near-duplicates
into its receipt; the documents' text comes from the tokens of the runs. The build need not have finished: a mix whose
alarm stopped the build is shown too.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.builder.clean_report.differences import COMPARED_CHARACTERS, cut_parts
from pipeline.builder.clean_report.encoded import count_encoded
from pipeline.builder.clean_report.item_texts import read_item_texts
from pipeline.builder.python_api import default_work
from pipeline.builder.stored_build import read_build
from pipeline.encode.run import Run, token_dtype
from pipeline.encode.run_text import read_run_start, read_run_text
from pipeline.engine.receipts import TaskOutput
from pipeline.engine.tasks import digest_in
from pipeline.mix.cleaning import CLEANING_FILE, read_cleaning
from pipeline.mix.contamination import CONTAMINATION_FILE, EXCUSED_FILE
from shards.errors import InputError
from shards.format.manifest import MANIFEST_FILE
from shards.format.vocabulary import Vocabulary, read_vocabulary
from shards.stores.open import open_writable_store
from shards.stores.store import Store, WritableStore
from shards.trace.excerpt import cut_excerpt

TEXT_CHARACTERS = 1500
"""The beginning of a document's text that is shown."""
EXAMPLES = ("random", "fallen", "left")
HELD = 20
"""Documents that are shown of each evaluation set."""
EXCERPT_BYTES = 300
"""Text shown on each side of a copied item."""


def read_clean_report(place: str) -> dict[str, Any]:
    """Return what the last mix of a work folder dropped, each example with the beginning of its text.

    Args:
        place: a work folder or its address, or a set's, whose work folder is next to it.

    Raises:
        InputError: there is no work folder, or it has not cleaned while mixing.
        WorkFileDamagedError: a file of the work folder is not as it was written.
    """
    work = open_writable_store(place)
    if work.find(MANIFEST_FILE) is not None:
        work = open_writable_store(default_work(place))
    last = read_build(work)
    folder = last.mix
    mixed = TaskOutput(folder).result
    if "steps" not in mixed:
        raise InputError(
            f"{work}: its last mix cleaned nothing. Give the work folder (--work) of a build whose recipe has a "
            "`clean` table, such as [clean.gopher] or [clean.near_duplicates], or [[evaluations]]."
        )
    cleaning: dict[str, Any] = read_cleaning(folder) if CLEANING_FILE in mixed["files"] else {"sources": []}
    near: dict[str, Any] | None = mixed.get("near_duplicates")
    evaluations: list[dict[str, Any]] = mixed.get("contamination", [])
    held = _read_held(folder, evaluations)
    texts = _Texts(work, read_vocabulary(last.read_tokenizer()))
    for example in [*_examples(cleaning), *_documents(near), *held]:
        example["text"] = texts.start(example)[:TEXT_CHARACTERS]
    for pair in _pairs(near):
        dropped, kept = (texts.start(pair[end], COMPARED_CHARACTERS) for end in ("dropped", "kept"))
        pair["part"] = dict(zip(("start", "dropped", "kept"), cut_parts(dropped, kept), strict=True))
    for example in held:
        whole = texts.whole(example)
        example["found"] = cut_excerpt(whole, example["start"], example["stop"], around=EXCERPT_BYTES).to_dict()
    read_item_texts(last, evaluations)
    return {
        "work": str(work),
        "mix": digest_in(last.mix),
        "unread": [source.name for source, more in zip(last.recipe.sources, last.has_more, strict=True) if more],
        "steps": [
            {"name": source.name, "before_encoding": before} | steps
            for source, before, steps in zip(last.recipe.sources, count_encoded(last), mixed["steps"], strict=True)
        ],
        "sources": cleaning["sources"],
        "near_duplicates": near,
        "evaluations": evaluations,
    }


class _Texts:
    """Reads the text of documents from the tokens of their runs."""

    def __init__(self, work: WritableStore, vocabulary: Vocabulary):
        self._encode, self._vocabulary = work.child("encode"), vocabulary
        self._runs: dict[str, Run] = {}
        self._starts: dict[tuple[str, int], str] = {}

    def start(self, document: dict[str, Any], characters: int = TEXT_CHARACTERS) -> str:
        """Return the beginning of the text of the document at an index of a run."""
        if characters != TEXT_CHARACTERS:
            return read_run_start(self._run(document), document["index"], self._vocabulary, characters=characters)
        place = (document["run"], document["index"])
        if place not in self._starts:
            self._starts[place] = read_run_start(self._run(document), place[1], self._vocabulary, characters=characters)
        return self._starts[place]

    def whole(self, document: dict[str, Any]) -> bytes:
        """Return the whole text of such a document."""
        return read_run_text(self._run(document), document["index"], self._vocabulary)

    def _run(self, document: dict[str, Any]) -> Run:
        digest = document["run"]
        dtype = token_dtype(len(self._vocabulary))
        return self._runs.setdefault(digest, Run(str(self._encode.child(digest)), 0, dtype))


def _examples(cleaning: dict[str, Any]) -> list[dict[str, Any]]:
    limits = [limit for source in cleaning["sources"] for limit in source["limits"]]
    return [example for limit in limits for name in EXAMPLES for example in limit[name]]


def _pairs(near: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the pairs of near-duplicates that the mix lists."""
    lists = [source[name] for source in near["sources"] for name in ("shown", "nearest")] if near else []
    return [pair for pairs in lists for pair in pairs]


def _documents(near: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return both documents of each of these pairs."""
    return [pair[end] for pair in _pairs(near) for end in ("dropped", "kept")]


def _read_held(folder: Store, evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give each evaluation set the first documents that hold its items, in hash order; return all of them.

    Each is also given the items whose common phrases did not count, `excused_items`.
    """
    if not evaluations:
        return []
    table = pq.read_table(pa.BufferReader(TaskOutput(folder).read(CONTAMINATION_FILE)))
    table = table.sort_by([(name, "ascending") for name in ("hash", "item", "item_row")])
    excused = pq.read_table(pa.BufferReader(TaskOutput(folder).read(EXCUSED_FILE)))
    for evaluation in evaluations:
        own = table.filter(pc.field("evaluation") == evaluation["name"])
        evaluation["held"] = own.slice(0, HELD).to_pylist()
        evaluation["excused_items"] = excused.filter(pc.field("evaluation") == evaluation["name"]).to_pylist()
    return [row for evaluation in evaluations for row in evaluation["held"]]
