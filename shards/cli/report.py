"""`python -m shards report`: a page and a data card of a set; see `shards.report`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shards.terminal.arguments import add_set, add_workers, check_place, parse_path
from shards.terminal.display import print_json
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `report`."""
    parser = commands.add_parser(
        "report",
        help="write a page and a data card: mix, tokens, audit, examples, how to use the set",
        description="Write index.html, one page that needs no network, and README.md, a data card with the Hub's "
        "header. Uses the audit of this set in SET.audit if there is one, otherwise makes one. The exit status is "
        "0 whatever the audit says.",
    )
    add_set(parser)
    parser.add_argument(
        "--out",
        type=parse_path,
        metavar="FOLDER",
        help="folder for the two files (default: SET.report, next to it); replaces only files that a report wrote",
    )
    parser.add_argument(
        "--audit",
        type=parse_path,
        metavar="FOLDER",
        help="folder of the set's audit (default: SET.audit; OUT.audit for a set at an address)",
    )
    parser.add_argument(
        "--compare",
        metavar="[NAME=]FILE",
        help="a tokenizer.json to compare bytes per token with (default: GPT-2's, if it is in the Hub's cache on this "
        "machine; nothing is downloaded)",
    )
    add_workers(parser)
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from shards.audit.rules import VERDICT_WORDS
    from shards.cli.problems import value_errors
    from shards.report.other_tokenizer import parse_compare
    from shards.report.write import CARD_FILE, PAGE_FILE, write_report
    from shards.terminal.display import printable
    from shards.terminal.progress import show_progress

    check_place(options.set)
    with value_errors():
        compare_with = None if options.compare is None else parse_compare(options.compare)
        with show_progress("report") as progress:
            report = write_report(
                options.set,
                out=options.out,
                audit=options.audit,
                compare_with=compare_with,
                workers=options.workers,
                progress=progress,
            )
    if options.json:
        print_json(report.to_dict())
        return WHOLE
    for name in (PAGE_FILE, CARD_FILE):
        path = report.out / name
        print(printable(f"{path}: {path.stat().st_size:,} bytes"))
    print(f"audit: {VERDICT_WORDS[report.contents.audit['verdict']]}")
    if report.contents.comparison is None:
        print("bytes per token are not compared: GPT-2's tokenizer is not in the Hub's cache; give --compare FILE")
    return WHOLE
