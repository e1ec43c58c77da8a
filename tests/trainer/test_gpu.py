"""On a GPU: the losses and scores of the CPU, compiled or not; runs that go on, there and elsewhere."""

from pathlib import Path

import pytest
import torch

from tests.support.recipes import overrides, to_toml
from tests.trainer.conftest import losses_of, read_lines

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() == 0, reason="torch finds no GPU"),
    # Torch's own, when it compiles.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

STOP = "phases=[{name='a', until_step=12, goal='loss < 0'}]"
"""Stops a run after its twelfth step, where it misses a goal that cannot be met: the schedule stays that of 24."""


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Undo what keeps the other tests on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "settings",
    [
        ["train.compile=false"],
        ["train.compile=true"],
        ["train.document_mask=true"],
        ["train.document_mask=true", "train.compile=true"],
        ["train.rows=packed"],
        ["train.rows=packed", "train.compile=true"],
        ["train.activation_checkpointing=full"],
        ["train.activation_checkpointing=selective", "train.compile=true"],
        ["optimizer.kind=muon", "optimizer.muon_lr=0.01", "model.hidden_act=relu2", "model.use_qk_norm=true"],
        ["model.kind=gpt2", "model.num_key_value_heads=4"],
    ],
    ids=" ".join,
)
def test_steps_have_the_losses_of_the_cpu(train, tmp_path, settings):
    train(tmp_path / "cuda", "train.device=cuda", *settings)
    train(tmp_path / "cpu", "train.device=cpu", *settings, "train.compile=false")
    found, expected = (losses_of(tmp_path / device) for device in ("cuda", "cpu"))
    # TF32 rounds what it multiplies to 11 bits, of which later steps at a high rate make more. Masks change 0.04.
    assert found[:6] == pytest.approx(expected[:6], abs=0.01)
    assert found[-1] < found[0] - 1
    last, expected_last = (read_lines(tmp_path / device)[-1]["val_loss"] for device in ("cuda", "cpu"))
    assert last == pytest.approx(expected_last, abs=0.1)


def test_auto_is_bf16_and_costs_no_loss(train, tmp_path):
    assert "on cuda:0 in bf16" in train(tmp_path / "bf16", "train.device=cuda", "train.precision=auto").stderr
    assert "on cuda:0 in fp32" in train(tmp_path / "fp32", "train.device=cuda").stderr
    bf16, fp32 = (losses_of(tmp_path / name) for name in ("bf16", "fp32"))
    assert bf16 != fp32
    assert bf16 == pytest.approx(fp32, abs=0.15)


@pytest.mark.parametrize("devices", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")], ids=" then ".join)
def test_a_run_goes_on_there_and_elsewhere(train, tmp_path, devices):
    train(tmp_path / "stopped", f"train.device={devices[0]}", STOP, status=3)
    assert "resumed from" in train(tmp_path / "stopped", f"train.device={devices[1]}").stderr
    train(tmp_path / "whole", "train.device=cuda")
    stopped, whole = (losses_of(tmp_path / name) for name in ("stopped", "whole"))
    assert len(stopped) == 24
    assert stopped == pytest.approx(whole, abs=0.1)


def test_scores_and_samples_are_those_of_the_cpu(train, trainer, text_file, item_file, monkeypatch, tmp_path):
    sets = [{"name": "web", "paths": [str(text_file)], "text": "body", "max_tokens": 3000}]
    tasks = [{"name": "own", "files": [str(item_file)], "prompt": "{question}"}]
    train(tmp_path / "run", "train.device=cuda", f"eval.sets={to_toml(sets)}", f"eval.tasks={to_toml(tasks)}")
    found: dict[bool, tuple[dict[str, float], str]] = {}
    for gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0" if gpu else "")
        device = "cuda" if gpu else "cpu"
        scored = trainer.run("eval", tmp_path / "run", "--json", "--set", f"train.device={device}", expect=0)
        sampled = trainer.run("sample", tmp_path / "run", "--prompt", "the mill", "--temperature", 0, expect=0)
        found[gpu] = scored.json["scores"], sampled.stdout
    (scores, text), (expected, expected_text) = found[True], found[False]
    assert {"web_bpb", "own_acc", "own_bpb"} <= scores.keys()
    for name in ("web_bpb", "own_bpb"):
        assert scores[name] == pytest.approx(expected[name], rel=0.005)
    assert scores["own_acc"] == pytest.approx(expected["own_acc"], abs=0.1)
    assert text[:20] == expected_text[:20]


def test_steps_take_the_memory_that_fit_expects(trainer):
    changes = overrides("train.global_batch=32", "train.micro_batch=32")
    done = trainer.run(
        "fit", "tinystories-28m", "--gpu-memory", "80GB", "--measure", "--steps", 3, *changes, "--json", expect=0
    )
    found = done.json
    assert found["measured"]["device"] == torch.cuda.get_device_name()
    (expected,) = [
        row["total"] - found["memory"]["context"]
        for row in found["memory"]["estimates"]
        if (row["micro_batch"], row["activation_checkpointing"]) == (32, "none")
    ]
    assert found["measured"]["peak_gb"] * 1e9 == pytest.approx(expected, rel=0.1)
