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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_texts
from pipeline.clean.drops.malformed import Examples, count_malformed, describe_examples, malformed_remedy
from pipeline.clean.drops.table import DUPLICATE, SourceDrops, step_of
from pipeline.clean.evaluations import items
from pipeline.clean.steps import clean_batch, describe_drops, drop_remedy
from pipeline.clean.tally import Tally
from pipeline.encode.run import END_HASH, FIRST_HASH, Run, RunList, token_dtype
from pipeline.engine.checksums import checksum_file
from pipeline.engine.receipts import Result, write_receipt
from pipeline.estimate.carried_bytes import CarriedBytes, measure_carried
from pipeline.estimate.duplicates import Distinct, find_distinct, read_earlier
from pipeline.estimate.pilot_cleaning import mix_pilot, share_left
from pipeline.estimate.pilot_pieces import Extract, read_pilot_pieces
from pipeline.mix.fates import Fates, write_fates
from pipeline.mix.mix_plan import ShardPlan, Slice
from pipeline.recipe.schema import Recipe, SourceRecipe
from pipeline.recipe.shares import Demand, Shares
from pipeline.sources.base import SourceError, Span, TextBatch, Unit
from pipeline.sources.selection import Selection
from pipeline.sources.software_heritage.fetched_documents import FORMAT, write_documents
from pipeline.sources.undivided import Undivided
from pipeline.tokenizer.encoder import TokenizerInfo, load_encoder, read_encoder_file
from pipeline.tokenizer.given_tokenizer import TokenizerError
from pipeline.tokenizer.kept_text import add_up_kept_text, check_unknown, describe_kept
from pipeline.tokenizer.sample import DOCUMENT_SEPARATOR
from shards.stores.store import FolderStore

if TYPE_CHECKING:
    from pipeline.assemble.assemble import AssembleResult
    from pipeline.encode.encode import EncodeResult

SAMPLE_BYTES = 24 << 20
LEAST_SOURCE_BYTES = 4 << 20
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
    """Ratios measured on one source. A stated byte is a byte of text as the spans state it."""

    text: float
    """Bytes of the documents kept, for each stated byte."""
    documents: float
    """Documents kept, for each stated byte."""
    kept: float | None
    """Documents kept, for each row; None if nothing was read."""
    dropped: dict[str, float]
    """Rows dropped by reason, for each row."""
    bytes_per_token: float
    """Text per token of the documents kept; EOS counts as a token."""
    longest_tokens: int
    """Tokens of the longest document."""
    read_cpu_s: float
    """Seconds of one core to read a stated byte."""
    encode_s: float
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
    malformed: Examples = field(default_factory=Examples)
    """Some of the malformed records."""
    undivided: Undivided = field(default_factory=Undivided)
    """Text files in which the separator never occurs."""
    drops: SourceDrops = field(default_factory=SourceDrops)
    """The documents of the sample that each step drops."""
    carried: CarriedBytes = field(default_factory=CarriedBytes)
    """Of a document."""

    def with_mix(self, mixed: SourceDrops) -> SourcePilot:
        """Return the ratios, with the results for the source of a mix of all samples."""
        read = max(1, mixed.read.documents)
        dropped = {reason: count for reason, count in mixed.dropped().items() if step_of(reason) != DUPLICATE}
        left_tokens, left_documents = share_left(mixed)
        return replace(
            self,
            drops=mixed.after(self.drops),
            dropped=self.dropped | {reason: count / read * (self.kept or 0.0) for reason, count in dropped.items()},
            left_tokens=left_tokens,
            left_documents=left_documents,
        )


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
    slow_trainer: str = ""
    """A note for a tokenizer that `tokenizers` trains; empty if something faster trains it."""
    kept: tuple[str, ...] = ()
    """How much of each source's sample the tokenizer rewrites; empty if it keeps every byte."""


def measure_pilot(
    recipe: Recipe,
    selections: list[Selection],
    *,
    duplicates: Literal["cheaply", "in all text"] = "cheaply",
    earlier: Path | None = None,
) -> Pilot:
    """Read, train, encode and compress a sample of every source.

    Args:
        recipe: the recipe.
        selections: the parts of the sources that the build would read.
        duplicates: search for duplicates only if it is cheap, or in all text that the build would read.
        earlier: folder of a set; if it was built from the same sources, its manifest gives the duplicates.

    Raises:
        SourceError: a part cannot be read as the recipe says.
        TokenizerError: the recipe's tokenizer file cannot be used.
    """
    # Read parts of each source.
    started = time.perf_counter()
    wanted = [max(LEAST_SOURCE_BYTES, int(SAMPLE_BYTES * share)) for share in Demand(recipe).shares.fractions]
    samples = [read_pilot_pieces(*arguments) for arguments in zip(selections, wanted, strict=True)]

    _check_samples_left(recipe, samples)

    # Train, encode and assemble, as a build does.
    with tempfile.TemporaryDirectory(prefix="tokenmill-plan-") as name:
        folder = Path(name)
        training = time.perf_counter()
        tokenizer = _tokenizer(recipe, selections, samples, folder)
        train_s = time.perf_counter() - training
        evaluations = _read_evaluations(recipe, folder / "evaluations")
        measured = [
            _measure_source(recipe, index, sample, tokenizer, evaluations, folder)
            for index, sample in enumerate(samples)
        ]
        runs = [run for _, own in measured for run in own]
        mixed, near_s = mix_pilot(recipe, runs, tokenizer.vocab_size, evaluations, folder / "mixed")
        shard = _assemble(recipe, runs, tokenizer, folder / "mix")
        slow_encoder = load_encoder(tokenizer.path, tokenizer.sha256).slow_because  # while the trained file is there
        kept = _describe_kept(recipe, runs)
        own_runs = [own for _, own in measured]
        distinct = find_distinct(selections, own_runs, read_everything=duplicates == "in all text")

    # An earlier build knows more of duplicates than a sample does.
    built = read_earlier(earlier, recipe) if earlier else None
    if built is not None:
        distinct = [old if new.basis == "sample" else new for new, old in zip(distinct, built, strict=True)]

    # The speed of the network.
    remote = [sample for sample, selection in zip(samples, selections, strict=True) if selection.is_remote]
    link_bytes = sum(piece.stored_bytes for sample in remote for piece in sample.pieces)
    speeds = [sample.content for sample in samples if sample.content is not None]
    files = sum(speed.files for speed in speeds)
    (entry,) = shard.entries
    return Pilot(
        sources=tuple(
            replace(source.with_mix(found), distinct=own)
            for (source, _), found, own in zip(measured, mixed, distinct, strict=True)
        ),
        token_bytes=entry.files.tokens.bytes / max(1, entry.tokens),
        row_bytes=max(0, entry.files.documents.bytes - TABLE_BYTES) / max(1, entry.documents),
        near_s_per_token=near_s,
        assemble_s=sum(shard.seconds.values()) / max(1, entry.tokens),
        link_bytes_per_s=link_bytes / sum(sample.wall_s for sample in remote) if link_bytes else None,
        content_files_per_s=files / sum(speed.seconds for speed in speeds) if files else None,
        sample_bytes=sum(len(text) for sample in samples for text in sample.texts),
        train_s=train_s,
        seconds=time.perf_counter() - started,
        slow_encoder=slow_encoder,
        slow_trainer=_describe_slow_trainer(recipe),
        kept=kept,
    )


def _check_samples_left(recipe: Recipe, samples: list[Extract]) -> None:
    """Refuse a recipe of whose samples nothing is left: there is nothing to measure, and the build would stop."""
    # One source with text is enough to measure; the others are told in the plan.
    if any(sample.texts for sample in samples):
        return
    lines: list[str] = []
    reasons: set[str] = set()
    others = False
    for source, sample in zip(recipe.sources, samples, strict=True):
        tally = Tally.sum(piece.tally for piece in sample.pieces)
        dropped, examples = tally.dropped, tally.malformed
        reasons.update(dropped)
        records = sum(piece.rows for piece in sample.pieces)
        line = f"source {source.name!r}: no document of its sample is left"
        line += f": {describe_drops(dropped, records)}" if dropped else ""
        # Malformed records have a remedy of their own, which knows their encoding.
        malformed = count_malformed(source, dropped)
        others |= not malformed or malformed < dropped.total()
        if malformed:
            line += f"{describe_examples(examples)}\n{malformed_remedy(source, malformed / records, examples)}"
        lines.append(line)
    lines += [drop_remedy(reasons)] if others else []
    raise SourceError("\n".join(f"{line}." for line in lines))


def _describe_kept(recipe: Recipe, runs: list[Run]) -> tuple[str, ...]:
    """Return what the tokenizer rewrites of each source's sample, and what would stop the build."""
    lines: list[str] = []
    for index, source in enumerate(recipe.sources):
        results = (cast("EncodeResult", run.result) for run in runs if run.source == index)
        if (kept := add_up_kept_text(result.kept for result in results)) is not None:
            lines.append(f"{describe_kept(source.name, kept)} (of the sample)")
            try:
                check_unknown(source.name, kept, recipe.tokenizer.max_unknown)
            except TokenizerError as error:
                lines.append(f"the build would stop: {error}")
    return tuple(lines)


def _tokenizer(recipe: Recipe, selections: list[Selection], samples: list[Extract], folder: Path) -> TokenizerInfo:
    from pipeline.tokenizer import train

    section = recipe.tokenizer
    if recipe.tokenizer_file is not None:
        return read_encoder_file(recipe.tokenizer_file, eos_token=section.eos_token, bos=section.bos)
    assert section.vocab_size is not None  # the recipe's checks guarantee it
    # Every second document of a sample; all of it if it is all the text, as in a build.
    weights = section.sample_weights or {source.name: source.weight for source in recipe.sources}
    shares = Shares(tuple(weights[source.name] for source in recipe.sources)).fractions
    texts = [
        _clean_sample(recipe, selection.source, sample.texts if _is_all(selection, sample) else sample.texts[::2])
        for selection, sample in zip(selections, samples, strict=True)
    ]
    # As much of each source as the scarcest one allows at these shares.
    most = min([sum(map(len, own)) / share for own, share in zip(texts, shares, strict=True) if own], default=0)
    path = folder / "sample.bin"
    with path.open("wb") as file:
        for own, share in zip(texts, shares, strict=True):
            budget = min(most, section.sample_bytes) * share
            for text in own:
                if budget <= 0:
                    break
                file.write(text)
                file.write(DOCUMENT_SEPARATOR)
                budget -= len(text)
    # The merges, by whatever learns them faster from so little text.
    quick = section.pretokenizer == "gpt2" and path.stat().st_size < _QUICK_TRAINING_BYTES
    learn = train.train_merges_slowly if quick else train.train_merges
    merges = learn(path, section.vocab_size, section.special_tokens, section.pretokenizer)
    text = train.build_tokenizer_json(merges, section, path)
    path = folder / "tokenizer.json"
    path.write_text(text, "utf-8")
    return read_encoder_file(path, eos_token=section.eos_token, bos=section.bos)


def _describe_slow_trainer(recipe: Recipe) -> str:
    from pipeline.tokenizer.train import describe_slow_trainer, find_trainer

    name = recipe.tokenizer.pretokenizer
    return "" if recipe.tokenizer_file or find_trainer(name) != "tokenizers" else describe_slow_trainer(name)


def _clean_sample(recipe: Recipe, source: SourceRecipe, texts: list[bytes]) -> list[bytes]:
    """Return the documents that the build's own sample is drawn from."""
    limits = recipe.sample_limits().get(source.name)
    if limits is None:
        return texts
    sampled = source.model_copy(update={"clean": source.clean.for_sample(limits)})
    batch = TextBatch(wrap_texts(pa.large_binary(), texts), np.arange(len(texts), dtype=np.uint32))
    return [bytes(text) for text in clean_batch(sampled, batch, Tally())]


def _is_all(selection: Selection, sample: Extract) -> bool:
    """Say whether the sample holds all the text of a source."""
    # All of it was read, and all that was read was kept.
    stated, kept = (sum(sizes) for sizes in zip(*((p.stated_bytes, p.text_bytes) for p in sample.pieces), strict=True))
    whole = not selection.has_more and stated >= _ALL * selection.text_bytes
    return whole and sum(map(len, sample.texts)) >= _ALL * kept


def _read_evaluations(recipe: Recipe, folder: Path) -> str | None:
    """Read the items of the recipe's evaluation sets, if it names any; return the address of their folder."""
    if not recipe.evaluations:
        return None
    folder.mkdir()
    write_receipt(folder, items.read_items(folder, items.make_items_task(recipe), lambda done, tokens: None))
    return str(folder)


def _measure_source(
    recipe: Recipe,
    index: int,
    sample: Extract,
    tokenizer: TokenizerInfo,
    evaluations: str | None,
    folder: Path,
) -> tuple[SourcePilot, list[Run]]:
    pieces, texts = sample.pieces, sample.texts
    # What cleaning before encoding did to the pieces, as shares of what came to it.
    stated = sum(piece.stated_bytes for piece in pieces) or 1.0
    rows = sum(piece.rows for piece in pieces)
    documents = sum(piece.documents for piece in pieces)
    tally = Tally.sum(piece.tally for piece in pieces)
    dropped = {reason: count / rows for reason, count in tally.dropped.items()}
    if not texts:
        ratios = SourcePilot(0.0, 0.0, 0.0, dropped, 1.0, 0, sample.cpu_s / stated, 0.0, drops=tally.drops)
        return replace(ratios, malformed=tally.malformed, undivided=tally.undivided), []
    # Encode in two halves and time only the second: the encoder is slow until it has cached the common words.
    halves = [half for half in (texts[::2], texts[1::2]) if half]
    folders = [folder / f"{index}-{half}" for half in range(len(halves))]
    encoded = [_encode(recipe, index, *half, tokenizer, evaluations) for half in zip(halves, folders, strict=True)]
    text_bytes, tokens = sum(own.text_bytes for _, own in encoded), sum(own.tokens for _, own in encoded)
    timed = encoded[-1][1]
    encode_s = sum(seconds for step, seconds in timed.seconds.items() if step not in _NOT_ENCODING)
    # Files of the archive are fetched for rows that name them, for the whole source as for the sample.
    files = sum(len(piece.keys) for piece in pieces)
    content = sample.content
    measured = SourcePilot(
        text=sum(piece.text_bytes for piece in pieces) / stated,
        documents=documents / stated,
        kept=documents / max(1, rows),
        dropped=dropped,
        bytes_per_token=text_bytes / tokens,
        longest_tokens=max(int(run.read_documents(0, run.num_documents)["length"].max()) for run, _ in encoded),
        read_cpu_s=sample.cpu_s / stated,
        encode_s=encode_s / timed.text_bytes,
        content_files=files / stated,
        content_bytes=files / stated * content.stored_bytes / max(1, content.files) if content else 0.0,
        drops=tally.drops,
        malformed=tally.malformed,
        undivided=tally.undivided,
        carried=measure_carried([table for piece in pieces for table in piece.carried], recipe.sources[index]),
    )
    return measured, [run for run, _ in encoded]


def _encode(
    recipe: Recipe, index: int, texts: list[bytes], folder: Path, tokenizer: TokenizerInfo, evaluations: str | None
) -> tuple[Run, EncodeResult]:
    from pipeline.encode.encode import EncodeTask, encode_unit

    run = folder / f"run-{folder.name}"  # the name of a run's folder stands for it where pairs are looked for
    run.mkdir(parents=True)
    # The texts as the build keeps fetched documents: a file of one row group.
    path = folder / "documents.parquet"
    write_documents(path, enumerate(texts), {})
    write_receipt(folder, Result(files={path.name: checksum_file(path)}))
    size = sum(map(len, texts))
    span = Span(str(path), path.name, "", FORMAT, "rg", 0, 1, size, len(texts), path.stat().st_size)
    dtype = token_dtype(tokenizer.vocab_size)
    source = recipe.sources[index]
    source = source.model_copy(update={"clean": source.clean.without_filters()})  # the texts have passed them
    # The run of a unit, as the encode stage makes it.
    task = EncodeTask(
        Unit(index, (span,)),
        source,
        tokenizer.path,
        tokenizer.sha256,
        tokenizer.eos_id,
        dtype,
        evaluations=evaluations,
        bos_id=tokenizer.bos_id,
    )
    encoded = encode_unit(run, task, lambda done, tokens: None)
    write_receipt(run, encoded)
    return Run(str(run), index, dtype, encoded), encoded


def _assemble(recipe: Recipe, runs: list[Run], tokenizer: TokenizerInfo, folder: Path) -> AssembleResult:
    """Write one shard of the mix: the documents of each source below a hash, in proportion to its weight."""
    from pipeline.assemble.assemble import AssembleTask, assemble_shards
    from shards.format.writer import SetProperties

    folder.mkdir()
    tokens = {run.source: 0 for run in runs}
    for run in runs:
        tokens[run.source] += int(run.read_documents(0, run.num_documents)["length"].sum())
    shares = Demand(recipe).shares.fractions
    # The beginning of each source in hash order, so long that the shares are right.
    weights = {source: float(shares[source]) for source in tokens}
    most = min([tokens[source] / weight for source, weight in weights.items()], default=0.0)
    end = END_HASH[0]  # rounding may give a little more
    cuts = {source: min(end, int(end * (most * weight / tokens[source]))) for source, weight in weights.items()}
    # Nothing is dropped: one partition, in which every document is kept.
    edges = np.array([[0] * len(runs), [run.num_documents for run in runs]], np.uint64)
    kept = np.zeros(int(edges.sum()), np.uint8)
    write_receipt(folder, Result(files=write_fates(folder, Fates(edges, lambda _: kept))))
    listed = RunList(FolderStore(folder), runs)
    listed.write()
    task = AssembleTask(
        (ShardPlan("train", 0, tuple(Slice(source, 0, FIRST_HASH, (cut, 0)) for source, cut in cuts.items())),),
        listed.address,
        str(folder),
        tuple(source.name for source in recipe.sources),
        recipe.seed,
        SetProperties(
            tokenizer.vocab_size,
            tokenizer.eos_id,
            tokenizer.sha256,
            recipe.shards.chosen_compression,
            bos_id=tokenizer.bos_id,
        ),
    )
    return assemble_shards(folder, task, lambda done, tokens: None)
