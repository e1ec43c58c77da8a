"""What a push has to do: a set's files in the order to send them, compared with what the Hub holds.

The order: card, manifest, tokenizer and recipe; the validation shards; the training shards, in the manifest's order.
Asks for one listing of the Hub; reads no file but small ones that the Hub keeps in git, to compare them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shards.errors import ShardSetError
from shards.format.manifest import MANIFEST_FILE, Manifest
from shards.format.reader import open_set
from shards.stores.files import hash_file
from shards.stores.hub import HubFolder, read_manifest
from shards.stores.hub_client import CARD_FILE, Address, HubError, Listing, list_set, shard_files

COMMIT_BYTES = 1 << 30
"""A commit holds shards of about this size, so that what is sent soon can be read ..."""

MOST_COMMITS = 100
"""... or a hundredth of what is to be sent, if that is more: the Hub allows 128 commits an hour."""

MOST_FILES = 99
"""Files in a commit: the Hub advises 50 to 100, since it checks each within the 60 s it takes to answer."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to push."""

    name: str
    path: Path
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Part:
    """Files that become visible together: the metadata (with the card), or one shard."""

    name: str
    kind: str
    """`metadata`, `val` or `train`."""
    files: tuple[LocalFile, ...]

    @property
    def bytes(self) -> int:
        """Size of the files."""
        return sum(file.bytes for file in self.files)


@dataclass(slots=True)
class Plan:
    """What the Hub holds of a set and what it lacks.

    `listing` is None where the repository or the branch is not there. `missing` are the parts of which a file is to be
    sent, with only these files, in the order to send them. `other` is the manifest that stands there, where it is not
    this set's; `leftover` are files of it that this set has not, or has others of that name.
    """

    address: Address
    parts: list[Part]
    has_repo: bool = False
    listing: Listing | None = None
    missing: list[Part] = field(default_factory=list[Part])
    other: Manifest | None = None
    leftover: list[str] = field(default_factory=list[str])

    def lacks(self, file: LocalFile) -> bool:
        """Say whether a file is to be sent."""
        found = self.listing.files.get(file.name) if self.listing else None
        return found is None or not found.holds(file.sha256, file.path)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(part.bytes for part in self.parts)

    @property
    def missing_bytes(self) -> int:
        """Size of the files to send."""
        return sum(part.bytes for part in self.missing)


def plan_push(folder: Path, address: Address, *, card: Path | None = None) -> Plan:
    """Compare a set with what the Hub holds.

    Args:
        folder: the set's folder, which has passed validation.
        address: where it is to be.
        card: the data card, pushed as README.md.

    Raises:
        HubError: the repository cannot be seen for another reason than that it is not there.
    """
    return look(Plan(address, list_parts(folder, card)))


def list_parts(folder: Path, card: Path | None) -> list[Part]:
    """Return what is to be pushed, in order: metadata, validation shards, training shards."""
    manifest = open_set(folder).manifest

    def local(name: str, path: Path, sha256: str | None = None) -> LocalFile:
        return LocalFile(name, path, path.stat().st_size, sha256 or hash_file(path))

    first = [(CARD_FILE, card, None)] if card else []
    first += [
        (MANIFEST_FILE, folder / MANIFEST_FILE, None),
        (manifest.tokenizer.file, folder / manifest.tokenizer.file, manifest.tokenizer.sha256),
        (manifest.recipe.file, folder / manifest.recipe.file, manifest.recipe.sha256),
    ]
    parts = [Part("metadata", "metadata", tuple(local(*file) for file in first))]
    for shard in sorted(manifest.shards, key=lambda shard: shard.split != "val"):  # stable: the manifest's order else
        files = tuple(local(file.path, folder / file.path, file.sha256) for file in shard_files(shard))
        parts.append(Part(shard.name, shard.split, files))
    return parts


def look(plan: Plan) -> Plan:
    """Bring a plan up to date with what the Hub holds now.

    Raises:
        HubError: the repository cannot be seen for another reason than that it is not there, or holds a manifest that
            is none.
    """
    plan.listing, plan.other, plan.leftover = _list(plan), None, []
    parts = [Part(part.name, part.kind, tuple(filter(plan.lacks, part.files))) for part in plan.parts]
    plan.missing = [part for part in parts if part.files]
    manifest = next(file for file in plan.parts[0].files if file.name == MANIFEST_FILE)
    if plan.listing is not None and MANIFEST_FILE in plan.listing.files and plan.lacks(manifest):
        try:
            plan.other = read_manifest(HubFolder(plan.address, plan.listing))
        except ShardSetError as error:
            raise HubError(
                f"{plan.address}: its {MANIFEST_FILE} is not a set's ({error}). Give another repository or --revision, "
                "or remove the file there."
            ) from error
        ours = {file.name: file for part in plan.parts for file in part.files}
        names = {plan.other.tokenizer.file, plan.other.recipe.file}
        names |= {file.path for shard in plan.other.shards for file in shard_files(shard)}
        there = sorted(name for name in names if name in plan.listing.files)
        plan.leftover = [name for name in there if name not in ours or plan.lacks(ours[name])]
    return plan


def _list(plan: Plan) -> Listing | None:
    """Return what the Hub holds, None where the repository or the branch is not there."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        listing = list_set(plan.address)
    except HubError as error:
        cause = error.__cause__
        plan.has_repo = isinstance(cause, RevisionNotFoundError | GatedRepoError)
        if isinstance(cause, RevisionNotFoundError | RepositoryNotFoundError) and not isinstance(cause, GatedRepoError):
            return None
        raise
    plan.has_repo = True
    return listing


def group_parts(parts: list[Part]) -> Iterator[list[Part]]:
    """Group parts into commits; the metadata, and the first shard of each split, go at once."""
    limit = max(COMMIT_BYTES, sum(part.bytes for part in parts) // MOST_COMMITS)
    batch: list[Part] = []
    previous = ""
    for part in parts:
        files = sum(len(one.files) for one in batch) + len(part.files)
        size = sum(one.bytes for one in batch) + part.bytes
        if batch and (part.kind != previous or size > limit or files > MOST_FILES):
            yield batch
            batch = []
        batch.append(part)
        if part.kind != previous:
            yield batch
            batch = []
        previous = part.kind
    if batch:
        yield batch
