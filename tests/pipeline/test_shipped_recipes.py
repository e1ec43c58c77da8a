"""The recipe that the mission names, from the Hub and the archive to a model, and every shipped recipe's plan.

Both servers are on loopback and hold a small set in the names and schemas of the real ones.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.builds import call_here
from tests.support.hub_builds import ROOT, Command
from tests.support.recipes import overrides
from tests.support.servers import corpora
from tests.support.servers.bucket import Bucket
from tests.support.servers.hub import Hub

pytestmark = pytest.mark.long


RECIPES = sorted((ROOT / "recipes/data").glob("*.toml"))
SHORT_RUN = overrides(
    *("train.steps=2", "schedule.warmup_steps=1", "eval.max_tokens=2_000"),
    *("eval.sets=[]", "eval.tasks=[]", "phases=[]"),
)
MIX = {"fineweb-edu": 87, "finemath": 10, "python-edu": 3}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> corpora.Corpora:
    return corpora.write(tmp_path_factory.mktemp("corpora"))


@pytest.fixture
def run(made: corpora.Corpora, tmp_path: Path) -> Iterator[Command]:
    with Hub(made.root) as hub, Bucket(made.objects) as bucket:
        command = Command(hub, tmp_path)
        command.environment["TOKENMILL_CONTENT_ENDPOINT"] = f"{bucket.url}/content"
        yield command


SMALL = overrides(
    *("mix.tokens=max", "mix.when_short=shrink", "tokenizer.vocab_size=2_000"),
    *("split.val_tokens=3_000", "shards.tokens=20_000"),
)
"""What fits the big recipe to what the servers hold."""


def test_the_big_recipe_builds_validates_and_trains_from_the_hub(run: Command, tmp_path: Path) -> None:
    out = run.build(ROOT / "recipes/data/gpuburnout-1b.toml", "set", *SMALL)
    manifest = json.loads((out / "manifest.json").read_text())
    assert {source["name"]: source["weight"] for source in manifest["sources"]} == MIX
    assert all(len(source["revision"]) == 40 for source in manifest["sources"])
    training = ["train", ROOT / "recipes/train/demo.toml", "--shards", out, "--run", tmp_path / "run", *SHORT_RUN]
    for command in (["validate", out], training):
        done = call_here(*command)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_can_be_planned(recipe: Path, run: Command, tmp_path: Path) -> None:
    text = recipe.read_text()
    values: list[str] = []
    if 'kind = "hub"' not in text:  # its files are the person's: here one, of real text
        stories, sources = corpora.small_stories(), tomllib.loads(text)["sources"]
        for number, source in enumerate(sources):  # its own part of the texts, since equal documents count once
            own = stories.take(list(range(number, stories.num_rows, len(sources))))
            if "separator" in source:
                file = tmp_path / f"{number}.txt"
                file.write_text("\n<|endoftext|>\n".join(own["text"].to_pylist()))
            else:
                file = tmp_path / f"{number}.parquet"
                pq.write_table(own, file)
            values.append(f"sources.{source['name']}.paths=['{file}']")
    for evaluation in tomllib.loads(text).get("evaluations", []):
        file = tmp_path / f"{evaluation['name']}.jsonl"
        file.write_text(json.dumps({evaluation["text"]: "How many eggs are left after the market?"}) + "\n")
        values.append(f"evaluations.{evaluation['name']}.paths=['{file}']")
    # The texts here are few: a plan of more tokens than they have is refused, as the build is.
    values += ["split.val_tokens=1_000", "mix.when_short=shrink"]
    values += ["tokenizer.vocab_size=600"] if "vocab_size" in text else []
    command = ["plan", recipe, "--out", tmp_path / "set", "--json", *overrides(*values)]
    # Only what reads from the Hub needs a process of its own, with its address.
    planned = json.loads(run(*command) if 'kind = "hub"' in text else call_here(*command).stdout)
    assert all(source["tokens"] > 0 for source in planned["sources"])
