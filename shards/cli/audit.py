"""Judge the tokens of a set: ids that never occur, are rare, or are concentrated in a few documents; special ids in
text; validation documents seen in training; lengths; bytes per token.

The exit status is 1 if a check is bad, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING, Any

from shards.audit.rules import LISTED_SHARE, RULES, VERDICT_ADVICE, VERDICT_WORDS
from shards.errors import plural
from shards.terminal.arguments import add_set, add_workers, parse_path, positive_number
from shards.terminal.display import JsonObject, printable
from shards.terminal.program import PROBLEMS, WHOLE, Outcome, Shown

if TYPE_CHECKING:
    from shards.audit.audit import AuditResult
    from shards.audit.checks import Finding
    from shards.audit.concentrated_documents import Concentrated

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

    path = options.write_block_list
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
    found, written = report.concentrated, JsonObject()
    if found is not None and path is not None:
        asked = "audit --write-block-list: documents full of rare ids"
        hashes = write_block_list(path, found.hashes, open_set(options.set), asked=asked, reasons=found.reasons())
        written = {"block_list": {"file": str(path), "hashes": hashes} | found.to_dict()}
    data = report.data | {"out": str(report.out), "seconds": round(report.seconds, 3)} | written
    shown = _show(report, found, written, rows=options.rows)
    return Outcome(data, shown, PROBLEMS if report.verdict == "bad" else WHOLE)


def _show(report: AuditResult, found: Concentrated | None, written: JsonObject, *, rows: int) -> Shown:
    """Yield what `audit` prints: up to `rows` findings of each check to look at, the verdicts, and the block list."""
    from rich.text import Text

    # Findings first: the verdicts are what stays on the screen.
    for check in report.checks:
        if check.findings and check.verdict != "ok":
            more = f", {rows} of {len(check.findings)}" if len(check.findings) > rows else ""
            yield f"{check.name}{more}"
            yield [
                {name: value for name, value in finding.values.items() if name != "histogram"}  # audit.json has it
                | ({"example": _example(finding)} if finding.shown else {})
                for finding in check.findings[:rows]
            ]
    yield [
        {
            "check": check.name,
            "verdict": Text(VERDICT_WORDS[check.verdict], _STYLES[check.verdict]),
            "what was found": check.summary,
        }
        for check in report.checks
    ]
    if found is None and report.check("concentrated").verdict != "ok":
        yield "--write-block-list FILE lists the documents that are full of concentrated ids"
    yield (
        f"every id and finding: {report.out} ({plural(report.data['shards'], 'shard')}, "
        f"{plural(report.data['tokens'], 'token')}, {plural(report.data['documents'], 'document')}, "
        f"{report.seconds:.2f} s)"
    )
    yield f"{report.path}: {VERDICT_WORDS[report.verdict]}; {VERDICT_ADVICE[report.verdict]}"
    if found is not None:
        yield from _show_list(found, written["block_list"], rows=rows)


def _example(finding: Finding) -> Any:
    """Return the examples of a finding that `audit` prints, a line each."""
    from rich.text import Text

    lines: list[str] = []
    for shown in finding.shown:
        before, hit, after = shown["before"][-_SHOWN_CHARACTERS // 2 :], shown["hit"], shown["after"]
        text = printable(f"{before}>>>{hit[:_SHOWN_CHARACTERS]}<<<{after[: _SHOWN_CHARACTERS // 2]}")
        lines.append(f"{shown['shard']} document {shown['document']} ({printable(shown['source'])}): {text}")
    return Text("\n".join(lines))


def _show_list(found: Concentrated, written: JsonObject, *, rows: int) -> Shown:
    """Yield what `audit` prints of the block list: concentrated ids, listed documents by source, what to do with it."""
    shown = f", {rows} of {len(found.ids):,}" if len(found.ids) > rows else ""
    yield f"concentrated ids{shown}"
    yield [
        {
            "id": row["id"],
            "text": f'"{row["text"]}"',
            "occurrences": row["count"],
            "documents": row["documents"],
            "more_than_half_in": f"{plural(row['half_documents'], 'document')}, {plural(row['half_tokens'], 'token')}",
            "in_listed": row["listed"],
        }
        for row in found.ids[:rows]
    ]
    yield f"documents with a share of {LISTED_SHARE:.0%} concentrated ids, or more"
    yield [row | {"share": f"{row['share']:.3%}"} for row in found.sources()]
    yield from (f"warning: {warning}" for warning in found.warnings())
    name = written["file"]
    yield f"block list: {name}, {plural(written['hashes'], 'hash')}, {plural(found.tokens, 'token')}"
    if found.documents:
        yield f'read the reasons in it, then put drop_hashes = ["{name}"] into the recipe and build again'
