"""Ablations that run in seconds: two sources of made-up text, held-out text, a model of one small layer."""

import random
from pathlib import Path
from typing import Any

from pipeline.engine.executors import LocalExecutor
from pipeline.engine.stage_progress import Progress
from shards.config import load_settings
from tests.support.builds import Done, call_here
from tests.support.recipes import source, to_toml, write_lines, write_recipe
from tokenmill.experiments.ablation import Ablation
from tokenmill.experiments.arms import Experiment
from tokenmill.experiments.schema import AblationConfig

TEXTS = {
    "stories": "the mill turns a stream of words into flour while the river sings and nobody sleeps",
    "sums": "one and two is three and four is seven and eight is fifteen so it is",
}
TRAIN: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "kind": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "tie_word_embeddings": True,
    },
    "train": {"seq_len": 32, "global_batch": 4, "micro_batch": 4, "steps": 12, "precision": "fp32", "device": "cpu"},
    "optimizer": {"lr": 1e-2},
    "eval": {"every_steps": 4, "max_tokens": 500, "sets": [{"name": "held_out", "paths": ["held-out.jsonl"]}]},
    "checkpoint": {"every_steps": 2},
    "cost": {"gpu_usd_per_hour": 3.6},
}


def draw_words(draw: random.Random, text: str, least: int, most: int) -> str:
    """Return words of a text, each likely followed by the one after it there."""
    words, picked = text.split(), list[str]()
    place = draw.randrange(len(words))
    for _ in range(draw.randint(least, most)):
        place = (place + 1) % len(words) if draw.random() < 0.8 else draw.randrange(len(words))
        picked.append(words[place])
    return " ".join(picked)


def write_texts(path: Path, name: str, *, documents: int, seed: int) -> Path:
    """Write documents of a source as JSON lines."""
    draw = random.Random(f"{name} {seed}")
    texts = (f"{draw_words(draw, TEXTS[name], 20, 60)} {draw.random():.6f}" for _ in range(documents))
    return write_lines(path, ({"text": text} for text in texts))


def write_ablation(folder: Path, *arms: dict[str, Any], train: dict[str, Any] | None = None, **keys: Any) -> Path:
    """Write an ablation, its recipes and its text to a folder, and return its path.

    Args:
        folder: where.
        arms: the tables of the arms.
        train: tables that replace those of `TRAIN`.
        keys: further keys of the ablation, or others than the two seeds 1 and 2.
    """
    for name in TEXTS:
        if not (folder / f"{name}.jsonl").exists():
            write_texts(folder / f"{name}.jsonl", name, documents=200, seed=1)
    if not (folder / "held-out.jsonl").exists():
        write_texts(folder / "held-out.jsonl", "stories", documents=20, seed=2)
    sources = [source(name, f"{name}.jsonl", weight=weight) for name, weight in (("stories", 3), ("sums", 1))]
    write_recipe(folder / "data.toml", *sources, split={"val_tokens": 500}, shards={"tokens": 4000})
    write_toml(folder / "train.toml", TRAIN | (train or {}))
    given = {"arms": list(arms)} if arms else {}
    return write_toml(
        folder / "ablation.toml",
        {"name": "test", "data": "data.toml", "train": "train.toml", "seeds": [1, 2]} | keys | given,
    )


def write_toml(path: Path, tables: dict[str, Any]) -> Path:
    """Write keys as TOML, each in a line; return the path."""
    path.write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in tables.items()))
    return path


def open_ablation(file: Path, out: Path, *, quiet: bool = True) -> Ablation:
    """Return the ablation of a file in a folder."""
    experiment = Experiment(file, out, LocalExecutor(1), Progress(quiet=quiet), allow_code=False)
    return Ablation(experiment, load_settings(AblationConfig, file))


def call_experiment(name: str, file: Path, out: Path, *options: str, expect: int | None = None) -> Done:
    """Run `tokenmill ablate`, or another experiment, in this process; its trainings are processes of their own."""
    return call_here(name, file, "--out", out, "--workers", "1", *options, expect=expect)


def write_search(folder: Path, **keys: Any) -> Path:
    """Write a mix search with some keys, its recipes and its text to a folder, and return its path."""
    write_ablation(folder)
    tables: dict[str, Any] = {
        "name": "test",
        "data": "data.toml",
        "train": "train.toml",
        "tokens": 1536,
        "target_tokens": 15360,
        "seeds": [1],
        "final_seeds": [1, 2],
        "bounds": {"sums": [0.0, 0.98]},
        "objective": {"held_out_bpb": 1.0},
        "arms": 6,
        "rounds": 2,
        "resamples": 50,
    }
    return write_toml(folder / "search.toml", tables | keys)
