"""Train recipes: what they say, what changed, and the learning rate. What is refused is in the golden refusals."""

import pytest

from trainer.optim import learning_rate
from trainer.recipe import TrainRecipe, load_train_recipe


@pytest.fixture
def recipe(recipe_file) -> TrainRecipe:
    return load_train_recipe(recipe_file)


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
