"""Estimate: what a build would read and write, how long it takes and what it costs, before anything runs.

The inputs are the files' footers and a pilot (`pipeline.estimate.pilot`), which runs a sample of every source through
the build's own steps. Without a pilot, constants for English text are used. If `mix.tokens` is a number, the estimate
covers the parts of each source that the build would read: both use the same selection. Duplicates that the pilot found
are subtracted. The estimate assumes that the link keeps its speed and that this machine does no other work.

Time: first the archive's files are fetched, then the tokenizer is trained. Then text is downloaded and encoded at the
same time, and the slower of the two counts. At last shards are written and validated. CPU time is divided by the
number of workers, download time is not. On two cores shared with other work, builds of 2 to 600 MB took 0.65 to 1.4
times the estimate. Where the work folder or the set is on an object store, a stage takes at least as long as its bytes
(`pipeline.estimate.traffic`). Waiting for a cluster to give nodes is not foreseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.encode.run import MEASURES_DTYPE
from pipeline.estimate.disk import (
    COMPRESSED_SHARE,
    FETCH_SCRATCH_SHARE,
    GUESSED_DOCUMENT_BYTES,
    ROW_BYTES,
    document_bytes,
    token_size,
)
from pipeline.estimate.duplicates import Distinct
from pipeline.estimate.pilot import TABLE_BYTES, Pilot, SourcePilot
from pipeline.estimate.traffic import BuildSize, StageTraffic, count_traffic, request_usd
from pipeline.recipe.schema import Recipe
from pipeline.recipe.shares import Demand
from pipeline.sources.selection import ReadFile, Selection

TEXT_BYTES_PER_TOKEN = 4.3  # measured on English web text and books with a 32 K vocabulary: 4.2 to 4.5
DISK_MARGIN = 1.1
"""Factor on the pilot's estimate of disk space, which is within 10 %."""
TRAIN_S, TRAIN_S_PER_BYTE = 2.0, 8e-9
"""Training a BPE of 32 K entries on prose: 2.4 s for 202 MB, 6 s for 602 MB, measured. Technical text takes twice as
long."""
VALIDATE_TOKENS_PER_S = 150e6  # full level, one thread: 171 M measured
SURE = 1.1
"""A source may have this many times the tokens measured. A plan refuses a recipe only if even these are too few."""
START_S = 1.0
"""Seconds to start processes and load libraries."""
MIX_S_PER_DOCUMENT = 0.42e-6
"""CPU seconds of the one mix task: 84 for 200 million documents in 3,200 runs, measured."""
MIX_S_PER_MEASURE = 0.05e-6
"""CPU seconds of the mix for each measure of a document: 1.8e-6 with the 38 measures of all presets, measured."""
_CONTENT_STORED_SHARE = 0.3  # gzip on source code


@dataclass(frozen=True, slots=True)
class SourceEstimate:
    """How much of one source would be read, and how many documents and tokens that gives."""

    name: str
    share: float
    files: int
    """Files that are read, whole or in part."""
    all_files: int
    units: int
    documents: int | None
    """Documents encoded; None if neither a footer nor a pilot gives the number."""
    kept: float | None
    """Share of the rows that is encoded; None without a pilot."""
    text_bytes: int
    """Text of the documents kept."""
    stored_bytes: int
    """Bytes read from disk or network."""
    download_bytes: int
    """The part of `stored_bytes` that is read over a network, and the files from Software Heritage's archive."""
    content_files: int
    """Files fetched from that archive."""
    bytes_per_token: float
    encoded_tokens: int
    """Tokens of the documents kept, duplicates and EOS included."""
    tokens: int
    """Tokens left for the mix, without the duplicates that were found."""
    distinct: Distinct
    has_more: bool
    """Whether parts of the source stay unread because the build has enough tokens without them."""
    dropped: dict[str, float] = field(default_factory=dict[str, float])
    """Share of the rows dropped, by reason, in the sample."""
    presets: dict[str, float] = field(default_factory=dict[str, float])
    """Share of the documents that each preset drops, by its name, in the sample."""
    left_documents: float = 1.0
    """Share of the encoded documents that presets with `when = "mix"` leave, in the sample."""
    formats: dict[str, int] = field(default_factory=dict[str, int])
    """Number of files by the format that they are read as."""
    read_files: tuple[ReadFile, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """How long the build takes on this machine, in seconds."""

    workers: int
    content_s: float
    """Fetching the archive's files."""
    tokenizer_s: float
    download_s: float
    """At the speed that the pilot measured; runs at the same time as encoding."""
    encode_s: float
    """Reading, cleaning, hashing and encoding, with all workers."""
    mix_s: float
    """In one process."""
    assemble_s: float
    validate_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the whole build; of download and encoding, only the longer counts."""
        first = START_S + self.content_s + self.tokenizer_s
        return first + max(self.download_s, self.encode_s) + self.mix_s + self.assemble_s + self.validate_s

    @property
    def longest_stage(self) -> str:
        """The stage that takes the longest."""
        encode_s = max(self.download_s, self.encode_s)
        return max(
            (self.content_s, "fetch"),
            (self.tokenizer_s, "tokenizer"),
            (encode_s, "encode"),
            (self.mix_s, "mix"),
            (self.assemble_s, "assemble"),
            (self.validate_s, "validate"),
        )[1]

    @property
    def limit(self) -> str:
        """The resource that takes the longest: "archive", "link" or "CPU"."""
        cpu_s = self.tokenizer_s + self.encode_s + self.mix_s + self.assemble_s + self.validate_s
        return max((cpu_s, "CPU"), (self.download_s, "link"), (self.content_s, "archive"))[1]


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines of a build: all are kept for as long as it takes."""

    cpus: int
    """Workers that one node runs at once."""
    usd_per_hour: float

    def usd(self, time: TimeEstimate) -> float:
        """Return what they cost, in US dollars."""
        return -(-time.workers // self.cpus) * self.usd_per_hour * time.total_s / 3600


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
    traffic: tuple[StageTraffic, ...] = ()
    """What each stage asks of an object store; empty if work folder and set are in folders."""
    request_usd: float | None = None
    """The price of those requests."""
    nodes_usd: float | None = None
    """The price of the nodes."""
    scarcest: str | None = None
    """The source that allows the fewest training tokens; None if no source is read whole."""
    refusal: str = ""
    """Why the build would certainly refuse the recipe; empty if it may accept it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        data = asdict(self)
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
    workers: int = 1,
    gpu_usd_per_hour: float | None = None,
    work_scheme: str | None = None,
    out_scheme: str | None = None,
    nodes: Nodes | None = None,
) -> Estimate:
    """Estimate a build. If the pilot shows that a source needs further parts, take them as the build will.

    Args:
        recipe: the data recipe.
        selections: the sources' files.
        pilot: what a sample showed; without it, no time is estimated.
        workers: tasks at once, on one machine or many.
        gpu_usd_per_hour: the price of a GPU that waits for the build.
        work_scheme: the scheme of the object store with the work folder (`s3`); None if it is a folder.
        out_scheme: the same for the set.
        nodes: the machines that run the workers, to price them.

    Raises:
        SourceError: a file cannot be read.
    """
    measured = pilot.sources if pilot else tuple(_guess(recipe, selection) for selection in selections)
    demand = Demand(recipe)
    grant = demand.grant(_available(demand, selections, measured))
    train = grant.train_tokens
    for s, (selection, ratios) in enumerate(zip(selections, measured, strict=True)):
        needed = demand.tokens(s, train) + ratios.longest_tokens  # as `mix.find_short` asks
        while selection.has_more and ratios.text and _tokens(selection, ratios) < needed:
            selection.take_for(needed, max(1, _tokens(selection, ratios)))
    sources = tuple(
        _estimate_source(float(share), selection, ratios)
        for share, selection, ratios in zip(demand.shares.fractions, selections, measured, strict=True)
    )
    used = [demand.tokens(s, train) for s in range(len(sources))]
    found = Estimate(
        sources=sources,
        train_tokens=train,
        most_tokens=grant.limit,
        val_tokens=recipe.split.val_tokens,
        shards=_num_shards(recipe, train),
        scratch_bytes=_scratch_bytes(recipe, sources),
        output_bytes=_output_bytes(recipe, used, sources, pilot),
        download_bytes=sum(source.download_bytes for source in sources),
        probe=pilot,
        scarcest=None if grant.scarcest is None else recipe.sources[grant.scarcest].name,
        refusal=_refusal(demand, selections, pilot) if pilot else "",
    )
    if work_scheme or out_scheme:
        size = _build_size(recipe, found)
        count = partial(count_traffic, size, workers=workers)
        usd = 0.0
        if work_scheme:
            usd += request_usd(count(work=True, out=False), work_scheme)
        if out_scheme:
            usd += request_usd(count(work=False, out=True), out_scheme)
        found = replace(found, traffic=count(work=bool(work_scheme), out=bool(out_scheme)), request_usd=usd)
    if pilot is None:
        return found
    time = _estimate_time(recipe, found, selections, pilot, workers)
    return replace(
        found,
        time=time,
        gpu_usd=None if gpu_usd_per_hour is None else gpu_usd_per_hour * time.total_s / 3600,
        nodes_usd=None if nodes is None else nodes.usd(time),
    )


def _build_size(recipe: Recipe, found: Estimate) -> BuildSize:
    measured = [
        (own, len(source.clean.mix_measures()))
        for own, source in zip(found.sources, recipe.sources, strict=True)
        if source.clean.mix_measures()
    ]
    return BuildSize(
        measured_runs=sum(own.units for own, _ in measured),
        measures_bytes=sum(_documents([own]) * MEASURES_DTYPE.itemsize * number for own, number in measured),
        runs=sum(source.units for source in found.sources),
        documents=_documents(found.sources),
        encoded_bytes=sum(source.encoded_tokens for source in found.sources) * token_size(recipe),
        shards=found.shards,
        set_tokens_bytes=(found.train_tokens + found.val_tokens) * token_size(recipe),
        set_bytes=found.output_bytes,
    )


def _documents(sources: Sequence[SourceEstimate]) -> int:
    return sum(source.documents or source.text_bytes // GUESSED_DOCUMENT_BYTES for source in sources)


def _tokens(selection: Selection, ratios: SourcePilot) -> int:
    """Return the tokens that a source offers to the mix."""
    left = ratios.left_tokens * ratios.distinct.text
    return int(selection.text_bytes * ratios.text * left / ratios.bytes_per_token)


def _available(
    demand: Demand, selections: list[Selection], measured: Sequence[SourcePilot], *, margin: float = 1.0
) -> list[float | None]:
    """Return the tokens that each source offers to training; None for one that has more."""
    return [
        None if selection.has_more else margin * _tokens(selection, ratios) - demand.val_tokens(s)
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
        elif fault := demand.validation_fault(s, int(SURE * _tokens(selection, ratios)), how_sure="about "):
            faults.append(fault)
    if faults:
        return "\n".join(faults)
    if not demand.grant(_available(demand, selections, pilot.sources, margin=SURE)).fault:
        return ""
    return demand.grant(_available(demand, selections, pilot.sources)).fault


def _guess(recipe: Recipe, selection: Selection) -> SourcePilot:
    """Return ratios for English text, for a plan without a pilot."""
    spans = [span for unit in selection.units for span in unit.spans]
    rows = [span.rows if span.rows is not None else span.text_bytes // GUESSED_DOCUMENT_BYTES + 1 for span in spans]
    per_byte = sum(rows) / max(1, selection.text_bytes)
    fetched = per_byte if selection.source.content != "column" else 0.0
    return SourcePilot(
        text=1.0,
        documents=per_byte,
        kept=1.0,
        dropped={},
        bytes_per_token=TEXT_BYTES_PER_TOKEN,
        longest_tokens=0,
        read_cpu_s=0.0,
        encode_s=0.0,
        content_files=fetched,
        content_bytes=_CONTENT_STORED_SHARE if fetched else 0.0,
    )


def _estimate_source(share: float, selection: Selection, ratios: SourcePilot) -> SourceEstimate:
    spans = [span for unit in selection.units for span in unit.spans]
    text_bytes = selection.text_bytes
    stored_bytes = sum(span.stored_bytes for span in spans)
    content_bytes = int(text_bytes * ratios.content_bytes)
    sampled = ratios.encode_s > 0 or not ratios.text
    read_files = tuple(selection.read_files())
    rows = [span.rows for span in spans if span.rows is not None]
    if len(rows) == len(spans):  # the share of rows kept varies less than the length of documents
        documents = round(sum(rows) * ratios.kept)
    else:
        documents = round(text_bytes * ratios.documents) if sampled else None
    return SourceEstimate(
        name=selection.source.name,
        share=share,
        files=len(read_files),
        all_files=len(selection.files),
        units=len(selection.units),
        documents=documents,
        kept=ratios.kept if sampled else None,
        text_bytes=int(text_bytes * ratios.text),
        stored_bytes=stored_bytes,
        download_bytes=(stored_bytes if selection.is_remote else 0) + content_bytes,
        content_files=round(text_bytes * ratios.content_files),
        bytes_per_token=ratios.bytes_per_token,
        encoded_tokens=int(text_bytes * ratios.text / ratios.bytes_per_token),
        tokens=_tokens(selection, ratios),
        distinct=ratios.distinct,
        has_more=selection.has_more,
        dropped=ratios.dropped,
        presets=ratios.presets,
        left_documents=ratios.left_documents,
        formats=dict(Counter(file.format for file in read_files)),
        read_files=read_files,
    )


def _scratch_bytes(recipe: Recipe, sources: tuple[SourceEstimate, ...]) -> int:
    """Return the bytes of runs, files of the archive, and downloads kept for the tokenizer's sample."""
    runs = sum(source.encoded_tokens for source in sources) * token_size(recipe)
    rows = sum(_documents([own]) * document_bytes(recipe, index) for index, own in enumerate(sources))
    fetched = sum(source.text_bytes for source in sources if source.content_files) * FETCH_SCRATCH_SHARE
    sampled = min(recipe.tokenizer.sample_bytes, sum(source.download_bytes for source in sources))
    return int(runs + rows + fetched + sampled)


def _output_bytes(recipe: Recipe, used: list[int], sources: tuple[SourceEstimate, ...], pilot: Pilot | None) -> int:
    token_bytes = pilot.token_bytes if pilot else token_size(recipe) * COMPRESSED_SHARE
    row_bytes = pilot.row_bytes if pilot else ROW_BYTES
    documents = sum(
        tokens * (source.documents or source.text_bytes // GUESSED_DOCUMENT_BYTES) / max(1, source.encoded_tokens)
        for tokens, source in zip(used, sources, strict=True)
    )
    tables = _num_shards(recipe, sum(used) - recipe.split.val_tokens) * TABLE_BYTES
    return int(sum(used) * token_bytes + documents * row_bytes) + tables


def _num_shards(recipe: Recipe, train_tokens: int) -> int:
    return -(-train_tokens // recipe.shards.tokens) + -(-recipe.split.val_tokens // recipe.shards.tokens)


def _estimate_time(
    recipe: Recipe, found: Estimate, selections: list[Selection], pilot: Pilot, workers: int
) -> TimeEstimate:
    read_s = [own.text_bytes * ratios.read_cpu_s for own, ratios in zip(selections, pilot.sources, strict=True)]
    encode_s = sum(s.text_bytes * ratios.encode_s for s, ratios in zip(found.sources, pilot.sources, strict=True))
    text_bytes = sum(source.text_bytes for source in found.sources)
    sample = 0 if recipe.tokenizer.file else min(recipe.tokenizer.sample_bytes, text_bytes)
    written = found.train_tokens + found.val_tokens
    files = sum(source.content_files for source in found.sources)
    over_link = sum(s.stored_bytes for s in found.sources if s.download_bytes and not s.content_files)
    mix_s = sum(
        _documents([own]) * (MIX_S_PER_DOCUMENT + MIX_S_PER_MEASURE * len(source.clean.mix_measures()))
        for own, source in zip(found.sources, recipe.sources, strict=True)
    )
    store_s = {stage.stage: stage.seconds(1 if stage.stage == "mix" else workers) for stage in found.traffic}
    return TimeEstimate(
        workers=workers,
        content_s=files / (pilot.content_files_per_s * workers) if pilot.content_files_per_s else 0.0,
        tokenizer_s=sample * (sum(read_s) / max(1, text_bytes) + TRAIN_S_PER_BYTE) + (TRAIN_S if sample else 0.0),
        download_s=over_link / pilot.link_bytes_per_s if pilot.link_bytes_per_s else 0.0,
        encode_s=max((sum(read_s) + encode_s) / workers, store_s.get("encode", 0.0)),
        mix_s=max(mix_s, store_s.get("mix", 0.0)),
        assemble_s=max(written * pilot.assemble_s / workers, store_s.get("assemble", 0.0)),
        validate_s=max(written / (VALIDATE_TOKENS_PER_S * workers), store_s.get("validate", 0.0)),
    )
