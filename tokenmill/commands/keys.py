"""List every key of a recipe, or of an experiment's file, as Markdown tables: type, default and meaning.

The tables come from the models that check the file. With `--into`, those of a page of the documentation are written
anew: each stands between two comments that name its file.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from shards.errors import InputError
from shards.terminal.arguments import parse_path
from shards.terminal.program import Outcome

FILES = {
    "data": "a data recipe",
    "train": "a train recipe",
    "ablation": "the file of an ablation",
    "mix-search": "the file of a mix search",
}
"""The files whose keys are listed, and what each is called."""
MODELS = {
    "train": "trainer.recipe:TrainRecipe",
    "ablation": "tokenmill.experiments.schema:AblationConfig",
    "mix-search": "tokenmill.mix_search.schema:MixSearchConfig",
}
"""The models of files but a data recipe, each imported only when it is asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `keys`."""
    listed = ", ".join(f"{name}: {words}" for name, words in FILES.items())
    parser.add_argument(
        "file", nargs="?", choices=list(FILES), default="data", help=f"whose keys ({listed}; default: data)"
    )
    parser.add_argument(
        "--into", type=parse_path, metavar="PAGE", help="instead of printing, update this page's tables"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Return the tables of one file, or write those of a page."""
    if options.into is None:
        markdown = key_tables(options.file)
        return Outcome({"markdown": markdown}, markdown.split("\n"))
    changed = update_page(options.into)
    told = f"{options.into}: {'updated' if changed else 'up to date'}"
    return Outcome({"into": str(options.into), "changed": changed}, [told])


def key_tables(file: str) -> str:
    """Return the tables of all keys of one of `FILES`."""
    from tokenmill.key_tables import file_tables

    if file != "data":
        module, _, name = MODELS[file].partition(":")
        return file_tables(getattr(importlib.import_module(module), name))
    from pipeline.recipe.clean_recipe import CleanRecipe
    from pipeline.recipe.presets import Preset
    from pipeline.recipe.schema import Recipe

    # The `clean` tables of one source are those of all sources.
    every = "`[clean.PRESET]`, and `[sources.clean.PRESET]` for one source: the keys of every preset."
    return file_tables(Recipe, elsewhere=(CleanRecipe,), common={Preset: every})


def update_page(page: Path) -> bool:
    """Put the tables between the comments of a page; return whether that changed it.

    Raises:
        InputError: the page has the comments of no file.
    """
    text = page.read_text(encoding="utf-8")
    updated, found = text, False
    for file in FILES:
        begin, end = comments(file)
        first, last = updated.find(begin), updated.find(end)
        if 0 <= first < last:
            updated = f"{updated[: first + len(begin)]}\n\n{key_tables(file)}\n\n{updated[last:]}"
            found = True
    if not found:
        begin, end = comments("data")
        raise InputError(f"{page}: lacks the lines {begin!r} and {end!r}. Put them where the tables belong.")
    if updated != text:
        page.write_text(updated, encoding="utf-8")
    return updated != text


def comments(file: str) -> tuple[str, str]:
    """Return the lines of a page between which the tables of one of `FILES` stand."""
    words = f"the keys of {FILES[file]}"
    return f"<!-- {words}, written by `tokenmill keys --into` -->", f"<!-- end of {words} -->"
