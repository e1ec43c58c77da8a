"""The numbers of metrics.jsonl in Weights & Biases, if the recipe names a project (`log.wandb_project`).

It cannot stop a run: what fails is said once. metrics.jsonl has everything in any case.

A resumed run goes on in its run of Weights & Biases, whose id is kept in the run folder: a folder that moves keeps it,
and a new folder of the same path gets another. What a killed process, or one without a connection, may not have sent is
sent by the next one. So lines can be there twice; curves are drawn over the logged step, not over the order of sending.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import contextlib
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shards.config import Settings, load_settings
from shards.errors import import_extra
from shards.stores.files import write_text
from shards.terminal.reporter import Note
from trainer.metrics import Record
from trainer.recipe import TrainRecipe
from trainer.resume import list_keys

WANDB_FILE = "wandb/tokenmill.json"
"""In a run folder: the `id` of its run of Weights & Biases, and the last step of the last process that sent all its
lines, `sent_until`."""
WANDB_DEFAULTS = {
    "WANDB_INIT_TIMEOUT": "30",
    "WANDB_FINISH_TIMEOUT": "60",
    "WANDB_CONSOLE": "off",
    "WANDB_QUIET": "true",
}
"""Settings of Weights & Biases unless the environment has others: seconds to wait for an answer at the start, and for
what is not yet sent at the end (by default 90 s, and without end); no copy of the console; few words."""


class WandbRun(Settings):
    """What a run folder knows of its run of Weights & Biases."""

    id: str
    sent_until: int = 0
    """The last step of the last process that sent all its lines."""


def list_numbers(record: Record) -> dict[str, float]:
    """Return the numbers of a line of the metrics: those of a table in it as `table/name`, a section there."""
    values = {key.replace(".", "/"): value for key, value in list_keys(record)}
    return {key: value for key, value in values.items() if isinstance(value, int | float)}


def open_wandb(
    run: Path, recipe: TrainRecipe, records: Sequence[Record], say: Note, opened: contextlib.ExitStack
) -> Callable[[Record], None] | None:
    """Return what sends a line of the metrics to Weights & Biases; None if the recipe names no project or it fails.

    Args:
        run: the run's folder.
        recipe: names the project, and is the run's configuration there.
        records: the lines of the metrics, to which the caller adds those that it sends.
        say: called once with what does not work.
        opened: ends the run there.
    """
    project = recipe.log.wandb_project
    if project is None:
        return None
    for name, value in WANDB_DEFAULTS.items():
        os.environ.setdefault(name, value)
    file, config = run / WANDB_FILE, recipe.model_dump(mode="json")
    try:
        wandb: Any = import_extra("wandb")
        known = WandbRun(id=uuid.uuid4().hex[:12])
        if file.exists():
            known = load_settings(WandbRun, file)
        file.parent.mkdir(exist_ok=True)
        write_text(file, known.to_json())
        names = {"project": project, "id": known.id, "name": run.resolve().name, "dir": str(run)}
        sent: Any = wandb.init(**names, resume="allow", config=config, allow_val_change=True)
        sent.define_metric("*", step_metric="step")
        for record in records:
            if record["step"] > known.sent_until:
                sent.log(list_numbers(record))
    except Exception as error:  # noqa: BLE001 (code of others)
        say(f"log.wandb_project: nothing goes to Weights & Biases, only to metrics.jsonl: {_first_line(error)}")
        return None
    broken: list[Exception] = []

    def track(record: Record) -> None:
        try:
            if not broken:
                sent.log(list_numbers(record))
        except Exception as error:  # noqa: BLE001 (code of others)
            broken.append(error)
            say(f"Weights & Biases gets no more from step {record['step']} on: {_first_line(error)}")

    def finish(kind: type[BaseException] | None, *_: object) -> None:
        try:
            sent.finish(exit_code=0 if kind is None else 1)
            if records and not broken:
                write_text(file, known.with_values(sent_until=records[-1]["step"]).to_json())
        except Exception as error:  # noqa: BLE001 (code of others)
            say(f"Weights & Biases may lack the last lines: {_first_line(error)}")

    opened.push(finish)
    return track


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
