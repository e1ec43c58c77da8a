"""Upload a set and its data card as a dataset on the Hugging Face Hub; run it again to resume.

The files are uploaded first; one commit at the end makes the whole set visible. A set that does not pass validation is
not sent. If a push is stopped, run the same command again: nothing is sent twice. The token comes from HF_TOKEN or
`hf auth login`; HF_ENDPOINT names another Hub.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, ShardSetError, plural
from shards.terminal.arguments import add_give_up_after, add_set, add_threads, parse_path
from shards.terminal.display import say
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from shards.hub.push import Comparison, Pushed
    from shards.stores.address import HubAddress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `push`."""
    add_set(parser)
    parser.add_argument("repo", metavar="REPO", help="OWNER/NAME[@REVISION][/FOLDER]; created if absent")
    parser.add_argument("--revision", metavar="BRANCH", help="a branch, created if absent (default: main)")
    parser.add_argument("--private", action="store_true", help="create it private; refuse a repository that is public")
    parser.add_argument("--replace", action="store_true", help="replace another set; it stays in the history")
    card = parser.add_mutually_exclusive_group()
    card.add_argument(
        "--card", type=parse_path, metavar="FILE", help="README.md (default: DIR.report's; made if absent)"
    )
    card.add_argument("--no-card", action="store_true", help="push no card; the one on the Hub stays")
    parser.add_argument(
        "--level",
        choices=("quick", "full"),
        default="full",
        help="level of the validation before the push: quick reads no tokens or document tables, so it finds neither a "
        "wrong id nor a document in both splits (default: full; it takes a fraction of the time of the upload)",
    )
    add_threads(parser)
    add_give_up_after(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent; send nothing")


def run(options: argparse.Namespace) -> Outcome:
    """Return what was sent, or with `--dry-run` what would be."""
    from shards.hub.push import push
    from shards.stores.address import parse_hub_address
    from shards.stores.hub_client import limit_hub_requests, quiet_hub_client
    from shards.terminal.progress import show_progress
    from shards.validation.validate import validate

    if not isinstance(options.set, Path):
        raise InputError(f"{options.set}: is not a folder of this machine. Copy the set here, and push the copy.")
    began = time.perf_counter()
    address = parse_hub_address(options.repo, revision=options.revision)
    with show_progress("validate", show=options.level == "full") as progress:
        checked = validate(options.set, level=options.level, threads=options.threads, progress=progress)
    if checked.problems:
        raise ShardSetError(checked.problems)
    quiet_hub_client()
    limit_hub_requests(options.give_up_after)
    comparison = _compare(options, address)
    named = {"url": str(address), "repo": address.repo, "revision": address.revision, "folder": address.folder}
    counts = {"files": len(comparison.files), "bytes": comparison.bytes}
    # Nothing has been sent so far.
    if options.dry_run:
        missing = {"missing_files": len(comparison.missing), "missing_bytes": comparison.missing_bytes}
        told = {"dry_run": True, "replaces": comparison.other is not None}
        return Outcome(named | told | counts | missing, _show_comparison(comparison))
    with show_progress("push", unit="bytes") as progress:
        done = push(comparison, private=options.private, replace=options.replace, progress=progress)
    seconds = time.perf_counter() - began
    sent = {"added": done.added, "added_bytes": done.added_bytes, "verified": True, "seconds": round(seconds, 3)}
    head = {"commit": done.commit, "created": done.created}
    return Outcome(named | head | counts | sent, _show_result(comparison, done, seconds))


def _compare(options: argparse.Namespace, address: HubAddress) -> Comparison:
    """Compare with the Hub; a README.md that is there stays, unless --card or --replace is given."""
    from shards.hub.push import CARD_FILE, compare_with_hub, list_files

    files = list_files(options.set, _find_card(options))
    comparison = compare_with_hub(files, address, give_up_s=options.give_up_after)
    edited = [file for file in comparison.missing if file.name == CARD_FILE]
    # A card that a person edited on the Hub is not overwritten by one that was made.
    if comparison.listing and CARD_FILE in comparison.listing.files and not (options.card or options.replace):
        for file in edited:
            _note(f"{CARD_FILE} on the Hub is not {file.path}: it stays. --card {file.path} replaces it")
            comparison.missing.remove(file)
            comparison.files.remove(file)
    return comparison


def _find_card(options: argparse.Namespace) -> Path | None:
    """Return the data card: the given one, the report's, or else a new one; a dry run makes none."""
    if options.no_card:
        return None
    if options.card is not None:
        if not options.card.is_file():
            raise InputError(f"{options.card}: no such file. Correct --card.")
        return options.card
    from shards.format.reader import open_set
    from shards.report.write import CARD_FILE, write_report
    from shards.stores.store import FolderStore, folder_beside
    from shards.terminal.progress import show_progress

    card = folder_beside(FolderStore(options.set), "report") / CARD_FILE
    if not card.is_file() and not options.dry_run:
        _note(f"making the card {card}, and an audit if there is none")
        with show_progress("report") as progress:
            write_report(options.set, progress=progress)
    if not card.is_file():
        return None
    # A report lies beside its set, but the set may have been built again since.
    if open_set(options.set).manifest_sha256 not in card.read_text(encoding="utf-8"):
        raise InputError(
            f"{card}: does not name this set's manifest by its SHA-256, so it may be another's. Run "
            f"tokenmill report {options.set}, or give it by --card."
        )
    return card


def _show_comparison(comparison: Comparison) -> Iterator[str]:
    state = "there" if comparison.listing else "branch to be created" if comparison.has_repo else "to be created"
    yield f"{comparison.address}: {state}; nothing was sent"
    yield (
        f"{len(comparison.missing):,} of {plural(len(comparison.files), 'file')} to send, "
        f"{comparison.missing_bytes:,} of {comparison.bytes:,} bytes; the others are there"
    )
    if comparison.other is not None:
        yield f"another set is there, {comparison.other.name!r}; --replace replaces it"


def _show_result(comparison: Comparison, done: Pushed, seconds: float) -> Iterator[str]:
    files, address = len(comparison.files), comparison.address
    added = f"{plural(len(done.added), 'file')} added, {done.added_bytes:,} bytes, {seconds:.1f} s"
    yield f"{added}; {files - len(done.added)} were there"
    yield f"{address}: all {plural(files, 'file')} listed with their SHA-256 at commit {done.commit}"
    yield f'read it with shards.open_set("{address}")'


def _note(text: str) -> None:
    say(f"push: {text}")
