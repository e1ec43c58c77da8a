"""Mix: decide which documents go to which shard, from content hashes, lengths and measures. Tokens are not read.

Hash order is the global shuffle. Equal hashes are the same document. Of all copies in all sources, only the first in
(source, unit, row) order is kept, so that training never sees a copy of a validation document. If a block list has
the hash, no copy is kept. Documents that break a limit of their source are dropped before that, those that a
source's `take` leaves out after everything else.

Each source is then an axis of tokens in hash order. Validation takes its beginning. Training is cut where the running
target of each shard is met, at the nearest document boundary. Targets are exact fractions of the total, so rounding
errors do not add up. With phases, the shards of the first come first, and each source is cut on from phase to phase: so
a document is in one phase, unless its source is repeated.

`pipeline.mix.index` reads the documents.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pipeline.clean.drops import SourceDrops
from pipeline.clean.reasons import describe_change, describe_drops
from pipeline.encode.run import END_HASH, FIRST_HASH, RunsAddress, load_runs, runs_in_scratch
from pipeline.engine.receipts import Result
from pipeline.engine.tasks import NOT_IN_DIGEST, InDigest, Payload, last_part
from pipeline.mix.contamination import Findings, find_contamination
from pipeline.mix.evidence import write_evidence
from pipeline.mix.index import FAR_OFF, Axis, Cut, Index
from pipeline.mix.mix_plan import MixPlan, ShardPlan, Slice
from pipeline.mix.near_duplicates.drop import SimilarPairs, drop_near_duplicates
from pipeline.recipe.schema import Recipe
from pipeline.recipe.shares import Demand
from shards.errors import InputError, plural
from shards.terminal.display import printable

MAX_SHARDS = 100_000
SHOWN_UNUSED = 0.05
"""A build says how to use all tokens if a larger part of them stays unused."""

_Cuts = list[tuple[int, Cut]]
"""Cuts of a source, each with its epoch."""


def _mixing_keys(recipe: Recipe) -> dict[str, Any]:
    """Return the keys of the recipe that decide how sources are cut; most others decide the runs, which count."""
    others = {"name", "seed", "drop_if_matches", "sources", "tokenizer", "shards", "clean", "evaluations"}
    keys = recipe.model_dump(mode="json", exclude=others)
    keys["drop_hashes"] = [entry.written for entry in recipe.drop_hashes]
    keys["shards"] = {"tokens": recipe.shards.tokens}
    keys["order"] = recipe.source_names
    keys["sources"] = {
        source.name: {
            "weight": source.weight,
            "take": source.take,
            "clean": {preset.name: preset.in_digest() for preset in source.clean.presets("mix")},
        }
        for source in recipe.sources
    }
    keys["evaluations"] = {one.name: {"action": one.action} for one in recipe.evaluations}
    return keys


@dataclass(frozen=True, slots=True)
class MixTask(Payload):
    """The input of the mix task; plain data."""

    CODE: ClassVar = 7

    recipe: Annotated[Recipe, InDigest(_mixing_keys, "")]
    runs: RunsAddress
    """The address of the list of runs, of a `RunList`."""
    has_more: Annotated[tuple[bool, ...], InDigest(called="after.selection")] = ()
    """For each source, whether parts of it were not read; empty if all sources were read whole."""
    evaluations: Annotated[str | None, InDigest(last_part, "after.evaluations")] = None
    """The address of the folder of the task that read the evaluation sets; None if the recipe names none."""
    fetch: Annotated[bool, NOT_IN_DIGEST] = False
    """Whether hashes and lengths are fetched into scratch first, from a remote store."""
    similar: Annotated[SimilarPairs | None, InDigest(called="clean.near_duplicates")] = None
    """The pairs of similar documents; None if the build does not search for near-duplicates."""


def find_short(index: Index, has_more: tuple[bool, ...]) -> dict[int, int]:
    """Find the sources that are too short to be cut into shards, and must be read further before that.

    Nothing is repeated or shrunk while a source has more to read. Sources that were read whole bound the set; if they
    stop the build anyway, nothing more is read.

    Returns:
        The tokens that each such source needs in total: its share of both splits and one longest document.
    """
    if index.recipe.mix.tokens == "max" or not any(has_more):
        return {}
    demand = Demand(index.recipe)
    axes = [Axis(index, source) for source in range(len(has_more))]
    # Sources that were read whole bound the set: nothing more is read than it can use.
    left = [
        None if more else axis.total - _cut_validation(demand, s, axis, demand.val_shards)[-1][1].tokens
        for s, (axis, more) in enumerate(zip(axes, has_more, strict=True))
    ]
    grant = demand.grant(left)
    if grant.fault:  # reading more would not help
        return {}
    short: dict[int, int] = {}
    for s, axis in enumerate(axes):
        # One token for rounding, and one document, by which validation may exceed its share.
        needed = demand.tokens(s, grant.train_tokens) + 1 + int(index.longest[:, s].max())
        if has_more[s] and axis.total < needed:
            short[s] = needed
    return short


def cut_sources(index: Index, has_more: tuple[bool, ...] = ()) -> MixPlan:
    """Cut the sources into shards: decide which documents every shard holds.

    Args:
        index: the documents.
        has_more: for each source, whether parts of it were not read; such a source does not limit the set.

    Raises:
        InputError: a source is too small for the validation split, or for the mix when `when_short` is "error".
    """
    # Validation takes the beginning of each axis.
    recipe = index.recipe
    axes = [Axis(index, source) for source in range(len(recipe.sources))]
    demand = Demand(recipe, [axis.total for axis in axes])
    has_more = has_more or (False,) * len(axes)
    notes = _check_validation(demand, axes, index.drops, has_more)
    val_cuts, _ = _cut_shards(
        [demand.val_shards],
        [axis.total for axis in axes],
        lambda numbers: [_cut_validation(demand, s, axis, numbers[0]) for s, axis in enumerate(axes)],
    )
    starts = [cuts[-1][1] for cuts in val_cuts]

    lacks = {s: demand.val_tokens(s) - start.tokens for s, start in enumerate(starts)}
    far_off = FAR_OFF * recipe.split.val_tokens
    if few := [s for s, tokens in lacks.items() if tokens > (far_off if starts[s].tokens else 0)]:
        listed = ", ".join(f"{lacks[s]:,} of {recipe.sources[s].name!r}" for s in few)
        notes.append(f"validation lacks tokens, because the next document would be most of the source: {listed}")

    # Training takes what is left, in shards of equal size in each phase.
    available = [axis.total - start.tokens for axis, start in zip(axes, starts, strict=True)]
    demand = Demand(recipe, available)
    total, granted = _grant_tokens(demand, available, has_more)
    notes += granted
    for key, tokens in (("split.val_tokens", recipe.split.val_tokens), ("mix.tokens", total)):
        if tokens and not any(demand.shares.of(s, tokens) for s in range(len(axes))):
            raise InputError(f"{key}: {tokens:,} gives no source a whole token. Ask for at least {len(axes):,}.")
    asked_of_phases = demand.phase_shards(total)
    asked = sum(asked_of_phases)
    if asked + demand.val_shards > MAX_SHARDS:
        raise InputError(
            f"shards.tokens: {plural(total, 'token')} would make {plural(asked, 'shard')}; expected at most "
            f"{MAX_SHARDS}"
        )
    train_cuts, numbers = _cut_shards(
        asked_of_phases,
        available,
        lambda numbers: [
            _cut_split(
                axis,
                start,
                demand.train_targets(s, total, numbers),
                last=sum(numbers[: demand.last_phase(s) + 1]),
            )
            for s, (axis, start) in enumerate(zip(axes, starts, strict=True))
        ],
    )
    _check_phases(demand, numbers)
    phases = [phase.name for phase, number in zip(demand.phases, numbers, strict=True) for _ in range(number)]
    train = _shard_plans("train", train_cuts, starts, phases)
    val = _shard_plans("val", val_cuts, [Cut(0, FIRST_HASH)] * len(axes), [None] * (len(val_cuts[0]) - 1))
    if (found := len(train) + len(val)) < asked + demand.val_shards:
        longest = int(index.longest.max())
        notes.append(
            f"{plural(found, 'shard')}, not {asked + demand.val_shards:,}: the longest document has "
            f"{plural(longest, 'token')}, shards.tokens is {recipe.shards.tokens:,}, and a shard holds whole documents"
        )

    epochs = [
        1 + max((piece.epoch for shard in train for piece in shard.slices if piece.source == s), default=0)
        for s in range(len(axes))
    ]
    requested = [demand.shares.of(s, total) for s in range(len(axes))]
    lists = index.block_lists()
    notes += (
        f"drop_hashes: {use.found:,} of {plural(use.hashes, 'hash')} of {printable(use.file)} found, "
        f"{plural(use.documents, 'document')} dropped"
        for use in lists
    )
    return MixPlan((*train, *val), tuple(requested), tuple(epochs), total, demand.weights, tuple(notes), lists)


def _cut_validation(demand: Demand, source: int, axis: Axis, number: int) -> _Cuts:
    recipe = demand.recipe
    share = demand.shares.fractions[source] * recipe.split.val_tokens
    targets = [int(share * shard / (number or 1)) for shard in range(number + 1)]
    end = axis.validation_cut(targets[-1], val_tokens=recipe.split.val_tokens)
    # A shard is off by what its two cuts are off together, at the nearest boundaries half a document each. The end may
    # be below the nearest one, off by almost a document: then all cuts are below, and their difference is what counts.
    # If it is above, it is off by its document less half the longest before, and the cut before by half of that.
    down = end.tokens < axis.cut(targets[-1]).tokens
    return [(0, axis.cut(target, down=down)) for target in targets[:-1]] + [(0, end)]


def _check_validation(
    demand: Demand, axes: list[Axis], drops: list[SourceDrops], has_more: tuple[bool, ...]
) -> list[str]:
    """Refuse sources of which too little is left; return notes on those of a mix without weights that give nothing."""
    faults: list[str] = []
    notes: list[str] = []
    recipe = demand.recipe
    found, asked = sum(axis.total for axis in axes), recipe.split.val_tokens
    if not recipe.has_weights and 0 < found <= asked and not any(has_more):
        raise InputError(
            f"split.val_tokens: {asked:,}; the sources have {plural(found, 'token')} in all, and some must be left to "
            "train on. Ask for less, or add data."
        )
    for s, (source, axis) in enumerate(zip(recipe.sources, axes, strict=True)):
        if has_more[s] or (not demand.shares.fractions[s] and (recipe.has_weights or source.weight == 0)):
            continue
        # Say which steps took all documents, unless those before encoding did, which the mix does not know.
        if axis.total == 0:
            reasons = drops[s].dropped()
            why = describe_drops(reasons, sum(reasons.values()))
            said = f"source {source.name!r}: cleaning left no documents{why and f': {why}'}"
            if found and not recipe.has_weights:
                notes.append(f"{said}. It gives the set nothing")
                continue
            faults.append(
                f"{said}; `tokenmill clean-report` shows some. {describe_change(reasons)}, or leave the source out: "
                f"--set sources.{source.name}.weight=0"
            )
        elif fault := demand.validation_fault(s, axis.total):
            faults.append(fault)
    if faults:
        raise InputError("\n".join(faults))
    return notes


def _grant_tokens(demand: Demand, available: list[int], has_more: tuple[bool, ...]) -> tuple[int, list[str]]:
    """Return the training tokens that the sources can give before they are cut, and notes on what was changed."""
    grant = demand.grant([None if more else tokens for tokens, more in zip(available, has_more, strict=True)])
    if grant.fault:
        raise InputError(grant.fault)
    total, wanted = grant.train_tokens, demand.recipe.mix.tokens
    # Less than was asked for: name the source that bounds it.
    if total == wanted or grant.scarcest is None:
        return total, []
    said = plural(total, "training token") + ("" if wanted == "max" else f", not {wanted:,}")
    if not demand.recipe.has_weights:
        return total, [f"{said}: all that the sources have, each document once"]
    said += f": the most that {demand.recipe.sources[grant.scarcest].name!r} allows"
    if demand.passes > 1:
        said += f" in {plural(demand.passes, 'epoch')}"
    is_plain = demand.passes == 1 and not demand.recipe.mix.phases
    unused = 1 - total / sum(available)
    if wanted == "max" and is_plain and unused > SHOWN_UNUSED:
        said += f"; {unused:.0%} of the tokens stay unused at these weights. To use all, leave out every `weight`"
    return total, [said]


def _check_phases(demand: Demand, numbers: list[int]) -> None:
    """Refuse to cut a phase without a shard: its part of every source is within one document."""
    faults = [
        f"mix.phases.{phase.name}: holds no document, since each of its sources has one that is longer than the "
        "phase's part of that source. Give the phase a larger share, or drop long documents with `max_bytes`."
        for phase, number in zip(demand.phases, numbers, strict=True)
        if not number
    ]
    if faults:
        raise InputError("\n".join(faults))


def _cut_shards(
    numbers: list[int], lengths: list[int], cut: Callable[[list[int]], list[_Cuts]]
) -> tuple[list[_Cuts], list[int]]:
    """Cut a split into this many shards, or fewer if one would be empty.

    A shard would be empty if every source had a document longer than the source's part of a shard.

    Args:
        numbers: shards of each phase of the split.
        lengths: tokens in an epoch of each source.
        cut: returns each source's cuts for these numbers.

    Returns:
        The cuts of each source, and the shards of each phase.
    """
    while True:
        cuts = cut(numbers)
        # Compare cuts by their tokens: one boundary may have several keys, and so may the end of an epoch.
        ends = [[epoch * length + cut.tokens for epoch, cut in own] for length, own in zip(lengths, cuts, strict=True)]
        shards = zip(*map(itertools.pairwise, ends), strict=True)
        empty = [all(begin == end for begin, end in places) for places in shards]
        if not any(empty):
            return cuts, numbers
        # Take the empty shards from their phases, and cut again.
        ends = list(itertools.accumulate(numbers))
        numbers = [number - sum(empty[end - number : end]) for number, end in zip(numbers, ends, strict=True)]


def _cut_split(axis: Axis, start: Cut, targets: list[int], *, last: int) -> _Cuts:
    """Return (epoch, cut) for each target on an axis that starts over at `start` when it ends.

    Args:
        axis: the source.
        start: where its part of the split begins.
        targets: the running targets.
        last: the index of the target that ends the source's part of the split; later targets are equal to it.
    """
    length = axis.total - start.tokens
    if not length:
        return [(0, start) for _ in targets]
    # Walk along the axis: each pass over it is an epoch.
    cuts: _Cuts = []
    for number, target in enumerate(targets):
        epoch, rest = divmod(target, length)
        # The end of an epoch, not the beginning of the next.
        if rest == 0 and epoch:
            cuts.append((epoch - 1, Cut(axis.total, END_HASH)))
            continue
        ends = number >= last and target > 0 and epoch == 0
        cut = axis.last_cut(start.tokens + rest, start.tokens) if ends else axis.cut(start.tokens + rest)
        cuts.append((epoch, cut if cut.tokens > start.tokens else start))
    return cuts


def _shard_plans(split: str, cuts: list[_Cuts], starts: list[Cut], phases: Sequence[str | None]) -> list[ShardPlan]:
    plans: list[ShardPlan] = []
    for k, phase in enumerate(phases):
        pieces: list[Slice] = []
        for s, (start, own) in enumerate(zip(starts, cuts, strict=True)):
            begin, end = own[k], own[k + 1]
            for epoch in range(begin[0], end[0] + 1):
                first = begin[1].key if epoch == begin[0] else start.key
                last = end[1].key if epoch == end[0] else END_HASH
                pieces.append(Slice(s, epoch, first, last))
        held = tuple(piece for piece in pieces if piece.start < piece.stop)
        plans.append(ShardPlan(split, k, held, phase))
    return plans


@dataclass(slots=True, kw_only=True)
class MixResult(Result):
    """The result of a mix: the plan of the shards, or why there is none yet."""

    drops: list[SourceDrops]
    """The table of each source."""
    items: dict[str, int]
    """How many items of each evaluation set are in documents."""
    plan: MixPlan | None = None
    short: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Sources that must be read further: the number of each, the tokens that it needs, and those found."""
    fault: str = ""
    """Why there is no set; alarms tell first that cleaning drops too much."""


def mix_runs(folder: Path, task: MixTask, report: Any) -> MixResult:
    """Mix the runs: decide what becomes of each document, and cut the kept ones into shards.

    Returns:
        The result. `evidence.parquet` says what became of each document.

    Raises:
        InputError: a block list was changed or deleted after the recipe was read.
    """
    runs = load_runs(task.runs)
    recipe = task.recipe
    with runs_in_scratch(runs, folder) if task.fetch else nullcontext(runs) as own:
        # Decide which documents are dropped, step by step.
        findings = Findings()
        if task.evaluations:
            findings = find_contamination(task.evaluations, recipe, own, task.similar)
        index = Index(list(own), recipe, findings.list_dropped(), folder)
        near = drop_near_duplicates(index, task.similar) if task.similar is not None else None
        index.drop_not_taken()

        # Write what became of them, and count.
        def add_columns(number: int) -> dict[str, Any]:
            columns = near.to_columns(index.places, number) if near else {}
            return columns | findings.to_columns(index.places, number) if task.evaluations else columns

        files = write_evidence(folder, index.places, index.reasons, index.read_reasons, add_columns)
        drops = index.drops
        findings.add_to(drops)
        result = MixResult(files=files, items=findings.counts, drops=drops)

        # Cut what is kept.
        short = find_short(index, task.has_more)
        result.short = [(source, needed, drops[source].left.tokens) for source, needed in short.items()]
        if not short:
            try:
                plan = cut_sources(index, task.has_more)
                known = findings.list_eval_tasks(plan, index)
                result.plan = replace(plan, notes=(*plan.notes, *findings.notes), eval_tasks=known)
            except InputError as error:
                result.fault = str(error)
    return result
