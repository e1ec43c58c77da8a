"""Fetch: download the files of Software Heritage's archive that the rows of a unit name, and write them as documents.

Predicates are applied first, and a file that several rows name is fetched once. A fetched file goes into a journal, so
that a killed build fetches only the rest. At the end, the texts are written in row order into one parquet file per span
(`fetched_documents.py`). Documents that an earlier task wrote for the same span are used again if their SHA-1 agrees.
So after a change of `keep`, or to retry missing files, only the rest is fetched.

Every row without a document is counted with its reason. Memory: 200 bytes per file of the unit, and one batch of text.
"""

import gzip
import hashlib
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pyarrow as pa

from pipeline.arrow_arrays import as_large_binary
from pipeline.engine.checksums import checksum_file
from pipeline.engine.tasks import NOT_IN_DIGEST, InDigest, Payload, Report, Task, digest_of, digest_of_payload
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SourceError, Span, Unit, content_of_unit
from pipeline.sources.files import read_span
from pipeline.sources.formats.encodings import is_utf8
from pipeline.sources.network import network_settings
from pipeline.sources.software_heritage import archive, fetched_documents
from pipeline.sources.software_heritage.fetched_documents import FetchResult, write_documents
from shards.errors import plural

_FETCHING_KEYS = {"format", "separator", "encoding", "content", "blob_id", "keep"}
_READING_KEYS = InDigest(lambda source: source.model_dump(include=_FETCHING_KEYS), "sources.{task.source.name}")
"""Keys of a source that determine which documents are fetched for given spans."""
_LINE_BYTES = 200
"""Bytes of a JSON line that names a file, about; used for progress."""

_FILE_BYTES = 16 << 10
"""A file has less text than this, as a rule: for a unit that a plan reads in part."""
_HOPELESS = 256
"""Number of files after which the build stops if all failed: the address is probably wrong, or a proxy answers."""


@dataclass(frozen=True, slots=True)
class FetchTask(Payload):
    """The input of one fetch task; plain data. The archive's address does not count: SHA-1 identifies each file."""

    unit: Annotated[Unit, InDigest(content_of_unit, "sources.{task.source.name}.files")]
    source: Annotated[SourceRecipe, _READING_KEYS]
    journal: Annotated[str, NOT_IN_DIGEST]
    """The journal's file, which survives if the task is killed."""


_Keys = dict[int, bytes]
"""The SHA-1 of the file to fetch that each row of a span names."""
_Wanted = tuple[_Keys, Counter[str]]
"""The files to fetch, and counts of the other rows by reason."""


class Journal:
    """The objects fetched for one task: a file of SQLite, which one process uses at a time.

    A killed process loses no object. A crash of the machine may damage the file, which is then begun anew.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file = self._open()
        except sqlite3.DatabaseError:
            path.unlink()
            self._file = self._open()

    def _open(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, isolation_level=None)  # each object is a transaction of its own
        file.execute("PRAGMA synchronous = OFF")
        file.execute("CREATE TABLE IF NOT EXISTS objects (key BLOB PRIMARY KEY, body BLOB NOT NULL)")
        return file

    def close(self) -> None:
        """Close the journal's file."""
        self._file.close()

    def __contains__(self, key: bytes) -> bool:
        return self._file.execute("SELECT 1 FROM objects WHERE key = ?", (key,)).fetchone() is not None

    def add(self, key: bytes, body: bytes) -> None:
        """Add a fetched object: its SHA-1, and a gzip of it."""
        self._file.execute("INSERT INTO objects VALUES (?, ?)", (key, body))

    def read(self, key: bytes) -> bytes:
        """Return a fetched object, decompressed.

        Raises:
            SourceError: the disk has not kept it as it was; the journal is deleted.
        """
        try:
            (body,) = self._file.execute("SELECT body FROM objects WHERE key = ?", (key,)).fetchone()
            data = gzip.decompress(body)
        except (sqlite3.DatabaseError, TypeError, OSError, EOFError, zlib.error):
            data = b""
        if hashlib.sha1(data, usedforsecurity=False).digest() != key:
            self.path.unlink()
            raise SourceError(
                f"{self.path}: was damaged after it was written, and has been deleted. Run the same command again."
            )
        return data


def make_fetch_task(unit: Unit, source: SourceRecipe, folder: Path) -> Task:
    """Return the fetch task of a unit."""
    payload = FetchTask(unit, source, "")
    digest = digest_of_payload(payload)
    rows = sum(span.rows if span.rows is not None else span.stored_bytes // _LINE_BYTES for span in unit.spans)
    return Task(digest, replace(payload, journal=str(folder / f"{digest}.journal")), rows)


def fetch_unit(folder: Path, task: FetchTask, report: Report) -> FetchResult:
    """Fetch a unit's documents from Software Heritage into `folder`.

    Args:
        folder: an empty folder.
        task: the unit and its source.
        report: called with (rows done, files fetched) so far.

    Raises:
        SourceError: the metadata or the archive cannot be read. The files fetched so far are kept.
    """
    # Read the rows: which files do they name?
    wanted = [_read_keys(task.source, span) for span in task.unit.spans]
    part = 1.0
    if task.unit.most_bytes is not None:
        wanted, part = _thin_out(wanted, max(1, task.unit.most_bytes // _FILE_BYTES))
    distinct = dict.fromkeys(key for keys, _ in wanted for key in keys.values())
    settled = sum(len(keys) + rejected.total() for keys, rejected in wanted) - len(distinct)
    report.lap("read_s")

    # Take files from earlier tasks, and fetch the others.
    with closing(Journal(Path(task.journal))) as journal:
        for span, (keys, _) in zip(task.unit.spans, wanted, strict=True):
            _use_again(folder.parent, _file_name(task.source, span), keys, journal)
        report.lap("use_again_s")
        pending = [key for key in distinct if key not in journal]
        settled += len(distinct) - len(pending)
        report(settled, 0)
        failed = _fetch(task.source, pending, journal, lambda fetched: report(settled + fetched, fetched))
        report.lap("fetch_s")

        # Write the documents of each span.
        spans: list[tuple[str, int, int]] = []
        dropped: Counter[str] = Counter()
        for span, (keys, rejected) in zip(task.unit.spans, wanted, strict=True):
            before = rejected.copy()
            texts = _take_texts(keys, journal, failed, lost=rejected)
            name = _file_name(task.source, span)
            spans.append((name, *write_documents(folder / name, texts, rejected)))
            dropped.update(rejected - before)
        report.lap("write_s")
    return FetchResult(
        spans=spans,
        rows=sum(len(keys) for keys, _ in wanted),
        dropped=dropped,
        part=part,
        files={name: checksum_file(folder / name) for name, _, _ in spans},
    )


def _file_name(source: SourceRecipe, span: Span) -> str:
    """Return the name of a span's file of fetched documents. It does not depend on predicates: others find it."""
    return f"{digest_of([span.url, span.version, span.part, source.blob_id])}.parquet"


def _read_keys(source: SourceRecipe, span: Span) -> _Wanted:
    """Return the SHA-1 of the file to fetch that each row of a span names, and counts of the other rows by reason."""
    keys: _Keys = {}
    rejected: Counter[str] = Counter()
    for batch in read_span(source, span):
        rejected.update(batch.rejected)
        for row, value in zip(batch.rows.tolist(), as_large_binary(batch.text).to_pylist(), strict=True):
            key = archive.parse_key(value)
            if key is None:
                rejected[archive.NOT_SHA1] += 1
            else:
                keys[row] = key
    return keys, rejected


def _thin_out(wanted: list[_Wanted], most: int) -> tuple[list[_Wanted], float]:
    """Return an even part of the files to fetch that rows of spans name, at most so many, and how large it is."""
    # Neighbours are often files of one repository, so that the first files would tell less.
    every = sum(len(keys) for keys, _ in wanted)
    step = max(1, -(-every // most))
    thin = [
        (dict(list(keys.items())[::step]), Counter({reason: round(count / step) for reason, count in rejected.items()}))
        for keys, rejected in wanted
    ]
    return thin, sum(len(keys) for keys, _ in thin) / max(1, every)


def _use_again(stage: Path, name: str, keys: _Keys, journal: Journal) -> None:
    """Copy files that earlier tasks fetched for the same span into the journal, if their SHA-1 agrees."""
    # A file's name says which rows it may hold; only its SHA-1 says that a text is the file that a row names.
    for path in stage.glob(f"[!.]*/*/{name}"):
        try:
            for batch in fetched_documents.read_file(path):
                for row, text in zip(batch.rows.tolist(), batch.text, strict=True):
                    key = keys.get(row)
                    if key is None or key in journal:
                        continue
                    data = text.as_buffer()
                    if hashlib.sha1(data, usedforsecurity=False).digest() == key:
                        journal.add(key, gzip.compress(data, 1))
        except (OSError, ValueError, KeyError, pa.ArrowException):
            continue  # a damaged file: fetch its content again


def _fetch(
    source: SourceRecipe, keys: list[bytes], journal: Journal, report: Callable[[int], None]
) -> dict[bytes, str]:
    """Fetch files of Software Heritage into the journal; return those that cannot be used, with the reason."""
    failed: dict[bytes, str] = {}
    had = 0
    with closing(archive.fetch_archive_objects(keys)) as outcomes:
        for count, (key, outcome) in enumerate(outcomes, start=1):
            if isinstance(outcome, bytes):
                journal.add(key, outcome)
                had += 1
            else:
                failed[key] = outcome
            # Nothing but failures: a wrong address, not hundreds of missing files.
            if count == _HOPELESS and not had and source.max_missing < 1:
                raise SourceError(
                    f"source {source.name!r}: {network_settings().content_endpoint} gave none of the first "
                    f"{plural(count, 'file')} asked for; the last one: {outcome}. Correct --content-endpoint, or "
                    "`blob_id`."
                )
            report(count)
    return failed


def _take_texts(
    keys: _Keys, journal: Journal, failed: dict[bytes, str], *, lost: Counter[str]
) -> Iterator[tuple[int, bytes]]:
    """Yield the row and the text of each fetched document; count the other rows in `lost`, by reason."""
    for row, key in keys.items():
        reason = failed.get(key)
        if reason is None:
            text = journal.read(key)
            if is_utf8(text):
                yield row, text
                continue
            reason = archive.NOT_UTF8
        lost[reason] += 1
