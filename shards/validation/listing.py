"""Check a set in a remote store before it is read: its manifest, its tokenizer, and one listing of the store's files.

This is less than the quick level of a folder: no sidecar and no seek table is read, since each would cost a request for
each shard. Each file is compared with its digest in the manifest when it is fetched (`shards.stores.cache_store`).
"""

from __future__ import annotations

from shards.errors import Problem
from shards.format.manifest import MAX_METADATA_BYTES
from shards.format.reader import ShardSet
from shards.format.vocabulary import check_tokenizer
from shards.validation import manifest as totals

MOST_PROBLEMS = 10
"""Files that are named one by one; the others are counted."""


def check_listed_set(shard_set: ShardSet) -> list[Problem]:
    """Check a set's manifest against itself, the tokenizer against the manifest, and the manifest against the listing.

    Raises:
        OSError: a file cannot be read.
        InputError: the store cannot be read.
    """
    manifest, store = shard_set.manifest, shard_set.store
    found = {file.name: file.bytes for file in store.list()}
    sizes = {file.path: file.bytes for shard in manifest.shards for file in shard.files.entries}
    listed: list[Problem] = []
    for name in manifest.digests:
        if name not in found:
            listed.append(Problem("file_missing", name, f"in the manifest, but not in {store}. Copy or push it again."))
        elif name in sizes and found[name] != sizes[name]:
            message = f"{found[name]} bytes in {store}; expected {sizes[name]} by the manifest. Copy or push it again."
            listed.append(Problem("file_size", name, message))
    if len(listed) > MOST_PROBLEMS:
        last, more = listed[-1], len(listed) - MOST_PROBLEMS
        message = f"the last of {more} more files that are missing or have another size in {store}"
        listed = [*listed[:MOST_PROBLEMS], Problem(last.kind, last.where, message)]
    problems = totals.check_manifest_totals(manifest) + listed
    name = manifest.tokenizer.file
    if found.get(name, MAX_METADATA_BYTES + 1) <= MAX_METADATA_BYTES:
        problems += check_tokenizer(store.read(name), manifest)
    return problems
