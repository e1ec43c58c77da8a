"""`fit --write`: what it writes trains as it is; its sizes follow from the text, the machine and the time."""

import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shards import open_set
from shards.errors import InputError
from tests.support import recipes
from tests.support.builds import build_here
from tests.support.packed_sets import make_documents, write_documents
from trainer.commands.fitted_recipe import Task, fit_recipe
from trainer.commands.timed_steps import write_made_up_set
from trainer.model.decoder import count_parameters
from trainer.recipe import TrainRecipe, load_train_recipe
from trainer.session import open_session


def count(recipe: TrainRecipe) -> int:
    return count_parameters(recipe.model, recipe.model.vocab_size or 0)


def fit(place: Path, hours: float, rate: float = 1e11) -> TrainRecipe:
    """Return the recipe that is written for a set and a machine of so many operations a second."""

    def measure(recipe: TrainRecipe) -> dict[str, Any]:
        return {"device": "a CPU", "tokens_per_s": rate / 6 / count(recipe)}

    text = fit_recipe(Task(open_set(place), 'my "model"', "cpu", 3600 * hours, 2.0), measure)
    return TrainRecipe.model_validate(tomllib.loads(text))


def test_what_it_writes_trains_as_it_is(trainer, shard_set, tmp_path):
    place, file = tmp_path / "my set", tmp_path / "model.toml"
    shutil.copytree(shard_set.path, place)
    done = trainer.run("fit", "--shards", place, "--write", file, "--hours", "0.1", "--steps", 1, expect=0)
    assert "measuring 1 step of a model of" in done.stderr
    _, *command = shlex.split(done.stdout.splitlines()[-1])
    trained = trainer.run(*command, "--json", expect=0)
    recipe, result = tomllib.loads(file.read_text()), trained.json
    # Four epochs of so small a set take less time than asked for; then all of the validation split is predicted.
    assert "More text would help" in file.read_text()
    assert result["epochs"] == pytest.approx(4, rel=0.1)
    assert result["val_tokens"] == sum(shard.num_tokens - 1 for shard in shard_set.splits["val"])
    assert result["val_loss"] < 0.8 * 5.77, "guessing has ln(320)"
    (samples,) = (Path(f"{place}-run") / "samples").iterdir()
    documents = shard_set.vocabulary.decode(shard_set.splits["val"][0].read()).decode().split("<|endoftext|>")
    assert len(recipe["eval"]["prompts"]) == 3
    for prompt in recipe["eval"]["prompts"]:
        assert any(text.startswith(prompt) for text in documents)
        assert prompt in samples.read_text()


def test_more_time_gives_a_larger_model_with_its_share_of_text(tmp_path):
    """By Chinchilla about 20 tokens per parameter where there is text; four epochs where there is little."""
    made = load_train_recipe(Path("demo"), ["model.vocab_size=512", "train.global_batch=512"])
    place = write_made_up_set(made, tmp_path)
    train = open_set(place).manifest.splits["train"]
    # Seconds of steps, beside a tenth for validation and six to start.
    sizes: list[int] = []
    for seconds in (60, 400):
        recipe = fit(place, (seconds + 6) / 0.9 / 3600, 4e10)
        sizes.append(count(recipe))
        assert recipe.train.tokens == pytest.approx(seconds * 4e10 / 6 / sizes[-1], rel=0.01)
        assert 5 < recipe.train.tokens / sizes[-1] < 40
    assert sizes == sorted(set(sizes))
    endless = fit(place, 1000)
    assert endless.train.tokens == pytest.approx(4 * train.tokens, rel=0.01)
    assert 1 < count(endless) / endless.train.tokens < 2
    assert fit(place, 1000) == endless


def test_the_trainer_takes_it_for_every_kind_of_set(recipe_file, tmp_path):
    """Phases, BOS, a source of weight 0, text that begins with control characters; then ids of four bytes."""
    for name, begin in (("prose", '"a\\b\t"'), ("code", "\x1b[1m x")):
        recipes.write_texts(tmp_path / f"{name}.jsonl", [f"{begin} {word} {'mill ' * 9}" for word in range(300)])
    phases = [{"name": f"{share}", "share": share, "weights": {"prose": share}} for share in (0.6, 0.4)]
    data = recipes.write_recipe(
        tmp_path / "data.toml",
        *(recipes.source(name, f"{name}.jsonl") for name in ("prose", "code")),
        recipes.source("none", "code.jsonl", weight=0),
        tokenizer={"vocab_size": 300, "special_tokens": ["<|endoftext|>", "<s>"], "bos": "<s>"},
        mix={"tokens": 6000, "phases": phases},
        split={"val_tokens": 300},
        shards={"tokens": 900},
    )
    build_here(data, tmp_path / "set")
    wide = write_made_up_set(load_train_recipe(recipe_file, ["model.vocab_size=70_000"]), tmp_path / "wide")
    for place in (tmp_path / "set", wide):
        recipe = fit(place, 0.1)
        assert recipe.name == 'my "model"'
        assert "".join(recipe.eval.prompts).isprintable()
        assert recipe.train.seq_len < max(shard.num_tokens for shard in open_set(place).splits["val"])
        open_session(recipe, place, tmp_path / f"{place.name}-run", say=print).close()


def test_a_long_conversation_is_refused_and_not_measured(tmp_path):
    document = make_documents(1, [2049], chat=True) + make_documents(2, [90] * 300, chat=True)
    place = write_documents(tmp_path / "set", [document], chat=True).path
    with pytest.raises(InputError, match=r"longest conversation has 2,049 tokens; expected at most 2,048 on this dev"):
        fit(place, 0.1)
