"""What a person sees at the end of a command: tables on stdout, and the same as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.estimate.estimate import TEXT_BYTES_PER_TOKEN
from pipeline.recipe.patterns import reason_of
from shards.terminal.display import plain_table, print_rows, printable, stdout_console

if TYPE_CHECKING:
    from pipeline.build.build import BuildResult
    from pipeline.estimate.estimate import Estimate, SourceEstimate
    from pipeline.recipe.schema import Recipe


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


def print_plan(recipe: Recipe, estimate: Estimate) -> None:
    """Print what a build would read, write, take and cost."""
    rows = [_plan_row(source) for source in estimate.sources]
    print_rows(rows, title=f"{recipe.name}: the plan")
    console = stdout_console()
    train, val = f"{estimate.train_tokens:,}", f"{estimate.val_tokens:,}"
    lines = [f"about {train} training and {val} validation tokens in {estimate.shards} shards"]
    for source in estimate.sources:
        lines += [f"dropped from {source.name}: {share:.1%} ({reason})" for reason, share in source.dropped.items()]
        if not source.tokens:
            lines.append(f"look: of the sample of {source.name} no document is left; see `keep` and the length bounds")
    lines += _too_many_matches(recipe, estimate)
    lines += _time_lines(estimate)
    scratch, output = _size(estimate.scratch_bytes), _size(estimate.output_bytes)
    lines.append(f"disk: {scratch} of scratch, {output} for the set")
    for line in [*lines, *_short(recipe, estimate)]:
        console.print(printable(line), soft_wrap=True)


def _too_many_matches(recipe: Recipe, estimate: Estimate) -> list[str]:
    lines: list[str] = []
    for source, found in zip(recipe.sources, estimate.sources, strict=True):
        matched = sum(found.dropped.get(reason_of(pattern), 0.0) for pattern in source.drop_if_matches)
        share = matched / (matched + (found.kept or 0.0)) if matched else 0.0
        if share > source.max_dropped:
            limit = f"more than max_dropped = {source.max_dropped}"
            lines.append(f"look: drop_if_matches drops {share:.1%} of {source.name}, {limit}: the build would stop")
    return lines


def _plan_row(source: SourceEstimate) -> dict[str, Any]:
    return {
        "source": source.name,
        "share": f"{source.share:.2%}",
        "files read": f"{source.files:,} of {source.all_files:,}",
        "units": source.units,
        "read": _size(source.stored_bytes),
        "kept": "unknown" if source.kept is None else f"{source.kept:.1%}",
        "documents": "unknown" if source.documents is None else f"{source.documents:,}",
        "text": _size(source.text_bytes),
        "bytes a token": f"{source.bytes_per_token:.2f}",
        "tokens, about": f"{source.tokens:,}",
    }


def _time_lines(estimate: Estimate) -> list[str]:
    time, probe = estimate.time, estimate.probe
    if time is None or probe is None:
        return [f"no probe: tokens are guessed at {TEXT_BYTES_PER_TOKEN} bytes each, times are not foreseen"]
    lines = [f"measured on {_size(probe.sample_bytes)} of text in {probe.seconds:.0f} s"]
    parts: list[str] = []
    if probe.content_files_per_s:
        files = sum(source.content_files for source in estimate.sources)
        speed = f"{probe.content_files_per_s:,.0f} a second a worker"
        parts.append(f"{files:,} files of the archive {_duration(time.content_s)} ({speed})")
    if probe.link_bytes_per_s:
        speed = f"{probe.link_bytes_per_s / 1e6:,.1f} MB/s"
        parts.append(f"download of {_size(estimate.download_bytes)} {_duration(time.download_s)} ({speed})")
    cpu = f"tokenizer {_duration(time.tokenizer_s)}, encode {_duration(time.encode_s)}"
    parts.append(f"{cpu}, shards {_duration(time.assemble_s)}, validation {_duration(time.validate_s)}")
    workers = f"{time.workers} worker{'s' if time.workers > 1 else ''}"
    limit = {"CPU": "the CPU limits", "link": "the link limits", "archive": "the archive's files limit"}[time.limit]
    lines.append(f"time: about {_duration(time.total_s)} with {workers}; {limit}")
    lines.append("  " + "; ".join(parts))
    if estimate.gpu_usd is not None:
        lines.append(f"a GPU that waits for it: {estimate.gpu_usd:,.2f} US dollars")
    return lines


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(size: int) -> str:
    if size < 1e6:
        return f"{size / 1e3:,.1f} KB"
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.2f} GB"


def _short(recipe: Recipe, estimate: Estimate) -> list[str]:
    if estimate.most_tokens is None or estimate.train_tokens <= estimate.most_tokens:
        return []
    most = f"{estimate.most_tokens:,}"
    stop = "the build would stop" if recipe.mix.when_short != "shrink" else "the set would be smaller"
    return [
        f"look: the sources allow about {most} training tokens; {stop} (mix.when_short = {recipe.mix.when_short!r})"
    ]
