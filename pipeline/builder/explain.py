"""Why a document is not in a set, from the work folder of its build, for `tokenmill trace --hash`.

Runs are sorted by content hash, so a document is found in each of them with one small read. What was dropped before
encoding is in no run: then the document's text tells. Costs a receipt and a read for each run.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.builder.checked_recipe import pin_models
from pipeline.builder.places import default_work
from pipeline.builder.stored_build import BUILD_FILE, Build, read_build, stored_build_errors
from pipeline.clean.functions.process import closing_functions, start_functions
from pipeline.clean.reasons import ITEM, MEASURED, NEAR_DUPLICATE, NOT_TAKEN, describe_masked, find_reason, step_of
from pipeline.clean.steps import clean_batch
from pipeline.clean.tally import MARK, Tally
from pipeline.encode.run import CONNECTIONS
from pipeline.engine.receipts import TaskOutput
from pipeline.engine.tasks import last_part
from pipeline.mix.cuts import MixResult
from pipeline.mix.evidence import read_evidence
from pipeline.mix.index import find_take_end
from pipeline.recipe.sources import FilesSource
from pipeline.sources.base import SourceError, TextBatch
from pipeline.sources.files import list_files, list_spans_of_file
from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS, is_local
from pipeline.sources.formats.contract import FORMATS
from pipeline.sources.formats.whole_file import take_text
from shards.errors import InputError, plural
from shards.format.content_hash import hash_document
from shards.format.manifest import BLOCK_LIST_REASON
from shards.format.writer import shard_name
from shards.stores.open import absolute_place, open_writable_store
from shards.stores.store import WritableStore
from shards.terminal.display import JsonObject
from shards.terminal.workers import map_in_threads

_Copy = tuple[int, int]
"""A document: the number of its run, in the order of the mix, and its index in it."""

_LAST = ("", NEAR_DUPLICATE, NOT_TAKEN)
"""The steps after copies were dropped; none of a document that is kept."""
STATES = ("in the set", "not taken", "dropped", "would be dropped before encoding", "never seen", "unknown")
"""The answers, in the order of how far a document got: one that is in the set got furthest."""


@dataclass(frozen=True)
class Question:
    """A document, and where to look for it."""

    place: str
    """The set."""
    manifest_sha256: str
    hash: str
    """The document's content hash, 32 hexadecimal digits."""
    work: str | None
    """The work folder; None for the default one of the set."""
    text: bytes | None
    """The document's text, if it is known."""
    file: str
    """The file that holds the text, if it is in one; else ""."""
    allow_code: bool
    """Whether functions of the build's recipe may run on the text."""


Answer = tuple[list[str], JsonObject]
"""What a work folder says of a document: lines for people, whose foreign text is not made safe yet, and JSON values."""


def explain(question: Question) -> Answer | None:
    """Return what the work folder of a build says about a document; None if there is no work folder at the default
    place.

    Raises:
        InputError: the named folder is not a work folder.
        RunError: the work folder is damaged.
    """
    work = _find_work(question)
    if work is None:
        return None
    with stored_build_errors():
        return _Inquiry(read_build(work), question).run()


def _find_work(question: Question) -> WritableStore | None:
    if question.work is not None:
        return open_writable_store(question.work)
    try:
        work = open_writable_store(default_work(absolute_place(question.place)))
    except InputError:  # a set on the Hub has no folder next to it
        return None
    return work if work.find(BUILD_FILE) is not None else None


def _decode(text: bytes, encoding: str, format_: str = "file") -> bytes:
    """Return a text as UTF-8; what is not in the encoding or format at all, as bytes that are not."""
    try:
        return take_text(format_, text, encoding)
    except ValueError:
        return b"\xff"


class _Inquiry:
    """One question, put to one build: the facts about a text, which add up."""

    def __init__(self, build: Build, question: Question):
        self._build, self._question = build, question
        self._sources = build.recipe.sources
        self._names = build.recipe.source_names
        self._lines: list[str] = []
        self._data: JsonObject = {}
        self._answer = "unknown"

    def _raise_to(self, answer: str) -> None:
        """Set the explanation of a document, unless it already says more."""
        self._answer = min(self._answer, answer, key=STATES.index)

    def run(self) -> Answer:
        """Return the explanation of a document that is not in the set."""
        copies = self._search(self._question.hash)
        of_set = self._build.manifest == self._question.manifest_sha256
        if not of_set:
            self._lines.append(
                f"{self._build.work}: its last build did not make this set: the recipe or the sources "
                "have changed since, or the build stopped. What follows is about that build."
            )
        if copies:
            self._data |= self._describe_copies(copies)
        elif self._question.text is not None:
            self._try_sources(self._question.text)
        else:
            self._describe_unknown()
        data = {"work": str(self._build.work), "mix": last_part(self._build.mix), "of_this_set": of_set}
        return self._lines, data | {"answer": self._answer} | self._data

    def _search(self, digest: str) -> list[_Copy]:
        """Return the documents of all runs with a hash, in the order of the mix."""
        low = int(digest, 16)
        start, stop = (divmod(bound, 1 << 64) for bound in (low, low + 1))

        def search(number: int) -> list[_Copy]:
            first, rows = self._build.runs[number].read_between(start, stop)
            return [(number, first + place) for place in range(len(rows))]

        found = map_in_threads(search, range(len(self._build.runs)), CONNECTIONS)
        return list(itertools.chain.from_iterable(found))

    # Documents that were encoded.

    def _describe_copies(self, copies: list[_Copy], indent: str = "") -> JsonObject:
        """Explain what became of the copies of one document, as JSON values.

        Args:
            copies: all documents of the runs with one hash, in the order of runs and rows.
            indent: of the lines that say it.

        Returns:
            Of each copy its place, its `state` (`in the set`, `dropped` or `not taken`), the `shards` that hold it, the
            `reasons` why none does, and `notes`: findings that are only reported.

        Raises:
            WorkFileDamagedError: a file of the work folder is not as it was written.
        """
        evidence = read_evidence(self._build.mix, len(self._build.runs))
        rows = [evidence.of(*copy) for copy in copies]
        # Of equal documents one went on to the last steps.
        kept = next((at for at, row in zip(copies, rows, strict=True) if step_of(row["dropped"] or "") in _LAST), None)
        outcomes: list[JsonObject] = []
        for copy, row in zip(copies, rows, strict=True):
            shards, notes = list[str](), list[dict[str, str]]()
            if row["dropped"] is None:
                shards, reasons = self._find_shards(*copy)
                found = [*self._explain(copy, row, ITEM, action="report"), *self._explain(copy, row, NEAR_DUPLICATE)]
                notes = [note | {"text": f'{note["text"]}; action = "report" keeps it'} for note in found]
            else:
                reasons = [*self._explain(copy, row, row["dropped"], kept)]
            state = "not taken" if step_of(row["dropped"] or "") in ("", NOT_TAKEN) else "dropped"
            outcome = {"state": "in the set" if shards else state, "shards": shards, "reasons": reasons, "notes": notes}
            outcomes.append(self._describe(*copy) | outcome)
        for outcome in outcomes:
            self._raise_to(outcome["state"])
            state = ", ".join([outcome["state"], *outcome["shards"]])
            self._lines.append(f"{indent}{outcome['source']}: {outcome['unit']} row {outcome['row']}: {state}")
            self._lines += [f"{indent}  {reason['text']}" for reason in outcome["reasons"] + outcome["notes"]]
        return {"copies": outcomes}

    def _describe(self, number: int, index: int) -> JsonObject:
        one = self._build.runs[number].describe(index)
        return {"source": self._names[self._build.runs[number].source], "unit": one.pop("place"), **one}

    def _explain(
        self, copy: _Copy, row: JsonObject, counted: str, kept: _Copy | None = None, action: str = "drop"
    ) -> Iterator[dict[str, str]]:
        """Yield why the mix drops or reports a document, by its row of the evidence, as JSON values.

        Args:
            copy: the document.
            row: of the evidence.
            counted: the reason, as it is counted.
            kept: the document with the same hash that was not dropped as a copy.
            action: of the evaluation sets.
        """
        run, index = self._build.runs[copy[0]], copy[1]
        source, reason = self._build.recipe.sources[run.source], find_reason(counted)
        facts: list[JsonObject] = []
        match reason.code:
            case "block_list":
                facts = [{"list": counted.removeprefix(BLOCK_LIST_REASON)}]
            case "evaluations":
                names = {one.name for one in self._build.recipe.evaluations if one.action == action}
                facts = [item for item in row.get("items", ()) if item["evaluation"] in names]
            case "duplicate":
                assert kept is not None
                first = self._describe(*kept)
                of_source = "" if first["source"] == source.name else f" of the source {first['source']!r}"
                facts = [first | {"of_source": of_source}]
            case "near_duplicate":
                if row.get("twin_run") is not None:
                    twin = self._describe(row["twin_run"], row["twin_index"])
                    facts = [twin | {"jaccard": row["jaccard"]}]
            case "take":
                facts = [{"reason": counted, "source": source.name, "end": find_take_end(source.take)}]
            case _:
                limits = source.clean.limits("mix")
                values = run.read_measures(index, index + 1)[0] if limits else ()
                for limit in limits:
                    value = values[run.measures.index(limit.measure)]  # float32, as the limit is compared
                    if limit.is_violated(value):
                        known = {"measure": limit.measure, "value": value, "limit": limit.value}
                        facts.append({"reason": MEASURED.format(reason=limit.reason, **known)})
                facts = facts or [{"reason": counted}]
        yield from (reason.explain(**known) for known in facts)

    def _find_shards(self, number: int, index: int) -> tuple[list[str], list[dict[str, str]]]:
        """Return the shards that hold a kept copy; if none does, explain why: beyond the mix, or there is no set."""
        result, run = TaskOutput(self._build.mix, MixResult).result, self._build.runs[number]
        plan, key = result.plan, run.hash_key(index)
        if plan is None:
            fault = result.fault.partition("\n")[0]
            text = f"nothing drops it, but the last build made no set: {fault}"
            return [], [{"step": "stopped", "text": text}]
        held = [
            shard_name(one.split, one.index)  # type: ignore[arg-type]
            for one in plan.shards
            for piece in one.slices
            if piece.source == run.source and piece.start <= key < piece.stop
        ]
        if held:
            return held, []
        text = (
            f"nothing drops it, but the mix takes {plural(plan.requested_tokens[run.source], 'training token')} of the "
            f"source {self._names[run.source]!r}, which has {result.drops[run.source].left.tokens:,}: those of the "
            "documents with the lowest hashes"
        )
        return [], [{"step": "budget", "text": text}]

    # Documents that were not, as far as the hash says.

    def _try_sources(self, text: bytes) -> None:
        self._sources = pin_models(self._build.recipe, allow_code=self._question.allow_code).sources
        formats = self._find_formats()
        wholes = [number for number, format_ in formats.items() if self._is_whole(number, format_, text)]
        if formats and not wholes:
            raise InputError(
                f"--document {self._question.file}: holds several documents ({', '.join({*formats.values()})}). Give a "
                "file with the text of one; --text finds the documents that contain a text."
            )
        is_chat = MARK.match(text) is not None
        numbers = wholes or [number for number, one in enumerate(self._sources) if one.has_conversations == is_chat]
        with closing_functions():
            start_functions(self._sources[number] for number in numbers)
            try:
                tried = [
                    {"source": self._names[number]} | self._try(number, text, formats.get(number, "file"))
                    for number in numbers
                ]
            except InputError as error:
                raise InputError(f"{self._question.file}: {error}") from error
        self._data["tried"] = tried
        dropped: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        unseen: list[str] = []
        for number, one in zip(numbers, tried, strict=True):
            if one["dropped"]:
                dropped[tuple(one["details"])].append(one["source"])
            elif "copies" not in one:
                unseen.append(f"{one['source']}{' (read in part)' * self._build.has_more[number]}")
        for details, names in dropped.items():
            self._lines.append(f"{', '.join(names)}: this text would be dropped before encoding")
            self._lines += [f"  {line}" for line in details]
        if unseen:
            self._lines.append(
                f"no document of {', '.join(unseen)} has this text: cleaning keeps it, but it was not in what "
                "the build read; or a row with it was rejected by `keep`, or the files have changed"
            )
        self._raise_to("never seen")

    def _find_formats(self) -> dict[int, str]:
        """Return the sources that list the file to explain, by number, and the format in which each reads it.

        Of sources that are not on this machine nothing is known.
        """
        found: dict[int, str] = {}
        for number, source in enumerate(self._sources):
            if isinstance(source, FilesSource) and all(map(is_local, source.paths)):
                with suppress(SourceError, *BROKEN_FILE_ERRORS):
                    for own in list_files(source):
                        if os.path.samefile(own.url, self._question.file):
                            found.update((number, span.format) for span in list_spans_of_file(source, own, None))
        return found

    def _is_whole(self, source: int, format_: str, text: bytes) -> bool:
        """Return whether a source takes the text of a file as one document."""
        recipe = self._sources[source]
        return FORMATS[format_].module == "whole_file" or (
            format_ == "text" and (recipe.separator or "").encode() not in _decode(text, recipe.encoding)
        )

    def _try(self, source: int, text: bytes, format_: str) -> JsonObject:
        """Explain a text in a source's encoding: put it through the cleaning; if its hash changes, look for that.

        Returns:
            What happened, as JSON values.
        """
        recipe, tally = self._sources[source], Tally()
        if not recipe.has_conversations:
            text = _decode(text, recipe.encoding, format_)
        batch = TextBatch(pa.array([text], pa.large_binary()), np.zeros(1, np.uint32))
        documents, masked = clean_batch(recipe, batch, tally), dict(sorted(tally.masked.items()))
        if not len(documents):
            (reason,) = tally.dropped
            whys = [document.why for document in tally.shown] or [reason]
            known = {"bytes": len(text), "source": recipe}
            details = [find_reason(reason).explain(reason=why, **known)["text"] for why in whys]
            self._raise_to("would be dropped before encoding")
            return {"dropped": reason, "details": details, "masked": masked}
        # Cleaning keeps the text, perhaps changed: then a run has it under another hash.
        digest = hash_document(bytes(next(iter(documents)))).hex()
        tried: JsonObject = {"dropped": None, "details": [], "masked": masked, "hash": digest}
        if digest != self._question.hash:
            how = [f"changed by clean.{label}" for label in tally.edited if label.startswith("python.")]
            how += [f"masked ({describe_masked(masked)})"] * bool(masked)
            self._lines.append(
                f"{recipe.name}: this text: {' and '.join(how) or f'read as {format_} in {recipe.encoding}'}, and then "
                f"has the hash {digest}"
            )
            if copies := self._search(digest):
                return tried | self._describe_copies(copies, "  ")
        return tried

    def _describe_unknown(self) -> None:
        """Explain what a hash alone can tell of a document that is in no run."""
        # Only the text would tell; the counts tell what may have happened.
        tallies = self._build.read_tallies()
        dropped = {name: tally.dropped for name, tally in zip(self._names, tallies, strict=True) if tally.dropped}
        masked = dict(sorted(Tally.sum(tallies).masked.items()))
        unread = [name for name, more in zip(self._names, self._build.has_more, strict=True) if more]
        self._data = {"dropped_before_encoding": dropped, "masked": masked, "unread": unread}
        if not dropped and not masked and not unread:
            names = ", ".join(map(repr, self._names))
            text = f"never seen: {names} were read whole, nothing was dropped or masked before encoding"
            self._lines.append(f"{text}, and no document has this hash")
            self._raise_to("never seen")
            return
        lines = ["no document that was encoded has this hash. A hash alone does not tell which of these applies:"]
        for name, counts in dropped.items():
            listed = ", ".join(f"{count:,} because {reason}" for reason, count in sorted(counts.items()))
            lines.append(f"  {name}: dropped before encoding: {listed}")
        if masked:
            lines.append(f"  its personal data was masked, which changed its hash: {describe_masked(masked)}")
        if unread:
            lines.append(f"  it is in a part of {', '.join(map(repr, unread))} that was not read")
        lines += [
            "  no source has it",
            "`--document FILE` instead of --hash, with a file of its text, shows what cleaning does to it.",
        ]
        self._lines += lines
