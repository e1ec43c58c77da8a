"""Assembling: a shard's bytes depend on its documents and the seed, not on where they came from."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.assemble import AssembleTask, assemble_shards
from pipeline.builder.stages.assemble import group_assembled_shards
from pipeline.encode.run import END_HASH, FIRST_HASH, Run, RunList
from pipeline.engine.receipts import WorkFileDamagedError
from pipeline.engine.tasks import Report
from pipeline.mix.cuts import MixTask, cut_sources, mix_runs
from pipeline.mix.index import Index
from pipeline.mix.mix_plan import MixPlan, ShardPlan, Slice
from shards.format.writer import SetProperties
from shards.stores.open import open_writable_store
from shards.stores.store import FolderStore
from tests.support.runs import EOS, Document, make_recipe, place_documents, write_index, write_run, write_runs
from tests.support.servers.objects import ObjectServer, Proxy, aws_environment

SOURCES = [
    [Document((i * 0x9E3779B97F4A7C15 % (1 << 64), i), 2 + i % 9) for i in range(80)],
    [Document((i * 0xC2B2AE3D27D4EB4F % (1 << 64), i), 2 + i % 23) for i in range(1, 60)],
]
# The first source holds two copies of one document.
SOURCES[0].append(SOURCES[0][11])


def assemble(
    folder: Path, runs: list[Run], plan: MixPlan, index: Index, *, seed: int = 5, together: int = 1, fetch: bool = False
) -> dict[str, dict[str, Any]]:
    """Assemble all shards, some together; return by shard name: tokens, table, entry."""
    (folder / "masks").mkdir(parents=True)
    (folder / "out").mkdir()
    masks = folder / "masks"
    write_index(masks, index)
    found: dict[str, dict[str, Any]] = {}
    listed = RunList(FolderStore(folder), runs)
    listed.write()
    for split in ("train", "val"):
        own = [shard for shard in plan.shards if shard.split == split]
        for first in range(0, len(own), together):
            properties = SetProperties(2000, EOS, "0" * 64)
            task = AssembleTask(
                tuple(own[first : first + together]), listed.address, str(masks), ("s0", "s1"), seed, properties, fetch
            )
            report = Report()
            result = assemble_shards(folder / "out", task, report)
            read = [_read(folder / "out", entry.model_dump()) for entry in result.entries]
            number = sum(len(shard["tokens"]) for shard in read)
            assert report.done == (2 * number, number)
            assert result.files.keys() == {file["path"] for shard in read for file in shard["entry"]["files"].values()}
            found |= {shard["entry"]["name"]: shard for shard in read}
    assert {f"{name}.json" for name in found} == {path.name for path in (folder / "out").glob("*.json")}
    return found


def _read(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    data = (folder / f"{entry['name']}.bin.zst").read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
        tokens = np.frombuffer(stream.read(), "<u2")
    table = pq.read_table(folder / f"{entry['name']}.docs.parquet")
    return {"tokens": tokens.tolist(), "table": table.to_pylist(), "entry": entry}


def build(folder: Path, cuts: list[list[int]], **mix: Any) -> tuple[Any, Any]:
    runs = write_runs(folder / "runs", SOURCES, cuts)
    recipe = make_recipe([3, 1], val_tokens=60, shard_tokens=150, **{"when_short": "shrink"} | mix)
    index = Index(runs, recipe)
    plan = cut_sources(index)
    return assemble(folder, runs, plan, index), place_documents(plan, runs, index)


def test_a_shard_holds_its_documents_each_with_one_eos(tmp_path: Path):
    shards, placed = build(tmp_path, [[], []])
    assert len(shards) == len(placed) > 3
    for (split, number), documents in placed.items():
        shard = shards[f"{split}-{number:05d}"]
        table = shard["table"]
        keys = [(int.from_bytes(row["hash"][:8], "big"), int.from_bytes(row["hash"][8:], "big")) for row in table]
        sources = [int(row["source"][1]) for row in table]
        assert sorted(zip(sources, keys, strict=True)) == sorted((source, key) for source, _, key, _ in documents)
        lengths = [row["length"] for row in table]
        assert [row["start"] for row in table] == [0, *accumulate(lengths)][:-1]
        expected = [Document(key, length).tokens for key, length in zip(keys, lengths, strict=True)]
        assert shard["tokens"] == [token for tokens in expected for token in tokens]
        ends = [row["start"] + row["length"] - 1 for row in table]
        assert [place for place, token in enumerate(shard["tokens"]) if token == EOS] == ends
        for row, source, key in zip(table, sources, keys, strict=True):
            assert row["unit"] == f"source-{source}@1#file"
            assert SOURCES[source][row["row"]].key == key
        assert shard["entry"]["tokens"] == sum(lengths)
        assert keys != sorted(keys)


@pytest.mark.parametrize(
    "mix", [{}, {"tokens": "max", "when_short": "repeat", "max_epochs": 3}], ids=["once", "repeated"]
)
def test_runs_and_shards_assembled_together_change_no_token(mix: dict[str, Any], tmp_path: Path):
    runs = write_runs(tmp_path / "runs", SOURCES, [[40], [5, 6, 30]])
    recipe = make_recipe([3, 1], val_tokens=60, shard_tokens=150, **{"when_short": "shrink", **mix})
    index = Index(runs, recipe)
    plan = cut_sources(index)
    alone = assemble(tmp_path / "alone", runs, plan, index)
    assert len(alone) > 3
    for together, fetch in ((2, False), (2, True), (100, True)):
        assert assemble(tmp_path / f"{together}-{fetch}", runs, plan, index, together=together, fetch=fetch) == alone
    tokens = {name: shard["tokens"] for name, shard in alone.items()}
    for number, cuts in enumerate(([[], []], [list(range(0, 80, 3)), []])):
        found, _ = build(tmp_path / f"cut-{number}", cuts, **mix)
        assert {name: shard["tokens"] for name, shard in found.items()} == tokens


@pytest.fixture
def proxy(bucket: str, moto: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with Proxy(moto) as proxy:
        aws_environment(monkeypatch, proxy.url)
        yield proxy


def test_runs_in_a_bucket_are_read_once_for_all_shards_of_a_task(bucket: str, proxy: Proxy, tmp_path: Path):
    local = write_runs(tmp_path / "runs", SOURCES, [[40], [5, 6, 30]])
    recipe = make_recipe([3, 1], val_tokens=60, shard_tokens=150, when_short="shrink")
    store = open_writable_store(f"{bucket}/work")
    for path in (tmp_path / "runs").rglob("*.*"):
        store.put(str(path.relative_to(tmp_path)), path)
    runs = [Run(f"{store}/runs/{Path(run.place).name}", run.source, run.dtype) for run in local]
    index = Index(local, recipe)
    expected = assemble(tmp_path / "local", local, cut_sources(index), index)

    listed = RunList(store, runs)
    listed.write()
    (tmp_path / "mix").mkdir()
    mixed = mix_runs(tmp_path / "mix", MixTask(recipe, listed.address, fetch=True), None)
    assert mixed.plan == cut_sources(index)
    assert {path.name for path in (tmp_path / "mix").iterdir()} == mixed.files.keys()

    def requests(name: str) -> int:
        return sum(record.method == "GET" and record.path.endswith(name) for record in proxy.requests)

    assert requests("/documents.npy") == len(runs)
    found = assemble(tmp_path / "remote", runs, cut_sources(index), index, together=100, fetch=True)
    assert found == expected
    once = requests("/tokens.bin")
    assert len(runs) <= once <= 2 * len(runs)  # one for each split in which a run has documents
    assert assemble(tmp_path / "single", runs, cut_sources(index), index) == expected
    assert requests("/tokens.bin") - once > 2 * once
    store.put(f"runs/{Path(runs[0].place).name}/tokens.bin", b"\1" * local[0].output.size("tokens.bin"))
    with pytest.raises(WorkFileDamagedError, match=r"tokens\.bin.*differs from what was written"):
        assemble(tmp_path / "damaged", runs, cut_sources(index), index, together=100, fetch=True)


def test_tasks_take_so_many_shards_that_reads_are_long():
    shards = [ShardPlan(split, k, ()) for split, count in (("train", 1000), ("val", 1)) for k in range(count)]

    def sizes(number: int, *, shard_documents: int = 100_000, **given: int) -> list[int]:
        groups = group_assembled_shards(shards[-number:], shard_documents=shard_documents, **given)
        assert [shard for group in groups for shard in group] == shards[-number:]
        assert all(len({shard.split for shard in group}) == 1 for group in groups)
        return [len(group) for group in groups]

    assert set(sizes(1001, runs=100, shard_bytes=200 << 20)) == {1}  # 2 MiB of each run
    assert sizes(1001, runs=300, shard_bytes=200 << 20) == [*[2] * 500, 1]  # 680 KiB
    assert sizes(1001, runs=4000, shard_bytes=200_000_000)[0] * 200_000_000 / 4000 > 1 << 20
    assert sizes(1001, runs=4000, shard_bytes=200_000_000, shard_documents=500_000)[:2] == [14, 14]  # 256 MiB of rows
    assert sizes(1001, runs=400, shard_bytes=200 << 10)[:2] == [62, 62]  # 16 tasks at least
    assert sizes(1001, runs=100_000, shard_bytes=900 << 20)[:2] == [6, 6]  # 6 GiB of scratch
    assert set(sizes(31, runs=4000, shard_bytes=200 << 20)) == {1}


GOLDEN = {
    ("train", 0): [3, 4, 5, 9, 8, 1, 6, 7, 0, 11, 10, 2],
    ("train", 1): [7, 11, 0, 6, 3, 5, 1, 2, 10, 9, 8, 4],
    ("val", 0): [10, 3, 8, 9, 2, 1, 4, 7, 6, 11, 0, 5],
}


def test_the_order_is_the_same_for_ever(tmp_path: Path):
    """Recorded: a numpy whose generators differ would change every shard set."""
    runs = [write_run(tmp_path / "run", 0, [Document((i * 0x9E3779B97F4A7C15 % (1 << 64), i), 2) for i in range(12)])]
    plan = MixPlan(tuple(ShardPlan(*name, (Slice(0, 0, FIRST_HASH, END_HASH),)) for name in GOLDEN), (), (), 0, (), ())
    found = assemble(tmp_path, runs, plan, Index(runs, make_recipe([1])), seed=1337)
    assert [[row["row"] for row in shard["table"]] for shard in found.values()] == [*GOLDEN.values()]
