"""The executor for Ray: a core task for each call, on a cluster or on a Ray that is started on this machine.

Ray places the tasks, notices dead nodes and adds nodes. A task gets a pickled call and returns what it reported last,
so that no data goes through Ray's object store. At most twice as many tasks as there are CPUs are given to Ray.

Ray's own retries are off, because it does not say what it retries. A call whose node died runs again without a bound. A
call whose process died runs again with a node to itself, at most `MAX_LOSSES` times.

A task asks for no memory. Ray only places tasks by what they ask for: it does not limit them, a task that asks for more
than any node has waits forever without a word, and what a unit takes is not known before it is read.

On its node a call is unpickled only after the node's software was compared with the driver's.
"""

# Ray ships no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import contextlib
import logging
import os
import pickle
import platform
import re
import socket
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline.engine.executors import Executor, count_loss
from pipeline.engine.stage_progress import Advance
from pipeline.engine.tasks import Call, run_call
from shards.errors import InputError, MissingExtraError, import_extra
from shards.stores.object_client import NoCredentialsError
from shards.terminal.display import say
from shards.terminal.reporter import Note, no_note, report_to

_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
_NODE_DIED = "its node died"


_PACKAGES = ("tokenmill", "awkward", "gigatoken", "numpy", "pyarrow", "tokenizers", "xxhash", "zstandard")
"""The packages whose version can change the bytes that a task writes."""

_EXTRA_PACKAGES = ("datasets", "datatrove", "fasttext-predict", "numba", "spacy", "trafilatura", "lxml")
"""The same, of packages that only some recipes need. A node without one is refused when a task needs it."""

_SETTINGS = ("HF_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")


class RayExecutor(Executor):
    """Runs calls as Ray tasks. Closing it disconnects, and stops a Ray that it has started."""

    def __init__(self, address: str | None = None, *, workers: int | None = None, say: Note = no_note):
        """Connect to a cluster of Ray. Each call checks that its node can run it.

        Args:
            address: HOST:PORT of a cluster's head; "local" starts a Ray of this machine. When None, `RAY_ADDRESS`,
                then a cluster that this machine is part of, then "local".
            workers: the most calls that run at the same time; every CPU of the cluster when None.
            say: prints a line for a person.

        Raises:
            InputError: there is no Ray at the address.
        """
        self._ray: Any = import_extra("ray")
        self._limit = workers
        self._say = say
        self._connect(address or os.environ.get("RAY_ADDRESS"))

    @property
    def workers(self) -> int:  # with the nodes that are up now
        cpus = max(1, int(self._ray.cluster_resources().get("CPU", 0)))
        return min(cpus, self._limit or cpus)

    def run(self, calls: Sequence[Call], advance: Advance) -> None:
        """Run each call to its end; see `Executor`."""
        run = self._ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(run_on_node)
        versions, settings, losses = list_versions(), list_settings(), Counter[str]()
        waiting, alone = deque(range(len(calls))), set[int]()
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                # Give Ray more calls.
                while waiting and len(running) < (self._limit or 2 * self.workers):
                    number = waiting.popleft()
                    cpus = self._cpus_of_largest_node() if number in alone else 1
                    options = run.options(name=str(calls[number]), num_cpus=cpus)
                    running[options.remote(pickle.dumps(calls[number]), versions, settings)] = number
                    advance(number, 0, 0)

                # Take what has ended.
                ended, _ = self._ray.wait(list(running), num_returns=len(running), timeout=0)
                if not ended:
                    ended, _ = self._ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
                for task in ended:
                    number = running.pop(task)
                    outcome = self._result_of(task, calls[number], losses)
                    if not isinstance(outcome, str):
                        advance(number, *outcome)
                        continue
                    # A call whose process died may need more memory, so it gets a node to itself.
                    self._say(f"{calls[number]}: {outcome}; it runs again")
                    waiting.appendleft(number)
                    alone |= {number} if outcome != _NODE_DIED else set()
        finally:
            for task in running:
                with contextlib.suppress(Exception):
                    self._ray.cancel(task, force=True)

    def close(self) -> None:
        """Disconnect from Ray."""
        self._ray.shutdown()

    def _connect(self, address: str | None) -> None:
        if address and address not in ("auto", "local"):
            if "://" in address or not re.fullmatch(r".+:\d+", address):
                raise InputError(
                    f"Ray address {address!r}: expected HOST:PORT, as `ray start --head` prints it. Start the build on "
                    "a node of the cluster, for example with `ray job submit`."
                )
            # `ray.init` would wait for minutes if nobody listens there.
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
            except (OSError, OverflowError, ValueError) as error:  # a host name may not even be one
                raise InputError(
                    f"no Ray at {address}: {error}. Start a cluster with `ray start --head`, which prints its address, "
                    "and give it as --ray-address HOST:PORT or in RAY_ADDRESS."
                ) from error
        local = {"include_dashboard": False} if address == "local" else {}
        try:
            self._ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"Ray at {address or 'this machine'} cannot be used: {str(error).splitlines()[0]}. Check that the "
                "cluster runs and has the same Ray and Python as this process."
            ) from error

    def _result_of(self, task: Any, call: Call, losses: Counter[str]) -> tuple[int, int] | str:
        """Return what a call reported last, or how it was lost; raise what it raised, as it raised it.

        Raises:
            RunError: it was lost once too often.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.NodeDiedError:
            return _NODE_DIED
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.RaySystemError) as error:
            how = " ".join(str(error).split())[:600].rstrip(".")  # its memory monitor also writes pages of statistics
            count_loss(losses, call, f"; the last time: {how}")
            return f"its process died ({how:.120})"
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ModuleNotFoundError) or "failed to import" in str(error):
                raise InputError(
                    f"a node of the cluster cannot load Tokenmill: {str(cause or error).splitlines()[-1]}. Install "
                    "tokenmill with the driver's versions on every node."
                ) from error
            raise cause from error

    def _cpus_of_largest_node(self) -> int:
        cpus = (node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"])
        return int(max([1, *cpus]))


def list_versions() -> dict[str, str]:
    """Return the versions that driver and Ray's nodes share: Python's without the last number, and packages'."""
    versions = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package in (*_PACKAGES, *_EXTRA_PACKAGES):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def list_settings() -> dict[str, str]:
    """Return the environment variables by which Ray's nodes read as the driver does; none is secret."""
    return {name: value for name, value in os.environ.items() if name.startswith("TOKENMILL_") or name in _SETTINGS}


def check_versions(driver: Mapping[str, str]) -> None:
    """Check that this node of Ray has the versions of the driver; an extra's package may be missing on either side.

    Raises:
        InputError: it does not; the message names both.
    """
    own = list_versions()
    different = [
        f"{name} {own.get(name, 'none')}, the driver has {found}"
        for name, found in driver.items()
        if own.get(name) != found and (name in own or name not in _EXTRA_PACKAGES)
    ]
    if different:
        raise InputError(
            f"node {socket.gethostname()} has {'; '.join(different)}. Tasks there could write other bytes. Install the "
            f"driver's versions on every node, or start the build with a Python that all nodes share (the node's: "
            f"{sys.executable})."
        )


def run_on_node(pickled: bytes, versions: Mapping[str, str], settings: Mapping[str, str]) -> tuple[int, int]:
    """Run a call of the driver on this node of Ray, once its software and folders are those of the driver.

    Args:
        pickled: the call.
        versions: the driver's, from `list_versions`.
        settings: the driver's, from `list_settings`.

    Raises:
        InputError: this node lacks what the task needs; the message names the node.
        Whatever the task raises.
    """
    os.environ.update(settings)
    report_to(say)
    check_versions(versions)
    try:
        call = pickle.loads(pickled)
        _check_folders(call)
        return run_call(call, lambda done, made: None)
    except (MissingExtraError, NoCredentialsError) as error:  # whose remedy is on this node
        raise InputError(f"node {socket.gethostname()}: {error}") from error


def _check_folders(call: Call) -> None:
    """Check that this node of Ray sees the work folder and the set's folder; the driver has made them.

    Raises:
        InputError: it does not.
    """
    folders = [
        call.stage.folder.parent if call.stage.folder else None,
        call.outputs.folder if call.outputs else None,
    ]
    for folder in folders:
        if folder is not None and not folder.is_dir():
            raise InputError(
                f"{folder}: node {socket.gethostname()} does not have this folder. Choose folders for --work and "
                "--out on a disk that every node shares."
            )
