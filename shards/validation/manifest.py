"""Check the manifest against itself: names, sums and shares that must agree before any file is opened.

Plain arithmetic on the numbers in the manifest: no file is read, and no number decides how much is allocated.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

from shards.errors import Problem, ProblemKind, plural
from shards.format.chat import find_chat_faults
from shards.format.manifest import BLOCK_LIST_REASON, MANIFEST_FILE, Manifest, block_list_reason, dtype_for
from shards.format.totals import SHARE_PRECISION, count_all, remake_totals
from shards.format.writer import shard_file_names, shard_name

Faults: TypeAlias = Iterator[tuple[ProblemKind, str]]
"""The kinds and messages of problems of the manifest."""


def check_manifest_totals(manifest: Manifest) -> list[Problem]:
    """Return a problem for each contradiction within the manifest."""
    return [Problem(kind, MANIFEST_FILE, message) for check in _CHECKS for kind, message in check(manifest)]


def _check_properties(manifest: Manifest) -> Faults:
    if manifest.dtype != (expected := dtype_for(manifest.vocab_size)):
        yield "dtype_mismatch", f"dtype {manifest.dtype} for a vocabulary of {manifest.vocab_size}; expected {expected}"
    # Every id that a reader is told must be in the vocabulary; EOS and BOS are special tokens (`check_tokenizer`).
    for name, token in manifest.tokenizer.special_tokens.items():
        if token >= manifest.vocab_size:
            yield "tokenizer_mismatch", f"{name!r} is {token}; expected less than vocab_size {manifest.vocab_size}"
    # A set has a format of conversations if it has sources of them.
    if bool(manifest.conversations) != (manifest.chat is not None):
        found = f"{'no ' * (manifest.chat is None)}'chat', and trained_tokens of {manifest.conversations}"
        yield "manifest_invalid", f"{found}; expected both or neither"
    if manifest.chat is not None:
        for fault in find_chat_faults(manifest.chat, manifest.tokenizer.special_tokens, manifest.vocab_size):
            yield "manifest_invalid", fault


def _check_names(manifest: Manifest) -> Faults:
    """Check that the manifest's names count up from 0 in each split, files have their shard's, and none is twice."""
    index: Counter[str] = Counter()
    for shard in manifest.shards:
        expected = shard_name(shard.split, index[shard.split])
        index[shard.split] += 1
        if shard.name != expected:
            yield (
                "manifest_invalid",
                f"shard {shard.name!r}; expected {expected!r} there. A shard is missing, doubled or out of order.",
            )
        files = tuple(file.path for file in shard.files.entries)
        if files != (names := shard_file_names(shard.name)):
            yield "manifest_invalid", f"shard {shard.name} has the files {files}; expected {names}"
    names = manifest.source_names
    for place, mix in {"mix": manifest.mix, **{f"phase {own.name!r}": own.mix for own in manifest.phases}}.items():
        if (listed := [row.source for row in mix]) != names:
            yield "manifest_invalid", f"{place} lists {listed}; expected the sources in order, {names}"
    if "train" not in manifest.splits:
        yield "manifest_invalid", "no split 'train'; expected train, and val if there is one"


def _check_shards(manifest: Manifest) -> Faults:
    known = {*manifest.source_names}
    for shard in manifest.shards:
        total = count_all(shard.sources.values())
        if (shard.tokens, shard.documents) != (total.tokens, total.documents):
            found = f"{plural(shard.tokens, 'token')} in {plural(shard.documents, 'document')}"
            yield (
                "totals_mismatch",
                f"{shard.name} holds {found}; its sources add up to {total.tokens} in {total.documents}",
            )
        if not 0 < shard.documents <= shard.tokens:
            documents, tokens = plural(shard.documents, "document"), plural(shard.tokens, "token")
            yield "totals_mismatch", f"{shard.name} holds {documents}; expected between 1 and its {tokens}"
        if unknown := sorted(shard.sources.keys() - known):
            yield "totals_mismatch", f"{shard.name} holds sources that the set lacks: {unknown}"


def _check_totals(manifest: Manifest) -> Faults:
    """Check the manifest's splits, mix and phases against what the shards and the weights give."""
    written, made = (
        dict(_list_values(one.model_dump(include={"splits", "mix", "phases"})))
        for one in (manifest, remake_totals(manifest))
    )
    for place in dict.fromkeys([*made, *written]):
        found, expected = written.get(place, "nothing"), made.get(place, "nothing")
        shares = isinstance(found, float) and isinstance(expected, float)
        if found != expected and not (shares and math.isclose(found, expected, rel_tol=0, abs_tol=SHARE_PRECISION)):
            yield (
                "totals_mismatch",
                f"{place}: {found!s:.200}; expected {expected!s:.200} by the shards and the weights",
            )


def _list_values(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a manifest with its place, such as `splits.train.tokens`; rows are named."""
    if isinstance(value, list):
        rows = cast("list[dict[str, Any]]", value)
        value = {row["source"] if "source" in row else row["name"]: row for row in rows}
    if isinstance(value, dict):
        for key, own in cast("dict[str, Any]", value).items():
            yield from _list_values(own, f"{place}.{key}" if place else key)
    else:
        yield place, value


def _check_shares(manifest: Manifest) -> Faults:
    """Check what decides the manifest's shares: weights, and the phases' shares and order."""
    for source in manifest.sources:
        if source.weight < 0:
            yield "manifest_invalid", f"source {source.name!r} has the weight {source.weight}; expected 0 or more"
    names = [phase.name for phase in manifest.phases]
    # Shards of one phase follow each other, in the order of the phases.
    train = [shard for shard in manifest.shards if shard.split == "train"]
    runs = [name for name, _ in itertools.groupby(shard.phase for shard in train)]
    if runs != (names or [None] * bool(train)):
        expected = f"{names}, one after the other" if names else "none"
        yield "totals_mismatch", f"the training shards are of the phases {runs}; expected {expected}"
    for shard in manifest.shards:
        if shard.split != "train" and shard.phase is not None:
            yield (
                "totals_mismatch",
                f"{shard.name} is of phase {shard.phase!r}; expected none outside the training split",
            )
    # Shares add up to 1, and the tokens requested of the phases to those of the split.
    shares = [phase.share for phase in manifest.phases]
    if names and (abs(sum(shares) - 1) > SHARE_PRECISION or min(shares) <= 0):
        yield "totals_mismatch", f"the shares of the phases are {shares}; expected numbers above 0 that add up to 1"
    for phase in manifest.phases:
        if abs(sum(row.requested for row in phase.mix) - 1) > SHARE_PRECISION:
            yield "totals_mismatch", f"phase {phase.name!r}: the requested shares do not add up to 1"
    requested = manifest.splits["train"].requested_tokens if "train" in manifest.splits else 0
    if names and (found := sum(phase.requested_tokens for phase in manifest.phases)) != requested:
        yield (
            "totals_mismatch",
            f"the phases' requested_tokens add up to {found}; the training split requests {requested}",
        )


def _check_counts(manifest: Manifest) -> Faults:
    """Check the manifest's numbers that cannot be computed from the shards against those that bound them."""
    for what, found, most in _list_bounds(manifest):
        if found > most:
            yield "totals_mismatch", f"{what}: {found:,}; expected at most {most:,}"


def _list_bounds(manifest: Manifest) -> Iterator[tuple[str, int, int]]:
    """Yield what a manifest counts, its number, and the most that it may be."""
    for source in manifest.sources:
        # Of what is available, val takes each document once; train may repeat the rest.
        place = f"sources.{source.name}"
        train, val = (manifest.count(split, source.name) for split in ("train", "val"))
        for unit, available, in_train, in_val in (
            ("tokens", source.tokens_available, train.tokens, val.tokens),
            ("documents", source.documents_available, train.documents, val.documents),
        ):
            yield f"{place}: {unit} in val", in_val, available
            if in_val <= available:
                yield f"{place}: {unit} in train", in_train, (available - in_val) * source.epochs
        if (kept := source.rewriting) is not None:
            yield f"{place}.rewriting: documents rewritten", kept.rewritten, kept.documents
            yield f"{place}.rewriting: tokens unknown", kept.unknown, kept.tokens if kept.rewritten else 0
            yield f"{place}: documents available", source.documents_available, kept.documents
    for entry in manifest.drop_hashes:
        place = f"drop_hashes.{entry.file}"
        yield f"{place}: hashes found", entry.found, entry.hashes
        if not entry.found:
            yield f"{place}: documents dropped and no hash found", entry.documents, 0
    for task in manifest.eval_tasks:
        place = f"eval_tasks.{task.task}"
        yield f"{place}: items too short or held", len(task.too_short) + len(task.held), task.items
        yield f"{place}: items both too short and held", len({*task.too_short} & {*task.held}), 0


def _check_lists(manifest: Manifest) -> Faults:
    """Check the manifest's block lists against what sources count, the items of eval tasks, and names for repeats."""
    dropped: Counter[str] = Counter()
    for source in manifest.sources:
        dropped.update({reason: n for reason, n in source.dropped.items() if reason.startswith(BLOCK_LIST_REASON)})
    written: Counter[str] = Counter()
    for entry in manifest.drop_hashes:
        written[block_list_reason(entry.file)] += entry.documents
    for reason in sorted(dropped.keys() | written.keys()):
        if dropped[reason] != written[reason]:
            message = f"{plural(written[reason], 'document')} dropped {reason}; the sources count {dropped[reason]}"
            yield "totals_mismatch", f"drop_hashes: {message}"
    for key, names in (
        ("sources", manifest.source_names),
        ("phases", [phase.name for phase in manifest.phases]),
        ("drop_hashes", [entry.file for entry in manifest.drop_hashes]),
        ("eval_tasks", [entry.task for entry in manifest.eval_tasks]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                yield "totals_mismatch", f"{key} lists {name!r} {plural(count, 'time')}; expected once"
    for task in manifest.eval_tasks:
        for key, hashes in (("too_short", task.too_short), ("held", task.held)):
            if hashes != sorted(set(hashes)):
                yield "totals_mismatch", f"eval_tasks.{task.task}.{key}: expected items in order, each once"


_CHECKS = (
    _check_properties,
    _check_names,
    _check_shards,
    _check_shares,
    _check_totals,
    _check_counts,
    _check_lists,
)
"""Every check of the manifest, in the order of its problems."""
