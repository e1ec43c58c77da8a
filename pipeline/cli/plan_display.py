"""The result of `plan`: a table and lines on stdout."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pipeline.clean.drops.malformed import (
    count_malformed,
    describe_examples,
    malformed_remedy,
    null_remedy,
    null_share,
)
from pipeline.clean.drops.table import ITEM_REASON, NEAR_DUPLICATE, find_excess
from pipeline.clean.patterns import find_excess_of_patterns
from pipeline.estimate.pilot import TEXT_BYTES_PER_TOKEN
from pipeline.sources.selection import describe_empty
from pipeline.tokenizer.encoder import describe_slow_encoder
from shards.cli.mix_table import VALIDATION_PART
from shards.errors import plural
from shards.terminal.amounts import format_duration, format_size
from shards.terminal.display import print_lines, print_rows

if TYPE_CHECKING:
    from pipeline.estimate.estimate import Estimate
    from pipeline.estimate.source_estimate import SourceEstimate
    from pipeline.recipe.schema import Recipe


def print_plan(recipe: Recipe, estimate: Estimate) -> None:
    """Print what a build would read, write, take and cost."""
    # Two tables: the sources, and the phases of a mix that has some.
    rows = [_plan_row(source) for source in estimate.sources]
    print_rows(rows, title=f"{recipe.name}: the plan")
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
    lines = [
        f"about {estimate.train_tokens:,} training and {plural(estimate.val_tokens, 'validation token')} in "
        f"{plural(estimate.shards, 'shard')}"
    ]
    # What bounds the set, and what is known of copies.
    if estimate.most_tokens is not None:
        limit = f"about {plural(estimate.most_tokens, 'training token')}"
        lines.append(f"limited by {estimate.scarcest}: at these weights the sources allow {limit}")
    lines += _duplicate_lines(estimate)
    for source in estimate.sources:
        # Each source: how its files are read, what cleaning drops, what a person should change.
        ways = Counter(file.way for file in source.read_files)
        kinds = ", ".join(f"{count:,} as {way}" for way, count in sorted(ways.items()))
        lines.append(f"files of {source.name}: {kinds}; {plural(source.units, 'task')}")
        lines += [f"files of {source.name}: {describe_empty(source.empty_files)}"] if source.empty_files else []
        lines += [
            f"dropped from {source.name}: {share:.1%} ({reason})" for reason, share in source.ratios.dropped.items()
        ]
        if recipe.mix.when_short == "repeat" and source.epochs > 1:
            lines.append(f"epochs of {source.name}: about {source.epochs:.1f} in training")
        if not source.tokens:
            keys = "`keep`, `clean` and the length bounds"
            lines.append(f"warning: of the sample of {source.name} no document is left; see {keys}")
        asked = source.share * estimate.val_tokens
        if source.tokens and not source.has_more and asked > VALIDATION_PART * source.tokens:
            part = f"{asked / source.tokens:.1%} of {source.name}, more than {VALIDATION_PART:.0%}"
            lines.append(f"warning: validation takes {part}. Ask for fewer split.val_tokens, or add data")
    # What only is reported, what would stop the build, time and disk.
    lines += _reported_lines(estimate)
    lines += _too_many_drops(recipe, estimate)
    lines += _time_lines(estimate)
    scratch, output = format_size(estimate.scratch_bytes), format_size(estimate.output_bytes)
    lines.append(f"disk: {scratch} of scratch, {output} for the set")
    print_lines([*lines, *_short(recipe, estimate)])


def _duplicate_lines(estimate: Estimate) -> list[str]:
    """Print the duplicates of each source, and what is not known about them."""
    if estimate.probe is None:
        return ["duplicates are not counted: documents with equal text count once in the build, each time in this plan"]
    lines: list[str] = []
    for source in estimate.sources:
        found = source.ratios.distinct
        parts = [f"{found.duplicates:.1%} of its documents"] if found.duplicates else []
        parts += [f"{found.elsewhere:.1%} that another source has, too"] if found.elsewhere else []
        if parts:
            where = ", in the sample alone" if found.basis == "sample" else ""
            lines.append(f"duplicates of {source.name}: {', '.join(parts)}{where}")
    if sampled := [source.name for source in estimate.sources if source.ratios.distinct.basis == "sample"]:
        lines.append(
            f"warning: for {', '.join(sampled)}, only the sample was searched for duplicates; the build may drop more. "
            "--count-duplicates reads all text"
        )
    return lines


def _too_many_drops(recipe: Recipe, estimate: Estimate) -> list[str]:
    lines: list[str] = []
    for source, found in zip(recipe.sources, estimate.sources, strict=True):
        drops, near, name = found.ratios.drops, recipe.clean.near_duplicates, source.name
        tables = [
            (f"clean.{table.label}", name, drops.step(table.step).excess(table.max_dropped))
            for table in (*source.clean.presets(), *source.clean.filters())
        ]
        if near:
            excess = drops.step(NEAR_DUPLICATE).excess(near.max_dropped)
            tables.append(("clean.near_duplicates", f"the sample of {name}", excess))
        tables.insert(0, ("drop_if_matches", name, find_excess_of_patterns(source, drops)))
        for what, where, excess in tables:
            if excess:
                limit = f"{'its ' if what.startswith('clean') else ''}max_dropped = {excess.most}"
                lines.append(
                    f"warning: {what} drops {excess.share:.1%} of {where}, more than {limit}: the build would stop"
                )
        for evaluation in recipe.evaluations:
            if excess := drops.step(f"{ITEM_REASON} {evaluation.name}").excess(evaluation.max_dropped):
                lines.append(
                    f"warning: {excess.share:.1%} of the sample of {source.name} holds an item of the evaluation set "
                    f"{evaluation.name!r}, more than its max_dropped = {excess.most}: the build would stop. Is "
                    f"{evaluation.text!r} the column of its items?"
                )
        # Malformed records, and records without text.
        malformed = count_malformed(source, found.ratios.dropped)
        if find_excess(malformed, 1.0, source.max_malformed):
            limit = f"more than max_malformed = {source.max_malformed}"
            what = f"{malformed:.2%} of the records of {source.name} are malformed"
            shown = describe_examples(found.ratios.malformed)
            lines += f"warning: {what}, {limit}: the build would stop{shown}".split("\n")
            lines.append(f"  {malformed_remedy(source, found.ratios.dropped, 1.0)}")
        lines += [f"warning: {line}" for line in found.ratios.undivided.describe(source)]
        null = null_share(source, found.ratios.dropped, 1.0)
        if find_excess(null, 1.0, source.max_null):
            lines.append(
                f"warning: {null:.2%} of the records of {source.name} have no text, more than max_null = "
                f"{source.max_null}: the build would stop. {null_remedy(source, null)}"
            )
    return lines


def _reported_lines(estimate: Estimate) -> list[str]:
    """Print what the mix would only report."""
    lines: list[str] = []
    for source in estimate.sources:
        for name, step in source.ratios.drops.steps.items():
            share = step.found.documents / max(1, step.came.documents)
            if not step.reports or not share:
                continue
            if name == NEAR_DUPLICATE:
                lines.append(f'near-duplicates of {source.name}: at least {share:.1%}, which stay (action = "report")')
            else:
                lines.append(f"{share:.2%} of {source.name} {name}, and stays")
    return lines


def _plan_row(source: SourceEstimate) -> dict[str, Any]:
    ratios = source.ratios
    left = ratios.left_documents * source.take
    return {
        "source": source.name,
        "share": f"{source.share:.2%}",
        "files read": f"{source.files:,} of {source.all_files:,}",
        "units": source.units,
        "read": format_size(source.stored_bytes),
        "kept": "unknown" if ratios.kept is None else f"{ratios.kept * left:.1%}",
        "documents": "unknown" if source.documents is None else f"{round(source.documents * left):,}",
        "text": format_size(source.text_bytes),
        "bytes per token": f"{ratios.bytes_per_token:.2f}",
        "duplicates": _duplicates(source),
        "tokens, about": f"{source.tokens:,}",
    }


def _duplicates(source: SourceEstimate) -> str:
    found = source.ratios.distinct
    if found.basis == "not counted":
        return "not counted"
    at_least = "at least " if found.basis == "sample" else ""
    return f"{at_least}{found.duplicates + found.elsewhere:.1%}"


def _time_lines(estimate: Estimate) -> list[str]:
    time, pilot = estimate.time, estimate.probe
    if time is None or pilot is None:
        return [f"no probe: tokens are guessed at {TEXT_BYTES_PER_TOKEN} bytes each, times are not estimated"]
    lines = [f"measured on {format_size(pilot.sample_bytes)} of text in {pilot.seconds:.0f} s"]
    parts: list[str] = []
    if pilot.content_files_per_s:
        files = sum(source.content_files for source in estimate.sources)
        speed = f"{pilot.content_files_per_s:,.0f} a second a worker"
        parts.append(f"{plural(files, 'file')} of the archive {format_duration(time.content_s)} ({speed})")
    if pilot.link_bytes_per_s:
        speed = f"{pilot.link_bytes_per_s / 1e6:,.1f} MB/s"
        parts.append(f"download of {format_size(estimate.download_bytes)} {format_duration(time.download_s)} ({speed})")
    # The stages of every build; others only where there are some.
    cpu = f"tokenizer {format_duration(time.tokenizer_s)}, encode {format_duration(time.encode_s)}"
    rest = f"mix {format_duration(time.mix_s)}, shards {format_duration(time.assemble_s)}"
    if time.near_duplicates_s:
        cpu += f", near-duplicates {format_duration(time.near_duplicates_s)}"
    parts.append(f"{cpu}, {rest}, validation {format_duration(time.validate_s)}")
    workers = f"{time.workers} worker{'s' if time.workers > 1 else ''}"
    limit = {"CPU": "the CPU limits", "link": "the link limits", "archive": "the archive's files limit"}[time.limit]
    total = format_duration(time.total_s)
    lines.append(f"time: about {total} with {workers}; {limit}, most of all in {time.longest_stage}")
    lines.append("  " + "; ".join(parts))
    # What makes it slower than it could be, and what it costs.
    if pilot.slow_encoder:
        lines.append(describe_slow_encoder(pilot.slow_encoder))
    lines += pilot.kept
    if estimate.gpu_usd is not None:
        lines.append(f"a GPU that waits for it: {estimate.gpu_usd:,.2f} US dollars")
    if estimate.nodes_usd is not None:
        lines.append(f"the machines: {estimate.nodes_usd:,.2f} US dollars, if all are kept until the end")
    return lines


def _short(recipe: Recipe, estimate: Estimate) -> list[str]:
    if estimate.most_tokens is None or estimate.train_tokens <= estimate.most_tokens:
        return []
    most = plural(estimate.most_tokens, "training token")
    stop = "the build would stop" if recipe.mix.when_short != "shrink" else "the set would be smaller"
    return [f"warning: the sources allow about {most}; {stop} (mix.when_short = {recipe.mix.when_short!r})"]
