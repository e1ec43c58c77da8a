"""What cleaning drops at each limit, and near-duplicates, read from a work folder: to choose limits by looking.

Mixing writes counts, histograms and the places of documents into `cleaning.json`, and those of near-duplicates into its
receipt; the documents' text comes from the tokens of the runs. The build need not have ended: a mix whose alarm stopped
the build is shown too.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.build.alarms import LAST_FILE, read_cleaning, read_start, read_text
from pipeline.build.api import default_work
from pipeline.encode.run import Run, token_dtype
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.cleaning import CLEANING_FILE
from pipeline.mix.contamination import CONTAMINATION_FILE
from pipeline.tokenizer.train import TOKENIZER_FILE
from shards.errors import InputError
from shards.format.manifest import MANIFEST_FILE
from shards.format.tokenizer import read_vocabulary
from shards.stores.open import open_writable_store
from shards.stores.store import Store, WritableStore
from shards.trace.locate import cut_excerpt

TEXT_CHARACTERS = 1500
"""The beginning of a document's text that is shown."""
EXAMPLES = ("random", "fallen", "left")
HELD = 20
"""Documents that are shown of each evaluation set."""
EXCERPT_BYTES = 60
"""Text shown on each side of a copied item."""


def read_clean_report(place: str) -> dict[str, Any]:
    """Return what the last mix of a work folder dropped, each example with the beginning of its text.

    Args:
        place: a work folder or its address, or a set's, whose work folder is beside it.

    Raises:
        InputError: there is no work folder, or it has not cleaned while mixing.
        WorkFileDamagedError: a file of the work folder is not as it was written.
    """
    work = open_writable_store(place)
    if work.find(MANIFEST_FILE) is not None:
        work = open_writable_store(default_work(place))
    last = _read_last(work)
    vocabulary = read_vocabulary(_read_tokenizer(work, last))
    dtype, encode = token_dtype(len(vocabulary)), work.child("encode")
    runs: dict[str, Run] = {}
    texts: dict[tuple[str, int], str] = {}
    folder = work.child("mix").child(last["mix"])
    mixed = TaskOutput(folder).result
    cleaning: dict[str, Any] = read_cleaning(folder) if CLEANING_FILE in mixed["files"] else {"sources": []}
    near: dict[str, Any] | None = mixed.get("near_duplicates")
    evaluations: list[dict[str, Any]] = mixed.get("contamination", [])
    held = _read_held(folder, evaluations)
    for example in [*_examples(cleaning), *_documents(near), *held]:
        run = runs.setdefault(example["run"], Run(str(encode.child(example["run"])), 0, dtype))
        place_of = (example["run"], example["index"])
        if place_of not in texts:
            texts[place_of] = read_start(run, example["index"], vocabulary, characters=TEXT_CHARACTERS)
        example["text"] = texts[place_of]
    for example in held:
        text = read_text(runs[example["run"]], example["index"], vocabulary)
        example["found"] = cut_excerpt(text, example["start"], example["stop"], around=EXCERPT_BYTES).to_dict()
    return {
        "work": str(work),
        "mix": last["mix"],
        "sources": cleaning["sources"],
        "near_duplicates": near,
        "evaluations": evaluations,
    }


def _read_last(work: WritableStore) -> dict[str, Any]:
    """Return what the last mix that cleaned has noted.

    Raises:
        InputError: nothing is there, or no mix has cleaned.
    """
    try:
        return json.loads(work.child("mix").read(LAST_FILE))
    except OSError as error:
        if next(work.list(), None) is None:
            found = "is empty" if work.folder is None or work.folder.is_dir() else "no such folder"
            raise InputError(f"{work}: {found}. Give the work folder (--work) of a build, or its set.") from error
        raise InputError(
            f"{work}: no mix here has cleaned. Give the work folder (--work) of a build whose recipe has a preset with "
            'when = "mix", such as [clean.gopher], or [clean.near_duplicates], or [[evaluations]].'
        ) from error


def _read_tokenizer(work: WritableStore, last: dict[str, Any]) -> bytes:
    if last["tokenizer_task"] is not None:
        folder = work.child("tokenizer").child(last["tokenizer_task"])
        return bytes(TaskOutput(folder).read(TOKENIZER_FILE))
    try:
        return Path(last["tokenizer_file"]).read_bytes()
    except OSError as error:
        raise InputError(
            f"{last['tokenizer_file']}: cannot be read: {error.strerror}. It is the tokenizer of the runs in {work}; "
            "restore it, or build again."
        ) from error


def _examples(cleaning: dict[str, Any]) -> list[dict[str, Any]]:
    limits = [limit for source in cleaning["sources"] for limit in source["limits"]]
    return [example for limit in limits for name in EXAMPLES for example in limit[name]]


def _documents(near: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return both documents of each pair of near-duplicates that the mix lists."""
    lists = [source[name] for source in near["sources"] for name in ("shown", "nearest")] if near else []
    pairs = [pair for pairs in lists for pair in pairs]
    return [pair[end] for pair in pairs for end in ("dropped", "kept")]


def _read_held(folder: Store, evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give each evaluation set the first documents that hold its items, in hash order; return all of them."""
    if not evaluations:
        return []
    table = pq.read_table(pa.BufferReader(TaskOutput(folder).read(CONTAMINATION_FILE)))
    table = table.sort_by([(name, "ascending") for name in ("hash", "item", "item_row")])
    for evaluation in evaluations:
        own = table.filter(pc.field("evaluation") == evaluation["name"])
        evaluation["held"] = own.slice(0, HELD).to_pylist()
    return [row for evaluation in evaluations for row in evaluation["held"]]
