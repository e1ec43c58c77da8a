"""The loop: it learns, its first loss is that of guessing, accumulation changes nothing, failures are named."""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import trainer
from shards.errors import InputError, RunError
from shards.terminal.reporter import no_note
from shards.torch import TokenWindows
from shards.torch.batch import number_documents
from tests.support.token_sets import locate
from tests.trainer.conftest import build_set, losses_of, take_steps
from trainer import optim
from trainer.metrics import read_metrics
from trainer.optim import learning_rate
from trainer.recipe import PhaseConfig
from trainer.train.step import fetch_losses
from trainer.train.train_model import run_training


def test_a_tiny_model_overfits_one_shard(open_run, tmp_path):
    # Few tokens more than its windows: each epoch has nearly the same ones.
    one = build_set(tmp_path / "one", shard_tokens={"train": [330], "val": [200]})
    overrides = ["train.steps=150", "train.global_batch=4", "model.hidden_size=64", "optimizer.weight_decay=0"]
    overrides += ["eval.max_tokens=1"]
    session = open_run(*overrides, "eval.every_steps=150", "checkpoint.every_steps=150", shards=one)
    assert len(one.splits["train"]) == 1
    said: list[str] = []
    outcome = run_training(session, said.append)
    assert outcome.log.last("loss")["loss"] < 0.4
    assert sum(line.endswith("  beyond eval.max_tokens: code") for line in said) == 1


def test_a_python_program_trains_as_the_command_does(run, recipe_file, shard_set, tmp_path, capsys):
    settings = ("train.steps=40", "checkpoint.every_steps=20", "eval.every_steps=40")
    with ThreadPoolExecutor(1) as pool:  # not the main thread, which alone may handle signals
        arguments = {"shards": shard_set.path, "run": tmp_path / "run", "overrides": settings}
        result = pool.submit(trainer.train_model, recipe_file, **arguments).result()
    assert (result.status, result.step, result.checkpoint.name) == ("complete", 40, "step-00000040")
    assert capsys.readouterr() == ("", "")
    theirs, ours = (trainer.load_model(folder).model.state_dict() for folder in (run, tmp_path / "run"))
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
    with pytest.raises(InputError, match="Did you mean 'steps'"):
        trainer.train_model(recipe_file, shards=shard_set.path, run=tmp_path / "run", overrides=["train.stepz=1"])


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_documents(open_run):
    session = open_run()
    with torch.no_grad():
        session.model.model.norm.weight[0] = math.nan
    with pytest.raises(RunError, match=r"step 1: loss nan.*windows \[0, 8\)") as caught:
        run_training(session, no_note)
    assert "No checkpoint had been written" in str(caught.value)
    first = locate(session.order, 0)
    shard = session.shard_set.splits["train"][first.shard]
    assert re.search(rf" unit row \d+ \({shard.name}, row 0 of the batch\)", str(caught.value))
    assert not list((session.run / "checkpoints").glob("*"))


def test_weights_that_can_only_fail_are_not_saved(open_run):
    """A step's own loss and gradient are finite, and what it makes of the weights is not."""
    session = open_run("optimizer.lr=1e30", "checkpoint.every_steps=1", "schedule.warmup_steps=0")
    with pytest.raises(RunError, match=r"step 1: the weights after it cannot be trained on.*norm nan"):
        run_training(session, no_note)
    assert not list(session.run.glob("checkpoints/step-*"))


def test_bf16_learns_like_fp32(open_run):
    losses = [
        take_steps(open_run("train.precision=fp32", name="fp32"), 10)[-1]["loss"],
        take_steps(open_run("train.precision=bf16", name="bf16"), 10)[-1]["loss"],
    ]
    assert losses[1] == pytest.approx(losses[0], abs=0.05)


def test_a_run_goes_on_bit_for_bit_with_muon_too(open_run):
    recipe = ("optimizer.kind=muon", "optimizer.lr=5e-3", "train.steps=10", "checkpoint.every_steps=5")
    whole = run_training(open_run(*recipe, name="whole"), no_note)
    assert whole.log.last("loss")["loss"] < 5.2
    part = open_run(*recipe, name="part")
    part.recipe.phases.append(PhaseConfig(name="half", until_step=5, goal="loss < 0"))
    assert run_training(part, no_note).off_ramp is not None
    part.close()
    again = open_run(*recipe, name="part")
    assert again.step == 5
    outcome = run_training(again, no_note)
    for key in ("loss", "grad_norm"):
        assert outcome.log.last("loss")[key] == whole.log.last("loss")[key]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_stacked_matrices_get_the_weights_of_each_alone(dtype, monkeypatch):
    """Those of torch's own Muon, which computes in bf16."""
    random = torch.Generator().manual_seed(1)
    shapes = [(48, 24), (24, 48), (48, 24), (128, 128), (33, 65), (65, 33), (33, 65), (128, 128), (128, 256), (10, 10)]
    weights = [torch.nn.Parameter(torch.randn(shape, generator=random) * 0.02) for shape in [*shapes, *shapes]]
    others = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    options = {"lr": 0.02, "weight_decay": 0.1}
    muon, alone = optim.Muon(weights, dtype, **options), optim.Muon(others, dtype, **options)
    if dtype == torch.bfloat16:
        alone = torch.optim.Muon(others, adjust_lr_fn="match_rms_adamw", **options)
    for step in range(6):
        for weight, other in zip(weights, others, strict=True):
            weight.grad = other.grad = torch.randn(weight.shape, generator=random) * 1e-3
        for optimizer, size in ((muon, 2**15), (alone, 1)):  # several stacks of the largest; or no stacks
            monkeypatch.setitem(optim.STACK, "cpu", size)
            optimizer.step()
        assert all(map(torch.equal, weights, others)), step


def test_muon_has_a_learning_rate_of_its_own(open_run):
    session = open_run("optimizer.kind=muon", "optimizer.muon_lr=0.02", "optimizer.lr=0.004", "train.steps=8")
    (step,) = take_steps(session, 1)
    muon, adamw = ({group["lr"] for group in optimizer.param_groups} for optimizer in session.optimizers)
    (lr,) = adamw
    assert step["lr"] == lr == learning_rate(0, session.recipe)
    (muon_lr,) = muon
    assert muon_lr == pytest.approx(5 * lr)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_weight_decay_is_for_matrices_and_muon_for_those_of_layers(open_run, kind):
    session = open_run(f"optimizer.kind={kind}")
    *muon, adamw = session.optimizers
    names = {parameter: name for name, parameter in session.model.named_parameters()}
    assert len(muon) == (kind == "muon")
    taken = {names[p] for optimizer in muon for p in optimizer.param_groups[0]["params"]}
    assert taken == {name for name in names.values() if kind == "muon" and ".layers." in name and "norm" not in name}
    assert {names[p] for group in adamw.param_groups for p in group["params"]} == set(names.values()) - taken
    decayed, plain = adamw.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert ({p.ndim for p in decayed["params"]}, {p.ndim for p in plain["params"]}) == ({2}, {1})


def test_losses_are_fetched_once_an_interval_and_logged_for_each_step(open_run, monkeypatch):
    fetched: list[int] = []
    monkeypatch.setattr(
        "trainer.train.loop.fetch_losses",
        lambda session, taken: fetched.append(len(taken)) or fetch_losses(session, taken),
    )
    every_ten = ("eval.every_steps=24", "checkpoint.every_steps=24")
    runs = [open_run(f"train.log_every={n}", *every_ten, name=str(n)) for n in (1, 10)]
    for session in runs:
        run_training(session, no_note)
    assert fetched[24:] == [10, 10, 4]
    alone, together = (losses_of(session.run) for session in runs)
    assert together == alone
    line = read_metrics(runs[1].run)[0]
    assert line["tokens_per_s"] > 0
    assert line["mfu"] is None  # a CPU's peak is not known


def test_a_document_mask_trains_on_documents_apart(open_run):
    plain = take_steps(open_run(name="plain"), 1)[0]["loss"]
    session = open_run("train.document_mask=true", "train.micro_batch=8", name="masked")
    batch = TokenWindows(session.shard_set, seq_len=32, seed=session.recipe.train.seed).read(range(8))
    documents = number_documents(batch["input_ids"], session.shard_set.eos_id, eos="begins")
    assert documents.max() > 0
    with torch.no_grad():
        expected = session.model(batch["input_ids"], batch["labels"], documents=documents).item()
    masked = take_steps(session, 1)[0]["loss"]
    assert masked == pytest.approx(expected, rel=1e-5)
    assert masked != pytest.approx(plain, rel=1e-5)


def test_too_large_a_micro_batch_names_the_command_that_says_what_fits(open_run):
    session = open_run("train.micro_batch=8")

    def no_memory(*_: Any, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError

    session.forward = no_memory  # type: ignore[assignment]
    with pytest.raises(RunError, match=r"step 1: train.micro_batch = 8: out of memory. .*`tokenmill fit` says"):
        run_training(session, no_note)
