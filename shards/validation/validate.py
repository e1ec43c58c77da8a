"""Validate a shard set and name every problem.

Levels: `quick` checks everything but the tokens (milliseconds per shard); `full` reads every token and document row, at
almost the speed of decompression. FORMAT.md lists what each level checks, and what no level checks.

Wrong content is reported, never raised; only a folder or store that cannot be listed raises. Memory does not grow with
the set: a frame of 1 MiB for each thread, 8 bytes per document of the shards being read, and the duplicate check's
partitions; for a set in a store also one request (8 MiB) and one document table for each thread.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from shards.errors import Problem, first_of, plural
from shards.format.manifest import MANIFEST_FILE, Manifest, MixEntry, ShardEntry
from shards.format.shard import Shard, Shards
from shards.format.totals import count_by_source
from shards.stores.open import AnyPath, open_store
from shards.terminal.reporter import Progress, count_up, no_progress
from shards.terminal.workers import map_in_threads
from shards.validation.duplicates import check_duplicates
from shards.validation.files import Listing, check_files, check_set_files, check_single_files
from shards.validation.shard_contents import ShardFindings, find_shard_problems

Level = Literal["quick", "full"]

ROUNDING_TOKENS = 2
"""How far rounded targets may be off.

The tolerance of a share is one that cuts at document boundaries can always keep. With K shards in a split and a target
of T tokens for a source, the one after shard k is T*(k+1)/K. Each cut is the document boundary nearest to its target,
so it is at most half a document away; the mix says why a last cut may be at the other boundary beside it, and what the
cuts before it do then. A shard has two cuts, so it is at most one document away (the longest of the source). Targets
are rounded down to whole tokens, which adds at most two tokens per shard.
"""


@dataclass
class ValidationResult:
    """The result of a validation.

    `tokens` and `documents` count what was read and checked; at the quick level they are the manifest's totals.
    """

    path: Path | str
    level: Level
    problems: list[Problem]
    shards: int = 0
    tokens: int = 0
    documents: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Return whether validation found no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that `validate --json` prints."""
        told = {"path": str(self.path), "ok": self.ok, "seconds": round(self.seconds, 3)}
        return asdict(replace(self, problems=first_of(self.problems))) | told


def validate(
    path: AnyPath,
    *,
    level: Level = "quick",
    threads: int = 1,
    checksums: Mapping[str, str] = MappingProxyType({}),
    progress: Progress = no_progress,
) -> ValidationResult:
    """Check a shard set and return every problem found.

    Args:
        path: the set's folder, or the address of its store.
        level: `quick` or `full`.
        threads: shards are read by this many threads; the report does not depend on it.
        checksums: by SHA-256 the XXH3-128 of the same bytes, as far as who wrote the set has computed them.
        progress: called as tokens are checked.

    Raises:
        OSError: the folder is absent or cannot be listed.
        InputError: the store cannot be read, or the path is not the address of one.
    """
    began = time.perf_counter()
    store = open_store(path)
    listing: Listing = {}
    if level == "full":
        shard_set, problems, listing = check_set_files(store)
    else:
        shard_set, problems = check_files(store)
    report = ValidationResult(store.folder or str(store), level, problems)
    shards = shard_set.shards if shard_set is not None else Shards()
    report.shards = len(shards)
    if shard_set is None or level == "quick":
        # The quick level reads no contents: its totals are those of the manifest.
        report.tokens, report.documents = shards.num_tokens, shards.num_documents
    else:
        manifest, advance = shard_set.manifest, count_up(progress, shards.num_tokens)

        # The tokenizer takes as long as a shard: beside the shards, it delays none.
        def check(shard: Shard | None) -> ShardFindings:
            if shard is None:
                return ShardFindings(check_single_files(shard_set, listing))
            return find_shard_problems(shard, manifest, listing, advance, checksums)

        single, *findings = map_in_threads(check, [None, *shards], threads)
        report.problems += single.problems
        report.tokens = sum(found.tokens for found in findings)
        report.documents = sum(found.documents for found in findings)
        for found in findings:
            report.problems += found.problems
        report.problems += _check_whole_set(shards, findings, manifest)
    report.seconds = time.perf_counter() - began
    return report


def _check_whole_set(shards: Shards, findings: Sequence[ShardFindings], manifest: Manifest) -> list[Problem]:
    """Validate what only all shards together can tell: the mix, and documents that occur too often."""
    problems: list[Problem] = []
    trusted = [(shard, found.hashes) for shard, found in zip(shards, findings, strict=True) if found.hashes is not None]
    # If a table is missing, the longest document is unknown, and every share would look wrong.
    if len(trusted) == len(shards):
        longest: Counter[str] = Counter()
        for found in findings:
            longest |= Counter(found.longest)
        problems += check_mix_shares(manifest, longest)
    # The targets of conversations, added up over the training split if all its shards were read.
    train = [found.targets for found, shard in zip(findings, manifest.shards, strict=True) if shard.split == "train"]
    whole = [own for own in train if own is not None]
    if manifest.chat is not None and len(whole) == len(train):
        trained = {source.name: source.trained_tokens for source in manifest.sources}
        for number, name in enumerate(manifest.conversations):
            own = sum(int(targets[number]) for targets in whole)
            if own != trained[name]:
                message = f"source {name!r}: trained_tokens {trained[name]}; its documents have {own}"
                problems.append(Problem("source_sum", MANIFEST_FILE, message))
    return problems + check_duplicates(trusted, manifest.epochs)


def check_mix_shares(manifest: Manifest, longest: Mapping[str, int]) -> list[Problem]:
    """Validate every source's share of the mix.

    Args:
        manifest: the set's manifest; the tokens of a source are added up over its shards.
        longest: tokens in the longest document of each source in the set.
    """
    problems: list[Problem] = []
    for split, entry in manifest.splits.items():
        shards = [shard for shard in manifest.shards if shard.split == split]
        phases = manifest.phases if split == "train" else []
        # The shards of a set with phases have the shares of their phase, not those of the set.
        alone = [] if phases else shards
        mix = _mix_of_all(manifest) if split == "val" else manifest.mix
        problems += _check_part(split, shards, alone, mix, entry.requested_tokens, longest)
        for phase in phases:
            own = [shard for shard in shards if shard.phase == phase.name]
            problems += _check_part(f"phase {phase.name!r}", own, own, phase.mix, phase.requested_tokens, longest)
    return problems


def _mix_of_all(manifest: Manifest) -> list[MixEntry]:
    """Return the mix of validation: if the weights are what training has of all text, the shares of all text."""
    available = {source.name: source.tokens_available for source in manifest.sources}
    left = {name: tokens - manifest.count("val", name).tokens for name, tokens in available.items()}
    if any(source.weight != left[source.name] for source in manifest.sources):
        return manifest.mix
    total = sum(available.values()) or 1
    return [row.with_values(requested=available.get(row.source, 0) / total) for row in manifest.mix]


def _check_part(
    name: str,
    shards: Sequence[ShardEntry],
    alone: Sequence[ShardEntry],
    mix: Sequence[MixEntry],
    requested_tokens: int,
    longest: Mapping[str, int],
) -> Iterator[Problem]:
    """Validate the shares of a split or a phase: over all its shards, and in each of those that are checked alone."""
    places = [(MANIFEST_FILE, count_by_source(shards), float(requested_tokens))]
    places += [(shard.name, shard.sources, requested_tokens / len(shards)) for shard in alone]
    # The longest document is all that a cut at a boundary can miss by.
    for row in mix:
        document = longest.get(row.source, 0)
        for where, sources, tokens in places:
            held = sources[row.source].tokens if row.source in sources else 0
            requested = row.requested * tokens
            if abs(held - requested) > document + ROUNDING_TOKENS:
                yield Problem(
                    "mix_share",
                    where,
                    f"source {row.source!r} holds {plural(held, 'token')} of {name}; expected {requested:.0f}, give "
                    f"or take its longest document of {document}",
                )
