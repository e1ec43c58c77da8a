"""`python -m shards inspect`: print a set's tables, or one document."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from shards.cli.mix_table import mix_rows, mix_warnings, phase_rows
from shards.errors import InputError, plural
from shards.terminal.arguments import add_set, check_place, whole_number
from shards.terminal.display import plain_table, print_json, print_lines, print_rows, printable, stdout_console
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.format.manifest import Manifest
    from shards.format.reader import Shard, ShardSet
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `inspect`."""
    parser = commands.add_parser(
        "inspect",
        help="print a set's tables, or one document",
        description="Print a set's tables, or one document and its origin.",
    )
    add_set(parser)
    parser.add_argument("--shard", metavar="K", help="a shard's name, or its index in the manifest, from 0")
    parser.add_argument("--document", type=whole_number, metavar="J", help="index of a document in that shard, from 0")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with exact text; without it, control characters are escaped"
    )
    parser.set_defaults(run=_run)


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


def _run(options: argparse.Namespace) -> int:
    from shards.format.reader import open_set

    if (options.shard is None) != (options.document is None):
        raise InputError("--shard and --document go together. Give both, or neither.")
    check_place(options.set)
    shard_set = open_set(options.set)
    if options.shard is None:
        if options.json:
            print_json(_describe_set(shard_set))
        else:
            _print_set(shard_set)
        return WHOLE
    document = _find_document(shard_set, find_shard(shard_set, options.shard), options.document)
    if options.json:
        print_json(document)
    else:
        _print_document(document)
    return WHOLE


def _find_document(shard_set: ShardSet, shard: Shard, number: int) -> dict[str, Any]:
    """Return a document's provenance, and its text: bytes of it that are not UTF-8 are lone surrogates."""
    from shards.cli.problems import value_errors
    from shards.format.document_table import read_bytes
    from shards.trace.locate import find_places

    if not 0 <= number < shard.num_documents:
        raise InputError(f"no document {number} in {shard.name}; it has {shard.num_documents}, counted from 0.")
    with value_errors():
        (place,) = find_places(shard, [number])
        stop = place.start + place.tokens - 1  # without EOS
        text = read_bytes(shard, place.start, stop, vocabulary=shard_set.vocabulary)
    return {**place.to_dict(), "text": text.decode("utf-8", "surrogateescape")}


def _describe_set(shard_set: ShardSet) -> dict[str, Any]:
    """Return what `inspect --json` prints of a set: the manifest's numbers, with sizes and ratios."""
    manifest = shard_set.manifest
    return {
        "path": str(shard_set.store),
        "manifest_sha256": shard_set.manifest_sha256,
        "name": manifest.name,
        "dtype": manifest.dtype,
        "vocab_size": manifest.vocab_size,
        "tokenizer": manifest.tokenizer.model_dump(),
        "splits": {name: split.model_dump() for name, split in manifest.splits.items()},
        "sources": [source.model_dump() for source in manifest.sources],
        "mix": [row.model_dump() for row in manifest.mix],
        "phases": [phase.model_dump() for phase in manifest.phases],
        "carried": _carried_rows(manifest),
        "warnings": mix_warnings(manifest),
        "shards": [
            {
                "name": shard.name,
                "split": shard.entry.split,
                "phase": shard.entry.phase,
                "tokens": shard.num_tokens,
                "documents": shard.num_documents,
                "bytes": sum(file.bytes for file in _files(shard)),
                "compression_ratio": _compression_ratio(shard),
            }
            for shard in shard_set.shards
        ],
    }


def _compression_ratio(shard: Shard) -> float:
    """Return the plain tokens' bytes for each byte of the compressed tokens file."""
    return shard.num_tokens * shard.dtype.itemsize / max(1, shard.entry.files.tokens.bytes)


def _print_set(shard_set: ShardSet) -> None:
    """Print the set's tables: splits, sources with what was asked for and got, shards."""
    manifest = shard_set.manifest
    bos = "" if manifest.tokenizer.bos_id is None else f"BOS {manifest.tokenizer.bos_id}, "
    head = (
        f"{printable(manifest.name)}: {plural(len(manifest.shards), 'shard')}, {manifest.dtype}, vocabulary of "
        f"{manifest.vocab_size:,}, {bos}EOS {manifest.tokenizer.eos_id}, manifest {shard_set.manifest_sha256[:12]}"
    )
    splits = plain_table("split", "tokens", "documents", "shards")
    for name, split in manifest.splits.items():
        splits.add_row(name, f"{split.tokens:,}", f"{split.documents:,}", str(len(shard_set.splits[name])))
    phase = ["phase"] if manifest.phases else []
    shards = plain_table("shard", *phase, "tokens", "documents", "bytes", "ratio")
    for shard in shard_set.shards:
        size = sum(file.bytes for file in _files(shard))
        ratio = f"{_compression_ratio(shard):.2f}"
        own = [shard.entry.phase or ""] if phase else []
        shards.add_row(shard.name, *own, f"{shard.num_tokens:,}", f"{shard.num_documents:,}", f"{size:,}", ratio)
    console = stdout_console()
    print_lines([head])
    console.print(splits)
    print_rows(mix_rows(manifest))
    print_rows(phase_rows(manifest))
    print_rows(_carried_rows(manifest))
    console.print(shards)
    print_lines([f"warning: {warning}" for warning in mix_warnings(manifest)])


def _print_document(document: dict[str, Any]) -> None:
    """Print a document's text under a line with its origin."""
    about = (
        f"{document['shard']} document {document['document']}: {plural(document['tokens'], 'token')} from "
        f"{document['start']}, source {document['source']}, unit {document['unit']}, row {document['row']}, hash "
        f"{document['hash']}"
    )
    print(f"# {printable(about)}")
    for name, value in document.get("carried", {}).items():
        print(printable(f"# {name}: {json.dumps(value, ensure_ascii=False)}"))
    print(printable(document["text"], keep="\n\t"))


def _files(shard: Shard) -> tuple[Any, ...]:
    return (shard.entry.files.tokens, shard.entry.files.documents, shard.entry.files.metadata)


def _carried_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the table of the carried columns."""
    documents = sum(shard.documents for shard in manifest.shards)
    values = {column.name: 0 for column in manifest.carried}
    for shard in manifest.shards:
        for name, count in shard.carried_values.items():
            values[name] = values.get(name, 0) + count
    return [
        {
            "carried": column.name,
            "type": column.type,
            "sources": ", ".join(column.sources),
            "values": values[column.name],
            "null": documents - values[column.name],
        }
        for column in manifest.carried
    ]
