"""A disk that changes bytes of the work folder: the set stays the same, and the build says what it made again."""

# pyright: basic

from __future__ import annotations

import os
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.builder.build import build
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.engine.driver import Driver
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.stage_progress import Progress
from pipeline.engine.tasks import Task
from shards.errors import RunError
from shards.stores.store import FolderStore
from tests.support import stage_tasks
from tests.support.builds import Built, build_here, digests, recipe_text, run_build, write_corpus
from tests.support.damage import flip
from tests.support.recipes import source, write_recipe
from tests.support.servers import corpora as stand_ins
from tests.support.servers.bucket import Bucket

TRIES = 12 if os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS") else 2
"""Bytes flipped in each kind of file, each followed by a build."""


def write_docs_recipe(path: Path, glob: Path, *, tokens: int = 1, **keys: Any) -> Path:
    """Write the recipe of one source; `tokens` multiplies the sizes of shards and of the validation split."""
    sizes = {"split": {"val_tokens": 4000 * tokens}, "shards": {"tokens": 10_000 * tokens}}
    return write_recipe(path, source("docs", glob, **keys), tokenizer={"vocab_size": 400}, **sizes)


class Finished:
    """A set and its work folder, built in this process. All of its source is in the set, so every file is read."""

    def __init__(self, folder: Path):
        write_corpus(folder / "corpus")
        self.recipe = write_docs_recipe(folder / "small.toml", folder / "corpus/docs.jsonl", text="body.content")
        self.out, self.work = folder / "set", folder / "work"
        self.build()
        self.expected = digests(self.out)

    def build(self, *overrides: str) -> None:
        """Build with the recipe's keys changed."""
        with closing(LocalExecutor(1)) as executor:
            recipe = load_checked_recipe(self.recipe, overrides=list(overrides))
            # Nothing is kept of other recipes, so that each build reads the work folder's files again.
            report = build(recipe, out=self.out, work=self.work, executor=executor, progress=Progress(), prune=True)
        assert not report.validation.problems


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(tmp_path_factory.mktemp("finished"))


@pytest.mark.parametrize(
    "pattern",
    [
        "encode/*/tokens.bin",
        "encode/*/documents.npy",
        "encode/*/checksums.bin",
        "encode/*/receipt.json",
        "mix/*/evidence.parquet",
        "mix/*/checksums.bin",
        "mix/*/receipt.json",
        "tokenizer/*/tokenizer.json",
        "tokenizer/*/checksums.bin",
        "tokenizer/*/receipt.json",
        "assemble/*/receipt.json",
    ],
)
def test_a_flipped_bit_does_not_reach_the_set(
    pattern: str, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = random.Random(pattern)
    stage = pattern.partition("/")[0]
    for _ in range(TRIES):
        damaged = generator.choice(sorted(finished.work.glob(pattern)))
        flip(damaged, generator)
        shutil.rmtree(finished.out)
        capsys.readouterr()
        finished.build()
        assert digests(finished.out) == finished.expected
        said = capsys.readouterr().err
        assert f"{damaged.parent}/" in said
        assert f"{stage} task {damaged.parent.name} runs again" in said


READ_BY_THE_MIX = {
    "encode/*/measures.bin": ("mix",),
    "encode/*/hits.bin": ("mix",),
    "bands/*/bands.bin": ("pairs", "similar", "mix"),
    "bands/*/edges.bin": ("pairs", "similar", "mix"),
    "pairs/*/pairs.bin": ("similar", "mix"),
    "pairs/*/edges.bin": ("similar", "mix"),
    "similar/*/similar.bin": ("mix",),
}
"""Files of a set with every feature on, and the stages to delete so that they are read again."""


@pytest.fixture(scope="module")
def damaged(whole: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("damaged")
    for name in ("set", "set.work"):
        shutil.copytree(whole.out.with_name(name), folder / name)
    return Built(whole.recipe, folder / "set", whole.result)


@pytest.mark.parametrize("pattern", READ_BY_THE_MIX)
def test_a_flipped_bit_does_not_reach_the_mix(pattern: str, damaged: Built, whole: Built) -> None:
    work = damaged.out.with_name("set.work")
    for stage in READ_BY_THE_MIX[pattern]:
        shutil.rmtree(work / stage)
    path = next(path for path in sorted(work.glob(pattern)) if path.stat().st_size)
    # Of the edges of bands just those of the ranges are read, with their blocks: the first always is.
    flip(path, random.Random(pattern), 0 if path.name == "edges.bin" else None)
    said = build_here(damaged.recipe, damaged.out)["stderr"]
    assert digests(damaged.out) == whole.digests
    assert f"{path}: damaged" in said
    assert f"the {pattern.partition('/')[0]} task {path.parent.name} runs again" in said


def test_another_shard_size_reads_runs_in_the_mix(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    generator = random.Random(5)
    finished.build("shards.tokens=15_000")
    expected = digests(finished.out)
    for name in ("tokens.bin", "documents.npy"):
        finished.build()
        (damaged,) = finished.work.glob(f"encode/*/{name}")
        flip(damaged, generator)
        capsys.readouterr()
        finished.build("shards.tokens=15_000")
        assert digests(finished.out) == expected
        assert f"encode task {damaged.parent.name} runs again" in capsys.readouterr().err
    finished.build()


@pytest.mark.long
def test_damage_is_repaired_from_worker_processes(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_text(tmp_path / "corpus"))
    build_here(recipe, tmp_path / "set")
    expected = digests(tmp_path / "set")
    generator = random.Random(4)
    damaged = sorted((tmp_path / "set.work").glob("encode/*/documents.npy"))
    assert len(damaged) == 3
    for path in damaged:
        flip(path, generator)
    shutil.rmtree(tmp_path / "set")
    said = run_build(recipe, tmp_path / "set", "--workers", "2")["stderr"]
    assert digests(tmp_path / "set") == expected
    assert said.count("runs again") == 3
    for path in damaged:
        assert f"{path}: damaged" in said
        assert f"encode task {path.parent.name} runs again" in said


@pytest.mark.long
def test_fetched_documents_that_were_damaged_are_fetched_again(tmp_path: Path) -> None:
    table = stand_ins.small_code(tmp_path / "objects.tar")
    (tmp_path / "rows").mkdir()
    pq.write_table(table, tmp_path / "rows" / "part.parquet", row_group_size=-(-len(table) // 2))
    keys = {"content": "software-heritage", "max_missing": 0.1}
    recipe = write_docs_recipe(tmp_path / "recipe.toml", tmp_path / "rows/*.parquet", tokens=100, **keys)
    generator = random.Random(2)
    with Bucket(tmp_path / "objects.tar") as server:
        options = ["--content-endpoint", f"{server.url}/content"]
        build_here(recipe, tmp_path / "set", *options)
        expected = digests(tmp_path / "set")
        for place in (None, None, -1, -100, -300):  # anywhere, and in the footer
            (damaged,) = (tmp_path / "set.work").glob("fetch/*/*.parquet")
            flip(damaged, generator, place)
            for name in ("set", "set.work/encode"):
                shutil.rmtree(tmp_path / name)
            said = build_here(recipe, tmp_path / "set", *options)["stderr"]
            assert digests(tmp_path / "set") == expected
            assert f"{damaged}: damaged" in said
            assert f"fetch task {damaged.parent.name} runs again" in said


def test_a_disk_that_damages_a_file_each_time_ends_the_build(tmp_path: Path) -> None:
    driver = Driver(FolderStore(tmp_path), LocalExecutor(1), Progress())
    written = Task("a" * 32, {"name": "a", "text": "some text"}, 1)
    driver.run_stage("first", stage_tasks.write_file, [written])
    reader = Task("b" * 32, {"folder": str(tmp_path / "first" / written.digest), "name": "a.bin"}, 1)
    stage_tasks.CALLS.clear()
    with pytest.raises(RunError, match=r"a\.bin: damaged again, after its task ran 2 times more\. The disk"):
        driver.run_stage("second", stage_tasks.damage_and_read, [reader])
    assert stage_tasks.CALLS == ["a", "a"]
    assert RunError.exit_status == 1
