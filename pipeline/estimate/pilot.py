"""Pilot: run a small sample of every source through the build's own steps, so that a plan rests on measurements.

Some parts of each source are read (`pipeline.estimate.pilot_pieces`), chosen by the recipe's seed. The shares of rows
and of text that cleaning keeps are counted on everything that was read. About `SAMPLE_BYTES` of it, divided by the
weights, are encoded, mixed into a shard and compressed by one process, and timed.

Tokens: a tokenizer file in the recipe is used. Otherwise a BPE of the recipe's size is trained on every second document
of the sample, in the sample's proportions, and encodes all of it. A BPE trained on all of the sample overfits: 0.4 to
5 % too few tokens, and 8 to 26 % for a source with 3 % of the mix. On unseen text alone a BPE gives 1 to 7 % too many
tokens, because the build trains on a hundred times as much text. Half and half is within 6 % of the build's own
tokenizer, measured with six draws from each of the corpora and 4,096 to 32,005 entries. If the sample holds all the
text, the BPE is trained on all of it, as in the build. `pipeline.estimate.duplicates` counts duplicates.

A pilot reads a few megabytes of each source (for a remote one, a footer and one or two requests per part) and trains
for 2 to 10 s. It sees at most eight parts of a remote source, which limits how well it sees differences between parts.
It writes into a temporary folder.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipeline.clean.drops.malformed import count_malformed, describe_examples, malformed_remedy
from pipeline.clean.drops.table import DUPLICATE, SourceDrops, step_of
from pipeline.clean.steps import describe_drops, drop_remedy
from pipeline.estimate.disk import COMPRESSED_SHARE, ROW_BYTES, token_size
from pipeline.estimate.duplicates import Distinct, find_distinct
from pipeline.estimate.pilot_pieces import Sample, read_pilot_pieces
from pipeline.estimate.pilot_stages import PilotStages
from pipeline.recipe.schema import Recipe, SourceRecipe
from pipeline.recipe.shares import Demand
from pipeline.sources.base import SourceError, Span, Unit
from pipeline.sources.selection import Selection
from pipeline.sources.undivided import Undivided
from pipeline.tokenizer.encoder import TokenizerInfo, load_encoder, read_encoder_file
from pipeline.tokenizer.given_tokenizer import TokenizerError
from pipeline.tokenizer.kept_text import add_up_kept_text, check_unknown, describe_kept
from pipeline.tokenizer.sample import TokenizerTask, draw_sample

if TYPE_CHECKING:
    from pipeline.encode.encode import EncodeResult
    from pipeline.encode.run import Run

SAMPLE_BYTES = 24 << 20
LEAST_SOURCE_BYTES = 4 << 20
TEXT_BYTES_PER_TOKEN = 4.3  # measured on English web text and books with a 32 K vocabulary: 4.2 to 4.5
TABLE_BYTES = 1500
"""The fixed size of a document table, about: its footer and the names of its parts."""
_ALL = 0.95
"""A sample with this share of the text counts as all of it."""
_NOT_ENCODING = ("start_s", "read_s", "check_s")
"""Steps of an encode task whose time does not grow with the text: the check reads a few documents per unit."""
_QUICK_TRAINING_BYTES = 8 << 20
"""With less text, `tokenizers` trains faster than gigatoken, which takes 15 s for 4 MB and 5 s for 8 MB (32 K entries,
the gpt2 pre-tokenizer), measured."""


@dataclass(frozen=True, slots=True)
class SourcePilot:
    """Ratios measured on one source, by default those of English text. A stated byte is one that the spans state."""

    text: float = 1.0
    """Bytes of the documents kept, for each stated byte."""
    documents: float = 0.0
    """Documents kept, for each stated byte."""
    kept: float | None = None
    """Documents kept, for each row; None if nothing was read."""
    dropped: dict[str, float] = field(default_factory=dict[str, float])
    """Rows dropped by reason, for each row."""
    bytes_per_token: float = TEXT_BYTES_PER_TOKEN
    """Text per token of the documents kept; EOS counts as a token."""
    longest_tokens: int = 0
    """Tokens of the longest document."""
    read_cpu_s: float = 0.0
    """Seconds of one core to read a stated byte."""
    encode_s: float = 0.0
    """Seconds of one core to encode a byte of the documents kept."""
    content_files: float = 0.0
    """Files of the archive, for each stated byte."""
    content_bytes: float = 0.0
    """Bytes fetched from the archive, for each stated byte."""
    distinct: Distinct = field(default_factory=Distinct)
    """The shares that are left without duplicates."""
    left_tokens: float = 1.0
    """The share of the tokens of the documents kept that cleaning in the mix leaves."""
    left_documents: float = 1.0
    malformed: list[str] = field(default_factory=list[str])
    """Some of the malformed records."""
    undivided: Undivided = field(default_factory=Undivided)
    """Text files in which the separator never occurs."""
    drops: SourceDrops = field(default_factory=SourceDrops)
    """The documents of the sample that each step drops."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """The measurements of all sources, of shards and of the network."""

    sources: tuple[SourcePilot, ...]
    token_bytes: float
    """Compressed bytes of a token of the mix."""
    row_bytes: float
    """Bytes of a row of the document table."""
    near_s_per_token: float
    """Seconds of one core to look for near-duplicates, for each encoded token; 0 if the recipe does not ask for it."""
    assemble_s: float
    """Seconds of one core to write a token into a shard."""
    link_bytes_per_s: float | None
    """Download speed of the remote parts; None if there were none."""
    content_files_per_s: float | None
    """Files of the archive that one process fetched per second; None if it fetched none."""
    sample_bytes: int
    """Text that was encoded."""
    train_s: float
    seconds: float
    slow_encoder: str = ""
    """Why `tokenizers` encodes in the place of gigatoken; empty if it does not."""
    kept: tuple[str, ...] = ()
    """How much of each source's sample the tokenizer rewrites; empty if it keeps every byte."""


def measure_pilot(
    recipe: Recipe,
    selections: list[Selection],
    *,
    duplicates: Literal["cheaply", "in all text"] = "cheaply",
) -> Pilot:
    """Read, train, encode and compress a sample of every source.

    Args:
        recipe: the recipe.
        selections: the parts of the sources that the build would read.
        duplicates: search for duplicates only if it is cheap, or in all text that the build would read.

    Raises:
        SourceError: a part cannot be read as the recipe says.
        TokenizerError: the recipe's tokenizer file cannot be used.
    """
    # Read parts of each source.
    started = time.perf_counter()
    wanted = [max(LEAST_SOURCE_BYTES, int(SAMPLE_BYTES * share)) for share in Demand(recipe).shares.fractions]
    samples = [read_pilot_pieces(*arguments) for arguments in zip(selections, wanted, strict=True)]
    _check_samples_left(recipe, samples)

    # Train, encode, mix and assemble, as a build does.
    with tempfile.TemporaryDirectory(prefix="tokenmill-plan-") as name:
        stages = PilotStages(recipe, Path(name))
        training = time.perf_counter()
        # Two halves: the encoder is slow until it has cached the common words, so only the second is timed.
        units = [
            [stages.write_unit(s, half, texts) for half in (0, 1) if (texts := sample.texts[half::2])]
            for s, sample in enumerate(samples)
        ]
        tokenizer = _tokenizer(recipe, selections, samples, units, stages.folder)
        train_s = time.perf_counter() - training
        evaluations = stages.read_evaluations()
        encoded = [[stages.encode(unit, tokenizer, evaluations) for unit in own] for own in units]
        runs = [run for own in encoded for run, _ in own]
        mix, listed, mixed, near_s = stages.mix(runs, tokenizer.vocab_size, evaluations)
        shard = stages.assemble(mix, listed, mixed, tokenizer)
        slow_encoder = load_encoder(tokenizer.path, tokenizer.sha256).slow_because  # while the trained file is there
        own_runs = [[run for run, _ in own] for own in encoded]
        distinct = find_distinct(selections, own_runs, read_everything=duplicates == "in all text")
        sources = tuple(
            _measure_source(*each) for each in zip(recipe.sources, samples, encoded, mixed.drops, distinct, strict=True)
        )

    # The speed of the network.
    remote = [sample for sample, selection in zip(samples, selections, strict=True) if selection.is_remote]
    link_bytes = sum(sample.stored_bytes for sample in remote)
    files = sum(sample.fetched_files for sample in samples)
    entry = shard.entries[0] if shard else None
    return Pilot(
        sources=sources,
        token_bytes=entry.files.tokens.bytes / max(1, entry.tokens) if entry else token_size(recipe) * COMPRESSED_SHARE,
        row_bytes=max(0, entry.files.documents.bytes - TABLE_BYTES) / max(1, entry.documents) if entry else ROW_BYTES,
        near_s_per_token=near_s,
        assemble_s=sum(shard.seconds.values()) / max(1, shard.entries[0].tokens) if shard else 0.0,
        link_bytes_per_s=link_bytes / sum(sample.wall_s for sample in remote) if link_bytes else None,
        content_files_per_s=files / sum(sample.fetch_s for sample in samples) if files else None,
        sample_bytes=sum(len(text) for sample in samples for text in sample.texts),
        train_s=train_s,
        seconds=time.perf_counter() - started,
        slow_encoder=slow_encoder,
        kept=_describe_kept(recipe, [[result for _, result in own] for own in encoded]),
    )


def _check_samples_left(recipe: Recipe, samples: list[Sample]) -> None:
    """Refuse a recipe of whose samples nothing is left: there is nothing to measure, and the build would stop."""
    # One source with text is enough to measure; the others are told in the plan.
    if any(sample.texts for sample in samples):
        return
    lines: list[str] = []
    others = False
    for source, sample in zip(recipe.sources, samples, strict=True):
        dropped = sample.tally.dropped
        line = f"source {source.name!r}: no document of its sample is left"
        line += f": {describe_drops(dropped, sample.rows)}" if dropped else ""
        # Malformed records have a remedy of their own, which may be `encoding`.
        malformed = count_malformed(source, dropped)
        others |= not malformed or malformed < dropped.total()
        if malformed:
            line += f"{describe_examples(sample.tally.malformed)}\n{malformed_remedy(source, dropped, sample.rows)}"
        lines.append(line)
    lines += [drop_remedy()] if others else []
    raise SourceError("\n".join(f"{line}." for line in lines))


def _describe_kept(recipe: Recipe, encoded: list[list[EncodeResult]]) -> tuple[str, ...]:
    """Return what the tokenizer rewrites of each source's sample, and what would stop the build."""
    lines: list[str] = []
    for source, results in zip(recipe.sources, encoded, strict=True):
        if (kept := add_up_kept_text(result.kept for result in results)) is not None:
            lines.append(f"{describe_kept(source.name, kept)} (of the sample)")
            try:
                check_unknown(source.name, kept, recipe.tokenizer.max_unknown)
            except TokenizerError as error:
                lines.append(f"the build would stop: {error}")
    return tuple(lines)


def _tokenizer(
    recipe: Recipe, selections: list[Selection], samples: list[Sample], units: list[list[Unit]], folder: Path
) -> TokenizerInfo:
    from pipeline.tokenizer import train

    section = recipe.tokenizer
    if recipe.tokenizer_file is not None:
        return read_encoder_file(recipe.tokenizer_file, eos_token=section.eos_token, bos=section.bos)
    assert section.vocab_size is not None  # the recipe's checks guarantee it

    # Every second document of a sample; all of it if it is all the text, as in a build.
    given = section.sample_weights or {source.name: source.weight for source in recipe.sources}
    sources: list[SourceRecipe] = []
    spans: list[tuple[Span, ...]] = []
    for selection, sample, own in zip(selections, samples, units, strict=True):
        if own:
            clean = selection.source.clean.without_filters()
            sources.append(selection.source.model_copy(update={"clean": clean}))
            used = own if _is_all(selection, sample) else own[:1]
            spans.append(tuple(span for unit in used for span in unit.spans))
    weights = tuple(given[source.name] for source in sources)
    task = TokenizerTask(section, tuple(sources), tuple(spans), weights, recipe.seed, recipe.sample_limits())
    path = folder / "sample.bin"
    draw_sample(path, task, lambda done, tokens: None)

    # The merges, by whatever learns them faster from so little text.
    quick = section.pretokenizer == "gpt2" and path.stat().st_size < _QUICK_TRAINING_BYTES
    learn = train.train_with_tokenizers if quick else train.train_merges
    merges = learn(path, section.vocab_size, section.special_tokens, section.pretokenizer)
    text = train.build_tokenizer_json(merges, section, path)
    path = folder / "tokenizer.json"
    path.write_text(text, "utf-8")
    return read_encoder_file(path, eos_token=section.eos_token, bos=section.bos)


def _is_all(selection: Selection, sample: Sample) -> bool:
    """Say whether the sample holds all the text of a source."""
    # All of it was read, and all that was read was kept.
    whole = not selection.has_more and sample.stated_bytes >= _ALL * selection.text_bytes
    return whole and sum(map(len, sample.texts)) >= _ALL * sample.text_bytes


def _measure_source(
    source: SourceRecipe,
    sample: Sample,
    encoded: list[tuple[Run, EncodeResult]],
    mixed: SourceDrops,
    distinct: Distinct,
) -> SourcePilot:
    """Return the ratios of one source, by what its sample became."""
    stated, rows, dropped = sample.stated_bytes or 1.0, max(1, sample.rows), sample.tally.dropped
    tokens, text_bytes = (sum(getattr(own, name) for _, own in encoded) for name in ("tokens", "text_bytes"))
    lengths = [run.read_documents(0, run.num_documents)["length"] for run, _ in encoded]

    # The time of the steps that grow with the text, in the second half.
    timed = encoded[-1][1] if encoded else None
    encode_s = sum(s for step, s in timed.seconds.items() if step not in _NOT_ENCODING) if timed else 0.0

    # What the mix leaves; its copies are counted in more text than the sample, as `distinct`.
    copies = mixed.step(DUPLICATE).first
    in_mix = {reason: count for reason, count in mixed.dropped().items() if step_of(reason) != DUPLICATE}
    kept = sample.documents / rows
    shares = {reason: count / rows for reason, count in dropped.items()}
    shares |= {reason: count / max(1, mixed.read.documents) * kept for reason, count in in_mix.items()}
    measured = max(1, mixed.read.documents - copies.documents), max(1, mixed.read.tokens - copies.tokens)

    # Files of the archive are fetched for rows that name them, for the whole source as for the sample.
    files = len(sample.keys) / stated
    return SourcePilot(
        text=sample.text_bytes / stated,
        documents=sample.documents / stated,
        kept=kept,
        dropped=shares,
        bytes_per_token=text_bytes / tokens if encoded else 1.0,
        longest_tokens=max((int(own.max()) for own in lengths), default=0),
        read_cpu_s=sample.cpu_s / stated,
        encode_s=encode_s / timed.text_bytes if timed else 0.0,
        content_files=files,
        content_bytes=files * sample.fetched_bytes / max(1, sample.fetched_files),
        distinct=distinct,
        left_tokens=mixed.left.tokens / measured[1] if encoded else 1.0,
        left_documents=mixed.left.documents / measured[0] if encoded else 1.0,
        malformed=sample.tally.malformed,
        undivided=sample.tally.undivided,
        drops=mixed.after(sample.tally.drops),
    )
