"""The command `eval`: scores after training equal those during it; the documents that are hardest."""

import math
import random
import re
from pathlib import Path

import numpy as np
import pytest

from shards import ShardSet
from tests.support.recipes import to_toml
from tests.support.shard_sets import Document
from tests.trainer.conftest import TEXTS, encode, make_text, train_tokenizer, write_documents
from trainer.metrics import read_metrics

BROKEN = "Ã¢Â€Â™ Ã‚Â» ÃƒÂ© Ã¢Â€Âœ Ã‚Â§ Ã„Â— Ã…Âž " * 8


@pytest.fixture(scope="module")
def broken_set(tmp_path_factory) -> ShardSet:
    """A set whose validation split has a few documents of a corrupted source: text that was decoded twice."""
    tokenizer, rng, texts = train_tokenizer(), random.Random(4), dict[str, list[tuple[str, str]]]()
    texts["train"] = [("prose", make_text("prose", rng)) for _ in range(60)]
    texts["val"] = [("prose", make_text("prose", rng)) for _ in range(12)]
    texts["val"][5:5] = [("code", f"{BROKEN}{number}") for number in range(3)]
    shards = {
        split: [[encode(tokenizer, text, source, f"{source}.jsonl", row) for row, (source, text) in enumerate(rows)]]
        for split, rows in texts.items()
    }
    return write_documents(tmp_path_factory.mktemp("broken") / "set", shards, tokenizer)


@pytest.fixture(scope="module")
def trained(train, broken_set, text_file, item_file, tmp_path_factory) -> Path:
    """A run of 16 steps with an eval set and an eval task; checkpoints of steps 8 and 16. Read only."""
    run = tmp_path_factory.mktemp("runs") / "run"
    sets = [{"name": "web", "paths": [str(text_file)], "text": "body", "max_tokens": 3000}]
    tasks = [{"name": "own", "files": [str(item_file)], "prompt": "{question}"}]
    shots = {"name": "shots", "num_fewshot": 1, "fewshot_files": [str(item_file)], "limit": 9}
    scored = (f"eval.sets={to_toml(sets)}", f"eval.tasks={to_toml([*tasks, tasks[0] | shots])}")
    every = ("eval.every_steps=8", "checkpoint.every_steps=8", "eval.max_tokens=9000")
    more = ("model.max_position_embeddings=128", "train.steps=16")
    done = train(run, *scored, *every, *more, shards=broken_set)
    assert f"eval task shots: 9 items of {item_file}" in done.stderr
    assert "step 16  web_bpb " in done.stderr
    assert f"\nown: 40 items of {item_file}, not known whether they are in the training text\n" in done.stdout
    assert "own acc " not in done.stdout, "it was printed"
    return run


@pytest.mark.parametrize("step", [8, 16])
def test_scores_after_training_are_those_of_training(trainer, trained, step):
    found = evaluate(trainer, trained, "--checkpoint", trained / f"checkpoints/step-{step:08d}")
    logged = {line["step"]: line for line in read_metrics(trained) if "scores" in line}
    assert list(logged) == [8, 16]
    assert found["step"] == step
    for key in ("val_loss", "val_bits_per_byte", "val_loss_by_source", "scores", "score_notes"):
        assert found[key] == logged[step][key], key
    names = [f"{name}_{kind}" for name in ("own", "shots") for kind in ("acc", "acc_norm", "bpb")]
    assert list(found["scores"]) == ["web_bpb", *names]
    accuracy, stderr = found["scores"]["own_acc"].values()
    assert stderr == pytest.approx(math.sqrt(accuracy * (1 - accuracy) / 39))
    assert logged[16]["scores"]["own_bpb"]["value"] < logged[8]["scores"]["own_bpb"]["value"]


def evaluate(trainer, *arguments: object) -> dict:
    return trainer.run("eval", *arguments, "--json", expect=0).json


def test_a_corrupted_source_is_at_the_top_of_the_worst(trainer, trained):
    found = evaluate(trainer, trained, "--worst", 30)["worst"]
    assert len(found) == 30
    assert [(one["set"], one["source"], one["unit"]) for one in found[:3]] == [("val", "code", "code.jsonl")] * 3
    assert sorted(one["row"] for one in found[:3]) == [5, 6, 7]
    assert all(one["excerpt"].startswith(BROKEN[:20]) for one in found[:3])
    bits = [one["bits_per_byte"] for one in found]
    assert bits == sorted(bits, reverse=True)
    assert {one["set"] for one in found} == {"val", "web"}
    shown = trainer.run("eval", trained, "--worst", 1)
    assert "bits per byte (" in shown.stdout
    assert BROKEN[:20] in shown.stdout


def test_eval_sets_and_tasks_are_shown_together_and_a_set_may_be_named_as_a_split(
    trainer, trained, shard_set, item_file, tmp_path
):
    recipe = tmp_path / "both.toml"
    sets = [{"name": "val", "shards": str(shard_set.path), "max_tokens": 500}]
    tasks = [{"name": "own", "files": [str(item_file)]}]
    recipe.write_text(f"[eval]\nsets = {to_toml(sets)}\ntasks = {to_toml(tasks)}\n")
    shown = trainer.run("eval", trained, "--recipe", recipe, "--worst", 100, expect=0)
    assert re.search(r"^val: \d+ documents? scored \(", shown.stdout, re.MULTILINE)
    assert {"own_acc", "own_acc_norm", "own_bpb", "val_bpb"} <= set(shown.stdout.split())
    assert "code.jsonl" in shown.stdout  # the validation split is there, too
    assert shown.stdout.count("# val: ") > 15


def test_a_spike_names_the_document_that_it_comes_from(train, tmp_path):
    tokenizer, rng = train_tokenizer(), random.Random(6)
    texts = [make_text("prose", rng) for _ in range(120)]
    documents = [encode(tokenizer, text, "prose", "crawl.jsonl", row) for row, text in enumerate(texts)]
    # Bytes that no other document has.
    rare = sorted(set(range(256)) - {token for text in TEXTS.values() for token in tokenizer.encode(text).ids})
    ids = np.array([*rng.choices(rare, k=900), documents[0].tokens[-1]], "<u2")
    documents[77] = Document(tokenizer.decode(ids[:-1]).encode(), ids, "prose", "crawl.jsonl", 77)
    shard_set = write_documents(tmp_path / "set", {"train": [documents], "val": [[documents[0]]]}, tokenizer)
    rare = ("train.smoke_steps=0", "eval.every_steps=999")
    changes = ("train.global_batch=4", "train.steps=200", "train.spike_nats=1", *rare)
    done = train(tmp_path / "run", *changes, shards=shard_set, status=1)
    lines = done.stderr.splitlines()
    spike = next(index for index, line in enumerate(lines) if "a spike over" in line)
    assert "The documents that raise its loss most" in lines[spike]
    assert "prose crawl.jsonl row 77 (train-00000, row" in lines[spike + 1]
    assert float(lines[spike + 1].split()[0]) > 5
    assert all("row 77 " not in line for line in lines[spike + 3 :])
