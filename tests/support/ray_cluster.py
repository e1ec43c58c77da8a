"""A Ray cluster on loopback: a head without CPUs, and nodes with one CPU each that come and go."""

# pyright: basic

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Self

import psutil
import pytest

from tests.support.servers.objects import ACCESS_KEY, SECRET_KEY

_NODE = {"object_store_memory": 80 << 20, "include_dashboard": False}
_START_SECONDS = 180
_HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
"""A node whose process has died is dead after 2 s instead of 15: its checks fail at once. A slow one has 10 s each."""
_WORKERS = {"worker_niceness": 0}
"""Ray gives its workers niceness 15: beside other tests that compute they would hardly run."""
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
"""In the environment of every node: secrets are not sent with a task."""
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Environment in which Ray takes 127.0.0.1 as a host's address. Read when Ray is imported."""


class RayCluster:
    """A head and two nodes, between `with` and its end. Programs reach it at `address`."""

    def __init__(self, **settings: object) -> None:
        """Start the head; `settings` are of Ray's system."""
        os.environ.update(_ON_LOOPBACK)
        pytest.importorskip("ray", reason="Ray is not installed: `make env` installs it")
        self._before = {process.pid for process in psutil.Process().children(recursive=True)}
        from ray.cluster_utils import Cluster

        head = {**_NODE, "num_cpus": 0, "_system_config": {**_HEALTH, **_WORKERS, **settings}}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []

    @property
    def environment(self) -> dict[str, str]:
        """The environment for programs that connect to the cluster."""
        return {**os.environ, **_ON_LOOPBACK}

    @property
    def address(self) -> str:
        """The address of the cluster, for `--ray-address`."""
        return self._cluster.address

    def add_nodes(self) -> None:
        """Add two nodes with one CPU each, and wait until they are up."""
        with _in_environment(_CREDENTIALS):
            self.nodes += [self._cluster.add_node(wait=False, **_NODE, num_cpus=1) for _ in range(2)]
        self._cluster.wait_for_nodes(timeout=_START_SECONDS)

    def kill_node(self, node: Any) -> None:
        """Remove a node without grace: its processes are killed."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def __enter__(self) -> Self:
        try:
            self.add_nodes()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        own = [child for child in psutil.Process().children(recursive=True) if child.pid not in self._before]
        own = [child for child in own if _is_of_ray(child)]
        self._cluster.shutdown()
        for process in own:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@contextlib.contextmanager
def _in_environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def _is_of_ray(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(part.startswith("ray::") or "/ray/" in part for part in process.cmdline())
    return False
