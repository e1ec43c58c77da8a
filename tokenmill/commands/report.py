"""Write index.html, one page that needs no network, and README.md, a dataset card with the Hub's header.

They show the set's mix, tokens, audit and examples, and how to use it. The exit status is 0 whatever the audit says.
"""

import argparse

from shards.terminal.arguments import add_set, add_workers, parse_path
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report`."""
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
        help="folder of the set's audit, made if there is none (default: SET.audit; OUT.audit for a set at an address)",
    )
    add_workers(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Return the facts of the page that `report` writes."""
    from pipeline.recipe.schema import without_defaults
    from shards.audit.rules import VERDICT_WORDS
    from shards.report.write import CARD_FILE, PAGE_FILE, report_to_dict, write_report
    from shards.terminal.progress import show_progress

    with show_progress("report") as progress:
        report = write_report(
            options.set,
            out=options.out,
            audit=options.audit,
            workers=options.workers,
            shorten=without_defaults,
            progress=progress,
        )
    checks = [check for check in report.audit["checks"] if check["verdict"] != "ok"]
    shown = [
        f"{report.out / PAGE_FILE}: the page; open it in a browser",
        f"{report.out / CARD_FILE}: the dataset card, for the Hub",
        f"audit: {VERDICT_WORDS[report.audit['verdict']]}",
        *(f"  {check['name']}: {check['summary']}" for check in checks),
    ]
    return Outcome(report_to_dict(report), shown)
