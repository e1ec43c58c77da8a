"""What `plan` says of requests to an object store, compared with the requests of the build."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import pipeline
from pipeline.estimate.traffic import BuildSize, StageTraffic, count_traffic, request_usd
from tests.support.builds import build_here, recipe_text, run_build, write_corpus
from tests.support.servers.loopback import Record
from tests.support.servers.objects import ObjectServer, Proxy, aws_environment

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of the small corpus, with about 78 shards: two tasks that validate."""
    folder = tmp_path_factory.mktemp("traffic")
    write_corpus(folder / "corpus")
    path = folder / "recipe.toml"
    path.write_text(recipe_text(folder / "corpus", shard_tokens="1_000"))
    return path


def test_the_plan_foresees_the_requests_of_a_build(
    recipe: Path, moto: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moto.reset()
    moto.empty_bucket()
    with Proxy(moto) as proxy:
        aws_environment(monkeypatch, proxy.url)
        planned = pipeline.plan_set(recipe, out="s3://bucket/set", workers=2).traffic
        assert proxy.requests == []  # a plan asks the store for nothing
        run_build(recipe, "s3://bucket/set", "--workers", "2", "--scratch", str(tmp_path / "scratch"))
        records = proxy.requests
    assert [stage.stage for stage in planned] == ["encode", "mix", "assemble", "validate"]

    def is_read(record: Record) -> bool:
        return record.method in ("GET", "HEAD") and "list-type" not in record.query

    # Validation begins when the manifest is there.
    published = next(index for index, record in enumerate(records) if record.path.endswith("/set/manifest.json")
                     and record.method == "PUT")  # fmt: skip
    checks = [record for record in records[published + 1 :] if is_read(record)]
    receipts = [record for record in checks if "/set.work/validate/" in record.path]
    of_set = [record for record in checks if "/bucket/set/" in record.path]
    validate = planned[-1]
    assert len(receipts) == 2 * 2  # two tasks: not there, read by the driver
    assert 0.95 < validate.reads / (len(receipts) + len(of_set)) < 1.05
    moved = [record for record in receipts + of_set if not record.path.endswith("/tokenizer.json")]
    assert 0.8 < validate.read_bytes / sum(record.body_bytes for record in moved) < 1.2
    wrote = [record for record in records if "/set.work/validate/" in record.path and record.method == "PUT"]
    assert 0.7 < validate.written_bytes / sum(record.received_bytes for record in wrote) < 1.2

    reads = sum(stage.reads for stage in planned)
    writes = sum(stage.writes for stage in planned)
    assert 0.8 < reads / sum(map(is_read, records)) < 1.25
    assert 0.7 < writes / sum(not is_read(record) for record in records) < 1.25
    runs = [
        record for record in records if record.path.endswith(("/tokens.bin", "/documents.npy")) and not is_read(record)
    ]
    assert len(runs) == 2 * 3  # three units
    assert 0.8 < planned[0].written_bytes / sum(record.received_bytes for record in runs) < 1.25


def test_the_plan_foresees_the_requests_for_near_duplicates(
    recipe: Path, moto: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto.reset()
    moto.empty_bucket()
    near = recipe.with_name("near.toml")
    near.write_text(recipe.read_text() + '[clean.near_duplicates]\naction = "report"\n')
    with Proxy(moto) as proxy:
        aws_environment(monkeypatch, proxy.url)
        planned = {stage.stage: stage for stage in pipeline.plan_set(near, out="s3://bucket/set", workers=2).traffic}
        build_here(near, "s3://bucket/set")
        records = proxy.requests
    own = [record for record in records if "/set.work/bands/" in record.path]
    reads = [record for record in own if record.method == "GET"]
    assert len(reads) >= 9  # three runs: what is written is looked for twice, read by the driver, and read for pairs
    tasks = planned["bands"].reads + planned["pairs"].reads
    runs_read = 3 * (3 + 1)  # of the encode stage: receipt, rows, checksums, tokens
    ours = [record for record in records if "/set.work/pairs/" in record.path and record.method == "GET"]
    assert 0.7 < tasks / (len(reads) + len(ours) + runs_read) < 1.3
    assert planned["similar"].reads > 0
    wrote = [record for record in own if record.method in ("PUT", "POST")]
    assert 0.7 < planned["bands"].writes / len(wrote) < 1.3


def test_only_what_is_in_a_store_is_counted() -> None:
    size = BuildSize(
        runs=100, documents=10**6, encoded_bytes=10**10, shards=50, set_tokens_bytes=10**10, set_bytes=10**10
    )
    work = count_traffic(size, workers=8, work=True, out=False)
    out = count_traffic(size, workers=8, work=False, out=True)
    both = count_traffic(size, workers=8, work=True, out=True)
    assert [stage.stage for stage in work] == ["encode", "mix", "assemble", "validate"]
    assert [stage.stage for stage in out] == ["assemble", "validate"]
    for name in ("reads", "writes", "read_bytes", "written_bytes"):
        parts = sum(getattr(stage, name) for stage in (*work, *out))
        assert sum(getattr(stage, name) for stage in both) == parts
    assert count_traffic(size, workers=8, work=False, out=False) == ()
    usd = request_usd(both, "s3")
    assert usd == pytest.approx(sum(s.reads for s in both) * 0.4e-6 + sum(s.writes for s in both) * 5e-6)


def test_a_task_of_validation_leaves_a_receipt() -> None:
    size = BuildSize(
        runs=100, documents=10**6, encoded_bytes=10**10, shards=500, set_tokens_bytes=10**10, set_bytes=10**10
    )
    (*_, receipts) = count_traffic(size, workers=8, work=True, out=False)
    assert size.check_tasks == 500  # 20 MB of tokens each
    assert (receipts.reads, receipts.written_bytes) == (1000, 2 * 500 * 250)
    more = replace(size, documents=20 * 10**6)  # compared in three parts, each by a task
    (*_, with_parts) = count_traffic(more, workers=8, work=True, out=False)
    assert with_parts.reads == receipts.reads + 6
    tables = replace(size, set_table_bytes=10**9)
    (*_, plain), (*_, twice) = (count_traffic(one, workers=8, work=False, out=True) for one in (size, tables))
    assert twice.read_bytes - plain.read_bytes == 10**9


def test_answers_take_time_too() -> None:
    stage = StageTraffic("validate", reads=1000, writes=0, read_bytes=10**6)
    assert stage.seconds(10) == pytest.approx(1000 * 0.03 / 10)
    assert replace(stage, at_once=30).seconds(10) == pytest.approx(0.1)
    assert replace(stage, read_bytes=85 * 10**8).seconds(10) == pytest.approx(10)


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "plan", *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_cluster_needs_its_workers_and_has_a_price(recipe: Path) -> None:
    refused = plan(str(recipe), "--engine", "slurm")
    assert refused.returncode == 2
    assert "--engine slurm needs --workers" in refused.stderr
    cluster = ("--engine", "slurm", "--workers", "64", "--cpus-per-node", "10", "--node-usd-per-hour", "2")
    found = json.loads(plan(str(recipe), *cluster, "--work", "s3://b/work", "--out", "s3://b/out", "--json").stdout)
    assert found["time"]["workers"] == 64
    assert found["nodes_usd"] == pytest.approx(7 * 2 * found["time"]["total_s"] / 3600)
    assert found["request_usd"] > 0
    assert found["time"]["longest_stage"] in ("tokenizer", "encode", "mix", "assemble", "validate")
