"""The last stage of a build: the full level of validation, as tasks on the engine.

Every shard is read back from where it was published, by a task of this stage and not by the one that wrote it. That
one would read, before its files are published, the copy on its own machine, whatever a bucket or a network's file
system holds afterwards. It would save no read either: a file that is renamed stays in the page cache, and the next task
finds it there. On the hosts of a cluster the tasks share the reading; the driver reads the manifest, the tokenizer and
the recipe, and joins what the tasks have found.

What an earlier build read says nothing about the disk of today, so each validation runs all its tasks: their digests
have a name that no other validation has, and what they leave is deleted when it ends. A build that finds nothing to do,
and knows the set as valid, does not come here: see `build`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline import validation_tasks
from pipeline.builder.running_build import RunningBuild
from pipeline.engine.receipts import ResultT
from pipeline.engine.tasks import Task, TaskFunction, digest_of
from shards.errors import Problem
from shards.format.reader import Shard, ShardSet
from shards.stores.files import unique_name
from shards.validation.duplicates import check_duplicates, divide_shards, join_equal_documents
from shards.validation.files import Structure
from shards.validation.shard_contents import ShardFindings, shard_rules
from shards.validation.validate import ValidationResult, check_in_full

STAGE = "validate"
"""The stage's name, and its folder in the work folder while it runs."""


def run_validation(build: RunningBuild) -> tuple[ValidationResult, float]:
    """Run the validation stage: check the finished set in full.

    Returns:
        What was found, and the processor's seconds of all tasks.
    """
    began, validation, core_seconds = time.perf_counter(), unique_name(), 0.0
    folder = build.work.child(STAGE)
    folder.delete_all()  # of a build that was killed

    def run(function: TaskFunction[ResultT], tasks: list[Task]) -> list[ResultT]:
        nonlocal core_seconds
        results = build.driver.run_stage(STAGE, function, tasks).results
        core_seconds += sum(sum(result.core_seconds.values()) for result in results)
        return results

    def check_shards(shard_set: ShardSet, structure: Structure) -> list[ShardFindings]:
        tasks = [
            Task(digest_of([validation, payload.shards[0].name]), payload, size, payload.shards[0].name)
            for payload, size in _make_payloads(build, shard_set, structure)
        ]
        return [found for result in run(validation_tasks.validate_shards, tasks) for found in result.findings]

    def compare(trusted: Sequence[Shard], epochs: Mapping[str, int], coverage: Sequence[int | None]) -> list[Problem]:
        ranges = divide_shards(trusted, coverage)
        if len(ranges) == 1:  # no more than a driver has room for
            return check_duplicates(trusted, epochs)
        # Else each task compares the documents of a range of hashes.
        tasks: list[Task] = []
        for hashes, shards in ranges:
            entries = tuple(shard.entry for shard in shards)
            dtype = shards[0].dtype.name if shards else ""
            payload = validation_tasks.CompareTask(str(build.out), entries, dtype, epochs, hashes)
            size = sum(entry.files.documents.bytes for entry in entries)
            name = f"documents {hashes.number + 1} of {len(ranges)}"
            tasks.append(Task(digest_of([validation, name]), payload, size, name))
        return join_equal_documents([result.faults for result in run(validation_tasks.compare_documents, tasks)])

    try:
        report, _ = check_in_full(build.out, check_shards, compare)
    finally:
        folder.delete_all()
    report.seconds = time.perf_counter() - began
    return report, core_seconds


def _make_payloads(
    build: RunningBuild, shard_set: ShardSet, structure: Structure
) -> Iterator[tuple[validation_tasks.ValidateTask, int]]:
    """Yield the payload of each task, with its part of the listing and of the checksums, and the bytes of its files."""
    # The checksums of the tokens, by SHA-256, as the tasks that wrote them have computed them; see `ShardRules`.
    assembled = build.stages["assemble"].results if "assemble" in build.stages else []
    checksums = {key: value for result in assembled for key, value in result.checksums.items()}
    rules = shard_rules(shard_set)
    for entries in validation_tasks.group_validation_shards(shard_set.shards):
        files = [file for entry in entries for file in entry.files.entries]
        listing = {file.path: structure.listing[file.path] for file in files if file.path in structure.listing}
        # A task gets the part of the listing and of the checksums that its shards need.
        digests = [digest for entry in entries for digest in (entry.files.tokens.sha256, entry.tokens_sha256)]
        known = {digest: checksums[digest] for digest in digests if digest in checksums}
        payload = validation_tasks.ValidateTask(str(build.out), entries, listing, replace(rules, checksums=known))
        yield payload, sum(file.bytes for file in files)
