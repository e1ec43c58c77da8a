"""Eval tasks of a train recipe: their scores in a run, and recipes that are refused."""

import dataclasses
import shutil

import pytest

from shards import open_set
from shards.eval_tasks.read import read_items
from shards.format.manifest import EvalTaskEntry
from tests.support.recipes import write_lines
from trainer.evaluation.eval_tasks import open_eval_task
from trainer.recipe import load_train_recipe
from trainer.recipe.eval_config import EvalTaskConfig


@pytest.mark.parametrize(
    ("limit", "of_others", "held", "short", "words"),
    [
        (None, False, 3, 1, "3 in the training text, 1 too short to be searched for in the training text"),
        (4, False, 2, 0, "2 in the training text"),
        (None, True, None, None, "not known whether they are in the training text"),
    ],
)
def test_items_that_training_holds_are_counted_where_the_manifest_knows_them(
    evaluated, tmp_path, limit, of_others, held, short, words
):
    rows = [{"question": f"the mill {number}", "choices": ["turns", "stops"], "answer": 0} for number in range(6)]
    items = write_lines(tmp_path / "items.jsonl", rows)
    config = EvalTaskConfig(name="own", files=[str(items)], limit=limit)
    read = read_items(config.describe(), files=[items])
    known = {"held": sorted(read.hashes[number] for number in (0, 3, 5)), "too_short": [read.hashes[4]]}
    sha256 = "0" * 64 if of_others else read.sha256
    entry = EvalTaskEntry(task="own", items=6, items_sha256=sha256, **known)
    shutil.copytree(evaluated.trained_on.path, tmp_path / "set")
    manifest = evaluated.trained_on.manifest.model_copy(update={"eval_tasks": [entry]})
    (tmp_path / "set/manifest.json").write_text(manifest.to_json())
    said: list[str] = []
    trained = dataclasses.replace(evaluated, trained_on=open_set(tmp_path / "set"))
    notes = open_eval_task(config, trained, said.append).notes
    assert (notes["held_by_training"], notes["not_searched_for"]) == (held, short)
    assert said[0].endswith(f", {words}")


def test_known_tasks_have_their_scores(recipe_file, tmp_path):
    recipe = load_train_recipe(recipe_file, ["eval.tasks=[{name='winogrande'}, {name='easy', task='arc_easy'}]"])
    names = ["winogrande_acc", "winogrande_bpb", "easy_acc", "easy_acc_norm", "easy_bpb"]
    assert recipe.eval.score_names == names
    again = tmp_path / "recipe.json"  # as a run folder keeps it, with all defaults
    again.write_text(recipe.model_dump_json())
    assert load_train_recipe(again) == recipe
