"""Push a set on disk, or a model, to a folder of a repository on the Hub, whole or not at all.

The large files are uploaded first and are not visible yet. One commit then adds every file, the manifest included.
(More than `COMMIT_FILES` files need several commits: the last adds the manifest, and the first removes the manifest of
a set that is replaced.) So every revision holds a whole set or no set.

A commit names the one before as its parent, so the Hub refuses it if another program has written in between. If a
commit fails, the Hub is listed again and only what is missing is committed.

No state is kept on disk: the Hub knows each uploaded file by its SHA-256, committed or not. A push that was killed
continues with the files that the Hub lacks. Every file is hashed before it is sent; a file that differs from the
manifest is not sent. Costs two reads of each file, one to hash and one to send. Memory does not grow with the set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import ShardSetError, plural
from shards.format.manifest import MANIFEST_FILE
from shards.format.reader import ShardSet, open_set
from shards.format.shard import AGAIN, compare_digest
from shards.stores.files import hash_file
from shards.stores.hub_client import hub_errors, open_hub_client, retry_hub, say_token
from shards.stores.hub_store import BLOB_DIGITS, HubAddress, blob_id, open_hub
from shards.stores.retry import StoreError, TransientError
from shards.stores.store import ListedFile
from shards.terminal.reporter import Progress, no_progress

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

CARD_FILE = "README.md"

COMMIT_FILES = 1000
"""Files in one commit: the Hub checks each within the 60 s of a request; its own client goes up to 1,000."""

BATCH_FILES, BATCH_BYTES = 100, 256 << 20
"""Maximum files and bytes that are sent or fetched together, between two reports of progress."""


@dataclass(frozen=True)
class SetFile:
    """A file by its name in the set, with its size and SHA-256."""

    name: str
    bytes: int
    sha256: str
    path: Path
    """Where it is on this machine."""


@dataclass(frozen=True)
class Comparison:
    """The files of a set, and those that the Hub lacks or holds with different bytes.

    Attributes:
        files: every file of the set and the card, the manifest last.
        commit: the commit that was compared with; empty if there is no such repository.
        private: whether the repository is private.
        missing: the files to send, in the order of `files`.
        other: what the repository holds already, if it is another set or model: its name, and words for it.
        leftover: files of that other set that this set does not replace.
    """

    files: Sequence[SetFile]
    commit: str
    private: bool
    missing: Sequence[SetFile]
    other: tuple[str, str] | None
    leftover: list[str]


def list_files(folder: Path, card: Path | None = None) -> list[SetFile]:
    """Return the files of a set to push, which has passed validation, and the card as README.md; the manifest last."""
    paths = {name: (folder / name, sha256) for name, sha256 in open_set(folder).manifest.digests.items()}
    for name, path in ((CARD_FILE, card), (MANIFEST_FILE, folder / MANIFEST_FILE)):
        if path is not None:
            paths[name] = path, hash_file(path)
    return [SetFile(name, path.stat().st_size, sha256, path) for name, (path, sha256) in paths.items()]


def push(
    files: Sequence[SetFile],
    address: HubAddress,
    *,
    private: bool = False,
    replace: bool = False,
    keep_card: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Send to the Hub the files that it lacks, then make the set visible.

    Args:
        files: from `list_files`; of a model the files of its folder, the weights last.
        address: the destination of the set; the repository is created if it does not exist, on the branch main.
        private: create the repository as private; refuse a public one.
        replace: replace another set.
        keep_card: send no card to a repository that has one, which a person may have edited.
        dry_run: return what would be sent, without a commit; write nothing, and refuse what a push refuses.
        progress: called as files are uploaded.

    Returns:
        commit: the commit that holds the set.
        created: whether the repository was not there.
        replaces: the name of the set, or the kind, of what it takes the place of; None if there is nothing.
        files, bytes: of the set and the card.
        added, added_bytes: the files that the push added to the revision.

    Raises:
        ShardSetError: a file on disk is not what the manifest says.
        StoreError: the Hub refuses, another set is there, or requests failed for too long. Files already sent stay on
            the Hub.
    """

    def compare(*, created: bool = False) -> Comparison:
        """Compare the files with the Hub's, and refuse what must not be replaced."""
        found = _compare_with_hub(files, address, keep_card=keep_card)
        if found.commit:
            _check(found, address, private=private, replace=replace)
        elif created:
            raise TransientError(f"{address}: was created, but the Hub does not list it yet")
        else:
            _check_new(address)
        return found

    # Refuse, and make the repository, before a byte is sent.
    comparison = before = compare()
    for file in comparison.missing:
        if file.name == CARD_FILE:
            retry_hub(f"{address}: {CARD_FILE}", partial(_check_card, address, file.path))
    if not before.commit and not dry_run:
        retry_hub(f"{address}", lambda: _create(address, private=private))
        # Another program may have made it meanwhile, public or with a set in it.
        comparison = retry_hub(f"{address}", partial(compare, created=True))
    missing = comparison.missing
    total, added_bytes = count_bytes(comparison.files), count_bytes(missing)
    told = {
        "created": not before.commit,
        "replaces": before.other[0] if before.other else None,
        "files": len(comparison.files),
        "bytes": total,
        "added": [file.name for file in missing],
        "added_bytes": added_bytes,
    }
    if dry_run:
        return told
    # Upload the large files, which are invisible until a commit names them.
    operations: dict[str, CommitOperationAdd] = {}
    sent = total - added_bytes
    for batch in batch_files(missing):
        operations |= {file.name: _make_operation(address, file) for file in batch}
        additions = [operations[file.name] for file in batch]
        named = batch[0].name + (f" and {plural(len(batch) - 1, 'more file')}" if len(batch) > 1 else "")
        _upload(f"{address}: {named}", address, additions)
        sent += count_bytes(batch)
        progress(sent, total)

    def commit() -> str:
        # Another program may have written meanwhile, or the answer to an earlier attempt is lost.
        return _commit(compare(created=True), address, operations)

    return {"commit": retry_hub(f"{address}: commit", commit)} | told


def count_bytes(files: Sequence[SetFile]) -> int:
    """Return the bytes of some files to push or pull."""
    return sum(file.bytes for file in files)


def _compare_with_hub(files: Sequence[SetFile], address: HubAddress, *, keep_card: bool) -> Comparison:
    """Compare files with those on the Hub, by one listing.

    Raises:
        StoreError: the repository cannot be read, for another reason than that it is not there; or the manifest there
            is not a set's.
    """
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        listing = open_hub(address)
    except StoreError as error:
        cause = error.__cause__
        if isinstance(cause, RepositoryNotFoundError) and not isinstance(cause, GatedRepoError):
            return Comparison(files, "", False, files, None, [])
        raise
    there = listing.files
    wanted = [file for file in files if not (keep_card and file.name == CARD_FILE and CARD_FILE in there)]
    missing = [file for file in wanted if file.name not in there or not _holds(there[file.name], file)]
    # A manifest that differs is another set's: which of its files would be left over? Weights are another model's.
    other, leftover = None, list[str]()
    differs = files[-1].name in there and files[-1] in missing
    if differs and address.kind == "model":
        other = address.kind, "model"
    elif differs:
        try:
            manifest = ShardSet(listing).manifest
        except ShardSetError as error:
            raise StoreError(
                f"{address}: its {MANIFEST_FILE} is not a set's ({error}). Give another repository or "
                "revision, or remove the file there."
            ) from error
        other = manifest.name, f"set, {manifest.name!r} of {plural(len(manifest.shards), 'shard')}"
        stays = {file.name for file in files}
        leftover = [name for name in sorted(manifest.digests) if name in there and name not in stays]
    return Comparison(wanted, listing.commit, listing.private, missing, other, leftover)


def batch_files(files: Sequence[SetFile]) -> Iterator[list[SetFile]]:
    """Yield files to push in batches of at most `BATCH_FILES` and, unless one file is larger, `BATCH_BYTES`."""
    batch: list[SetFile] = []
    for file in files:
        if batch and (len(batch) == BATCH_FILES or count_bytes(batch) + file.bytes > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(file)
    if batch:
        yield batch


def _holds(listed: ListedFile, file: SetFile) -> bool:
    """Return whether a file on the Hub equals one to push: by SHA-256, or by git's blob id if git itself stores it."""
    if len(listed.version) != BLOB_DIGITS:
        return listed.version == file.sha256
    return listed.bytes == file.bytes and listed.version == blob_id(file.path.read_bytes())


def _check_new(address: HubAddress) -> None:
    """Refuse to push to a new repository without a token, or for a branch that a new one does not have."""
    from huggingface_hub import get_token

    if address.revision != "main":
        raise StoreError(
            f"{address}: there is no such repository, and a new one has only the branch main. Push to {address.repo} "
            "first, or create the branch with `hf`."
        )
    if not get_token():
        raise StoreError(f"{address}: no such {address.kind}, or it is private. {say_token()}.")


def _create(address: HubAddress, *, private: bool) -> None:
    """Create the repository to push to unless it exists."""
    with hub_errors(f"{address}"):
        open_hub_client().create_repo(address.repo, repo_type=address.kind, private=private, exist_ok=True)


def _check(comparison: Comparison, address: HubAddress, *, private: bool, replace: bool) -> None:
    """Refuse to replace another set without --replace, and to push to a public repository with --private."""
    if private and not comparison.private:
        raise StoreError(f"{address}: is public, and --private was given. Make it private in its settings first.")
    if comparison.other is not None and not replace:
        raise StoreError(
            f"{address}: holds another {comparison.other[1]}. Give another "
            "repository or branch, or --replace to take its place (it stays in the history)."
        )


def _check_card(address: HubAddress, card: Path) -> None:
    """Ask the Hub whether it accepts the card to push, before anything is uploaded.

    Raises:
        StoreError: it does not accept the card; the message says why.
    """
    import yaml
    from huggingface_hub import DatasetCard, ModelCard

    with hub_errors(f"{address}: {CARD_FILE}"):
        try:
            of_kind = DatasetCard if address.kind == "dataset" else ModelCard
            of_kind(card.read_text(encoding="utf-8")).validate()
        except (ValueError, yaml.YAMLError) as error:
            said = " ".join(str(error).split())
            raise StoreError(
                f"{card}: the Hub refuses its metadata: {said}. Correct the block between the two `---`."
            ) from error


def _make_operation(address: HubAddress, file: SetFile) -> CommitOperationAdd:
    """Return the operation that adds a pushed file to a commit.

    Raises:
        ShardSetError: its bytes are not what the manifest says.
    """
    from huggingface_hub import CommitOperationAdd

    operation = CommitOperationAdd(address.path(file.name), file.path)
    found = operation.upload_info.sha256.hex()
    if problems := compare_digest(file.name, file.sha256, found, remedy=f"Not sent. {AGAIN}"):
        raise ShardSetError(problems)
    return operation


def _upload(what: str, address: HubAddress, operations: list[CommitOperationAdd]) -> None:
    """Upload the large files to push that the Hub lacks. They are not visible until a commit adds them.

    The time for retries begins with the first failure: an upload that succeeds may take hours. The library continues
    with what has arrived.

    Raises:
        StoreError: the Hub refuses, or requests failed for too long.
    """

    def attempt() -> None:
        with hub_errors(what):
            open_hub_client().preupload_lfs_files(
                address.repo, operations, repo_type=address.kind, revision=address.revision, free_memory=False
            )

    try:
        attempt()
    except TransientError:
        retry_hub(what, attempt)


def _commit(comparison: Comparison, address: HubAddress, operations: dict[str, CommitOperationAdd]) -> str:
    """Commit the files that a push lacks, at most `COMMIT_FILES` at a time; return the commit that holds the set.

    Raises:
        StoreError: the Hub refuses.
    """
    from huggingface_hub import CommitOperationDelete

    missing, head, removed = comparison.missing, comparison.commit, comparison.leftover
    if comparison.other is not None and len(missing) > COMMIT_FILES:
        removed = [*removed, MANIFEST_FILE]  # while the next commits are made, no set is there
    for start in range(0, len(missing), COMMIT_FILES):
        batch = missing[start : start + COMMIT_FILES]
        additions = [operations.get(file.name) or _make_operation(address, file) for file in batch]
        with hub_errors(f"{address}: commit"):
            committed = open_hub_client().create_commit(
                address.repo,
                [*(CommitOperationDelete(address.path(name)) for name in removed), *additions],
                commit_message=f"{address.kind.capitalize()}: {plural(len(batch), 'file')}",
                repo_type=address.kind,
                revision=address.revision,
                parent_commit=head,
            )
        head, removed = committed.oid, []
    return head
