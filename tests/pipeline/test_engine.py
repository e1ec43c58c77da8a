"""The engine: a task's receipt is whole or there is none, and a re-run does exactly what is missing."""

import itertools
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.attempts import open_attempt, publish_attempt
from pipeline.engine.checksums import ChecksummedWriter, checksum_file, seal, write_checksummed
from pipeline.engine.driver import Driver
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.receipts import RECEIPT_FILE, Result, TaskOutput, WorkFileDamagedError, write_receipt
from pipeline.engine.stage_progress import Progress
from pipeline.engine.tasks import JsonText, Report, Task, digest_of
from shards.errors import RunError
from shards.stores.files import host_name, unique_name
from shards.stores.store import FolderStore
from tests.support import stage_tasks
from tests.support.stage_tasks import make_calls


def task(name: str, text: str = "some text", **more: Any) -> Task:
    return Task(digest_of([name, text]), {"name": name, "text": text, **more}, len(text))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def written(folder: Path) -> Path:
    """Return the file that the task in a folder wrote, in the folder of the attempt that counts."""
    return folder / TaskOutput(FolderStore(folder)).result.stored_name("a.bin")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Return `run(*tasks)`: runs the stage and returns (the result, names of the tasks that ran)."""

    def run_tasks(*tasks: Task, outputs: FolderStore | None = None) -> tuple[Any, list[str]]:
        stage_tasks.CALLS.clear()
        driver = Driver(FolderStore(tmp_path), LocalExecutor(1), Progress(quiet=True))
        result = driver.run_stage("stage", stage_tasks.write_file, list(tasks), outputs)
        assert result.ran == len(stage_tasks.CALLS)
        return result, list(stage_tasks.CALLS)

    return run_tasks


def test_digests_depend_on_values_alone():
    value = {"b": [1, 2.5, None, True], "a": {"é": "x"}}
    assert digest_of(value) == digest_of({"a": {"é": "x"}, "b": [1, 2.5, None, True]})
    assert digest_of(value) == "9aa47a681f01e692d6278f273d3851fd"
    others = [{"b": [1, 2.5, None, True]}, {**value, "c": 0}, {"b": [2.5, 1, None, True], "a": {"é": "x"}}, [], {}, ""]
    assert len({digest_of(other) for other in [value, *others]}) == 1 + len(others)
    assert digest_of({**value, "a": JsonText('{"é":"x"}')}) == digest_of(value)


def test_only_what_is_missing_runs(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FolderStore, "delete", None)  # a request for each task, if the work is in a bucket
    tasks = task("a"), task("b", "longer text"), task("c")
    result, ran = run(*tasks)
    assert ran == ["b", "a", "c"]  # the large tasks first
    assert [item.name for item in result.results.values()] == ["a", "b", "c"]
    assert result.summary()["core_seconds"].keys() == {"x"}
    assert names(tmp_path / "stage") == sorted(one.digest for one in tasks)
    assert run(*tasks)[1] == []
    assert run(task("a"), task("b", "other"), task("d"))[1] == ["d", "b"]
    # Another time with the same content is whole.
    folder = tmp_path / "stage" / task("a").digest
    os.utime(written(folder), ns=(5, 5))
    assert run(task("a"))[1] == []
    folder.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", folder, copy_function=shutil.copyfile)
    assert run(task("a"))[1] == []


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
    "receipt of another shape": lambda file, receipt: receipt.write_bytes(seal({"files": {"a.bin": {}}})),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_result_is_made_again(kind: str, run: Any, tmp_path: Path):
    expected, _ = run(task("a"), task("b"))
    folder = tmp_path / "stage" / task("a").digest
    DAMAGE[kind](written(folder), folder / RECEIPT_FILE)
    result, ran = run(task("a"), task("b"))
    assert (ran, written(folder).read_text()) == (["a"], "some text")
    assert result.results[task("a").digest].files["a.bin"].bytes == 9
    assert expected.results[task("b").digest] == result.results[task("b").digest]


def test_a_task_that_fails_leaves_nothing(run: Any, tmp_path: Path):
    with pytest.raises(stage_tasks.TaskError, match="halfway"):
        run(task("a", "the longest text"), task("b", "a text", fail=True), task("c"))
    # What is finished stays finished.
    assert names(tmp_path / "stage") == sorted([task("a", "the longest text").digest, task("c").digest])
    assert run(task("a", "the longest text"), task("b", "a text"), task("c"))[1] == ["b"]
    for outputs in (None, FolderStore(tmp_path)):  # a task that writes no file it tells of
        shutil.rmtree(tmp_path / "stage", ignore_errors=True)
        with pytest.raises(FileNotFoundError):
            run(task("a", absent=True), outputs=outputs)
        assert [*names(tmp_path), *tmp_path.glob("stage/*")] in ([], ["stage"])


def test_leftovers_of_this_host_are_deleted_when_their_process_has_ended(run: Any, tmp_path: Path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own = unique_name()
    leftover = own.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    elsewhere = leftover.replace(host_name(), "another-12345678")
    digest = task("a").digest
    for name in (own, leftover, elsewhere):
        (tmp_path / "stage" / f".{digest}.{name}.tmp").mkdir(parents=True)
    run(task("a"))
    assert names(tmp_path / "stage") == sorted([digest, f".{digest}.{own}.tmp", f".{digest}.{elsewhere}.tmp"])
    # What a killed attempt at this very task left.
    (tmp_path / "stage" / digest / RECEIPT_FILE).unlink()
    for name in (leftover, elsewhere):
        (tmp_path / "stage" / digest / name).mkdir()
    run(task("a"))
    assert leftover not in names(tmp_path / "stage" / digest)
    assert elsewhere in names(tmp_path / "stage" / digest)


def attempt(tmp_path: Path, text: str, outputs: FolderStore | None = None) -> None:
    """Run the task as a host that knows of no other attempt would."""
    stage = FolderStore(tmp_path / "stage")
    with open_attempt(stage, outputs, None, digest=task("a").digest, label="stage task a") as own:
        publish_attempt(own, stage_tasks.write_file(own.folder, {"name": "a", "text": text}, Report()))


@pytest.mark.parametrize("where", ["work", "outputs"])
def test_a_task_that_ran_twice_must_give_the_same(where: str, run: Any, tmp_path: Path):
    folder = tmp_path / "stage" / task("a").digest
    receipt, outputs = folder / RECEIPT_FILE, FolderStore(tmp_path) if where == "outputs" else None
    run(task("a"), outputs=outputs)
    file = tmp_path / "a.bin" if outputs else written(folder)
    first = receipt.read_bytes()
    attempt(tmp_path, "some text", outputs)
    with pytest.raises(RunError, match=r"stage task a ran twice and gave different files: a\.bin"):
        attempt(tmp_path, "other text", outputs)
    assert (receipt.read_bytes(), file.read_text()) == (first, "some text")
    assert len(names(folder)) == 2, "the receipt, and the folder of the first: nothing is left of the others"
    assert not list(tmp_path.glob("**/.*"))
    receipt.unlink()  # as the driver does with damaged ones
    attempt(tmp_path, "other text", outputs)
    assert (file if outputs else written(folder)).read_text() == "other text"


@pytest.mark.parametrize("before", ["nothing", "a damaged one"])
def test_a_race_of_many_attempts_has_one_winner(before: str, tmp_path: Path):
    folder = tmp_path / "stage" / task("a").digest
    if before != "nothing":
        folder.mkdir(parents=True)
        (folder / "a.bin").write_text("SOME TEXT")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(attempt, [tmp_path] * 40, ["some text"] * 40))
    assert names(tmp_path / "stage") == [folder.name]
    assert written(folder).read_text() == "some text"
    assert len(names(folder)) == 2 + (before != "nothing")  # the receipt, and the files of the attempt that won


def test_a_damaged_file_is_made_anew_once(tmp_path: Path):
    """The first time the receipt goes; a disk that damages the new file, too, ends the build."""
    driver = Driver(FolderStore(tmp_path), LocalExecutor(1), Progress())
    written = task("a")
    reader = Task("b" * 32, {"folder": str(tmp_path / "first" / written.digest), "name": "a.bin"}, 1)
    stage_tasks.CALLS.clear()

    def read_it() -> WorkFileDamagedError:
        driver.run_stage("first", stage_tasks.write_file, [written])
        with pytest.raises(WorkFileDamagedError) as damage:
            driver.run_stage("second", stage_tasks.damage_and_read, [reader])
        return damage.value

    driver.forget(read_it())
    with pytest.raises(RunError, match=r"a\.bin: damaged again after it was rebuilt\. The disk or the memory"):
        driver.forget(read_it())
    assert stage_tasks.CALLS == ["a", "a"]
    elsewhere = WorkFileDamagedError("/elsewhere/encode/x", "/elsewhere/encode/x/a.bin", "differs")
    with pytest.raises(WorkFileDamagedError):
        driver.forget(elsewhere)


def test_the_last_calls_take_the_cores_of_workers_without_one():
    for workers, threads in ((2, [1, 1, 1, 2, 2]), (2, [2]), (6, [1, 1, 4, 4, 4, 4, 4, 4])):
        with closing(LocalExecutor(workers)) as executor:
            assert executor.count_threads(len(threads)) == threads


def test_a_task_that_dies_each_time_is_named_and_the_others_are_kept(tmp_path: Path):
    deaths = tmp_path / "deaths"
    times = {1: 2, 3: 9}  # the losses of one are not those of another
    payloads = [{"name": f"t{number}", "deaths": str(deaths), "times": times.get(number, 0)} for number in range(8)]
    said = r"stage task t3: lost 3 times.*memory ran out\. Finished work is kept\. Run again with"
    with closing(LocalExecutor(2)) as pool, pytest.raises(RunError, match=said):
        pool.run(make_calls(tmp_path / "stage", payloads, "die_or_write"), lambda *_: None)
    assert deaths.read_text().split().count("t3") == 3
    assert len(list((tmp_path / "stage").glob("[!.]*/receipt.json"))) >= 2  # those that ran beside it and before


def test_ranges_are_compared_with_the_blocks_of_their_receipt(tmp_path: Path):
    data = random.Random(1).randbytes(300_000)
    with ChecksummedWriter(tmp_path / "a") as file:
        for first, last in itertools.pairwise([0, 1, 16_384, 16_384, 16_390, 100_000, len(data)]):
            file.write(memoryview(data)[first:last])
    assert file.facts() == checksum_file(tmp_path / "a") == write_checksummed(tmp_path / "a", data)
    write_receipt(tmp_path, Result(files={"a": file.facts()}))
    read = partial(TaskOutput(FolderStore(tmp_path)).read, "a")
    for start, stop in ((20_000, 20_001), (16_384 * 2, 16_384 * 3), (65_536, 131_072), (20_000, 250_000)):
        assert read(start, stop) == data[start:stop]
    (tmp_path / "a").write_bytes(data[:150_000] + bytes([data[150_000] ^ 1]) + data[150_001:])
    assert read(20_000, 131_072) == data[20_000:131_072]
    with pytest.raises(WorkFileDamagedError, match="differs from what was written"):
        read(131_000, 200_000)


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_named(tmp_path: Path):
    long = tmp_path / ("a" * 100)
    long.mkdir()
    program = "from pipeline.engine.executors import LocalExecutor; LocalExecutor(2)"
    environment = os.environ | {"TMPDIR": str(long)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "too long a path for the socket of the workers" in done.stderr
    assert "Set TMPDIR to a folder with a shorter path, or give --workers 1." in done.stderr


def test_a_fork_server_that_ends_is_a_lost_worker(tmp_path: Path):
    """The server of this process lives already, so another program tries: one module of the server's ends it."""
    (tmp_path / "ends_the_server.py").write_text("import os\n\nos.abort()\n")
    program = """
import sys
from pathlib import Path
from pipeline.engine import executors
from pipeline.engine.executors import LocalExecutor
from shards.errors import RunError
from pipeline.engine.tasks import Call, Task
from shards.stores.store import FolderStore

stage = FolderStore(Path(sys.argv[1]))
function = "tests.support.stage_tasks:die_or_write"
calls = [Call(function, Task(name, None, 1, name), stage, None) for name in ("t0", "t1")]
executors._PRELOADED.append("ends_the_server")
try:
    LocalExecutor(2).run(calls, print)
except RunError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert " task t0: lost 3 times" in ended.stdout
