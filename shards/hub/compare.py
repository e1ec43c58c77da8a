"""Compare a set on disk with the Hub: the files to send, and any other set that is already there.

Asks for one listing of the Hub. Reads no file but the small ones that the Hub keeps in git, to compare them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from shards.errors import ShardSetError
from shards.format.manifest import MANIFEST_FILE, Manifest
from shards.format.reader import ShardSet, open_set
from shards.stores.address import HubAddress
from shards.stores.files import hash_file
from shards.stores.hub_store import HubStore, open_hub
from shards.stores.retry import StoreError

CARD_FILE = "README.md"


@dataclass(frozen=True)
class ComparedFile:
    """A file on this machine that is compared with the Hub, under its name there."""

    name: str
    path: Path
    bytes: int
    sha256: str


@dataclass
class Comparison:
    """The files of a set, and those that the Hub lacks or holds with different bytes.

    Attributes:
        address: the destination of the set.
        files: every file of the set and the card, the manifest last.
        has_repo: whether the repository exists.
        listing: the Hub's listing; None if the repository or the branch does not exist.
        missing: the files to send, in the order of `files`.
        other: the manifest on the Hub, if it belongs to another set.
        leftover: files of that other set that this set does not replace.
        give_up_s: seconds for which a failed request to list or read is retried; the policy's when None.
        continued: whether all this describes a commit of ours that the Hub has confirmed, without a new listing.
    """

    address: HubAddress
    files: list[ComparedFile]
    give_up_s: float | None = None
    has_repo: bool = False
    listing: HubStore | None = None
    missing: list[ComparedFile] = field(default_factory=list[ComparedFile])
    other: Manifest | None = None
    leftover: list[str] = field(default_factory=list[str])
    continued: bool = False

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def missing_bytes(self) -> int:
        """Size of the files to send."""
        return sum(file.bytes for file in self.missing)

    def follow(self, commit: str, files: int) -> None:
        """Describe the commit that added the first `files` missing files, and removed what was left over.

        If no file is missing any more, only a new listing shows whether the set is there.
        """
        assert self.listing is not None
        self.listing = replace(self.listing, commit=commit)
        self.missing, self.other, self.leftover = self.missing[files:], None, []
        self.continued = bool(self.missing)


def compare_with_hub(
    folder: Path, address: HubAddress, *, card: Path | None = None, give_up_s: float | None = None
) -> Comparison:
    """Compare a set with the Hub.

    Args:
        folder: the set's folder, which has passed validation.
        address: the destination of the set.
        card: the data card, pushed as README.md.
        give_up_s: seconds for which a failed request is retried; `shards.stores.retry.GIVE_UP_S` when None.

    Raises:
        StoreError: the repository cannot be read, for another reason than that it is not there.
    """
    comparison = Comparison(address, _list_local(folder, card), give_up_s)
    refresh_comparison(comparison)
    return comparison


def _list_local(folder: Path, card: Path | None) -> list[ComparedFile]:
    """Return the files of a set, the manifest last."""
    digests = open_set(folder).manifest.digests
    manifest = folder / MANIFEST_FILE
    files = [
        ComparedFile(name, folder / name, (folder / name).stat().st_size, sha256) for name, sha256 in digests.items()
    ]
    if card is not None:
        files.append(ComparedFile(CARD_FILE, card, card.stat().st_size, hash_file(card)))
    return [*files, ComparedFile(MANIFEST_FILE, manifest, manifest.stat().st_size, hash_file(manifest))]


def refresh_comparison(comparison: Comparison) -> None:
    """Compare again: list the files on the Hub anew.

    Raises:
        StoreError: the repository cannot be read, for another reason than that it is not there; or the manifest there
            is not a set's.
    """
    comparison.other, comparison.leftover = None, []
    comparison.listing = _list_remote(comparison)
    there = comparison.listing.files if comparison.listing else {}
    comparison.missing = [
        file
        for file in comparison.files
        if file.name not in there or not there[file.name].holds(file.sha256, file.path)
    ]
    # A manifest that differs is another set's: which of its files would be left over?
    missing = {file.name for file in comparison.missing}
    if comparison.listing is None or MANIFEST_FILE not in there or MANIFEST_FILE not in missing:
        return
    try:
        comparison.other = ShardSet(comparison.listing).manifest
    except ShardSetError as error:
        raise StoreError(
            f"{comparison.address}: its {MANIFEST_FILE} is not a set's ({error}). Give another repository or "
            "--revision, or remove the file there."
        ) from error
    kept = {file.name for file in comparison.files}
    comparison.leftover = [name for name in sorted(comparison.other.digests) if name in there and name not in kept]


def _list_remote(comparison: Comparison) -> HubStore | None:
    """Return the Hub's listing; None if the repository or the branch does not exist."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        listing = open_hub(comparison.address, give_up_s=comparison.give_up_s)
    except StoreError as error:
        # The Hub says of a branch that is absent, or of gated files, that there is a repository.
        cause = error.__cause__
        comparison.has_repo = isinstance(cause, RevisionNotFoundError | GatedRepoError)
        if isinstance(cause, RevisionNotFoundError | RepositoryNotFoundError) and not isinstance(cause, GatedRepoError):
            return None
        raise
    comparison.has_repo = True
    return listing
