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


def print_hit(hit: Hit) -> None:
    """Print one document: a line that tells where it is from, a line of text with the hit between >>> and <<<."""
    place = hit.place
    times = "" if hit.hits == 1 else f", {hit.hits:,} times"
    print_place(place, f"token {hit.position} (of the shard {place.start + hit.position}){times}", hit.excerpt)


def print_trace(found: Trace) -> None:
    """Print the documents found, counts by source, and one line that sums up."""
    for hit in found.shown:
        print_hit(hit)
    print_rows([{"source": name, **asdict(counts)} for name, counts in found.sources.items()])
    hold = "1 document holds" if found.documents == 1 else f"{found.documents:,} documents hold"
    print(f"{hold} it, {found.hits:,} times{say_shown(len(found.shown), found.documents)}")


def print_place(place: Place, where: str, excerpt: Excerpt) -> None:
    """Print a document: a line that says where it is from, and a line of its text."""
    origin = f"source {place.source}, unit {place.unit}, row {place.row}, hash {place.hash}"
    print(printable(f"# {place.shard} document {place.document}, {where}: {origin}"))
    left_out = f" ({excerpt.left_out:,} bytes more)" if excerpt.left_out else ""
    print(f"  {printable(excerpt.before)}>>>{printable(excerpt.hit)}<<<{left_out}{printable(excerpt.after)}")


def say_shown(shown: int, total: int) -> str:
    """Return how many of all are shown; nothing if all are."""
    return "" if shown == total else f", the first {shown:,} of {total:,} shown"
