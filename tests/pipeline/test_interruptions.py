"""Builds that are interrupted: killed, stopped, starved of disk or workers. They go on, and end with the same bytes."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from shards.stores.files import lock_folder
from tests.support.builds import digests, real_documents, recipe_text, run_build, wait_until, write_corpus
from tests.support.small_recipe import write_small_recipe
from tests.support.started import Started, kill_in

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose encode stage is long enough to be hit: 4 files of 10 MB. Patterns and hashes drop documents."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    texts = real_documents()
    for part in range(4):
        numbered = [f"{part}.{copy} {text}" for copy in range(8) for text in texts]
        table = pa.table({"text": numbered, "score": [3] * len(numbered)})
        pq.write_table(table, folder / f"prose-big-{part}.parquet", row_group_size=500)
    blocked = [xxhash.xxh3_128_hexdigest(f"1.2 {text}".encode()) for text in texts[::9]]
    (folder / "block.txt").write_text("\n".join(blocked))
    path = folder / "recipe.toml"
    text = recipe_text(folder, weights="98 1 1", shard_tokens="500_000", vocab_size="2000")
    drops = 'drop_hashes = ["block.txt"]\ndrop_if_matches = ["^[0-3]\\\\.7 .*import", "never there"]\n'
    path.write_text(drops + text)
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a build that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "set"
    dropped = run_build(recipe, out)["sources"][0]["dropped"]
    assert dropped["in block list block.txt"] > 100
    assert dropped[r"matches ^[0-3]\.7 .*import"] > 40
    return digests(out)


def running_worker(work: Path) -> int | None:
    """Return the process of a task that is being encoded: its attempt's folder is named by it."""
    for path in (work / "encode").glob(".*.tmp"):
        return int(path.name.split("-")[-2])
    return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_how_to_go_on(
    recipe: Path, whole: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "set"
    build = Started(recipe, out)
    wait_until(lambda: running_worker(tmp_path / "set.work"), "a worker")
    if number == signal.SIGINT:
        os.killpg(build.process.pid, number)  # as a terminal does
    else:
        build.process.send_signal(number)
    code, errors = build.wait()
    assert code == 130
    assert "interrupted. Run it again" in errors
    assert "Traceback" not in errors
    run_build(recipe, out)
    assert digests(out) == whole


def test_a_worker_that_is_killed_does_not_end_the_build(recipe: Path, whole: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "set"
    build = Started(recipe, out, "--workers", "2")
    wait_until(lambda: running_worker(tmp_path / "set.work"), "a worker")
    worker = running_worker(tmp_path / "set.work")
    assert worker is not None
    assert worker != build.process.pid
    os.kill(worker, signal.SIGKILL)
    code, errors = build.wait()
    assert code == 0, errors
    assert digests(out) == whole
    assert not list((tmp_path / "set.work").glob("*/.*"))  # the attempt's folder went with it


@pytest.mark.parametrize("ending", ["whole", "failed", "killed"])
def test_a_build_leaves_nothing_in_the_temporary_folder(
    recipe: Path, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Path(tempfile.mkdtemp(dir="/tmp"))  # the path of a socket has at most 107 bytes
    monkeypatch.setenv("TMPDIR", str(left))
    if ending == "killed":
        assert kill_in("encode", recipe, tmp_path / "set", delay_s=0)
    else:
        options, status = ([], 0) if ending == "whole" else (["--tokens", "1T"], 2)
        run_build(write_small_recipe(tmp_path), tmp_path / "set", "--workers", "2", *options, expect=status)
    wait_until(lambda: not any(left.iterdir()), "the fork server to delete the folder of its socket", seconds=20)
    left.rmdir()


@pytest.mark.parametrize("held", ["set", "set.work"])
def test_a_second_build_in_the_same_folder_is_refused(recipe: Path, tmp_path: Path, held: str) -> None:
    (tmp_path / held).mkdir()
    with lock_folder(tmp_path / held):  # what another build would hold
        refused = run_build(recipe, tmp_path / "set", expect=2)
    assert f"{tmp_path / held}: another process is running here" in refused["stderr"]
    assert not (tmp_path / "set.work" / "encode").exists()


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 48 MB."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no permission to mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_fills_on_the_way_stops_the_build_which_then_goes_on(
    recipe: Path, whole: dict[str, str], small_disk: Path
) -> None:
    build = Started(recipe, small_disk / "set")
    wait_until(lambda: running_worker(small_disk / "set.work"), "a worker")
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while free := shutil.disk_usage(small_disk).free:
            with contextlib.suppress(OSError):  # the build takes room, too
                file.write(bytes(min(free, 1 << 20)))
    code, errors = build.wait()
    assert code == 1, errors
    assert "The disk is full" in errors
    filler.unlink()
    run_build(recipe, small_disk / "set")
    assert digests(small_disk / "set") == whole
