"""The clusters that the tests of the engines use: real ones, on loopback, from start to end."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.support.ray_cluster import RayCluster
from tests.support.slurm_cluster import SlurmCluster


def test_slurm_runs_an_array_on_both_nodes(slurm: SlurmCluster) -> None:
    log = slurm.folder / "%a.out"
    slurm.run("sbatch", "--array=0-3", f"--output={log}", "--wrap", "sleep 0.5; echo $SLURMD_NODENAME")
    until = time.monotonic() + 60
    while slurm.run("squeue", "--noheader") and time.monotonic() < until:
        time.sleep(0.2)
    nodes = [(slurm.folder / f"{index}.out").read_text().strip() for index in range(4)]
    assert set(nodes) == {"n1", "n2"}


def test_ray_runs_tasks_on_both_nodes(ray_cluster: RayCluster) -> None:
    code = """
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False)
@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def find_node():
    time.sleep(0.5)
    return ray.get_runtime_context().get_node_id()
print(*ray.get([find_node.remote() for _ in range(6)]))
"""
    command = [sys.executable, "-c", code, ray_cluster.address]
    done = subprocess.run(
        command, env=ray_cluster.environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True
    )
    assert len(set(done.stdout.split())) == 2
