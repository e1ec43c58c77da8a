"""The tokenizer of a build: trained on a sample, now or by an earlier build, or the file that the recipe gives."""

from functools import partial
from typing import Any

from pipeline.builder.running_build import RunningBuild
from pipeline.builder.stages.encode import prepare_cleaning
from pipeline.clean.reasons import describe_drops
from pipeline.engine.receipts import TaskOutput
from pipeline.engine.tasks import Task, make_task
from pipeline.recipe.shares import Demand
from pipeline.sources.base import SourceError, Span
from pipeline.sources.selection import Selection
from pipeline.tokenizer import sample, train
from pipeline.tokenizer.given_tokenizer import read_encoder_file
from shards.errors import plural
from shards.terminal.amounts import format_amount, format_size

_SAMPLE_SHORT = 0.9
"""A sample smaller than this share of what was asked for is reported."""


def run_tokenizer(build: RunningBuild) -> None:
    """Run the tokenizer stage: provide the build's tokenizer.

    A change of the mix trains no new tokenizer: the task's digest does not depend on the mix's weights, nor on the
    limits that are applied when documents are mixed. The receipt has those that the sample was drawn with. The build's
    recipe becomes the one from which anyone can build the same set: with the sample's weights and limits.

    Raises:
        TokenizerError: a tokenizer cannot be trained or used.
    """
    recipe, section = build.recipe, build.recipe.tokenizer
    # A file that the recipe gives, or a tokenizer that was trained before.
    read = partial(read_encoder_file, eos_token=section.eos_token, bos=section.bos, chat=recipe.chat)
    if section.file is not None:
        build.say(f"tokenizer: {section.file}, as the recipe says")
        build.tokenizer = read(section.file)
        if build.tokenizer.added:
            added = ", ".join(build.tokenizer.added)
            build.say(f"tokenizer: the special tokens of [chat] that the file lacks have new ids: {added}")
        if build.tokenizer.ignored:
            ignored = "; ".join(build.tokenizer.ignored)
            build.note(f"tokenizer: a set does not use these settings of its file: {ignored}")
        return
    task = _make_task(build)

    # Train one, unless this very task is done.
    def check_disk(pending: list[Task]) -> None:
        if pending:
            if train.find_trainer(section.pretokenizer) == "tokenizers":
                build.say(f"tokenizer: learning the merges for {section.pretokenizer}: about 4 MB of text per second")
            build.check_disk([unit for own in build.units for unit in own])
            prepare_cleaning(build)

    stage = build.run_stage("tokenizer", train.train_tokenizer, [task], before=check_disk)
    # Say what it was drawn from, if that is not what the recipe leads one to expect.
    result = stage.results[task.digest]
    if not stage.ran:
        build.say(f"tokenizer: reused from {build.folder_of('tokenizer', task)}")
    else:
        _note_short(build, task.size, result.sample)
    if left_out := sum(own.left_out for own in result.sample.values()):
        build.note(
            f"tokenizer: only a part of {plural(left_out, 'document')} is in the sample: of documents with "
            f"{sample.MAX_WORD_BYTES:,} bytes or more without spaces, it takes at most "
            f"{format_size(sample.MOST_UNBROKEN_BYTES)}, because training needs much memory for them. Give a tokenizer "
            "`file` if most of your text is of this kind."
        )
    build.recipe = recipe.with_values(tokenizer=section.with_values(**_note_kept_sample(build, result)))
    home = build.folder_of("tokenizer", task)
    content = bytes(TaskOutput(home).read(train.TOKENIZER_FILE))
    build.tokenizer = read(f"{home}/{train.TOKENIZER_FILE}", content=content, task=str(home))


def _note_kept_sample(build: RunningBuild, result: train.TokenizerResult) -> dict[str, Any]:
    """Say if the build keeps a tokenizer whose sample was drawn with other weights or limits than the recipe has.

    Returns:
        The keys of the recipe's tokenizer with which the same sample is drawn again.
    """
    recipe, weights, used = build.recipe, result.sample_weights, result.sample_limits
    if weights != _weights(build):
        build.note(
            f"tokenizer: kept as trained, on a sample with weights {weights}. "
            "Set tokenizer.sample_weights to train another."
        )
    # Limits that have moved since it was drawn.
    moved = [
        f"{name}: {preset.name}.{key} = {getattr(preset, key)}, now {getattr(now, key)}"
        for name, wanted in recipe.sample_limits().items()
        for preset, now in zip(used[name].presets(), wanted.presets(), strict=True)
        for key in preset.limit_keys()
        if getattr(preset, key) != getattr(now, key)
    ]
    if moved:
        build.note(
            f"tokenizer: kept as trained, on a sample with other limits ({'; '.join(moved)}). "
            "Set tokenizer.sample_limits to train another."
        )
    return {"sample_weights": weights, "sample_limits": used or None}


def _weights(build: RunningBuild) -> dict[str, float]:
    """Return the weights of the sources in the sample, in order; those of a mix without weights are bytes of text."""
    weights = Demand(build.recipe).weights
    if sum(map(bool, weights)) > 1:  # of a source alone, not all may have been read
        weights = Demand(build.recipe, [selection.text_bytes for selection in build.selections]).weights
    given = dict(zip(build.recipe.source_names, weights, strict=True))
    return given | (build.recipe.tokenizer.sample_weights or {})


def _make_task(build: RunningBuild) -> Task:
    """Return the task of the tokenizer stage; its size are the bytes of text that it should draw.

    It may draw from each source's first files, in order, that hold far more. So the sample depends on the seed, the
    files, `sample_bytes` and the sample's weights, not on the size of the set. If the rows only name the text, it is
    drawn from the text that was fetched.
    """
    recipe = build.recipe
    spans = {
        selection.source.name: tuple(_sample_spans(selection, recipe.tokenizer.sample_bytes))
        if selection.source.content == "column"
        else tuple(span for unit in own for span in unit.spans)
        for selection, own in zip(build.selections, build.units, strict=True)
    }
    payload = sample.TokenizerTask(
        recipe.tokenizer, tuple(recipe.sources), spans, _weights(build), recipe.seed, recipe.sample_limits()
    )
    return make_task(payload, sum(sample.sample_budgets(payload)))


def _sample_spans(selection: Selection, sample_bytes: int) -> list[Span]:
    """Return the spans that the sample is drawn from, whatever the weights; none of files that a set does not need."""
    try:
        return selection.sample_spans(sample_bytes)
    except SourceError:
        if not selection.is_left_out:
            raise
        return []


def _note_short(build: RunningBuild, size: int, sampled: dict[str, sample.Drawn]) -> None:
    """Say why the sample of the build's tokenizer is smaller than it should be, if it is."""
    drawn = sum(own.text_bytes for own in sampled.values())
    if drawn >= _SAMPLE_SHORT * size:
        return
    found = {name: describe_drops(own.dropped, own.records) for name, own in sampled.items()}
    why = "".join(f"; of {name}, {drops}" for name, drops in found.items() if drops)
    build.note(
        f"tokenizer: sampled {format_amount(drawn, 'bytes')} of text. The other {format_amount(size - drawn, 'bytes')} "
        f"of {format_amount(size, 'bytes')}, by the sizes of the files, are escapes, other contents of the files, text "
        f"that no sample takes, or dropped{why}"
    )
