"""Training from a remote store through the cache: the same steps as from disk, whatever the network and the cache do.

The set lies on a Hub on loopback, and in a bucket of moto's S3 server.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shards import ShardSet
from shards.format.windows.order import WindowOrder
from shards.stores.hub_client import limit_hub_requests
from tests.support.builds import read_json
from tests.support.servers.hub import Hub
from tests.support.servers.objects import BUCKET, Proxy, aws_environment, upload
from tests.trainer.conftest import build_set, read_lines
from trainer.recipe import load_train_recipe

pytestmark = pytest.mark.long


URL = "hf://datasets/tester/set"
S3 = f"s3://{BUCKET}/sets/tiny"


@pytest.fixture(scope="module")
def six_shards(tmp_path_factory) -> ShardSet:
    """A set of six train shards and one val shard. Read only."""
    folder = tmp_path_factory.mktemp("remote") / "set"
    return build_set(folder, shard_tokens={"train": [1_500] * 6, "val": [1_500]})


@pytest.fixture
def hub(six_shards, monkeypatch, tmp_path, hub: Hub) -> Hub:
    """Return a Hub with the set, which is the Hub of this process and of those it starts; the cache is a new one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    hub.publish("tester/set", six_shards.path)
    return hub


@pytest.fixture
def bucket(moto, six_shards, monkeypatch, tmp_path) -> Iterator[Proxy]:
    """Return the proxy in front of a bucket that holds the set at `S3`; the cache is a new one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    moto.empty_bucket()
    with Proxy(moto) as proxy:
        aws_environment(monkeypatch, proxy.url)
        upload(six_shards.path, S3)
        proxy.forget()
        yield proxy


@pytest.fixture(scope="module")
def from_disk(train, six_shards, tmp_path_factory) -> Path:
    """A run from disk that never stopped. Read only."""
    run = tmp_path_factory.mktemp("runs") / "disk"
    train(run, shards=six_shards.path)
    return run


def weights(run: Path) -> bytes:
    """Return the last checkpoint's weights."""
    return (run / "checkpoints/step-00000024/model.safetensors").read_bytes()


def visited(six_shards, recipe_file) -> list[str]:
    """Return the names of the train shards in the order in which the first epoch visits them."""
    train, shards = load_train_recipe(recipe_file).train, six_shards.splits["train"]
    order = WindowOrder([shard.num_tokens for shard in shards], seq_len=train.seq_len, seed=train.seed)
    return [shards[visit.shard].name for visit, *_ in order.group_by_visit(np.arange(order.per_epoch))]


def test_training_from_a_remote_store_is_training_from_disk(
    trainer, train, six_shards, recipe_file, from_disk, bucket, tmp_path
):
    run = tmp_path / "run"
    done = train(run, shards=S3)
    assert f"shards are kept in {tmp_path / 'xdg/tokenmill/shards'}, at most " in done.stderr
    assert read_lines(run) == read_lines(from_disk)
    assert weights(run) == weights(from_disk)
    record = read_json(run / "run.json")
    assert (record["shards"], record["manifest_sha256"]) == (S3, six_shards.manifest_sha256)
    assert (run / "tokenizer.json").read_bytes() == (from_disk / "tokenizer.json").read_bytes()
    # No sidecar was read, and each shard once.
    read = [one.path for one in bucket.requests if one.method == "GET" and one.status in (200, 206)]
    assert not [path for path in read if path.endswith("-00000.json")]
    for name in ("train-00000", "val-00000"):
        assert len([path for path in read if path.endswith(f"/{name}.bin.zst")]) == 1

    traced = [trainer.run("trace-step", folder, "--step", 3, "--json") for folder in (run, from_disk)]
    assert [one.returncode for one in traced] == [0, 0], traced[0].stderr
    found, expected = (one.json for one in traced)
    assert found | {"run": ""} == expected | {"run": ""}

    fitting = trainer.run("fit", recipe_file, "--shards", S3, "--gpu-memory", "1GB", "--json")
    assert fitting.json["memory"]["vocab_size"] == six_shards.vocab_size


def test_a_run_goes_on_where_the_set_lies_now(train, six_shards, from_disk, hub, bucket, tmp_path):
    run = tmp_path / "run"
    for place, until in ((URL, 4), (six_shards.path, 10), (S3, 16), (six_shards.path, 24)):
        stop = f"phases=[{{name='a', until_step={until}, goal='loss < 0'}}]"
        done = train(run, stop, shards=place, status=3)
        assert ("resumed from" in done.stderr) == (until > 4)
    lines, whole = ([line for line in read_lines(one) if line["step"] != 10] for one in (run, from_disk))
    assert [line for line in lines if "phase" not in line] == whole
    assert weights(run) == weights(from_disk)


def test_a_network_that_is_gone_ends_the_run_in_a_clear_error_and_the_next_one_resumes(
    train, six_shards, recipe_file, from_disk, hub, tmp_path
):
    limit_hub_requests(None)  # not what a test before has set
    third = visited(six_shards, recipe_file)[2]
    hub.faults.on(f"/cdn/.*/{third}.bin.zst", status=503)
    done = train(tmp_path / "run", more=("--json",), shards=URL, status=1)
    told = done.json
    assert told["status"] == "failed"
    (problem,) = told["problems"]
    assert f"{URL}/{third}.bin.zst: bytes 0 to " in problem
    said = ("gave up after ", "HTTP 503", "Stopped after step ", "the same command continues from there")
    assert all(text in problem for text in said)
    assert "Stopped after step 0." not in problem
    hub.faults.off()
    train(tmp_path / "run", shards=URL)
    assert read_lines(tmp_path / "run") == read_lines(from_disk)
    assert weights(tmp_path / "run") == weights(from_disk)


def test_what_cannot_be_used_is_refused_before_anything_is_written(train, six_shards, hub, tmp_path):
    sizes = [file.bytes for shard in six_shards.shards for file in shard.entry.files.entries]
    limit = sum(sorted(sizes)[-2:]) - 1
    small = train(tmp_path / "run", more=("--cache-limit", f"{limit}B"), shards=URL, status=2)
    assert f"limit is {limit:,} bytes, less than two shards of {URL}" in small.stderr
    assert not (tmp_path / "run").exists()
    absent = train(tmp_path / "run", shards=URL + "-absent", status=2)
    assert "no such dataset, or it is private" in absent.stderr
