"""What a driver makes of the jobs of the one before it, whose calls may be others: squeue's answers are given here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from pipeline.engine import slurm_commands, slurm_executor
from pipeline.engine.slurm_commands import Element
from pipeline.engine.slurm_element import ElementResults
from pipeline.engine.tasks import Outcome
from shards.stores.store import WritableStore
from tests.support.stage_tasks import make_calls

NOT_ASKED_FOR = "0" * 32


class Queue:
    """A stage of one call, and what Slurm knows of an earlier driver's job."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.elements: list[Element] = []
        self.cancelled: list[list[str]] = []
        self.said: list[str] = []
        monkeypatch.setattr(slurm_commands, "list_elements", lambda name: self.elements)
        monkeypatch.setattr(slurm_commands, "cancel", lambda jobs: self.cancelled.append(list(jobs)))
        monkeypatch.setattr(slurm_executor, "_SETTLE_SECONDS", 0)
        self.calls = make_calls(folder / "encode", [{"name": "asked", "text": "x"}])
        self.job: WritableStore = self.calls[0].stage.child(".slurm-host-1-aaaaaaaaaaaa")
        executor: Any = SimpleNamespace(most_elements=4, say=self.said.append)
        self.stage = slurm_executor._Stage(executor, self.calls, lambda *_: None)

    def hold(self, *numbers: int, state: str = "RUNNING") -> None:
        """Let Slurm list elements of the job."""
        self.elements = [Element("7", number, state, "None", "", str(self.job)) for number in numbers]

    def begin(self, results: ElementResults) -> None:
        """Let element 0 have two calls, of which the driver asks for the second, and results so far."""
        digests = [NOT_ASKED_FOR, self.calls[0].task.digest]
        self.job.put("0.calls", json.dumps({"versions": {}, "digests": digests, "calls": ["", ""]}).encode())
        self.job.put("0.results", TypeAdapter(ElementResults).dump_json(results))
        self.hold(0)
        self.stage._find_jobs()


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(tmp_path, monkeypatch)


def test_damage_that_a_call_of_another_recipe_found_is_not_ours(queue: Queue):
    damage = ("/elsewhere/" + NOT_ASKED_FOR, "tokens.bin", "differs")
    queue.begin(ElementResults(outcomes=[Outcome(1, 1, damage), Outcome(2, 2)], end="all"))
    queue.stage._look()
    assert queue.stage.outcomes == [Outcome(2, 2)]
    assert queue.said == [f"{queue.stage.name}: goes on with job 7, 1 element"]


def test_an_error_of_a_call_of_another_recipe_is_not_ours(queue: Queue):
    queue.begin(ElementResults(end="error", error=("input", "a source that the recipe no longer names is gone")))
    queue.stage._look()
    assert list(queue.stage.waiting) == [0]


@pytest.mark.parametrize("state", ["TIMEOUT", "OUT_OF_MEMORY"])
def test_the_end_of_a_call_of_another_recipe_blames_no_other(queue: Queue, state: str):
    queue.begin(ElementResults())
    queue.hold(0, state=state)
    queue.stage._look()
    queue.stage._look()
    assert (list(queue.stage.waiting), queue.stage.suspects) == ([0], [])


def test_elements_without_a_call_of_ours_are_cancelled_together(queue: Queue):
    queue.hold(*range(1000))
    queue.stage._find_jobs()
    assert queue.cancelled == [[f"7_{number}" for number in range(1000)]]


def test_a_scancel_that_hangs_hides_no_other_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "scancel").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexec sleep 5\n')
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm_commands, "_TIMEOUT_SECONDS", 2)
    slurm_commands.cancel(["7_0", "7_1"])
    assert (tmp_path / "asked").read_text() == "7_0 7_1\n"
