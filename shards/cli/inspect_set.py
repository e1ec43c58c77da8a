"""Print a set's tables, or one document and its origin.

With --json, text is exact; without it, control characters are escaped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shards.cli.mix_table import mix_rows, mix_warnings, phase_rows
from shards.errors import InputError, plural
from shards.terminal.arguments import add_set, whole_number
from shards.terminal.display import Table, printable
from shards.terminal.program import Outcome, Shown

if TYPE_CHECKING:
    from shards.format.reader import Shard, ShardSet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `inspect`."""
    add_set(parser)
    parser.add_argument("--shard", metavar="K", help="a shard's name, or its index in the manifest, from 0")
    parser.add_argument("--document", type=whole_number, metavar="J", help="index of a document in that shard, from 0")


def run(options: argparse.Namespace) -> Outcome:
    """Return the tables, or the document."""
    from shards.format.document_table import read_bytes
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
    stop = place.start + place.tokens - 1  # without EOS
    text = read_bytes(shard, place.start, stop, vocabulary=shard_set.vocabulary)
    document = {**place.to_dict(), "text": text.decode("utf-8", "surrogateescape")}
    return Outcome(document, _show_document(document))


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


def _describe_set(shard_set: ShardSet, shards: Table) -> dict[str, Any]:
    """Return the manifest's numbers, with sizes and ratios."""
    manifest = shard_set.manifest
    own: dict[str, Any] = manifest.model_dump(
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


def _describe_shard(shard: Shard) -> dict[str, Any]:
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
    """Yield the tables of a set: splits, sources with what was asked for and got, phases, shards."""
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


def _show_document(document: dict[str, Any]) -> Iterator[str]:
    """Yield lines with the origin of a document, and print its text with its own lines."""
    yield (
        f"# {document['shard']} document {document['document']}: {plural(document['tokens'], 'token')} from "
        f"{document['start']}, source {document['source']}, unit {document['unit']}, row {document['row']}, hash "
        f"{document['hash']}"
    )
    print(printable(document["text"], keep="\n\t"))
