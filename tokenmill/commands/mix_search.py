"""Search the shares of the sources that give the best scores, by training small models on mixes within bounds.

FILE names a data recipe, a train recipe, bounds, the scores to lower, a budget, and the tokens of the real run. The
search fits the scores of its mixes, and trains the best mix beside the recipe's own. It prints these shares with
their 95% intervals, and writes the recipe with them, ready for `tokenmill build`. The same command resumes.

`--dry-run` says how many trainings are missing.
"""

import argparse

from shards.terminal.program import Outcome
from tokenmill.commands.ablate import add_experiment, open_experiment, tell_missing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mix-search`."""
    add_experiment(parser, "the file of a mix search (TOML), or the name of a shipped one")


def run(options: argparse.Namespace) -> Outcome:
    """Run `mix-search`; exit status 1 if a training failed."""
    with open_experiment(options) as experiment:
        from tokenmill.experiments.answer import tell_answer
        from tokenmill.mix_search.answer import answer_search, show_tables
        from tokenmill.mix_search.search import MixSearch

        search = MixSearch(experiment)
        if options.dry_run:
            ablation, left = search.find_pending()
            mixes = {arm.name: {one.name: one.weight for one in arm.recipe.sources} for arm in ablation.arms}
            return tell_missing(ablation, left, {"rounds": search.rounds, "mixes": mixes})
        search.run()
    answer = answer_search(search)
    recipe = search.write_recipe(experiment.out / "recipe.json")
    return tell_answer(search.ablation, search.trainings, answer, show_tables(answer), "mix-search", [recipe])
