"""The executor for Slurm: one job array for a stage, whose elements run several calls each if the stage has many.

Slurm places the elements, notices dead nodes and requeues. This process submits, asks squeue how the elements are,
reads their results in a folder that the nodes share, and submits again what was lost. It may be killed: started again,
from any node, it finds its jobs by their name and goes on with them.

datatrove's SlurmPipelineExecutor is not used. It submits and returns, but a stage's tasks are made of the results of
the stage before; its completion marks are by rank, but ours is the receipt; a rank that runs out of time begins the
whole element again; a task's error stays in a log; and the nodes read a pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from pipeline.engine import slurm_commands as slurm
from pipeline.engine.executors import Advance, Executor, damages_of
from pipeline.engine.receipts import WorkFileDamagedError
from pipeline.engine.remote_workers import count_loss, list_versions
from pipeline.engine.slurm_element import WARNING_SECONDS, ElementResults, read_results
from pipeline.engine.tasks import Call, Outcome, call_to_json
from shards.errors import InputError, RunError, plural
from shards.stores.files import unique_name
from shards.stores.store import WritableStore
from shards.terminal.reporter import Note, no_note
from shards.terminal.workers import map_in_threads

_POLL_SECONDS = (0.5, 10.0)
"""How often squeue is asked: soon after something has changed, then less and less often."""
_SETTLE_SECONDS = 60.0
"""How long the results of an element may take to be seen on this host (NFS), and how long it may be completing, or
unknown to squeue, before its calls run again. That costs little if they are done: a look at their receipts."""
_BEGIN_SECONDS = 3.0
"""How long the first results of an element that has failed may take to be seen."""
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
}
_OVER = {*_ENDED, "COMPLETING"}
_NOBODYS_FAULT = {"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED"}
_KILLED = "JobLaunchFailure"
"""Slurm's reason for an element whose process was killed, or whose node is gone."""
_NEVER = {
    *("AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS"),
    *("PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed"),
}
"""Reasons of squeue for which an element waits forever."""
_LOG_LINES = 12
_PUTS_AT_ONCE = 16
"""Files of calls that are written at the same time: a job may have a thousand."""


@dataclass(slots=True)
class _Element:
    """An element of a job, and its calls."""

    numbers: list[int]
    """Of its calls; -1 for one that is no longer asked for."""
    done: int = 0
    """How many of its first calls have ended."""
    ended_at: float | None = None
    """When it was first seen to have ended, or to be completing."""


@dataclass(slots=True)
class _Job:
    """A job array that is in the queue or runs."""

    id: str
    store: WritableStore
    elements: dict[int, _Element] = field(default_factory=dict[int, _Element])
    """Those that are not finished."""


class SlurmExecutor(Executor):
    """Runs calls as elements of job arrays, which have ended or were cancelled at the end of each stage."""

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        workers: int | None = None,
        elements: int | None = None,
        setup: str = "",
        say: Note = no_note,
    ):
        """Let sbatch check the options.

        Args:
            options: options of sbatch: `["partition=main", "time=2:00:00"]`.
            workers: the most elements that run at the same time; as many as Slurm allows when None.
            elements: the most elements of an array; what the cluster allows when None.
            setup: shell lines that run on the node before Python: `module load ...`.
            say: prints a line for a person.

        Raises:
            InputError: Slurm is not here, or sbatch refuses the options.
        """
        self.say = say
        self._arguments = slurm.parse_options(options)
        self._setup = [setup] if setup else []
        self._limit = workers
        slurm.check_script(self.script("tokenmill", 1, None))
        most = slurm.read_max_array_size()
        self.most_elements = min(most, elements or most)

    @property
    def workers(self) -> int:
        """Elements that may run at the same time."""
        return self._limit or self.most_elements

    def run(self, calls: Sequence[Call], advance: Advance) -> list[WorkFileDamagedError]:
        """Run each call to its end; see `Executor`.

        Raises:
            InputError: Slurm refuses a job.
            RunError: a call took all the time that a job has, or was lost again and again.
        """
        return _Stage(self, calls, advance).run() if calls else []

    def show(self, calls: Sequence[Call]) -> str:
        """Return the batch script of the job that `run` would submit first."""
        store = calls[0].stage
        return self.script(_job_name(store), min(len(calls), self.most_elements), store.child(".slurm-JOB"))

    def script(self, name: str, elements: int, job: WritableStore | None) -> str:
        """Return the batch script of a job; without a job's folder, one that does nothing."""
        throttle = f"%{self._limit}" if self._limit and self._limit < elements else ""
        log = "/dev/null" if job is None or job.folder is None else f"{job.folder}/%a.log"
        arguments = [
            f"--job-name={name}",
            f"--array=0-{elements - 1}{throttle}",
            f"--comment={job or name}",
            f"--output={log}",
            "--open-mode=append",
            "--requeue",
            f"--signal=B:USR1@{WARNING_SECONDS}",
            "--ntasks=1",
            *self._arguments,
        ]
        lines = ["#!/bin/bash", *(f"#SBATCH {shlex.quote(argument)}" for argument in arguments)]
        if job is None:
            return "\n".join([*lines, "true", ""])
        safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]  # as this process finds its modules
        command = [sys.executable, *safe, "-m", "pipeline.engine.slurm_element", str(job)]
        return "\n".join([*lines, *self._setup, f"exec {shlex.join(command)}", ""])


def _job_name(stage: WritableStore) -> str:
    """Return the name of a stage's jobs, by which a driver that is started again finds them."""
    address = str(stage)
    return f"tokenmill-{address.rpartition('/')[2]}-{hashlib.sha256(address.encode()).hexdigest()[:8]}"


class _Stage:
    """The jobs of one stage."""

    def __init__(self, executor: SlurmExecutor, calls: Sequence[Call], advance: Advance):
        self.executor = executor
        self.calls = calls
        self.advance = advance
        self.store = calls[0].stage
        self.name = _job_name(self.store)
        self.jobs: list[_Job] = []
        self.outcomes: list[Outcome] = []
        self.losses = Counter[str]()
        self.reasons = {"None", "Resources", "Priority", "JobArrayTaskLimit"}
        """Why elements wait, as far as it has been said or is usual."""
        self.waiting = deque(range(len(calls)))
        self.suspects: list[int] = []
        """Calls that were at work when their element was lost: each gets an element to itself."""

    def run(self) -> list[WorkFileDamagedError]:
        """Submit, watch and submit again until each call has ended."""
        self._find_jobs()
        pause = _POLL_SECONDS[0]
        try:
            while True:
                if self.waiting or self.suspects:
                    self._submit()
                if not self.jobs:
                    break
                time.sleep(pause)
                pause = _POLL_SECONDS[0] if self._look() else min(_POLL_SECONDS[1], pause * 1.3)
        except slurm.SlurmLostError:
            raise  # the jobs go on
        except BaseException:
            slurm.cancel([job.id for job in self.jobs])
            for job in self.jobs:
                job.store.delete_all()
            raise
        return damages_of(self.outcomes)

    def _find_jobs(self) -> None:
        """Go on with the jobs that an earlier driver has submitted; cancel what they do that is not asked for."""
        # A job's calls are known by their digests: the tasks of this driver may be others.
        numbers = {call.task.digest: number for number, call in enumerate(self.calls)}
        covered = set[int]()
        unwanted: list[str] = []
        jobs: dict[str, _Job] = {}
        for element in slurm.list_elements(self.name):
            if element.state in _OVER:
                continue
            job = jobs.setdefault(element.job, _Job(element.job, self.store.child(element.comment.rpartition("/")[2])))
            # Mark a call that another element runs already; cancel an element without any other call.
            digests: list[str] = []
            with contextlib.suppress(FileNotFoundError):
                digests = json.loads(job.store.read(f"{element.number}.calls"))["digests"]
            own = [numbers.get(digest, -1) for digest in digests]
            if set(own) <= {-1} | covered:
                unwanted.append(f"{job.id}_{element.number}")
                continue
            job.elements[element.number] = _Element([-1 if number in covered else number for number in own])
            covered |= set(own) - {-1}
        slurm.cancel(unwanted)
        for job in (job for job in jobs.values() if job.elements):
            self.jobs.append(job)
            self.executor.say(f"{self.name}: goes on with job {job.id}, {plural(len(job.elements), 'element')}")
        self.waiting = deque(number for number in self.waiting if number not in covered)

    def _submit(self) -> None:
        """Submit what waits as one array."""
        # Suspects first, alone; the rest shares the elements that are left.
        most = self.executor.most_elements
        alone, self.suspects = self.suspects[:most], self.suspects[most:]
        count = min(len(self.waiting), most - len(alone))
        shares = [[number] for number in alone]
        if count:
            spread = list(self.waiting)
            shares += [spread[start::count] for start in range(count)]  # the first calls are the largest
            self.waiting.clear()
        job = _Job("", self.store.child(f".slurm-{unique_name()}"))
        versions = list_versions()

        def put(index: int) -> None:
            calls = [self.calls[number] for number in shares[index]]
            digests, texts = [call.task.digest for call in calls], list(map(call_to_json, calls))
            part = {"versions": versions, "digests": digests, "calls": texts}
            job.store.put(f"{index}.calls", json.dumps(part).encode())

        try:
            map_in_threads(put, range(len(shares)), _PUTS_AT_ONCE)
            job.id = slurm.submit(self.executor.script(self.name, len(shares), job.store))
        except BaseException:
            job.store.delete_all()
            raise
        job.elements = {index: _Element(share) for index, share in enumerate(shares)}
        self.jobs.append(job)

    def _look(self) -> bool:
        """Look at every element that is not finished; return whether anything has changed."""
        listed = {(element.job, element.number): element for element in slurm.list_elements(self.name)}
        changed = False
        for job in self.jobs:
            for index, element in list(job.elements.items()):
                state = listed.get((job.id, index))
                if state is not None and state.state == "PENDING":
                    element.ended_at = None
                    self._note_waiting(state)
                    continue
                changed |= self._look_at(job, index, element, state)
        for job in [job for job in self.jobs if not job.elements]:
            self.jobs.remove(job)
            job.store.delete_all()
        return changed

    def _note_waiting(self, element: slurm.Element) -> None:
        """Say once for each reason why elements wait.

        Raises:
            InputError: they would wait forever.
        """
        if element.reason in _NEVER:
            raise InputError(
                f"Slurm job {element.job} would wait forever: {element.reason}. Change the options given by --slurm; "
                "`sinfo -l` shows what the partitions allow."
            )
        if element.reason not in self.reasons:
            self.reasons.add(element.reason)
            self.executor.say(f"Slurm job {element.job} waits: {element.reason}")

    def _look_at(self, job: _Job, index: int, element: _Element, state: slurm.Element | None) -> bool:
        """Take an element's results; if it has ended, close it. Return whether anything has changed."""
        over = state is None or state.state in _OVER
        written = read_results(job.store, index)
        results = written or ElementResults()
        # Take what has been written since the last look.
        changed = len(results.outcomes) > element.done
        for number, outcome in list(zip(element.numbers, results.outcomes, strict=False))[element.done :]:
            if number >= 0:
                self.outcomes.append(outcome)
                self.advance(number, outcome.bytes, outcome.tokens)
        element.done = max(element.done, len(results.outcomes))  # a requeued element begins again
        left = [number for number in element.numbers[element.done :] if number >= 0]
        # An error of a call that nobody asks for any more is nobody's.
        at_work = element.numbers[len(results.outcomes) :][:1]
        if results.end == "error" and results.error and at_work != [-1]:
            _raise(*results.error)
        # Close an element that has said why it ended, or that has ended without a word.
        if results.end is not None:
            self.waiting.extend(left)
            del job.elements[index]
            return True
        if not over:
            element.ended_at = None
            if left and not changed:
                self.advance(left[0], 0, 0)
            return changed
        if not self._has_settled(element, state, begun=written is not None):
            return changed
        del job.elements[index]
        if left:
            self._lose(job, index, element, left, state)
        return True

    def _has_settled(self, element: _Element, state: slurm.Element | None, *, begun: bool) -> bool:
        """Return whether an element that has ended without saying so has had time to say it."""
        now = time.monotonic()
        element.ended_at = element.ended_at or now
        name = state.state if state else ""
        if name not in _ENDED or (name == "COMPLETED" and begun):
            return now - element.ended_at >= _SETTLE_SECONDS
        return begun or now - element.ended_at >= _BEGIN_SECONDS

    def _lose(self, job: _Job, index: int, element: _Element, left: list[int], state: slurm.Element | None) -> None:
        """Have the calls that an element leaves run again.

        Raises:
            RunError: running again does not help.
        """
        name = state.state if state else "gone from squeue"
        first = self.calls[left[0]]
        written, log = read_results(job.store, index), _read_log(job, index)
        ours = element.numbers[element.done] >= 0  # the call that was at work
        if name == "TIMEOUT" and not element.done and ours:
            raise RunError(
                f"{first}: was not finished when the time of its job was over. Give jobs more: --slurm time=HH:MM:SS. "
                "Finished work is kept."
            )
        if name == "FAILED" and written is None and state and state.reason != _KILLED:
            none = "(no output)" if job.store.folder else "(not kept in a bucket; --slurm output=FILE keeps them)"
            raise RunError(
                f"Slurm job {job.id}_{index} ended before its first task began. Its last lines:\n{log or none}"
                "\nThe nodes must have this Python and Tokenmill under the same path; --slurm-setup 'COMMAND' runs "
                "a command first."
            )
        if not ours:
            self.waiting.extend(left)
            return
        if name not in _NOBODYS_FAULT and name != "TIMEOUT":
            how = f"element {job.id}_{index} ended as {name}"
            if written:
                how += f", with {written.peak_bytes / 1e9:.2f} GB of memory when it last wrote"
            if state and state.memory not in ("", "0"):
                how += f"; its job asked for {state.memory}"
            how += f". Its last lines:\n{log}\n" if log else ""
            count_loss(self.losses, first, how, "Give jobs more memory: --slurm mem-per-cpu=8G.")
        self.executor.say(f"{first}: its element {job.id}_{index} ended as {name}; it runs again")
        self.suspects.append(left[0])
        self.waiting.extend(left[1:])


def _read_log(job: _Job, index: int) -> str:
    try:
        text = job.store.read(f"{index}.log").decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-_LOG_LINES:])


def _raise(kind: str, message: str) -> NoReturn:
    """Raise what a call raised on its node."""
    if kind == "input":
        raise InputError(message)
    if kind == "run":
        raise RunError(message)
    raise RuntimeError(f"a task raised {kind} on its node:\n{message}")
