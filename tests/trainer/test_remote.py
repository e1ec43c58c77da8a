"""Training from a remote store through the cache: the same steps as from disk, whatever the network and the cache do.

The set lies on a Hub on loopback, and in a bucket of moto's S3 server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from shards import ShardSet
from shards.format.windows.order import WindowOrder
from shards.stores.open import open_writable_store
from tests.support.servers.hub import Hub, use_hub
from tests.support.servers.objects import (
    BUCKET,
    ObjectServer,
    Proxy,
    aws_environment,
)
from tests.trainer.conftest import Done
from trainer.recipe import load_train_recipe

pytestmark = pytest.mark.long


URL = "hf://datasets/tester/set"
S3 = f"s3://{BUCKET}/sets/tiny"


class Command(Protocol):
    """The `trainer` fixture."""

    def run(self, *arguments: object) -> Done: ...


ReadLines = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def shard_set(make_set: Callable[..., ShardSet], tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    """A set of six train shards and one val shard. Read only."""
    folder = tmp_path_factory.mktemp("remote") / "set"
    return make_set(folder, shard_tokens={"train": [1_500] * 6, "val": [1_500]})


@pytest.fixture
def hub(shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Return a Hub with the set, which is the Hub of this process and of those it starts; the cache is a new one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with Hub() as server:
        server.publish("tester/set", shard_set.path)
        use_hub(server.url, monkeypatch)
        yield server


@pytest.fixture
def bucket(moto: ObjectServer, shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Proxy]:
    """Return the proxy in front of a bucket that holds the set at `S3`; the cache is a new one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    moto.empty_bucket()
    with Proxy(moto) as proxy:
        aws_environment(monkeypatch, proxy.url)
        store = open_writable_store(S3)
        for path in shard_set.path.iterdir():
            store.put(path.name, path)
        proxy.forget()
        yield proxy


@pytest.fixture(scope="module")
def from_disk(
    trainer: Command, shard_set: ShardSet, recipe_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run from disk that never stopped. Read only."""
    run = tmp_path_factory.mktemp("runs") / "disk"
    done = trainer.run("train", recipe_file, "--shards", shard_set.path, "--run", run)
    assert done.returncode == 0, done.stderr
    return run


def weights(run: Path) -> bytes:
    """Return the last checkpoint's weights."""
    return (run / "checkpoints/step-00000024/model.safetensors").read_bytes()


def visited(shard_set: ShardSet, recipe_file: Path) -> list[str]:
    """Return the names of the train shards in the order in which the first epoch visits them."""
    train, shards = load_train_recipe(recipe_file).train, shard_set.splits["train"]
    order = WindowOrder([shard.num_tokens for shard in shards], seq_len=train.seq_len, seed=train.seed)
    return [shards[visit.shard].name for visit, *_ in order.group_by_visit(np.arange(order.per_epoch))]


def two_largest(shard_set: ShardSet) -> int:
    """Return the least limit that a cache for the set may have."""
    sizes = [file.bytes for shard in shard_set.shards for file in shard.entry.files.entries]
    return sum(sorted(sizes)[-2:])


@pytest.mark.parametrize("place", [S3])
def test_training_from_a_remote_store_is_training_from_disk(
    trainer: Command,
    shard_set: ShardSet,
    recipe_file: Path,
    from_disk: Path,
    request: pytest.FixtureRequest,
    read_lines: ReadLines,
    tmp_path: Path,
    place: str,
):
    server: Hub | Proxy = request.getfixturevalue("hub" if place == URL else "bucket")
    run = tmp_path / "run"
    done = trainer.run("train", recipe_file, "--shards", place, "--run", run)
    assert done.returncode == 0, done.stderr
    assert f"shards are kept in {tmp_path / 'xdg/tokenmill/shards'}, at most " in done.stderr
    assert read_lines(run) == read_lines(from_disk)
    assert weights(run) == weights(from_disk)
    record = json.loads((run / "set.json").read_text())
    assert record == {"path": place, "manifest_sha256": shard_set.manifest_sha256}
    assert (run / "tokenizer.json").read_bytes() == (from_disk / "tokenizer.json").read_bytes()
    # No sidecar was read, and each shard once.
    read = [one.path for one in server.requests if one.method == "GET" and one.status in (200, 206)]
    assert not [path for path in read if path.endswith("-00000.json")]
    for name in ("train-00000", "val-00000"):
        assert len([path for path in read if path.endswith(f"/{name}.bin.zst")]) == 1

    traced = [trainer.run("trace-step", folder, "--step", 3, "--json") for folder in (run, from_disk)]
    assert [one.returncode for one in traced] == [0, 0], traced[0].stderr
    found, expected = (json.loads(one.stdout) for one in traced)
    assert found | {"run": ""} == expected | {"run": ""}

    if place == URL:
        return
    fitting = trainer.run("fit", recipe_file, "--shards", place, "--gpu-memory", "1GB", "--json")
    assert json.loads(fitting.stdout)["memory"]["vocab_size"] == shard_set.vocab_size


def test_a_run_goes_on_where_the_set_lies_now(
    trainer: Command,
    shard_set: ShardSet,
    recipe_file: Path,
    from_disk: Path,
    hub: Hub,
    bucket: Proxy,
    read_lines: ReadLines,
    tmp_path: Path,
):
    run = tmp_path / "run"
    for place, until in ((URL, 4), (shard_set.path, 10), (S3, 16), (shard_set.path, 24)):
        stop = f"phases=[{{name='a', until_step={until}, goal='loss < 0'}}]"
        done = trainer.run("train", recipe_file, "--shards", place, "--run", run, "--set", stop)
        assert done.returncode == 3, done.stderr
        assert ("resumed from" in done.stderr) == (until > 4)
    lines = [line for line in read_lines(run) if "phase" not in line]
    assert [line for line in lines if line["step"] != 10] == [
        line for line in read_lines(from_disk) if line["step"] != 10
    ]
    assert weights(run) == weights(from_disk)


def test_a_network_that_is_gone_ends_the_run_in_a_clear_error_and_the_next_one_resumes(
    trainer: Command,
    shard_set: ShardSet,
    recipe_file: Path,
    from_disk: Path,
    hub: Hub,
    read_lines: ReadLines,
    tmp_path: Path,
):
    arguments = ("train", recipe_file, "--shards", URL, "--run", tmp_path / "run")
    third = visited(shard_set, recipe_file)[2]
    hub.faults.on(f"/cdn/.*/{third}.bin.zst", status=503)
    done = trainer.run(*arguments, "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["status"] == "failed"
    (problem,) = told["problems"]
    assert f"{URL}/{third}.bin.zst: bytes 0 to " in problem
    assert "gave up after " in problem
    assert "HTTP 503" in problem
    assert "Stopped after step " in problem
    assert "Stopped after step 0." not in problem
    assert "the same command continues from there" in problem
    hub.faults.off()
    assert trainer.run(*arguments).returncode == 0
    assert read_lines(tmp_path / "run") == read_lines(from_disk)
    assert weights(tmp_path / "run") == weights(from_disk)


def test_what_cannot_be_used_is_refused_before_anything_is_written(
    trainer: Command, shard_set: ShardSet, recipe_file: Path, hub: Hub, tmp_path: Path
):
    needed = two_largest(shard_set)
    (tmp_path / "file").write_text("")
    for arguments, expected in (
        (("--cache-limit", f"{needed - 1}B"), f"limit is {needed - 1:,} bytes, less than two shards of {URL}"),
        (("--cache-limit", "much"), "--cache-limit much: expected a size such as 80GB"),
        (("--cache", tmp_path / "file"), f"{tmp_path / 'file'}: cannot be used as a cache: "),
    ):
        done = trainer.run("train", recipe_file, "--shards", URL, "--run", tmp_path / "run", *arguments)
        assert done.returncode == 2
        assert expected in done.stderr
        assert not (tmp_path / "run").exists()
    done = trainer.run("train", recipe_file, "--shards", URL + "-absent", "--run", tmp_path / "run")
    assert done.returncode == 2
    assert "no such dataset, or it is private" in done.stderr
