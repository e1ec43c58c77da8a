"""Values of each wrong type, and every key of the recipes and parser of the commands, from what defines them."""

# pyright: basic

import argparse
import copy
import datetime
import importlib
import math
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from shards.config import find_table
from shards.terminal.program import command_parser
from tokenmill.__main__ import COMMANDS

DATE = datetime.date(2026, 1, 2)
VALUES: list[Any] = [
    "", "text", "3", "true", "[1]", "\udcff", 3, -1, 0, 10**30, 2.5, -0.5, 1e300, math.inf, math.nan, True, None, DATE,
    datetime.time(1), [], ["text"], [3], [[]], [{}], [{"name": "x"}], [None], [True], ["text", "text"], [0.5] * 9,
    ["x" * 300], {}, {"name": "x"}, {"x": {}}, {"x": DATE},
]  # fmt: skip
"""One and more of each type that TOML and JSON have."""

DATA: dict[str, Any] = {
    "name": "n",
    "sources": [{"name": "a", "paths": [__file__], "weight": 1.0}],
    "tokenizer": {"vocab_size": 300},
}
TRAIN: dict[str, Any] = {
    "name": "n",
    "model": {
        "kind": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "train": {"seq_len": 64, "global_batch": 8, "micro_batch": 2, "steps": 24},
    "optimizer": {"lr": 1e-3},
}
ITEMS: dict[tuple[str | int, ...], dict[str, Any]] = {
    ("evaluations", 0): {"name": "e", "paths": ["x"]},
    ("mix", "phases", 0): {"name": "p", "share": 1.0},
    ("phases", 0): {"name": "p", "until_step": 3},
    ("clean", "language"): {"keep": ["en"], "model": "m"},
    ("clean", "datatrove", 0): {"filter": "C4ParagraphFilter"},
    ("clean", "python", 0): {"function": "no:where"},
    ("sources", 0, "clean", "language"): {"keep": ["en"], "model": "m"},
    ("sources", 0, "clean", "datatrove", 0): {"filter": "C4ParagraphFilter"},
    ("sources", 0, "clean", "python", 0): {"function": "no:where"},
}
"""What a table must have beside the key that is tried, by its place."""


def list_keys(
    model: type[BaseModel], place: tuple[str | int, ...] = (), seen: set[type] | None = None
) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of every key of a model and of its tables; of a list of tables, of the first one.

    With a set to add them to, tables that several places share are entered in the first.
    """
    for name, field in model.model_fields.items():
        yield (*place, name)
        inner = find_table(field.annotation)
        if inner and inner[0] not in (seen or ()):
            if seen is not None:
                seen.add(inner[0])
            yield from list_keys(inner[0], (*place, name, *([0] if inner[1] else [])), seen)


def put(recipe: dict[str, Any], place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """Return a recipe with one key set, in tables that are made where they are missing."""
    recipe = copy.deepcopy(recipe)
    at: Any = recipe
    for depth, part in enumerate(place[:-1], start=1):
        missing = [] if isinstance(place[depth], int) else copy.deepcopy(ITEMS.get(place[:depth], {}))
        if isinstance(at, list):
            if not at:
                at.append(missing)
            at = at[part]
        else:
            at = at.setdefault(part, missing)
    at[place[-1]] = value
    return recipe


ARGUMENTS = ["", "text", "5x", "-1", "3.5", "nan", "1e999", "[1]", "s3://", "\udcff", "=", "a=b=c", " ", "x" * 300]


def list_parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the parser of every command."""
    for name, (module, _) in COMMANDS.items():
        yield name, command_parser(name, importlib.import_module(module))
