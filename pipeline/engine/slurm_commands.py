"""Slurm's own commands: sbatch, squeue, scancel and scontrol, and the options that a person gives to sbatch."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

from shards.errors import InputError, RunError

_TIMEOUT_SECONDS = 120
_GIVE_UP_SECONDS = 1800.0
_PAUSE_SECONDS = 5.0
_PASSING = ("unable to contact", "timed out", "connection refused", "temporarily", "zero bytes were transmitted")
"""Parts of the messages of a controller that restarts or is overloaded."""
OWN_OPTIONS = ("array", "comment", "job-name", "parsable", "signal", "wrap", "wait", "test-only")
"""Options of sbatch that the executor sets itself."""


class SlurmLostError(RunError):
    """Slurm's controller does not answer."""


class Element(NamedTuple):
    """An element of a job array, as squeue lists it."""

    job: str
    """The id of the array."""
    number: int
    state: str
    """As squeue names it: PENDING, RUNNING, TIMEOUT, ..."""
    reason: str
    """Why it is in this state."""
    memory: str
    """The least memory that it asked for; "0" for a default."""
    comment: str


def parse_options(options: Sequence[str]) -> list[str]:
    """Return sbatch's arguments for options such as `time=2:00:00` or `exclusive`.

    Raises:
        InputError: an option is one that the executor sets, or not one at all.
    """
    arguments: list[str] = []
    for option in options:
        key, _, value = option.lstrip("-").partition("=")
        if not key or key != key.strip() or "\n" in value:
            raise InputError(f"--slurm {option!r}: expected KEY=VALUE, an option of sbatch such as time=2:00:00")
        if any(own.startswith(key) for own in OWN_OPTIONS):  # sbatch accepts the beginning of an option's name
            raise InputError(f"--slurm {key}: the build sets this option of sbatch itself. Leave it out.")
        arguments.append(f"--{option.lstrip('-')}")
    return arguments


def submit(script: str) -> str:
    """Submit a batch script and return the job's id; `InputError` if sbatch refuses it."""
    return _run(["sbatch", "--parsable"], script).split(";")[0].strip()


def check_script(script: str) -> None:
    """Let sbatch check a script without submitting it; `InputError` if sbatch refuses it."""
    _run(["sbatch", "--test-only"], script)


def list_elements(job_name: str) -> list[Element]:
    """Return the elements of this person's jobs of a name that Slurm still remembers."""
    columns = "%F|%K|%T|%r|%m|%k"
    lines = _run(
        ["squeue", "--me", "--noheader", "--array", "--states=all", f"--name={job_name}", f"--format={columns}"]
    )
    rows = [line.strip().split("|", 5) for line in lines.splitlines() if line.strip()]
    return [
        Element(job, int(number), state, reason, memory, comment)
        for job, number, state, reason, memory, comment in rows
        if number.isdigit()
    ]


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs or elements (`JOB_ELEMENT`); jobs that have already ended are not an error."""
    if jobs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["scancel", *jobs], env=_environment(), capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
            )


def read_max_array_size() -> int:
    """Return how many elements an array of this cluster may have."""
    for line in _run(["scontrol", "show", "config"]).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize":
            return max(1, int(value))
    raise InputError("scontrol show config: names no MaxArraySize. Is this Slurm 17 or newer?")


def _run(command: list[str], text: str = "") -> str:
    """Return what a command prints; wait for a controller that does not answer."""
    until = time.monotonic() + _GIVE_UP_SECONDS
    while True:
        if shutil.which(command[0]) is None:
            raise InputError(
                f"{command[0]}: no such command. Start the build where Slurm's commands are, a login node for example, "
                "or choose --engine local."
            )
        try:
            done = subprocess.run(
                command,
                input=text,
                env=_environment(),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
            message = done.stderr.strip()
        except subprocess.TimeoutExpired:
            done, message = None, f"timed out after {_TIMEOUT_SECONDS} s"
        if done is not None and done.returncode == 0:
            return done.stdout
        # A controller that restarts answers in a minute; anything else is an answer.
        if not any(part in message.lower() for part in _PASSING):
            raise InputError(_explain(command[0], message))
        if time.monotonic() > until:
            raise SlurmLostError(
                f"{command[0]}: {message}, for {_GIVE_UP_SECONDS / 60:.0f} minutes. Submitted jobs keep "
                "running. Run the same command again when Slurm answers: it finds them."
            )
        time.sleep(_PAUSE_SECONDS)


_REMEDIES = {
    ("partition",): "`sinfo` lists the partitions: --slurm partition=NAME.",
    ("unrecognized option",): "`sbatch --help` lists the options: --slurm KEY=VALUE stands for --KEY=VALUE.",
    ("invalid option",): "`sbatch --help` lists the options: --slurm KEY=VALUE stands for --KEY=VALUE.",
    ("limit", "submit"): "The cluster limits how many elements you may have: --slurm-elements N makes arrays smaller.",
    ("time limit",): "`sinfo -o '%P %l'` shows the limits: --slurm time=HH:MM:SS.",
    ("account",): "--slurm account=NAME.",
}
"""What to do about a refusal, by the words in its message."""


def _explain(command: str, message: str) -> str:
    lowered = message.lower()
    remedies = (remedy for words, remedy in _REMEDIES.items() if all(word in lowered for word in words))
    remedy = next(remedies, "Change the options given by --slurm.")
    return f"{command} refuses: {' '.join(message.split())}. {remedy}"


def _environment() -> dict[str, str]:
    """Return this process's environment without what Slurm set if it is itself in a job: an array inherits that."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {name: value for name, value in os.environ.items() if name in kept or not name.startswith("SLURM_")}
