"""Checkpoints: whole or not at all, corruption found, nothing unpickled."""

import pickle
from pathlib import Path
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch
from torch import nn

from tests.support.damage import flip
from trainer.checkpoint.folders import CheckpointState, clear_leftovers, find_newest_checkpoint, list_checkpoints
from trainer.checkpoint.tensors import load_training_state, load_weights, save_checkpoint

FILES = ["checksums.json", "state.json", "model.safetensors", "optimizer.safetensors"]


def make_state(step: int) -> CheckpointState:
    return CheckpointState(
        step=step,
        samples=step * 8,
        recipe={"name": "x", "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95]}},
        vocab_size=320,
        eos_id=318,
        manifest_sha256="0" * 64,
        tokenizer_sha256="1" * 64,
    )


def make_training(seed: int) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def run(tmp_path) -> Path:
    """A run with the checkpoints 10, 20 and 30."""
    model, optimizer = make_training(1)
    for step in (10, 20, 30):
        save_checkpoint(tmp_path, make_state(step), model, [optimizer])
    return tmp_path


def flip_byte(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def test_everything_comes_back_bit_for_bit_without_a_pickle(tmp_path, monkeypatch):
    model, optimizer = make_training(1)
    other, other_optimizer = make_training(2)  # torch imports modules that extend a pickler
    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, Mock(side_effect=AssertionError("a pickle was read")))
    saved = save_checkpoint(tmp_path, make_state(7), model, [optimizer])
    found = find_newest_checkpoint(tmp_path, print)
    assert found.path == saved == tmp_path / "checkpoints/step-00000007"
    assert found.state == make_state(7)
    load_weights(found, other)
    load_training_state(found, other, [other_optimizer])
    assert all(b"\x80\x04\x95" not in file.read_bytes() for file in saved.iterdir())  # so begins a pickle of protocol 4
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert set(optimizer.state[mine]) == {"step", "exp_avg", "exp_avg_sq"}
        for key, value in optimizer.state[mine].items():
            assert torch.equal(value, other_optimizer.state[theirs][key])


@pytest.mark.parametrize("damage", [flip_byte, Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_found_and_the_previous_checkpoint_used(run, name, damage):
    damage(run / "checkpoints/step-00000030" / name)
    messages: list[str] = []
    found = find_newest_checkpoint(run, messages.append)
    assert found.state.step == 20
    (message,) = messages
    assert "step-00000030" in message
    assert name in message


def test_corrupt_ones_are_moved_aside_and_crashed_saves_cleared(run):
    left = run / "checkpoints/.step-00000040.123.tmp"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    moved = clear_leftovers(run, after_step=20)
    assert [path.name for path in moved] == ["corrupt-step-00000030"]
    assert not left.exists()
    assert [path.name for path in list_checkpoints(run)] == ["step-00000010", "step-00000020"]


@pytest.mark.parametrize("place", [(safetensors.torch, "save_file"), (Path, "rename")], ids=lambda place: place[1])
def test_a_save_that_fails_leaves_the_others_and_nothing_else(run, monkeypatch, place):
    model, optimizer = make_training(1)
    monkeypatch.setattr(*place, Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(run, make_state(40), model, [optimizer])
    monkeypatch.undo()
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["step-00000010", "step-00000020", "step-00000030"]
    assert find_newest_checkpoint(run, print) is not None
