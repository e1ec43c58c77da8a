"""Build a shard set from a recipe. Run the same command again to resume."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.flags import (
    add_engine,
    add_network,
    add_recipe,
    open_executor,
    parse_build_place,
    read_network,
    source_files,
)
from shards.errors import first_of, plural, shell_command
from shards.terminal.amounts import format_size, format_speed
from shards.terminal.arguments import parse_path
from shards.terminal.program import PROBLEMS, WHOLE, Outcome, Part

if TYPE_CHECKING:
    from pipeline.builder.build import BuildResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `build`."""
    add_recipe(parser)
    parser.add_argument(
        "--out",
        type=parse_build_place,
        required=True,
        metavar="PLACE",
        help="folder of the shard set, or s3://BUCKET/PREFIX",
    )
    parser.add_argument(
        "--work",
        type=parse_build_place,
        metavar="PLACE",
        help="folder or s3:// URL for intermediate files (default: OUT.work)",
    )
    parser.add_argument(
        "--scratch",
        type=parse_path,
        metavar="DIR",
        help="where tasks write unfinished files (default: in WORK, or with s3:// the system's temporary folder)",
    )
    parser.add_argument(
        "--validate",
        choices=["quick", "full"],
        default="full",
        help="how to check the finished set (default: full; quick if this very set has passed full before)",
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="once the set is published, delete from WORK what this build did not use",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print which tasks would run, and why",
    )
    add_network(parser)
    add_engine(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Run `build`: build the set, and return the result."""
    # Open the executor first: the local one's fork server loads the libraries while this process does.
    with closing(open_executor(options)) as executor:
        from pipeline.builder.build import DryRunEnd, SetProblemsError, build_set
        from pipeline.builder.places import default_work

        work = options.work or default_work(options.out)
        try:
            result = build_set(
                options.recipe,
                out=options.out,
                work=work,
                overrides=options.overrides,
                tokens=options.tokens,
                sources=source_files(options),
                allow_code=options.allow_code,
                validate=options.validate,
                network=read_network(options),
                progress=True,
                executor=executor,
                scratch=options.scratch,
                dry_run=options.dry_run,
                prune=options.prune,
            )
        except SetProblemsError as error:
            result = error.result
        except DryRunEnd as end:
            lines = [*map(str, end.stages)] or ["nothing to run: the build would only check and validate the set"]
            return Outcome({"dry_run": True, "stages": [asdict(stage) for stage in end.stages]}, lines)
    status = PROBLEMS if result.validation.problems else WHOLE
    return Outcome(build_json(result, options.out, work), show_build(result, options.out, work), status)


def build_json(report: BuildResult, out: str, work: str) -> dict[str, Any]:
    """Return the result of `build` as it is displayed with `--json`."""
    from shards.cli.inspect_set import mix_warnings

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
        "validated": report.validation.level,
        "problems": [problem.to_dict() for problem in first_of(report.validation.problems)],
    }


def show_build(report: BuildResult, out: str, work: str) -> Iterator[Part]:
    """Yield what `build` prints: the achieved mix next to the requested one, the drops, the folders, what to do."""
    from pipeline.clean.reasons import describe_masked, drop_rows
    from pipeline.sources.globs import name_some
    from shards.cli.inspect_set import mix_rows, mix_warnings, phase_rows

    manifest = report.manifest
    yield mix_rows(manifest)
    yield phase_rows(manifest)
    drops = [
        row
        for source in manifest.sources
        for row in drop_rows(source.name, source.dropped, source.documents_available + sum(source.dropped.values()))
    ]
    yield drops
    # What is odd, then the figures.
    yield from (f"warning: {warning}" for warning in mix_warnings(manifest))
    yield from (f"masked in {source}: {describe_masked(counts)}" for source, counts in report.masked.items() if counts)
    for entry in manifest.drop_hashes:
        found = (
            f"{entry.found:,} of {plural(entry.hashes, 'hash')} found, {plural(entry.documents, 'document')} dropped"
        )
        yield f"block list {entry.file}: {found}"
    yield from (f"files of {name}: without a record: {name_some(names)}" for name, names in report.empty.items())
    yield from (f"not read from {name}: {unread}" for name, unread in report.unread.items() if unread.bytes)
    tokens = sum(split.tokens for split in manifest.splits.values())
    size = sum(shard.files.tokens.bytes + shard.files.documents.bytes for shard in manifest.shards)
    yield f"{plural(len(manifest.shards), 'shard')}, {plural(tokens, 'token')}, {format_size(size)} in {_near(out)}"
    yield f"{plural(report.tasks_run, 'task')} ran in {report.seconds:.1f} s{_speed(report)}"
    if not report.tasks_run and report.validation.level == "quick":
        checked = shell_command("tokenmill", "validate", _shown(out))
        yield f"checked: the names and sizes of files, and the manifest; `{checked}` reads their bytes"
    yield f"work folder (keep it for cheap re-runs): {_near(work)}"
    problems = first_of(report.validation.problems)
    yield from (f"error: {problem}" for problem in problems)
    if not problems:
        page = shell_command("tokenmill", "report", _shown(out))
        drops_of = shell_command("tokenmill", "clean-report", _shown(work))
        trace = shell_command("tokenmill", "trace", _shown(out))
        yield "validated: no problems. Next:"
        yield f"  {page}                   an HTML page about the set"
        if drops:
            yield f"  {drops_of}        what each limit drops"
        yield f"  {trace} --document FILE    what happened to a document"


def _shown(place: str) -> str | Path:
    return place if "://" in place else Path(_near(place))


def _near(place: str) -> str:
    """Return how `build` names a folder: relative to the working directory if it is in there."""
    return os.path.relpath(place) if place.startswith(f"{os.getcwd()}/") else place


def _speed(report: BuildResult) -> str:
    """Return the speed that `build` prints: text encoded per second; empty if some was encoded earlier."""
    if not report.tasks_run:
        return ", nothing to do"
    encode = report.stages["encode"]
    if encode.ran < len(encode.results):
        return ""
    return f", {format_speed(report.text_bytes, report.seconds, 'bytes')} of text"
