"""A Slurm cluster on loopback: a controller and two nodes, from Debian's packages, unpacked and not installed.

The packages (4 MB) are fetched once into `out/.cache/slurm` of the checkout. Nothing needs root, systemd or munge.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psutil
import pytest
from filelock import FileLock

from tests.support.servers.loopback import find_free_ports

_PACKAGES = [
    "slurmd",
    "slurmctld",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "munge",
    "libmunge2",
    "libhwloc15",
    "libslurm38",
    "libdbus-1-3",
]
_CACHE = Path(__file__).parents[2] / "out/.cache/slurm"
_START_SECONDS = 60
_NODES = ("n1", "n2")

_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
PluginDir={library}/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=100000,requeue_delay=1
SchedulerType=sched/backfill
SlurmdTimeout=5
SlurmctldTimeout=5
KillWait=5
MaxJobCount=5000
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP OverSubscribe=NO MaxTime=60
"""


class SlurmCluster:
    """A controller and two nodes with a CPU each, between `with` and its end."""

    def __init__(self) -> None:
        self._packages = _unpack_packages()
        self.folder = Path(tempfile.mkdtemp(prefix="tokenmill-slurm-"))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        library = next(self._packages.glob("usr/lib/*-linux-gnu"))
        controller_port, *node_ports = find_free_ports(1 + len(_NODES))
        host = socket.gethostname().partition(".")[0]
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=4000"
            for name, port in zip(_NODES, node_ports, strict=True)
        ]
        config = _CONFIG.format(
            host=host,
            user=getpass.getuser(),
            library=library,
            folder=self.folder,
            controller_port=controller_port,
            nodes="\n".join(nodes),
        )
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(config)
        self._own = {"SLURM_CONF": str(self.folder / "slurm.conf"), "LD_LIBRARY_PATH": f"{library}:{library}/slurm-wlm"}

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which sbatch, squeue and the others are found and reach this cluster."""
        path = f"{self._packages / 'usr/bin'}:{os.environ['PATH']}"
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return own | self._own | {"PATH": path}

    def _start_node(self, name: str) -> None:
        stepd = self._packages / "usr/sbin/slurmstepd-wlm"
        self._start(name, "slurmd-wlm", "-D", "-N", name, "-d", str(stepd))

    def _wait_until_idle(self) -> None:
        """Wait until both nodes are up and no job runs."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            states = subprocess.run(
                ["sinfo", "-h", "-N", "-o", "%T"], env=self.environment, capture_output=True, text=True, check=False
            )
            if states.stdout.split() == ["idle"] * len(_NODES):
                return
            time.sleep(0.1)
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
        raise TimeoutError(f"the nodes are {states.stdout.split()} after {_START_SECONDS} s\n{logs}")

    def __enter__(self) -> Self:
        try:
            self._start("controller", "slurmctld-wlm", "-D")
            for name in _NODES:
                self._start_node(name)
            self._wait_until_idle()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self, name: str, program: str, *arguments: str) -> None:
        log = (self.folder / f"{name}.out").open("ab")
        command = [str(self._packages / "usr/sbin" / program), *arguments]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]  # where pytest itself is killed
        with log:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _find_processes(self) -> list[psutil.Process]:
        """Return the processes that run under this cluster: steps, and the jobs in them."""
        own = self._own["SLURM_CONF"]
        return [process for process in psutil.process_iter() if _environment_of(process).get("SLURM_CONF") == own]

    def _stop(self) -> None:
        for daemon in self._daemons.values():
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
        while own := self._find_processes():  # again, for those that the first ones were just starting
            for process in own:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(own, timeout=5)
        shutil.rmtree(self.folder, ignore_errors=True)


def _environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _unpack_packages() -> Path:
    """Return the folder with Slurm's programs; skip the test where they cannot be had."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            pytest.skip(f"Slurm for the tests comes from Debian's packages: there is no {program} here")
    _CACHE.mkdir(parents=True, exist_ok=True)
    root = _CACHE / "root"
    with FileLock(_CACHE / "lock"):
        if not root.exists():
            scratch = Path(tempfile.mkdtemp(dir=_CACHE))
            try:
                _download_packages(scratch)
                for package in scratch.glob("*.deb"):
                    subprocess.run(["dpkg-deb", "-x", package, scratch / "root"], check=True, timeout=60)
                (scratch / "root").rename(root)
            finally:
                shutil.rmtree(scratch)
    return root


def _download_packages(folder: Path) -> None:
    """Download the packages; where this machine has no package lists, with lists of our own."""
    (folder / "partial").mkdir()
    own_lists = ["-o", f"Dir::State::Lists={folder}", "-o", f"Dir::Cache={folder}"]
    download = ["download", *_PACKAGES]
    for commands in ([download], [[*own_lists, "update"], [*own_lists, *download]]):
        done = [
            subprocess.run(["apt-get", *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
            for command in commands
        ]
        if not any(each.returncode for each in done):
            return
    pytest.skip(f"Debian's packages of Slurm cannot be downloaded: {done[-1].stderr.strip()[-300:]}")
