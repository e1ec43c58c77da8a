"""Read from a work folder what cleaning drops at each limit, and near-duplicates, to choose limits by looking.

The mix's receipt has the table of drops and the places of near-duplicates, `cleaning.json` histograms and the places
of other documents; their text comes from the tokens of the runs. The build need not have finished: a mix whose alarm
stopped the build is shown too.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from pipeline.builder.clean_report.differences import COMPARED_CHARACTERS, cut_parts
from pipeline.builder.clean_report.item_texts import read_item_texts
from pipeline.builder.python_api import default_work
from pipeline.builder.stored_build import Build, read_build
from pipeline.clean.drops.table import ITEM_REASON, PATTERN_REASON, Counts, Drop, SourceDrops
from pipeline.clean.tally import Tally
from pipeline.encode.run_text import read_run_start, read_run_text
from pipeline.engine.receipts import TaskOutput
from pipeline.engine.tasks import digest_in
from pipeline.mix.cleaning import CLEANING_FILE, read_cleaning
from pipeline.mix.contamination import CONTAMINATION_FILE, EXCUSED_FILE
from pipeline.mix.cuts import MixResult
from shards.format.manifest import MANIFEST_FILE
from shards.format.vocabulary import read_vocabulary
from shards.stores.open import open_writable_store
from shards.trace.excerpt import cut_excerpt

TEXT_CHARACTERS = 1500
"""The beginning of a document's text that is shown."""
EXAMPLES = ("random", "fallen", "left")
ENCODED = 20
"""Documents that are shown of each reason before encoding."""
HELD = 20
"""Documents that are shown of each evaluation set."""
EXCERPT_BYTES = 300
"""Text shown on each side of a copied item."""


def read_clean_report(place: str) -> dict[str, Any]:
    """Return what the last mix of a work folder dropped, each example with the beginning of its text.

    The `drops` of each source in `steps` are `SourceDrops`, all else is JSON values.

    Args:
        place: a work folder or its address, or a set's, whose work folder is next to it.

    Raises:
        InputError: there is no work folder, or no build in it has mixed.
        WorkFileDamagedError: a file of the work folder is not as it was written.
    """
    work = open_writable_store(place)
    if work.find(MANIFEST_FILE) is not None:
        work = open_writable_store(default_work(place))
    # The build as its mix left it.
    build = read_build(work)
    mixed = TaskOutput(build.mix, MixResult)
    # One table for each source: the steps before encoding, then those of the mix.
    tallies = build.read_tallies()
    drops = [own.after(tally.drops) for own, tally in zip(mixed.result.drops, tallies, strict=True)]
    by_name = dict(zip((source.name for source in build.recipe.sources), drops, strict=True))
    limits: list[dict[str, Any]] = read_cleaning(build.mix)["sources"] if CLEANING_FILE in mixed.result.files else []
    for entry in limits:
        add_counts(entry, by_name[entry["name"]])
    # The evidence of each step, with the text of its documents.
    near, evaluations = _read_near(build, mixed.result), [asdict(counts) for counts in mixed.result.contamination]
    held = _read_held(mixed, evaluations, by_name)
    _add_texts(build, limits, near, held)
    read_item_texts(build, evaluations)
    return {
        "work": str(work),
        "mix": digest_in(build.mix),
        "unread": [name for name, more in zip(by_name, build.has_more, strict=True) if more],
        "steps": [
            {"name": name, "drops": source, "masked": tally.masked_counts, "examples": _draw_examples(tally)}
            for (name, source), tally in zip(by_name.items(), tallies, strict=True)
        ],
        "sources": limits,
        "near_duplicates": near,
        "evaluations": evaluations,
    }


def _draw_examples(tally: Tally) -> list[dict[str, Any]]:
    """Return `ENCODED` documents of each reason, as JSON values; those of patterns are for the alarm alone."""
    # The hash of a place is a random order that stays the same.
    drawn: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    shown = [document for document in tally.shown if not document.reason.startswith(f"{PATTERN_REASON} ")]
    for one in sorted(shown, key=lambda one: xxhash.xxh3_64_intdigest(f"{one.place} {one.row}".encode())):
        seen[one.reason] += 1
        if seen[one.reason] <= ENCODED:
            drawn.append(asdict(one))
    return drawn


def add_counts(entry: dict[str, Any], drops: SourceDrops) -> None:
    """Give the limits of a source what the table says of them."""
    steps = [drops.step(preset) for preset in dict.fromkeys(limit["preset"] for limit in entry["limits"])]
    came = steps[0].came if steps else Counts()
    gone = [step.first for step in steps]
    left = Counts(
        came.documents - sum(one.documents for one in gone),
        came.tokens - sum(one.tokens for one in gone),
    )
    entry |= {"read": asdict(came), "left": asdict(left)}
    for limit in entry["limits"]:
        drop = drops.step(limit["preset"]).reason(limit["reason"])
        limit |= asdict(Drop(drop.first, drop.every or Counts(), drop.alone or Counts()))


def _read_near(build: Build, mixed: MixResult) -> dict[str, Any] | None:
    """Return the settings of near-duplicates, and some pairs of each source; None if the build looks for none."""
    settings, found = build.recipe.clean.near_duplicates, mixed.near_duplicates
    if settings is None or found is None:
        return None
    names = [source.name for source in build.recipe.sources]
    return {
        "action": settings.action,
        "min_jaccard": settings.min_jaccard,
        "compared": found.compared,
        "pairs": found.pairs,
        "sources": [{"name": name} | own for name, own in zip(names, found.sources, strict=True)],
    }


def _add_texts(
    build: Build, limits: list[dict[str, Any]], near: dict[str, Any] | None, held: list[dict[str, Any]]
) -> None:
    """Give each example the beginning of its text, and what it shows of a pair or of a copied item."""
    vocabulary = read_vocabulary(build.read_tokenizer())
    runs = {run.digest: run for run in build.runs}

    @cache  # a document is shown for several limits
    def read_start(digest: str, index: int, characters: int) -> str:
        return read_run_start(runs[digest], index, vocabulary, characters=characters)

    examples = [item for entry in limits for limit in entry["limits"] for name in EXAMPLES for item in limit[name]]
    for example in [*examples, *held]:
        example["text"] = read_start(example["run"], example["index"], TEXT_CHARACTERS)
    pairs = [pair for source in near["sources"] for pair in source["shown"] + source["nearest"]] if near else []
    for pair in pairs:
        # Of a pair, the part that differs is shown beside both beginnings.
        texts = [read_start(pair[end]["run"], pair[end]["index"], COMPARED_CHARACTERS) for end in ("dropped", "kept")]
        for end, text in zip(("dropped", "kept"), texts, strict=True):
            pair[end]["text"] = text[:TEXT_CHARACTERS]
        pair["part"] = dict(zip(("start", "dropped", "kept"), cut_parts(*texts), strict=True))
    for example in held:
        whole = read_run_text(runs[example["run"]], example["index"], vocabulary)
        example["found"] = cut_excerpt(whole, example["start"], example["stop"], around=EXCERPT_BYTES).to_dict()


def _read_held(
    mixed: TaskOutput[MixResult], evaluations: list[dict[str, Any]], drops: dict[str, SourceDrops]
) -> list[dict[str, Any]]:
    """Give each evaluation set its documents by source, and the first that hold its items, in hash order; return these.

    Each is also given the items whose common phrases did not count, `excused_items`.
    """
    if not evaluations:
        return []
    table = pq.read_table(pa.BufferReader(mixed.read(CONTAMINATION_FILE)))
    table = table.sort_by([(name, "ascending") for name in ("hash", "item", "item_row")])
    excused = pq.read_table(pa.BufferReader(mixed.read(EXCUSED_FILE)))
    for evaluation in evaluations:
        found = {name: own.step(f"{ITEM_REASON} {evaluation['name']}").found for name, own in drops.items()}
        evaluation["documents"] = {name: own.documents for name, own in found.items() if own.documents}
        own = table.filter(pc.field("evaluation") == evaluation["name"])
        evaluation["held"] = own.slice(0, HELD).to_pylist()
        evaluation["excused_items"] = excused.filter(pc.field("evaluation") == evaluation["name"]).to_pylist()
    return [row for evaluation in evaluations for row in evaluation["held"]]
