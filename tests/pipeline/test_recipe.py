"""The recipe: what it accepts, overrides, sizes, and recipes in JSON. What is refused is in the golden refusals."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.recipe.key_values import parse_size
from pipeline.recipe.schema import Recipe, without_defaults
from shards.config import Settings, apply_changes, item_names, load_settings
from shards.errors import InputError
from tests.support.recipes import GOOD, faults_of


def test_a_good_recipe(load: Any):
    recipe = load()
    assert load("\ufeff" + GOOD) == recipe
    assert [(source.name, source.weight) for source in recipe.sources] == [("prose", 87.0), ("code", 3.5)]
    assert [source.weight for source in load(GOOD, "sources.prose.weight=0").sources] == [0, 3.5]
    phase = '[[mix.phases]]\nname = "main"\nshare = 1.0\nweights = { "prose.en" = 1 }\n'
    text = GOOD.replace("prose", "prose.en") + f'sample_weights = {{ "prose.en" = 1, code = 2 }}\n{phase}'
    assert load(text, "sources.prose.en.weight=2").sources[0].weight == 2
    # A change that sets a weight to 0 leaves the source out of the phases, too, and keeps it in the tokenizer's sample.
    zero = load(text, "sources.prose.en.weight=0")
    assert (zero.tokenizer.sample_weights, zero.mix.phases[0].weights) == ({"prose.en": 1, "code": 2}, {})
    assert load(text.replace("weight = 87", "weight = 0")).mix.phases[0].weights == {"prose.en": 1}
    assert recipe.tokenizer.special_tokens == ["<|endoftext|>"]
    assert (recipe.seed, recipe.mix.tokens, recipe.mix.when_short) == (1337, "max", "error")


OVERRIDES = {
    "mix.tokens=1_000": 1000,
    "mix.tokens=45e3": 45_000,
    "mix.tokens=45K": 45_000,
    "mix.tokens=0.045M": 45_000,
    "mix.tokens=max": "max",
    "mix.when_short = shrink": "shrink",
    "sources.prose.weight=2.5": 2.5,
    "sources.code.weight=2": 2,
    "sources.prose.keep.score=>= 1": ">= 1",
    "sources.prose.keep={score = [1, 2]}": {"score": [1, 2]},
    'tokenizer.special_tokens=["<|endoftext|>", "=é"]': ["<|endoftext|>", "=é"],
    "tokenizer.sample_bytes=1.5 MB": 1_500_000,
    "name=other": "other",
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_overrides(override: str, load: Any):
    found: Any = json.loads(load(GOOD, override).to_json())
    for part in override.partition("=")[0].strip().split("."):
        found = found[{"prose": 0, "code": 1}[part] if isinstance(found, list) else part]
    assert found == OVERRIDES[override]


@pytest.mark.parametrize("names", ["1 0", "a a.weight", "1 1.0 1.0.1", "weight nan", "0x1 1e3 1-2"])
def test_flags_of_weights_name_each_source(names: str, load: Any):
    table = '[[sources]]\nname = "{}"\npaths = ["{{folder}}/*.py"]\nweight = 9\n'
    text = 'name = "n"\ntokenizer.vocab_size = 300\n' + "".join(map(table.format, names.split()))
    tokens = [2, 3, 5][: len(names.split())]
    flags = [f"sources.{name}.weight={own}" for name, own in zip(names.split(), tokens, strict=True)]
    assert [source.weight for source in load(text, *flags).sources] == tokens


def test_a_number_is_a_name_or_the_place_of_what_has_none(load: Any):
    tables = [{"name": "1"}, {}, {"name": "a"}, {"name": "a"}, {"name": "b.c"}]
    assert item_names(tables) == ["1", "#1", "2", "3", "b.c"]
    data: dict[str, Any] = {"sources": tables, "weights": {"b.c": 1, "b": {}}, "clean": {"datatrove": [{}]}}
    keys = ("sources.1", "sources.#1", "sources.3", "sources.b.c", "clean.datatrove.0", "weights.b.c")
    changes = (f"{key}{'.x' * (number < 6)}={number}" for number, key in enumerate(keys, 1))
    assert [*apply_changes(data, (), changes)] == []
    assert [table.get("x") for table in tables] == [1, 2, None, 3, 4]
    assert (data["clean"]["datatrove"][0]["x"], data["weights"]) == (5, {"b.c": 6, "b": {}})
    assert "no '0' in this file" in str(faults_of(load, GOOD, "sources.0.weight=1"))


HUGE = {
    "characters is too long": ("[{}]".format(".".join("a" * 36_000)), "x={{{}=1}}".format('."é"' * 36_000)[1:]),
    "1,000,00. characters is too long": ("x=" + "9" * 10**6, "x=0x" + "f" * 10**6, f"x={'9' * 10**6}.5"),
    "more than 1,000 bits": ("x=0x" + "f" * 999,),
    "recursion depth": (f"x={'[' * 5_000}{']' * 5_000}",),
    "Invalid statement": ('\\"' * 150_000,),
    "more than 100 deep": (f"x={'[' * 150}{']' * 150}", f"x={('{' + '.'.join('a' * 90) + '=') * 20}1{'}' * 20}"),
}


@pytest.mark.parametrize(("said", "text"), [(said, text) for said, texts in HUGE.items() for text in texts])
def test_a_huge_key_or_number_is_refused_in_little_memory(said: str, text: str, tmp_path: Path):
    (tmp_path / "r.toml").write_text(f'# {"." * 300}\ny = "{".a" * 300}"\n{text}\n')
    tracemalloc.start()
    with pytest.raises(InputError, match=said):
        load_settings(Settings, tmp_path / "r.toml")
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_a_set_s_recipe_json_is_a_recipe(load: Any, tmp_path: Path):
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


SIZES = {
    "1 GB": 10**9,
    "1GB": 10**9,
    "512 MiB": 512 << 20,
    "1.5 kB": 1500,
    "1.5 KB": 1500,
    "2 kiB": 2048,
    "2 KiB": 2048,
    "7": 7,
    "7 B": 7,
    "1_000 B": 1000,
    "3 T": 3 * 10**12,
    "9007199254740993": 9007199254740993,
    "0.1 GB": 10**8,
    5: 5,
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text: Any):
    assert parse_size(text) == SIZES[text]
