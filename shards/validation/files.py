"""The quick level: check everything about a set that needs no tokens and no document tables.

Compares a listing of the set's folder, or of its place in a store, with the manifest, the manifest with itself, each
shard's own metadata with the manifest, and the tokenizer with the manifest. Reads metadata files, the tokenizer and the
ends of tokens files: on a disk milliseconds per shard, in a store two requests per shard. The manifest is not trusted:
none of its numbers decides how much is allocated. `check_set_files` and `check_single_files` check what the set has
once, `check_shard_files` one shard; `check_files` all of it.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from shards.errors import Problem, ShardSetError, plural, unread
from shards.format import codec
from shards.format.manifest import (
    COMPANION_FILES,
    MANIFEST_FILE,
    MAX_METADATA_BYTES,
    MAX_SIDECAR_BYTES,
    Manifest,
    Sidecar,
    SidecarFiles,
    parse_json,
)
from shards.format.reader import ShardSet
from shards.format.shard import Shard, check_most, compare_digest, compare_size
from shards.format.vocabulary import MAX_TOKENIZER_BYTES, check_tokenizer
from shards.format.writer import SetProperties, make_sidecar
from shards.stores.files import TMP_SUFFIX
from shards.stores.store import Store, reads_at_once
from shards.terminal.workers import map_in_threads
from shards.validation import manifest as totals

_NOT_A_FILE = "not a regular file. Copy or build it again."


Listing: TypeAlias = Mapping[str, tuple[int, Problem | None]]
"""By name the size of each entry at a set's place, and why it cannot be read as a file, if so."""


def check_files(store: Store) -> tuple[ShardSet | None, list[Problem]]:
    """Check the files of a set at the quick level; return the set, if there is one, and its problems.

    Raises:
        OSError: the folder is absent or cannot be listed.
        InputError: the store cannot be read.
    """
    shard_set, problems, listing = check_set_files(store)
    if shard_set is not None:
        problems += check_single_files(shard_set, listing)
        check = partial(check_shard_files, manifest=shard_set.manifest, listing=listing)
        for found, _ in map_in_threads(check, shard_set.shards, reads_at_once(store)):
            problems += found
    return shard_set, problems


def require_whole(store: Store) -> ShardSet:
    """Return a set that has no problem at the quick level.

    Raises:
        ShardSetError: it has some.
        OSError, InputError: as `check_files`.
    """
    shard_set, problems = check_files(store)
    if problems or shard_set is None:
        raise ShardSetError(problems)
    return shard_set


def check_set_files(store: Store) -> tuple[ShardSet | None, list[Problem], Listing]:
    """Check the listing of a set's place and its manifest at the quick level.

    Returns the set, if there is one, its problems, and the listing of its place.

    Raises:
        OSError: the folder is absent or cannot be listed.
        InputError: the store cannot be read.
    """
    listing = _list_folder(store.folder) if store.folder is not None else _list_store(store)
    if MANIFEST_FILE not in listing:
        message = (
            f"no {MANIFEST_FILE} among {plural(len(listing), 'entry')}: not a shard set, or its build did not finish. "
            "Re-run the build."
        )
        return None, [Problem("manifest_missing", MANIFEST_FILE, message)], listing
    if problems := _check_file(MANIFEST_FILE, listing):
        return None, problems, listing
    shard_set = ShardSet(store)
    with collect(problems, MANIFEST_FILE):
        manifest = shard_set.manifest
        return shard_set, [*_check_foreign(manifest, listing), *totals.check_manifest_totals(manifest)], listing
    return None, problems, listing


def check_single_files(shard_set: ShardSet, listing: Listing) -> list[Problem]:
    """Check at the quick level the files that a set has once beside its manifest: the tokenizer and the recipe.

    Args:
        shard_set: the set.
        listing: of its place.

    Raises:
        InputError: the store cannot be read.
    """
    manifest, store = shard_set.manifest, shard_set.store
    problems = _check_whole(listing, manifest.tokenizer.file, MAX_TOKENIZER_BYTES) or check_tokenizer(
        store.read(manifest.tokenizer.file), manifest
    )
    recipe = manifest.recipe
    return problems + (
        _check_whole(listing, recipe.file, MAX_METADATA_BYTES)
        or compare_digest(recipe.file, recipe.sha256, hashlib.sha256(store.read(recipe.file)).hexdigest())
    )


def check_shard_files(shard: Shard, manifest: Manifest, listing: Listing) -> tuple[list[Problem], set[str]]:
    """Check the files of one shard at the quick level.

    Args:
        shard: the shard.
        manifest: that of its set.
        listing: of the set's place.

    Returns:
        The problems, and the names of the files that the full level may open: those that exist, are regular and have
        the right size (and, for tokens, a seek table that fits).
    """
    files = shard.entry.files
    problems: list[Problem] = []
    sound: set[str] = set()
    for file in files.entries:
        faults = _check_file(file.path, listing) or compare_size(shard.store, file, listing[file.path][0])
        if not faults:
            sound.add(file.path)
        problems += faults
    # A tokens file of another size may have a seek table that tells more.
    tokens = files.tokens.path
    if not _check_file(tokens, listing) and (faults := _check_seek_table(shard, listing[tokens][0])):
        sound.discard(tokens)
        problems += faults
    if files.metadata.path in sound:
        with collect(problems, files.metadata.path):
            problems.extend(_check_sidecar(shard, manifest))
    return problems, sound


def _list_folder(folder: Path) -> Listing:
    """Return the entries of the set's folder to check, with links followed."""
    listing: dict[str, tuple[int, Problem | None]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                # The target of a link counts, as in the cache of the Hub, whose snapshots are links.
                facts = entry.stat()
            except OSError:
                why = "a broken link. Copy the file itself."
                listing[entry.name] = 0, Problem("file_missing", entry.name, why)
                continue
            fault = None
            if not stat.S_ISREG(facts.st_mode):
                fault = Problem("file_unreadable", entry.name, _NOT_A_FILE)
            elif not os.access(entry.path, os.R_OK):
                fault = Problem("file_unreadable", entry.name, "no permission to read it. Change its mode.")
            listing[entry.name] = facts.st_size, fault
    return listing


def _list_store(store: Store) -> Listing:
    """Return the entries of a set's place in a store, to check. A folder there is one entry, as on a disk."""
    listing: dict[str, tuple[int, Problem | None]] = {}
    for file in store.list():
        name, in_folder, _ = file.name.partition("/")
        listing[name] = (0, Problem("file_unreadable", name, _NOT_A_FILE)) if in_folder else (file.bytes, None)
    return listing


def _check_file(name: str, listing: Listing) -> list[Problem]:
    """Check at the quick level that a file, or the target of a link, exists, is regular and is readable."""
    if name not in listing:
        return [Problem("file_missing", name, "in the manifest, but not in the folder. Copy or build it again.")]
    fault = listing[name][1]
    return [] if fault is None else [fault]


def _check_foreign(manifest: Manifest, listing: Listing) -> list[Problem]:
    """Return a problem for each file of the set's folder that neither the manifest nor FORMAT.md allows."""
    # Hidden files of other tools may be there; leftovers of a build may not.
    others = listing.keys() - {MANIFEST_FILE, *COMPANION_FILES, *manifest.digests}
    foreign = sorted(name for name in others if name.endswith(TMP_SUFFIX) or not name.startswith("."))
    why = "the manifest does not name it. Remove it, or keep it outside the set's folder."
    return [Problem("file_foreign", name, why) for name in foreign]


def _check_seek_table(shard: Shard, size: int) -> list[Problem]:
    file, problems = shard.tokens_file, list[Problem]()
    with collect(problems, file.name):
        try:
            codec.read_seek_table(file, size=size, content_bytes=shard.num_tokens * shard.dtype.itemsize)
        except codec.CodecError as error:
            problems.append(Problem("seek_table", file.name, f"{error}. Copy or build it again."))
    return problems


def _check_sidecar(shard: Shard, manifest: Manifest) -> Iterator[Problem]:
    entry, file = shard.entry, shard.entry.files.metadata
    if problems := check_most(file.path, file.bytes, MAX_SIDECAR_BYTES, kind="manifest_invalid"):
        raise ShardSetError(problems)
    content = shard.store.read(file.path)
    yield from compare_digest(file.path, file.sha256, hashlib.sha256(content).hexdigest())
    sidecar = parse_json(Sidecar, content, where=file.path)
    # The sidecar must be what the writer makes of the entry in the manifest.
    held = SidecarFiles(tokens=entry.files.tokens, documents=entry.files.documents)
    facts = {key: value for key, value in entry if key != "files"}
    expected = make_sidecar(SetProperties.of(manifest), held, facts).with_values(dtype=manifest.dtype)
    pairs = [(key, found, getattr(expected, key)) for key, found in sidecar]
    different = [f"{key}: {found!s:.80}, not {right!s:.80}" for key, found, right in pairs if found != right]
    if different:
        message = f"disagrees with the manifest on {'; '.join(different)}. One of the two was changed after the build."
        yield Problem("sidecar_mismatch", file.path, message)


def _check_whole(listing: Listing, name: str, most: int) -> list[Problem]:
    """Check that a set's file can be read whole: it is there, and not too large."""
    return _check_file(name, listing) or check_most(name, listing[name][0], most)


@contextlib.contextmanager
def collect(problems: list[Problem], name: str) -> Generator[None]:
    """Add what reading a set's file in the body raises to the problems."""
    try:
        yield
    except ShardSetError as error:
        problems += error.problems
    except OSError as error:
        problems.append(Problem("file_unreadable", name, unread(error, "Copy or build it again.")))
