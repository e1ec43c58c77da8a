"""A small whole shard set of two sources, a train recipe for it, and the command."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from shards import ShardSet, open_set
from shards.format.manifest import Split
from shards.terminal.reporter import Note, no_note
from tests.support import shard_sets
from tests.support.ablations import draw_words
from tests.support.builds import Done, call_here
from tests.support.recipes import overrides, write_lines
from tests.support.shard_sets import Document, Plan, write_set
from trainer.model.decoder import build_model
from trainer.model.generate import TrainedModel
from trainer.recipe import ModelConfig, TrainConfig, load_train_recipe
from trainer.session import Session, open_session
from trainer.train.step import fetch_losses, open_training_windows, take_step
from trainer.weights.trained_model import load_model

WEIGHTS = {"prose": 3.0, "code": 1.0}
TEXTS = {
    "prose": "the mill turns a stream of words into flour and naïve café bread while the river sings 中文 🙂",
    "code": "def grind ( grain ) : return [ stone . press ( g ) for g in grain if g ]",
}

RECIPE = """
name = "tiny"
[model]
kind = "llama"
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
intermediate_size = 64
max_position_embeddings = 64
tie_word_embeddings = true
[train]
seq_len = 32
global_batch = 8
micro_batch = 2
steps = 24
precision = "fp32"
log_every = 1
[optimizer]
lr = 1e-2
[schedule]
warmup_steps = 2
[eval]
every_steps = 4
max_tokens = 1_000
[checkpoint]
every_steps = 3
keep_last = 2
"""


def make_config(kind: str = "llama", **changes: Any) -> ModelConfig:
    """Return the settings of a tiny model."""
    settings: dict[str, Any] = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2 if kind == "llama" else 4,
        "intermediate_size": 80,
        "max_position_embeddings": 48,
    }
    return ModelConfig(kind=kind, **(settings | changes))


def make_text(source: str, rng: random.Random) -> str:
    """Return a document: words that mostly follow one another, and a number."""
    return f"{draw_words(rng, TEXTS[source], 5, 120)} {rng.random()}"


def train_tokenizer() -> Tokenizer:
    """Train a byte-level BPE of 320 entries, the last two of them special."""
    rng = random.Random(3)
    return shard_sets.train_tokenizer([make_text(source, rng) for source in WEIGHTS for _ in range(200)], 318)


def encode(tokenizer: Tokenizer, text: str, source: str, unit: str, row: int) -> Document:
    """Return a document of a set."""
    ids = [*tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id("<|endoftext|>")]
    return Document(text.encode(), np.array(ids, "<u2"), source, unit, row)


def write_documents(folder: Path, shards: dict[str, list[list[Document]]], tokenizer: Tokenizer) -> ShardSet:
    """Write documents as a shard set, and open it."""
    eos_id, names = tokenizer.token_to_id("<|endoftext|>"), dict.fromkeys(WEIGHTS, 1)
    write_set(folder, Plan(shards, tokenizer.to_str(), eos_id, 320, WEIGHTS, '{"name": "tiny"}', names))
    return open_set(folder)


def build_set(folder: Path, *, shard_tokens: dict[Split, list[int]], seed: int = 11) -> ShardSet:
    """Write a shard set whose shards hold about so many tokens, 3 to 1 from two sources, cut at documents."""
    tokenizer = train_tokenizer()
    rng = random.Random(seed)
    shards: dict[str, list[list[Document]]] = {}
    row = 0
    for split, sizes in shard_tokens.items():
        taken, shards[split] = dict.fromkeys(WEIGHTS, 0), []
        for index, _ in enumerate(sizes):
            documents: list[Document] = []
            for source, weight in WEIGHTS.items():
                target = sum(sizes[: index + 1]) * weight / sum(WEIGHTS.values())
                while taken[source] < target:
                    document = encode(tokenizer, make_text(source, rng), source, "unit", row)
                    size = len(document.tokens)
                    if taken[source] + size - target > target - taken[source]:
                        break
                    documents.append(document)
                    taken[source] += size
                    row += 1
            rng.shuffle(documents)
            shards[split].append(documents)
    return write_documents(folder, shards, tokenizer)


@pytest.fixture(scope="session")
def shard_set(tmp_path_factory) -> ShardSet:
    """A whole set of three train shards and two val shards. Read only."""
    folder = tmp_path_factory.mktemp("sets") / "tiny"
    return build_set(folder, shard_tokens={"train": [3_000, 3_000, 3_000], "val": [1_500, 1_500]})


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory) -> Path:
    """A train recipe of twelve steps: validation every four, checkpoints every three. Read only."""
    path = tmp_path_factory.mktemp("recipes") / "tiny.toml"
    path.write_text(RECIPE)
    return path


Train = Callable[..., Done]


class Trainer:
    """The program on the CPU with one thread: tests compare bits."""

    run = staticmethod(call_here)
    """In this process, which is quicker than importing torch in another."""

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start the command as a process of its own, with warnings as errors."""
        command = [sys.executable, "-W", "error", "-m", "tokenmill", *map(str, arguments)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Run tests on the CPU with one thread, as their processes do."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_gpu_and_an_empty_cache(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture(scope="session")
def trainer() -> Trainer:
    """Return the command."""
    return Trainer()


@pytest.fixture(scope="session")
def train(trainer: Trainer, shard_set: ShardSet, recipe_file: Path) -> Train:
    """Return the function that trains into a run folder with overrides, and ends with a status."""

    def train_with(
        run: Path,
        *changes: str,
        more: tuple[object, ...] = (),
        shards: ShardSet | Path | str = shard_set,
        status: int = 0,
    ) -> Done:
        place = shards.path if isinstance(shards, ShardSet) else shards
        given = ("train", recipe_file, "--shards", place, "--run", run, *overrides(*changes), *more)
        return trainer.run(*given, expect=status)

    return train_with


def take_steps(session: Session, steps: int = 1) -> list[dict[str, Any]]:
    """Take steps of a session's training; return what each logs."""
    stop = session.windows + steps * session.recipe.train.global_batch
    with open_training_windows(session.shard_set, session.recipe.train, stop=stop) as windows:
        taken = [take_step(session, windows) for _ in range(steps)]
    fetch_losses(session, taken)
    return taken


def read_lines(run: Path) -> list[dict[str, Any]]:
    """Read a run's metrics without timings."""
    timings = ("ranks", "tokens_per_s", "data_wait_ms", "mfu", "seconds", "usd")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.get("phase", {}).pop("hours", None)
    return [{key: value for key, value in line.items() if key not in timings} for line in lines]


def read_steps(run: Path) -> list[dict[str, Any]]:
    """Read the metrics of a run's steps."""
    return [line for line in read_lines(run) if "loss" in line]


def losses_of(run: Path) -> list[float]:
    """Return the losses of a run's steps in nats."""
    return [line["loss"] for line in read_steps(run)]


@pytest.fixture(scope="session")
def texts(shard_set: ShardSet) -> list[str]:
    """Thirty texts, the last ten of which the training set holds."""
    rng, shard = random.Random(8), shard_set.splits["train"][1]
    rows = [row for row in shard.documents().to_pylist() if row["source"] == "prose"][:10]
    held = [shard.read(row["start"], row["start"] + row["length"]) for row in rows]
    return [
        *(make_text("prose", rng) for _ in range(20)),
        *(shard_set.vocabulary.decode_document(ids[:-1]).decode() for ids in held),
    ]


@pytest.fixture(scope="session")
def text_file(texts: list[str], tmp_path_factory) -> Path:
    """The texts as JSON lines."""
    return write_lines(tmp_path_factory.mktemp("texts") / "web.jsonl", [{"body": text} for text in texts])


@pytest.fixture(scope="session")
def item_file(tmp_path_factory) -> Path:
    """Forty items of an eval task: which words go on as the documents of `shard_set` do. Read only."""
    rng = random.Random(17)
    rows: list[dict[str, Any]] = []
    words = TEXTS["prose"].split()
    for _ in range(40):
        place = rng.randrange(len(words) - 6)
        right = " ".join(words[place + 3 : place + 6])
        choices = [right, *(" ".join(rng.sample(words, 3)) for _ in range(2))]
        rng.shuffle(choices)
        question = " ".join(words[place : place + 3])
        rows.append({"question": question, "choices": choices, "answer": choices.index(right)})
    return write_lines(tmp_path_factory.mktemp("items") / "items.jsonl", rows)


@pytest.fixture(scope="session")
def run(train: Train, tmp_path_factory) -> Path:
    """A run of forty steps, with checkpoints of steps 20 and 40. Read only."""
    path = tmp_path_factory.mktemp("runs") / "run"
    done = train(path, "train.steps=40", "checkpoint.every_steps=20", "eval.every_steps=40")
    assert "complete after 40 steps" in done.stdout
    return path


@pytest.fixture(scope="session")
def loaded(run: Path) -> TrainedModel:
    """The model of the run. Read only."""
    return load_model(run, print)


@pytest.fixture(scope="session")
def evaluated(shard_set: ShardSet) -> TrainedModel:
    """A model whose losses differ much between tokens, as an untrained one's would not."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
    more = {"num_hidden_layers": 1, "max_position_embeddings": 64, "tie_word_embeddings": True}
    model = build_model(make_config(**sizes, **more), 320, seed=3).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(30)
    assert shard_set.path is not None
    content = (shard_set.path / shard_set.manifest.tokenizer.file).read_bytes()
    train = TrainConfig(seq_len=24, global_batch=4, micro_batch=4, steps=1, precision="fp32")
    return TrainedModel(model, train, content, shard_set.eos_id, None, 1, shard_set)


@pytest.fixture
def open_run(shard_set: ShardSet, recipe_file: Path, tmp_path: Path) -> Callable[..., Session]:
    """Return a function that opens a session with overrides."""

    def open_with(*overrides: str, name: str = "run", shards: ShardSet = shard_set, say: Note = no_note) -> Session:
        recipe = load_train_recipe(recipe_file, list(overrides))
        assert shards.path is not None
        return open_session(recipe, shards.path, tmp_path / name, say=say)

    return open_with
