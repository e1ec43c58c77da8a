"""Estimate what a build reads and writes, how long it takes and what it costs. Leaves nothing behind.

The estimate comes from the files' footers, and from running a few megabytes of every source through a build.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.flags import add_network, add_recipe, read_network, source_files
from shards.errors import InputError, plural
from shards.terminal.amounts import format_duration, format_size
from shards.terminal.arguments import number_in, positive_number
from shards.terminal.display import JsonObject, print_lines, print_rows, say
from shards.terminal.program import COULD_NOT_RUN, WHOLE

if TYPE_CHECKING:
    from pipeline.plan.plan import Estimate, SourceEstimate

_SHOWN_LINES = 12
_DISK_MARGIN = 1.1
"""Factor on the estimate of disk space, which is within 10%."""
_EXAMPLES = 3
"""Lines of examples that are shown of a message; `--json` has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    add_recipe(parser)
    parser.add_argument(
        "--out",
        metavar="PLACE",
        help="where the set will be, a folder or s3://BUCKET/PREFIX (or gs, az): check that it fits on the disk of the "
        "folder (default: the working directory)",
    )
    parser.add_argument("--work", metavar="PLACE", help="the same for the work folder (default: OUT.work)")
    parser.add_argument(
        "--workers",
        type=positive_number,
        metavar="N",
        help="tasks at once, over all machines (default: one per core of this machine)",
    )
    parser.add_argument(
        "--usd-per-hour",
        type=number_in(0, 10**6),
        metavar="USD",
        help="price of all rented machines together: also estimate the cost",
    )
    parser.add_argument(
        "--show",
        nargs="?",
        const=3,
        default=0,
        type=positive_number,
        metavar="N",
        help="print the first N documents of each source (3) as they would be encoded, after reading and cleaning",
    )
    add_network(parser)


def run(options: argparse.Namespace) -> int:
    """Print the plan and return the exit status."""
    from pipeline.builder.running_build import DISK_REMEDY
    from pipeline.plan.plan import plan_set
    from shards.stores.files import check_room
    from shards.stores.open import scheme_of

    found = plan_set(
        options.recipe,
        overrides=options.overrides,
        tokens=options.tokens,
        sources=source_files(options),
        workers=options.workers,
        usd_per_hour=options.usd_per_hour,
        network=read_network(options),
        progress=True,
        allow_code=options.allow_code,
        show=options.show,
    )
    out = options.out or ""
    # Disk of folders is checked as the build checks it; an object store has no limit.
    places = (("scratch", options.work or out, found.scratch_bytes), ("the set", out, found.output_bytes))
    needs = [(what, Path(place), int(_DISK_MARGIN * size)) for what, place, size in places if not scheme_of(place)]
    problems = [found.refusal] if found.refusal else []
    try:
        check_room(needs, DISK_REMEDY)
    except InputError as error:
        problems += map(str, error.problems)
    if options.json:
        print(json.dumps(asdict(found) | {"problems": problems}, indent=2))
    else:
        _print_plan(found)
    for problem in problems:
        say(f"error: {problem}")
    return COULD_NOT_RUN if problems else WHOLE


def _print_plan(estimate: Estimate) -> None:
    """Print what a build would read, write, take and cost."""
    # Three tables: the sources, what is dropped of them, and the phases of a mix that has some.
    from pipeline.clean.reasons import drop_rows

    print_rows([_source_row(source) for source in estimate.sources])
    print_rows([row for source in estimate.sources for row in drop_rows(source.name, source.dropped)])
    print_rows(
        [
            {
                "phase": phase["name"],
                "part": f"{phase['share']:.2%}",
                "shards": phase["shards"],
                "source": name,
                "share": f"{share:.2%}",
                "estimated tokens": f"{round(phase['tokens'] * share):,}",
            }
            for phase in estimate.phases
            for name, share in phase["sources"].items()
        ]
    )
    print_lines(list(_lines(estimate)))
    for one in estimate.shown:
        print_lines(["", *_shown_lines(one)])


def _shown_lines(one: JsonObject) -> Iterator[str]:
    """Yield a document to show with its place, cut to `_SHOWN_LINES` lines of the terminal."""
    if "text" not in one:
        yield f"{one['source']}: no document to show: {one['dropped']}"
        return
    from shards.format.chat import ROLE_MARKS, parse_conversation

    yield "{source}: {file} {part} row {row}".format_map(one)
    width = shutil.get_terminal_size().columns - 3  # the margin, and what ends a line
    text = one["text"]
    if text.startswith((*ROLE_MARKS.values(),)):
        text = "\n".join(f"{role}: {content}" for role, content in parse_conversation(text))
    pieces = re.findall(rf".{{1,{width}}}\n?|\n", text)[:_SHOWN_LINES]
    yield from (f"  {piece.removesuffix(chr(10))}" for piece in pieces)
    if more := len(text) - len("".join(pieces)):
        yield f"  ... {plural(more, 'more character')}"


def _source_row(source: SourceEstimate) -> JsonObject:
    return {
        "source": source.name,
        "share": f"{source.share:.2%}",
        "files read": ", ".join(f"{count:,} {way}" for way, count in sorted(source.ways.items()))
        + (f" of {source.all_files:,}" if source.files < source.all_files else ""),
        "units": source.units,
        "read": format_size(source.stored_bytes),
        "kept": f"{source.kept:.1%}",
        "documents": f"{source.documents:,}",
        "text": format_size(source.text_bytes),
        "bytes per token": f"{source.bytes_per_token:.2f}",
        "estimated tokens": f"{source.tokens:,}",
    }


def _lines(estimate: Estimate) -> Iterator[str]:
    from pipeline.sources.globs import name_some

    least, most = estimate.least_train_tokens, estimate.most_train_tokens
    bounds = f" ({least:,} to {most:,})" if least < most else ""
    yield (
        f"about {estimate.train_tokens:,}{bounds} training and {plural(estimate.val_tokens, 'validation token')} in "
        f"{plural(estimate.shards, 'shard')}"
    )
    if estimate.scarcest is not None:
        yield f"limited by {estimate.scarcest} to about {estimate.most_tokens:,} training tokens at these weights"
        total = sum(source.tokens for source in estimate.sources)
        if not estimate.phases and not any(source.has_more for source in estimate.sources):
            yield f"without weights, the set has all {total:,} tokens once"
    for source in estimate.sources:
        if source.empty_files:
            yield f"files of {source.name}: without a record: {name_some(source.empty_files)}"
        if estimate.when_short == "repeat" and source.epochs > 1:
            yield f"epochs of {source.name}: about {source.epochs:.1f} in training"
    if largely := [*_find_largely_held_out(estimate)]:
        yield (
            f"warning: validation takes about {', '.join(largely)}, more than a twentieth. Split long files by a "
            "separator, add data, or lower split.val_tokens (0: none)"
        )
    if sampled := [source.name for source in estimate.sources if source.is_sample]:
        yield f"{', '.join(sampled)}: only a sample was searched for duplicates; the build may drop more"
    for message in (*estimate.notes, *(f"warning: the build would stop: {stop}" for stop in estimate.stops)):
        lines = message.split("\n")
        examples = [line for line in lines if line.startswith(" ")]
        yield from (line for line in lines if line not in examples[_EXAMPLES:])
    yield from _cost_lines(estimate)
    if estimate.most_tokens is not None and estimate.train_tokens > estimate.most_tokens:
        most, key = plural(estimate.most_tokens, "training token"), f"mix.when_short = {estimate.when_short!r}"
        yield f"warning: the sources allow about {most}; the build would stop ({key})"


def _find_largely_held_out(estimate: Estimate) -> Iterator[str]:
    """Yield the sources of which validation takes more than it should; of one document, it takes none."""
    from shards.cli.inspect_set import VALIDATION_PART

    for source in estimate.sources:
        part = source.share * estimate.val_tokens / max(1, source.tokens)
        if part and source.documents > 1:
            part = max(part, 1 / source.documents)
        if part > VALIDATION_PART and not source.has_more:
            yield f"{part:.1%} of {source.name} ({plural(source.documents, 'document')})"


def _cost_lines(estimate: Estimate) -> Iterator[str]:
    workers = plural(estimate.workers, "worker")
    stages = ", ".join(f"{stage} {format_duration(s)}" for stage, s in estimate.seconds.items() if s >= 1)
    yield f"measured on {format_size(estimate.sample_bytes)} of text in {estimate.sample_s:.0f} s"
    yield f"time: about {format_duration(estimate.total_s)} with {workers}{stages and f' ({stages})'}"
    if estimate.usd is not None:
        yield f"cost: {estimate.usd:,.2f} US dollars, if all machines run until the end"
    yield f"disk: {format_size(estimate.scratch_bytes)} of scratch, {format_size(estimate.output_bytes)} for the set"
