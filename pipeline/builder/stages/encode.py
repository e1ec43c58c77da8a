"""The stage that makes a run of every unit, and what is checked when all are encoded."""

from pipeline.builder.alarms import check_encoded
from pipeline.builder.running_build import RunningBuild
from pipeline.clean.measures import measure
from pipeline.clean.reasons import describe_change, describe_drops
from pipeline.clean.tally import Tally
from pipeline.encode import encode
from pipeline.encode.run import Run, RunList, token_dtype
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.tasks import Task, make_task
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import Unit, describe_undivided
from pipeline.tokenizer.kept_text import add_up_kept_text, check_unknown, describe_kept
from shards.audit.not_text import describe_not_text
from shards.errors import InputError, plural


def run_encode(build: RunningBuild) -> None:
    """Run the encode stage: encode every unit to a run, and check what was dropped of each source."""
    recipe, tokenizer, evaluations = build.recipe, build.tokenizer, build.evaluations
    dtype = token_dtype(tokenizer.vocab_size)
    tasks: list[Task] = []
    # One task for each unit.
    for own, source in zip(build.units, recipe.sources, strict=True):
        for unit in own:
            payload = encode.EncodeTask(
                unit,
                source,
                tokenizer.path,
                tokenizer.file_sha256,
                tokenizer.eos_id,
                dtype,
                tokenizer.task,
                str(evaluations) if evaluations else None,
                tokenizer.bos_id,
                recipe.chat if source.has_conversations else None,
                tokenizer.chat if source.has_conversations else None,
            )
            tasks.append(make_task(payload, unit.text_bytes, _name_unit(source, unit)))

    def check_disk(pending: list[Task]) -> None:
        units = len({task.digest for task in tasks})
        if done := units - len(pending):
            build.say(f"encode: already encoded: {done:,} of {plural(units, 'unit')}")
        build.check_disk([task.payload.unit for task in pending])
        if pending:
            prepare_cleaning(build)

    results = build.run_stage("encode", encode.encode_unit, tasks, before=check_disk).results
    if why := next((result.slow_encoder for result in results.values() if result.slow_encoder), ""):
        build.say(f"tokenizer: {why}, so `tokenizers` encodes, at about 1 MB of text per second and core")
    # The runs, in the order of the units; the list of them is written when a task needs it.
    build.runs = [
        Run(str(build.folder_of("encode", task)), task.payload.unit.source, dtype, results[task.digest])
        for task in tasks
    ]
    build.run_list = RunList(build.work.child("encode"), build.runs)
    build.used["encode"].add(build.run_list.folder)
    # What was dropped, source by source: first what stops the build, then what is only said.
    encoded = [build.encoded(index) for index in range(len(recipe.sources))]
    build.tallies = [Tally.sum(result.tally for result in own) for own in encoded]
    for source, tally, own in zip(recipe.sources, build.tallies, encoded, strict=True):
        documents = sum(result.documents for result in own)
        with build.stops():
            for line in (*check_encoded(source, documents, tally), *describe_undivided(source, tally.undivided)):
                build.say(line)
        if tally.odd_quotes:
            what = "text after them, whose quotes are lost" if source.quote else "line ends"
            remedy = 'If quotes are characters of the text, set quote = ""'
            remedy += '; write "" for \\" in the file.' if source.quote else "; if not, quote = '\"'."
            build.say(f"source {source.name!r}: {plural(tally.odd_quotes, 'field')} in quotes with {what}. {remedy}")
        for line in describe_not_text(tally.not_text):
            build.say(f"source {source.name!r}: {line}.")
        if kept := add_up_kept_text(result.kept for result in own):
            build.say(describe_kept(source.name, kept))
            with build.stops():
                check_unknown(source.name, kept, recipe.tokenizer.max_unknown)
    # Without weights, the mix says which sources give nothing.
    if any(run.num_documents for run in build.runs) and not recipe.has_weights:
        return
    for source, selection, tally, own in zip(recipe.sources, build.selections, build.tallies, encoded, strict=True):
        if not selection.has_more and not selection.is_left_out and not any(result.documents for result in own):
            reasons = tally.dropped
            why = describe_drops(reasons, reasons.total()) or "there were none"
            with build.stops():
                raise InputError(f"source {source.name!r}: no document is left: {why}. {describe_change(reasons)}.")


def prepare_cleaning(build: RunningBuild) -> None:
    """Compile the presets' measures before the encode stage: its worker processes would each do so at the same time."""
    is_here = isinstance(build.driver.executor, LocalExecutor)
    if is_here and any(source.clean.presets() for source in build.recipe.sources):
        measure.compile_measures(build.say)


def _name_unit(source: SourceRecipe, unit: Unit) -> str:
    """Return what a task of the encode stage reads, for a person: `web: part-7.parquet rg0-12`."""
    first, last = unit.spans[0], unit.spans[-1]
    end = f" to {last.name} {last.part}" if len(unit.spans) > 1 else ""
    return f"{source.name}: {first.name} {first.part}{end}"
