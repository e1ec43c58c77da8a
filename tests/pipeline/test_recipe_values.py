"""Overrides, sizes, the values of flags, and recipes in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.recipe.checks import check_weights
from pipeline.recipe.key_values import parse_size
from pipeline.recipe.schema import Recipe, without_defaults
from shards.errors import InputError
from tests.support.good_recipe import GOOD, faults_of
from tokenmill.__main__ import main

OVERRIDES = [
    ("mix.tokens=1_000", lambda recipe: recipe.mix.tokens == 1000),
    *((f"mix.tokens={text}", lambda recipe: recipe.mix.tokens == 45_000) for text in ("45e3", "45K", "0.045M")),
    ("mix.tokens=max", lambda recipe: recipe.mix.tokens == "max"),
    ("mix.when_short = shrink", lambda recipe: recipe.mix.when_short == "shrink"),
    ("sources.0.weight=2.5", lambda recipe: recipe.sources[0].weight == 2.5),
    ("sources.code.weight=2", lambda recipe: recipe.sources[1].weight == 2),
    ("sources.prose.keep.score=>= 1", lambda recipe: recipe.sources[0].keep == {"score": ">= 1"}),
    ("sources.prose.keep={score = [1, 2]}", lambda recipe: recipe.sources[0].keep == {"score": [1, 2]}),
    ('tokenizer.special_tokens=["<|endoftext|>", "=é"]', lambda recipe: recipe.tokenizer.special_tokens[1] == "=é"),
    ("tokenizer.sample_bytes=1.5 MB", lambda recipe: recipe.tokenizer.sample_bytes == 1_500_000),
    ("name=other", lambda recipe: recipe.name == "other"),
]


@pytest.mark.parametrize(("override", "check"), OVERRIDES, ids=[override for override, _ in OVERRIDES])
def test_overrides(override: str, check: Callable[[Recipe], bool], load: Any) -> None:
    assert check(load(GOOD, override))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mix.tokens", "--set 'mix.tokens': expected KEY=VALUE"),
        ("=3", "--set '=3': expected KEY=VALUE"),
        ("sources.5.weight=1", "--set 'sources.5.weight=1': no '5' in this file"),
        ("sources.prosa.weight=1", "no 'prosa' in this file. Did you mean 'prose'?"),
        ("sources.web.weight=1", "no 'web' in this file. Expected one of: code, prose."),
        ("sources=1", "sources: expected a list"),
        ("sources.weight=1", "sources is a list; name one of its items first"),
        ("name.x=1", "no 'name' in this file|name is a plain value"),
        ("mixx.tokens=1", "mixx: unknown key. Did you mean 'mix'?"),
        ("tokenizer.bos=true", "begins documents is not clear. Give one of them as `bos`."),
        ("tokenizer.bos='<|endoftext|>'", "ends documents already. Give another one, or leave `bos` out."),
        ("tokenizer={}", "tokenizer.vocab_size: required key is missing"),
        ("tokenizer.vocab_size=16K", "vocab_size: expected a whole number: 16_000 or 16_384; got '16K'"),
        ("tokenizer.sample_weights={prose = 1}", "tokenizer.sample_weights"),
        ("tokenizer.sample_weights={prose = 1, code = 0}", "tokenizer.sample_weights"),
        ("mix.token=1", "mix.token: unknown key. Did you mean 'tokens'?"),
        ("mix.tokens=1\nseed = 5", "mix.tokens"),
        ("sources.0.weight=-1", "sources.prose.weight: expected 1e-18 or more; got -1"),
        ("sources.0.weight=1e308", "sources.prose.weight: expected 1000000000000000000 or less; got 1e+308"),
        ("sources.0.weight=5e-324", "sources.prose.weight: expected 1e-18 or more; got 5e-324"),
        (f"sources.0.weight=1{'0' * 400}", "sources.prose.weight: expected a number; got 10"),
        ("a..b=1", "a: unknown key"),
    ],
)
def test_bad_overrides(override: str, message: str, load: Any) -> None:
    faults = faults_of(load, GOOD, override)
    assert any(part in fault for part in message.split("|") for fault in faults), faults


def test_overrides_and_faults_of_the_file_are_reported_together(load: Any) -> None:
    faults = faults_of(load, GOOD.replace("weight = 87", "weight = -1"), "nonsense", "mix.max_epochs=0")
    assert [fault.split(":")[0] for fault in faults] == ["--set 'nonsense'", "sources.prose.weight", "mix.max_epochs"]


def test_a_set_s_recipe_json_is_a_recipe(load: Any, tmp_path: Path) -> None:
    override = "tokenizer.sample_weights={prose = 1, code = 2}"
    recipe = load(GOOD, override, "sources.prose.keep.score='> 0'", "sources.prose.max_bytes='1 MiB'")
    (tmp_path / "recipe.json").write_text(recipe.to_json(), encoding="utf-8")
    again = load_checked_recipe(tmp_path / "recipe.json")
    assert again == recipe
    assert again.to_json() == recipe.to_json()
    said = json.loads(without_defaults(recipe.to_json()))
    assert said["sources"][0].keys() == {"name", "paths", "weight", "keep", "max_bytes"}
    assert load_checked_recipe(tmp_path / "recipe.json", overrides=["sources.prose.weight=5"]).sources[0].weight == 5
    for text in ("{", "[1]", '"x"', "3", "[" * 100_000):
        (tmp_path / "recipe.json").write_text(text)
        assert without_defaults(text) == text
        with pytest.raises(InputError, match=r"not valid JSON|expected a table of keys"):
            load_checked_recipe(tmp_path / "recipe.json")
    data = json.loads(recipe.to_json())
    data["sources"][0]["wieght"] = 3
    (tmp_path / "recipe.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"sources\.prose\.wieght: unknown key\. Did you mean 'weight'"):
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


@pytest.mark.parametrize(
    "text", ["", "GB", "1 gb", "1 XB", "-1 GB", "1e9", "1,5 GB", "1 GB more", "_", "nan", "1..5 MB"]
)
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes as a number"):
        parse_size(text)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["build", "--timeout", "0"], "--timeout: expected a number from 0.001 to 1000000, got '0'"),
        (["build", "--give-up-after", "soon"], "--give-up-after: expected a number from 0.001 to 1000000, got 'soon'"),
        (["plan", "--usd-per-hour", "inf"], "--usd-per-hour: expected a number from 0 to 1000000, got 'inf'"),
        (["plan", "--usd-per-hour", "nan"], "--usd-per-hour: expected a number from 0 to 1000000, got 'nan'"),
        (["build", "--connections", "2.5"], "--connections: expected a whole number from 1, got '2.5'"),
        (["plan", "--tokens", "5x"], "--tokens: expected a number of tokens such as 1e9, 1B, 500M, or max; got '5x'"),
        *(
            (["build", f"--tokens={text}"], "expected a number of tokens such as 1e9")
            for text in ("lots", "1.5", "0", "-3")
        ),
        (["build", "--out=x", "--workers=1", "--cache-limit", "much"], "--cache-limit much: expected a size such as"),
    ],
)
def test_wrong_flags_exit_2(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flags[0], "recipe.toml", *flags[1:]]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("weights", "fault"), [((1.0, 1e-9), "sources.b"), ((1, 1e308), "sources.a"), ((1, 1e-6), "")])
def test_a_weight_that_is_nothing_beside_the_others(weights: tuple[float, float], fault: str) -> None:
    tables = [{"name": name, "weight": weight} for name, weight in zip("ab", weights, strict=True)]
    faults = list(check_weights({"sources": tables}))
    assert [line.partition(".weight:")[0] for line in faults] == ([fault] if fault else [])
