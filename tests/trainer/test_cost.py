"""Comparing GPUs by dollars per billion tokens: entered, measured and scaled throughput."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.cost import compare, measure_throughput, parse_gpu
from trainer.errors import InputError
from trainer.gpus import peak_tflops


def by_name(costs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {cost["gpu"]: cost for cost in costs}


def test_dollars_per_billion_tokens_by_hand():
    # The 1.04 B run of the README's kind: 28,300 tokens/s at $1.45 an hour for 11.8 B tokens.
    (cost,) = compare([("A100", 1.45, 28_300.0, "entered")], 11_800_000_000)
    assert cost["usd_per_billion_tokens"] == pytest.approx(14.2324, rel=1e-4)
    assert cost["recipe_hours"] == pytest.approx(115.822, rel=1e-4)
    assert cost["recipe_usd"] == pytest.approx(167.942, rel=1e-4)
    assert cost["throughput"] == "entered"


def test_the_cheapest_a_token_comes_first_not_the_cheapest_an_hour():
    costs = compare([("slow", 1.0, 10_000.0, "entered"), ("fast", 3.0, 40_000.0, "entered")], 1_000_000)
    assert [cost["gpu"] for cost in costs] == ["fast", "slow"]


def test_a_missing_throughput_is_scaled_by_peak_and_said():
    costs = by_name(compare([("H100", 2.5, 400_000.0, "entered"), ("A100", 1.5, None, "entered")], 1_000_000))
    assert costs["A100"]["throughput"] == "scaled"
    assert costs["A100"]["tokens_per_s"] == pytest.approx(400_000 * 312 / 989.4)


def test_what_is_scaled_is_scaled_from_the_first_that_is_known(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "tokens_per_s": 100000.0}\n')
    gpus = ["H200=3", f"rtx-4090=0.5:{tmp_path}", "H100=2.5:7", "RTX 4090=0.6"]
    costs = by_name(compare([parse_gpu(text) for text in gpus], 1_000_000))
    assert (costs["rtx-4090"]["throughput"], costs["rtx-4090"]["tokens_per_s"]) == ("measured", 100_000.0)
    assert (costs["RTX 4090"]["throughput"], costs["RTX 4090"]["tokens_per_s"]) == ("scaled", 100_000.0)
    assert costs["H200"]["tokens_per_s"] == pytest.approx(100_000 * 989.4 / 165.2)
    assert (costs["H100"]["throughput"], costs["H100"]["tokens_per_s"]) == ("entered", 7.0)


def test_every_card_without_a_throughput_is_named():
    with pytest.raises(InputError) as error:
        compare([parse_gpu(text) for text in ("Tin=1", "Can=1", "H100=1:5")], 1_000)
    assert [problem.split(":")[0] for problem in error.value.problems] == ["--gpu Tin", "--gpu Can"]


@pytest.mark.parametrize(
    "text", ["H100", "=2", "H100=", "H100=x", "H100=2:3:4", "H100=0", "H100=2:-1", "H100=2:", "H100=nan"]
)
def test_a_card_that_cannot_be_read_is_refused(text: str):
    with pytest.raises(InputError, match="expected NAME=USD_PER_HOUR"):
        parse_gpu(text)


def test_a_runs_throughput_is_its_median_without_the_start(tmp_path: Path):
    speeds = [1.0, 90.0, 100.0, 110.0, 100.0, 100.0, 100.0, 100.0, 100.0, 5_000.0]
    lines = [{"step": step, "tokens_per_s": speed} for step, speed in enumerate(speeds)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"val_loss": 1.0}]))
    assert measure_throughput(tmp_path) == 100.0
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "tokens_per_s": 100.0, "ranks": 4}\n')
    assert measure_throughput(tmp_path) == 25.0  # of one card, as its price is
    with pytest.raises(InputError, match="no step with a throughput"):
        measure_throughput(tmp_path / "absent")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "tokens_per_s": "a"}\n')
    with pytest.raises(InputError, match="no number"):
        measure_throughput(tmp_path)


def test_the_command(trainer: Any, recipe_file: Path, tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "tokens_per_s": 1000.0}\n')
    gpus = ("--gpu", f"H100=3.6:{tmp_path}", "--gpu", "H200=7.2:4,000")
    done = trainer.run("cost", recipe_file, *gpus, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tokens"] == 24 * 8 * 32
    assert [gpu["usd_per_billion_tokens"] for gpu in result["gpus"]] == pytest.approx([500.0, 1000.0])
    table = trainer.run("cost", recipe_file, *gpus)
    assert "measured" in table.stdout
    assert "1,000.00" in table.stdout
    refused = trainer.run("cost", recipe_file, "--gpu", "H100=2")
    assert refused.returncode == 2
    assert "H100=USD_PER_HOUR:TOKENS_PER_S" in refused.stderr
    refused = trainer.run("cost", recipe_file, "--gpu", f"H100=2:{tmp_path / 'absent'}")
    assert refused.returncode == 2
    assert "or :RUN, a run's folder" in refused.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40", 181.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("rtx4090", 165.2),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GB200", None),
    ],
)
def test_a_cards_peak_is_found_by_whole_words(name: str, expected: float | None):
    assert peak_tflops(name) == expected
