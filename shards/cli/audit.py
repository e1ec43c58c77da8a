"""Judge the tokens of a set: ids that never occur, are rare, or are concentrated in a few documents; special ids in
text; validation documents seen in training; lengths; bytes per token.

The exit status is 1 if a check is bad, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from typing import TYPE_CHECKING

from shards.audit.rules import LISTED_SHARE, RULES, VERDICT_ADVICE, VERDICT_WORDS
from shards.errors import plural
from shards.terminal.arguments import add_set, add_workers, parse_path, positive_number
from shards.terminal.display import JsonObject, describe_shown
from shards.terminal.program import PROBLEMS, WHOLE, Outcome, Shown

if TYPE_CHECKING:
    from shards.audit.audit import AuditResult

_SHOWN_CHARACTERS = 60
_STYLES = {"ok": "green", "look": "yellow", "bad": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `audit`."""
    parser.epilog = _explain_rules()
    add_set(parser)
    parser.add_argument(
        "--out",
        type=parse_path,
        metavar="FOLDER",
        help="folder for tokens.parquet and audit.json (default: SET.audit, next to a folder)",
    )
    parser.add_argument(
        "--rows", type=positive_number, default=10, metavar="N", help="findings to show for each check (default: 10)"
    )
    parser.add_argument(
        "--write-block-list",
        type=parse_path,
        metavar="FILE",
        help="also look for documents full of concentrated ids (reads the set twice more), and write their hashes, "
        "each with the reason, as a block list for a data recipe's drop_hashes",
    )
    add_workers(parser)


def _explain_rules() -> str:
    """Return the meaning of each verdict and the rule of each check, for the help of `audit`."""
    lines = ["verdicts:"]
    lines += [f"  {VERDICT_WORDS[verdict]:<14}{advice}" for verdict, advice in VERDICT_ADVICE.items()]
    lines += ["", "checks:"]
    for name, rule in RULES:
        lines.append(f"  {name}")
        lines += textwrap.wrap(rule, 78, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> Outcome:
    """Return what `audit` found; write the block list if one is asked for."""
    from shards.audit.audit import audit
    from shards.format.reader import open_set
    from shards.terminal.progress import show_progress
    from shards.trace.block_list import check_block_list, write_block_list

    began, path = time.perf_counter(), options.write_block_list
    if path is not None:  # before anything is read
        check_block_list(path, open_set(options.set))
    with show_progress("audit") as progress:
        report = audit(
            options.set,
            out=options.out,
            workers=options.workers,
            block_list=path is not None,
            progress=progress,
        )
    data: JsonObject = report.data | {"out": str(report.out), "seconds": round(time.perf_counter() - began, 3)}
    found = report.concentrated
    if found is not None and path is not None:
        asked = "audit --write-block-list: documents full of rare ids"
        hashes = write_block_list(path, found.hashes, open_set(options.set), asked=asked, reasons=found.reasons)
        data["block_list"] = {"file": str(path), "hashes": hashes} | found.to_dict()
    shown = _show(report, data, options)
    return Outcome(data, shown, PROBLEMS if report.verdict == "bad" else WHOLE)


def _show(report: AuditResult, data: JsonObject, options: argparse.Namespace) -> Shown:
    """Yield what `audit` prints: up to `rows` findings of each check to look at, the verdicts, and the block list."""
    from rich.text import Text

    rows, listed = options.rows, data.get("block_list")
    # Findings first: the verdicts are what stays on the screen.
    for check in report.checks:
        if check.rows and check.verdict != "ok":
            yield _count_rows(check.name, len(check.rows), rows)
            yield [_row(row) for row in check.rows[:rows]]
    yield [
        {
            "check": check.name,
            "verdict": Text(VERDICT_WORDS[check.verdict], _STYLES[check.verdict]),
            "what was found": check.summary,
        }
        for check in report.checks
    ]
    if listed is None and report.check("concentrated").verdict != "ok":
        yield "--write-block-list FILE lists the documents that are full of concentrated ids"
    yield (
        f"every id and finding: {report.out} ({plural(data['shards'], 'shard')}, {plural(data['tokens'], 'token')}, "
        f"{plural(data['documents'], 'document')}, {data['seconds']:.2f} s)"
    )
    yield f"{options.set}: {VERDICT_WORDS[report.verdict]}; {VERDICT_ADVICE[report.verdict]}"
    if listed is not None:
        yield from _show_list(listed, rows=rows)


def _count_rows(name: str, number: int, rows: int) -> str:
    return f"{name}{describe_shown(min(number, rows), number)}"


def _row(found: JsonObject) -> JsonObject:
    """Return the columns of a row that `audit` prints: audit.json has the histogram and more of the example."""
    row = {name: value for name, value in found.items() if name not in ("histogram", "examples")}
    for one in found.get("examples", ()):
        before, hit, after = one["before"][-_SHOWN_CHARACTERS // 2 :], one["hit"], one["after"]
        text = f"{before}>>>{hit[:_SHOWN_CHARACTERS]}<<<{after[: _SHOWN_CHARACTERS // 2]}"
        row["example"] = f"{one['shard']} document {one['document']} ({one['source']}): {text}"
    return row


def _show_list(listed: JsonObject, *, rows: int) -> Shown:
    """Yield what `audit` prints of the block list: concentrated ids, listed documents by source, what to do with it."""
    yield _count_rows("concentrated ids", len(listed["ids"]), rows)
    yield [
        {
            "id": row["id"],
            "text": f'"{row["text"]}"',
            "occurrences": row["count"],
            "documents": row["documents"],
            "more_than_half_in": f"{plural(row['half_documents'], 'document')}, {plural(row['half_tokens'], 'token')}",
            "in_listed": row["listed"],
        }
        for row in listed["ids"][:rows]
    ]
    yield f"documents with a share of {LISTED_SHARE:.0%} concentrated ids, or more"
    yield [row | {"share": f"{row['share']:.3%}"} for row in listed["sources"]]
    yield from (f"warning: {warning}" for warning in listed["warnings"])
    name = listed["file"]
    yield f"block list: {name}, {plural(listed['hashes'], 'hash')}, {plural(listed['tokens'], 'token')}"
    if listed["documents"]:
        yield f'read the reasons in it, then put drop_hashes = ["{name}"] into the recipe and build again'
