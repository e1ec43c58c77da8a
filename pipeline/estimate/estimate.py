"""Estimate: what a build would read and write, how long it takes and what it costs, before anything runs.

The inputs are the files' footers and a pilot (`pipeline.estimate.pilot`), which runs a sample of every source through
the build's own steps. Without a pilot, constants for English text are used. If `mix.tokens` is a number, the estimate
covers the parts of each source that the build would read: both use the same selection. Duplicates that the pilot found
are subtracted. The estimate assumes that the link keeps its speed and that this machine does no other work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.estimate.disk import (
    COMPRESSED_SHARE,
    FETCH_SCRATCH_SHARE,
    GUESSED_DOCUMENT_BYTES,
    ROW_BYTES,
    document_bytes,
    token_size,
)
from pipeline.estimate.durations import Machines, TimeEstimate, estimate_time
from pipeline.estimate.pilot import TABLE_BYTES, Pilot, SourcePilot
from pipeline.estimate.source_estimate import (
    SourceEstimate,
    estimate_documents,
    estimate_source,
    estimate_tokens,
    guess_source,
)
from pipeline.recipe.schema import Recipe
from pipeline.recipe.shares import Demand, small_phases
from pipeline.sources.selection import Selection

DISK_MARGIN = 1.1
"""Factor on the pilot's estimate of disk space, which is within 10 %."""
SURE = 1.1
"""A source may have this many times the tokens measured. A plan refuses a recipe only if even these are too few."""


@dataclass(frozen=True, slots=True)
class PhaseEstimate:
    """One phase of the mix: its training tokens and shards, and the shares of the sources in it, by name."""

    name: str
    share: float
    tokens: int
    shards: int
    sources: dict[str, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens, disk space, time and dollars of a build."""

    sources: tuple[SourceEstimate, ...]
    train_tokens: int
    most_tokens: int | None
    """Training tokens that the sources allow at these weights; None if no source is read whole."""
    val_tokens: int
    shards: int
    scratch_bytes: int
    output_bytes: int
    download_bytes: int
    probe: Pilot | None = None
    """The pilot. `--json` prints it as `probe`."""
    time: TimeEstimate | None = None
    gpu_usd: float | None = None
    """The price of a GPU that waits for the build."""
    nodes_usd: float | None = None
    """The price of the machines, all kept until the end."""
    scarcest: str | None = None
    """The source that allows the fewest training tokens; None if no source is read whole."""
    phases: tuple[PhaseEstimate, ...] = ()
    """In order; empty if the recipe has none."""
    refusal: str = ""
    """Why the build would certainly refuse the recipe; empty if it may accept it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        data: dict[str, Any] = asdict(self)
        data["sources"] = [source.to_dict() for source in self.sources]
        if self.time is not None:
            named = {"limit": self.time.limit, "longest_stage": self.time.longest_stage}
            data["time"] |= {"total_s": self.time.total_s, **named}
        return data

    def disk_needs(self, work: Path | None, out: Path | None) -> list[tuple[str, Path, int]]:
        """Return the disk needs of scratch and set for `check_room`, with a margin; None stands for an object store."""
        sizes = (("scratch", work, self.scratch_bytes), ("the set", out, self.output_bytes))
        return [(what, folder, int(size * DISK_MARGIN)) for what, folder, size in sizes if folder is not None]


def estimate(
    recipe: Recipe,
    selections: list[Selection],
    *,
    pilot: Pilot | None = None,
    machines: Machines | None = None,
    gpu_usd_per_hour: float | None = None,
) -> Estimate:
    """Estimate a build. If the pilot shows that a source needs further parts, take them as the build will.

    Args:
        recipe: the data recipe.
        selections: the sources' files.
        pilot: what a sample showed; without it, no time is estimated.
        machines: what the build runs on, and where it keeps its files; one worker and folders when None.
        gpu_usd_per_hour: the price of a GPU that waits for the build.

    Raises:
        SourceError: a file cannot be read.
    """
    # What the sources have, and what the recipe can be granted of it.
    measured = pilot.sources if pilot else tuple(guess_source(selection) for selection in selections)
    demand = Demand(recipe)
    grant = demand.grant(_available(demand, selections, measured))
    train = grant.train_tokens
    for s, (selection, ratios) in enumerate(zip(selections, measured, strict=True)):
        # A source with more to read is read further, as the build does after a mix that came out short.
        needed = demand.tokens(s, train) + ratios.longest_tokens  # as `mix.find_short` asks
        while selection.has_more and ratios.text and estimate_tokens(selection, ratios) < needed:
            selection.take_for(needed, max(1, estimate_tokens(selection, ratios)))
    sources = tuple(
        estimate_source(
            float(demand.shares.fractions[s]),
            selection,
            ratios,
            train_tokens=demand.shares.of(s, train),
            val_tokens=demand.val_tokens(s),
        )
        for s, (selection, ratios) in enumerate(zip(selections, measured, strict=True))
    )
    # Everything that needs no time; what a pilot measured comes after it.
    found = Estimate(
        sources=sources,
        train_tokens=train,
        most_tokens=grant.limit,
        val_tokens=recipe.split.val_tokens,
        shards=_num_shards(demand, train),
        scratch_bytes=_scratch_bytes(recipe, sources),
        output_bytes=_output_bytes(demand, train, sources, pilot),
        download_bytes=sum(source.download_bytes for source in sources),
        probe=pilot,
        scarcest=None if grant.scarcest is None else recipe.sources[grant.scarcest].name,
        phases=_estimate_phases(demand, train),
        refusal=_refusal(demand, selections, pilot) if pilot else "\n".join(small_phases(recipe, train)),
    )
    if pilot is None:
        return found
    time = estimate_time(
        recipe,
        sources,
        selections,
        pilot,
        machines or Machines(),
        set_tokens=train + found.val_tokens,
        set_bytes=found.output_bytes,
        shards=found.shards,
    )
    # Prices go by the time of the whole build.
    hours = time.total_s / 3600
    return replace(
        found,
        time=time,
        gpu_usd=None if gpu_usd_per_hour is None else gpu_usd_per_hour * hours,
        nodes_usd=None if machines is None else machines.usd(hours),
    )


def _estimate_phases(demand: Demand, train_tokens: int) -> tuple[PhaseEstimate, ...]:
    """Return the phases of a set of this many training tokens; none if the recipe has none."""
    sizes = zip(demand.phases, demand.phase_tokens(train_tokens), demand.phase_shards(train_tokens), strict=True)
    names = [source.name for source in demand.recipe.sources]
    return tuple(
        PhaseEstimate(
            phase.name,
            float(phase.share),
            tokens,
            shards,
            dict(zip(names, map(float, phase.shares.fractions), strict=True)),
        )
        for phase, tokens, shards in sizes
        if phase.name is not None
    )


def _available(
    demand: Demand, selections: list[Selection], measured: Sequence[SourcePilot], *, margin: float = 1.0
) -> list[float | None]:
    """Return the tokens that each source offers to training; None for one that has more."""
    return [
        None if selection.has_more else margin * estimate_tokens(selection, ratios) - demand.val_tokens(s)
        for s, (selection, ratios) in enumerate(zip(selections, measured, strict=True))
    ]


def _refusal(demand: Demand, selections: list[Selection], pilot: Pilot) -> str:
    """Return why the build would refuse the recipe even if the sources have `SURE` times as many tokens as measured."""
    faults: list[str] = []
    for s, (selection, ratios) in enumerate(zip(selections, pilot.sources, strict=True)):
        if selection.has_more or not ratios.text:
            continue
        if not ratios.left_tokens:
            faults.append(
                f"source {selection.source.name!r}: no document is left to mix, `clean` drops all of the sample. Move "
                "its limits, or leave the source out."
            )
        elif not ratios.distinct.text:
            faults.append(
                f"source {selection.source.name!r}: no document is left to mix, all are duplicates. A document in two "
                "sources stays in the first: change their order, or leave one out."
            )
        elif fault := demand.validation_fault(s, int(SURE * estimate_tokens(selection, ratios)), how_sure="about "):
            faults.append(fault)
    if faults:
        return "\n".join(faults)
    if not demand.grant(_available(demand, selections, pilot.sources, margin=SURE)).fault:
        return ""
    return demand.grant(_available(demand, selections, pilot.sources)).fault


def _scratch_bytes(recipe: Recipe, sources: tuple[SourceEstimate, ...]) -> int:
    """Return the bytes of runs, files of the archive, and downloads kept for the tokenizer's sample."""
    # Scratch: tokens of all runs, their rows, and what is fetched or kept beside them.
    runs = sum(source.encoded_tokens for source in sources) * token_size(recipe)
    rows = sum(estimate_documents([own]) * document_bytes(recipe, index) for index, own in enumerate(sources))
    fetched = sum(source.text_bytes for source in sources if source.content_files) * FETCH_SCRATCH_SHARE
    sampled = min(recipe.tokenizer.sample_bytes, sum(source.download_bytes for source in sources))
    return int(runs + rows + fetched + sampled)


def _output_bytes(demand: Demand, train: int, sources: tuple[SourceEstimate, ...], pilot: Pilot | None) -> int:
    """Return the bytes of the set: its tokens, and its document tables with their sidecars."""
    recipe = demand.recipe
    used = [demand.tokens(s, train) for s in range(len(sources))]
    token_bytes = pilot.token_bytes if pilot else token_size(recipe) * COMPRESSED_SHARE
    row_bytes = pilot.row_bytes if pilot else ROW_BYTES
    rows = sum(
        row_bytes
        * tokens
        * (source.documents or source.text_bytes // GUESSED_DOCUMENT_BYTES)
        / max(1, source.encoded_tokens)
        for tokens, source in zip(used, sources, strict=True)
    )
    tables = _num_shards(demand, sum(used) - recipe.split.val_tokens) * TABLE_BYTES
    return int(sum(used) * token_bytes) + int(rows) + tables


def _num_shards(demand: Demand, train_tokens: int) -> int:
    recipe = demand.recipe
    return sum(demand.phase_shards(train_tokens)) + -(-recipe.split.val_tokens // recipe.shards.tokens)
