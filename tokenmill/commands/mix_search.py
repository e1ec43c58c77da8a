"""Search the shares of the sources that give the best scores, by small models on mixes within bounds.

FILE names a data recipe, a train recipe, bounds, the scores to lower, a budget, and the tokens of the real run. The
search fits the scores of its mixes, and trains the best mix beside the recipe's own. It prints the found shares with
their 95 % intervals, and writes the recipe with them, ready for `tokenmill build`. The same command resumes.

`--dry-run` says what all of it takes on this machine, and at the price `cost.gpu_usd_per_hour` of the train recipe.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from pipeline.cli.engines import open_executor
from shards.errors import plural
from shards.terminal.program import Outcome
from shards.terminal.shipped_recipes import find_recipe
from tokenmill.commands.ablate import add_experiment, tell_answer

if TYPE_CHECKING:
    from tokenmill.mix_search.search import MixSearch

ANSWER_FILE, RECIPE_FILE = "mix-search.json", "recipe.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mix-search`."""
    add_experiment(parser, "the file of a mix search (TOML), or the name of a shipped one")


def run(options: argparse.Namespace) -> Outcome:
    """Run the search; exit status 1 if a training failed."""
    with closing(open_executor(options)) as executor:
        from pipeline.engine.stage_progress import Progress
        from tokenmill.experiments.schema import SHIPPED
        from tokenmill.mix_search.answer import answer_search, show_tables
        from tokenmill.mix_search.pictures import draw_pictures
        from tokenmill.mix_search.recipe_file import write_found_recipe
        from tokenmill.mix_search.search import MixSearch

        search = MixSearch(find_recipe(options.file, SHIPPED), options.out, executor, Progress(), keep=options.keep)
        if options.dry_run:
            return _price(search)
        search.run()
    answer = answer_search(search)
    files = [write_found_recipe(search, search.out / RECIPE_FILE), *draw_pictures(search, search.out)]
    tables = [*show_tables(answer).values(), [answer["costs"]]]
    return tell_answer(answer, search.out / ANSWER_FILE, tables, files)


def _price(search: MixSearch) -> Outcome:
    from tokenmill.experiments.price import price_ablation

    ablation, left = search.find_pending()
    hours = dollars = 0.0
    if left:
        # Each training takes as long: arms differ in their mixes alone.
        row = price_ablation(ablation, ablation.trainings)[0]
        hours, dollars = (
            None if row[key] is None else row[key] / row["trainings"] * left for key in ("hours", "dollars")
        )
    mixes = [
        {"arm": arm.name, **{source.name: f"{source.weight:.2f}%" for source in arm.recipe.sources}}
        for arm in ablation.arms
    ]
    counts = {"arms": search.arms, "rounds": search.rounds, "trainings_left": left}
    data = {**counts, "tokens_each": ablation.arms[0].tokens, "hours": hours, "dollars": dollars, "mixes": mixes}
    total = f"left: {plural(left, 'training')} of {plural(ablation.arms[0].tokens, 'token')}"
    total += "" if hours is None else f", {hours:.2f} hours of one device" + (f", ${dollars:,.2f}" if dollars else "")
    notes = f"{total}; eval tasks, samples and the building of sets are not counted"
    return Outcome(data, [mixes, notes])
