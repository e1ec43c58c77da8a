"""The harness of all benchmarks: sides by turns, processes measured whole, figures in tables.

A topic is a function `bench_NAME(work, quick)` in a module of this folder; it returns its figures by name. Everything
timed is compared within one run, as a ratio: seconds on a shared machine are not stable, ratios are.
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[2]
MB = 1_000_000
Figures = dict[str, Any]
T = TypeVar("T")

median = statistics.median
"""Of figures: one slow run on a shared machine must not decide."""


class TopicSkippedError(Exception):
    """A topic cannot run here; the message says why."""


class Usage(NamedTuple):
    """What something took."""

    seconds: float
    """By the clock."""
    core_seconds: float
    """Of the processor, in all its processes."""


def alternate(rounds: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Run the sides by turns, each once a round; return what each gave."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            found[name].append(run())
    return found


def timed(function: Callable[[], T]) -> tuple[Usage, T]:
    """Call a function; return what this process took for it, and its result."""
    began, used = time.perf_counter(), time.process_time()
    result = function()
    return Usage(time.perf_counter() - began, time.process_time() - used), result


def run_python(arguments: Sequence[str], **environment: str) -> tuple[Usage, str]:
    """Run Python with arguments; return what it took, all its processes included, and its output.

    Raises:
        RuntimeError: it failed.
    """
    # Modules keep their compiled form, as on a person's machine; and with `-P` none is taken from this folder.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    meter = str(Path(__file__).with_name("core_seconds.py"))
    # Into a file: a pipe would be waited for until the last helper process has closed it, after the command's end.
    with tempfile.TemporaryFile("w+") as output, tempfile.NamedTemporaryFile("r") as figures:
        command = [sys.executable, "-P", meter, figures.name, sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=ROOT, env=kept | environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
        output.seek(0)
        said = output.read()
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, arguments))}: exit code {done.returncode}\n{said[-2000:]}")
        return Usage(**json.load(figures)), said


def run_module(module: str, *arguments: object, **environment: str) -> Any:
    """Run a module in a process of its own; return the JSON of the last line that it prints."""
    _, said = run_python(["-m", module, *map(str, arguments)], **environment)
    return json.loads(said.splitlines()[-1])


def build(
    work: Path, recipe: Path | str, *options: str, name: str = "set", keep: bool = True, **environment: str
) -> Usage:
    """Build from nothing with our command, two workers and full validation: the set in `work/NAME`.

    Args:
        work: scratch.
        recipe: a file, or the text of one.
        options: more flags, which win.
        name: of the set.
        keep: whether the set and its work folder stay.
        environment: more variables.
    """
    if isinstance(recipe, str):
        (work / f"{name}.toml").write_text(recipe)
        recipe = work / f"{name}.toml"
    remove(work, name, f"{name}.work")
    command = ["-m", "tokenmill", "build", str(recipe), "--out", str(work / name), "--workers", "2", *options]
    usage, _ = run_python(command, **environment)
    if not keep:
        remove(work, name, f"{name}.work")
    return usage


def remove(folder: Path, *names: str) -> None:
    """Remove folders in a folder, as far as they exist."""
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)


def in_process(function: Callable[..., Figures], *arguments: Any) -> Figures:
    """Call a function in a new process; return its figures with what that process took, and its peaks of memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_watch, function, arguments).result()


def _watch(function: Callable[..., Figures], arguments: tuple[Any, ...]) -> Figures:
    def reads() -> tuple[int, int]:
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(counts["syscr"]), int(counts["rchar"])

    before, imported = reads(), memory_of("self", "VmRSS")
    usage, figures = timed(lambda: function(*arguments))
    (number, size), peak = reads(), memory_of("self", "VmHWM")
    return figures | {
        "wall_s": usage.seconds,
        "cpu_s": usage.core_seconds,
        "reads": number - before[0],
        "read_mb": (size - before[1]) / MB,
        "own_mb": (peak - imported) / MB,
        "resident_mb": peak / MB,
    }


def memory_of(pid: int | str, field: str) -> int:
    """Return bytes of a process's memory from the kernel, such as its peak `VmHWM`; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{field}:")), 0)


def watch_build(work: Path, recipe: str) -> tuple[int, int]:
    """Build from nothing; return the peak bytes of the command and of its largest other process."""
    import psutil

    path, log = work / "memory.toml", work / "memory.log"
    path.write_text(recipe)
    remove(work, "memory", "memory.work")
    command = [sys.executable, "-m", "tokenmill", "build", str(path), "--out", str(work / "memory"), "--workers", "2"]
    peaks: dict[int, int] = {}
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended between two looks
                for pid in [process.pid, *(child.pid for child in root.children(recursive=True))]:
                    peaks[pid] = max(peaks.get(pid, 0), memory_of(pid, "VmHWM"))
            time.sleep(0.01)
    if process.returncode:
        raise RuntimeError(f"build: exit code {process.returncode}\n{log.read_text()[-2000:]}")
    remove(work, "memory", "memory.work")
    own = peaks.pop(process.pid)
    return own, max(peaks.values(), default=0)
