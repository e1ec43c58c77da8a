"""Print every key of the recipes as Markdown tables: type, default and meaning.

The tables come from the models that check a recipe. docs/keys.md is what this command prints.
"""

import argparse

from shards.terminal.program import Outcome

MODELS = {
    "data": ("A data recipe", "pipeline.recipe.schema:Recipe"),
    "train": ("A train recipe", "trainer.recipe:TrainRecipe"),
    "ablation": ("An ablation", "tokenmill.experiments.schema:AblationConfig"),
    "mix-search": ("A mix search", "tokenmill.mix_search.schema:MixSearchConfig"),
}
"""The files whose keys are printed: the heading, and the model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `keys`."""
    parser.add_argument("file", nargs="?", choices=list(MODELS), help="whose keys (default: those of all files)")


def run(options: argparse.Namespace) -> Outcome:
    """Return the tables of keys of one file, or of all."""
    import pkgutil

    from tokenmill.key_tables import file_tables

    parts = ["# Every key"]
    for name, (heading, place) in MODELS.items():
        if options.file in (None, name):
            parts += [f"## {heading}", file_tables(pkgutil.resolve_name(place))]
    markdown = "\n\n".join(parts)
    return Outcome({"markdown": markdown}, markdown.split("\n"))
