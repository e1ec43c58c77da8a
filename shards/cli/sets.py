"""Print a set: its tables, one document, the verdict of `validate`, the list of problems.

Every name and text goes through `display.printable`: a document cannot control the terminal.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from shards.cli.mix_table import carried_rows, mix_rows, mix_warnings, phase_rows
from shards.errors import Problem
from shards.terminal.arguments import print_json
from shards.terminal.display import plain_table, plural, print_lines, print_rows, printable, stdout_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shards.format.reader import Shard, ShardSet
    from shards.validation.validate import ValidationResult


def describe_set(shard_set: ShardSet) -> dict[str, Any]:
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
        "carried": carried_rows(manifest),
        "warnings": mix_warnings(manifest),
        "shards": [
            {
                "name": shard.name,
                "split": shard.entry.split,
                "phase": shard.entry.phase,
                "tokens": shard.num_tokens,
                "documents": shard.num_documents,
                "bytes": sum(file.bytes for file in _files(shard)),
                "compression_ratio": compression_ratio(shard),
            }
            for shard in shard_set.shards
        ],
    }


def compression_ratio(shard: Shard) -> float:
    """Return the plain tokens' bytes for each byte of the compressed tokens file."""
    return shard.num_tokens * shard.dtype.itemsize / max(1, shard.entry.files.tokens.bytes)


def print_set(shard_set: ShardSet) -> None:
    """Print the set's tables: splits, sources with what was asked for and got, shards."""
    from rich.text import Text

    manifest = shard_set.manifest
    bos = "" if manifest.tokenizer.bos_id is None else f"BOS {manifest.tokenizer.bos_id}, "
    head = (
        f"{printable(manifest.name)}: {len(manifest.shards)} shards, {manifest.dtype}, vocabulary of "
        f"{manifest.vocab_size:,}, {bos}EOS {manifest.tokenizer.eos_id}, manifest {shard_set.manifest_sha256[:12]}"
    )
    splits = plain_table("split", "tokens", "documents", "shards")
    for name, split in manifest.splits.items():
        splits.add_row(name, f"{split.tokens:,}", f"{split.documents:,}", str(len(shard_set.splits[name])))
    phase = ["phase"] if manifest.phases else []
    shards = plain_table("shard", *phase, "tokens", "documents", "bytes", "ratio")
    for shard in shard_set.shards:
        size = sum(file.bytes for file in _files(shard))
        ratio = f"{compression_ratio(shard):.2f}"
        own = [shard.entry.phase or ""] if phase else []
        shards.add_row(shard.name, *own, f"{shard.num_tokens:,}", f"{shard.num_documents:,}", f"{size:,}", ratio)
    console = stdout_console()
    console.print(Text(head))
    console.print(splits)
    print_rows(mix_rows(manifest))
    print_rows(phase_rows(manifest))
    print_rows(carried_rows(manifest))
    console.print(shards)
    print_lines([f"look: {warning}" for warning in mix_warnings(manifest)])


def print_document(document: dict[str, Any]) -> None:
    """Print a document's text under a line with its origin."""
    about = (
        f"{document['shard']} document {document['document']}: {document['tokens']} tokens from {document['start']}, "
        f"source {document['source']}, unit {document['unit']}, row {document['row']}, hash {document['hash']}"
    )
    print(f"# {printable(about)}")
    for name, value in document.get("carried", {}).items():
        print(printable(f"# {name}: {json.dumps(value, ensure_ascii=False)}"))
    print(printable(document["text"], keep="\n\t"))


def print_report(report: ValidationResult) -> None:
    """Print the problems as a table, then one line that sums up."""
    print_problems(report.problems)
    for reason in report.not_run:
        print(f"could not run: {printable(reason)}")
    number = len(report.problems)
    verdict = "whole" if report.ok else plural(number, "problem")
    if report.not_run and not report.problems:
        verdict = "no problem found, but not everything could be checked"
    speed = f", {report.tokens / report.seconds / 1e6:.0f} M tokens/s" if report.level == "full" else ""
    compared = (
        f", {report.compared_documents} documents compared with their sources" if report.compared_documents else ""
    )
    print(
        f"{printable(str(report.path))}: {verdict} ({report.level}: {report.shards} shards, {report.tokens:,} tokens, "
        f"{report.documents:,} documents{compared}, {report.seconds:.2f} s{speed})"
    )


def print_problems(problems: Sequence[Problem]) -> None:
    """Print a table of problems; plain lines if stdout is not a terminal."""
    if not problems:
        return
    if not sys.stdout.isatty():
        for problem in problems:
            print(printable(f"{problem.kind}: {problem.where}: {problem.message}"))
        return
    from rich.text import Text

    table = plain_table("kind", "where", "what is wrong", right=False)
    for problem in problems:
        table.add_row(problem.kind, Text(printable(problem.where)), Text(printable(problem.message)))
    stdout_console().print(table)


def print_set_problems(problems: Sequence[Problem], *, as_json: bool) -> None:
    """Print why a set cannot be used, as JSON or as a table."""
    if as_json:
        print_json({"problems": [problem.to_dict() for problem in problems]})
    else:
        print_problems(problems)


def _files(shard: Shard) -> tuple[Any, ...]:
    return (shard.entry.files.tokens, shard.entry.files.documents, shard.entry.files.metadata)
