"""Check the manifest against itself: names, sums and shares that must agree before any file is opened.

Plain arithmetic on the numbers in the manifest: no file is read, and no number decides how much is allocated.
"""

from __future__ import annotations

from collections import Counter

from shards.errors import Problem, ProblemKind, plural
from shards.format.manifest import (
    BLOCK_LIST_REASON,
    MANIFEST_FILE,
    Manifest,
    SourceCounts,
    block_list_reason,
    dtype_for,
)
from shards.format.writer import shard_file_names, shard_name
from shards.validation.carried import check_carried
from shards.validation.phases import check_phases, check_phases_and_mix
from shards.validation.sums import NOTHING, add_counts, add_sources, show_counts


def check_manifest_totals(manifest: Manifest) -> list[Problem]:
    """Return a problem for each contradiction within the manifest."""
    return [
        *_check_properties(manifest),
        *_check_names(manifest),
        *_check_shards(manifest),
        *_check_splits(manifest),
        *check_phases_and_mix(manifest),
        *check_phases(manifest),
        *check_carried(manifest),
        *_check_available(manifest),
        *_check_rewriting(manifest),
        *_check_block_lists(manifest),
    ]


def _check_properties(manifest: Manifest) -> list[Problem]:
    problems: list[Problem] = []
    if manifest.dtype != dtype_for(manifest.vocab_size):
        expected = dtype_for(manifest.vocab_size)
        message = f"dtype {manifest.dtype} for a vocabulary of {manifest.vocab_size}; expected {expected}"
        problems.append(Problem("dtype_mismatch", MANIFEST_FILE, message))
    ids = {"eos_id": manifest.tokenizer.eos_id, **manifest.tokenizer.special_tokens}
    if manifest.tokenizer.bos_id is not None:
        ids["bos_id"] = manifest.tokenizer.bos_id
    for name, token in ids.items():
        if token >= manifest.vocab_size:
            message = f"{name!r} is {token}; expected less than vocab_size {manifest.vocab_size}"
            problems.append(Problem("tokenizer_mismatch", MANIFEST_FILE, message))
    return problems


def _check_names(manifest: Manifest) -> list[Problem]:
    """Check that names count up from 0 in each split, files are named after their shard, and none is listed twice."""
    problems: list[Problem] = []
    index: Counter[str] = Counter()
    for shard in manifest.shards:
        expected = shard_name(shard.split, index[shard.split])
        index[shard.split] += 1
        if shard.name != expected:
            message = f"shard {shard.name!r}; expected {expected!r} there. A shard is missing, doubled or out of order."
            problems.append(_problem("manifest_invalid", message))
        files = (shard.files.tokens.path, shard.files.documents.path, shard.files.metadata.path)
        if files != shard_file_names(shard.name):
            message = f"shard {shard.name} has the files {files}; expected {shard_file_names(shard.name)}"
            problems.append(_problem("manifest_invalid", message))
    names = [source.name for source in manifest.sources]
    problems += [
        _problem("manifest_invalid", f"source {name!r} is listed {plural(count, 'time')}; expected once")
        for name, count in Counter(names).items()
        if count > 1
    ]
    if [row.source for row in manifest.mix] != names:
        message = f"mix lists {[row.source for row in manifest.mix]}; expected the sources in order, {names}"
        problems.append(_problem("manifest_invalid", message))
    if "train" not in manifest.splits:
        problems.append(_problem("manifest_invalid", "no split 'train'; expected train, and val if there is one"))
    return problems


def _check_shards(manifest: Manifest) -> list[Problem]:
    problems: list[Problem] = []
    known = {source.name for source in manifest.sources}
    for shard in manifest.shards:
        total = add_counts(shard.sources.values())
        if total != SourceCounts(tokens=shard.tokens, documents=shard.documents):
            message = (
                f"{shard.name} holds {plural(shard.tokens, 'token')} in {plural(shard.documents, 'document')}; its "
                f"sources add up to {total.tokens} in {total.documents}"
            )
            problems.append(_problem("totals_mismatch", message))
        if not 0 < shard.documents <= shard.tokens:
            message = (
                f"{shard.name} holds {plural(shard.documents, 'document')}; expected between 1 and its "
                f"{plural(shard.tokens, 'token')}"
            )
            problems.append(_problem("totals_mismatch", message))
        if unknown := sorted(shard.sources.keys() - known):
            problems.append(_problem("totals_mismatch", f"{shard.name} holds sources that the set lacks: {unknown}"))
        if shard.split not in manifest.splits:
            problems.append(
                _problem("totals_mismatch", f"{shard.name} is of split {shard.split!r}, which is not listed")
            )
    return problems


def _check_splits(manifest: Manifest) -> list[Problem]:
    problems: list[Problem] = []
    for name, split in manifest.splits.items():
        shards = [shard for shard in manifest.shards if shard.split == name]
        by_source = add_sources(shards)
        total = add_counts(by_source.values())
        if (split.tokens, split.documents) != (total.tokens, total.documents):
            message = (
                f"split {name}: {plural(split.tokens, 'token')} in {plural(split.documents, 'document')}; its shards "
                f"add up to {total.tokens} in {total.documents}"
            )
            problems.append(_problem("totals_mismatch", message))
        for source in sorted(split.sources.keys() | by_source.keys()):
            said, held = split.sources.get(source, NOTHING), by_source.get(source, NOTHING)
            if said != held:
                message = (
                    f"split {name}, source {source!r}: {show_counts(said)}; its shards add up to {show_counts(held)}"
                )
                problems.append(_problem("totals_mismatch", message))
    return problems


def _check_available(manifest: Manifest) -> list[Problem]:
    """Check that val has each document of a source at most once, and train at most `epochs` times the others."""
    problems: list[Problem] = []
    for source in manifest.sources:
        used = {name: split.sources.get(source.name, NOTHING) for name, split in manifest.splits.items()}
        train, val = used.get("train", NOTHING), used.get("val", NOTHING)
        for what, available, in_train, in_val in (
            ("tokens", source.tokens_available, train.tokens, val.tokens),
            ("documents", source.documents_available, train.documents, val.documents),
        ):
            if in_val > available or in_train > (available - in_val) * source.epochs:
                message = (
                    f"source {source.name!r}: {in_train} {what} in train and {in_val} in val, more than its "
                    f"{available} available {what} give in {plural(source.epochs, 'epoch')}"
                )
                problems.append(_problem("totals_mismatch", message))
    return problems


def _check_rewriting(manifest: Manifest) -> list[Problem]:
    """Check that no source counts more rewritten documents, or more unknown tokens, than it has."""
    messages: list[str] = []
    for source in manifest.sources:
        if (found := source.rewriting) is None:
            continue
        where = f"source {source.name!r}, rewriting"
        if found.rewritten > found.documents:
            messages.append(f"{where}: {plural(found.rewritten, 'document')} rewritten of {found.documents}")
        if found.unknown > found.tokens:
            messages.append(f"{where}: {plural(found.unknown, 'token')} unknown of {found.tokens}")
        if not found.rewritten and found.unknown:
            messages.append(f"{where}: {plural(found.unknown, 'token')} unknown, and no document rewritten")
        if found.documents < source.documents_available:
            available = f"{plural(source.documents_available, 'document')} available"
            messages.append(
                f"{where}: {plural(found.documents, 'document')} {'was' if found.documents == 1 else 'were'} encoded, "
                f"fewer than its {available}"
            )
    return [_problem("totals_mismatch", message) for message in messages]


def _check_block_lists(manifest: Manifest) -> list[Problem]:
    """Check the documents that the sources count as dropped for a block list against the lists."""
    dropped: Counter[str] = Counter()
    for source in manifest.sources:
        for reason, count in source.dropped.items():
            if reason.startswith(BLOCK_LIST_REASON):
                dropped[reason] += count
    names = [entry.file for entry in manifest.drop_hashes]
    messages = [
        f"drop_hashes lists {name!r} twice" for name in sorted({name for name in names if names.count(name) > 1})
    ]
    for entry in manifest.drop_hashes:
        where, counted = f"drop_hashes, {entry.file!r}", dropped.pop(block_list_reason(entry.file), 0)
        if counted != entry.documents:
            messages.append(f"{where}: {plural(entry.documents, 'document')}; the sources count {counted}")
        if entry.found > entry.hashes:
            messages.append(f"{where}: {plural(entry.found, 'hash')} found of {entry.hashes}")
        if entry.documents and not entry.found:
            messages.append(f"{where}: {plural(entry.documents, 'document')} dropped, and no hash found")
    messages += [
        f"{plural(count, 'document')} dropped: {reason!r}; drop_hashes has no such file"
        for reason, count in dropped.items()
    ]
    return [_problem("totals_mismatch", message) for message in messages]


def _problem(kind: ProblemKind, message: str) -> Problem:
    return Problem(kind, MANIFEST_FILE, message)
