"""The result of `plan`: tables and lines on stdout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline.clean.drops.table import DUPLICATE
from pipeline.sources.selection import describe_empty
from shards.cli.mix_table import VALIDATION_PART
from shards.errors import plural
from shards.terminal.amounts import format_duration, format_size
from shards.terminal.display import print_lines, print_rows

if TYPE_CHECKING:
    from pipeline.plan.estimate import Estimate, SourceEstimate
    from pipeline.recipe.schema import Recipe

_EXAMPLES = 3
"""Lines of examples that are shown of a message; `--json` has all."""


def print_plan(recipe: Recipe, estimate: Estimate) -> None:
    """Print what a build would read, write, take and cost."""
    # Two tables: the sources, and the phases of a mix that has some.
    print_rows([_source_row(source) for source in estimate.sources], title=f"{recipe.name}: the plan")
    print_rows(
        [
            {
                "phase": phase.name,
                "part": f"{phase.share:.2%}",
                "shards": phase.shards,
                "source": name,
                "share": f"{share:.2%}",
                "tokens, about": f"{round(phase.tokens * share):,}",
            }
            for phase in estimate.phases
            for name, share in phase.sources.items()
        ]
    )
    print_lines(list(_lines(recipe, estimate)))


def _source_row(source: SourceEstimate) -> dict[str, Any]:
    duplicates = sum(share for reason, share in source.dropped.items() if reason.startswith(DUPLICATE))
    return {
        "source": source.name,
        "share": f"{source.share:.2%}",
        "files read": f"{source.files:,} of {source.all_files:,}",
        "units": source.units,
        "read": format_size(source.stored_bytes),
        "kept": f"{source.kept:.1%}",
        "documents": f"{source.documents:,}",
        "text": format_size(source.text_bytes),
        "bytes per token": f"{source.bytes_per_token:.2f}",
        "duplicates": f"{'at least ' if source.is_sample else ''}{duplicates:.1%}",
        "tokens, about": f"{source.tokens:,}",
    }


def _lines(recipe: Recipe, estimate: Estimate) -> Iterator[str]:
    yield (
        f"about {estimate.train_tokens:,} training and {plural(estimate.val_tokens, 'validation token')} in "
        f"{plural(estimate.shards, 'shard')}"
    )
    if estimate.most_tokens is not None:
        limit = f"about {plural(estimate.most_tokens, 'training token')}"
        yield f"limited by {estimate.scarcest}: at these weights the sources allow {limit}"
    for source in estimate.sources:
        yield from _source_lines(recipe, source, estimate.val_tokens)
    if sampled := [source.name for source in estimate.sources if source.is_sample]:
        yield f"{', '.join(sampled)}: only a sample was searched for duplicates; the build may drop more"
    for message in (*estimate.notes, *(f"warning: the build would stop: {stop}" for stop in estimate.stops)):
        lines = message.split("\n")
        examples = [line for line in lines if line.startswith(" ")]
        yield from (line for line in lines if line not in examples[_EXAMPLES:])
    yield from _cost_lines(estimate)
    if estimate.most_tokens is not None and estimate.train_tokens > estimate.most_tokens:
        most, key = plural(estimate.most_tokens, "training token"), f"mix.when_short = {recipe.mix.when_short!r}"
        yield f"warning: the sources allow about {most}; the build would stop ({key})"


def _source_lines(recipe: Recipe, source: SourceEstimate, val_tokens: int) -> Iterator[str]:
    """Yield how a source's files are read, what is dropped of it, and what a person should change."""
    ways = Counter(file.way for file in source.read_files)
    kinds = ", ".join(f"{count:,} as {way}" for way, count in sorted(ways.items()))
    yield f"files of {source.name}: {kinds}; {plural(source.units, 'task')}"
    if source.empty_files:
        yield f"files of {source.name}: {describe_empty(source.empty_files)}"
    yield from (f"dropped from {source.name}: {share:.1%} ({reason})" for reason, share in source.dropped.items())
    if recipe.mix.when_short == "repeat" and source.epochs > 1:
        yield f"epochs of {source.name}: about {source.epochs:.1f} in training"
    asked = source.share * val_tokens
    if source.tokens and not source.has_more and asked > VALIDATION_PART * source.tokens:
        part = f"{asked / source.tokens:.1%} of {source.name}, more than {VALIDATION_PART:.0%}"
        yield f"warning: validation takes {part}. Ask for fewer split.val_tokens, or add data"


def _cost_lines(estimate: Estimate) -> Iterator[str]:
    longest = max(estimate.seconds, key=lambda stage: estimate.seconds[stage])
    workers = plural(estimate.workers, "worker")
    yield f"measured on {format_size(estimate.sample_bytes)} of text in {estimate.sample_s:.0f} s"
    yield f"time: about {format_duration(estimate.total_s)} with {workers}, most of all in {longest}"
    yield "  " + ", ".join(f"{stage} {format_duration(s)}" for stage, s in estimate.seconds.items() if s)
    if estimate.gpu_usd is not None:
        yield f"a GPU that waits for it: {estimate.gpu_usd:,.2f} US dollars"
    if estimate.nodes_usd is not None:
        yield f"the machines: {estimate.nodes_usd:,.2f} US dollars, if all are kept until the end"
    yield f"disk: {format_size(estimate.scratch_bytes)} of scratch, {format_size(estimate.output_bytes)} for the set"
