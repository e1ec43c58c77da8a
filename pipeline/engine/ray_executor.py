"""The executor for Ray: a core task for each call, on a cluster or on a Ray that is started on this machine.

Ray places the tasks, notices dead nodes and adds nodes. A task gets a call as text and returns how it ended: no data
goes through Ray's object store. At most twice as many tasks as there are CPUs are given to Ray. Its own retries are
off, because it does not say what it retries: a call whose node died runs again without a bound, a call whose process
died runs again with a node to itself, at most `MAX_LOSSES` times.

A task asks for no memory. Ray only places tasks by what they ask for: it does not limit them, a task that asks for more
than any node has waits forever without a word, and what a unit takes is not known before it is read.
"""

# Ray ships no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.engine.executors import Advance, say_nothing
from pipeline.engine.receipts import WorkFileDamagedError
from pipeline.engine.remote_workers import (
    Losses,
    check_remote_folders,
    check_remote_worker,
    list_settings,
    list_versions,
    name_node,
)
from pipeline.engine.tasks import Call, Outcome, call_from_json, call_to_json, run_call
from shards.errors import InputError, import_extra

_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
_PROBE_SECONDS = 120.0
_PATIENCE_SECONDS = 30.0
"""How long the cluster may be without a CPU before a line says so."""
_REMEDY = "Run again with nodes that have more memory for each CPU, or read this part in smaller files."


class RayError(InputError):
    """Ray cannot be reached, or its nodes cannot run this build."""


class RayExecutor:
    """Runs calls as Ray tasks. Closing it disconnects, and stops a Ray that it has started."""

    def __init__(
        self, address: str | None = None, *, workers: int | None = None, say: Callable[[str], None] = say_nothing
    ):
        """Connect, and check that every node can run this build.

        Args:
            address: HOST:PORT of a cluster's head; "local" starts a Ray of this machine. When None, `RAY_ADDRESS`,
                then a cluster that this machine is part of, then "local".
            workers: the most calls that run at the same time; every CPU of the cluster when None.
            say: prints a line for a person.

        Raises:
            RayError: there is no Ray at the address.
            WorkerDiffersError: a node has other versions than this process.
        """
        self._ray: Any = import_extra("ray")
        self._limit = workers
        self._say = say
        self._connect(address or os.environ.get("RAY_ADDRESS"))
        try:
            self._check_nodes()
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        """Calls that run at the same time, with the nodes that are up now."""
        cpus = max(1, int(self._ray.cluster_resources().get("CPU", 0)))
        return min(cpus, self._limit or cpus)

    def run(self, calls: Sequence[Call], advance: Advance) -> list[WorkFileDamagedError]:
        """Run each call to its end.

        Raises:
            WorkerLostError: the process of one call died again and again.
            Whatever a call or `advance` raises.
        """
        run = self._ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(_run_on_node)
        versions, settings, losses = list_versions(), list_settings(), Losses()
        waiting, alone = deque(range(len(calls))), set[int]()
        running: dict[Any, int] = {}
        damages: dict[tuple[str, str, str], None] = {}
        seen_alive = time.monotonic()
        try:
            while waiting or running:
                # Give Ray more calls.
                while waiting and len(running) < self._most_in_flight():
                    number = waiting.popleft()
                    cpus = self._cpus_of_largest_node() if number in alone else 1
                    options = run.options(name=str(calls[number]), num_cpus=cpus)
                    running[options.remote(call_to_json(calls[number]), versions, settings)] = number
                    advance(number, 0, 0)

                # Take what has ended.
                ended, _ = self._ray.wait(list(running), num_returns=len(running), timeout=0)
                if not ended:
                    ended, _ = self._ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
                for task in ended:
                    number = running.pop(task)
                    outcome = self._result_of(task, calls[number], losses)
                    if isinstance(outcome, str):
                        self._say(f"{calls[number]}: {outcome}; it runs again")
                        waiting.appendleft(number)
                        alone |= {number} if outcome != _NODE_DIED else set()
                        continue
                    if outcome.damage:
                        damages[outcome.damage] = None
                    advance(number, outcome.bytes, outcome.tokens)
                seen_alive = self._note_if_empty(seen_alive)
        finally:
            for task in running:
                with contextlib.suppress(Exception):
                    self._ray.cancel(task, force=True)
        return [WorkFileDamagedError(*damage) for damage in damages]

    def show(self, calls: Sequence[Call]) -> str:
        """Return nothing: Ray's tasks are no jobs."""
        return ""

    def close(self) -> None:
        """Disconnect."""
        self._ray.shutdown()

    def _connect(self, address: str | None) -> None:
        named = address in ("auto", "local")
        if address and not named and ("://" in address or not re.fullmatch(r".+:\d+", address)):
            raise RayError(
                f"Ray address {address!r}: expected HOST:PORT, as `ray start --head` prints it. Start the build on a "
                "node of the cluster, for example with `ray job submit`."
            )
        if address and not named:
            host, _, port = address.rpartition(":")
            try:
                _check_speaks_grpc(host, int(port))
            except (OSError, ValueError) as error:
                raise RayError(
                    f"no Ray at {address}: {error}. Start a cluster with `ray start --head`, which prints its address, "
                    "and give it as --ray-address HOST:PORT or in RAY_ADDRESS."
                ) from error
        local = {"include_dashboard": False} if address == "local" else {}
        try:
            self._ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RayError(
                f"Ray at {address or 'this machine'} cannot be used: {str(error).splitlines()[0]}. Check that the "
                "cluster runs and has the same Ray and Python as this process."
            ) from error

    def _check_nodes(self) -> None:
        """Check the versions on every node; this also loads the libraries of the tasks there."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        check = self._ray.remote(num_cpus=1, max_retries=0)(_check_node)
        nodes = [node["NodeID"] for node in self._alive_nodes()]
        asked = [
            check.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(list_versions())
            for node in nodes
        ]
        answered, late = self._ray.wait(asked, num_returns=len(asked), timeout=_PROBE_SECONDS) if asked else ([], [])
        for task in late:  # a busy node: each call is checked too
            self._ray.cancel(task, force=True)
        errors = self._ray.exceptions
        for task in answered:
            with contextlib.suppress(errors.NodeDiedError, errors.WorkerCrashedError, errors.OutOfMemoryError):
                self._get(task)

    def _get(self, task: Any) -> Any:
        """Return a task's result; raise what it raised, as it raised it."""
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ModuleNotFoundError) or "failed to import" in str(error):
                raise RayError(
                    f"a node of the cluster cannot load Tokenmill: {str(cause or error).splitlines()[-1]}. Install "
                    "tokenmill with the driver's versions on every node."
                ) from error
            raise cause from error

    def _result_of(self, task: Any, call: Call, losses: Losses) -> Outcome | str:
        """Return how a call ended, or how it was lost; raise what it raised.

        Raises:
            WorkerLostError: it was lost once too often.
        """
        errors = self._ray.exceptions
        try:
            return Outcome(*self._get(task))
        except errors.NodeDiedError:
            return _NODE_DIED
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.RaySystemError) as error:
            how = _say_death(error, call)
            losses.add(call, how, _REMEDY)
            return f"its process died ({how:.120})"

    def _alive_nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]

    def _cpus_of_largest_node(self) -> int:
        return int(max((node["Resources"]["CPU"] for node in self._alive_nodes()), default=1))

    def _most_in_flight(self) -> int:
        return self._limit or 2 * self.workers

    def _note_if_empty(self, seen_alive: float) -> float:
        """Say that no node is left, every `_PATIENCE_SECONDS`. Return when a node was seen, or this was said."""
        now = time.monotonic()
        if self._ray.cluster_resources().get("CPU", 0) >= 1:
            return now
        if now - seen_alive < _PATIENCE_SECONDS:
            return seen_alive
        self._say("the Ray cluster has no CPU; waiting for a node")
        return now


_NODE_DIED = "its node died"
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The bytes that open a gRPC connection: HTTP/2's preface and an empty frame of settings (RFC 9113, 3.4)."""
_SETTINGS_FRAME = 4


def _check_speaks_grpc(host: str, port: int) -> None:
    """Check that a server speaks gRPC, as Ray's head does. `ray.init` waits for minutes for one that does not.

    Raises:
        OSError: it does not, or there is no server.
    """
    with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connection:
        connection.sendall(_HTTP2_HELLO)
        if connection.recv(9)[3:4] != bytes([_SETTINGS_FRAME]):
            raise OSError("what listens there is not a Ray head (the dashboard has another port)")


def _say_death(error: Exception, call: Call) -> str:
    """Return what Ray says about the end of a call's process; its memory monitor also writes pages of statistics."""
    text = " ".join(str(error).split())
    node = re.search(r"\(IP: (\S+), .*? was (\S+ used / \S+ limit)", text)
    own = re.search(rf"task name={re.escape(str(call))},.*?actual memory used=([^,]+)", text)
    if node is None:
        return text[:600].rstrip(".")
    taken = f" with {own[1]} of memory" if own else ""
    return f"Ray ended the process{taken}, because its node {node[1]} ran out of memory: {node[2]}"


def _check_node(versions: dict[str, str]) -> None:
    check_remote_worker(versions)
    import pipeline.engine.local_worker  # loads the libraries, so that the first call need not  # noqa: F401  # pyright: ignore[reportUnusedImport]


def _run_on_node(
    text: str, versions: dict[str, str], settings: dict[str, str]
) -> tuple[int, int, tuple[str, str, str] | None]:
    """Run a call on a node; return its outcome's values."""
    check_remote_worker(versions)
    os.environ.update(settings)
    with name_node():
        call = call_from_json(text)
        check_remote_folders(call)
        outcome = run_call(call, lambda done, made: None)
    return outcome.bytes, outcome.tokens, outcome.damage
