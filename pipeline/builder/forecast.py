"""Which tasks a build runs again, why, and how long that takes: said before the first of them, and by `--dry-run`.

The first stage with missing tasks is known exactly. The stages after it depend on its results, so that their tasks and
seconds are those of the last build in the work folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.builder.records import Records
from pipeline.engine.tasks import Task
from shards.errors import plural

ORDER = ("evaluations", "fetch", "tokenizer", "encode", "bands", "pairs", "similar", "mix", "assemble")
"""The stages of a build. What one does again, all later ones do, except `INDEPENDENT`."""
INDEPENDENT = {"evaluations": ("fetch", "tokenizer")}
"""Later stages that do not read what a stage writes."""
_ALWAYS = ("encode", "mix", "assemble")


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


def forecast_stage(
    records: Records, stage: str, tasks: Sequence[Task], pending: Sequence[Task], workers: int
) -> StageForecast:
    """Return the forecast of a stage whose missing tasks are known."""
    seconds = None
    if (record := records.stages.get(stage)) is not None:
        size = sum(task.size for task in pending)
        share = size / record.size if record.size else len(pending) / max(1, record.tasks)
        seconds = record.seconds * share / max(1, min(workers, len(pending)))
    return StageForecast(stage, len(pending), len(tasks), seconds, tuple(records.explain(stage, tasks)))


def forecast_following(records: Records, first: str, units: int, workers: int) -> list[StageForecast]:
    """Return the forecasts of the stages that run because another one does.

    Args:
        records: of the work folder.
        first: the stage that runs.
        units: the number of encode tasks, if all run.
        workers: tasks at once.
    """
    later = ORDER[ORDER.index(first) + 1 :]
    found: list[StageForecast] = []
    for stage in (stage for stage in later if stage not in INDEPENDENT.get(first, ())):
        record = records.stages.get(stage)
        if record is None and stage not in _ALWAYS:
            continue
        run = units if stage == "encode" else record.tasks if record else None
        seconds = record.seconds / max(1, min(workers, record.tasks)) if record else None
        found.append(StageForecast(stage, run, run, seconds, (f"because {first} does",)))
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
    if seconds < 90:
        return f"{round(seconds)} s" if seconds >= 1 else "1 s or less"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
