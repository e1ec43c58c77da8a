"""Read a shard set: open it, what its manifest says as properties, pick a shard, read its tokens or document table.

`open_set` reads the manifest and compares the sizes of all files with it. `Shard.read` decompresses just the frames it
needs. Opening does not validate: see `shards.validation.validate`, or `tokenmill validate`. A set is read through a
store (`shards.stores.store`): from a folder, or without a copy from a bucket (`s3://...`) or the Hub
(`hf://datasets/...`). Code that needs files on disk uses `ShardSet.path`.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, ShardSetError, plural, set_error
from shards.format.arrays import TOKEN_DTYPES, TokenDtype
from shards.format.manifest import (
    MANIFEST_FILE,
    MAX_METADATA_BYTES,
    Manifest,
    Split,
    parse_json,
)
from shards.format.shard import Shard, Shards, check_most, compare_sizes, find_size, read_listed_file
from shards.format.vocabulary import MAX_TOKENIZER_BYTES, Vocabulary, read_vocabulary
from shards.stores.cache import Cache
from shards.stores.cache_store import CacheStore
from shards.stores.hub_store import HubStore
from shards.stores.open import AnyPath, open_store
from shards.stores.store import Store, require_folder

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class ShardSet:
    """A complete shard set. Use `open_set`. A pickle of it opens the same set in another process."""

    store: Store

    @property
    def path(self) -> Path:
        """The folder on this machine, for code that needs files on disk.

        Raises:
            InputError: the set is not on this machine's disk.
        """
        return require_folder(self.store)

    def __repr__(self) -> str:
        read = f" {self.manifest.summary}" if "manifest" in self.__dict__ else ""  # a repr reads no files
        return f"<ShardSet at {self.store}{':' if read else ''}{read}>"

    def __reduce__(self) -> tuple[Callable[..., ShardSet], tuple[str, Cache | None, str]]:
        """Pickle the address and identity, for a process in any folder; no manifest or credentials."""
        store, cache = self.store, None
        if isinstance(store, CacheStore):
            store, cache = store.remote, store.cache
        place = str(store.folder.absolute()) if store.folder is not None else str(store)
        if isinstance(store, HubStore):
            place = str(replace(store.address, revision=store.commit))  # of the commit that is read here
        return _reopen_set, (place, cache, self.manifest_sha256)

    @cached_property
    def _manifest_content(self) -> bytes:
        """The bytes of manifest.json, read once: its digest and what it says are of the same file."""
        try:
            # The size is asked first: a hostile file must not fill the memory.
            size = self.store.size(MANIFEST_FILE)
            if problems := check_most(MANIFEST_FILE, size, MAX_METADATA_BYTES, kind="manifest_invalid"):
                raise ShardSetError(problems)
            return self.store.read(MANIFEST_FILE)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise set_error(
                "manifest_missing",
                MANIFEST_FILE,
                f"no {MANIFEST_FILE} in {self.store}: not a shard set, or its build or push did not finish. "
                "Run that again, or correct the address.",
            ) from error

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, read once.

        Raises:
            ShardSetError: there is no manifest (the build or the push is incomplete), or it is not valid.
        """
        return parse_json(Manifest, self._manifest_content, where=MANIFEST_FILE)

    @cached_property
    def manifest_sha256(self) -> str:
        """Hex SHA-256 of manifest.json: the set's identity, since it names every file's digest."""
        return hashlib.sha256(self._manifest_content).hexdigest()

    @property
    def dtype(self) -> TokenDtype:
        """The dtype of the tokens, little-endian."""
        return TOKEN_DTYPES[self.manifest.dtype]

    @property
    def vocab_size(self) -> int:
        """The number of vocabulary entries, special tokens included. Every id is smaller."""
        return self.manifest.vocab_size

    @property
    def bos_id(self) -> int | None:
        """The id that begins each document; None if none does."""
        return self.manifest.tokenizer.bos_id

    @property
    def eos_id(self) -> int:
        """The id that ends every document."""
        return self.manifest.tokenizer.eos_id

    @cached_property
    def source_numbers(self) -> dict[str, int]:
        """The place of each source in the manifest, by name."""
        return {name: number for number, name in enumerate(self.manifest.source_names)}

    @cached_property
    def splits(self) -> Mapping[Split, Shards]:
        """The shards of each split, in order: `set.splits["train"][0]`."""
        return {split: Shards(s for s in self.shards if s.entry.split == split) for split in self.manifest.splits}

    @cached_property
    def shards(self) -> Shards:
        """Every shard, in the manifest's order."""
        return Shards(Shard(self.store, entry, self.dtype, self.vocab_size) for entry in self.manifest.shards)

    def shard(self, name: str) -> Shard:
        """Return the shard of this name.

        Raises:
            KeyError: no shard has this name; the message lists a few names.
        """
        for shard in self.shards:
            if shard.name == name:
                return shard
        raise KeyError(f"no shard {name!r} in {self.store}; there are {', '.join(s.name for s in self.shards[:5])} ...")

    @property
    def tokenizer_json(self) -> bytes:
        """The bytes of the tokenizer file, compared with the manifest; read each time.

        Raises:
            ShardSetError: the file is too large, or not what the manifest says.
            OSError: the file cannot be read.
        """
        entry = self.manifest.tokenizer
        if problems := check_most(entry.file, find_size(self.store, entry.file) or 0, MAX_TOKENIZER_BYTES):
            raise ShardSetError(problems)
        return read_listed_file(self.store, entry.file, entry.sha256)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The bytes of every token id, and which ids its manifest lists as special; read once.

        Raises:
            ShardSetError: the tokenizer's file, or its number of entries, is not what the manifest says.
            InputError: the tokenizer's entries have no fixed bytes.
            OSError: the file cannot be read.
        """
        entry = self.manifest.tokenizer
        data = self.tokenizer_json
        try:
            vocabulary = read_vocabulary(data)
        except ValueError as error:
            raise InputError(f"{entry.file}: {error}") from error
        if len(vocabulary) != self.vocab_size:
            raise set_error(
                "tokenizer_mismatch",
                entry.file,
                f"has {plural(len(vocabulary), 'entry')}; expected {self.vocab_size} by the manifest. Validate the "
                "set.",
            )
        return replace(vocabulary, special=entry.special_tokens, bos=entry.bos_id)

    def tokenizer(self) -> tokenizers.Tokenizer:
        """Load the tokenizer with the `tokenizers` library.

        Raises:
            ShardSetError: the tokenizer's file is not what the manifest says.
        """
        import tokenizers

        return tokenizers.Tokenizer.from_buffer(self.tokenizer_json)


def open_set(place: AnyPath, *, cache: Cache | None = None) -> ShardSet:
    """Open a shard set: read its manifest, and compare the sizes of all its files with it.

    Sizes cost a stat of each file in a folder, or one listing of a store. No shard is read.

    Args:
        place: a folder, `s3://BUCKET/PREFIX` (or `gs`, `az`), or `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`. The
            manifest is read at once, the shards when they are needed. From the Hub, every file is read at the commit
            that the revision names now.
        cache: keeps the shards of a set that is not on this machine: each is fetched whole and verified when it is
            first read. A set in a folder needs none, and does not use it. Without a cache only the requested ranges are
            read, and kept nowhere.

    Raises:
        ShardSetError: there is no manifest, it is not valid, a shard's file is missing or has another size than it
            says, or (with a cache) the tokenizer is not what it says.
        InputError: the store cannot be read or listed, the place is not the address of one, or the cache's limit
            is smaller than two shards of the set.
        OSError: the folder cannot be read.
    """
    shard_set = _open_in(open_store(place), cache)
    if problems := compare_sizes(shard_set.store, shard_set.manifest):
        raise ShardSetError(problems)
    return shard_set


def _reopen_set(place: str, cache: Cache | None, sha256: str) -> ShardSet:
    """Open the set of a pickle; sizes are compared when a shard is first read, not again for all of them.

    Raises:
        InputError: another set is there now.
    """
    shard_set = _open_in(open_store(place), cache)
    if (found := shard_set.manifest_sha256) != sha256:
        raise InputError(
            f"{place}: manifest sha256 {found}; expected {sha256}, the set that was pickled. It has changed since: "
            "open it, or make the dataset, again."
        )
    return shard_set


def _open_in(store: Store, cache: Cache | None) -> ShardSet:
    """Return the set of a store, and read its manifest; through a cache, manifest and tokenizer stay in memory."""
    shard_set = ShardSet(store)
    manifest = shard_set.manifest
    if cache is None or store.folder is not None:
        return shard_set
    # Manifest and tokenizer are small and needed by everyone.
    content = shard_set._manifest_content  # pyright: ignore[reportPrivateUsage]
    metadata = {MANIFEST_FILE: content, manifest.tokenizer.file: shard_set.tokenizer_json}
    files = {file.path: (file.bytes, file.sha256) for file in manifest.files}
    return ShardSet(CacheStore(store, cache, set_id=shard_set.manifest_sha256, files=files, metadata=metadata))
