"""Alarms of the mix: a build stops when it drops more of a source than its recipe allows, and shows what would go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.builder.encode_alarms import check_cleaning
from pipeline.builder.running_build import RunningBuild
from pipeline.clean.drops.table import ITEM_REASON, NEAR_DUPLICATE, Excess, StepDrops
from pipeline.clean.tally import SHOWN, TEXT_CHARACTERS, DroppedDocument
from pipeline.encode.run import Run
from pipeline.encode.run_text import read_run_start
from pipeline.engine.receipts import WorkFileDamagedError
from pipeline.mix.cleaning import read_cleaning
from pipeline.mix.near_duplicates.drop import NearDuplicates
from shards.errors import InputError, plural
from shards.format.vocabulary import Vocabulary, read_vocabulary
from shards.terminal.command_names import called_as
from shards.terminal.display import printable


def check_mixed(build: RunningBuild, near: NearDuplicates | None) -> None:
    """Raise the alarm of the first step of the mix that drops more of a source than the recipe allows.

    Args:
        build: the build.
        near: the near-duplicates; None if the build does not look for any.

    Raises:
        InputError: with counts and documents.
    """
    if any(source.clean.presets("mix") for source in build.recipe.sources):
        _check_presets(build)
    _check_items(build)
    if near is not None:
        _check_near_duplicates(build, near)


def _check_presets(build: RunningBuild) -> None:
    def check() -> None:
        try:
            limits = {entry["name"]: entry["limits"] for entry in read_cleaning(build.mix)["sources"]}
            # These runs read their receipts now: one may have been repaired.
            runs = {run.digest: replace(run) for run in build.runs}
            vocabulary = read_vocabulary(build.tokenizer.text.encode())
            for source, own in zip(build.recipe.sources, build.drops, strict=True):
                show = partial(_show_fallen, limits.get(source.name, []), runs, vocabulary)
                check_cleaning(source, source.clean.presets("mix"), own, show)
        except WorkFileDamagedError:
            build.run_list.write()  # a mix task that is repaired reads it
            raise

    try:
        build.driver.read(check)
    except InputError as error:
        command = f"{called_as('pipeline', 'clean-report')} {build.work}"
        raise InputError(f"{error}\n`{command}` shows what falls at each limit.") from None


def _show_fallen(
    limits: list[dict[str, Any]], runs: Mapping[str, Run], vocabulary: Vocabulary, preset: str
) -> list[DroppedDocument]:
    """Return the documents of a preset with the lowest hashes: a random draw of those that it drops."""
    # A document that breaks several limits is shown once, for the first of them.
    own = [(item, limit) for limit in limits if limit["preset"] == preset for item in limit["random"]]
    first = {item["hash"]: (item, limit) for item, limit in reversed(own)}
    return [
        DroppedDocument(
            item["place"],
            item["row"],
            limit["reason"],
            read_run_start(runs[item["run"]], item["index"], vocabulary, characters=TEXT_CHARACTERS),
            limit["measure"],
            item["value"],
            limit["value"],
        )
        for _, (item, limit) in sorted(first.items())[:SHOWN]
    ]


def _check_items(build: RunningBuild) -> None:
    faults: list[str] = []
    for evaluation in build.recipe.evaluations:
        for source, own in zip(build.recipe.sources, build.drops, strict=True):
            step = own.steps[f"{ITEM_REASON} {evaluation.name}"]
            excess = step.excess(evaluation.max_dropped)
            if excess:
                faults.append(
                    f"source {source.name!r}: {excess.describe()} {'holds' if excess.found == 1 else 'hold'} an item "
                    f"of the evaluation set {evaluation.name!r}, more than its max_dropped = {evaluation.max_dropped} "
                    f"allows. Is {evaluation.text!r} the column of its items? If so, set its max_dropped = "
                    f"{excess.enough} to go on without these documents: nothing is encoded again."
                )
    if faults:
        command = f"{called_as('pipeline', 'clean-report')} {build.work} --examples 10"
        raise InputError("\n".join([*faults, f"`{command}` shows them."]))


def _check_near_duplicates(build: RunningBuild, near: NearDuplicates) -> None:
    settings = build.recipe.clean.near_duplicates
    assert settings is not None
    faults: list[str] = []
    for source, own, examples in zip(build.recipe.sources, build.drops, near.sources, strict=True):
        step = own.steps[NEAR_DUPLICATE]
        excess = step.excess(settings.max_dropped)
        # Show what would go beside what stays.
        if excess:
            faults += [
                f"source {source.name!r}: clean.near_duplicates drops {_describe_near(step)}, more than max_dropped = "
                f"{settings.max_dropped} allows. Examples:",
                *_show_pairs(build, examples["shown"][:SHOWN]),
                f"Raise min_jaccard, then the set is mixed again; or set max_dropped = {excess.enough} in "
                "[clean.near_duplicates] to go on without them. Nothing is encoded again.",
            ]
    if faults:
        raise InputError("\n".join(faults))


def note_near_duplicates(build: RunningBuild) -> None:
    """Say how many near-duplicates are only reported."""
    settings = build.recipe.clean.near_duplicates
    for source, own in zip(build.recipe.sources, build.drops, strict=True):
        step = own.steps.get(NEAR_DUPLICATE)
        if settings and step and step.reports and step.found.documents:
            build.note(
                f"near-duplicates: {source.name}: {_describe_near(step)} "
                f"{'is' if step.found.documents == 1 else 'are'} similar to one that stays, by "
                f'{settings.min_jaccard} or more; action = "report" keeps them'
            )


def _describe_near(step: StepDrops) -> str:
    counted = Excess(step.found.documents, step.came.documents, 1.0)
    return counted.describe(more=f", {plural(step.found.tokens, 'token')}")


def _show_pairs(build: RunningBuild, shown: list[dict[str, Any]]) -> Iterator[str]:
    """Yield lines that show near-duplicates with the documents that stay."""
    vocabulary = read_vocabulary(build.tokenizer.text.encode())
    by_digest = {run.digest: run for run in build.runs}

    def show(document: dict[str, Any]) -> str:
        run = replace(by_digest[document["run"]])  # that reads its receipt now: it may have been repaired
        text = read_run_start(run, document["index"], vocabulary, characters=TEXT_CHARACTERS)
        return f"{printable(document['place'])} row {document['row']} ({document['hash']}): {printable(text)}"

    for pair in shown:
        dropped, kept = (build.driver.read(partial(show, end)) for end in (pair["dropped"], pair["kept"]))
        yield f"  {dropped}\n    similar by {pair['jaccard']:.3f} to {kept}"
