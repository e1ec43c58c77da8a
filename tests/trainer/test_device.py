"""Where and in which arithmetic a model runs."""

from pathlib import Path

import pytest
import torch

from shards.errors import InputError
from shards.terminal.shipped_recipes import shipped_folder
from tests.support.recipes import to_toml
from trainer.commands.fit import LAUNCHES_S, describe_training, list_cards
from trainer.device import choose_device
from trainer.recipe import load_train_recipe
from trainer.recipe.cards import CARDS, find_card


@pytest.mark.parametrize(("gpus", "ranks", "found"), [(0, 1, "0 GPUs, expected 1"), (1, 2, "1 GPU, expected 2")])
def test_a_gpu_that_is_not_there_is_refused(monkeypatch, gpus, ranks, found):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    with pytest.raises(InputError, match=rf"train\.device = 'cuda': torch finds {found}"):
        choose_device("cuda")


SMI = {
    "seen": ("echo NVIDIA A40, 550.54.14; echo NVIDIA A40, 550.54.14", "one: NVIDIA A40, driver 550.54.14. torch"),
    "no driver": ("echo It failed to reach the driver.; exit 9", "one: It failed to reach the driver. torch"),
    "silent": ("exit 1", "nvidia0 exists. torch"),
    "no GPU": ("echo No devices were found; exit 6", ""),
    "hidden": ("echo NVIDIA A40, 550.54.14", ""),
}
"""What nvidia-smi does, and what is said then."""


def plant(monkeypatch, folder, name):
    """Plant an nvidia-smi on PATH, or a GPU's file beside one that says nothing."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{SMI[name][0]}\n")
    program.chmod(0o755)
    if name == "silent":
        (folder / "nvidia0").touch()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "" if name == "hidden" else "0")
    monkeypatch.setattr("trainer.device.DEVICES", folder)


@pytest.mark.parametrize("name", SMI)
def test_a_gpu_that_torch_does_not_see_stops_unless_the_cpu_is_chosen(monkeypatch, tmp_path, name):
    plant(monkeypatch, tmp_path, name)
    if SMI[name][1]:
        with pytest.raises(InputError, match=SMI[name][1]) as refused:
            choose_device()
        assert f"torch {torch.__version__} is built" in str(refused.value)
        assert 'train.device = "cpu", or start with CUDA_VISIBLE_DEVICES=""' in str(refused.value)
    else:
        assert choose_device().type == "cpu"
    assert choose_device("cpu").type == "cpu"


def test_no_command_falls_back_to_the_cpu_unasked(monkeypatch, tmp_path, trainer, recipe_file, shard_set, run):
    plant(monkeypatch, tmp_path, "seen")
    train = ("train", recipe_file, "--shards", shard_set.path, "--run", tmp_path / "run")
    for command in (
        train,
        ("eval", run),
        ("sample", run, "--prompt", "the"),
        ("fit", recipe_file, "--measure", "--set", "model.vocab_size=320"),
        ("fit", "--write", tmp_path / "model.toml", "--shards", shard_set.path),
    ):
        done = trainer.run(*command, expect=2)
        assert done.stdout == ""
        assert "torch sees no GPU, but this machine seems to have one: NVIDIA A40" in done.stderr
    assert not (tmp_path / "run").exists()
    trainer.run(*train, "--set", "train.device=cpu", "--set", "train.steps=2", expect=0)
    trainer.run("sample", tmp_path / "run", "--prompt", "the", expect=0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
        ("Quadro RTX 6000", None),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GB200", None),
    ],
)
def test_a_card_is_found_by_whole_words(name, expected):
    assert find_card(name) == expected


@pytest.mark.parametrize("name", sorted(path.stem for path in shipped_folder("train").glob("*.toml")))
def test_what_is_estimated_of_a_card_agrees_with_its_data_sheet(name):
    """A card that is no slower in anything is no slower; a step takes the time to start it."""
    prices = f"cost.cards={to_toml(dict.fromkeys(CARDS, 2))}"
    recipe = load_train_recipe(Path(name), ["model.vocab_size=32_005", prices])
    rows = {row["card"]: row for row in list_cards(recipe, {"none": [0.0, 0.0, 0.0, 0.0]}) if row["tokens_per_s"]}
    for card, row in rows.items():
        digits = f"{row['tokens_per_s']:.0f}".rstrip("0")
        assert len(digits) <= 2
        assert row["micro_batch"] * recipe.train.seq_len / row["tokens_per_s"] > 0.95 * LAUNCHES_S
        assert row["usd"] == pytest.approx(2 * row["hours"], rel=0.06)
        peak, _, bandwidth = CARDS[card]
        slower = [other for other in rows if peak >= CARDS[other][0] and bandwidth >= CARDS[other][2]]
        assert max(rows[other]["tokens_per_s"] for other in slower) == row["tokens_per_s"]
    assert rows["H100"]["tokens_per_s"] < rows["H200"]["tokens_per_s"] or "demo" in name
    if name == "gpuburnout-1b":
        assert rows["A100"]["tokens_per_s"] == pytest.approx(28_300, rel=0.05), "what its author saw"
        assert rows["A40"]["usd_per_billion_tokens"] == pytest.approx(2 / 3600 / 12_000 * 1e9, rel=0.05)


def test_a_recipe_is_told_its_tokens_its_checkpoints_and_what_others_have():
    recipe = load_train_recipe(Path("gpuburnout-1b"))
    told = describe_training(recipe)
    assert told["tokens_per_parameter"] == pytest.approx(11.796 / 1.0389, rel=0.001)
    # Five milestones, the last two, the best one, one that is being written; weights and two moments in fp32.
    assert (told["checkpoints"], told["checkpoint_bytes"]) == (9, 12 * told["parameters"])
    assert {row["key"]: (row["recipe"], row["suggested"]) for row in told["choices"]} == {
        "global_batch": (64, 128),
        "lr": (3e-4, 3.9e-4),
    }
    muon = describe_training(load_train_recipe(Path("demo"), ["model.vocab_size=8_192"]))
    assert [row["key"] for row in muon["choices"]] == ["global_batch", "lr", "muon_lr"]
    assert muon["checkpoints"] == 4, "two milestones, the last of which every_steps saves too"
