"""The engine: a task's receipt is whole or there is none, and a re-run does exactly what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.driver import Driver
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.progress import Progress
from pipeline.engine.receipts import RECEIPT_FILE, read_receipt
from pipeline.engine.tasks import Task, digest_of
from shards.stores.files import FolderBusyError, lock_folder
from tests.support import stage_tasks


def task(name: str, text: str = "some text", **more: Any) -> Task:
    return Task(digest_of([name, text]), {"name": name, "text": text, **more}, len(text))


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Return `run(*tasks)`: runs the stage and returns (the result, names of the tasks that ran)."""

    def run_tasks(*tasks: Task, outputs: Path | None = None) -> tuple[Any, list[str]]:
        stage_tasks.CALLS.clear()
        driver = Driver(tmp_path, LocalExecutor(1), Progress(quiet=True))
        result = driver.run_stage("stage", "tests.support.stage_tasks:write_file", list(tasks), outputs)
        assert result.ran == len(stage_tasks.CALLS)
        return result, list(stage_tasks.CALLS)

    return run_tasks


def test_digests_depend_on_values_alone() -> None:
    value = {"b": [1, 2.5, None, True], "a": {"é": "x"}}
    assert digest_of(value) == digest_of({"a": {"é": "x"}, "b": [1, 2.5, None, True]})
    assert digest_of(value) == "9aa47a681f01e692d6278f273d3851fd"
    others = [{"b": [1, 2.5, None, True]}, {**value, "c": 0}, {"b": [2.5, 1, None, True], "a": {"é": "x"}}, [], {}, ""]
    assert len({digest_of(other) for other in [value, *others]}) == 1 + len(others)


def test_only_what_is_missing_runs(run: Any, tmp_path: Path) -> None:
    result, ran = run(task("a"), task("b", "longer text"), task("c"))
    assert ran == ["b", "a", "c"]  # the large tasks first
    assert [item["name"] for item in result.results] == ["a", "b", "c"]
    assert result.summary()["detail"] == {"x": 3}
    assert sorted(path.name for path in (tmp_path / "stage").iterdir()) == sorted(
        task(name, text).digest for name, text in (("a", "some text"), ("b", "longer text"), ("c", "some text"))
    )
    assert run(task("a"), task("b", "longer text"), task("c"))[1] == []
    assert run(task("a"), task("b", "other"), task("d"))[1] == ["d", "b"]


def truncate(file: Path) -> None:
    before = file.stat()
    file.write_bytes(file.read_bytes()[:-1])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGE = {
    "truncated": lambda file, receipt: file.write_bytes(file.read_bytes()[:-1]),
    "altered": lambda file, receipt: file.write_bytes(b"S" + file.read_bytes()[1:]),
    "truncated, with its time": lambda file, receipt: truncate(file),
    "missing": lambda file, receipt: file.unlink(),
    "a folder": lambda file, receipt: (file.unlink(), file.mkdir()),
    "no receipt": lambda file, receipt: receipt.unlink(),
    "receipt cut off": lambda file, receipt: receipt.write_bytes(receipt.read_bytes()[:-5]),
    "receipt empty": lambda file, receipt: receipt.write_bytes(b""),
    "receipt of zeros": lambda file, receipt: receipt.write_bytes(bytes(100)),
    "receipt not UTF-8": lambda file, receipt: receipt.write_bytes(b'{"files": "\xff"}'),
    "receipt of another shape": lambda file, receipt: receipt.write_text("[1]"),
    "receipt without files": lambda file, receipt: receipt.write_text("{}"),
    "receipt without sizes": lambda file, receipt: receipt.write_text('{"files": {"a.bin": {}}}'),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_result_is_made_again(kind: str, run: Any, tmp_path: Path) -> None:
    expected, _ = run(task("a"), task("b"))
    folder = tmp_path / "stage" / task("a").digest
    DAMAGE[kind](folder / "a.bin", folder / RECEIPT_FILE)
    assert read_receipt(folder) is None
    result, ran = run(task("a"), task("b"))
    assert ran == ["a"]
    assert (folder / "a.bin").read_text() == "some text"
    assert [item["files"]["a.bin"]["bytes"] for item in result.results[:1]] == [9]
    assert expected.results[1] == result.results[1]


def test_another_time_with_the_same_content_is_whole(run: Any, tmp_path: Path) -> None:
    run(task("a"))
    folder = tmp_path / "stage" / task("a").digest
    os.utime(folder / "a.bin", ns=(5, 5))
    assert read_receipt(folder) is not None
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    assert read_receipt(tmp_path / "copy") is not None


def test_files_outside_the_task_s_folder(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    only = task("a", outputs=str(out))
    run(only, outputs=out)
    assert run(only, outputs=out)[1] == []
    (out / "a.bin").write_text("altered!!")
    os.utime(out / "a.bin", ns=(5, 5))
    assert run(only, outputs=out)[1] == ["a"]


def test_a_task_that_fails_leaves_nothing(run: Any, tmp_path: Path) -> None:
    with pytest.raises(stage_tasks.TaskError, match="halfway"):
        run(task("a", "the longest text"), task("b", "a text", fail=True), task("c"))
    left = [path.name for path in (tmp_path / "stage").iterdir() if path.name != "control"]
    assert task("b", "a text").digest not in left
    assert task("a", "the longest text").digest in left  # what is finished stays finished
    assert not [name for name in left if name.endswith(".tmp")]
    _, ran = run(task("a", "the longest text"), task("b", "a text"), task("c"))
    assert "a" not in ran
    assert "b" in ran
    assert not (tmp_path / "stage" / "control").exists()


def test_leftovers_of_a_killed_task_are_removed(run: Any, tmp_path: Path) -> None:
    leftover = tmp_path / "stage" / f".{task('a').digest}.12345.tmp"
    leftover.mkdir(parents=True)
    (leftover / "a.bin").write_text("half")
    (tmp_path / "stage" / "control").mkdir()
    (tmp_path / "stage" / "control" / "000007.task").write_bytes(b"stale")
    run(task("a"))
    assert [path.name for path in (tmp_path / "stage").iterdir()] == [task("a").digest]


def test_a_task_that_writes_no_file_it_tells_of(run: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run(task("a", outputs=str(tmp_path)))


def test_a_folder_that_another_process_holds(tmp_path: Path) -> None:
    code = "import sys, pathlib\nfrom shards.stores.files import lock_folder\n"
    code += "with lock_folder(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(FolderBusyError, match=r"another process is at work here\. Wait for it"),
            lock_folder(tmp_path),
        ):
            pass
        holder.kill()
    with lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path), pytest.raises(FolderBusyError), lock_folder(tmp_path):
        pass


def test_receipts_are_json(run: Any, tmp_path: Path) -> None:
    run(task("a"))
    data = json.loads((tmp_path / "stage" / task("a").digest / RECEIPT_FILE).read_text())["result"]
    assert data["name"] == "a"
    assert data["files"]["a.bin"]["bytes"] == 9
