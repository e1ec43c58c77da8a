"""`python -m shards audit`: judge the tokens of a set, by the rules of `shards.audit.rules`.

Every name and text is printed through `display.printable`: a document cannot control the terminal.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shards.audit.rules import RULES, VERDICT_ADVICE, VERDICT_WORDS
from shards.errors import InputError
from shards.terminal.arguments import add_set, add_workers, check_place, positive_number, print_json
from shards.terminal.command import PROBLEMS, WHOLE
from shards.terminal.display import plain_table, printable, stdout_console

if TYPE_CHECKING:
    from shards.audit.audit import AuditResult
    from shards.audit.check import Check, Finding
    from shards.terminal.arguments import Subparsers

_SHOWN_CHARACTERS = 60
_STYLES = {"ok": "green", "look": "yellow", "bad": "bold red"}


def add_command(commands: Subparsers) -> None:
    """Add `audit`."""
    parser = commands.add_parser(
        "audit",
        help="look for what would spoil a model: strange ids, repeats, leaks; exit status 1 if a check is bad",
        description=textwrap.fill(
            "Judge the tokens of a set: ids that are never seen, rare, or concentrated in a few documents; special ids "
            "in text; validation documents seen in training; repeats and near-duplicates; lengths; bytes per token. "
            "The exit status is 1 if a check is bad, else 0.",
            80,
        ),
        epilog=_explain_rules(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_set(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for tokens.parquet and audit.json (default: SET.audit, next to a folder)",
    )
    parser.add_argument(
        "--rare",
        type=positive_number,
        metavar="N",
        help="call ids rare that occur fewer than N times (default: depends on the set's size)",
    )
    parser.add_argument(
        "--rows", type=positive_number, default=10, metavar="N", help="findings to show for each check (default: 10)"
    )
    add_workers(parser)
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.set_defaults(run=_run)


def _explain_rules() -> str:
    """Return the meaning of each verdict and the rule of each check, for the help."""
    lines = ["verdicts:"]
    lines += [f"  {VERDICT_WORDS[verdict]:<14}{advice}" for verdict, advice in VERDICT_ADVICE.items()]
    lines += ["", "checks:"]
    for name, rule in RULES:
        lines.append(f"  {name}")
        lines += textwrap.wrap(rule, 78, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _run(options: argparse.Namespace) -> int:
    from shards.audit.audit import audit
    from shards.cli.sets import print_set_problems
    from shards.errors import ShardSetError
    from shards.terminal.progress import show_progress

    check_place(options.set)
    try:
        with show_progress("audit") as progress:
            report = audit(options.set, out=options.out, workers=options.workers, rare=options.rare, progress=progress)
    except ShardSetError as error:
        print_set_problems(error.problems, as_json=options.json)
        return PROBLEMS
    except ValueError as error:
        raise InputError(f"audit: {error}") from error
    if options.json:
        print_json(report.to_dict() | {"out": str(report.out), "seconds": round(report.seconds, 3)})
    else:
        _print_audit(report, rows=options.rows)
    return PROBLEMS if report.verdict == "bad" else WHOLE


def _print_audit(report: AuditResult, *, rows: int) -> None:
    """Print up to `rows` findings of each check that is not ok or has only figures, then the verdicts."""
    from rich.text import Text

    console = stdout_console()
    verdicts = plain_table("check", "verdict", "what was found", right=False)
    for check in report.checks:
        verdicts.add_row(
            check.name, Text(VERDICT_WORDS[check.verdict], _STYLES[check.verdict]), Text(printable(check.summary))
        )
    for check in report.checks:
        if check.findings and (check.verdict != "ok" or not check.findings[0].examples):
            _print_rows(check, rows)
    console.print(verdicts)
    speed = report.tokens / max(report.seconds, 1e-9) / 1e6
    figures = (
        f"{report.shards} shards, {report.tokens:,} tokens, {report.documents:,} documents, {report.seconds:.2f} s, "
        f"{speed:.1f} M tokens/s"
    )
    path, out = printable(str(report.path)), printable(str(report.out))
    console.print(Text(f"every id and finding: {out} ({figures})"))
    console.print(Text(f"{path}: {VERDICT_WORDS[report.verdict]}; {VERDICT_ADVICE[report.verdict]}"))


def _print_rows(check: Check, rows: int) -> None:
    from rich.text import Text

    columns = [name for name in check.findings[0].values if name != "message"]
    table = plain_table(*columns, *(["example"] if check.findings[0].examples else []), right=False)
    for row in check.findings[:rows]:
        cells = [_show(row.values[name]) for name in columns]
        table.add_row(*(Text(cell) for cell in [*cells, *([_example(row)] if row.shown else [])]))
    console = stdout_console()
    more = f", {rows} of {len(check.findings)}" if len(check.findings) > rows else ""
    console.print(Text(f"{check.name}{more}", "bold"))
    console.print(table)


def _show(value: Any) -> str:
    if isinstance(value, dict):
        counts = cast("dict[str, int]", value)
        return " ".join(f"{printable(name)} {count:,}" for name, count in counts.items())
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def _example(row: Finding) -> str:
    lines: list[str] = []
    for shown in row.shown:
        before, hit, after = shown["before"][-_SHOWN_CHARACTERS // 2 :], shown["hit"], shown["after"]
        text = printable(f"{before}>>>{hit[:_SHOWN_CHARACTERS]}<<<{after[: _SHOWN_CHARACTERS // 2]}")
        lines.append(f"{shown['shard']} document {shown['document']} ({printable(shown['source'])}): {text}")
    return "\n".join(lines)
