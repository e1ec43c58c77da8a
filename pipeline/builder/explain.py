"""Why a document is not in a set, from the work folder of its build: the entry point of `tokenmill trace --hash`.

Runs are sorted by content hash, so a document is found in each of them with one small read. What was dropped before
encoding is in no run: then the document's text tells, or the sources, read again. Costs a receipt and a read for each
run; reading sources costs the time that a disk or network needs for all text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pipeline.builder.python_api import default_work
from pipeline.builder.stored_build import BUILD_FILE, Build, read_build, stored_build_errors
from pipeline.clean.provenance import SourceRow, find_rows_by_hash
from pipeline.clean.trial import try_document
from pipeline.encode.run import CONNECTIONS, Run
from pipeline.engine.tasks import digest_in
from pipeline.mix.copies import Copy, Outcome, Outcomes, find_copies
from shards.errors import InputError, plural
from shards.format.content_hash import hash_document
from shards.stores.open import absolute_place, open_writable_store
from shards.stores.store import WritableStore
from shards.terminal.reporter import Progress
from shards.trace.explain_entry_point import Answer, Question

STATES = (
    "in the set",
    "not taken",
    "dropped",
    "dropped before encoding",
    "would be dropped before encoding",
    "never seen",
    "unknown",
)
"""The answers, those of the document that came furthest first."""
MOST_ROWS = 20
"""Rows of sources that are explained; equal text fares alike."""


def explain(question: Question, progress: Progress) -> Answer | None:
    """Return what the work folder of a build says about a document; None if there is no work folder at the default
    place.

    Raises:
        InputError: the named folder is not a work folder, or a source cannot be read.
        RunError: the work folder is damaged.
    """
    work = _find_work(question)
    if work is None:
        return None
    with stored_build_errors():
        return _Inquiry(read_build(work), question).answer(progress)


def _find_work(question: Question) -> WritableStore | None:
    if question.work is not None:
        return open_writable_store(question.work)
    try:
        work = open_writable_store(default_work(absolute_place(question.place)))
    except InputError:  # a set on the Hub has no folder next to it
        return None
    return work if work.find(BUILD_FILE) is not None else None


@dataclass
class _Found:
    """The facts known about a text: about its copies in the runs, or about how far it got before them."""

    lines: list[str] = field(default_factory=list[str])
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    answer: str = "unknown"

    def raise_to(self, answer: str) -> None:
        """Set the answer, unless it already says more."""
        self.answer = min(self.answer, answer, key=STATES.index)


class _Inquiry:
    """One question, put to one work folder."""

    def __init__(self, last: Build, question: Question):
        self._last, self._question = last, question
        self._recipe = last.recipe
        self._names = [source.name for source in self._recipe.sources]
        self._dropped: dict[str, Counter[str]] = {name: Counter() for name in self._names}
        self._masked: Counter[str] = Counter()

    def answer(self, progress: Progress) -> Answer:
        """Return the answer."""
        copies = self._search(self._question.bounds, count=True)
        hashes = {copy.hash for copy in copies}
        if len(hashes) > 1:
            return Answer(frozenset(hashes), [], {})
        if copies:
            found = self._describe_copies(copies)
        elif self._question.read_sources:
            rows = list(islice(find_rows_by_hash(self._recipe.sources, self._question.bounds, progress), MOST_ROWS))
            hashes = {row.hash for row in rows}
            if len(hashes) > 1:
                return Answer(frozenset(hashes), [], {})
            found = self._describe_rows(rows)
        elif self._question.text is not None:
            found = self._try_sources(self._question.text)
        else:
            found = self._describe_unknown()
        of_set = self._last.manifest == self._question.manifest_sha256
        lines = found.lines
        if not of_set:
            lines = [
                f"{self._last.work}: its last build did not make this set as it is now: the recipe or the sources were "
                "changed since, or the build stopped. What follows is about that build.",
                *lines,
            ]
        mix = digest_in(self._last.mix)
        data = {"work": str(self._last.work), "mix": mix, "of_this_set": of_set, "answer": found.answer}
        return Answer(frozenset(hashes), lines, data | found.data)

    def _search(self, bounds: tuple[int, int], *, count: bool = False) -> list[Copy]:
        """Return the documents of all runs with a hash, in the order of the mix; count what was dropped before."""

        def search(number: int, run: Run) -> tuple[list[Copy], dict[str, Any]]:
            return find_copies(number, run, bounds), run.output.result

        copies: list[Copy] = []
        runs = self._last.runs
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for run, (own, result) in zip(runs, pool.map(search, range(len(runs)), runs), strict=True):
                copies += own
                if count:
                    self._count(self._names[run.source], result)
        return copies

    def _count(self, name: str, result: dict[str, Any]) -> None:
        self._dropped[name].update(result["dropped"])
        for kind, counts in result.get("masked", {}).items():
            self._masked[kind] += counts["documents"]

    def _place_of(self, digest: str, index: int) -> tuple[str, int]:
        run = next(run for run in self._last.runs if run.digest == digest)
        (row,) = run.read_documents(index, index + 1)
        return run.labels[int(row["span"])], int(row["row"])

    # Documents that were encoded.

    def _describe_copies(self, copies: list[Copy]) -> _Found:
        outcomes = Outcomes(self._last.mix, self._recipe, len(self._last.runs)).find(copies, self._place_of)
        found = _Found()
        for outcome in outcomes:
            found.raise_to(outcome.state)
            found.lines += self._describe_outcome(outcome)
        found.data["copies"] = [self._outcome_to_dict(outcome) for outcome in outcomes]
        return found

    def _describe_outcome(self, outcome: Outcome) -> Iterator[str]:
        copy = outcome.copy
        where = f"{self._names[copy.run.source]}: {copy.unit} row {int(copy.row['row'])}"
        yield f"{where}: {outcome.state}" + (f", {', '.join(outcome.shards)}" if outcome.shards else "")
        for reason in (*outcome.reasons, *outcome.notes):
            yield f"  {reason.text}"

    def _outcome_to_dict(self, outcome: Outcome) -> dict[str, Any]:
        copy = outcome.copy
        return {
            "source": self._names[copy.run.source],
            "unit": copy.unit,
            "row": int(copy.row["row"]),
            "hash": copy.hash,
            "tokens": int(copy.row["length"]),
            "state": outcome.state,
            "shards": outcome.shards,
            "reasons": [reason.to_dict() for reason in outcome.reasons],
            "notes": [note.to_dict() for note in outcome.notes],
        }

    # Documents that were not, as far as the hash says.

    def _describe_rows(self, rows: list[SourceRow]) -> _Found:
        found = _Found(data={"rows": []}, answer="never seen")
        for row in rows:
            where = f"{self._names[row.source]}: {row.place}"
            entry: dict[str, Any] = {"place": row.place, "keep": row.kept}
            if not row.kept:
                listed = ", ".join(
                    f"{name} {condition}" for name, condition in self._recipe.sources[row.source].keep.items()
                )
                found.lines += [f"{where}: dropped before encoding", f"  `keep` rejects the row: {listed}"]
                found.raise_to("dropped before encoding")
            else:
                self._add_trial(found, entry, where, "dropped before encoding", row.source, row.text)
            found.data["rows"].append({"source": self._names[row.source]} | entry)
        if not rows:
            found.lines.append(f"no row of {_list(self._names)}, read again, has this text. {_NOT_READ_AGAIN}")
        return found

    def _try_sources(self, text: bytes) -> _Found:
        found = _Found(data={"tried": []}, answer="never seen")
        for number, name in enumerate(self._names):
            entry: dict[str, Any] = {}
            self._add_trial(found, entry, f"{name}: this text", "would be dropped before encoding", number, text)
            found.data["tried"].append({"source": name} | entry)
        return found

    def _add_trial(
        self, found: _Found, entry: dict[str, Any], where: str, dropped: str, source: int, text: bytes
    ) -> None:
        """Put a text through a source's cleaning; if masking changes its hash, look for the new one."""
        trial = try_document(self._recipe.sources[source], text)
        entry |= {"dropped": trial.dropped, "details": [facts for _, facts in trial.details], "masked": trial.masked}
        if trial.dropped is not None:
            found.lines.append(f"{where}: {dropped}")
            found.lines += [f"  {line}" for line, _ in trial.details] or [f"  {trial.dropped}"]
            found.raise_to(dropped)
            return
        digest = hash_document(trial.text).hex()
        entry["hash"] = digest
        if trial.masked:
            kinds = ", ".join(f"{plural(count, 'time')} {kind}" for kind, count in trial.masked.items())
            found.lines.append(f"{where}: masked ({kinds}), and then has the hash {digest}")
            number = int(digest, 16)
            if copies := self._search((number, number + 1)):
                inner = self._describe_copies(copies)
                found.lines += [f"  {line}" for line in inner.lines]
                found.raise_to(inner.answer)
                entry |= inner.data
                return
        rest = ", and the source was read in part" if self._last.has_more[source] else ""
        found.lines.append(
            f"{where}: cleaning keeps it, but no sorted run has it: it was not in what the build read{rest}; or a row "
            "with it was rejected by `keep`, or the files have changed"
        )

    def _describe_unknown(self) -> _Found:
        """Say what a hash alone can tell of a document that is in no run."""
        dropped = {name: dict(counts) for name, counts in self._dropped.items() if counts}
        unread = [name for name, more in zip(self._names, self._last.has_more, strict=True) if more]
        data = {"dropped_before_encoding": dropped, "masked": dict(self._masked), "unread": unread}
        if not dropped and not self._masked and not unread:
            text = f"never seen: {_list(self._names)} were read whole, nothing was dropped or masked before encoding"
            return _Found([f"{text}, and no document has this hash"], data, "never seen")
        lines = ["no document that was encoded has this hash. A hash alone does not tell which of these applies:"]
        for name, counts in dropped.items():
            listed = ", ".join(f"{count:,} because {reason}" for reason, count in sorted(counts.items()))
            lines.append(f"  {name}: dropped before encoding: {listed}")
        if self._masked:
            listed = ", ".join(f"{count:,} with {kind}" for kind, count in sorted(self._masked.items()))
            lines.append(f"  its personal data was masked, which changed its hash: documents {listed}")
        if unread:
            lines.append(f"  it is in a part of {_list(unread)} that was not read")
        lines.append("  no source has it")
        lines.append(
            "`--document FILE`, a file with its text, in place of --hash shows what cleaning does to it; "
            "`--read-sources` searches all sources again."
        )
        return _Found(lines, data)


_NOT_READ_AGAIN = "Malformed records have no text, and text that rows only name was not fetched again."


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
