"""Every shipped recipe loads as it stands, and says what its text says it does."""

import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.recipe.paths import SHIPPED
from pipeline.recipe.schema import Recipe
from shards.config import load_settings
from shards.terminal.shipped_recipes import find_recipe
from tests.support.builds import call_here
from tests.support.recipes import write_file
from tokenmill.experiments.schema import AblationConfig, flatten_keys
from tokenmill.mix_search.schema import MixSearchConfig
from trainer import recipe as train_recipe

Load = Callable[..., Recipe]

ROOT = Path(__file__).resolve().parents[1]
DATA = sorted((ROOT / "recipes/data").glob("*.toml"))
TRAIN = sorted((ROOT / "recipes/train").glob("*.toml"))
EXPERIMENTS = sorted(path for path in (ROOT / "recipes/experiments").glob("*.toml") if not path.stem.endswith("-mix"))
"""Ablations; tests/experiments/test_mix_search.py has the mix searches."""
QUESTIONS = ("questions", "docs-prose")
FILES = {
    "demo": [f"out/demo-corpus/{name}/part-00000.parquet" for name in ("docs-prose", "docs-maths", "stdlib-code")],
    "chat-demo": [
        "out/demo/tokenizer.json",
        *(f"out/demo-corpus/{name}/0.parquet" for name in ("questions", "docs-prose")),
    ],
    "gpuburnout-1b-chat": ["out/gpuburnout-1b/tokenizer.json"],
    "local-text": ["data/corpus.txt"],
    "decontaminated": ["data/corpus.txt", "evals/gsm8k.jsonl", "evals/mmlu.parquet"],
}
"""Files that a recipe reads, by its folder's place in the project; they are made before it is built."""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return `load(name, *overrides)`: of a copy of the project's recipes, with the files that they read."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # loading a recipe asks nothing of the network

    def load_shipped(name: str, *overrides: str) -> Recipe:
        for file in FILES.get(name, []):
            write_file(tmp_path / file, "a file")
        return load_checked_recipe(tmp_path / f"recipes/data/{name}.toml", overrides=list(overrides))

    return load_shipped


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_every_data_recipe_loads(path: Path, load: Load):
    recipe = load(path.stem)
    assert recipe.name == path.stem
    assert recipe.tokenizer.vocab_size or recipe.tokenizer.file
    assert load(path.stem, "mix.tokens=100M").mix.tokens == 10**8


@pytest.mark.parametrize("path", TRAIN, ids=lambda path: path.stem)
def test_every_train_recipe_trains_on_the_sets_of_its_data_recipes(path: Path, load: Load):
    """They are named in a comment, or there is one of its own name; all have its vocabulary."""
    recipe = train_recipe.load_train_recipe(path)
    assert recipe.name == path.stem
    named = re.search(r"^# Data recipes: (.+)\.$", path.read_text(encoding="utf-8"), re.MULTILINE)
    for name in named[1].split(", ") if named else [path.stem]:
        data = load(name)
        assert data.tokenizer.file or recipe.model.vocab_size in (data.tokenizer.vocab_size, None)
        assert data.split.val_tokens > recipe.train.seq_len
        assert data.mix.tokens == "max" or data.mix.tokens > recipe.train.tokens / 4, "more than four epochs"


def test_the_recipes_of_the_page_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    example, encoded, curriculum, share, patterns = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    cleaning = (ROOT / "docs/cleaning.md").read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    code = f'[[sources]]\nname = "code"\npaths = ["code/*.parquet"]\nweight = 3\n{cleaning}\n[clean.gopher]\n'
    sources = "".join(
        f'[[sources]]\nname = "{name}"\npaths = ["notes/a/b.md"]\nweight = {weight}\n'
        for name, weight in {"fineweb-edu": 87, "finemath": 10, "python-edu": 3}.items()
    )
    monkeypatch.chdir(tmp_path)
    for file in ("notes/a/b.md", "letters/a.txt", "crawl/a.parquet", "code/a.parquet", "finemath/a.parquet"):
        write_file(tmp_path / file, "a file")
    rest = 'name = "c"\n{}\n[tokenizer]\nvocab_size = 300\n'
    loaded: list[Recipe] = []
    for recipe in (patterns + example + code, *map(rest.format, (encoded, share, sources + curriculum))):
        (tmp_path / "r.toml").write_text(recipe)
        loaded.append(load_checked_recipe(tmp_path / "r.toml"))
    whole, latin, sampled, phased = loaded
    assert (whole.mix.tokens, len(whole.sources[0].drop_if_matches)) == (500_000_000, 2)
    presets = [[preset.name for preset in source.clean.presets()] for source in whole.sources]
    assert presets == [*[["gopher"]] * 3, ["gopher", "code"]]
    assert (latin.sources[0].encoding, sampled.sources[0].take) == ("cp1252", 1 / 16)
    assert [phase.name for phase in phased.mix.phases] == ["main", "last"]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_arms_of_every_experiment_load(path: Path, load: Load, tmp_path: Path):
    """Every key that an arm changes is one of its recipes, and every score is taken."""
    experiment = load_settings(AblationConfig, find_recipe(path.stem, "experiments"))
    assert experiment.name == path.stem
    load(experiment.data)  # makes the files that it reads
    recipes = []
    for arm in experiment.arms:
        changes = {
            kind: [(".".join(key), key, value) for key, value in flatten_keys(tables)]
            for kind, tables in (("data", arm.data), ("train", arm.train))
        }
        data = load_checked_recipe(tmp_path / f"recipes/data/{experiment.data}.toml", changes=changes["data"])
        train = train_recipe.load_train_recipe(Path(experiment.train), changes=changes["train"])
        assert set(experiment.scores) <= set(train.eval.score_names)
        recipes.append((data.to_json(), train.model_dump_json()))
    assert len(set(recipes)) == len(experiment.arms)


# --- The tables of keys ---


def test_the_page_of_keys_is_what_the_command_prints():
    """Where this fails: tokenmill keys > docs/keys.md"""
    printed = call_here("keys").stdout
    assert printed == (ROOT / "docs/keys.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in printed.splitlines() if line.startswith("| `")]
    assert all(len(row) == 4 and len(row[3]) > 10 for row in rows)


def test_the_page_of_experiments_shows_the_shipped_experiment(tmp_path: Path):
    page = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    shown, search, *_ = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    shipped = ROOT / "recipes/experiments/min-words.toml"
    assert tomllib.loads(shown) == tomllib.loads(shipped.read_text(encoding="utf-8"))
    (tmp_path / "search.toml").write_text(search)
    assert load_settings(MixSearchConfig, tmp_path / "search.toml").objective["web_bpb"] == 2


def test_a_shipped_recipe_is_found_by_name(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its paths begin where those of a copy in ./recipes/data do."""
    monkeypatch.chdir(tmp_path)
    by_path = load("local-text")
    by_name = load_checked_recipe("local-text")
    assert by_name.to_json() == by_path.to_json()
    assert by_name.folder == tmp_path / "recipes/data"
    assert train_recipe.load_train_recipe(Path("demo"), ["optimizer.lr=3e-3"]).optimizer.lr == 3e-3


def test_a_file_comes_before_a_shipped_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()  # a folder is no recipe
    assert find_recipe("demo", "data") == SHIPPED / "demo.toml"
    (tmp_path / "tinystories").write_text("a file")
    assert find_recipe("tinystories", "data") == Path("tinystories")
    assert find_recipe("demo.toml", "data") == Path("demo.toml")
    assert find_recipe("data/demo", "data") == Path("data/demo")
