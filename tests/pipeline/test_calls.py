"""Calls as JSON: what a build sends to another host is enough there, and gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from pipeline.builder.build import build
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.stage_progress import Progress
from pipeline.sources.network.settings import Network
from tests.support.builds import digests, recipe_text, write_corpus
from tests.support.json_executor import JsonExecutor
from tests.support.servers import corpora as stand_ins
from tests.support.servers.bucket import Bucket

FETCHED = """
[[sources]]
name = "fetched"
paths = ["{rows}/*.parquet"]
content = "software-heritage"
max_missing = 0.1
weight = 10
"""


def test_every_stage_runs_from_json(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus")
    (tmp_path / "corpus" / "block.txt").write_text("0" * 32)
    table = stand_ins.small_code(tmp_path / "objects.tar")
    (tmp_path / "rows").mkdir()
    pq.write_table(table, tmp_path / "rows" / "part.parquet", row_group_size=-(-len(table) // 2))
    text = recipe_text(tmp_path / "corpus").replace(
        "[tokenizer]", FETCHED.format(rows=tmp_path / "rows") + "[tokenizer]"
    )
    # Relative paths and a block list: the recipe's folder is known to the driver alone.
    text = text.replace(str(tmp_path / "corpus"), ".")
    text = 'drop_hashes = ["block.txt"]\n' + text + "[clean.near_duplicates]\n"
    (tmp_path / "corpus" / "recipe.toml").write_text(text)
    recipe = load_checked_recipe(tmp_path / "corpus" / "recipe.toml")
    executors = {"plain": LocalExecutor(1), "json": JsonExecutor()}
    with Bucket(tmp_path / "objects.tar") as server, Network(content_endpoint=f"{server.url}/content").in_effect():
        for name, executor in executors.items():
            report = build(
                recipe,
                out=tmp_path / name,
                work=tmp_path / f"{name}.work",
                executor=executor,
                progress=Progress(quiet=True),
            )
            assert not report.validation.problems
    plain, sent = digests(tmp_path / "plain"), digests(tmp_path / "json")
    assert sent == plain
    functions = {"fetch_unit", "train_tokenizer", "encode_unit", "mix_runs", "assemble_shards"}
    functions |= {"write_bands", "find_pairs", "compare_pairs"}
    assert executors["json"].sent.keys() == functions
    largest = max(len(text) for text in executors["json"].sent["assemble_shards"])
    assert largest < 4000  # runs are named by reference
