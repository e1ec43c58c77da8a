"""`python -m shards push`: a set to the Hugging Face Hub; see `shards.hub.push`."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import InputError
from shards.terminal.arguments import add_set, add_threads, print_json, require_folder
from shards.terminal.command import PROBLEMS, WHOLE

if TYPE_CHECKING:
    from shards.hub.plan import Plan
    from shards.hub.push import Pushed
    from shards.stores.hub_client import Address
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `push`."""
    parser = commands.add_parser(
        "push",
        help="upload a set and its card as a dataset on the Hugging Face Hub; re-run to go on",
        description="Upload a set and its data card as a dataset on the Hugging Face Hub. Shards arrive in order, so "
        "that training can begin before the last is there. A set that does not pass validation is not sent. Stopped "
        "anywhere, the same command goes on. The token is HF_TOKEN, or that of `hf auth login`; HF_ENDPOINT names "
        "another Hub.",
    )
    add_set(parser)
    parser.add_argument("repo", metavar="REPO", help="OWNER/NAME[@REVISION][/FOLDER]; created where it is not there")
    parser.add_argument("--revision", metavar="BRANCH", help="a branch, created where it is not there (default: main)")
    parser.add_argument("--private", action="store_true", help="create it private; refuse one that is public")
    parser.add_argument("--replace", action="store_true", help="take the place of another set that stands there")
    card = parser.add_mutually_exclusive_group()
    card.add_argument("--card", type=Path, metavar="FILE", help="README.md (default: DIR.report's; made if not there)")
    card.add_argument("--no-card", action="store_true", help="push no card; one that stands there stays")
    parser.add_argument(
        "--level",
        choices=("quick", "full"),
        default="full",
        help="of validation before it: quick reads no tokens and no document tables, so it sees neither a wrong id nor "
        "a document in both splits (default: full; a fraction of the time that sending takes)",
    )
    add_threads(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent; send nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from shards.cli.sets import print_set_problems
    from shards.errors import ShardSetError
    from shards.hub.push import push
    from shards.stores.hub_client import HubError, parse_address, quiet_client
    from shards.terminal.display import show_progress
    from shards.validation.validate import validate

    require_folder(options.set)
    began = time.perf_counter()
    try:
        address = parse_address(options.repo, revision=options.revision)
        with show_progress("validate") if options.level == "full" else nullcontext() as progress:
            checked = validate(options.set, level=options.level, threads=options.threads, progress=progress)
        problems = checked.problems
        if problems:
            raise ShardSetError(problems)
        quiet_client()
        plan = _plan(options, address)
        if options.dry_run:
            _print_plan(plan, as_json=options.json)
            return WHOLE
        with show_progress("push", unit="bytes") as progress:
            done = push(plan, private=options.private, replace=options.replace, progress=progress, note=_note)
    except HubError as error:
        raise InputError(f"push: {error}") from error
    except ShardSetError as error:
        print_set_problems(error.problems, as_json=options.json)
        return PROBLEMS
    _print_result(plan, done, time.perf_counter() - began, as_json=options.json)
    return WHOLE


def _plan(options: argparse.Namespace, address: Address) -> Plan:
    """Compare with the Hub; a README.md that someone wrote there stays, unless --card or --replace is given."""
    from shards.hub.plan import plan_push

    card = _find_card(options)
    plan = plan_push(options.set, address, card=card)
    ours = next((file for file in plan.parts[0].files if file.path == card), None)
    if ours is None or options.card or options.replace or plan.listing is None or ours.name not in plan.listing.files:
        return plan
    if not plan.lacks(ours):
        return plan
    _note(f"{ours.name} there is another than {card}: it stays. --card {card} takes its place")
    return plan_push(options.set, address)


def _find_card(options: argparse.Namespace) -> Path | None:
    """Return the data card: the one given, the report's, or one made now; in a dry run none is made."""
    if options.no_card:
        return None
    if options.card is not None:
        if not options.card.is_file():
            raise InputError(f"push: {options.card}: no such file. Correct --card.")
        return options.card
    from shards.format.reader import open_set
    from shards.report.write import CARD_FILE, default_out, write_report
    from shards.terminal.display import show_progress

    card = default_out(options.set) / CARD_FILE
    if not card.is_file() and not options.dry_run:
        _note(f"making the card {card}, with an audit where there is none")
        with show_progress("report") as progress:
            write_report(options.set, progress=progress)
    if not card.is_file():
        return None
    if open_set(options.set).manifest_sha256 not in card.read_text(encoding="utf-8"):
        raise InputError(
            f"push: {card}: does not name this set's manifest by its SHA-256, so it may be another's. Run "
            f"python -m shards report {options.set}, or give it by --card."
        )
    return card


def _print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print files and bytes by kind, and what is there already."""
    from shards.terminal.display import plain_table, printable, stdout_console

    rows: dict[str, list[int]] = {}
    for parts, place in ((plan.parts, 0), (plan.missing, 2)):
        for part in parts:
            row = rows.setdefault(part.kind, [0, 0, 0, 0])
            row[place] += len(part.files)
            row[place + 1] += part.bytes
    names = ("files", "bytes", "to_send_files", "to_send_bytes")
    if as_json:
        parts = {kind: dict(zip(names, row, strict=True)) for kind, row in rows.items()}
        print_json({**_describe(plan), "dry_run": True, "replaces": plan.other is not None, "parts": parts})
        return
    table = plain_table("part", "files", "bytes", "to send", "bytes to send", "bytes there already")
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    for kind, (files, size, to_send, missing) in rows.items():
        table.add_row(kind, f"{files:,}", f"{size:,}", f"{to_send:,}", f"{missing:,}", f"{size - missing:,}")
    state = "there" if plan.listing else "branch to be created" if plan.has_repo else "to be created"
    print(printable(f"{plan.address}: {state}; nothing was sent"))
    stdout_console().print(table)
    if plan.other is not None:
        print(printable(f"another set stands there, {plan.other.name!r}; --replace takes its place"))


def _print_result(plan: Plan, done: Pushed, seconds: float, *, as_json: bool) -> None:
    from shards.terminal.display import printable

    files = sum(len(part.files) for part in plan.parts)
    if as_json:
        told: dict[str, Any] = {
            "commit": done.commit,
            "created": done.created,
            "files": files,
            "bytes": plan.bytes,
            "sent": done.sent,
            "sent_bytes": done.sent_bytes,
            "commits": done.commits,
            "verified": True,
            "seconds": round(seconds, 3),
        }
        print_json({**_describe(plan), **told})
        return
    print(
        f"{len(done.sent)} files sent, {done.sent_bytes:,} bytes in {done.commits} commits, {seconds:.1f} s; "
        f"{files - len(done.sent)} were there"
    )
    print(printable(f"{plan.address}: all {files} files listed with their SHA-256 at commit {done.commit}"))
    print(printable(f'read it with shards.open_set("{plan.address}")'))


def _describe(plan: Plan) -> dict[str, Any]:
    address = plan.address
    return {"url": str(address), "repo": address.repo, "revision": address.revision, "folder": address.folder}


def _note(text: str) -> None:
    from shards.terminal.display import say

    say(f"push: {text}")
