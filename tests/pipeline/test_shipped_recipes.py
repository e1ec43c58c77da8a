"""The recipe that the mission names, from the Hub and the archive to a model, and every shipped recipe's plan.

Both servers are on loopback and hold a small set in the names and schemas of the real ones.
"""

import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shards.eval_tasks.known import KNOWN_TASKS
from tests.support.builds import call_here, read_json
from tests.support.eval_task_rows import ROWS
from tests.support.hub_builds import ROOT, Command
from tests.support.recipes import overrides
from tests.support.servers import corpora
from tests.support.servers.bucket import Bucket
from tests.support.servers.hub import Hub
from tests.support.servers.hub_writes import OWNER, WRITER
from tests.support.servers.snapshots import snapshot_of
from tests.support.tokenizers import trained_kinds
from trainer.recipe import load_train_recipe
from trainer.results.runs import read_run
from trainer.run_folder import read_samples

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
    with Hub(made.root, store=tmp_path / "written") as hub, Bucket(made.objects) as bucket:
        command = Command(hub, tmp_path)
        command.network["content_endpoint"] = f"{bucket.url}/content"
        publish_tasks(hub, tmp_path / "tasks")
        yield command


def publish_tasks(hub: Hub, folder: Path) -> None:
    """Publish the eval tasks that shipped recipes name, under the commits that they have on the real Hub."""
    for name in ("arc_easy", "arc_challenge", "hellaswag"):
        task = KNOWN_TASKS[name]
        file = folder / task.repo / task.file
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([ROWS.get(name, ROWS["arc_easy"])] * 3), file)
    for repo, revision in {(KNOWN_TASKS[name].repo, KNOWN_TASKS[name].revision) for name in ("arc_easy", "hellaswag")}:
        hub.add(repo, replace(snapshot_of(repo, folder / repo), commit=revision), "main")


SMALL = overrides(
    *("mix.tokens=max", "mix.when_short=shrink", "tokenizer.vocab_size=2_000"),
    *("split.val_tokens=3_000", "shards.tokens=20_000"),
)
"""What fits the big recipe to what the servers hold."""


def test_the_big_recipe_builds_validates_and_trains_from_the_hub(run: Command, tmp_path: Path):
    out = run.build(ROOT / "recipes/data/gpuburnout-1b.toml", "set", *SMALL)
    manifest = read_json(out / "manifest.json")
    assert {source["name"]: source["weight"] for source in manifest["sources"]} == MIX
    assert all(len(source["revision"]) == 40 for source in manifest["sources"])
    training = ["train", ROOT / "recipes/train/demo.toml", "--shards", out, "--run", tmp_path / "run", *SHORT_RUN]
    for command in (["validate", out], training):
        call_here(*command, expect=0)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_can_be_planned(recipe: Path, run: Command, tmp_path: Path):
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
                for name in source.get("messages", []):
                    own = own.append_column(name, own["text"])
                pq.write_table(own, file)
            values.append(f"sources.{source['name']}.paths=['{file}']")
    for evaluation in tomllib.loads(text).get("evaluations", []):
        file = tmp_path / f"{evaluation['name']}.jsonl"
        file.write_text(json.dumps({evaluation["text"]: "How many eggs are left after the market?"}) + "\n")
        values.append(f"evaluations.{evaluation['name']}.paths=['{file}']")
    # The texts here are few: a plan of more tokens than they have is refused, as the build is.
    values += ["split.val_tokens=1_000", "mix.when_short=shrink"]
    if "vocab_size" in text:
        values.append("tokenizer.vocab_size=600")
    else:
        (tmp_path / "given.json").write_text(json.dumps(trained_kinds()["plain"]))
        values += [f"tokenizer.file={tmp_path / 'given.json'}", "tokenizer.eos_token=</s>"]
    command = ["plan", recipe, "--out", tmp_path / "set", "--json", *overrides(*values)]
    # Only what reads from the Hub needs a process of its own, with its address.
    planned = json.loads(run(*command) if 'kind = "hub"' in text else call_here(*command).stdout)
    assert all(source["tokens"] > 0 for source in planned["sources"])


PAGE = (ROOT / "docs/projects.md").read_text(encoding="utf-8")
PROJECTS = {
    title: [shlex.split(line, comments=True)[1:] for line in code.splitlines()]
    for title, code in re.findall(
        r"^## ([^\n]*)\n(?:(?!^## ).)*?^```sh\n(tokenmill .*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
}
IN_CI = "134 M"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("project", PROJECTS)
def test_a_project_runs_as_its_page_says(project: str, run: Command, tmp_path: Path):
    """Each command of the page, as a rehearsal on what the servers hold."""
    if project != IN_CI and not os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"):
        pytest.skip("one project is enough here; make test-exhaustive runs all")
    (tmp_path / "data").mkdir()
    texts = corpora.small_stories()["text"].to_pylist() * 3
    (tmp_path / "data/corpus.txt").write_text("<|endoftext|>".join(f"{n} {text}" for n, text in enumerate(texts)))
    # The items that are made here have the commits of the real ones: no cache of the user may get them.
    of_tests = {"HF_TOKEN": WRITER, "HF_HUB_DISABLE_XET": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    waiting: dict[str, int] = {}
    for command in PROJECTS[project]:
        more = {"build": SMALL, "plan": SMALL, "train": ["--rehearse"]}.get(command[0], [])
        # What is trained pauses at all phases but the last one, unless that is passed.
        status = 0
        if command[0] == "train":
            name = command[command.index("--run") + 1]
            waiting.setdefault(name, sum(phase.pause for phase in load_train_recipe(Path(command[1])).phases))
            status = 3 if waiting[name] else 0
            waiting[name] -= 1
            more = [] if "--rehearse" in command else more
        arguments = [word.replace("OWNER", OWNER) for word in command if word not in ("--tokens", "4M")]
        run(*arguments, *more, cwd=tmp_path, expect=status, **of_tests)
    for name, pauses in waiting.items():
        trained = read_run(tmp_path / name)
        recipe, last = trained.recipe, trained.records[-1]["step"]
        assert recipe.name.startswith("rehearsal of ")
        assert recipe.milestones.intersection(range(last + 1)) <= read_samples(tmp_path / name).keys()
        assert (last == recipe.train.steps) == (pauses < 0)
