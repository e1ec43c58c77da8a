"""Train recipes: what they say, overrides, and every fault in one report."""

from __future__ import annotations

from pathlib import Path

import pytest

from shards.errors import InputError
from trainer.optim import learning_rate
from trainer.recipe import TrainRecipe, load_train_recipe, parse_recipe
from trainer.resume import find_changes


@pytest.fixture
def recipe(recipe_file) -> TrainRecipe:
    return load_train_recipe(recipe_file)


def find_faults(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_train_recipe(path, list(overrides))
    return caught.value.problems


def test_all_faults_are_reported_at_once(recipe_file, tmp_path):
    text = recipe_file.read_text()
    text = text.replace("hidden_size = 64", "hidden_sise = 64").replace("steps = 24", 'steps = "24"')
    text = text.replace("micro_batch = 2", "micro_batch = 3").replace("warmup_steps = 2", "warmup_steps = -1")
    path = tmp_path / "bad.toml"
    path.write_text(text + "\n[extra]\nx = 1\n")
    faults = "\n".join(find_faults(path, "train.seq_len=65"))
    for expected in (
        "model.hidden_sise: unknown key. Did you mean 'hidden_size'?",
        "model.hidden_size",
        "train.steps",
        "'24'",
        "schedule.warmup_steps",
        "extra: unknown key",
        "train.global_batch = 8 with train.micro_batch = 3",
        "train.seq_len = 65 with model.max_position_embeddings = 64",
    ):
        assert expected in faults


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.num_attention_heads=5", "the heads must divide the width"),
        ("model.hidden_act=tanh", "model.hidden_act: expected 'silu' or 'relu2'; got 'tanh'"),
        ("model.num_attention_heads=64", "even number of features a head"),
        ("model.num_key_value_heads=3", "key/value heads must divide"),
        ("model.kind=gpt2", "has no groups of heads"),
        ("model={kind='gpt2', hidden_act='relu2'}", 'model.hidden_act: kind = "gpt2" has its own parts'),
        ("model={kind='gpt2', use_qk_norm=true}", 'model.use_qk_norm: kind = "gpt2" has its own parts'),
        ("optimizer.muon_lr=0.01", 'optimizer.muon_lr: optimizer.kind = "adamw" has no Muon'),
        ("schedule.warmup_steps=25", "the warm-up must end within the training run"),
        ("optimizer.lr=0", "optimizer.lr"),
        ("optimizer.lr=inf", "optimizer.lr"),
        ("optimizer.betas=[0.9, 1.0]", "optimizer.betas.1"),
        ("optimizer.betas=[0.9]", "optimizer.betas.1: required key is missing"),
        ("train.seed=-1", "train.seed"),
        ("eval.prompts=['\udcff']", "eval.prompts.0: expected text that UTF-8 can hold"),
        ("model.hidden_size=10000000000", "model.hidden_size"),
        ("model.vocab_size=10000000000", "model.vocab_size"),
        ("model.num_hidden_layers=1000000", "model.num_hidden_layers"),
        ('phases=[{name = "a", until_step = 9}, {name = "b", until_step = 9}]', "phases.b.until_step = 9: expected"),
        ('phases=[{name = "a", until_step = 9, milestones = [10]}]', "10: expected a step of the phase"),
        ('phases=[{name = "a", until_step = 9, budget_usd = 1.0}]', "a budget needs a price"),
        ("phases=[{name = 'a', until_step = 8, goal = 'perplexity < 3'}]", "phases.a.goal"),
        ("phases=[{name = 'a', until_step = 99, milestones = [25]}]", "phases.a.milestones: 25: expected"),
        ("phases=[{name='a', until_step=8}, {name='b', until_step=9, milestones=[8]}]", "after 8 and until 9"),
        ("phases=[{name='a', until_step=24, goal='web_bpb < 1'}]", "phases.a.goal = 'web_bpb < 1': no score is named"),
        ("schedule.kind=wsd", "schedule.decay_steps: is missing"),
        ("schedule.decay_steps=2", "schedule.decay_steps: a cosine decays from the warm-up on"),
        (
            "schedule={kind='wsd', warmup_steps=2, decay_steps=23}",
            "decay_steps = 23: both must fit in the training run",
        ),
        ("nonsense", "expected KEY=VALUE"),
        ("train.steps=99999999999999999999", "train.steps: expected"),
    ],
)
def test_each_rule_is_checked(recipe_file, override, expected):
    faults = "\n".join(find_faults(recipe_file, override))
    assert expected in faults
    assert "factory" not in faults


def test_a_recipe_of_another_version_is_refused(recipe):
    tables = recipe.model_dump(mode="json")
    del tables["train"]["steps"]
    tables["train"] |= {"stepz": 24, "micro_batch": 3}
    with pytest.raises(InputError) as caught:
        parse_recipe(tables)
    assert caught.value.problems == [
        "recipe of the checkpoint: train.steps: required key is missing.",
        "recipe of the checkpoint: train.stepz: unknown key. Did you mean 'steps'?",
        "recipe of the checkpoint: train.global_batch = 8 with train.micro_batch = 3: the global batch must be "
        "whole micro-batches. Choose a micro_batch that divides it.",
    ]


def test_changes_are_named_with_both_values(recipe_file, recipe):
    assert not find_changes(recipe, parse_recipe(recipe.model_dump(mode="json")))
    new = ["optimizer.lr=0.5", "model.hidden_size=32", "optimizer.betas=[0.8, 0.9]", 'train.precision="bf16"']
    assert find_changes(recipe, load_train_recipe(recipe_file, new)) == {
        "optimizer.lr": (0.01, 0.5),
        "model.hidden_size": (64, 32),
        "optimizer.betas": ([0.9, 0.95], [0.8, 0.9]),
        "train.precision": ("fp32", "bf16"),
    }
    sets = [
        "eval.sets=[{name='a', shards='x'}, {name='b', shards='y', max_tokens=5}]",
        "eval.sets=[{name='b', shards='y'}]",
    ]
    assert find_changes(*(load_train_recipe(recipe_file, [one]) for one in sets)) == {
        "eval.sets.a.name": ("a", None),
        "eval.sets.a.shards": (str(Path.cwd() / "x"), None),
        "eval.sets.a.max_tokens": (1_000_000, None),
        "eval.sets.b.max_tokens": (5, 1_000_000),
    }


@pytest.mark.parametrize(
    ("schedule", "begin", "half"),
    [("{warmup_steps = 10}", 10, 0.5), ("{warmup_steps = 10, kind = 'wsd', decay_steps = 20}", 80, 1 - 0.5**0.5)],
)
def test_the_learning_rate_warms_up_stays_at_the_peak_and_decays(recipe_file, schedule, begin, half):
    recipe = load_train_recipe(recipe_file, ["train.steps=101", "optimizer.lr=1.0", f"schedule={schedule}"])
    rates = [learning_rate(step, recipe) for step in range(101)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10 : begin + 1] == [1.0] * (begin - 9)
    assert rates[(begin + 100) // 2] == pytest.approx(0.1 + 0.9 * half)
    assert rates[100] == pytest.approx(0.1)
    assert rates[begin:] == sorted(set(rates[begin:]), reverse=True)
