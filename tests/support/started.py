"""Builds in a session of their own, to be killed."""

import os
import subprocess
import time
from pathlib import Path

import psutil

from tests.support.builds import command, wait_until

SECONDS = 60


class Started:
    """A build that runs in a session of its own; its stderr goes to a file."""

    def __init__(self, recipe: Path, out: Path, *options: str):
        self._errors = out.with_name("stderr.txt")
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command(recipe, out, *options), stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )

    def wait(self) -> tuple[int, str]:
        """Return exit code and stderr when the build and all its workers have ended."""
        code = self.process.wait(SECONDS)
        wait_until(lambda: not session_processes(self.process.pid), "the workers of an ended build to end")
        return code, self._errors.read_text()


def session_processes(leader: int) -> list[psutil.Process]:
    """Return the processes of a session that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def attempts(*folders: Path) -> set[Path]:
    """Return the folders of attempts at tasks, also of those that were killed."""
    return {path for folder in folders for path in folder.glob(".*.tmp")}


def kill_in(stage: str, recipe: Path, out: Path, delay_s: float) -> bool:
    """Start the build, kill it when a task of a stage is at work; return whether it was."""
    folders = (out.with_name(f"{out.name}.work") / stage, *([out] if stage == "assemble" else []))
    before = attempts(*folders)
    build = Started(recipe, out, "--workers", "2")
    # Over a minute, where other tests have the processors.
    wait_until(
        lambda: attempts(*folders) - before or build.process.poll() is not None, stage, seconds=240, pause_s=0.001
    )
    time.sleep(delay_s)
    build.process.kill()
    build.wait()
    return bool(attempts(*folders) - before)
