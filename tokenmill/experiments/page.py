"""The end of an experiment: its answer as JSON, and the page of `tokenmill compare` with the answer first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shards.stores.files import write_text
from shards.terminal.program import PROBLEMS, WHOLE, Outcome, Row
from tokenmill.experiments.ablation import Ablation, Training
from trainer.results.comparison import compare_runs, write_comparison
from trainer.results.runs import TrainingRun, read_run


def tell_answer(
    ablation: Ablation,
    trainings: Iterable[Training],
    answer: Row,
    tables: Mapping[str, list[Row]],
    name: str,
    others: Sequence[Path] = (),
) -> Outcome:
    """Write the answer of an experiment and its page, and return it; exit status 1 if a training failed.

    Args:
        ablation: the experiment's folder.
        trainings: all of its trainings.
        answer: with its `name`, `notes` and the trainings that `failed`.
        tables: the answer as people read it, by title.
        name: the name of the files.
        others: other files that were written.

    Raises:
        OSError: a file cannot be written.
    """
    out = ablation.out
    write_text(out / f"{name}.json", json.dumps(answer, indent=2) + "\n")
    files = [out / f"{name}.json", *others]
    if runs := read_trained(ablation, trainings):
        compared = compare_runs(runs)
        shown = {"title": answer["name"], "notes": answer["notes"], "answers": {**tables}}
        files += write_comparison(runs, compared, out, name=name, shown=shown)
    lines = [answer["name"], *tables.values(), *answer["notes"], *map(str, files)]
    return Outcome(answer, lines, PROBLEMS if answer["failed"] else WHOLE)


def read_trained(ablation: Ablation, trainings: Iterable[Training]) -> list[TrainingRun]:
    """Return the runs of the trainings that did not fail, by arm and seed; arms may share a training."""
    done = {one.task.digest: one for one in trainings if not one.result.failed}
    return [
        replace(read_run(ablation.results_folder(one)), name=f"{one.arm.name} seed {one.seed}") for one in done.values()
    ]
