"""The flags of `push`, and what it does with a set; `tokenmill.commands.push` is the command."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, ShardSetError, plural, shell_command
from shards.terminal.arguments import add_give_up_after, add_set, add_threads, parse_path
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from shards.hub.push import SetFile
    from shards.stores.hub_store import HubAddress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `push`."""
    add_set(parser)
    parser.add_argument("repo", metavar="REPO", help="OWNER/NAME[@BRANCH][/FOLDER]; created if absent")
    parser.add_argument("--private", action="store_true", help="create it private; refuse a repository that is public")
    parser.add_argument("--replace", action="store_true", help="replace a different set, which stays in the history")
    parser.add_argument("--card", type=parse_path, metavar="FILE", help="README.md (default: SET.report's, if any)")
    add_threads(parser)
    add_give_up_after(parser)
    parser.add_argument("--dry-run", action="store_true", help="validate, and list what would be uploaded")


def push_set(options: argparse.Namespace) -> Outcome:
    """Return what `push` has sent, or with `--dry-run` what it would send."""
    from shards.hub.push import list_files
    from shards.stores.hub_store import parse_hub_address
    from shards.terminal.progress import show_progress
    from shards.validation.validate import validate

    if not isinstance(options.set, Path):
        raise InputError(f"{options.set}: is not a folder of this machine. Copy the set here, and push the copy.")
    began = time.perf_counter()
    address, card = parse_hub_address(options.repo), _find_card(options)
    with show_progress("validate") as progress:
        checked = validate(options.set, level="full", threads=options.threads, progress=progress)
    if checked.problems:
        raise ShardSetError(checked.problems)
    return send(options, list_files(options.set, card), address, began, f'shards.open_set("{address}")')


def send(
    options: argparse.Namespace, files: Sequence[SetFile], address: HubAddress, began: float, reading: str
) -> Outcome:
    """Push files, which have been read since `began`; return what `push` has sent, and the call that reads it."""
    from shards.hub.push import push
    from shards.stores.hub_client import limit_hub_requests
    from shards.terminal.progress import show_progress

    limit_hub_requests(options.give_up_after)
    named = {"url": str(address), "repo": address.repo, "revision": address.revision, "folder": address.folder}
    with show_progress("push", unit="bytes") as progress:
        done = push(
            files,
            address,
            private=options.private,
            replace=options.replace,
            keep_card=not (options.card or options.replace),
            dry_run=options.dry_run,
            progress=progress,
        )
    if options.dry_run:
        counts = f"{len(done['added']):,} of {plural(done['files'], 'file')}"
        shown = [
            f"{address}: {'to be created' if done['created'] else 'reached'}; nothing was sent",
            f"{counts} to send, {done['added_bytes']:,} of {done['bytes']:,} bytes; the rest is already there",
        ]
        if done["replaces"] is not None:
            shown.append(f"the {address.kind.replace('data', '')} {done['replaces']!r} would be replaced")
        return Outcome(named | done | {"dry_run": True}, shown)
    seconds = time.perf_counter() - began
    added = f"{plural(len(done['added']), 'file')} added, {done['added_bytes']:,} bytes, {seconds:.1f} s"
    shown = [
        f"{added}; {done['files'] - len(done['added'])} were there",
        f"{address}: all {plural(done['files'], 'file')} listed with their SHA-256 at commit {done['commit']}",
        f"read it with {reading}",
    ]
    return Outcome(named | done | {"verified": True, "seconds": round(seconds, 3)}, shown)


def _find_card(options: argparse.Namespace) -> Path | None:
    """Return the dataset card that `push` sends: the given one, or the report's; None if there is none."""
    from shards.format.reader import open_set
    from shards.report.write import CARD_FILE
    from shards.stores.files import open_named
    from shards.stores.store import FolderStore, folder_beside

    if options.card is not None:
        return options.card
    card = folder_beside(FolderStore(options.set), "report") / CARD_FILE
    if not card.exists():
        return None
    # A report lies beside its set, but the set may have been built again since.
    with open_named(card) as file:
        text = file.read()
    if open_set(options.set).manifest_sha256.encode() not in text:
        raise InputError(
            f"{card}: does not name this set's manifest by its SHA-256, so it may be another's. Run "
            f"{shell_command('tokenmill', 'report', options.set)}, or give it by --card."
        )
    return card
