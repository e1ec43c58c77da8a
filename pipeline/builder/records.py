"""Why tasks run again: what each stage of a work folder was last asked for, compared with what it is asked for now.

What a task's digest is made of is flattened to parts: `seed`, `sources.web.min_bytes`, `code.numpy`.
The parts of a stage's tasks are joined, and compared with those of the last build that finished the stage. A value that
is long, or differs between tasks, is recorded as a hash. Memory and file: about 100 bytes for each file of the sources.

The first stage with missing tasks is known exactly. Later stages depend on its results, so their numbers of tasks are
those of the last build in the work folder.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import xxhash

from pipeline.engine.checksums import seal, unseal
from pipeline.engine.tasks import NUMBER, JsonText, Payload, Task, digest_of, list_parts
from pipeline.recipe.schema import Recipe
from shards.errors import plural
from shards.stores.store import WritableStore

NEAR_STAGES = ("bands", "pairs", "similar")
"""Those that find near-duplicates."""
ORDER = ("evaluations", "fetch", "tokenizer", "encode", *NEAR_STAGES, "mix", "assemble")
"""The stages of a build. If one runs again, the later ones of its recipe do, except two after evaluations."""
RECORDS_FILE = "stages.json"
_FILE = "\0"
"""Stands before a file's name in the name of a part: file names have dots."""
_SHORT = 60
_SHOWN, _MOST_CAUSES = 3, 5
"""Files and causes that are shown."""
_SAID = {
    "code.tokenmill": "Tokenmill's code of this stage has changed",
    "order": "the list of sources or evaluation sets has changed",
    "sources": "the list of sources has changed",
    "after.selection": "other parts of the sources are read",
    "clean.near_duplicates.places": "similar has a new result",
}
"""Parts of other names than a person would use."""


StageRecord = tuple[str, dict[str, str], int]
"""What a stage was asked for when its tasks were last all done: the digest of its tasks' digests; what decides the
results, each part's value as JSON or its hash; the number of tasks."""


@dataclass(frozen=True)
class StageForecast:
    """The tasks of a stage that a build has to run."""

    stage: str
    run: int | None
    """Tasks to run; None if no build here has run this stage."""
    tasks: int | None
    """All tasks of the stage."""
    causes: tuple[str, ...]
    """The keys, files, versions or stages that have changed; none if the stage was never finished here."""

    def __str__(self) -> str:
        number = "all tasks" if self.run is None else plural(self.run, "task")
        if self.tasks is not None and self.run != self.tasks:
            number = f"{self.run:,} of {plural(self.tasks, 'task')}"
        said = f"{self.stage}: runs {number}: {'; '.join(self.causes[:_MOST_CAUSES]) or 'for the first time'}"
        if (more := len(self.causes) - _MOST_CAUSES) > 0:
            said += f"; and {more} more"
        if self.stage == "tokenizer" and any(cause.startswith("source") for cause in self.causes):
            said += (
                ". Another tokenizer encodes all text again. To keep the set's, copy its tokenizer.json, and give it: "
                "--set 'tokenizer={file=\"tokenizer.json\"}'"
            )
        return said


class StageRecords:
    """The records of a work folder, by stage. They only explain: none are read if their file is absent or damaged."""

    def __init__(self, work: WritableStore):
        """Read what each stage of a work folder was last asked for."""
        self._work = work
        self.stages: dict[str, StageRecord] = {}
        with contextlib.suppress(OSError, ValueError):
            self.stages = unseal(work.read(RECORDS_FILE), dict[str, StageRecord])

    def note(self, stage: str, tasks: Sequence[Task]) -> None:
        """Record what a stage whose tasks are all done was asked for, unless it was last asked for the same."""
        digest = digest_of([task.digest for task in tasks])
        # The usual case, of a build that finds all done: naming the parts again would cost more than it tells.
        if stage not in self.stages or self.stages[stage][0] != digest:
            self.stages[stage] = digest, name_parts(task.payload for task in tasks), len(tasks)
            self._work.put(RECORDS_FILE, seal(self.stages))

    def explain(self, stage: str, tasks: Sequence[Task]) -> list[str]:
        """Return why tasks of a stage run again: the keys, files, versions or stages that have changed.

        Returns:
            Nothing if the stage was never finished here.
        """
        if stage not in self.stages:
            return []
        # The same tasks as before run again because what they wrote is not there.
        digest, before, _ = self.stages[stage]
        if digest == digest_of([task.digest for task in tasks]):
            return ["results are missing or unusable in the work or the output folder"]
        now = name_parts(task.payload for task in tasks)
        return find_changes(before, now) or ["the input was split differently"]

    def forecast(
        self, stage: str, tasks: Sequence[Task], pending: Sequence[Task], *, recipe: Recipe, units: int
    ) -> list[StageForecast]:
        """Return why a stage's missing tasks will run, and those of the stages that run because it does.

        Args:
            stage: the stage that runs.
            tasks: its tasks.
            pending: those that are missing.
            recipe: tells which stages there are.
            units: the number of encode tasks, if all run.
        """
        found = [StageForecast(stage, len(pending), len(tasks), tuple(self.explain(stage, tasks)))]
        # The digests of later stages have its results, or the recipe does without them.
        others = {"fetch", "tokenizer"} if stage == "evaluations" or recipe.tokenizer.file else set[str]()
        others |= set() if recipe.clean.near_duplicates else {*NEAR_STAGES}
        for later in ORDER[ORDER.index(stage) + 1 :]:
            if later not in others:
                known = self.stages[later][2] if later in self.stages else None
                run = units if later == "encode" else known
                found.append(StageForecast(later, run, run, (f"it depends on {stage}",)))
        return found


def name_parts(payloads: Iterable[Payload]) -> dict[str, str]:
    """Return what a stage's tasks are asked for, which decides their results, by the names that messages use."""
    parts: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()  # tasks share the tables of their source

    def add(name: str, value: Any) -> None:
        if isinstance(value, JsonText):
            for span in json.loads(value):
                # The file alone: what part of it a task reads, and how, the keys say.
                add(f"{name}{_FILE}{span['name']}", "{url} {version} {revision}".format_map(span))
                add("code", span.get("libraries", {}))
        elif isinstance(value, dict):
            for key, inner in cast("dict[str, Any]", value).items():
                add(f"{name}.{key}" if name else key, inner)
        else:
            text = json.dumps(value, ensure_ascii=False, sort_keys=True)
            text = text if len(text) <= _SHORT else _hash(text)
            if (earlier := parts.setdefault(name, text)) != text:
                parts[name] = _hash(earlier + text)

    for payload in payloads:
        for _, name, value in list_parts(payload):
            once = (name, json.dumps(value))
            if name != NUMBER and once not in seen:
                seen.add(once)
                add(name, value)
    return parts


def _hash(text: str) -> str:
    return f"#{xxhash.xxh3_64_hexdigest(text.encode())}"


def find_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the differences between the parts of a stage then and now, each as a phrase; earlier stages are last.

    A table with several keys that is new or gone is one of them, such as a source.
    """
    tables = [{table for name in parts for table in _list_tables(name)} for parts in (before, now)]
    moved: dict[str, list[str]] = {}
    files: dict[tuple[str, str], list[str]] = {}
    changed = [name for name in dict.fromkeys([*now, *before]) if before.get(name) != now.get(name)]
    for name in sorted(changed, key=lambda name: name in _SAID or name.startswith(("after.", "code."))):
        key, _, file = name.partition(_FILE)
        how = "new" if name not in before else "changed" if name in now else "gone"
        table = next((table for table in _list_tables(key) if table not in tables[how == "gone"]), key)
        if file and table == key:
            how = {"new": "newly read", "gone": "no longer read"}.get(how, how)
            files.setdefault((key.removesuffix(".files"), how), []).append(file)
        else:
            moved.setdefault(f"{table} is {how}", []).append(_describe_key(key, before.get(key), now.get(key)))
    causes: list[str] = []
    for (owner, how), own in files.items():
        shown = ", ".join(own[:_SHOWN]) + ", ..." * (len(own) > _SHOWN)
        causes.append(f"{owner}: {plural(len(own), 'file')} {how} ({shown})")
    return causes + [own[0] if len(own) == 1 else what for what, own in moved.items()]


def _list_tables(name: str) -> list[str]:
    """Return the tables that a part of a stage is in, the outer ones first, without the outermost."""
    return [name[: dot.start()] for dot in re.finditer(r"\.", name.partition(_FILE)[0])][1:]


def _describe_key(key: str, before: str | None, now: str | None) -> str:
    first, _, rest = key.partition(".")
    if key in _SAID:
        return _SAID[key]
    if first == "after":
        return f"{rest} has a new result"
    if any(value is not None and value.startswith("#") for value in (before, now)):
        return f"{key} has changed"
    return f"{key} = {now or 'nothing'} (was {before or 'nothing'})"
