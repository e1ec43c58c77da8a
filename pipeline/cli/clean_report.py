"""Show what the last mix dropped or reported, with example documents, to help you choose limits.

One table has each reason of each source, and of limits with when = "mix" how many documents they would drop at other
values. The build need not have finished.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from pipeline.cli.flags import parse_build_place
from shards.errors import plural
from shards.terminal.amounts import format_size
from shards.terminal.arguments import parse_path, whole_number
from shards.terminal.display import JsonObject
from shards.terminal.program import Outcome, Part

if TYPE_CHECKING:
    from pipeline.builder.clean_report import ReportRow

_PAGE_EXAMPLES = 10
"""Documents of each row of a page, unless `--examples` asks for another number."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `clean-report`."""
    parser.add_argument(
        "place", type=parse_build_place, metavar="WORK", help="the work folder of a build, or its set (OUT)"
    )
    parser.add_argument(
        "--examples",
        type=whole_number,
        default=None,
        metavar="N",
        help=f"show N documents of each row (default: none; {_PAGE_EXAMPLES} on a page)",
    )
    parser.add_argument(
        "--html",
        type=parse_path,
        metavar="FILE",
        help="write an HTML report (overwrites an earlier one)",
    )


def run(options: argparse.Namespace) -> Outcome:
    """Return what `clean-report` shows."""
    from pipeline.builder.clean_report import read_clean_report, write_page
    from pipeline.builder.stored_build import stored_build_errors

    if options.html:
        from shards.format.manifest import MANIFEST_FILE
        from shards.stores.open import open_writable_store
        from shards.stores.store import check_outside

        # A set may hold no other files.
        store = open_writable_store(options.place)
        if store.find(MANIFEST_FILE) is not None:
            check_outside(options.html, store)
    examples = options.examples if options.examples is not None else _PAGE_EXAMPLES if options.html else 0
    with stored_build_errors():
        report = read_clean_report(options.place, examples=examples)
    shown = _list_parts(report)
    if options.html:
        write_page(report, options.html)
        shown = [f"{options.html}: {format_size(options.html.stat().st_size)}"]
    return Outcome(report | {"rows": [asdict(row) for row in report["rows"]]}, shown)


def _list_parts(report: JsonObject) -> Iterator[Part]:
    """Yield what `clean-report` prints."""
    from pipeline.clean.reasons import show_document

    rows: list[JsonObject] = []
    for source in report["sources"]:
        rows += [_cells(row) for row in report["rows"] if row.source == source["name"]]
        left = source["left"]
        share = f"{left['documents'] / max(1, source['records']):.2%}"
        rows.append({"source": source["name"], "reason": "kept"} | left | {"share": share})
    columns = ("source", "reason", "at", "documents", "share", "tokens", "by itself")
    yield [{column: row.get(column, "") for column in columns} for row in rows]
    # What concerns the whole mix, then documents.
    if report["unread"]:
        yield f"read in part: {', '.join(report['unread'])}; the rest is not in the set"
    for one in report["evaluations"]:
        yield f"evaluation set {one['name']}: {plural(one['found'], 'item')} found"
    for row in report["rows"]:
        if row.examples:
            yield f"{row.source}: {row.reason}"
            yield from (f"  {line}" for one in row.examples for line in show_document(one))


def _cells(row: ReportRow) -> JsonObject:
    return {
        "source": row.source,
        "reason": f"{row.reason} ({row.note})" if row.note else row.reason,
        "at": "" if row.limit is None else f"{row.limit:g}",
        "documents": row.documents,
        "share": f"{row.share:.2%}",
        "tokens": "" if row.tokens is None else f"{row.tokens:,}",
        "by itself": ", ".join(f"{documents:,} at {value:g}" for value, documents in row.alone),
    }
