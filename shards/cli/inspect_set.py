"""Print a set's tables, or one document and its origin.

With --json, text is exact; without it, control characters are escaped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from shards.errors import InputError, plural
from shards.terminal.arguments import add_set, whole_number
from shards.terminal.display import JsonObject, Table, printable
from shards.terminal.program import Outcome, Shown

if TYPE_CHECKING:
    from shards.format.manifest import Manifest, MixEntry, SourceCounts, SourceEntry
    from shards.format.reader import ShardSet
    from shards.format.shard import Shard


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `inspect`."""
    add_set(parser)
    parser.add_argument("--shard", metavar="K", help="a shard's name, or its index in the manifest, from 0")
    parser.add_argument("--document", type=whole_number, metavar="J", help="index of a document in that shard, from 0")


def run(options: argparse.Namespace) -> Outcome:
    """Return the set's tables that `inspect` prints, or the document."""
    import numpy as np

    from shards.format.chat import find_targets
    from shards.format.reader import open_set
    from shards.trace.locate import find_places

    if (options.shard is None) != (options.document is None):
        raise InputError("--shard and --document go together. Give both, or neither.")
    shard_set = open_set(options.set)
    if options.shard is None:
        shards = [_describe_shard(shard) for shard in shard_set.shards]
        return Outcome(_describe_set(shard_set, shards), _show_set(shard_set, shards))
    shard, number = find_shard(shard_set, options.shard), options.document
    if number >= shard.num_documents:
        raise InputError(f"no document {number} in {shard.name}; it has {shard.num_documents}, counted from 0.")
    (place,) = find_places(shard, [number])
    tokens, vocabulary = shard.read(place.start, place.start + place.tokens), shard_set.vocabulary
    text = vocabulary.decode_document(tokens[:-1]).decode("utf-8", "surrogateescape")
    document, parts = {**place.to_dict(), "text": text}, [(text, False)]
    if shard_set.manifest.chat is not None:
        parts.clear()
        targets = find_targets(shard_set.manifest, tokens, np.array([0, len(tokens)]))
        document["targets"] = int(targets.sum())
        for is_target, run in groupby(zip(tokens.tolist(), targets.tolist(), strict=True), itemgetter(1)):
            parts.append((vocabulary.decode([token for token, _ in run]).decode("utf-8", "replace"), is_target))
    return Outcome(document, _show_document(document, parts))


def find_shard(shard_set: ShardSet, name: str) -> Shard:
    """Find the shard that `--shard` of `inspect` and `trace` gives, by name or by place in the manifest.

    Raises:
        InputError: there is no such shard.
    """
    if name.isascii() and name.isdigit():
        index = int(name)
        if index < len(shard_set.shards):
            return shard_set.shards[index]
        raise InputError(f"no shard {index}; the set has {len(shard_set.shards)}, counted from 0.")
    try:
        return shard_set.shard(name)
    except KeyError as error:
        raise InputError(error.args[0]) from error


def _describe_set(shard_set: ShardSet, shards: Table) -> JsonObject:
    """Return the manifest's numbers for `inspect`, with sizes and ratios."""
    manifest = shard_set.manifest
    own: JsonObject = manifest.model_dump(
        include={"name", "dtype", "vocab_size", "tokenizer", "splits", "sources", "mix", "phases"}
    )
    return {
        "path": str(shard_set.store),
        "manifest_sha256": shard_set.manifest_sha256,
        "phases": [],  # unless the manifest has some
        **own,
        "warnings": mix_warnings(manifest),
        "shards": shards,
    }


def _describe_shard(shard: Shard) -> JsonObject:
    files = shard.entry.files
    return {
        "name": shard.name,
        "split": shard.entry.split,
        "phase": shard.entry.phase,
        "tokens": shard.num_tokens,
        "documents": shard.num_documents,
        "bytes": sum(file.bytes for file in files.entries),
        # How many bytes the plain tokens have for each byte of their compressed file.
        "compression_ratio": shard.num_tokens * shard.dtype.itemsize / max(1, files.tokens.bytes),
    }


def _show_set(shard_set: ShardSet, shards: Table) -> Shown:
    """Yield the tables that `inspect` prints: splits, sources with what was asked for and got, phases, shards."""
    manifest = shard_set.manifest
    bos = "" if manifest.tokenizer.bos_id is None else f"BOS {manifest.tokenizer.bos_id}, "
    yield (
        f"{manifest.name}: {plural(len(manifest.shards), 'shard')}, {manifest.dtype}, vocabulary of "
        f"{manifest.vocab_size:,}, {bos}EOS {manifest.tokenizer.eos_id}, manifest {shard_set.manifest_sha256[:12]}"
    )
    yield [
        {
            "split": name,
            "tokens": split.tokens,
            "documents": split.documents,
            "shards": len(shard_set.splits[name]),
        }
        for name, split in manifest.splits.items()
    ]
    yield mix_rows(manifest)
    yield phase_rows(manifest)
    yield [
        {
            "shard": shard["name"],
            **({"phase": shard["phase"] or ""} if manifest.phases else {}),
            **{name: shard[name] for name in ("tokens", "documents", "bytes")},
            "ratio": f"{shard['compression_ratio']:.2f}",
        }
        for shard in shards
    ]
    yield from (f"warning: {warning}" for warning in mix_warnings(manifest))


def _show_document(document: JsonObject, parts: list[tuple[str, bool]]) -> Iterator[str]:
    """Yield for `inspect` lines with the origin of a document, and print its text, in parts, with its own lines.

    Targets of a set with conversations have a colour on a terminal.
    """
    yield (
        f"# {document['shard']} document {document['document']}: {plural(document['tokens'], 'token')} from "
        f"{document['start']}, source {document['source']}, unit {document['unit']}, row {document['row']}, hash "
        f"{document['hash']}"
    )
    has_colour = "NO_COLOR" not in os.environ and (sys.stdout.isatty() or "FORCE_COLOR" in os.environ)
    shown = ((printable(part, keep="\n\t"), has_colour and is_target) for part, is_target in parts)
    print("".join([f"\x1b[32m{part}\x1b[0m" if coloured else part for part, coloured in shown]))


SHOWN_DEVIATION = 0.01
"""A source further than this from its share of the training tokens is pointed out, though it is within a document."""
VALIDATION_DEVIATION = 0.1
"""A source is pointed out if validation holds this part more or less of it than its share."""
VALIDATION_PART = 0.05
"""A source is pointed out if validation takes more than this part of its tokens."""


def mix_rows(manifest: Manifest) -> Table:
    """Return the table of the mix for `inspect`: shares, tokens of both splits, the way of each source's documents."""
    # Sources that were read in part have two columns more.
    partly = any(source.unread_files or source.unread_bytes for source in manifest.sources)
    rows: Table = []
    for source, mix, val, asked in _compare_sources(manifest):
        train = manifest.count("train", source.name)
        dropped = sum(source.dropped.values())
        row: JsonObject = {
            "source": source.name,
            "requested": f"{mix.requested:.4%}",
            "achieved": f"{mix.achieved:.4%}",
            "train_tokens": train.tokens,
            "val_tokens": val.tokens,
            "val_deviation": f"{round(val.tokens / asked - 1, 3) + 0.0:+.1%}" if asked else None,
            "documents_read": source.documents_available + dropped,
            "dropped": dropped,
            # Documents that were left after drops and are in no split; a source that is repeated is used whole.
            "unused": source.documents_available - train.documents - val.documents if source.epochs == 1 else 0,
            "epochs": source.epochs,
        }
        if partly:
            row |= {"unread_files": source.unread_files, "unread_bytes": source.unread_bytes}
        rows.append(row)
    return rows


def phase_rows(manifest: Manifest) -> Table:
    """Return the table of the phases for `inspect`: a row for each phase and source."""
    shards = Counter(shard.phase for shard in manifest.shards)
    return [
        {
            "phase": phase.name,
            "part": f"{phase.share:.4%}",
            "shards": shards[phase.name],
            "source": row.source,
            "requested": f"{row.requested:.4%}",
            "achieved": f"{row.achieved:.4%}",
            "tokens": row.achieved_tokens,
        }
        for phase in manifest.phases
        for row in phase.mix
    ]


def mix_warnings(manifest: Manifest) -> list[str]:
    """Return warnings about the mix that `inspect` prints, at which to look before training on the set, a line each."""
    lines: list[str] = []
    largely: list[str] = []
    deviating: list[str] = []
    for source, mix, val, asked in _compare_sources(manifest):
        if abs(mix.achieved - mix.requested) > SHOWN_DEVIATION:
            lines.append(
                f"{source.name} has {mix.achieved:.2%} of the training tokens, not {mix.requested:.2%}: its documents, "
                "or those of another source, are long for a set this small"
            )
        # Without validation there is nothing more to compare.
        if not asked or source.name not in manifest.splits["val"].sources:
            continue
        if val.tokens > VALIDATION_PART * source.tokens_available:
            documents = f"{val.documents:,} of {plural(source.documents_available, 'document')}"
            largely.append(f"{val.tokens / source.tokens_available:.1%} of {source.name} ({documents})")
        elif abs(val.tokens - asked) > VALIDATION_DEVIATION * asked:
            deviating.append(source.name)
    if largely:
        lines.append(
            f"validation takes {', '.join(largely)}, more than {VALIDATION_PART:.0%}: less is left to train on. Split "
            "long files by a separator, add data, or lower split.val_tokens (0: none)"
        )
    if deviating:
        lines.append(
            f"validation deviates from the mix by over {VALIDATION_DEVIATION:.0%} for {', '.join(deviating)}, because "
            "it holds whole documents. With a larger split.val_tokens it deviates less"
        )
    return lines


def _compare_sources(manifest: Manifest) -> Iterator[tuple[SourceEntry, MixEntry, SourceCounts, float]]:
    """Yield for `inspect` each source with its share, its part of validation, and the tokens asked for there.

    A refused manifest may lack a source or a share.
    """
    shares = {entry.source: entry for entry in manifest.mix}
    asked = manifest.splits["val"].requested_tokens if "val" in manifest.splits else 0
    for source in manifest.sources:
        if mix := shares.get(source.name):
            yield source, mix, manifest.count("val", source.name), mix.requested * asked
