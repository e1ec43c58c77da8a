"""Every key of both recipes and every flag of every command, with values of each wrong type: what a person then reads.

Keys are generated from the models and flags from the parsers, so a new one is covered by itself.
"""

# pyright: basic

import argparse
import re
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.recipe.schema import Recipe
from shards.config import check_settings
from shards.errors import InputError
from tests.support.recipes import faults_in
from tests.support.wrong_values import ARGUMENTS, DATA, TRAIN, VALUES, list_keys, list_parsers, put
from trainer.recipe import TrainRecipe

UNTRANSLATED = re.compile(
    r"should (be|have|match)|instance of|valid (dictionary|string|integer|list|tuple|JSON)"
    r"|Field required|Extra inputs|pydantic|datetime\.|nan is not|'type': |<class|Error\b|expected expected"
)
"""Words of pydantic and of Python that say nothing to the author of a recipe."""


def find_faults(model: type[BaseModel], recipe: dict[str, Any]) -> list[str]:
    try:
        if model is Recipe:
            load_checked_recipe(recipe)
        else:
            check_settings(TrainRecipe, recipe, where="recipe")
    except InputError as error:
        return faults_in(error)
    return []


def test_the_tables_to_change_are_good():
    assert find_faults(Recipe, DATA) == find_faults(TrainRecipe, TRAIN) == []


@pytest.mark.parametrize(
    ("model", "recipe", "place"),
    [
        (model, recipe, place)
        for model, recipe in ((Recipe, DATA), (TrainRecipe, TRAIN))
        for place in list_keys(model, seen=set())
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_wrong_value_is_refused_in_plain_words(
    model: type[BaseModel], recipe: dict[str, Any], place: tuple[str | int, ...]
):
    refused = 0
    for value in VALUES:
        faults = find_faults(model, put(recipe, place, value))
        refused += bool(faults)
        for fault in (one for one in faults if "cannot be used like this" not in one):  # datatrove's own words
            assert not UNTRANSLATED.search(fault), f"{value!r}: {fault}"
            assert "surrogates" not in fault
    assert refused > 5


def test_of_thousands_of_faults_the_first_are_told():
    recipe = put(TRAIN, ("eval", "tasks", 0, "fewshot_files"), [0] * 70_000)
    faults = find_faults(TrainRecipe, recipe)
    assert faults[1] == "eval.tasks.0.fewshot_files.0: expected text; got 0"
    assert len(faults) < 210
    assert any("there are more faults" in fault for fault in faults)


UNTRANSLATED_FLAG = re.compile(r"invalid \w+ value|usage:|Error\b|_\w+ value")


def refusal_of(parser: argparse.ArgumentParser, *arguments: str) -> str:
    """Return how a parser refuses arguments; empty if it does not."""
    try:
        parser.parse_args(arguments)
    except InputError as error:
        return str(error)
    except SystemExit:
        assert arguments[-1].startswith(("--help", "--version", "-h"))
    return ""


FLAGS = [
    pytest.param(parser, action, id=f"{name} {(action.option_strings or [action.dest])[-1]}")
    for name, parser in list_parsers()
    for action in parser._actions
    if not isinstance(action, argparse._HelpAction)
]


@pytest.mark.parametrize(("parser", "action"), FLAGS)
def test_a_wrong_argument_is_refused_in_plain_words(parser: argparse.ArgumentParser, action: argparse.Action):
    needed = ["x" for each in parser._actions if not each.option_strings and each.nargs not in ("?", "*")]
    for other in parser._actions:
        if other.required and other.option_strings and other is not action:
            needed += [other.option_strings[-1], str(next(iter(other.choices))) if other.choices else "1"]
    flag = action.option_strings[-1] if action.option_strings else None
    attempts = [[*needed, *([flag, text] if flag else [text])] for text in ARGUMENTS]
    attempts += [[*needed, flag], [*needed, f"{flag}=text"], [*needed, f"{flag}s"]] if flag else [[]]
    refusals = [refusal_of(parser, *attempt) for attempt in attempts]
    for refusal in refusals:
        assert not UNTRANSLATED_FLAG.search(refusal), refusal
        assert not refusal or refusal.endswith(f"`{parser.prog} --help` explains the arguments.")
    assert any(refusals) or action.nargs in ("?", "*")
