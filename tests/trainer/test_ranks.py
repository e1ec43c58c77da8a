"""Several ranks on the CPU (gloo): the same samples and losses as one, and checkpoints that either goes on from."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.ranks import run_ranks
from tests.support.recipes import overrides, write_lines
from tests.trainer.conftest import losses_of, read_lines
from trainer.metrics import read_metrics

pytestmark = pytest.mark.long


def assert_near(run: Path, expected: Path) -> None:
    """Steps, validations and final weights are equal but for rounding."""
    lines, others = ([line for line in read_lines(path) if "phase" not in line] for path in (run, expected))
    assert [(line["step"], line.get("tokens")) for line in lines] == [(o["step"], o.get("tokens")) for o in others]
    for line, other in zip(lines, others, strict=True):
        for key in {"loss", "grad_norm", "val_loss"} & other.keys():
            assert line[key] == pytest.approx(other[key], rel=2e-4)
    mine, theirs = (load_file(path / "checkpoints/step-00000024/model.safetensors") for path in (run, expected))
    assert mine.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(mine[name], weight, rtol=1e-2, atol=2e-3)


@pytest.fixture(scope="module")
def one_rank(train, tmp_path_factory) -> Path:
    """A run of one rank that never stopped. Read only."""
    run = tmp_path_factory.mktemp("runs") / "one"
    train(run)
    return run


def test_one_rank_then_two_then_one_equals_one_rank_throughout(train, shard_set, recipe_file, one_rank, tmp_path):
    arguments = ("train", recipe_file, "--shards", shard_set.path, "--run", tmp_path)

    # Stopped where goals are missed that cannot be met: the schedule stays that of 24 steps.
    at_8, at_16 = (f"phases=[{{name='a', until_step={step}, goal='loss < 0'}}]" for step in (8, 16))
    train(tmp_path, at_8, "train.micro_batch=1", status=3)
    second = run_ranks(*arguments, *overrides(at_16, "train.micro_batch=2", "train.log_every=3"), expect=1)
    assert "2 x cpu" in second.stderr
    assert second.stderr.count("resumed from") == 1
    assert second.stdout.count("step 16 with loss") == 1, second.stderr
    train(tmp_path, "train.micro_batch=8")
    assert_near(tmp_path, one_rank)


def test_fsdp_gives_the_losses_of_one_rank(shard_set, recipe_file, one_rank, tmp_path):
    arguments = ("train", recipe_file, "--shards", shard_set.path, "--run", tmp_path, "--set", "train.parallel=fsdp")
    stopped = run_ranks(*arguments, "--set", "phases=[{name='a', until_step=10, goal='loss < 0'}]", expect=1)
    assert "step 10 with loss" in stopped.stdout
    run_ranks(*arguments)  # also its optimizer's state is saved whole and split again
    lines = [line for line in read_lines(tmp_path) if line["step"] != 10 or "val_loss" not in line]
    write_lines(tmp_path / "metrics.jsonl", lines)
    assert_near(tmp_path, one_rank)


def test_muon_under_fsdp_gives_the_losses_of_whole_matrices(shard_set, recipe_file, tmp_path):
    """Two ranks that share each matrix beside two that hold it whole, since both add up the same gradients.

    One rank rounds its sum otherwise, and the bf16 in Muon makes more of it than a rounding.
    """
    settings = ["optimizer.kind=muon", "optimizer.muon_lr=0.02", "optimizer.grad_clip=1e9", "train.steps=8"]
    settings += ["schedule.warmup_steps=2", "phases=[]", "train.smoke_steps=0"]
    for name, parallel in (("whole", "ddp"), ("shared", "fsdp")):
        arguments = ("--shards", shard_set.path, "--run", tmp_path / name)
        run_ranks("train", recipe_file, *arguments, *overrides(*settings, f"train.parallel={parallel}"))
    losses, others = (losses_of(tmp_path / name) for name in ("shared", "whole"))
    assert len(losses) == 8
    assert losses == pytest.approx(others, rel=1e-6)


COUNT_THREADS = """
import pathlib, sys
from tokenmill.__main__ import main
status = main(sys.argv[1:])
names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
# One write: both ranks print to one pipe.
sys.stdout.write(f"threads of gloo: {sum('gloo' in name for name in names)}\\n")
sys.stdout.flush()
sys.exit(status)
"""
"""The trainer, and how many threads it leaves that could hang or abort the end."""


def test_two_ranks_share_eval_sets_and_tasks_and_have_the_scores_of_one(
    train, shard_set, recipe_file, text_file, item_file, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = f"eval.sets=[{{name='web', paths=['{text_file}'], text='body'}}]"
    tasks = f"eval.tasks=[{{name='own', files=['{item_file}']}}]"
    changes = (table, tasks, "train.steps=4")
    arguments = ("train", recipe_file, "--shards", shard_set.path, *overrides(*changes))
    (tmp_path / "train.py").write_text(COUNT_THREADS)
    ranks = ("--run", tmp_path / "both", "--set", "train.parallel=fsdp")
    both = run_ranks(*arguments, *ranks, script=tmp_path / "train.py")
    assert both.stdout.count("threads of gloo: 0") == 2, both.stdout
    assert both.stderr.count("step 4  web_bpb") == 1
    assert len(list((tmp_path / "cache" / "tokenmill" / "eval_sets").iterdir())) == 1
    train(tmp_path / "one", *changes)
    scores = [read_metrics(tmp_path / run)[-1]["scores"] for run in ("both", "one")]
    assert scores[0].keys() == {"web_bpb", "own_acc", "own_acc_norm", "own_bpb"}
    for name, score in scores[0].items():
        assert score == pytest.approx(scores[1][name], rel=1e-4)
