"""What `trace` prints: each document with where it is from and the hit marked, then counts by source.

Every name and text goes through `display.printable`: a document cannot control the terminal.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shards.display import plain_table, printable, stdout_console

if TYPE_CHECKING:
    from shards.trace import Hit, Trace


def print_hit(hit: Hit) -> None:
    """Print one document: a line that tells where it is from, a line of text with the hit between >>> and <<<."""
    place = hit.place
    times = "" if hit.hits == 1 else f", {hit.hits:,} times"
    where = f"token {hit.position} (of the shard {place.start + hit.position}){times}"
    origin = f"source {place.source}, unit {place.unit}, row {place.row}, hash {place.hash}"
    print(printable(f"# {place.shard} document {place.document}, {where}: {origin}"))
    excerpt = hit.excerpt
    print(f"  {printable(excerpt.before)}>>>{printable(excerpt.hit)}<<<{printable(excerpt.after)}")


def print_trace(found: Trace, *, out: Path | None = None, written: int | None = None) -> None:
    """Print the documents found, counts by source, and one line that sums up."""
    from rich.text import Text

    for hit in found.shown:
        print_hit(hit)
    if found.sources:
        table = plain_table("source", "documents", "hits")
        for name, counts in found.sources.items():
            table.add_row(Text(printable(name)), f"{counts.documents:,}", f"{counts.hits:,}")
        stdout_console().print(table)
    shown = "" if len(found.shown) == found.documents else f", the first {len(found.shown)} shown"
    hold = "1 document holds" if found.documents == 1 else f"{found.documents:,} documents hold"
    print(f"{hold} it, {found.hits:,} times{shown}")
    if out is not None and written is not None:
        print(f"block list: {printable(str(out))}, {written:,} hashes")
