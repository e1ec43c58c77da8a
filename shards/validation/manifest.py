"""Check the manifest against itself: names, sums and shares that must agree before any file is opened.

Plain arithmetic on the numbers in the manifest: no file is read, and no number decides how much is allocated.
"""

from __future__ import annotations

from collections import Counter

from shards.errors import Problem, plural
from shards.format.manifest import (
    BLOCK_LIST_REASON,
    MANIFEST_FILE,
    Manifest,
    SourceCounts,
    block_list_reason,
    dtype_for,
)
from shards.format.writer import shard_file_names, shard_name
from shards.validation.phases import check_mix, check_phases
from shards.validation.sums import NOTHING, Faults, add_counts, add_sources, show_counts


def check_manifest_totals(manifest: Manifest) -> list[Problem]:
    """Return a problem for each contradiction within the manifest."""
    return [Problem(kind, MANIFEST_FILE, message) for check in _CHECKS for kind, message in check(manifest)]


def _check_properties(manifest: Manifest) -> Faults:
    if manifest.dtype != (expected := dtype_for(manifest.vocab_size)):
        message = f"dtype {manifest.dtype} for a vocabulary of {manifest.vocab_size}; expected {expected}"
        yield "dtype_mismatch", message
    # Every id that a reader is told must be in the vocabulary.
    ids = {"eos_id": manifest.tokenizer.eos_id, **manifest.tokenizer.special_tokens}
    if manifest.tokenizer.bos_id is not None:
        ids["bos_id"] = manifest.tokenizer.bos_id
    for name, token in ids.items():
        if token >= manifest.vocab_size:
            yield "tokenizer_mismatch", f"{name!r} is {token}; expected less than vocab_size {manifest.vocab_size}"


def _check_names(manifest: Manifest) -> Faults:
    """Check that names count up from 0 in each split, files are named after their shard, and none is listed twice."""
    index: Counter[str] = Counter()
    for shard in manifest.shards:
        expected = shard_name(shard.split, index[shard.split])
        index[shard.split] += 1
        if shard.name != expected:
            message = f"shard {shard.name!r}; expected {expected!r} there. A shard is missing, doubled or out of order."
            yield "manifest_invalid", message
        files = (shard.files.tokens.path, shard.files.documents.path, shard.files.metadata.path)
        if files != (names := shard_file_names(shard.name)):
            yield "manifest_invalid", f"shard {shard.name} has the files {files}; expected {names}"
    names = [source.name for source in manifest.sources]
    for name, count in Counter(names).items():
        if count > 1:
            yield "manifest_invalid", f"source {name!r} is listed {plural(count, 'time')}; expected once"
    if (listed := [row.source for row in manifest.mix]) != names:
        yield "manifest_invalid", f"mix lists {listed}; expected the sources in order, {names}"
    if "train" not in manifest.splits:
        yield "manifest_invalid", "no split 'train'; expected train, and val if there is one"


def _check_shards(manifest: Manifest) -> Faults:
    known = {source.name for source in manifest.sources}
    for shard in manifest.shards:
        total = add_counts(shard.sources.values())
        if total != SourceCounts(tokens=shard.tokens, documents=shard.documents):
            held = show_counts(shard.tokens, shard.documents)
            message = f"{shard.name} holds {held}; its sources add up to {total.tokens} in {total.documents}"
            yield "totals_mismatch", message
        if not 0 < shard.documents <= shard.tokens:
            documents, tokens = plural(shard.documents, "document"), plural(shard.tokens, "token")
            yield "totals_mismatch", f"{shard.name} holds {documents}; expected between 1 and its {tokens}"
        if unknown := sorted(shard.sources.keys() - known):
            yield "totals_mismatch", f"{shard.name} holds sources that the set lacks: {unknown}"
        if shard.split not in manifest.splits:
            yield "totals_mismatch", f"{shard.name} is of split {shard.split!r}, which is not listed"


def _check_splits(manifest: Manifest) -> Faults:
    for name, split in manifest.splits.items():
        by_source = add_sources(shard for shard in manifest.shards if shard.split == name)
        total = add_counts(by_source.values())
        if (split.tokens, split.documents) != (total.tokens, total.documents):
            said = show_counts(split.tokens, split.documents)
            message = f"split {name}: {said}; its shards add up to {total.tokens} in {total.documents}"
            yield "totals_mismatch", message
        for source in sorted(split.sources.keys() | by_source.keys()):
            said, held = split.sources.get(source, NOTHING), by_source.get(source, NOTHING)
            if said != held:
                message = (
                    f"split {name}, source {source!r}: {show_counts(said.tokens, said.documents)}; its shards add up "
                    f"to {show_counts(held.tokens, held.documents)}"
                )
                yield "totals_mismatch", message


def _check_available(manifest: Manifest) -> Faults:
    """Check that val has each document of a source at most once, and train at most `epochs` times the others."""
    for source in manifest.sources:
        # Of what is available, val takes each document once; train may repeat the rest.
        train, val = (manifest.count(split, source.name) for split in ("train", "val"))
        for what, available, in_train, in_val in (
            ("tokens", source.tokens_available, train.tokens, val.tokens),
            ("documents", source.documents_available, train.documents, val.documents),
        ):
            if in_val > available or in_train > (available - in_val) * source.epochs:
                message = (
                    f"source {source.name!r}: {in_train} {what} in train and {in_val} in val, more than its "
                    f"{available} available {what} give in {plural(source.epochs, 'epoch')}"
                )
                yield "totals_mismatch", message


def _check_rewriting(manifest: Manifest) -> Faults:
    """Check that no source counts more rewritten documents, or more unknown tokens, than it has."""
    for source in manifest.sources:
        if (found := source.rewriting) is None:
            continue
        where = f"source {source.name!r}, rewriting"
        unknown = plural(found.unknown, "token")
        if found.rewritten > found.documents:
            message = f"{where}: {plural(found.rewritten, 'document')} rewritten of {found.documents}"
            yield "totals_mismatch", message
        if found.unknown > found.tokens:
            yield "totals_mismatch", f"{where}: {unknown} unknown of {found.tokens}"
        if not found.rewritten and found.unknown:
            yield "totals_mismatch", f"{where}: {unknown} unknown, and no document rewritten"
        if found.documents < source.documents_available:
            encoded = f"{plural(found.documents, 'document')} {'was' if found.documents == 1 else 'were'} encoded"
            available = f"{plural(source.documents_available, 'document')} available"
            yield "totals_mismatch", f"{where}: {encoded}, fewer than its {available}"


def _check_block_lists(manifest: Manifest) -> Faults:
    """Check the documents that the sources count as dropped for a block list against the lists."""
    dropped: Counter[str] = Counter()
    for source in manifest.sources:
        dropped.update({reason: n for reason, n in source.dropped.items() if reason.startswith(BLOCK_LIST_REASON)})
    # Each list once, and for each the documents that the sources count.
    listed = Counter(entry.file for entry in manifest.drop_hashes)
    for name in sorted(name for name, count in listed.items() if count > 1):
        yield "totals_mismatch", f"drop_hashes lists {name!r} twice"
    for entry in manifest.drop_hashes:
        where, counted = f"drop_hashes, {entry.file!r}", dropped.pop(block_list_reason(entry.file), 0)
        documents = plural(entry.documents, "document")
        if counted != entry.documents:
            yield "totals_mismatch", f"{where}: {documents}; the sources count {counted}"
        if entry.found > entry.hashes:
            yield "totals_mismatch", f"{where}: {plural(entry.found, 'hash')} found of {entry.hashes}"
        if entry.documents and not entry.found:
            yield "totals_mismatch", f"{where}: {documents} dropped, and no hash found"
    for reason, count in dropped.items():
        message = f"{plural(count, 'document')} dropped: {reason!r}; drop_hashes has no such file"
        yield "totals_mismatch", message


def _check_eval_tasks(manifest: Manifest) -> Faults:
    """Check that no eval task is listed twice, names more items than it has, or one twice."""
    tasks = Counter(entry.task for entry in manifest.eval_tasks)
    for entry in manifest.eval_tasks:
        named = [*entry.too_short, *entry.held]
        where = f"eval_tasks, {entry.task!r}"
        if len(named) > entry.items:
            yield "totals_mismatch", f"{where}: {plural(len(named), 'item')} too short or held, of {entry.items}"
        if tasks[entry.task] > 1:
            yield "totals_mismatch", f"{where} is listed twice"
        if both := set(entry.too_short) & set(entry.held):
            yield "totals_mismatch", f"{where}: {plural(len(both), 'item')} both too short and held"
        for key, hashes in (("too_short", entry.too_short), ("held", entry.held)):
            if hashes != sorted(set(hashes)):
                yield "totals_mismatch", f"{where}: {key} is not in order, or names an item twice"


_CHECKS = (
    _check_properties,
    _check_names,
    _check_shards,
    _check_splits,
    check_mix,
    check_phases,
    _check_available,
    _check_rewriting,
    _check_block_lists,
    _check_eval_tasks,
)
"""Every check of the manifest, in the order of its problems."""
