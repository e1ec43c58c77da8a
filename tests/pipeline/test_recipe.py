"""The recipe: what it accepts, overrides, sizes, and recipes in JSON. What is refused is in the golden refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.recipe.key_values import parse_size
from pipeline.recipe.schema import Recipe, without_defaults
from shards.errors import InputError
from tests.support.recipes import GOOD, faults_of


def test_a_good_recipe(load: Any) -> None:
    recipe = load()
    assert [(source.name, source.weight) for source in recipe.sources] == [("prose", 87.0), ("code", 3.5)]
    assert [source.name for source in load(GOOD, "sources.prose.weight=0").sources] == ["code"]
    phase = '[[mix.phases]]\nname = "main"\nshare = 1.0\nweights = { "prose.en" = 1 }\n'
    text = GOOD.replace("prose", "prose.en") + f'sample_weights = {{ "prose.en" = 1, code = 2 }}\n{phase}'
    assert load(text, "sources.prose.en.weight=2").sources[0].weight == 2
    assert load(text, "sources.prose.en.weight=0").tokenizer.sample_weights == {"code": 2}
    # Only a change takes names out of tables.
    zero = text.replace("weight = 87", "weight = 0")
    assert load(zero, "sources.prose.en.weight=2").sources[0].weight == 2
    assert "mix.phases.main.weights: no source has the name 'prose.en'" in str(faults_of(load, zero))
    assert recipe.tokenizer.special_tokens == ["<|endoftext|>"]
    assert (recipe.seed, recipe.mix.tokens, recipe.mix.when_short) == (1337, "max", "error")


OVERRIDES = {
    "mix.tokens=1_000": 1000,
    "mix.tokens=45e3": 45_000,
    "mix.tokens=45K": 45_000,
    "mix.tokens=0.045M": 45_000,
    "mix.tokens=max": "max",
    "mix.when_short = shrink": "shrink",
    "sources.0.weight=2.5": 2.5,
    "sources.code.weight=2": 2,
    "sources.prose.keep.score=>= 1": ">= 1",
    "sources.prose.keep={score = [1, 2]}": {"score": [1, 2]},
    'tokenizer.special_tokens=["<|endoftext|>", "=é"]': ["<|endoftext|>", "=é"],
    "tokenizer.sample_bytes=1.5 MB": 1_500_000,
    "name=other": "other",
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_overrides(override: str, load: Any) -> None:
    found: Any = json.loads(load(GOOD, override).to_json())
    for part in override.partition("=")[0].strip().split("."):
        found = found[{"0": 0, "prose": 0, "code": 1}[part] if isinstance(found, list) else part]
    assert found == OVERRIDES[override]


def test_a_set_s_recipe_json_is_a_recipe(load: Any, tmp_path: Path) -> None:
    override = "tokenizer.sample_weights={prose = 1, code = 2}"
    recipe = load(GOOD, override, "sources.prose.keep.score='> 0'", "sources.prose.max_bytes='1 MiB'")
    (tmp_path / "recipe.json").write_text(recipe.to_json(), encoding="utf-8")
    again = load_checked_recipe(tmp_path / "recipe.json")
    assert again == recipe
    assert again.to_json() == recipe.to_json()
    said = json.loads(without_defaults(recipe.to_json()))
    assert said["sources"][0].keys() == {"name", "paths", "weight", "keep", "max_bytes"}
    # A recipe that Python makes from its keys gives its patterns to the sources, too.
    assert Recipe(**json.loads(recipe.to_json()) | {"drop_if_matches": ["x"]}).sources[0].drop_if_matches == ["x"]
    assert load_checked_recipe(tmp_path / "recipe.json", overrides=["sources.prose.weight=5"]).sources[0].weight == 5
    for text in ("{", "[1]", '"x"', "3", "[" * 100_000):
        (tmp_path / "recipe.json").write_text(text)
        assert without_defaults(text) == text
        with pytest.raises(InputError, match=r"not valid JSON|expected a table of keys"):
            load_checked_recipe(tmp_path / "recipe.json")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1 GB", 10**9),
        ("1GB", 10**9),
        ("512 MiB", 512 << 20),
        ("1.5 kB", 1500),
        ("1.5 KB", 1500),
        ("2 kiB", 2048),
        ("2 KiB", 2048),
        ("7", 7),
        ("7 B", 7),
        ("1_000 B", 1000),
        ("3 T", 3 * 10**12),
        ("9007199254740993", 9007199254740993),
        ("0.1 GB", 10**8),
        (5, 5),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size
