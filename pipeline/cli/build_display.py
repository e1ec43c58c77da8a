"""The result of `build`: tables on stdout, and the same as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipeline.sources.selection import describe_empty
from shards.cli.mix_table import mix_rows, mix_warnings, phase_rows
from shards.errors import plural
from shards.terminal.amounts import format_size
from shards.terminal.display import print_lines, print_rows

if TYPE_CHECKING:
    from pipeline.builder.build import BuildResult
    from pipeline.builder.running_build import DryRunEnd


def build_json(report: BuildResult, out: str, work: str) -> dict[str, Any]:
    """Return the result of `build` as it is displayed with `--json`."""
    manifest = report.manifest
    return {
        "out": out,
        "work": work,
        "seconds": report.seconds,
        "tasks_run": report.tasks_run,
        "ran": {name: stage.ran for name, stage in report.stages.items()},
        "notes": list(report.notes),
        "warnings": mix_warnings(manifest),
        "phases": [],
        **manifest.model_dump(include={"mix", "phases", "sources", "drop_hashes", "splits"}),
        "masked": report.masked,
        "empty_files": report.empty,
        "unread": {name: asdict(unread) for name, unread in report.unread.items()},
        "shards": len(manifest.shards),
        "problems": [problem.to_dict() for problem in report.validation.problems],
    }


def forecast_json(end: DryRunEnd) -> dict[str, Any]:
    """Return what a dry run has found as it is displayed with `--json`."""
    return {"dry_run": True, "stages": [asdict(stage) for stage in end.stages], "job": end.job}


def print_forecast(end: DryRunEnd) -> None:
    """Print what a build would run, and the first job of a cluster."""
    if not end.stages:
        print_lines(["nothing to run: the build would only check and validate the set"])
        return
    print_lines(list(map(str, end.stages)))
    if end.job:
        print(end.job)
        print_lines(["nothing was submitted; every stage submits such a job, with an element for each task"])


def print_build(report: BuildResult, out: str, work: str) -> None:
    """Print the achieved mix next to the requested one, the drops by reason, and the folders."""
    manifest = report.manifest
    print_rows(mix_rows(manifest), title=f"{manifest.name}: the mix")
    print_rows(phase_rows(manifest))
    # What is odd, then what was dropped, then the figures.
    lines = [f"warning: {warning}" for warning in mix_warnings(manifest)]
    for source in manifest.sources:
        lines += [f"dropped from {source.name}: {count:,} ({reason})" for reason, count in source.dropped.items()]
        masked = report.masked.get(source.name, {})
        lines += [
            f"masked in {source.name}: {counts['occurrences']:,} of {kind} in {plural(counts['documents'], 'document')}"
            for kind, counts in masked.items()
        ]
    for entry in manifest.drop_hashes:
        found = (
            f"{entry.found:,} of {plural(entry.hashes, 'hash')} found, {plural(entry.documents, 'document')} dropped"
        )
        lines.append(f"block list {entry.file}: {found}")
    lines += [f"files of {name}: {describe_empty(names)}" for name, names in report.empty.items()]
    lines += [f"not read of {name}: {unread}" for name, unread in report.unread.items() if unread.bytes]
    tokens = sum(split.tokens for split in manifest.splits.values())
    size = sum(shard.files.tokens.bytes + shard.files.documents.bytes for shard in manifest.shards)
    lines += [
        f"{plural(len(manifest.shards), 'shard')}, {plural(tokens, 'token')}, {format_size(size)} in {out}",
        f"{plural(report.tasks_run, 'task')} run in {report.seconds:.1f} s{_speed(report)}",
        f"work folder (keep it for cheap re-runs): {work}",
    ]
    problems = report.validation.problems
    print_lines(lines + ([f"error: {problem}" for problem in problems] or ["validated: no problems"]))


def _speed(report: BuildResult) -> str:
    """Return the text encoded per second; empty if an earlier build had already encoded some of it."""
    if not report.tasks_run:
        return ", nothing to do"
    encode = report.stages["encode"]
    if encode.ran < len(encode.results):
        return ""
    speed = report.text_bytes / 1e6 / report.seconds
    return f": {speed:.0f} MB of text a second" if speed >= 10 else f": {speed:.2g} MB of text a second"
