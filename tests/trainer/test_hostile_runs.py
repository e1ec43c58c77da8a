"""A run folder from a stranger: what must not be in a file is refused by a command that reads it, and the file named.

`tests/test_fuzz.py` damages runs by chance.
"""

from __future__ import annotations

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

CHECKPOINT = "checkpoints/step-00000040"
STATE = f"{CHECKPOINT}/state.json"
COMMANDS = {
    "train": "train {recipe} --shards {set} --run {run} --set train.steps=42",
    "sample": "sample {run} --prompt the --max-new-tokens 2",
    "compare": "compare {run}",
}
Fault = Callable[[Path], object]


def write(content: bytes) -> Fault:
    return lambda file: file.write_bytes(content)


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


def put_instead(make: Fault) -> Fault:
    return lambda file: (shutil.rmtree(file) if file.is_dir() else file.unlink(), make(file))


NAN = of_first(lambda tensor: tensor.index_fill(0, torch.tensor(0), torch.nan))
DEEP = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("file", "command", "faults"),
    [
        ("run.json", "compare", [put_instead(os.mkfifo), write(DEEP), put(shards=""), put(start=1)]),
        ("recipe.json", "compare", [put_instead(os.mkfifo), write(b'{"a": "\xff\xfe"}'), write(b"[]")]),
        ("metrics.jsonl", "compare", [put_instead(lambda file: file.symlink_to("/dev/zero"))]),
        ("metrics.jsonl", "train", [lambda file: os.truncate(file, 64 << 30), write(DEEP), write(b'{"step": -1}\n')]),
        ("checkpoints", "sample", [put_instead(write(b""))]),
        (f"{CHECKPOINT}/checksums.json", "sample", [write(b'{"model.safetensors": 7}'), write(b"{}")]),
        (
            STATE,
            "train",
            [put(format_version=[1]), put(recipe=[]), write(DEEP), put(bos_id=1 << 99)],
        ),
        (
            STATE,
            "sample",
            [
                *(put(vocab_size=size) for size in (300, 321, 1 << 24, 1 << 40)),
                *(put(eos_id=5), put(eos_id=1 << 40), put(step=-1), put(step=41), put(tokenizer_sha256="0")),
            ],
        ),
        (
            f"{CHECKPOINT}/model.safetensors",
            "sample",
            [
                *(NAN, of_first(torch.Tensor.double), of_first(lambda tensor: tensor[:3]), write(b"\x01\x02\x03")),
                of_first(torch.zeros_like, name="other"),
            ],
        ),
        (f"{CHECKPOINT}/optimizer.safetensors", "train", [NAN, of_first(torch.zeros_like, name="other")]),
        (
            f"{CHECKPOINT}/rng.safetensors",
            "train",
            [of_first(lambda tensor: tensor[:0]), of_first(torch.Tensor.double)],
        ),
    ],
)
def test_a_file_of_a_strangers_run_is_refused_by_name(
    trainer, shard_set, recipe_file, run, tmp_path, file, command, faults
):
    for number, fault in enumerate(faults):
        copy = shutil.copytree(run, tmp_path / str(number), ignore=shutil.ignore_patterns("step-00000020"))
        fault(copy / file)
        if Path(file).parent == Path(CHECKPOINT) and "checksums" not in file:
            (copy / CHECKPOINT / "checksums.json").write_text(json.dumps(hash_files(copy / CHECKPOINT)))  # they fit
        done = trainer.run(*COMMANDS[command].format(run=copy, set=shard_set.path, recipe=recipe_file).split())
        assert done.returncode in (1, 2), (number, done.stderr)
        assert str(copy) in done.stderr.partition("error: ")[2]
