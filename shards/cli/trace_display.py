"""What `trace` prints: each document with where it is from and the hit marked, then counts by source.

Every name and text goes through `display.printable`: a document cannot control the terminal.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from shards.terminal.display import print_rows, printable

if TYPE_CHECKING:
    from shards.trace.locate import Excerpt, Place
    from shards.trace.scan import Hit
    from shards.trace.search import Trace
    from shards.trace_step import Batch


def print_hit(hit: Hit) -> None:
    """Print one document: a line that tells where it is from, a line of text with the hit between >>> and <<<."""
    place = hit.place
    times = "" if hit.hits == 1 else f", {hit.hits:,} times"
    _print_place(place, f"token {hit.position} (of the shard {place.start + hit.position}){times}", hit.excerpt)


def print_trace(found: Trace) -> None:
    """Print the documents found, counts by source, and one line that sums up."""
    for hit in found.shown:
        print_hit(hit)
    print_rows([{"source": name, **asdict(counts)} for name, counts in found.sources.items()])
    hold = "1 document holds" if found.documents == 1 else f"{found.documents:,} documents hold"
    print(f"{hold} it, {found.hits:,} times{_say_shown(len(found.shown), found.documents)}")


def print_batch(batch: Batch) -> None:
    """Print each row's documents, its own text between >>> and <<<, then counts by source and a line that sums up."""
    row = None
    for document in batch.shown:
        place, window, last = document.place, document.window, document.position + document.in_window
        if document.batch_row != row:
            row = document.batch_row
            print(
                printable(f"row {row}: {place.shard} tokens {window.start} to {window.stop - 1}, epoch {window.epoch}")
            )
        where = f"tokens {document.position} to {last - 1} of {place.tokens} in this row"
        _print_place(place, where, document.excerpt)
    print_rows([{"source": name, **asdict(counts)} for name, counts in batch.sources.items()])
    rows = "1 row" if batch.rows == 1 else f"{batch.rows:,} rows"
    documents = "1 document" if batch.documents == 1 else f"{batch.documents:,} documents"
    shown = _say_shown(len(batch.shown), batch.parts)
    print(f"step {batch.step} of {printable(str(batch.run))}: {rows}, {batch.tokens:,} tokens of {documents}{shown}")


def _print_place(place: Place, where: str, excerpt: Excerpt) -> None:
    origin = f"source {place.source}, unit {place.unit}, row {place.row}, hash {place.hash}"
    print(printable(f"# {place.shard} document {place.document}, {where}: {origin}"))
    left_out = f" ({excerpt.left_out:,} bytes more)" if excerpt.left_out else ""
    print(f"  {printable(excerpt.before)}>>>{printable(excerpt.hit)}<<<{left_out}{printable(excerpt.after)}")


def _say_shown(shown: int, total: int) -> str:
    return "" if shown == total else f", the first {shown:,} of {total:,} shown"
