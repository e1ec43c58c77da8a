"""Every shipped recipe loads as it stands, and says what its text says it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.recipe import Recipe, load_recipe

Load = Callable[..., Recipe]

ROOT = Path(__file__).resolve().parents[1]
DATA = sorted((ROOT / "recipes/data").glob("*.toml"))
FILES = {
    "demo": [f"out/demo-corpus/{name}/part-00000.parquet" for name in ("fineweb-edu", "finemath", "python-edu")],
    "local-text": ["data/corpus.txt"],
}
"""Files that a recipe reads from where it is run; whoever builds it makes them first."""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return `load(name, *overrides)`, run in a folder that has the recipe's files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # loading a recipe asks nothing of the network

    def load_shipped(name: str, *overrides: str) -> Recipe:
        for file in FILES.get(name, []):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_bytes(b"a file")
        return load_recipe(ROOT / f"recipes/data/{name}.toml", overrides=list(overrides))

    return load_shipped


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_every_data_recipe_loads(path: Path, load: Load) -> None:
    recipe = load(path.stem)
    assert recipe.name == path.stem
    assert recipe.tokenizer.vocab_size
    assert load(path.stem, "mix.tokens=100M").mix.tokens == 10**8


def test_the_big_recipe_is_what_it_was_built_from(load: Load) -> None:
    recipe: Recipe = load("gpuburnout-1b")
    assert [(source.name, source.weight) for source in recipe.sources] == [
        ("fineweb-edu", 87),
        ("finemath", 10),
        ("python-edu", 3),
    ]
    tokens = recipe.mix.tokens
    assert tokens == 30_600_000_000
    assert -(-int(tokens) // recipe.shards.tokens) == 282
    assert recipe.tokenizer.vocab_size == 32_000 + len(recipe.tokenizer.special_tokens) == 32_005
    assert recipe.sources[2].content == "software-heritage"


def test_the_others(load: Load) -> None:
    stories: Recipe = load("tinystories")
    assert (stories.sources[0].repo, stories.tokenizer.vocab_size) == ("roneneldan/TinyStories", 4096)
    text: Recipe = load("local-text")
    assert (text.sources[0].kind, text.sources[0].format, bool(text.sources[0].separator)) == ("files", "text", True)
    assert text.split.val_tokens > 0
