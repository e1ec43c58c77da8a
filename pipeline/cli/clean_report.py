"""Show what the last mix dropped or reported, with example documents, to choose limits by looking.

It shows each limit of presets with when = "mix", near-duplicates, and documents that hold items of evaluation sets.
The build need not have finished.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.flags import parse_build_place
from shards.errors import plural
from shards.terminal.amounts import format_size
from shards.terminal.arguments import parse_path, whole_number
from shards.terminal.display import format_json, print_lines, print_rows
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from pipeline.clean.drops.table import SourceDrops

_TEXT_CHARACTERS = 100
_EXCERPT = 60
"""Characters that are printed on each side of a copied item."""
_EXCUSED = 20
"""Items with common phrases that are printed of each evaluation set."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `clean-report`."""
    parser.add_argument(
        "place", type=parse_build_place, metavar="WORK", help="the work folder of a build, or its set (OUT)"
    )
    parser.add_argument(
        "--examples",
        type=whole_number,
        default=0,
        metavar="N",
        help="print N documents of each limit and evaluation set, and N near-duplicates of each source (default: none)",
    )
    parser.add_argument(
        "--html",
        type=parse_path,
        metavar="FOLDER",
        help="write pages into a folder, to open in a browser: the table of sources and steps, histograms with their "
        "limits, documents on either side of each, near-duplicates and copied test items side by side. Replaces only "
        "pages that this command wrote",
    )


def run(options: argparse.Namespace) -> int:
    """Print what `clean-report` shows; return the exit status."""
    from pipeline.builder.clean_report.read import read_clean_report
    from pipeline.builder.stored_build import stored_build_errors

    if options.html:
        _check_folder(options.html, options.place)
    with stored_build_errors():
        report = read_clean_report(options.place)
    # Pages, JSON, or the tables in the terminal.
    pages: list[Path] = []
    if options.html:
        from pipeline.builder.clean_report.pages import write_pages

        pages = write_pages(report, options.html)
    if options.json:
        steps = [source | {"drops": asdict(source["drops"])} for source in report["steps"]]
        print(format_json(report | {"steps": steps}))
        return WHOLE
    if pages:
        size = sum(path.stat().st_size for path in pages)
        print_lines([f"{pages[0]}: {plural(len(pages), 'page')}, {format_size(size)}"])
        if not options.examples:
            return WHOLE
    names = [source["name"] for source in report["steps"]]
    tables: list[SourceDrops] = [source["drops"] for source in report["steps"]]
    _print_steps(names, tables)
    for source in report["sources"]:
        _print_source(source, examples=options.examples)
    if report["near_duplicates"]:
        _print_near_duplicates(report["near_duplicates"], names, tables, examples=options.examples)
    if report["evaluations"]:
        _print_evaluations(report["evaluations"], report["unread"], examples=options.examples)
    return WHOLE


def _print_steps(names: list[str], tables: list[SourceDrops]) -> None:
    rows: list[dict[str, Any]] = []
    for source, drops in zip(names, tables, strict=True):
        shown = [
            (f"{name} ({step.note})" if step.note else name, step.first, step.every, step.before_encoding)
            for name, step in drops.shown().items()
        ]
        rows += [
            {
                "source": source,
                "step": step,
                "documents": first.documents,
                "share": _share(first.documents, drops.records),
                "tokens": "" if before_encoding else f"{first.tokens:,}",
                "any reason": f"{every.documents:,}" if every else "",
            }
            for step, first, every, before_encoding in (*shown, ("left", drops.left, None, False))
        ]
    print_rows(rows, title="documents by the first step that drops them")
    print_lines([""])


def _check_folder(out: Path, place: str) -> None:
    """Refuse to write into a set, which may hold no other files."""
    from shards.format.manifest import MANIFEST_FILE
    from shards.stores.open import open_writable_store
    from shards.stores.store import check_outside

    store = open_writable_store(place)
    if store.find(MANIFEST_FILE) is not None:
        check_outside(out, store)


def _print_evaluations(evaluations: list[dict[str, Any]], unread: list[str], *, examples: int) -> None:
    from pipeline.builder.clean_report.wording import describe_unread

    rows = [
        {
            "evaluation set": one["name"],
            "items": one["items"],
            "found": one["found"],
            "too short": one["too_short"],
            "excused": one["excused"],
            "documents": ", ".join(f"{count:,} of {name}" for name, count in one["documents"].items()) or "0",
            "action": one["action"],
        }
        for one in evaluations
    ]
    print_rows(rows, title="documents that hold items of evaluation sets")
    lines = [describe_unread(unread)] if unread else []
    for one in evaluations:
        lines += _list_excused(one["name"], one["excused_items"])
        for row in one["held"][:examples]:
            found = row["found"]
            lines.append(f"{one['name']}: {row['item']} row {row['item_row']}, in {row['unit']} row {row['row']}")
            before, hit, after = found["before"][-_EXCERPT:], found["hit"][: 2 * _EXCERPT], found["after"][:_EXCERPT]
            lines.append(f"  {before}>>>{hit}<<<{after if hit == found['hit'] else ''}")
    print_lines([*lines, ""])


def _list_excused(name: str, items: list[dict[str, Any]]) -> list[str]:
    """Return lines that name items whose common phrases did not count, and in how many documents these are."""
    from pipeline.mix.contamination import EXCUSED_FILE

    lines = [f"{name}: common phrases of {plural(len(items), 'item')} do not count:"] if items else []
    for item in items[:_EXCUSED]:
        held = (
            f", and {plural(item['held'], 'document')} that {'holds' if item['held'] == 1 else 'hold'} it"
            if item["held"]
            else ""
        )
        words, documents = plural(item["words"], "word"), plural(item["documents"], "document")
        lines.append(f"  {item['item']} row {item['item_row']}: {words}, {documents} with its phrases{held}")
    return lines + _left_out(max(0, len(items) - _EXCUSED), "item", f"is in {EXCUSED_FILE}")


def _print_near_duplicates(near: dict[str, Any], names: list[str], tables: list[SourceDrops], *, examples: int) -> None:
    from pipeline.builder.clean_report.wording import name_ends
    from pipeline.clean.drops.table import ELSEWHERE, NEAR_DUPLICATE

    # Counts by source, then pairs.
    steps = [drops.steps[NEAR_DUPLICATE] for drops in tables]
    rows = [
        {
            "source": name,
            "documents that came": step.came.documents,
            "near-duplicates": step.first.documents,
            "share of these": _share(step.first.documents, step.came.documents),
            "tokens": step.first.tokens,
            "of another source": step.reason(NEAR_DUPLICATE + ELSEWHERE).first.documents,
        }
        for name, step in zip(names, steps, strict=True)
        if step.first.documents
    ]
    done = "dropped" if near["action"] == "drop" else 'reported; action = "drop" drops them'
    print_rows(rows, title=f"near-duplicates by {near['min_jaccard']:g} or more: {done}")
    lines = ["shares are of the documents that reached this step, that is, that no earlier step drops"] if rows else []
    lines += _left_out(len(near["sources"]) - len(rows), "source", "has none")
    for source in near["sources"]:
        for pair in source["shown"][:examples]:
            lines.append(f"{source['name']}: similar by {pair['jaccard']:.3f}")
            for end, name in name_ends(near["action"]).items():
                document = pair[end]
                text = document["text"][:_TEXT_CHARACTERS]
                place = f"{document['place']} row {document['row']}"
                lines.append(f"  {name:<8} {place}, {plural(document['tokens'], 'token')}: {text}")
    print_lines([f"{plural(near['pairs'], 'pair')}, of {near['compared']:,} that were compared", *lines, ""])


def _print_source(source: dict[str, Any], *, examples: int) -> None:
    from pipeline.builder.clean_report.wording import describe_others

    read, left = source["read"], source["left"]
    # Limits that drop something, then what all would drop at other values.
    limits = [limit for limit in source["limits"] if limit["every"]["documents"]]
    rows = [_row(limit["reason"], limit["value"], limit, read) for limit in limits]
    gone = {name: read[name] - left[name] for name in ("documents", "tokens")}
    rows.append(_row("all of them", None, {"every": gone, "first": gone, "alone": None}, read))
    title = f"{source['name']}: {plural(read['documents'], 'document')} measured, {left['documents']:,} left"
    print_rows(rows, title=title)
    lines = _left_out(len(source["limits"]) - len(limits), "limit", "drops nothing")
    others = [limit for limit in source["limits"] if any(other["documents"] for other in limit["others"])]
    print_lines(lines)
    print_rows(
        [
            {"limit": limit["reason"], "at": f"{limit['value']:g}", "documents at other values": describe_others(limit)}
            for limit in others
        ]
    )
    lines = _left_out(len(source["limits"]) - len(others), "limit", "would drop nothing at these values either")
    for limit in limits if examples else ():
        lines.append(f"{limit['reason']} = {limit['value']:g} drops {plural(limit['every']['documents'], 'document')}")
        for item in limit["random"][:examples]:
            found = f"{limit['measure']} is {item['value']:.6g}"
            lines.append(f"  {item['place']} row {item['row']}: {found}: {item['text'][:_TEXT_CHARACTERS]}")
    print_lines([*lines, ""])


def _left_out(count: int, what: str, why: str) -> list[str]:
    """Return a line that says how many rows are left out of a table, if any are."""
    return [f"{plural(count, what)} left out, each of which {why}"] if count else []


def _row(limit: str, value: float | None, counts: dict[str, Any], read: dict[str, int]) -> dict[str, Any]:
    every = counts["every"]
    return {
        "limit": limit,
        "at": "" if value is None else f"{value:g}",
        "documents": every["documents"],
        "share": _share(every["documents"], read["documents"]),
        "tokens": every["tokens"],
        "share of tokens": _share(every["tokens"], read["tokens"]),
        "first reason": counts["first"]["documents"],
        "only reason": "" if counts["alone"] is None else f"{counts['alone']['documents']:,}",
    }


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "-"
