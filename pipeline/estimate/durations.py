"""How long a build takes: each stage from what a pilot measured, or from constants.

First the archive's files are fetched, then the tokenizer is trained. Then text is downloaded and encoded at the same
time, and the slower of the two counts; near-duplicates are looked for. At last shards are written and validated. CPU
time is divided by the number of workers, download time is not. On two cores shared with other work, builds of 2 to 600
MB took 0.65 to 1.4 times the estimate. No stage uses more workers than it has tasks. If the work folder or the set is
on an object store, a stage takes at least as long as its bytes. Waiting for a cluster to give nodes is not included.
Neither are pairs of near-duplicates that the sample does not show: a text with many takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.assemble.grouping import shards_an_assemble_task
from pipeline.estimate.disk import token_size
from pipeline.estimate.pilot import Pilot
from pipeline.estimate.source_estimate import SourceEstimate, estimate_documents
from pipeline.recipe.schema import Recipe
from pipeline.sources.selection import Selection
from pipeline.tokenizer.train import find_trainer
from pipeline.validation_tasks import shards_a_validation_task

TRAIN_S = 2.0
TRAIN_S_PER_BYTE = {"gigatoken": 8e-9, "tokenizers": 0.24e-6}
"""Training a BPE of 32 K entries on prose, by what trains it. gigatoken: 2.4 s for 202 MB, 6 s for 602 MB.
tokenizers: 18 to 21 s for 75 MB. Measured. Technical text takes twice as long."""
VALIDATE_TOKENS_PER_S = 200e6
"""Tokens that one task of validation checks in a second: 180 to 214 M of books and 190 to 212 M of counted numbers,
measured."""
VALIDATE_S_PER_SHARD = 2e-3
"""CPU seconds to open and check a shard's three files, however small: 1.7 to 2.3 ms, measured."""
START_S = 1.0
"""Seconds to start processes and load libraries."""
MIX_S_PER_DOCUMENT = 0.42e-6
"""CPU seconds of the one mix task: 84 for 200 million documents in 3,200 runs, measured."""
MIX_S_PER_MEASURE = 0.05e-6
"""CPU seconds of the mix for each measure of a document: 1.8e-6 with the 38 measures of all presets, measured."""
PAIRS_S_PER_DOCUMENT = 20e-6
"""Seconds to find the pairs of a document's 14 band rows: 77 for 50 million rows, measured on a busy machine."""
STORE_BYTES_PER_S = 85e6
"""Bytes a second of one worker's requests to a store in the same region. Source: Amazon's guide to the performance of
S3, which expects 85 to 90 MB/s of one connection."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What a build runs on, and where it keeps its files."""

    workers: int = 1
    """Tasks at once, over all machines."""
    remote_work: bool = False
    """Whether the work folder is on an object store."""
    remote_out: bool = False
    """Whether the set is."""
    node_usd_per_hour: float | None = None
    cpus_per_node: int = 1
    """Workers that one machine runs at once."""

    def usd(self, hours: float) -> float | None:
        """Return the price of the machines in US dollars; None if one of them has no price."""
        nodes = -(-self.workers // self.cpus_per_node)
        return None if self.node_usd_per_hour is None else nodes * self.node_usd_per_hour * hours


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
    near_duplicates_s: float
    """The three stages that find near-duplicates; 0 if the recipe does not ask for them."""
    assemble_s: float
    validate_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the whole build; of download and encoding, only the longer counts."""
        # Download and encoding run at the same time: the longer one counts.
        first = START_S + self.content_s + self.tokenizer_s
        middle = max(self.download_s, self.encode_s) + self.near_duplicates_s
        return first + middle + self.mix_s + self.assemble_s + self.validate_s

    @property
    def longest_stage(self) -> str:
        """The stage that takes the longest."""
        encode_s = max(self.download_s, self.encode_s)
        return max(
            (self.content_s, "fetch"),
            (self.tokenizer_s, "tokenizer"),
            (encode_s, "encode"),
            (self.near_duplicates_s, "near-duplicates"),
            (self.mix_s, "mix"),
            (self.assemble_s, "assemble"),
            (self.validate_s, "validate"),
        )[1]

    @property
    def limit(self) -> str:
        """The resource that takes the longest: "archive", "link" or "CPU"."""
        cpu_s = self.total_s - START_S - self.content_s - max(self.download_s, self.encode_s) + self.encode_s
        return max((cpu_s, "CPU"), (self.download_s, "link"), (self.content_s, "archive"))[1]


def estimate_time(
    recipe: Recipe,
    sources: Sequence[SourceEstimate],
    selections: Sequence[Selection],
    pilot: Pilot,
    machines: Machines,
    *,
    set_tokens: int,
    set_bytes: int,
    shards: int,
) -> TimeEstimate:
    """Estimate the seconds of each stage.

    Args:
        recipe: the recipe.
        sources: the estimate of each source.
        selections: the sources' files.
        pilot: what a sample showed.
        machines: what the build runs on.
        set_tokens: tokens of the set.
        set_bytes: its bytes on disk.
        shards: its shards.
    """
    # Fetching, and the tokenizer.
    read_s = [own.text_bytes * ratios.read_cpu_s for own, ratios in zip(selections, pilot.sources, strict=True)]
    text_bytes = sum(source.text_bytes for source in sources)
    sample = 0 if recipe.tokenizer.file else min(recipe.tokenizer.sample_bytes, text_bytes)
    trainer = find_trainer(recipe.tokenizer.pretokenizer)
    files = sum(source.content_files for source in sources)
    over_link = sum(s.stored_bytes for s in sources if s.download_bytes and not s.content_files)
    # Encoding and mixing: work of the processor, per byte and per document.
    encode_s = sum(s.text_bytes * ratios.encode_s for s, ratios in zip(sources, pilot.sources, strict=True))
    documents, tokens = estimate_documents(sources), sum(source.encoded_tokens for source in sources)
    mix_s = sum(
        estimate_documents([own]) * (MIX_S_PER_DOCUMENT + MIX_S_PER_MEASURE * len(source.clean.mix_measures()))
        for own, source in zip(sources, recipe.sources, strict=True)
    )
    near_s = tokens * pilot.near_s_per_token + (documents * PAIRS_S_PER_DOCUMENT if pilot.near_s_per_token else 0.0)
    # A stage uses no more workers than it has tasks.
    units = sum(source.units for source in sources)
    shard_bytes = set_tokens * token_size(recipe) // max(1, shards)
    shard_documents = documents // max(1, shards)
    a_task = shards_an_assemble_task(shards, runs=units, shard_bytes=shard_bytes, shard_documents=shard_documents)
    encoding, assembling, validating = (
        max(1, min(machines.workers, tasks))
        for tasks in (
            units,
            -(-shards // a_task),
            -(-shards // shards_a_validation_task(shards, shard_bytes)),
        )
    )
    # A stage takes at least as long as its bytes take to or from an object store.
    run_bytes = tokens * token_size(recipe) if machines.remote_work else 0
    sent_bytes = set_bytes if machines.remote_out else 0
    validate_s = set_tokens / VALIDATE_TOKENS_PER_S + shards * VALIDATE_S_PER_SHARD
    return TimeEstimate(
        workers=machines.workers,
        content_s=files / (pilot.content_files_per_s * machines.workers) if pilot.content_files_per_s else 0.0,
        tokenizer_s=sample * (sum(read_s) / max(1, text_bytes) + TRAIN_S_PER_BYTE[trainer])
        + (TRAIN_S if sample else 0.0),
        download_s=over_link / pilot.link_bytes_per_s if pilot.link_bytes_per_s else 0.0,
        encode_s=max(sum(read_s) + encode_s, run_bytes / STORE_BYTES_PER_S) / encoding,
        mix_s=mix_s,
        near_duplicates_s=near_s / machines.workers,
        assemble_s=max(set_tokens * pilot.assemble_s, (run_bytes + sent_bytes) / STORE_BYTES_PER_S) / assembling,
        validate_s=max(validate_s, sent_bytes / STORE_BYTES_PER_S) / validating,
    )
