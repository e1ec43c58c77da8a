"""Push: a set on disk becomes a folder of a dataset repository on the Hub, shard by shard, in order.

The first commit holds the card, the manifest, the tokenizer and the recipe; then come the shards, validation first and
training in the manifest's order, several to a commit, the three files of a shard always in one. So a reader knows from
the first commit on what the set will be, and what of it is there: training can begin before the last shard has come.
Nothing is kept on disk: the Hub's listing is the state. Each pass lists, sends what is missing or other, and lists
again; the push is done when a listing shows every file with its SHA-256. Killed anywhere, it goes on where it was: what
was sent but not yet committed the Hub knows by its SHA-256, so it is not sent again.

Every file is hashed before it is sent, and one that is not what the manifest says is not sent. Cost: a read for the
hash, one to send; memory does not grow with the set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shards.errors import Problem, ShardSetError
from shards.hub.plan import Part, Plan, group_parts, look
from shards.stores.hub_client import Address, HubError, PassingError, api, hub_errors
from shards.stores.retry import ATTEMPTS, RETRY_SECONDS

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

WHOLE_PASSES = 3
"""How often everything may be sent without an error and then be listed otherwise."""

Progress = Callable[[int, int], None]
"""Called with the bytes that are there so far, and those of all files."""


@dataclass(slots=True)
class Pushed:
    """What a push did."""

    commit: str
    created: bool = False
    commits: int = 0
    sent: list[str] = field(default_factory=list[str])
    sent_bytes: int = 0


def push(
    plan: Plan,
    *,
    private: bool = False,
    replace: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Pushed:
    """Send what is missing until the Hub holds all of it; see the module's first lines.

    Args:
        plan: from `plan_push`.
        private: a repository that is created is private; one that is there must be.
        replace: take the place of another set.
        progress: called as shards become visible.
        note: called with what went wrong and is tried again.

    Raises:
        ShardSetError: a file on disk is not what the manifest says.
        HubError: refused, another set stands there, or it went wrong too often; what was sent stays.
    """
    done = Pushed("")
    failures = passes = 0
    if plan.listing is None:
        done.created = _create(plan, private=private)
    while passes < WHOLE_PASSES:
        sent = len(done.sent)
        try:
            look(plan)
            _check(plan, private=private, replace=replace)
            if plan.listing is not None and not plan.missing:
                done.commit = plan.listing.commit
                return done
            _send_missing(plan, done, progress)
            passes += 1
        except PassingError as error:
            failures = failures + 1 if len(done.sent) == sent else 1
            if failures == ATTEMPTS:
                raise HubError(
                    f"{error}. Gave up after {failures} attempts; what was sent is there. Run the same command again."
                ) from error
            note(f"{error}; trying again")
            time.sleep(RETRY_SECONDS * 2 ** (failures - 1))
    names = ", ".join(part.name for part in plan.missing[:5])
    raise HubError(
        f"{plan.address}: {names} was sent {passes} times and is listed otherwise. Does another write there?"
    )


def _create(plan: Plan, *, private: bool) -> bool:
    """Create the repository, and the branch, where they are not there; say whether the repository was."""
    hub, address, created = api(), plan.address, not plan.has_repo
    with hub_errors(f"{address}"):
        if created:
            hub.create_repo(address.repo, repo_type="dataset", private=private, exist_ok=True)
        if address.revision != "main":
            # From the first commit, which holds no set: a branch from main's end could begin as another one.
            first = hub.list_repo_commits(address.repo, repo_type="dataset")[-1].commit_id
            hub.create_branch(address.repo, branch=address.revision, revision=first, repo_type="dataset", exist_ok=True)
    return created


def _check(plan: Plan, *, private: bool, replace: bool) -> None:
    """Refuse to push over what someone may want to keep, or in public what should be private."""
    if plan.listing is None:
        raise PassingError(f"{plan.address}: was created, and is not to be seen yet")
    if private and not plan.listing.private:
        raise HubError(f"{plan.address}: is public, and --private was given. Make it private in its settings first.")
    if plan.other is not None and not replace:
        raise HubError(
            f"{plan.address}: holds another set, {plan.other.name!r} of {len(plan.other.shards)} shards. Give another "
            "repository or --revision, or --replace to take its place (it stays in the history)."
        )


def _send_missing(plan: Plan, done: Pushed, progress: Progress | None) -> None:
    """Send the missing parts in order, several in a commit."""
    from huggingface_hub import CommitOperationDelete

    assert plan.listing is not None
    parent, there = plan.listing.commit, plan.bytes - plan.missing_bytes
    removed = [CommitOperationDelete(plan.address.path(name)) for name in plan.leftover]
    for batch in group_parts(plan.missing):
        operations: list[CommitOperationAdd] = []
        for part in batch:
            operations += _upload(plan.address, part)
            there += part.bytes
            if progress is not None:
                progress(there, plan.bytes)
        sent = {operation.path_in_repo for operation in operations}
        deletes = [operation for operation in removed if operation.path_in_repo not in sent]
        parent = _commit(plan.address, batch, [*deletes, *operations], parent)
        removed = []
        done.commits += 1
        done.sent += [file.name for part in batch for file in part.files]
        done.sent_bytes += sum(part.bytes for part in batch)


def _upload(address: Address, part: Part) -> list[CommitOperationAdd]:
    """Send the large files of a part, which nobody sees until a commit names them."""
    from huggingface_hub import CommitOperationAdd

    operations: list[CommitOperationAdd] = []
    for file in part.files:
        operation = CommitOperationAdd(address.path(file.name), file.path)
        found = operation.upload_info.sha256.hex()
        if found != file.sha256:
            message = f"sha256 is {found}; expected {file.sha256} by the manifest. Not sent. Copy or build it again."
            raise ShardSetError([Problem("file_checksum", file.name, message)])
        operations.append(operation)
    with hub_errors(f"{address}: {part.name}"):
        api().preupload_lfs_files(
            address.repo, operations, repo_type="dataset", revision=address.revision, free_memory=False
        )
    return operations


def _commit(
    address: Address, batch: list[Part], operations: list[CommitOperationAdd | CommitOperationDelete], parent: str
) -> str:
    """Make files visible, all at once; return the commit."""
    names = batch[0].name if len(batch) == 1 else f"{batch[0].name} to {batch[-1].name}"
    with hub_errors(f"{address}: {names}"):
        info = api().create_commit(
            address.repo,
            operations,
            commit_message=f"Shard set: {names}",
            repo_type="dataset",
            revision=address.revision,
            parent_commit=parent,
        )
    return info.oid
