"""Why a document is not in a set, from the work folder of its build: the entry point of `tokenmill trace --hash`.

Runs are sorted by content hash, so a document is found in each of them with one small read. What was dropped before
encoding is in no run: then the document's text tells, or the sources, read again. Costs a receipt and a read for each
run; reading sources costs the time that a disk or network needs for all text.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from pipeline.builder.build import default_work
from pipeline.builder.stored_build import BUILD_FILE, Build, read_build, stored_build_errors
from pipeline.clean.tally import Tally
from pipeline.clean.trial import SourceRow, find_rows_by_hash, try_document
from pipeline.encode.run import CONNECTIONS, Run
from pipeline.engine.tasks import digest_in
from pipeline.mix.copies import Copy, Outcomes, find_copies
from shards.errors import InputError, plural
from shards.format.content_hash import hash_document
from shards.stores.open import absolute_place, open_writable_store
from shards.stores.store import WritableStore
from shards.trace.explain_entry_point import Answer, Progress, Question

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
        return _Inquiry(read_build(work), question).run(progress)


def _find_work(question: Question) -> WritableStore | None:
    if question.work is not None:
        return open_writable_store(question.work)
    try:
        work = open_writable_store(default_work(absolute_place(question.place)))
    except InputError:  # a set on the Hub has no folder next to it
        return None
    return work if work.find(BUILD_FILE) is not None else None


class _Inquiry:
    """One question, put to one build: the facts about a text, which add up."""

    def __init__(self, build: Build, question: Question):
        self._build, self._question = build, question
        self._sources = build.recipe.sources
        self._names = [source.name for source in self._sources]
        self._lines: list[str] = []
        self._data: dict[str, Any] = {}
        self._answer = "unknown"

    def _raise_to(self, answer: str) -> None:
        """Set the answer, unless it already says more."""
        self._answer = min(self._answer, answer, key=STATES.index)

    def run(self, progress: Progress) -> Answer:
        """Return the answer."""
        # Look in the runs, which are sorted by hash; then in the sources, which takes long.
        copies, rows = self._search(self._question.bounds), list[SourceRow]()
        reads = not copies and self._question.read_sources
        if reads:
            rows = list(islice(find_rows_by_hash(self._sources, self._question.bounds, progress), MOST_ROWS))
        hashes = frozenset({copy.hash for copy in copies} | {row.hash for row in rows})

        # A beginning of a hash may mean several documents.
        if len(hashes) > 1:
            return Answer(hashes, [], {})
        of_set = self._build.manifest == self._question.manifest_sha256
        if not of_set:
            self._lines.append(
                f"{self._build.work}: its last build did not make this set as it is now: the recipe or the sources "
                "were changed since, or the build stopped. What follows is about that build."
            )
        if copies:
            self._data |= self._describe_copies(copies)
        elif reads:
            self._describe_rows(rows)
        elif self._question.text is not None:
            self._try_sources(self._question.text)
        else:
            self._describe_unknown()
        data = {"work": str(self._build.work), "mix": digest_in(self._build.mix), "of_this_set": of_set}
        return Answer(hashes, self._lines, data | {"answer": self._answer} | self._data)

    def _search(self, bounds: tuple[int, int]) -> list[Copy]:
        """Return the documents of all runs with a hash, in the order of the mix."""

        def search(number: int, run: Run) -> list[Copy]:
            return find_copies(number, run, bounds)

        runs = self._build.runs
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            return [copy for own in pool.map(search, range(len(runs)), runs) for copy in own]

    # Documents that were encoded.

    def _describe_copies(self, copies: list[Copy], indent: str = "") -> dict[str, Any]:
        outcomes = Outcomes(self._build.mix, self._build.recipe, self._build.runs).find(copies)
        for outcome in outcomes:
            self._raise_to(outcome["state"])
            state = ", ".join([outcome["state"], *outcome["shards"]])
            self._lines.append(f"{indent}{outcome['source']}: {outcome['unit']} row {outcome['row']}: {state}")
            self._lines += [f"{indent}  {reason['text']}" for reason in outcome["reasons"] + outcome["notes"]]
        return {"copies": outcomes}

    # Documents that were not, as far as the hash says.

    def _describe_rows(self, rows: list[SourceRow]) -> None:
        entries: list[dict[str, Any]] = []
        for row in rows:
            where = f"{self._names[row.source]}: {row.place}"
            entry: dict[str, Any] = {"source": self._names[row.source], "place": row.place, "keep": row.kept}
            if row.kept:
                entry |= self._try(where, "dropped before encoding", row.source, row.text)
            else:
                keep = self._sources[row.source].keep
                listed = ", ".join(f"{name} {condition}" for name, condition in keep.items())
                self._lines += [f"{where}: dropped before encoding", f"  `keep` rejects the row: {listed}"]
                self._raise_to("dropped before encoding")
            entries.append(entry)
        if not rows:
            self._lines.append(
                f"no row of {_list(self._names)}, read again, has this text. Malformed records have no text, and text "
                "that rows only name was not fetched again."
            )
        self._data["rows"] = entries
        self._raise_to("never seen")

    def _try_sources(self, text: bytes) -> None:
        self._data["tried"] = [
            {"source": name} | self._try(f"{name}: this text", "would be dropped before encoding", number, text)
            for number, name in enumerate(self._names)
        ]
        self._raise_to("never seen")

    def _try(self, where: str, dropped: str, source: int, text: bytes) -> dict[str, Any]:
        """Put a text through a source's cleaning; if masking changes its hash, look for the new one.

        Args:
            where: the text's place, for the lines.
            dropped: the answer if the source's cleaning drops it.
            source: the source's number.
            text: the text.

        Returns:
            What happened, as JSON values.
        """
        trial = try_document(self._sources[source], text)
        facts = {"dropped": trial.dropped, "details": [facts for _, facts in trial.details], "masked": trial.masked}
        if trial.dropped is not None:
            self._lines.append(f"{where}: {dropped}")
            self._lines += [f"  {line}" for line, _ in trial.details] or [f"  {trial.dropped}"]
            self._raise_to(dropped)
            return facts
        # Cleaning keeps the text, perhaps changed: then a run has it under another hash.
        digest = hash_document(trial.text).hex()
        facts["hash"] = digest
        if trial.masked:
            kinds = ", ".join(f"{plural(count, 'time')} {kind}" for kind, count in trial.masked.items())
            self._lines.append(f"{where}: masked ({kinds}), and then has the hash {digest}")
            if copies := self._search((int(digest, 16), int(digest, 16) + 1)):
                return facts | self._describe_copies(copies, "  ")
        rest = ", and the source was read in part" if self._build.has_more[source] else ""
        self._lines.append(
            f"{where}: cleaning keeps it, but no sorted run has it: it was not in what the build read{rest}; or a row "
            "with it was rejected by `keep`, or the files have changed"
        )
        return facts

    def _describe_unknown(self) -> None:
        """Say what a hash alone can tell of a document that is in no run."""
        # Only the text would tell; the counts tell what may have happened.
        tallies = self._build.read_tallies()
        dropped = {name: tally.dropped for name, tally in zip(self._names, tallies, strict=True) if tally.dropped}
        masked = dict(sorted(Tally.sum(tallies).masked_documents.items()))
        unread = [name for name, more in zip(self._names, self._build.has_more, strict=True) if more]
        self._data = {"dropped_before_encoding": dropped, "masked": masked, "unread": unread}
        if not dropped and not masked and not unread:
            text = f"never seen: {_list(self._names)} were read whole, nothing was dropped or masked before encoding"
            self._lines.append(f"{text}, and no document has this hash")
            self._raise_to("never seen")
            return
        lines = ["no document that was encoded has this hash. A hash alone does not tell which of these applies:"]
        for name, counts in dropped.items():
            listed = ", ".join(f"{count:,} because {reason}" for reason, count in sorted(counts.items()))
            lines.append(f"  {name}: dropped before encoding: {listed}")
        if masked:
            listed = ", ".join(f"{count:,} with {kind}" for kind, count in masked.items())
            lines.append(f"  its personal data was masked, which changed its hash: documents {listed}")
        if unread:
            lines.append(f"  it is in a part of {_list(unread)} that was not read")
        lines += [
            "  no source has it",
            "`--document FILE`, a file with its text, in place of --hash shows what cleaning does to it; "
            "`--read-sources` searches all sources again.",
        ]
        self._lines += lines


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
