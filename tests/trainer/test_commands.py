"""The commands' manners: bad input in one report with exit code 2, help at once, sampling."""

import json
import re
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch

from shards import open_set
from tests.support.damage import flip
from trainer.model.generate import choose_token, generate_texts
from trainer.recipe.eval_config import SamplingOptions
from trainer.train.step import take_step

WITHOUT_EXTRA = """
import json, sys
sys.modules.update(dict.fromkeys(("torch", "safetensors", "matplotlib")))
from tests.support.builds import call_here
ends = (call_here(*line) for line in json.loads(sys.argv[1]))
print(json.dumps([(done.returncode, done.stdout, done.stderr) for done in ends]))
"""
"""Commands in an environment without the extra `train`, as `pip install tokenmill` leaves it."""


def test_without_the_extra_it_says_how_to_install_it_and_what_needs_no_torch_runs(
    run, recipe_file, shard_set, tmp_path
):
    lines = [
        ("trace-step", run, "--step", 1),
        ("train", recipe_file, "--shards", shard_set.path, "--run", tmp_path / "run"),
        ("sample", run, "--prompt", "a"),
        ("plot", run, "--out", tmp_path),
        ("export-model", run, "--to", "hf", "--out", tmp_path / "hf"),
        ("fit", recipe_file, "--gpu-memory", "24GB"),
    ]
    given = json.dumps([[*map(str, line), "--json"] for line in lines])
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRA, given], capture_output=True, text=True, check=True)
    (status, _, said), *refused = json.loads(done.stdout)
    assert status == 0, said
    for status, out, said in refused:
        assert status == 2, said
        assert "Traceback" not in said
        (problem,) = json.loads(out)["problems"]
        assert re.search(r"'(torch|safetensors|matplotlib)' is not installed.*pip install 'matplotlib>=", problem)
    assert list(tmp_path.iterdir()) == []


def test_a_corrupt_frame_met_on_the_way_fails_the_run(train, shard_set, tmp_path):
    shutil.copytree(shard_set.path, tmp_path / "set")
    for file in (tmp_path / "set").glob("train-*.bin.zst"):  # quick validation does not read frames
        flip(file, 100)
    done = train(tmp_path / "run", shards=open_set(tmp_path / "set"), status=1)
    assert "frame_corrupt" in done.stderr
    assert "Stopped after step 0" in done.stderr


@pytest.mark.parametrize("place", ["trainer.train.train_model.open_session", "trainer.train.loop.take_step"])
def test_an_interrupt_at_once_is_one_line(train, tmp_path, monkeypatch, place):
    """While starting, where the first counts, and in a step, where the second does."""

    def interrupt(*_: Any, **__: Any) -> None:
        for _number in range(2):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(place, interrupt)
    done = train(tmp_path / "run", more=("--json",), status=130)
    assert done.json["status"] == "interrupted"
    assert done.stderr.splitlines()[-1] == "error: interrupted; run the same command to resume"


def test_an_interrupted_run_names_the_command_that_resumes_it(train, tmp_path, monkeypatch):
    def interrupt(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return take_step(*arguments)

    monkeypatch.setattr("trainer.train.loop.take_step", interrupt)
    monkeypatch.setattr("sys.argv", ["/bin/tokenmill", "train", "my recipe.toml"])
    done = train(tmp_path / "run", status=130)
    assert "Next:\n  tokenmill train 'my recipe.toml'    resumes it\n" in done.stdout


def test_special_tokens_in_a_prompt_are_text(loaded, monkeypatch):
    fed: list[list[int]] = []
    monkeypatch.setattr("trainer.model.generate.iter_tokens", lambda _model, ids, *_: fed.extend(ids) or iter([]))
    generate_texts(loaded, ["a<|endoftext|>b"], SamplingOptions())[0]
    assert fed[0][0] == loaded.eos_id
    assert loaded.eos_id not in fed[0][1:]
    assert loaded.tokenizer.decode(fed[0][1:], skip_special_tokens=False) == "a<|endoftext|>b"


def choose(logits: list[float], seen: list[int] | None = None, draws: int = 1, **options: Any) -> set[int]:
    generator = torch.Generator().manual_seed(0)
    chosen = SamplingOptions(**({"repetition_penalty": 1.0, "top_p": 1.0, "temperature": 1.0} | options))
    return {choose_token(torch.tensor(logits), seen or [], chosen, generator) for _ in range(draws)}


def test_top_p_keeps_the_likeliest_tokens_that_reach_it():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert choose(logits, draws=400) == {0, 1, 2, 3}
    assert choose(logits, top_p=0.9, draws=400) == {0, 1, 2}
    assert choose(logits, top_p=0.7, draws=400) == {0, 1}
    assert choose(logits, top_p=0.01, draws=50) == {0}
