"""The result of `build`: tables on stdout, and the same as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.terminal.display import plain_table, printable, stdout_console

if TYPE_CHECKING:
    from pipeline.build.build import BuildResult

_SHOWN_DEVIATION = 0.01
"""A share further than this from the one requested is pointed out: within a document, and yet worth a look."""


def build_json(report: BuildResult, out: Path, work: Path) -> dict[str, Any]:
    """Return a build's result as JSON values."""
    manifest = report.manifest
    return {
        "out": str(out),
        "work": str(work),
        "seconds": report.seconds,
        "tasks_run": report.tasks_run,
        "ran": {name: stage.ran for name, stage in report.stages.items()},
        "notes": list(report.notes),
        "mix": [entry.model_dump() for entry in manifest.mix],
        "sources": [entry.model_dump() for entry in manifest.sources],
        "drop_hashes": [entry.model_dump() for entry in manifest.drop_hashes],
        "unread": {name: asdict(unread) for name, unread in report.unread.items()},
        "splits": {name: entry.model_dump() for name, entry in manifest.splits.items()},
        "shards": len(manifest.shards),
        "problems": [problem.to_dict() for problem in report.validation.problems],
    }


def print_build(report: BuildResult, out: Path, work: Path) -> None:
    """Print the achieved mix beside the requested one, what was dropped, and where things are."""
    console = stdout_console()
    manifest = report.manifest
    columns = (
        "source",
        "requested",
        "achieved",
        "train tokens",
        "val tokens",
        "documents read",
        "unread MB",
        "dropped",
        "epochs",
    )
    table = plain_table(*columns)
    val = manifest.splits["val"].sources if "val" in manifest.splits else {}
    for source, entry in zip(manifest.sources, manifest.mix, strict=True):
        train = manifest.splits["train"].sources[source.name]
        table.add_row(
            source.name,
            f"{100 * entry.requested:.4f} %",
            f"{100 * entry.achieved:.4f} %",
            f"{train.tokens:,}",
            f"{val[source.name].tokens:,}" if source.name in val else "0",
            f"{source.documents_available:,}",
            f"{source.unread_bytes / 1e6:,.1f}" if source.unread_bytes else "0",
            f"{sum(source.dropped.values()):,}",
            str(source.epochs),
        )
    console.print(f"{manifest.name}: the mix")
    console.print(table)
    for entry in manifest.mix:
        if abs(entry.achieved - entry.requested) > _SHOWN_DEVIATION:
            console.print(
                f"look: {entry.source} has {entry.achieved:.2%} of the tokens, not {entry.requested:.2%}: "
                "its documents, or another source's, are long for a set this small"
            )
    for source in manifest.sources:
        for reason, count in source.dropped.items():
            console.print(printable(f"dropped from {source.name}: {count:,} ({reason})"))
    for entry in manifest.drop_hashes:
        found = f"{entry.found:,} of {entry.hashes:,} hashes found, {entry.documents:,} documents dropped"
        console.print(printable(f"block list {entry.file}: {found}"), soft_wrap=True)
    for name, unread in report.unread.items():
        if unread.bytes:
            console.print(printable(f"not read of {name}: {unread}"), soft_wrap=True)
    tokens = sum(split.tokens for split in manifest.splits.values())
    size = sum(shard.files.tokens.bytes + shard.files.documents.bytes for shard in manifest.shards)
    text_bytes = sum(result["text_bytes"] for result in report.stages["encode"].results)
    lines = [
        f"{len(manifest.shards)} shards, {tokens:,} tokens, {size / 1e6:.1f} MB in {out}",
        f"{report.tasks_run} tasks run in {report.seconds:.1f} s"
        + (f": {text_bytes / 1e6 / report.seconds:.0f} MB of text a second" if report.tasks_run else ", nothing to do"),
        f"work folder (keep it for cheap re-runs): {work}",
    ]
    problems = report.validation.problems
    lines += [f"problem: {problem}" for problem in problems] or ["validated: no problems"]
    for line in lines:
        console.print(line, soft_wrap=True)
