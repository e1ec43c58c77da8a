"""The Slurm executor on a real cluster: arrays, losses, time limits, a driver that is killed and started again."""

# pyright: basic

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.receipts import read_receipt
from pipeline.engine.slurm_executor import SlurmExecutor
from shards.errors import InputError, RunError
from shards.stores.open import open_writable_store
from shards.validation.validate import validate
from tests.support.builds import Built, digests, digests_in, wait_until
from tests.support.damage import flip_unseen
from tests.support.slurm_cluster import SlurmCluster
from tests.support.small_recipe import write_small_recipe
from tests.support.stage_tasks import make_calls
from tokenmill.__main__ import main

pytestmark = pytest.mark.long


OPTIONS = ["time=5"]


@pytest.fixture
def in_slurm(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """Let this process reach the cluster."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pipeline.engine.slurm_executor._POLL_SECONDS", (0.1, 0.5))
    monkeypatch.setattr("pipeline.engine.slurm_executor._BEGIN_SECONDS", 1.0)
    slurm.wait_until_idle()
    return slurm


def test_a_build_gives_the_bytes_of_a_local_one(
    whole: Built, in_slurm: SlurmCluster, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["build", str(whole.recipe), "--engine", "slurm", "--slurm", "time=5", "--slurm", "mem=500M"]
    assert main([*command, "--out", str(tmp_path / "set"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "runs 1 task: for the first time\n" in shown
    assert "#SBATCH --time=5\n#SBATCH --mem=500M\n" in shown
    assert not list(tmp_path.iterdir())  # nothing is written, nothing submitted
    assert in_slurm.run("squeue", "--noheader") == ""
    # An element for each node, which runs several tasks.
    command += ["--slurm-elements", "2"]
    assert main([*command, "--out", str(tmp_path / "set")]) == 0, capsys.readouterr().err
    assert digests(tmp_path / "set") == whole.digests
    assert not list((tmp_path / "set.work").glob("*/.slurm*"))
    # The nodes find what the driver does not read.
    flip_unseen(tmp_path / "set")
    capsys.readouterr()
    assert main([*command, "--out", str(tmp_path / "set")]) == 1
    problems = validate(tmp_path / "set", level="full").problems
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")] == [
        f"error: {problem}" for problem in problems
    ]
    assert {problem.kind for problem in problems} >= {"file_checksum"}
    assert main([*command, "--out", f"{bucket}/set"]) == 0, capsys.readouterr().err
    assert digests_in(f"{bucket}/set") == whole.digests
    assert not [file for file in open_writable_store(f"{bucket}/set.work").list() if "/.slurm" in file.name]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["partition=none"], "invalid partition specified: none"),
        (["frobnicate=3"], "unrecognized option '--frobnicate=3'"),
        (["time=banana"], "Invalid --time specification"),
        (["array=0-3"], "--slurm array: the build sets this option"),
        (["arr=0-3"], "--slurm arr: the build sets this option"),
        (["mem=400G"], "Requested node configuration is not available"),
    ],
)
def test_bad_options_are_refused(flags: list[str], message: str, in_slurm: SlurmCluster) -> None:
    with pytest.raises(InputError, match=message):
        SlurmExecutor(flags)


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"sbatch: no such command\. Start the build where"):
        SlurmExecutor()


def test_flags_of_another_engine(run_process: Callable[..., Any], tmp_path: Path) -> None:
    done = run_process("build", write_small_recipe(tmp_path), "--out", "x", "--slurm", "time=5")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --slurm: only with --engine slurm; this build has --engine local.\n",
    )


def test_more_tasks_than_an_array_may_have(tmp_path: Path, in_slurm: SlurmCluster) -> None:
    calls = make_calls(tmp_path / "work/stage", [{"name": f"t{number}", "text": "x"} for number in range(7)])
    counts: dict[int, tuple[int, int]] = {}
    executor = SlurmExecutor(OPTIONS, elements=3)
    assert executor.run(calls, lambda number, done, made: counts.update({number: (done, made)})) == []
    assert counts == dict.fromkeys(range(7), (1, 1))
    assert all(read_receipt(call.stage.child(call.task.digest)) for call in calls)


def test_a_task_that_raises_ends_the_stage(tmp_path: Path, in_slurm: SlurmCluster) -> None:
    calls = make_calls(
        tmp_path / "work/stage", [{"name": "good", "text": "x"}, {"name": "bad", "text": "x", "fail": True}]
    )
    with pytest.raises(RuntimeError, match=r"a task raised TaskError on its node:[\s\S]*halfway"):
        SlurmExecutor(OPTIONS).run(calls, lambda *_: None)
    wait_until(lambda: in_slurm.run("squeue", "--noheader") == "", "the other element to end")


def test_a_task_whose_process_dies_runs_again_until_it_is_hopeless(tmp_path: Path, in_slurm: SlurmCluster) -> None:
    deaths = tmp_path / "deaths"
    payloads = [{"name": "a", "times": 2, "deaths": str(deaths)}, {"name": "b", "times": 0, "deaths": str(deaths)}]
    executor = SlurmExecutor(OPTIONS)
    executor.run(make_calls(tmp_path / "work/stage", payloads, "die_or_write"), lambda *_: None)
    assert deaths.read_text().split() == ["a", "a"]
    payload = {"name": "c", "times": 9, "deaths": str(deaths), "bytes": 300_000_000}
    hopeless = make_calls(tmp_path / "work/stage", [payload], "die_or_write")
    with pytest.raises(RunError, match=r"stage task c: lost 3 times, .* ended as FAILED, with") as lost:
        executor.run(hopeless, lambda *_: None)
    # An element cannot say how it died, but it has written how large it was.
    said = re.search(r"with (\d\.\d\d) GB of memory when it last wrote", str(lost.value))
    assert said
    assert 0.3 < float(said[1]) < 1


def test_an_element_that_is_cancelled_or_requeued_runs_again(tmp_path: Path, in_slurm: SlurmCluster) -> None:
    gate = tmp_path / "gate"
    payloads = [{"name": name, "gate": str(gate), "began": str(tmp_path / name)} for name in ("a", "b")]
    calls = make_calls(tmp_path / "work/stage", payloads, "wait_for_gate")

    def disturb() -> None:
        wait_until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists(), "both elements")
        job = in_slurm.run("squeue", "--noheader", "--format=%F").split()[0]
        in_slurm.run("scancel", f"{job}_0")
        in_slurm.run("scontrol", "requeue", f"{job}_1")
        requeued = ("squeue", "--noheader", "--array", f"--job={job}_1", "--format=%r")
        # Slurm waits for two minutes.
        wait_until(lambda: in_slurm.run(*requeued).strip() == "BeginTime", "the requeued element", pause_s=0.1)
        gate.touch()
        in_slurm.run("scontrol", "update", f"jobid={job}_1", "StartTime=now")

    thread = threading.Thread(target=disturb)
    thread.start()
    SlurmExecutor(OPTIONS).run(calls, lambda *_: None)
    thread.join()
    assert all((tmp_path / name).read_text().count("began") == 2 for name in ("a", "b"))


def test_a_python_that_the_nodes_do_not_have(tmp_path: Path, in_slurm: SlurmCluster) -> None:
    calls = make_calls(tmp_path / "work/stage", [{"name": "a", "text": "x"}])
    with pytest.raises(
        RunError, match=r"ended before its first task began[\s\S]*no such module here[\s\S]*--slurm-setup"
    ):
        SlurmExecutor(OPTIONS, setup="echo no such module here; exit 1").run(calls, lambda *_: None)


def test_other_versions_on_the_nodes_are_refused(
    tmp_path: Path, in_slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = make_calls(tmp_path / "work/stage", [{"name": "a", "text": "x"}])
    versions = {"Python": "3.0", "tokenmill": "0.0.1"}
    monkeypatch.setattr("pipeline.engine.slurm_executor.list_versions", lambda: versions)
    with pytest.raises(InputError, match=r"Python 3\.\d+, the driver has 3\.0; tokenmill \S+, the driver has 0\.0\.1"):
        SlurmExecutor(OPTIONS).run(calls, lambda *_: None)


def test_the_node_is_named_that_lacks_a_package_of_an_extra(tmp_path: Path, in_slurm: SlurmCluster) -> None:
    calls = make_calls(tmp_path / "work/stage", [{"name": "a", "package": "numba"}], "need_extra")
    with pytest.raises(InputError, match=rf"^node {socket.gethostname()}: the package 'numba' is not installed"):
        SlurmExecutor(OPTIONS).run(calls, lambda *_: None)


def test_a_driver_that_is_killed_goes_on_with_its_job(tmp_path: Path, in_slurm: SlurmCluster) -> None:
    gate = tmp_path / "gate"
    payloads = [{"name": name, "gate": str(gate), "began": str(tmp_path / name)} for name in ("a", "b", "c")]
    calls = make_calls(tmp_path / "work/stage", payloads, "wait_for_gate")
    child = os.fork()
    if child == 0:
        SlurmExecutor(OPTIONS).run(calls, lambda *_: None)
        os._exit(0)
    wait_until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists(), "both elements")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said: list[str] = []
    timer = threading.Timer(2, gate.touch)
    timer.start()
    SlurmExecutor(OPTIONS, say=said.append).run(calls, lambda *_: None)
    assert [line for line in said if "goes on with job" in line]
    assert [(tmp_path / name).read_text() for name in ("a", "b", "c")] == ["began\n"] * 3
