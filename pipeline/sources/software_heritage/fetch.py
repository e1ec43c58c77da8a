"""Fetch: the rows of a unit name files of Software Heritage's archive; their texts become documents on this machine.

Predicates are applied before anything is asked for, and a file that several rows of the unit name is asked for once.
What comes goes into a spool at once (`pipeline.sources.software_heritage.journal`), and from there, in row order, into
one parquet file a span (`pipeline.sources.software_heritage.documents`). What an earlier task left of the same span is
used again where its SHA-1 agrees: another `keep`, or another try for what was missing, asks for the rest only.

Every row that yields no document is counted with its reason. Memory: 200 bytes a file of the unit, one batch of text.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.arrow import as_large_binary
from pipeline.engine.checksums import checksum_file
from pipeline.engine.receipts import RECEIPT_FILE, read_receipt
from pipeline.engine.tasks import Task, digest_of
from pipeline.engine.timer import Timer
from pipeline.sources.base import SourceError, Span, Unit
from pipeline.sources.kinds import kind_of
from pipeline.sources.network.retry import count_retries
from pipeline.sources.network.settings import network
from pipeline.sources.software_heritage import archive, documents
from pipeline.sources.software_heritage.journal import Spool

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

CODE_VERSION = 1
"""Raise when the same input would give other documents."""

_READING_KEYS = {"format", "separator", "content", "blob_id", "keep", "fallback_encoding"}
"""What of a source decides the documents that are fetched for given spans."""
_LINE_BYTES = 200
"""A JSON line that names a file, about: for progress."""

_HOPELESS = 256
"""The build stops when the first so many files asked for cannot be had: it is another archive, or a proxy's page."""


@dataclass(frozen=True, slots=True)
class FetchTask:
    """What one fetch task needs; plain data."""

    unit: Unit
    source: SourceRecipe
    spool: str
    """File that outlives a task that is killed."""


@dataclass(slots=True)
class _Wanted:
    """The files that a span's rows name."""

    rows: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)


def make_task(unit: Unit, source: SourceRecipe, folder: Path) -> Task:
    """Return the task of a unit. Where the archive is does not decide its digest: each file is checked by its SHA-1."""
    reading = source.model_dump(include=_READING_KEYS)
    digest = digest_of({"code": CODE_VERSION, "source": reading, "spans": unit.identity()})
    rows = sum(span.rows if span.rows is not None else span.stored_bytes // _LINE_BYTES for span in unit.spans)
    return Task(digest, FetchTask(unit, source, str(folder / f"{digest}.spool")), rows)


def fetch_unit(folder: Path, task: FetchTask, report: Callable[[int, int], None]) -> dict[str, Any]:
    """Fetch a unit's documents into `folder`.

    Args:
        folder: an empty folder.
        task: the unit and its source.
        report: called with (rows settled, files fetched by now).

    Returns:
        `spans`: for each its file, documents and text_bytes; `rows` that asked for a file, `dropped` of them by reason,
        files `fetched` and requests tried again for them, seconds by step.

    Raises:
        SourceError: the metadata or the archive cannot be read. What has been fetched is kept.
    """
    timer = Timer()
    retries = count_retries()
    delete_spools(folder.parent)
    wanted = [_read_keys(task.source, span) for span in task.unit.spans]
    distinct = dict.fromkeys(key for one in wanted for key in one.keys)
    settled = sum(len(one.rows) + sum(one.rejected.values()) for one in wanted) - len(distinct)
    timer.lap("read_s")
    with Spool(Path(task.spool), network().content_endpoint) as spool:
        for span, one in zip(task.unit.spans, wanted, strict=True):
            _use_again(folder.parent, _file_name(task.source, span), one, spool)
        timer.lap("use_again_s")
        pending = [key for key in distinct if key not in spool]
        settled += len(distinct) - len(pending)
        report(settled, 0)
        failed = _fetch(task.source, pending, spool, lambda fetched: report(settled + fetched, fetched))
        timer.lap("fetch_s")
        spans: list[dict[str, Any]] = []
        dropped: dict[str, int] = {}
        for span, one in zip(task.unit.spans, wanted, strict=True):
            name = _file_name(task.source, span)
            lost, facts = _write(folder / name, one, spool, failed, task.source.fallback_encoding)
            spans.append({"file": name, **facts})
            for reason, count in lost.items():
                dropped[reason] = dropped.get(reason, 0) + count
        timer.lap("write_s")
    return {
        "spans": spans,
        "rows": sum(len(one.rows) for one in wanted),
        "dropped": dropped,
        "fetched": len(pending),
        "retries": count_retries() - retries,
        "files": {span["file"]: checksum_file(folder / span["file"]) for span in spans},
        "seconds": timer.seconds,
    }


def local_unit(unit: Unit, folder: Path, result: dict[str, Any]) -> Unit:
    """Return a unit that reads its documents from a fetch task's folder; provenance is as it was."""
    spans: list[Span] = []
    for span, facts in zip(unit.spans, result["spans"], strict=True):
        file = result["files"][facts["file"]]
        spans.append(
            replace(
                span,
                url=str(folder / facts["file"]),
                version=f"{file['bytes']} bytes, xxh3 {file['xxh3_128']}",
                format=documents.FORMAT,
                text_bytes=facts["text_bytes"],
                rows=facts["documents"],
                stored_bytes=file["bytes"],
            )
        )
    return Unit(unit.source, tuple(spans))


def check_missing(source: SourceRecipe, results: Iterable[dict[str, Any]]) -> None:
    """Stop when more of a source's files cannot be had than its recipe allows.

    Raises:
        SourceError: with the numbers by reason.
    """
    rows, dropped = _count(results)
    if not _too_many(source, rows, dropped):
        return
    lost = sum(dropped.values())
    listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items()))
    remedies = ["Run again to ask for these once more (the others are kept)", "raise `max_missing` to go on without"]
    if dropped.get(archive.NOT_UTF8):
        remedies.append("set `fallback_encoding` for those that are not UTF-8")
    raise SourceError(
        f"source {source.name!r}: {lost:,} of {rows:,} files ({lost / rows:.2%}) cannot be had from "
        f"{network().content_endpoint}, more than max_missing = {source.max_missing} allows: {listed}. "
        f"{'; '.join(remedies)}."
    )


def ask_again(source: SourceRecipe, folder: Path, tasks: list[Task]) -> None:
    """Let tasks run again whose source had too many files that could not be had; what they have is used again."""
    results = [result for task in tasks if (result := read_receipt(folder / task.digest)) is not None]
    if len(results) == len(tasks) and _too_many(source, *_count(results)):
        for task, result in zip(tasks, results, strict=True):
            if result["dropped"]:
                (folder / task.digest / RECEIPT_FILE).unlink()


def _too_many(source: SourceRecipe, rows: int, dropped: dict[str, int]) -> bool:
    return sum(dropped.values()) > source.max_missing * rows


def delete_spools(folder: Path) -> None:
    """Delete the spools of tasks that are done."""
    for path in folder.glob("*.spool"):
        if (folder / path.stem / RECEIPT_FILE).exists():
            path.unlink(missing_ok=True)


def _count(results: Iterable[dict[str, Any]]) -> tuple[int, dict[str, int]]:
    rows = 0
    dropped: dict[str, int] = {}
    for result in results:
        rows += result["rows"]
        for reason, count in result["dropped"].items():
            dropped[reason] = dropped.get(reason, 0) + count
    return rows, dropped


def _file_name(source: SourceRecipe, span: Span) -> str:
    """Name a span's file by what its rows are, whatever predicates say, so that another task can find it."""
    return f"{digest_of([span.url, span.version, span.part, source.blob_id])}.parquet"


def _read_keys(source: SourceRecipe, span: Span) -> _Wanted:
    wanted = _Wanted()
    for batch in kind_of(source).read(source, span):
        for reason, count in batch.rejected.items():
            wanted.rejected[reason] = wanted.rejected.get(reason, 0) + count
        for row, value in zip(batch.rows.tolist(), as_large_binary(batch.text).to_pylist(), strict=True):
            key = archive.parse_key(value)
            if key is None:
                wanted.rejected[archive.NOT_SHA1] = wanted.rejected.get(archive.NOT_SHA1, 0) + 1
            else:
                wanted.rows.append(row)
                wanted.keys.append(key)
    return wanted


def _use_again(stage: Path, name: str, wanted: _Wanted, spool: Spool) -> None:
    """Take from earlier tasks' documents of the same span what is the file that its row names."""
    keys = dict(zip(wanted.rows, wanted.keys, strict=True))
    for path in stage.glob(f"[!.]*/{name}"):
        try:
            for batch in documents.read_file(path):
                for row, text in zip(batch.rows.tolist(), batch.text, strict=True):
                    key = keys.get(row)
                    if key is None or key in spool:
                        continue
                    data = text.as_buffer()
                    if hashlib.sha1(data, usedforsecurity=False).digest() == key:
                        spool.add(key, gzip.compress(data, 1))
        except (OSError, ValueError, KeyError, pa.ArrowException):
            continue  # a damaged file: what it held is fetched


def _fetch(source: SourceRecipe, keys: list[bytes], spool: Spool, report: Callable[[int], None]) -> dict[bytes, str]:
    """Fetch files into the spool; return those that the archive has and that are no good, with the reason."""
    failed: dict[bytes, str] = {}
    had = 0
    with closing(archive.fetch_all(keys)) as outcomes:
        for count, (key, outcome) in enumerate(outcomes, start=1):
            if isinstance(outcome, bytes):
                spool.add(key, outcome)
                had += 1
            elif outcome == archive.MISSING and had:  # an archive that gave nothing yet may be the wrong one
                spool.add_missing(key)
            else:
                failed[key] = outcome
            if count == _HOPELESS and not had and source.max_missing < 1:
                raise SourceError(
                    f"source {source.name!r}: {network().content_endpoint} gave none of the first {count} files asked "
                    f"for; the last one: {outcome}. Correct --content-endpoint, or `blob_id`."
                )
            report(count)
    return failed


def _write(
    path: Path, wanted: _Wanted, spool: Spool, failed: dict[bytes, str], fallback_encoding: str | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Write a span's documents; return the rows lost by reason, and what was written."""
    lost: dict[str, int] = {}
    writer = documents.DocumentWriter(path)
    for row, key in zip(wanted.rows, wanted.keys, strict=True):
        reason = failed.get(key) or (archive.MISSING if spool.is_missing(key) else None)
        if reason is None:
            data = gzip.decompress(spool.read(key))
            if hashlib.sha1(data, usedforsecurity=False).digest() != key:
                raise SourceError(f"{spool.path}: damaged since it was written. Delete it and run again.")
            text = archive.decode(data, fallback_encoding)
            if text is not None:
                writer.add(row, text)
                continue
            reason = archive.NOT_UTF8
        lost[reason] = lost.get(reason, 0) + 1
    writer.close(wanted.rejected | lost)
    return lost, {"documents": writer.documents, "text_bytes": writer.text_bytes}
