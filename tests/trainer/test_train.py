"""The loop: it learns, its first loss is that of guessing, accumulation changes nothing, failures are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shards import ShardSet
from trainer.config import TrainRecipe
from trainer.data import Loader
from trainer.errors import RunError
from trainer.metrics import MetricsLog, read_metrics
from trainer.recipe import load_recipe
from trainer.session import Session, open_session
from trainer.train import fetch_losses, run_training, take_step


@pytest.fixture
def open_run(shard_set: ShardSet, recipe_file: Path, tmp_path: Path) -> Callable[..., Session]:
    """Return a function that opens a session with overrides."""

    def open_with(*overrides: str, name: str = "run", shards: ShardSet = shard_set) -> Session:
        recipe: TrainRecipe = load_recipe(recipe_file, list(overrides))
        return open_session(recipe, shards.path, tmp_path / name, resume="auto", say=lambda line: None)

    return open_with


def take_steps(session: Session, steps: int) -> list[dict[str, float]]:
    with Loader(session.shard_set.splits["train"], session.order) as loader:
        taken = [take_step(session, loader) for _ in range(steps)]
    fetch_losses(session, taken)
    return taken


def test_the_first_loss_is_near_ln_of_the_vocabulary(open_run: Callable[..., Session]):
    first = take_steps(open_run(), 1)[0]
    assert first["loss"] == pytest.approx(math.log(320), abs=0.1)
    assert first["step"] == 1
    assert first["tokens"] == 8 * 32
    assert first["lr"] == pytest.approx(0.005)


def test_a_tiny_model_overfits_one_shard(
    open_run: Callable[..., Session], make_set: Callable[..., ShardSet], tmp_path: Path
):
    one = make_set(tmp_path / "one", shard_tokens={"train": [330], "val": [200]})
    overrides = ["train.steps=150", "train.global_batch=4", "model.hidden_size=64", "optimizer.weight_decay=0"]
    session = open_run(*overrides, "eval.every_steps=150", "checkpoint.every_steps=150", shards=one)
    assert len(one.splits["train"]) == 1
    outcome = run_training(session, lambda line: None)
    assert outcome.last_step["loss"] < 0.1


@pytest.mark.parametrize("micro_batch", [1, 2, 8])
def test_accumulation_gives_the_gradient_of_the_whole_batch(open_run: Callable[..., Session], micro_batch: int):
    whole = take_steps(open_run("train.micro_batch=8"), 3)
    parts = take_steps(open_run(f"train.micro_batch={micro_batch}", name="parts"), 3)
    for key in ("loss", "grad_norm"):
        assert [step[key] for step in parts] == pytest.approx([step[key] for step in whole], rel=1e-4)


def test_steps_follow_the_sample_order(open_run: Callable[..., Session], monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int]] = []
    read = Loader.read
    monkeypatch.setattr(Loader, "read", lambda self, first, n: asked.append((first, n)) or read(self, first, n))
    session = open_run()
    take_steps(session, 3)
    assert asked == [(first, 2) for first in range(0, 24, 2)]
    assert session.samples == 24


def test_weight_decay_is_for_matrices_only(open_run: Callable[..., Session]):
    session = open_run()
    (optimizer,) = session.optimizers
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in plain["params"]} == {1}
    assert len(decayed["params"]) + len(plain["params"]) == len(list(session.model.parameters()))


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_documents(open_run: Callable[..., Session]):
    session = open_run()
    with torch.no_grad():
        session.model.model.norm.weight[0] = math.nan
    with pytest.raises(RunError, match=r"step 1: loss nan.*samples \[0, 8\)") as caught:
        run_training(session, lambda line: None)
    assert "No checkpoint had been written" in str(caught.value)
    first = session.order.locate_row(1, 0, global_batch=8)
    shard = session.shard_set.splits["train"][first.shard]
    assert f"{shard.name} [{first.start}, {first.stop}): " in str(caught.value)
    assert " unit row " in str(caught.value)
    assert not list((session.run / "checkpoints").glob("*"))


def test_bf16_learns_like_fp32(open_run: Callable[..., Session]):
    losses = [
        take_steps(open_run("train.precision=fp32", name="fp32"), 10)[-1]["loss"],
        take_steps(open_run("train.precision=bf16", name="bf16"), 10)[-1]["loss"],
    ]
    assert losses[1] == pytest.approx(losses[0], abs=0.05)


def test_steps_after_the_checkpoint_leave_the_log(tmp_path: Path):
    lines = ['{"step": 1, "loss": 3.0}', '{"step": 2, "loss": 2.0}', '{"step": 2, "val_loss": 2.5}']
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 3, "loss": 1.0}', '{"step": 4, "lo']))
    with MetricsLog(tmp_path, step=2) as log:
        assert log.removed == 2
        assert log.last("val_loss") == {"step": 2, "val_loss": 2.5}
        log.write({"step": 3, "loss": 1.5})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 2, 3]
