"""Eval tasks of a train recipe: their scores in a run, and recipes that are refused."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import pytest

from shards import open_set
from shards.errors import InputError
from shards.eval_tasks.read import read_items
from shards.format.manifest import EvalTaskEntry
from shards.terminal.reporter import no_note
from tests.support.eval_task_rows import write_lines
from trainer.evaluation.eval_tasks import open_eval_task
from trainer.recipe import load_train_recipe
from trainer.recipe.eval_config import EvalTaskConfig


def test_a_run_scores_its_tasks_and_its_goal_may_name_one(train, item_file, read_lines, tmp_path):
    table = f"{{name='own', files=['{item_file}'], prompt='{{question}}'}}"
    shots = (
        f"{{name='shots', files=['{item_file}'], num_fewshot=1, fewshot_files=['{item_file}'], limit=30, "
        "prompt='{question}'}"
    )
    phases = "phases=[{name='a', until_step=24, goal='own_acc >= 0.5'}]"
    done = train(tmp_path, f"eval.tasks=[{table}, {shots}]", phases, "model.max_position_embeddings=128")
    assert f"eval task shots: 30 items of {item_file}" in done.stderr
    assert "step 24  own_acc 0." in done.stderr
    validations = [line for line in read_lines(tmp_path) if "val_loss" in line and "scores" in line]
    assert [line["step"] for line in validations] == [4, 8, 12, 16, 20, 24]
    first, last = validations[0]["scores"], validations[-1]["scores"]
    assert list(last) == [f"{name}_{kind}" for name in ("own", "shots") for kind in ("acc", "acc_norm", "bpb")]
    accuracy = last["own_acc"]["value"]
    assert accuracy >= 0.5  # by chance a third
    assert last["own_acc"]["stderr"] == pytest.approx(math.sqrt(accuracy * (1 - accuracy) / 39))
    assert last["own_bpb"]["value"] < first["own_bpb"]["value"]
    notes = validations[-1]["score_notes"]["own"]
    assert len(notes.pop("sha256")) == 64
    why = "the training set's build did not search for these items"
    held = {"held_by_training": None, "not_searched_for": None}
    counts = dict.fromkeys(("cut", "too_long", "empty", "rewritten"), 0)
    assert notes == {"place": str(item_file), "items": 40} | held | counts
    assert f"\nown: 40 items of {item_file}, in the training text: not known, because {why}\n" in done.stdout
    assert "own acc " not in done.stdout, "it was printed"


def test_items_that_training_holds_are_counted_where_the_manifest_knows_them(evaluated, tmp_path):
    rows = [{"question": f"the mill {number}", "choices": ["turns", "stops"], "answer": 0} for number in range(6)]
    items = write_lines(tmp_path / "items.jsonl", rows)
    config = EvalTaskConfig(name="own", files=[str(items)])
    read = read_items(config.describe(), files=[items])
    known = EvalTaskEntry(
        task="own",
        items=6,
        items_sha256=read.sha256,
        too_short=[read.hashes[4]],
        held=sorted([read.hashes[0], read.hashes[3], read.hashes[5]]),
    )

    def notes_of(entry, limit=None):
        knows = {"eval_tasks": [entry]}
        shutil.copytree(evaluated.trained_on.path, tmp_path / "set", dirs_exist_ok=True)
        manifest = evaluated.trained_on.manifest.model_copy(update=knows)
        (tmp_path / "set/manifest.json").write_text(manifest.to_json())
        trained_on, said = open_set(tmp_path / "set"), list[str]()
        limited = config.model_copy(update={"limit": limit})
        task = open_eval_task(limited, dataclasses.replace(evaluated, trained_on=trained_on), said.append)
        return task.notes, said[0]

    notes, said = notes_of(known)
    assert (notes["held_by_training"], notes["not_searched_for"]) == (3, 1)
    assert ", in the training text: 3 of 6 items, 1 too short to be searched for in the training text" in said
    notes, said = notes_of(known, limit=4)
    assert (notes["held_by_training"], notes["not_searched_for"]) == (2, 0)
    assert said.endswith("in the training text: 2 of 4 items")
    # Other items were searched for: nothing is known of these.
    notes, said = notes_of(known.model_copy(update={"items_sha256": "0" * 64}))
    assert notes["held_by_training"] is None
    assert said.endswith("did not search for these items")


def test_items_that_cannot_be_used_are_refused(evaluated, item_file, tmp_path):
    config = EvalTaskConfig(name="own", files=[str(item_file)], num_fewshot=40, fewshot_files=[str(item_file)])
    with pytest.raises(InputError, match=r"eval\.tasks\.own\.num_fewshot = 40: found 39 items to take"):
        open_eval_task(config, evaluated, no_note)
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"question": "q", "choices": ["", "b"], "answer": 1}))
    with pytest.raises(
        InputError, match=r"eval task own: no item can be scored: 1 item of .*1 left out, with a choice"
    ):
        open_eval_task(EvalTaskConfig(name="own", files=[str(path)]), evaluated, no_note)
    unknown = dataclasses.replace(evaluated, trained_on=None)
    assert open_eval_task(config.model_copy(update={"num_fewshot": 0}), unknown, no_note).items


@pytest.mark.parametrize(
    ("tasks", "fault"),
    [
        ("[{name='arc_eazy'}]", "eval.tasks.arc_eazy: has no items, and no known eval task has this name. Did"),
        ("[{name='mine', task='arc'}]", "eval.tasks.mine.task = 'arc': no such eval task. Expected one of: arc_"),
        ("[{name='piqa', choices='c'}]", "eval.tasks.piqa.choices: the columns of piqa are known"),
        ("[{name='own', files=['a'], num_fewshot=2}]", "eval.tasks.own.num_fewshot = 2: the examples have no place"),
        ("[{name='own', files=['a'], prompt='Q'}]", "eval.tasks.own.prompt: expected text with {question} in it"),
        ("[{name='piqa', fewshot_files=['a']}]", "fewshot_files: not used, because num_fewshot is 0"),
        ("[{name='piqa'}, {name='piqa', limit=3}]", "2 eval sets and tasks are named 'piqa'"),
        ("[{name='piqa', num_fewshot=-1}]", "eval.tasks.piqa.num_fewshot: expected 0 or more"),
    ],
)
def test_recipes_that_are_refused(tasks, fault, recipe_file):
    with pytest.raises(InputError) as caught:
        load_train_recipe(recipe_file, [f"eval.tasks={tasks}"])
    assert fault in str(caught.value)


def test_known_tasks_have_their_scores(recipe_file, tmp_path):
    recipe = load_train_recipe(recipe_file, ["eval.tasks=[{name='winogrande'}, {name='easy', task='arc_easy'}]"])
    names = ["winogrande_acc", "winogrande_bpb", "easy_acc", "easy_acc_norm", "easy_bpb"]
    assert recipe.eval.score_names == names
    again = tmp_path / "recipe.json"  # as a run folder keeps it, with all defaults
    again.write_text(recipe.model_dump_json())
    assert load_train_recipe(again) == recipe
