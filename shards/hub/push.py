"""Push a set on disk to a folder of a dataset repository on the Hub, whole or not at all.

The large files are uploaded first and are not visible yet. One commit then adds every file, the manifest included.
(More than `COMMIT_FILES` files need several commits: the last adds the manifest, and the first removes the manifest of
a set that is replaced.) So every revision holds a whole set or no set.

The Hub is listed three times, however many commits there are: to compare, before the first commit, and at the end. A
commit names the one before as its parent, so the Hub refuses it if another program has written in between; what failed
is tried again after a new listing.

No state is kept on disk: the Hub knows each uploaded file by its SHA-256, committed or not. A push that was killed
continues with the files that the Hub lacks and sends nothing twice. It is done when a listing shows every file with its
digest. Every file is hashed before it is sent; a file that differs from the manifest is not sent. Costs two reads of
each file, one to hash and one to send. Memory does not grow with the set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from shards.errors import plural, set_error
from shards.format.manifest import MANIFEST_FILE
from shards.hub.compare import CARD_FILE, ComparedFile, Comparison, refresh_comparison
from shards.stores.hub_client import hub_errors, open_hub_client
from shards.stores.retry import StoreError, TransientError, retry
from shards.terminal.reporter import Progress

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

COMMIT_FILES = 1000
"""Files in one commit: the Hub checks each within the 60 s of a request; its own client goes up to 1,000."""

UPLOAD_FILES, UPLOAD_BYTES = 100, 256 << 20
"""Maximum files and bytes that are uploaded together, between two reports of progress."""

MOST_PASSES = 4
"""Extra commits, beyond those that the files need, before a listing that does not show the set is an error."""


@dataclass
class Pushed:
    """The result of a push: the commit that holds the set, and the files that the push added to the revision."""

    commit: str = ""
    created: bool = False
    added: list[str] = field(default_factory=list[str])
    added_bytes: int = 0


def push(
    comparison: Comparison,
    *,
    private: bool = False,
    replace: bool = False,
    progress: Progress | None = None,
) -> Pushed:
    """Send the files that the Hub lacks, then make the set visible.

    Args:
        comparison: from `compare_with_hub`.
        private: create the repository as private; refuse a public one.
        replace: replace another set.
        progress: called as files are uploaded.

    Raises:
        ShardSetError: a file on disk is not what the manifest says.
        StoreError: the Hub refuses, another set is there, or requests failed for too long. Files already sent stay on
        the Hub.
    """
    # Make the repository, and refuse what must not be replaced, before a byte is sent.
    address = comparison.address
    again = partial(retry, give_up_s=comparison.give_up_s)
    done = Pushed()
    if comparison.listing is None:
        done.created = again(f"{address}", lambda: _create(comparison, private=private))
        again(f"{address}", lambda: _refresh_created(comparison))
    _check(comparison, private=private, replace=replace)
    for card in comparison.missing:
        if card.name == CARD_FILE:
            again(f"{address}: {CARD_FILE}", partial(_check_card, comparison, card))
    done.added, done.added_bytes = [file.name for file in comparison.missing], comparison.missing_bytes
    there = comparison.bytes - comparison.missing_bytes
    # Upload the large files, which are invisible until a commit names them.
    operations: dict[str, CommitOperationAdd] = {}
    for batch in _batch_files(comparison.missing):
        operations |= {file.name: _make_operation(comparison, file) for file in batch}
        added = [operations[file.name] for file in batch]
        more = f" and {plural(len(batch) - 1, 'more file')}" if len(batch) > 1 else ""
        what = f"{address}: {batch[0].name}{more}"
        again(what, partial(_upload, comparison, added, what))
        there += sum(file.bytes for file in batch)
        if progress is not None:
            progress(there, comparison.bytes)
    # Commit until a listing shows the whole set.
    commit = partial(_commit, comparison, operations, private=private, replace=replace)
    for _ in range(len(operations) // COMMIT_FILES + MOST_PASSES):
        if again(f"{address}: commit", commit):
            assert comparison.listing is not None
            done.commit = comparison.listing.commit
            return done
    names = ", ".join(file.name for file in comparison.missing[:5])
    raise StoreError(f"{address}: {names}: committed, but the listing differs. Does another program write there?")


def _create(comparison: Comparison, *, private: bool) -> bool:
    """Create the repository and the branch unless they exist; return whether the repository was created."""
    hub, address, created = open_hub_client(), comparison.address, not comparison.has_repo
    with hub_errors(f"{address}"):
        if created:
            hub.create_repo(address.repo, repo_type="dataset", private=private, exist_ok=True)
        if address.revision != "main":
            # Branch from the first commit, which holds no set: a branch from main's end could start with another set.
            first = hub.list_repo_commits(address.repo, repo_type="dataset")[-1].commit_id
            hub.create_branch(address.repo, branch=address.revision, revision=first, repo_type="dataset", exist_ok=True)
    return created


def _refresh_created(comparison: Comparison) -> None:
    refresh_comparison(comparison)
    if comparison.listing is None:
        raise TransientError(f"{comparison.address}: was created, but the Hub does not list it yet")


def _check(comparison: Comparison, *, private: bool, replace: bool) -> None:
    """Refuse to replace another set without --replace, and to push to a public repository with --private."""
    address, listing, other = comparison.address, comparison.listing, comparison.other
    if private and listing is not None and not listing.private:
        raise StoreError(f"{address}: is public, and --private was given. Make it private in its settings first.")
    if other is not None and not replace:
        raise StoreError(
            f"{address}: holds another set, {other.name!r} of {plural(len(other.shards), 'shard')}. Give another "
            "repository or --revision, or --replace to take its place (it stays in the history)."
        )


def _check_card(comparison: Comparison, card: ComparedFile) -> None:
    """Ask the Hub whether it accepts the card, before anything is uploaded.

    Raises:
        StoreError: it does not accept the card; the message says why.
    """
    import yaml
    from huggingface_hub import DatasetCard

    with hub_errors(f"{comparison.address}: {CARD_FILE}"):
        try:
            DatasetCard(card.path.read_text(encoding="utf-8")).validate()
        except (ValueError, yaml.YAMLError) as error:
            said = " ".join(str(error).split())
            message = f"{card.path}: the Hub refuses its metadata: {said}. Correct the block between the two `---`."
            raise StoreError(message) from error


def _batch_files(files: list[ComparedFile]) -> Iterator[list[ComparedFile]]:
    """Yield files in batches of at most `UPLOAD_FILES` and, unless one file is larger, `UPLOAD_BYTES`."""
    batch: list[ComparedFile] = []
    size = 0
    for file in files:
        if batch and (len(batch) == UPLOAD_FILES or size + file.bytes > UPLOAD_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.bytes
    if batch:
        yield batch


def _make_operation(comparison: Comparison, file: ComparedFile) -> CommitOperationAdd:
    """Return the operation that adds a file to a commit.

    Raises:
        ShardSetError: its bytes are not what the manifest says.
    """
    from huggingface_hub import CommitOperationAdd

    operation = CommitOperationAdd(comparison.address.path(file.name), file.path)
    found = operation.upload_info.sha256.hex()
    if found != file.sha256:
        message = f"sha256 is {found}; expected {file.sha256} by the manifest. Not sent. Copy or build it again."
        raise set_error("file_checksum", file.name, message)
    return operation


def _upload(comparison: Comparison, operations: list[CommitOperationAdd], what: str) -> None:
    """Upload the large files among these that the Hub lacks. They are not visible until a commit adds them."""
    address = comparison.address
    with hub_errors(what):
        open_hub_client().preupload_lfs_files(
            address.repo, operations, repo_type="dataset", revision=address.revision, free_memory=False
        )


def _commit(
    comparison: Comparison,
    operations: dict[str, CommitOperationAdd],
    *,
    private: bool,
    replace: bool,
) -> bool:
    """Commit the missing files, at most `COMMIT_FILES` of them; return True when none was missing.

    Starts with a new listing, unless this follows a commit that the Hub has confirmed and more files are to come: else
    the answer to an earlier attempt may be lost, or another program may have written to the repository.

    Raises:
        StoreError: the Hub refuses, or another set is there now.
    """
    from huggingface_hub import CommitOperationDelete

    if not comparison.continued:
        refresh_comparison(comparison)
        _check(comparison, private=private, replace=replace)
    comparison.continued = False
    address, listing = comparison.address, comparison.listing
    assert listing is not None
    batch = comparison.missing[:COMMIT_FILES]
    if not batch:
        return True
    # A file that another program removed meanwhile was never uploaded by this push.
    if lost := [file.name for file in batch if file.name not in operations]:
        raise StoreError(f"{address}: {lost[0]} was there and is now missing. Run the same command again.")
    removed = comparison.leftover
    if len(batch) < len(comparison.missing) and comparison.other is not None:
        removed = [*removed, MANIFEST_FILE]  # while the next commits are made, no set is there
    with hub_errors(f"{address}: commit"):
        committed = open_hub_client().create_commit(
            address.repo,
            [
                *(CommitOperationDelete(address.path(name)) for name in removed),
                *(operations[file.name] for file in batch),
            ],
            commit_message=f"Shard set: {plural(len(batch), 'file')}",
            repo_type="dataset",
            revision=address.revision,
            parent_commit=listing.commit,
        )
    comparison.follow(committed.oid, len(batch))
    return False
