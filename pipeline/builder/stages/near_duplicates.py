"""The three stages that find near-duplicates, between encoding and mixing; none runs unless the recipe asks for it."""

from pipeline.builder.records import NEAR_STAGES
from pipeline.builder.running_build import DISK_REMEDY, RunningBuild
from pipeline.encode.run import distinct_runs
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.tasks import Task, make_task
from pipeline.mix.near_duplicates import bands, pairs, similar
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.mix.near_duplicates.normal_text import compile_shingles
from shards.errors import plural
from shards.format.chat import ROLES
from shards.stores.files import check_room


def run_near_duplicates(build: RunningBuild) -> None:
    """Run the three stages that find near-duplicates, if the recipe asks for them."""
    settings = build.recipe.clean.near_duplicates
    if settings is None:
        return
    # The bands of each document: one task for each run.
    given, chat = build.tokenizer, build.tokenizer.chat
    openings = tuple((tuple(chat.heads[role]), chat.leads[role]) for role in ROLES) if chat else ()
    tokenizer = given.path, given.file_sha256, given.task, given.added, openings
    distinct = distinct_runs(build.runs)
    tasks = [
        make_task(
            bands.BandsTask(run.place, run.dtype, tokenizer),
            run.tokens_bytes,
            run.labels[0],
        )
        for run in distinct
    ]

    def prepare(pending: list[Task]) -> None:
        documents = {bands.bands_digest(run.digest): run.num_documents for run in distinct}
        needed = sum(documents[task.digest] for task in pending) * bands.BANDS_BYTES
        if build.work.folder is not None and needed:
            check_room([("near-duplicates", build.work.folder, needed)], DISK_REMEDY)
        if pending and isinstance(build.driver.executor, LocalExecutor):
            compile_shingles(build.say)

    banded = build.run_stage("bands", bands.write_bands, tasks, before=prepare).results
    rows = sum(result.rows for result in banded.values())

    # Pairs of documents with an equal band: one task for each range of hashes.
    ranges = pairs.count_ranges(rows)
    runs, folder = build.run_list.address, {stage: str(build.work.child(stage)) for stage in NEAR_STAGES}
    tasks = [
        make_task(
            pairs.PairsTask(runs, folder["bands"], number, ranges),
            rows * bands.BAND_DTYPE.itemsize // ranges,
            f"range {number} of {ranges}",
        )
        for number in range(ranges)
    ]
    paired = build.run_stage("pairs", pairs.find_pairs, tasks).results.values()
    if left_out := sum(result.left_out for result in paired):
        build.note(
            f"near-duplicates: {plural(left_out, 'pair')} skipped: if more than {pairs.MOST_MEMBERS} documents "
            f"share a band, each is compared with the {pairs.CENTERS} longest"
        )
    found = sum(result.pairs for result in paired)

    # Their similarity.
    parts = similar.count_similar_tasks(found, len(distinct))
    tasks = [
        make_task(
            similar.SimilarTask(runs, folder["pairs"], ranges, number, parts, tokenizer),
            found * pairs.PAIR_DTYPE.itemsize // parts,
            f"part {number} of {parts}",
        )
        for number in range(parts)
    ]
    build.run_stage("similar", similar.compare_pairs, tasks)
    places = tuple(f"{folder['similar']}/{task.digest}" for task in tasks)
    build.similar = SimilarPairs(places, settings.min_jaccard, settings.action)
