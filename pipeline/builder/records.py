"""What each stage was last asked for, by name, and which sets were published: so that a build says why tasks run again.

What a task's digest is made of is flattened to parts: `seed`, `sources.web.min_bytes`, `code.numpy`.
The parts of a stage's tasks are joined, and compared with those of the last build that finished the stage. A value that
is long, or differs between tasks, is recorded as a hash. Memory and file: about 100 bytes for each file of the sources.

The first stage with missing tasks is known exactly. The stages after it depend on its results, so the forecast of their
tasks and seconds is that of the last build in the work folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import xxhash

from pipeline.engine.checksums import seal, unseal
from pipeline.engine.receipts import Result
from pipeline.engine.tasks import NUMBER, JsonText, Payload, Task, digest_of, list_parts
from shards.errors import plural
from shards.stores.store import WritableStore
from shards.terminal.amounts import format_duration

ORDER = ("evaluations", "fetch", "tokenizer", "encode", "bands", "pairs", "similar", "mix", "assemble")
"""The stages of a build. What one does again, all later ones do, except `INDEPENDENT`."""
INDEPENDENT = {"evaluations": ("fetch", "tokenizer")}
"""Later stages that do not read what a stage writes."""
_ALWAYS = ("encode", "mix", "assemble")
RECORDS_FILE = "stages.json"
FILES = "files"
"""Ends the name of the spans of a source: one part for each file."""
AFTER = "after"
"""Begins the names of the results of earlier stages."""
DIGESTS = 3
"""Increase when digests of tasks are made in another way, so that every task runs again."""
IMPLIED = {"tokenizer.id_order": '"merge"'}
"""The values of keys that leave no trace in digests: what was done before there was the key."""
_FILE = "\0"
"""Stands before a file's name in the name of a part: file names have dots."""
_SHORT = 60
_SHOWN = 3


@dataclass(frozen=True)
class StageRecord:
    """What a stage was asked for when its tasks were last all done."""

    digest: str
    """Of its tasks' digests."""
    parts: dict[str, str]
    """What decides the results: each part's value as JSON, or its hash; empty if another version named them."""
    tasks: int
    size: int
    """Of all tasks, as `Task.size`."""
    seconds: float
    """Of all tasks, added up."""


@dataclass(frozen=True)
class PublishedSet:
    """A set that was published from a work folder."""

    manifest: str
    """SHA-256 of its manifest."""
    used: dict[str, list[str]]
    """By stage, the names in the stage's folder that it was made from."""


@dataclass
class Records:
    """The records of a work folder."""

    stages: dict[str, StageRecord] = field(default_factory=dict[str, StageRecord])
    sets: list[PublishedSet] = field(default_factory=list[PublishedSet])
    """The last published set, then the one before."""
    digests: int = 0
    """The `DIGESTS` of the version that wrote them."""

    def note(self, stage: str, tasks: Sequence[Task], results: Iterable[Result]) -> bool:
        """Record a stage whose tasks are all done; return whether that is news."""
        digest = digest_of([task.digest for task in tasks])
        # The usual case, of a build that finds all done: naming the parts again would cost more than it tells.
        if stage in self.stages and self.stages[stage].digest == digest:
            return False
        seconds = sum(sum(result.seconds.values()) for result in results)
        size = sum(task.size for task in tasks)
        self.stages[stage] = StageRecord(digest, name_parts(task.payload for task in tasks), len(tasks), size, seconds)
        return True

    def note_set(self, manifest: str, used: Mapping[str, Iterable[str]]) -> None:
        """Record a published set as the last one."""
        own = PublishedSet(manifest, {stage: sorted(names) for stage, names in used.items()})
        self.sets = [own, *(one for one in self.sets if one.manifest != manifest)][:2]

    def explain(self, stage: str, tasks: Sequence[Task]) -> list[str]:
        """Return why tasks of a stage run again: the keys, files, versions or stages that have changed.

        Returns:
            Nothing if the stage was never finished here.
        """
        before = self.stages.get(stage)
        if before is None:
            return []
        # The same tasks as before run again because what they wrote is not there.
        if before.digest == digest_of([task.digest for task in tasks]):
            return ["results are missing or unusable in the work or the output folder"]
        if not before.parts:
            return ["this version of Tokenmill names results in another way: what is in the work folder is made again"]
        now = name_parts(task.payload for task in tasks)
        return find_changes(before.parts, now) or ["the text is cut into other tasks"]


def write_records(work: WritableStore, records: Records) -> None:
    """Write the records of a work folder."""
    work.put(RECORDS_FILE, seal(records))


def read_records(work: WritableStore) -> Records:
    """Return the records of a work folder; none if they are absent or damaged: they only explain, and keep more."""
    try:
        records: Records = unseal(work.read(RECORDS_FILE), Records)
    except (OSError, ValueError):
        return Records(digests=DIGESTS)
    if records.digests != DIGESTS:
        records.stages = {name: replace(record, parts={}) for name, record in records.stages.items()}
        records.digests = DIGESTS
    return records


def name_parts(payloads: Iterable[Payload]) -> dict[str, str]:
    """Return what decides the results of a stage's tasks, by the names that messages use."""
    parts: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()  # tasks share the tables of their source

    def add(name: str, text: str) -> None:
        text = text if len(text) <= _SHORT else _hash(text)
        if (earlier := parts.setdefault(name, text)) != text:
            parts[name] = _hash(earlier + text)

    def walk(name: str, value: Any) -> None:
        if isinstance(value, JsonText):
            for span in json.loads(value):
                add(f"{name}{_FILE}{span['name']}", _hash(json.dumps(span)))
        elif isinstance(value, dict):
            for key, inner in cast("dict[str, Any]", value).items():
                walk(f"{name}.{key}" if name else key, inner)
        else:
            add(name, json.dumps(value, ensure_ascii=False, sort_keys=True))

    for payload in payloads:
        for _, name, value in list_parts(payload):
            once = (name, json.dumps(value))
            if name != NUMBER and once not in seen:
                seen.add(once)
                walk(name, value)
    return parts


def _hash(text: str) -> str:
    return f"#{xxhash.xxh3_64_hexdigest(text.encode())}"


def find_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the differences between the parts of a stage then and now, each as a phrase; earlier stages last."""
    # Files are grouped by source and by what became of them; keys are named one by one.
    files: dict[str, dict[str, list[str]]] = {}
    keys: list[str] = []
    code: list[str] = []
    after: list[str] = []
    for name in (name for name in dict.fromkeys([*now, *before]) if before.get(name) != now.get(name)):
        key, is_file, file = name.partition(_FILE)
        first, _, rest = key.partition(".")
        if is_file:
            how = "added" if name not in before else "changed" if name in now else "gone"
            files.setdefault(key.removesuffix(f".{FILES}"), {}).setdefault(how, []).append(file)
        elif first == AFTER:
            after.append(f"{rest} gives another result")
        elif first == "code" and rest == "tokenmill":
            code.append("Tokenmill's code of this stage is another version")
        elif first == "code":
            code.append(f"{rest} is {now.get(name, 'gone')} (was {before.get(name, 'nothing')})")
        else:
            keys.append(_describe_key(key, before.get(key), now.get(key)))
    return [*keys, *(f"{owner}: {_describe_files(own)}" for owner, own in files.items()), *code, *after]


def _describe_key(key: str, before: str | None, now: str | None) -> str:
    if any(value is not None and value.startswith("#") for value in (before, now)):
        return f"{key} has changed"
    absent = IMPLIED.get(key, "nothing")
    return f"{key} = {absent if now is None else now} (was {absent if before is None else before})"


def _describe_files(changes: Mapping[str, list[str]]) -> str:
    shown: list[str] = []
    for how, names in changes.items():
        listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        shown.append(f"{plural(len(names), 'file')} {how} ({listed})")
    return ", ".join(shown)


@dataclass(frozen=True)
class StageForecast:
    """The tasks of a stage that a build has to run."""

    stage: str
    run: int | None
    """Tasks to run; None if no build here has run this stage."""
    tasks: int | None
    """All tasks of the stage."""
    seconds: float | None
    """About how long they take, by the last build here; None if there was none."""
    causes: tuple[str, ...]
    """The keys, files, versions or stages that have changed; none if the stage was never finished here."""

    def __str__(self) -> str:
        number = "all tasks" if self.run is None else plural(self.run, "task")
        if self.tasks is not None and self.run != self.tasks:
            number = f"{self.run:,} of {plural(self.tasks, 'task')}"
        time = "" if self.seconds is None else f", about {_show_seconds(self.seconds)}"
        return f"{self.stage}: runs {number}{time}: {'; '.join(self.causes) or 'for the first time'}"


def forecast_stages(
    records: Records, stage: str, tasks: Sequence[Task], pending: Sequence[Task], *, units: int, workers: int
) -> list[StageForecast]:
    """Return the forecasts of a stage whose missing tasks are known, and of those that run because it does.

    Args:
        records: of the work folder.
        stage: the stage that runs.
        tasks: its tasks.
        pending: those that are missing.
        units: the number of encode tasks, if all run.
        workers: tasks at once.
    """
    seconds = None
    if (record := records.stages.get(stage)) is not None:
        # The time of the last build, by size: in tasks if they have none.
        size = sum(task.size for task in pending)
        share = size / record.size if record.size else len(pending) / max(1, record.tasks)
        seconds = record.seconds * share / max(1, min(workers, len(pending)))
    causes = tuple(records.explain(stage, tasks))
    found = [StageForecast(stage, len(pending), len(tasks), seconds, causes)]

    # Whatever a stage does again, the later ones do, since their digests have its results.
    for later in ORDER[ORDER.index(stage) + 1 :]:
        record = records.stages.get(later)
        if later in INDEPENDENT.get(stage, ()) or (record is None and later not in _ALWAYS):
            continue
        run = units if later == "encode" else record.tasks if record else None
        seconds = record.seconds / max(1, min(workers, record.tasks)) if record else None
        found.append(StageForecast(later, run, run, seconds, (f"because {stage} does",)))
    return found


def describe_forecast(stages: Sequence[StageForecast]) -> list[str]:
    """Return what a build says before its first task: the stages, and the whole time."""
    lines = [str(stage) for stage in stages]
    known = [stage.seconds for stage in stages if stage.seconds is not None]
    if len(known) == len(stages) > 1:
        tasks = plural(sum(stage.run or 0 for stage in stages), "task")
        lines.append(f"in all up to {tasks}, about {_show_seconds(sum(known))} by the times of the last build here")
    return lines


def _show_seconds(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 1 else "1 s or less"
