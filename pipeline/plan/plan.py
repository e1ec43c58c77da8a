"""`plan_set`, what `tokenmill plan` does: a small build, scaled up to the text that the footers state.

Tokens, documents and drops are within 10% of the build's on real text, if the sample is like the rest. Duplicates are
those in the sample: of a source that is sampled, the build drops more. A build takes 0.5 to 2 times the seconds if the
link keeps its speed; waiting for the nodes of a cluster is not included.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from pipeline.builder.build import AnyRecipe, RowsByName, load_recipe
from pipeline.builder.records import NEAR_STAGES
from pipeline.builder.running_build import FETCH_SCRATCH_SHARE
from pipeline.clean.documents import DocumentStream
from pipeline.clean.functions.process import closing_functions, start_functions
from pipeline.clean.reasons import describe_change, describe_drops
from pipeline.engine.executors import count_cores
from pipeline.mix.index import describe_take
from pipeline.plan.small_build import WITHIN, SmallBuild, SourceSample, build_sample
from pipeline.recipe.schema import Recipe
from pipeline.recipe.shares import Demand, Grant
from pipeline.sources.hub import pin_revisions
from pipeline.sources.network import Network, with_cache
from pipeline.sources.selection import open_sources
from pipeline.tokenizer.train import find_trainer
from shards.terminal.display import JsonObject

TRAIN_S = 2.0
TRAIN_S_PER_BYTE = {"gigatoken": 8e-9, "tokenizers": 0.24e-6}
"""Training a BPE of 32 K entries on prose, by what trains it, measured. Technical text takes twice as long. The small
build tells little: its time hardly grows with the text."""
VALIDATE_TOKENS_PER_S = 200e6
"""Tokens that one core checks in a second: 180 to 214 M of books, measured."""
START_S = 1.0
"""Seconds to start processes and load libraries."""
MIX_S_PER_DOCUMENT = 1e-6
"""CPU seconds of the one mix task: 0.42e-6 without measures of cleaning, 1.8e-6 with all of them, measured."""
_ARCHIVED_SHARE = 0.3
"""Bytes that a byte of text takes in Software Heritage's archive: gzip on source code."""


@dataclass(frozen=True, slots=True)
class SourceEstimate:
    """How much of one source is read, and how many documents and tokens that gives."""

    name: str
    share: float
    files: int
    """Files that are read, whole or in part."""
    all_files: int
    units: int
    stored_bytes: int
    """Bytes read from disk or network."""
    download_bytes: int
    """The part of `stored_bytes` that is read over a network, and the files from Software Heritage's archive."""
    content_files: int
    """Files fetched from that archive."""
    text_bytes: int
    """Text of the documents encoded."""
    bytes_per_token: float
    """Text per token; EOS counts as a token."""
    tokens: int
    """Tokens left for the mix."""
    documents: int
    """Documents left for the mix."""
    kept: float
    """The share of the records that they are."""
    dropped: dict[str, float]
    """The share of the records that is dropped, by reason."""
    epochs: float
    """How often training takes the tokens left after validation."""
    is_sample: bool
    """Whether only a sample was read, so that copies elsewhere in the source are not known."""
    has_more: bool
    """Whether parts of the source stay unread because the build has enough tokens without them."""
    ways: dict[str, int]
    """How many files are read in each way, such as `jsonl (gzip)`."""
    empty_files: tuple[str, ...]
    """Names of the files that hold no record."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens, disk space, time and dollars of a build."""

    sources: tuple[SourceEstimate, ...]
    phases: list[JsonObject]
    """In order: `name`, `share`, `tokens`, `shards`, and the shares of the `sources`, by name; empty if the recipe has
    none."""
    train_tokens: int
    least_train_tokens: int
    most_train_tokens: int
    """The range of `train_tokens`, which is wide where copies outside the sample are not known."""
    most_tokens: int | None
    """Training tokens that the sources allow at these weights; None if no source is read whole."""
    scarcest: str | None
    """The source that allows the fewest training tokens; None without weights, or if no source is read whole."""
    when_short: str
    """What the recipe says of sources that are too small."""
    val_tokens: int
    shards: int
    scratch_bytes: int
    output_bytes: int
    workers: int
    seconds: dict[str, float]
    """By stage; `download` is a part of encoding, which takes the longer of the two."""
    total_s: float
    usd: float | None
    """The price of what is rented until the end of the build; None if it is not known by the hour."""
    sample_bytes: int
    """Text of the small build."""
    sample_s: float
    """How long the small build took."""
    notes: tuple[str, ...]
    """What the build would say."""
    stops: tuple[str, ...]
    """Why the build would stop, judged by the sample."""
    refusal: str
    """Why the build would certainly refuse the recipe; empty if it may accept it."""
    shown: Sequence[JsonObject] = ()
    """The first documents of each source, if asked for: `source`, `file`, `part`, `row` and `text`. Of a source
    without one, `source` and what is `dropped`."""


def plan_set(
    recipe: AnyRecipe,
    *,
    overrides: Sequence[str] = (),
    tokens: int | str | None = None,
    workers: int | None = None,
    usd_per_hour: float | None = None,
    network: Network | None = None,
    progress: bool = False,
    sources: RowsByName | None = None,
    allow_code: bool = False,
    show: int = 0,
) -> Estimate:
    """Estimate what a build reads, writes, takes and costs, from footers and a small build. Keeps nothing.

    A few megabytes of each source go through the stages of a build in a temporary folder; its results are scaled up.

    Args:
        recipe: the recipe's file, the name of a shipped recipe, its tables as a dict, or a `Recipe`.
        overrides: `KEY=VALUE` strings that change the recipe, as `--set` does.
        tokens: as for `build_set`.
        workers: tasks that run at once, on one machine or many; the cores that this process may use when None.
        usd_per_hour: the price of all machines that are rented while the build runs.
        network: how sources are read over a network; the defaults when None.
        progress: print progress on stderr.
        sources: the rows of sources, as for `build_set`. An iterator is used up: give a list, or make it anew.
        allow_code: as for `build_set`.
        show: so many documents of each source are shown as they would be encoded.

    Returns:
        Tokens, documents and bytes of each source, seconds of each stage, and bytes of disk. Its `refusal` says why the
        build would refuse the recipe.

    Raises:
        InputError: the recipe or the data cannot be used.
    """
    # Footers are read more than once.
    with (
        tempfile.TemporaryDirectory(prefix="tokenmill-plan-") as cache,
        with_cache(network, cache=Path(cache)),
        closing_functions(),
    ):
        loaded = load_recipe(
            recipe,
            overrides=overrides,
            tokens=tokens,
            sources=sources,
            progress=progress,
            allow_code=allow_code,
            work=Path(cache),
        )
        start_functions(loaded.sources)
        loaded = pin_revisions(loaded)
        selections = open_sources(loaded)
        with build_sample(loaded, selections, quiet=not progress) as built:
            found = estimate(loaded, built, workers or count_cores(), usd_per_hour)
            numbers = range(len(built.sources)) if show else ()
            return replace(found, shown=[one for number in numbers for one in _show(built, number, show)])


def _show(built: SmallBuild, number: int, count: int) -> list[JsonObject]:
    """Return the first documents of a source's sample after cleaning; if there is none, why."""
    source, spans = built.recipe.sources[number], [span for unit in built.units[number] for span in unit.spans]
    stream = DocumentStream(source, spans)
    documents = (
        {"source": source.name, "file": spans[span].name, "part": spans[span].part, "row": row, "text": text}
        for indices, found in stream
        for span, row, text in zip(map(int, indices), map(int, found.rows), map(str, found.text), strict=True)
    )
    return [*islice(documents, count)] or [
        {"source": source.name, "dropped": describe_drops(dropped := stream.tally.dropped, dropped.total())}
    ]


def estimate(recipe: Recipe, built: SmallBuild, workers: int, usd_per_hour: float | None = None) -> Estimate:
    """Plan by a small build, scaled up. If it shows that a source needs further parts, take them as the build will.

    Args:
        recipe: the data recipe.
        built: what the small build has shown.
        workers: tasks at once, over all machines.
        usd_per_hour: the price of all machines that are rented while the build runs.

    Raises:
        SourceError: a file cannot be read.
    """
    demand, grant = _demand_of(recipe, built)
    train = grant.train_tokens
    bounds = zip(*(sample.tokens_range for sample in built.sources), strict=True)
    granted = [_demand_of(recipe, built, found)[1].train_tokens for found in bounds]
    for s, sample in enumerate(built.sources):
        # A source with more to read is read further, as the build does after a mix that came out short.
        needed = demand.tokens(s, train) + sample.longest_tokens
        while sample.selection.has_more and sample.drops.left.tokens and sample.tokens < needed:
            sample.selection.take_for(needed, sample.tokens)
    sources = tuple(_estimate_source(demand, s, sample, train) for s, sample in enumerate(built.sources))
    growth = (train + recipe.split.val_tokens) / max(1, built.set_tokens)
    sample_bytes = sum(sample.text_bytes for sample in built.sources)
    read_growth = sum(source.text_bytes for source in sources) / max(1, sample_bytes)
    seconds = _estimate_seconds(recipe, sources, built, growth, read_growth, workers)
    total_s = START_S + sum(seconds.values()) - min(seconds["download"], seconds["encode"])
    return Estimate(
        sources=sources,
        phases=_estimate_phases(demand, train),
        train_tokens=train,
        least_train_tokens=min(*granted, train),
        most_train_tokens=max(*granted, train),
        most_tokens=grant.limit,
        scarcest=recipe.sources[grant.scarcest].name if grant.scarcest is not None and recipe.has_weights else None,
        when_short=recipe.mix.when_short,
        val_tokens=recipe.split.val_tokens,
        shards=sum(demand.phase_shards(train)) + demand.val_shards,
        scratch_bytes=_scratch_bytes(recipe, sources, built, read_growth),
        output_bytes=int(growth * sum(file.bytes for shard in built.shards for file in shard.files.entries)),
        workers=workers,
        seconds=seconds,
        total_s=total_s,
        usd=None if usd_per_hour is None else usd_per_hour * total_s / 3600,
        sample_bytes=sample_bytes,
        sample_s=built.wall_s,
        notes=(
            *dict.fromkeys(line for own in built.chosen for line in own.left_out),
            *(note for note in built.said if not note.startswith("mix: ")),
        ),
        stops=tuple(built.stopped),
        refusal=_refusal(recipe, built),
    )


def _demand_of(recipe: Recipe, built: SmallBuild, found: Sequence[float] = ()) -> tuple[Demand, Grant]:
    """Return the plan's demand, and what the sources grant to training; one that has more bounds nothing.

    Args:
        recipe: the data recipe.
        built: what the small build has shown.
        found: the tokens of each source; those that are expected if empty.
    """
    found = found or [sample.tokens for sample in built.sources]
    demand = Demand(recipe, found)
    left = [tokens - demand.val_tokens(s) for s, tokens in enumerate(found)]
    is_read = [not sample.selection.has_more for sample in built.sources]
    demand = Demand(recipe, left)
    return demand, demand.grant([own if read else None for own, read in zip(left, is_read, strict=True)])


def _estimate_source(demand: Demand, number: int, sample: SourceSample, train: int) -> SourceEstimate:
    selection, scale, tokens, drops = sample.selection, sample.scale, sample.tokens, sample.drops
    take, kept = selection.source.take, drops.left.documents / max(1, drops.records)
    dropped = {reason: count / drops.records for reason, count in drops.dropped().items()}
    spans = [span for unit in selection.units for span in unit.spans]
    stored_bytes = sum(span.stored_bytes for span in spans)
    is_stated = selection.source.content == "column" and all(span.rows is not None for span in spans)
    records = sum(span.rows or 0 for span in spans) if is_stated else drops.records * scale
    text_bytes, ways = int(sample.text_bytes * scale), selection.ways()
    return SourceEstimate(
        name=selection.source.name,
        share=float(demand.shares.fractions[number]),
        files=ways.total(),
        all_files=len(selection.files),
        units=len(selection.units),
        stored_bytes=stored_bytes,
        download_bytes=(stored_bytes if selection.is_remote else 0)
        + (int(text_bytes * _ARCHIVED_SHARE) if sample.fetched_files else 0),
        content_files=round(sample.fetched_files * scale),
        text_bytes=text_bytes,
        bytes_per_token=sample.text_bytes / max(1, drops.read.tokens),
        tokens=tokens,
        documents=round(kept * records * take),
        kept=kept * take,
        dropped=dropped if take == 1 else dropped | {describe_take(take): kept * (1 - take)},
        epochs=demand.shares.of(number, train) / max(1, tokens - demand.val_tokens(number)),
        is_sample=not sample.is_all,
        has_more=selection.has_more,
        ways=dict(ways),
        empty_files=tuple(selection.empty),
    )


def _estimate_phases(demand: Demand, train_tokens: int) -> list[JsonObject]:
    """Return the plan's phases of a set of this many training tokens; none if the recipe has none."""
    sizes = zip(demand.phases, demand.phase_tokens(train_tokens), demand.phase_shards(train_tokens), strict=True)
    return [
        {
            "name": phase.name,
            "share": float(phase.share),
            "tokens": tokens,
            "shards": shards,
            "sources": phase.shares.by_name(demand.recipe),
        }
        for phase, tokens, shards in sizes
        if phase.name is not None
    ]


def _estimate_seconds(
    recipe: Recipe,
    sources: Sequence[SourceEstimate],
    built: SmallBuild,
    growth: float,
    read_growth: float,
    workers: int,
) -> dict[str, float]:
    """Return the planned seconds of each stage: of one core divided by the workers, or by a stage's fewer tasks.

    Args:
        recipe: the data recipe.
        sources: what is read.
        built: the small build.
        growth: how many times its tokens the set has.
        read_growth: how many times its text the build reads.
        workers: tasks at once.
    """
    text_bytes = sum(source.text_bytes for source in sources)
    sample_bytes = 0 if recipe.tokenizer.file else min(recipe.tokenizer.sample_bytes, text_bytes)
    train_s = TRAIN_S + sample_bytes * TRAIN_S_PER_BYTE[find_trainer(recipe.tokenizer.pretokenizer)]
    links = zip(sources, built.sources, strict=True)
    read_s = sum(sample.encode_s * sample.scale for sample in built.sources)
    read_s /= min(workers, sum(source.units for source in sources))
    return {
        "fetch": sum(sample.fetch_s * sample.scale for sample in built.sources) / workers,
        # Its text is read as that of runs is: of pages and notebooks, this takes longest.
        "tokenizer": train_s + read_s * sample_bytes / text_bytes if sample_bytes else 0.0,
        "download": sum(own.stored_bytes / sample.link_bytes_per_s for own, sample in links if sample.link_bytes_per_s),
        "encode": read_s,
        "near-duplicates": built.seconds_of(*NEAR_STAGES) * read_growth / workers,
        "mix": sum(sample.drops.read.documents * sample.scale for sample in built.sources) * MIX_S_PER_DOCUMENT,
        "assemble": built.seconds_of("assemble") * growth / workers,
        "validate": growth * built.set_tokens / VALIDATE_TOKENS_PER_S / workers,
    }


def _scratch_bytes(recipe: Recipe, sources: Sequence[SourceEstimate], built: SmallBuild, read_growth: float) -> int:
    """Return the planned bytes of runs, of other stages, of fetched files, and of downloads kept for the tokenizer."""
    runs = sum(sample.run_bytes * sample.scale for sample in built.sources)
    between = sum(file.bytes for stage in (*NEAR_STAGES, "mix") for file in built.work.child(stage).list())
    fetched = sum(source.text_bytes for source in sources if source.content_files) * FETCH_SCRATCH_SHARE
    downloads = min(recipe.tokenizer.sample_bytes, sum(source.download_bytes for source in sources))
    return int(runs + between * read_growth + fetched + downloads)


def _refusal(recipe: Recipe, built: SmallBuild) -> str:
    """Return the plan's reason to refuse a recipe even if the sources have as many tokens as they can have."""
    demand, most = _demand_of(recipe, built, [(1 + WITHIN) * sample.tokens for sample in built.sources])
    faults: list[str] = []
    for s, sample in enumerate(built.sources):
        if sample.selection.has_more or sample.selection.is_left_out or not recipe.has_weights:
            continue
        if not sample.drops.left.tokens:
            name, reasons = sample.selection.source.name, sample.drops.dropped()
            why = describe_drops(reasons, sum(reasons.values())) or "there were none"
            faults.append(
                f"source {name!r}: cleaning left no documents of its sample: {why}. {describe_change(reasons)}, or "
                f"leave the source out: --set sources.{name}.weight=0"
            )
        elif fault := demand.validation_fault(s, int((1 + WITHIN) * sample.tokens), how_sure="about "):
            faults.append(fault)
    if faults:
        return "\n".join(faults)
    return _demand_of(recipe, built)[1].fault if most.fault else ""
