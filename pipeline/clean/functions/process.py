"""The processes of a recipe's functions: two for each function, in every process that cleans, each with a guard.

They differ in their hash seed alone. They have few variables of the environment, one thread for numpy's products, no
descriptors of this process, and `/` as the working directory. They end with it, and so does all that they have started.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterable, Sized
from contextlib import contextmanager, suppress

import numpy as np
import pyarrow as pa
from pydantic import NonNegativeInt

from pipeline.arrow_arrays import text_bytes, text_offsets
from pipeline.clean.functions import child
from pipeline.clean.functions.modules import check_allowed, describe_refusal, pin_packages
from pipeline.recipe.clean_recipe import PythonFilter
from pipeline.recipe.schema import SourceRecipe
from shards.config import Settings
from shards.errors import InputError
from shards.terminal.display import printable

_PASSED = ("HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR")
ANSWER_S = 3600.0
"""A function that takes longer for an answer is taken for one that never gives it."""
_FIXED = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TZ": "UTC"}


class _Sent(Settings):
    """An answer as the process of a function sends it: `child.Answer`, with the sizes of new texts."""

    fault: str = ""
    index: NonNegativeInt = 0
    verdicts: tuple[NonNegativeInt | tuple[str] | None, ...] = ()


class FunctionProcess:
    """A process of a function."""

    is_fresh = True
    """Whether no text has been given to it."""

    def __init__(self, table: PythonFilter, seed: int):
        """Start the process and load the function; only with the hash seed 0 its prints are seen.

        Raises:
            InputError: its modules cannot be imported, or lack it.
        """
        own, other = socket.socketpair()
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-u", child.__file__],
            stdin=other.fileno(),
            stdout=subprocess.DEVNULL if seed else 2,
            stderr=subprocess.DEVNULL if seed else None,
            env=_FIXED | passed | table.environment | {"PYTHONHASHSEED": str(seed)},
            cwd="/",
            start_new_session=True,
        )
        other.close()
        own.settimeout(ANSWER_S)
        self._channel = own.makefile("rwb", 1 << 20)
        own.close()
        threading.Thread(target=self._wake_guard, daemon=True).start()
        _, module, name = table.parts
        told = {"module": module, "name": name, "modules": table.modules}
        try:
            fault = self._exchange([told])["fault"]
        except ChildProcessError as error:
            fault = f" cannot be imported: it {error}."
        if fault:
            self.close()
            raise InputError(f"{table.step}{printable(fault)}")

    def ask(self, texts: pa.LargeStringArray) -> child.Answer:
        """Ask the function about texts.

        Raises:
            ChildProcessError: the process has ended, or never answers.
        """
        self.is_fresh = False
        return self._exchange(np.diff(text_offsets(texts)).tolist(), text_bytes(texts))

    def _exchange(self, told: Sized, data: bytes | memoryview = b"") -> child.Answer:
        try:
            self._channel.write(json.dumps(told).encode() + b"\n")
            self._channel.write(data)
            self._channel.flush()
            sent = _Sent.model_validate_json(self._channel.readline())
            verdicts = [self._channel.read(one).decode() if isinstance(one, int) else one for one in sent.verdicts]
            is_answer = sent.index < len(told) if sent.fault else len(verdicts) == len(told)
            if not is_answer or self._channel.readline() != b"\n":
                raise ValueError("no answer, or half of one")  # the function writes to the socket, or has ended
            return {"fault": sent.fault, "index": sent.index, "verdicts": verdicts}
        except (OSError, ValueError, MemoryError, OverflowError) as error:
            status = self.close()
            number = -status if status < 0 else 256 - status
            how = signal.Signals(number).name if number in {*signal.Signals} else f"exit status {status}"
            late = isinstance(error, TimeoutError) and f"gave no answer in {ANSWER_S:,.0f} s"
            raise ChildProcessError(late or f"ended its process ({how})") from error

    def close(self) -> int:
        """End the process; return its exit status if it had ended."""
        with suppress(OSError):
            self._channel.close()
        return self._process.wait()

    def _wake_guard(self) -> None:
        while self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)  # a function may have stopped it, and then ended or stopped
            time.sleep(1)


_open: dict[str, tuple[FunctionProcess, FunctionProcess]] = {}


def open_function(table: PythonFilter) -> tuple[FunctionProcess, FunctionProcess]:
    """Return the processes of a recipe's function, started once: whose verdicts count, and which checks them.

    Raises:
        InputError: nobody allowed it to run, or it cannot be loaded.
        MissingExtraError: this node has not the packages of the driver.
    """
    if not table.is_allowed:
        raise InputError(describe_refusal(table))
    key = f"{table.function} {table.packages} {table.environment}"
    if key not in _open:
        pin_packages(table)
        _open[key] = FunctionProcess(table, 0), FunctionProcess(table, 1)
    return _open[key]


def start_functions(sources: Iterable[SourceRecipe]) -> None:
    """Start the processes of sources' functions, before any work.

    Raises:
        InputError: with each that nobody has allowed to run; or one cannot be loaded.
        MissingExtraError: a package that one needs is not installed.
    """
    for table in check_allowed(sources):
        open_function(table)


@atexit.register
def close_functions() -> None:
    """End the processes of all functions."""
    while _open:
        for process in _open.popitem()[1]:
            process.close()


@contextmanager
def closing_functions() -> Generator[None]:
    """End the processes of all functions at the end of `with`."""
    try:
        yield
    finally:
        close_functions()
