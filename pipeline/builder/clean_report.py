"""What each step and limit drops of each source, with documents, to choose limits by looking: read, and as a page.

Counts are those of the mix and of the runs' receipts. What a limit would drop at other values is counted anew from the
runs' measures, which takes about as long as the mix; examples are drawn from the evidence, and their text from the
tokens of the runs. The build need not have finished: a mix whose alarm stopped the build is shown, too.

The page is one HTML file that needs no network and runs no script. Its size does not grow with the corpus. The same
report gives the same bytes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipeline.builder.places import default_work
from pipeline.builder.stored_build import Build, read_build
from pipeline.clean.drops import SourceDrops
from pipeline.clean.reasons import ITEM, NEAR_DUPLICATE
from pipeline.clean.tally import Tally
from pipeline.encode.run import read_run_text
from pipeline.engine.receipts import TaskOutput
from pipeline.engine.tasks import last_part
from pipeline.mix.cuts import MixResult
from pipeline.mix.evidence import find_reasons, read_evidence
from shards.format.arrays import Bools
from shards.format.manifest import BLOCK_LIST_REASON, MANIFEST_FILE
from shards.format.vocabulary import Vocabulary, read_vocabulary
from shards.report.render import TEMPLATES, check_replaceable, make_render_environment, read_style
from shards.stores.files import make_folder, write_text
from shards.stores.open import open_writable_store
from shards.terminal.display import JsonObject, find_difference
from shards.trace.locate import cut_excerpt

TEXT_CHARACTERS = 1500
"""The beginning of a document's text that is shown; of near-duplicates, from shortly before the first difference."""
BEFORE_CHARACTERS = 240
"""Equal characters that are shown before the first difference."""
EXCERPT_BYTES = 300
"""Text shown on each side of a copied item."""
_OTHER_FACTORS = (0.5, 0.75, 1.5)
"""A limit times these are the other values at which documents are counted."""
_OTHER_COUNTS = [1.0, 2.0, 5.0]
"""The other values of a limit that allows none of something."""
_OWN_TEMPLATES = Path(__file__).parent / "templates"
_MARK = b'<meta name="generator" content="tokenmill clean-report">'
"""In the page; a file without it is not replaced."""


@dataclass
class ReportRow:
    """A row of the table: a reason, and what it drops of a source."""

    source: str
    step: str
    reason: str
    note: str
    """`before encoding`, or that the documents stay."""
    documents: int
    """Those whose first reason it is."""
    share: float
    """Of the source's records."""
    tokens: int | None
    """None before encoding."""
    limit: float | None = None
    """The value of a limit that is applied in the mix."""
    alone: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """How many documents the limit alone would drop, at its value and at others."""
    examples: list[JsonObject] = field(default_factory=list[JsonObject])


def read_clean_report(place: str, *, examples: int = 0) -> JsonObject:
    """Return what the last mix of a work folder dropped, as JSON values but for `rows`, which are `ReportRow`s.

    Args:
        place: a work folder or its address, or a set's, whose work folder is next to it.
        examples: documents of each row, with their text.

    Raises:
        InputError: there is no work folder, or no build in it has mixed.
        WorkFileDamagedError: a file of the work folder is not as it was written.
    """
    work = open_writable_store(place)
    if work.find(MANIFEST_FILE) is not None:
        work = open_writable_store(default_work(place))
    build = read_build(work)
    output = TaskOutput(build.mix, MixResult)
    tallies = build.read_tallies()
    drops = [own.after(tally.drops) for own, tally in zip(output.result.drops, tallies, strict=True)]
    names = build.recipe.source_names
    shown = StoredDocuments(build)
    rows: list[ReportRow] = []
    for number, own in enumerate(drops):
        rows += (found := shown.list_rows(number, own))
        shown.add_alone(number, found)
    if examples:
        for row in rows:
            source = names.index(row.source)
            row.examples = _draw_before_encoding(tallies[source], row, examples) or shown.draw(source, row, examples)
    evaluations = [
        {
            "name": evaluation,
            "found": found,
            "documents": {
                name: own.step(f"{ITEM}{evaluation}").found.documents for name, own in zip(names, drops, strict=True)
            },
        }
        for evaluation, found in output.result.items.items()
    ]
    return {
        "work": str(work),
        "mix": last_part(build.mix),
        "unread": [name for name, more in zip(names, build.has_more, strict=True) if more],
        "sources": [
            {"name": name, "records": own.records, "read": asdict(own.read), "left": asdict(own.left)}
            | {"masked": dict(sorted(tally.masked.items()))}
            for name, own, tally in zip(names, drops, tallies, strict=True)
        ],
        "rows": rows,
        "evaluations": evaluations,
    }


def list_values(value: float) -> list[float]:
    """Return the values of a limit at which documents are counted, its own among them: whole numbers, or shares."""
    if value == 0:
        return [value, *_OTHER_COUNTS]
    # Three digits are enough to choose a limit.
    others = [float(f"{value * factor:.3g}") for factor in _OTHER_FACTORS]
    if value >= 1 and value == int(value):
        others = [float(round(other)) for other in others]
    return sorted({value, *(other for other in others if value >= 1 or other <= 1)})


def _draw_before_encoding(tally: Tally, row: ReportRow, most: int) -> list[JsonObject]:
    """Return documents that a step drops before encoding, by the hash of their place."""
    own = [one for one in tally.shown if one.reason == row.reason]
    own.sort(key=lambda one: xxhash.xxh3_64_intdigest(f"{one.place} {one.row}".encode()))
    return [asdict(one) for one in own[:most]] if row.tokens is None else []


class StoredDocuments:
    """The documents of a build's runs, with what the mix says of them, and their text."""

    def __init__(self, build: Build):
        self.build, self._evidence = build, read_evidence(build.mix, len(build.runs))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return replace(read_vocabulary(self.build.read_tokenizer()), bos=self.build.tokenizer.bos_id)

    def list_rows(self, source: int, drops: SourceDrops) -> list[ReportRow]:
        """Return the rows of a source: one for each reason that drops or reports documents."""
        recipe = self.build.recipe.sources[source]
        limits = {limit.reason: limit.value for limit in recipe.clean.limits("mix")}
        return [
            ReportRow(
                recipe.name,
                name,
                reason,
                step.note,
                counts.documents,
                counts.documents / max(1, drops.records),
                None if step.before_encoding else counts.tokens,
                limit=None if step.note else limits.get(reason),
            )
            for name, step in drops.steps.items()
            for reason, counts in step.reasons.items()
            if counts.documents
        ]

    def add_alone(self, source: int, rows: Sequence[ReportRow]) -> None:
        """Count what the limits of some rows would drop alone at several values, of the documents that they decide on.

        All measures of the source are read.
        """
        limited = {row.reason: row for row in rows if row.limit is not None}
        limits = [one for one in self.build.recipe.sources[source].clean.limits("mix") if one.reason in limited]
        counts = [dict.fromkeys(list_values(limit.value), 0) for limit in limits]
        # Documents that are counted for a block list or an item never reach the limits.
        runs = [number for number, run in enumerate(self.build.runs) if run.source == source]
        for number in range(self._evidence.places.partitions if limits else 0):
            dropped = self._evidence.read(number, ("dropped",))
            decided = ~find_reasons(dropped, lambda reason: reason.startswith((BLOCK_LIST_REASON, ITEM)))
            begins, edges = self._evidence.places.begins(number), self._evidence.places.edges[number : number + 2]
            for run, (first, last) in ((run, edges[:, run].tolist()) for run in runs):
                own = self.build.runs[run]
                values = own.read_measures(first, last)[decided[begins[run] :][: last - first]]
                for limit, alone in zip(limits, counts, strict=True):
                    column = values[:, own.measures.index(limit.measure)]
                    for value in alone:
                        alone[value] += int(np.count_nonzero(replace(limit, value=value).is_violated(column)))
        for limit, alone in zip(limits, counts, strict=True):
            limited[limit.reason].alone = list(alone.items())

    def draw(self, source: int, row: ReportRow, most: int) -> list[JsonObject]:
        """Return the documents that are shown of a row, those with the lowest hashes: a random draw."""
        evaluation = row.reason.removeprefix(ITEM) if row.step.startswith(ITEM) else None

        def choose(rows: pa.Table) -> Bools:
            if evaluation is not None:
                items: Any = rows["items"].combine_chunks()
                held = pc.equal(items.flatten().field("evaluation"), pa.scalar(evaluation))
                mask = np.zeros(len(rows), bool)
                mask[pc.list_parent_indices(items).filter(held).to_numpy(zero_copy_only=False)] = True
                return mask
            if row.step == NEAR_DUPLICATE and row.note:  # reported, not dropped
                return rows["twin_run"].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
            return find_reasons(rows, row.reason.__eq__)

        drawn = self._evidence.draw(self.build.runs, source, choose, most)
        return [self._show(run, index, found, row, evaluation) for run, index, found in drawn]

    def _read_text(self, run: int, index: int) -> bytes:
        return read_run_text(self.build.runs[run], index, self._vocabulary)

    def _show(self, run: int, index: int, found: JsonObject, row: ReportRow, evaluation: str | None) -> JsonObject:
        own, data = self.build.runs[run], self._read_text(run, index)
        document = own.describe(index)
        text = data.decode("utf-8", "replace")
        if row.limit is not None:
            document["value"] = own.read_measure(index, row.reason.partition(": ")[2][4:])
        if row.step == NEAR_DUPLICATE:
            twin = found["twin_run"], found["twin_index"]
            other = self._read_text(*twin).decode("utf-8", "replace")
            start = find_start(text, other)
            text = text[start:]
            twin = self.build.runs[twin[0]].describe(twin[1]) | {"text": other[start:][:TEXT_CHARACTERS]}
            document |= {"jaccard": found["jaccard"], "start": start, "twin": twin}
        if evaluation is not None:
            item = next(item for item in found["items"] if item["evaluation"] == evaluation)
            excerpt = cut_excerpt(data, item["start"], item["stop"], around=EXCERPT_BYTES)
            document |= {"item": item, "found": asdict(excerpt)}
        return document | {"text": text[:TEXT_CHARACTERS]}


def find_start(first: str, second: str) -> int:
    """Return the character from which two texts are shown: shortly before they first differ."""
    same = find_difference(first, second)
    return max(0, same - BEFORE_CHARACTERS) if first != second else 0


def write_page(report: JsonObject, out: Path) -> None:
    """Write the page of a clean report.

    Args:
        report: what `read_clean_report` returned.
        out: the file, which may be an earlier page.

    Raises:
        InputError: its folder is another user's.
        OSError: no report wrote the file, or it cannot be written.
    """
    make_folder(out.parent)
    page = render_page(report)
    check_replaceable(out, _MARK)
    write_text(out, page)


def render_page(report: JsonObject) -> str:
    """Return the HTML page of a clean report."""
    style = read_style(TEMPLATES / "style.css", _OWN_TEMPLATES / "clean.css")
    template = make_render_environment(_OWN_TEMPLATES).get_template("clean_report.html.jinja")
    return template.render({"report": report} | style)
