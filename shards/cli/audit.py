"""`python -m shards audit`: judge the tokens of a set, by the rules of `shards.audit.rules`.

Every name and text is printed through `display.printable`: a document cannot control the terminal.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shards.audit.rules import LISTED_SHARE, RULES, VERDICT_ADVICE, VERDICT_WORDS
from shards.errors import InputError, plural
from shards.terminal.arguments import add_set, add_workers, check_place, number_in, parse_path, positive_number
from shards.terminal.display import plain_table, print_json, print_lines, print_rows, printable, stdout_console
from shards.terminal.exit_status import PROBLEMS, WHOLE

if TYPE_CHECKING:
    from shards.audit.audit import AuditResult
    from shards.audit.check_result import Check, Finding
    from shards.audit.concentrated_documents import Concentrated
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
        type=parse_path,
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
    parser.add_argument(
        "--write-block-list",
        type=parse_path,
        metavar="FILE",
        help="also look for documents full of concentrated ids and words (reads the set three more times), and write "
        "their hashes, each with the reason, as a block list for a data recipe's drop_hashes",
    )
    parser.add_argument(
        "--listed-share",
        type=number_in(0.01, 1),
        metavar="SHARE",
        help="list documents in which concentrated ids and words are this share of the tokens with letters (default: "
        f"{LISTED_SHARE:g})",
    )
    parser.add_argument(
        "--repository-column",
        metavar="COLUMN",
        help="a column of the sources that names the repository of a document, such as repo_name: it is read from "
        "their files for the documents of the block list, which are then counted by repository",
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
    from shards.cli.problems import value_errors
    from shards.terminal.progress import show_progress

    check_place(options.set)
    with value_errors():
        listed_share = _check_list(options)
        with show_progress("audit") as progress:
            report = audit(
                options.set,
                out=options.out,
                workers=options.workers,
                rare=options.rare,
                listed_share=listed_share,
                progress=progress,
            )
        if report.concentrated is not None and options.repository_column is not None:
            from shards.audit.repositories import name_repositories
            from shards.format.reader import open_set

            report.concentrated = name_repositories(
                open_set(options.set), report.concentrated, options.repository_column
            )
        written = _write_list(options, report.concentrated)
    if options.json:
        print_json(report.to_dict() | {"out": str(report.out), "seconds": round(report.seconds, 3)} | written)
    else:
        _print_audit(report, rows=options.rows)
        if report.concentrated is not None:
            _print_list(report.concentrated, written["block_list"], rows=options.rows)
    return PROBLEMS if report.verdict == "bad" else WHOLE


def _check_list(options: argparse.Namespace) -> float | None:
    """Check the flags of the block list before anything is read. Return the share, None if no list is asked for."""
    from shards.format.reader import open_set
    from shards.trace.block_list import check_block_list_path, check_block_list_unused

    path = options.write_block_list
    if path is None:
        for flag in ("listed_share", "repository_column"):
            if getattr(options, flag) is not None:
                raise InputError(f"--{flag.replace('_', '-')} needs --write-block-list FILE.")
        return None
    check_block_list_path(path, options.set if isinstance(options.set, Path) else None)
    check_block_list_unused(path, open_set(options.set))
    return LISTED_SHARE if options.listed_share is None else options.listed_share


def _write_list(options: argparse.Namespace, found: Concentrated | None) -> dict[str, Any]:
    """Write the block list if one is asked for; return its entry for `--json`."""
    from shards.format.reader import open_set
    from shards.trace.block_list import write_block_list

    if found is None:
        return {}
    path = options.write_block_list
    hashes = write_block_list(path, found, open_set(options.set), found.reasons())
    return {"block_list": {"file": str(path), "hashes": hashes} | found.to_dict()}


def _print_list(found: Concentrated, written: dict[str, Any], *, rows: int) -> None:
    """Print the concentrated ids and words, the listed documents by source and place, and what to do with the list."""
    terms = [
        {
            "id or word": f'"{term.text}"',
            "ids": " ".join(map(str, term.ids)),
            "occurrences": term.half.count,
            "documents": term.half.documents,
            "more_than_half_in": f"{plural(term.half.half_documents, 'document')}, "
            f"{plural(term.half.half_tokens, 'token')}",
            "in_listed": term.listed,
        }
        for term in found.terms[:rows]
    ]
    shown = f", {rows} of {len(found.terms):,}" if len(found.terms) > rows else ""
    print_rows(terms, title=f"concentrated ids and words{shown}")
    sources = [row | {"share": f"{row['share']:.3%}"} for row in found.sources()]
    print_rows(sources, title=f"documents with a share of {found.share:.0%} concentrated ids and words, or more")
    print_rows(found.places()[:rows])
    lines = [f"warning: {warning}" for warning in found.warnings()]
    name = written["file"]
    lines.append(f"block list: {name}, {plural(written['hashes'], 'hash')}, {plural(found.tokens, 'token')}")
    if found.documents:
        lines.append(f'read the reasons in it, then put drop_hashes = ["{name}"] into the recipe and build again')
    print_lines(lines)


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
    if report.concentrated is None and report.check("concentrated").verdict != "ok":
        print_lines(["--write-block-list FILE lists the documents that are full of concentrated ids and words"])
    speed = report.tokens / max(report.seconds, 1e-9) / 1e6
    figures = (
        f"{plural(report.shards, 'shard')}, {plural(report.tokens, 'token')}, {plural(report.documents, 'document')}, "
        f"{report.seconds:.2f} s, {speed:.1f} M tokens/s"
    )
    verdict = f"{VERDICT_WORDS[report.verdict]}; {VERDICT_ADVICE[report.verdict]}"
    print_lines([f"every id and finding: {report.out} ({figures})", f"{report.path}: {verdict}"])


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
