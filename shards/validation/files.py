"""The quick level: check everything about a set that needs no tokens and no document tables.

Compares the folder with the manifest, the manifest with itself, each shard's own metadata with the manifest, and the
tokenizer with the manifest. Reads metadata files, the tokenizer and the ends of tokens files; costs milliseconds a
shard. The manifest is not trusted: none of its numbers decides how much is allocated.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from shards.errors import Problem, ShardSetError
from shards.format import codec
from shards.format.manifest import (
    COMPANION_FILES,
    MANIFEST_FILE,
    MAX_METADATA_BYTES,
    FileEntry,
    Manifest,
    ShardEntry,
    Sidecar,
    SidecarFiles,
    read_metadata,
)
from shards.format.reader import Shard, ShardSet
from shards.format.tokenizer import MAX_TOKENIZER_BYTES, check_tokenizer
from shards.stores.files import TMP_SUFFIX, hash_file
from shards.stores.store import FolderStore, local_file
from shards.validation import manifest as totals


@dataclass
class Structure:
    """The result of the quick level.

    `sound` names the files that the full level may open: those that exist, are regular, are inside the folder and have
    the right size (and, for tokens, a seek table that fits).
    """

    shard_set: ShardSet | None
    problems: list[Problem] = field(default_factory=list[Problem])
    sound: set[str] = field(default_factory=set[str])


def check_structure(folder: Path) -> Structure:
    """Check a set at the quick level.

    Raises:
        OSError: the folder is absent or cannot be listed.
    """
    listing = _list_folder(folder)
    shard_set = ShardSet(FolderStore(folder))
    problems = _check_file(folder, MANIFEST_FILE, listing)
    if MANIFEST_FILE not in listing:
        return Structure(None, [_missing_manifest(folder, listing)])
    if problems:
        return Structure(None, problems)
    try:
        manifest = shard_set.manifest
    except ShardSetError as error:
        return Structure(None, error.problems)
    except OSError as error:
        return Structure(None, [Problem("file_unreadable", MANIFEST_FILE, f"cannot be read: {error.strerror}")])

    found = Structure(shard_set)
    found.problems += _check_foreign(manifest, listing)
    found.problems += totals.check_totals(manifest)
    found.problems += _check_tokenizer(folder, manifest, listing)
    found.problems += _check_recipe(folder, manifest, listing)
    for shard in shard_set.shards:
        problems, sound = check_shard_files(shard_set, shard, listing)
        found.problems += problems
        found.sound |= sound
    return found


def check_shard_files(
    shard_set: ShardSet, shard: Shard, listing: dict[str, os.stat_result] | None = None
) -> tuple[list[Problem], set[str]]:
    """Check the files of one shard at the quick level.

    Returns:
        The problems, and the names of the files that may be opened.
    """
    folder, entry = shard_set.path, shard.entry
    listing = _list_folder(folder) if listing is None else listing
    problems: list[Problem] = []
    sound: set[str] = set()
    for file in entry.files.entries:
        faults = _check_file(folder, file.path, listing)
        if not faults and listing[file.path].st_size != file.bytes:
            size = listing[file.path].st_size
            message = f"{size} bytes on disk; expected {file.bytes} by the manifest. Copy or build it again."
            faults.append(Problem("file_size", file.path, message))
        if not faults:
            sound.add(file.path)
        problems += faults
    if entry.files.tokens.path in listing and not _check_file(folder, entry.files.tokens.path, listing):
        faults = _check_seek_table(shard)
        if faults:
            sound.discard(entry.files.tokens.path)
        problems += faults
    if entry.files.metadata.path in sound:
        problems += _check_sidecar(folder, shard_set.manifest, entry)
    return problems, sound


def _list_folder(folder: Path) -> dict[str, os.stat_result]:
    """Return the entries of a folder, with links followed; for a broken link, the link itself."""
    listing: dict[str, os.stat_result] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                listing[entry.name] = entry.stat()
            except OSError:
                listing[entry.name] = entry.stat(follow_symlinks=False)
    return listing


def _check_file(folder: Path, name: str, listing: dict[str, os.stat_result]) -> list[Problem]:
    """Check that a file, or the target of a link, exists, is regular and is readable."""
    if name not in listing:
        return [Problem("file_missing", name, "in the manifest, but not in the folder. Copy or build it again.")]
    mode = listing[name].st_mode
    if stat.S_ISLNK(mode):
        return [Problem("file_missing", name, "a broken link: its target does not exist. Copy the file itself.")]
    if not stat.S_ISREG(mode):
        return [Problem("file_unreadable", name, "not a regular file. Copy or build it again.")]
    if not os.access(folder / name, os.R_OK):
        return [Problem("file_unreadable", name, "no permission to read it. Change its mode.")]
    return []


def _missing_manifest(folder: Path, listing: dict[str, os.stat_result]) -> Problem:
    temporary = sum(name.endswith(TMP_SUFFIX) for name in listing)
    message = (
        f"no {MANIFEST_FILE} among {len(listing)} entries ({temporary} of them temporary): not a shard set, or its "
        "build did not finish. Re-run the build."
    )
    return Problem("manifest_missing", MANIFEST_FILE, message)


def _check_foreign(manifest: Manifest, listing: dict[str, os.stat_result]) -> list[Problem]:
    """Return a problem for each file in the folder that neither the manifest nor FORMAT.md allows."""
    known = {MANIFEST_FILE, *COMPANION_FILES, *manifest.digests}
    problems: list[Problem] = []
    for name in sorted(listing.keys() - known):
        if name.startswith("."):
            if not name.endswith(TMP_SUFFIX):
                continue
            why = "a temporary file left by an interrupted build"
        else:
            why = "the manifest does not name it"
        problems.append(Problem("file_foreign", name, f"{why}. Remove it, or keep it outside the set's folder."))
    return problems


def _check_seek_table(shard: Shard) -> list[Problem]:
    file = shard.tokens_file
    other = 4 if shard.dtype.itemsize == 2 else 2
    try:
        codec.read_seek_table(file, content_bytes=shard.num_tokens * shard.dtype.itemsize)
    except codec.CodecError as error:
        try:
            codec.read_seek_table(file, content_bytes=shard.num_tokens * other)
        except codec.CodecError:
            return [Problem("seek_table", file.name, f"{error}. Copy or build it again.")]
        message = f"holds {other} bytes a token; expected {shard.dtype.itemsize} by the manifest's {shard.dtype.name}"
        return [Problem("dtype_mismatch", file.name, message)]
    except OSError as error:
        return [Problem("file_unreadable", file.name, f"cannot be read: {error.strerror}")]
    return []


def _check_sidecar(folder: Path, manifest: Manifest, entry: ShardEntry) -> list[Problem]:
    file = entry.files.metadata
    problems: list[Problem] = []
    try:
        problems += _check_digest(folder, file)
        sidecar = read_metadata(Sidecar, local_file(folder / file.path))
    except ShardSetError as error:
        return problems + error.problems
    except OSError as error:
        return [Problem("file_unreadable", file.path, f"cannot be read: {error.strerror}")]
    expected = Sidecar(
        name=entry.name,
        split=entry.split,
        dtype=manifest.dtype,
        vocab_size=manifest.vocab_size,
        eos_id=manifest.tokenizer.eos_id,
        tokenizer_sha256=manifest.tokenizer.sha256,
        tokens=entry.tokens,
        documents=entry.documents,
        sources=entry.sources,
        tokens_sha256=entry.tokens_sha256,
        files=SidecarFiles(tokens=entry.files.tokens, documents=entry.files.documents),
    )
    different = [key for key in Sidecar.model_fields if getattr(sidecar, key) != getattr(expected, key)]
    if different:
        values = "; ".join(
            f"{key}: {getattr(sidecar, key)!s:.80}, not {getattr(expected, key)!s:.80}" for key in different
        )
        message = f"disagrees with the manifest on {values}. One of the two was changed after the build."
        problems.append(Problem("sidecar_mismatch", file.path, message))
    return problems


def _check_digest(folder: Path, file: FileEntry) -> list[Problem]:
    digest = hash_file(folder / file.path)
    if digest == file.sha256:
        return []
    message = f"sha256 is {digest}; expected {file.sha256} by the manifest. Copy or build it again."
    return [Problem("file_checksum", file.path, message)]


def _check_recipe(folder: Path, manifest: Manifest, listing: dict[str, os.stat_result]) -> list[Problem]:
    name = manifest.recipe.file
    problems = _check_file(folder, name, listing)
    if not problems:
        size = listing[name].st_size
        if size > MAX_METADATA_BYTES:
            return [Problem("file_size", name, f"{size} bytes; expected at most {MAX_METADATA_BYTES}. Not read.")]
        problems = _check_digest(folder, FileEntry(path=name, bytes=size, sha256=manifest.recipe.sha256))
    return problems


def _check_tokenizer(folder: Path, manifest: Manifest, listing: dict[str, os.stat_result]) -> list[Problem]:
    name = manifest.tokenizer.file
    problems = _check_file(folder, name, listing)
    if problems:
        return problems
    size = listing[name].st_size
    if size > MAX_TOKENIZER_BYTES:
        return [Problem("file_size", name, f"{size} bytes; expected at most {MAX_TOKENIZER_BYTES}. Not read.")]
    return check_tokenizer((folder / name).read_bytes(), manifest)
