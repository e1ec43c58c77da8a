"""A checkpoint from a stranger whose checksums fit: what must not be in a file is refused, and the run named.

`tests/test_fuzz.py` damages runs by chance.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer.checkpoint.folders import hash_files

COMMANDS = {
    "train": "train {recipe} --shards {set} --run {run} --set train.steps=42",
    "sample": "sample {run} --prompt the --max-new-tokens 2",
}
Fault = Callable[[Path], object]


def put(**values: Any) -> Fault:
    """Set keys of a JSON file."""
    return lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | values))


def of_first(change: Callable[[torch.Tensor], torch.Tensor], *, name: str | None = None) -> Fault:
    """Change the first tensor of a file, or put what comes out under another name."""

    def save(file: Path) -> None:
        tensors = load_file(file)
        first = min(tensors)
        tensors[name or first] = change(tensors[first]).clone().contiguous()
        save_file(tensors, file)

    return save


NAN = of_first(lambda tensor: tensor.index_fill(0, torch.tensor(0), torch.nan))
DOUBLE, OTHER = of_first(torch.Tensor.double), of_first(torch.zeros_like, name="other")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("file", "command", "faults"),
    [
        ("metrics.jsonl", "train", [lambda file: os.truncate(file, 64 << 30)]),
        ("state.json", "train", [put(recipe=[]), put(bos_id=1 << 99)]),
        (
            "state.json",
            "sample",
            [
                *(put(vocab_size=size) for size in (300, 321, 1 << 24, 1 << 40)),
                *(put(eos_id=5), put(eos_id=1 << 40), put(step=-1), put(step=41), put(tokenizer_sha256="0")),
            ],
        ),
        ("model.safetensors", "sample", [NAN, DOUBLE, OTHER, of_first(lambda tensor: tensor[:3])]),
        ("optimizer.safetensors", "train", [NAN, OTHER]),
    ],
)
def test_a_file_of_a_strangers_run_is_refused_by_name(
    trainer, shard_set, recipe_file, run, tmp_path, file, command, faults
):
    for number, fault in enumerate(faults):
        copy = shutil.copytree(run, tmp_path / str(number), ignore=shutil.ignore_patterns("step-00000020"))
        checkpoint = copy / "checkpoints/step-00000040"
        fault(copy / file if file == "metrics.jsonl" else checkpoint / file)
        (checkpoint / "checksums.json").write_text(json.dumps(hash_files(checkpoint)))  # they fit
        done = trainer.run(*COMMANDS[command].format(run=copy, set=shard_set.path, recipe=recipe_file).split())
        assert done.returncode in (1, 2), (number, done.stderr)
        assert str(copy) in done.stderr.partition("error: ")[2]
