"""The command `eval`: scores after training equal those during it; exported models; the documents that are hardest."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from shards import ShardSet, open_set
from tests.support.recipes import overrides, to_toml
from tests.support.shard_sets import Document, Plan, write_set
from tests.trainer.conftest import TEXTS, WEIGHTS, make_text, train_tokenizer
from trainer.commands.export import describe_export_files, export_weights, import_weights, read_exported_config
from trainer.model.decoder import build_model
from trainer.recipe import ModelConfig

BROKEN = "Ã¢Â€Â™ Ã‚Â» ÃƒÂ© Ã¢Â€Âœ Ã‚Â§ Ã„Â— Ã…Âž " * 8


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    """A cache of eval sets for these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def broken_set(tmp_path_factory) -> ShardSet:
    """A set whose validation split has a few documents of a corrupted source: text that was decoded twice."""
    tokenizer, rng, texts = train_tokenizer(), random.Random(4), dict[str, list[tuple[str, str]]]()
    eos_id = tokenizer.token_to_id("<|endoftext|>")
    texts["train"] = [("prose", make_text("prose", rng)) for _ in range(60)]
    texts["val"] = [("prose", make_text("prose", rng)) for _ in range(12)]
    texts["val"][5:5] = [("code", f"{BROKEN}{number}") for number in range(3)]

    def encode(split: str) -> list[Document]:
        rows = enumerate(texts[split])
        return [
            Document(
                text.encode(), np.array([*tokenizer.encode(text).ids, eos_id], "<u2"), source, f"{source}.jsonl", row
            )
            for row, (source, text) in rows
        ]

    shards = {split: [encode(split)] for split in texts}
    folder = tmp_path_factory.mktemp("broken") / "set"
    names = dict.fromkeys(WEIGHTS, 1)
    write_set(folder, Plan(shards, tokenizer.to_str(), eos_id, 320, WEIGHTS, '{"name": "tiny"}', names))
    return open_set(folder)


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def trained(request, trainer, broken_set, recipe_file, text_file, tmp_path_factory) -> Path:
    """A run of 16 steps with an eval set; checkpoints of steps 8 and 16. Read only."""
    run = tmp_path_factory.mktemp("runs") / request.param
    sets = [{"name": "web", "paths": [str(text_file)], "text": "body", "max_tokens": 3000}]
    changes = [f"model.kind='{request.param}'", f"eval.sets={to_toml(sets)}", "train.steps=16", "eval.every_steps=8"]
    changes += [
        "checkpoint.every_steps=8",
        "model.num_key_value_heads=4",
        "model.intermediate_size=96",
        "eval.max_tokens=9000",
    ]
    done = trainer.run("train", recipe_file, "--shards", broken_set.path, "--run", run, *overrides(*changes))
    assert done.returncode == 0, done.stderr
    return run


def read_scores(run: Path) -> dict[int, dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if "scores" in line}


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"use_qk_norm": True},
        {"hidden_act": "relu2"},
        {"use_qk_norm": True, "hidden_act": "relu2"},
        {"kind": "gpt2"},
    ],
)
def test_an_exported_config_and_its_weights_are_read_back(parts, tmp_path):
    keys = {
        "kind": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    config = ModelConfig.model_validate({**keys, **parts})
    state = build_model(config, 320, seed=5).state_dict()
    content = describe_export_files(config, 320, 0, {"<|endoftext|>": 0}, "float32")["config.json"]
    assert read_exported_config(content, tmp_path).model_dump(exclude={"vocab_size"}) == config.model_dump(
        exclude={"vocab_size"}
    )
    found = import_weights(export_weights(dict(state), config, 320), config)
    assert found.keys() == state.keys()
    assert all(
        torch.equal(found[name], tensor[:320] if "embed_tokens" in name else tensor)
        for name, tensor in state.items()
        if "lm_head" not in name
    )


def evaluate(trainer, *arguments: object) -> dict:
    done = trainer.run("eval", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("step", [8, 16])
def test_scores_after_training_are_those_of_training(trainer, trained, step):
    found = evaluate(trainer, trained, "--step", step)
    logged = read_scores(trained)[step]
    assert found["step"] == step
    for key in ("val_loss", "val_bits_per_byte", "val_loss_by_source", "scores", "score_notes"):
        assert found[key] == logged[key], key


def test_an_exported_model_has_the_scores_of_its_run(trainer, trained, broken_set, tmp_path):
    out = tmp_path / "exported"
    assert trainer.run("export-model", trained, "--to", "hf", "--out", out).returncode == 0
    recipe = tmp_path / "recipe.toml"
    tables = json.loads((trained / "recipe.json").read_text())
    sets = [{key: value for key, value in table.items() if value is not None} for table in tables["eval"]["sets"]]
    recipe.write_text(f"[train]\nseq_len = 32\n[eval]\nsets = {to_toml(sets)}\n")
    changes = overrides("train.precision='fp32'", "eval.max_tokens=9000")
    found = evaluate(trainer, out, "--recipe", recipe, "--shards", broken_set.path, *changes)
    logged = read_scores(trained)[16]
    assert found["step"] is None
    assert found["val_loss"] == pytest.approx(logged["val_loss"], rel=1e-6)
    assert found["scores"]["web_bpb"] == pytest.approx(logged["scores"]["web_bpb"], rel=1e-6)
    alone = evaluate(trainer, out, "--recipe", recipe, *changes)
    assert "val_loss" not in alone
    assert alone["score_notes"]["web"]["held_by_training"] is None


def test_a_corrupted_source_is_at_the_top_of_the_worst(trainer, trained):
    found = evaluate(trainer, trained, "--worst", 5)["worst"]
    assert len(found) == 5
    assert [(one["set"], one["source"], one["unit"]) for one in found[:3]] == [("val", "code", "code.jsonl")] * 3
    assert sorted(one["row"] for one in found[:3]) == [5, 6, 7]
    assert all(one["excerpt"].startswith(BROKEN[:20]) for one in found[:3])
    bits = [one["bits_per_byte"] for one in found]
    assert bits == sorted(bits, reverse=True)
    assert {one["set"] for one in evaluate(trainer, trained, "--worst", 40)["worst"]} == {"val", "web"}
    shown = trainer.run("eval", trained, "--worst", 1)
    assert "bits a byte of" in shown.stdout
    assert BROKEN[:20] in shown.stdout


def test_eval_sets_and_tasks_are_shown_together_and_a_set_may_be_named_as_a_split(
    trainer, trained, shard_set, tmp_path
):
    items = tmp_path / "items.jsonl"
    rows = [{"question": "the mill", "choices": ["holds tokens", "is"], "answer": number % 2} for number in range(6)]
    items.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "both.toml"
    sets = [{"name": "val", "shards": str(shard_set.path), "max_tokens": 500}]
    tasks = [{"name": "own", "files": [str(items)], "prompt": "{question}"}]
    recipe.write_text(f"[eval]\nsets = {to_toml(sets)}\ntasks = {to_toml(tasks)}\n")
    shown = trainer.run("eval", trained, "--recipe", recipe, "--worst", 100)
    assert (shown.returncode, shown.stderr.count("Traceback")) == (0, 0)
    assert re.search(r"^val: \d+ documents? of ", shown.stdout, re.MULTILINE)
    why = "the build of the training set searched for no eval task"
    assert f"\nown: 6 items of {items}, held by training: not known, because {why}\n" in shown.stdout
    assert {"own_acc", "own_acc_norm", "own_bpb", "val_bpb"} <= set(shown.stdout.split())
    assert "code.jsonl" in shown.stdout  # the validation split is there, too
    assert shown.stdout.count("# val: ") > 15


def test_what_is_scored_can_be_another_recipe(trainer, trained, shard_set, tmp_path):
    recipe = tmp_path / "other.toml"
    recipe.write_text(f'[[eval.sets]]\nname = "other"\nshards = "{shard_set.path}"\nmax_tokens = 500\n')
    found = evaluate(trainer, trained, "--recipe", recipe, "--set", "eval.sets.other.max_tokens=300")
    assert list(found["scores"]) == ["other_bpb"]
    assert found["score_notes"]["other"]["tokens"] <= 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", 3], "has no checkpoint of step 3; it has: 8, 16"),
        (["--set", "eval.sets.web.txt=1"], "eval.sets.web.txt: unknown key"),
        (["--set", "eval.sets.web.name=''"], "eval.sets"),
        (["--shards", "SET"], "the run was trained on"),
        (["--recipe", "WRONG"], "train.seq_len: expected a whole number; got 'x'"),
        (["--recipe", "MISSPELT"], "evals: unknown key. Did you mean 'eval'?"),
    ],
)
def test_what_cannot_be_scored_is_refused(trainer, trained, shard_set, tmp_path, arguments, message):
    (tmp_path / "misspelt.toml").write_text("[evals]\nmax_tokens = 5\n")
    (tmp_path / "wrong.toml").write_text("[train]\nseq_len = 'x'\n")
    places = {"SET": shard_set.path, "WRONG": tmp_path / "wrong.toml", "MISSPELT": tmp_path / "misspelt.toml"}
    given = [places.get(part, part) for part in arguments]
    done = trainer.run("eval", trained, *given)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_model_without_anything_to_score_is_refused(trainer, trained, tmp_path):
    out = tmp_path / "exported"
    assert trainer.run("export-model", trained, "--to", "hf", "--out", out).returncode == 0
    done = trainer.run("eval", out)
    assert (done.returncode, "there is nothing to score" in done.stderr) == (2, True)
    (out / "config.json").write_text('{"model_type": "bert"}')
    assert "expected a model that export-model wrote" in trainer.run("eval", out).stderr
    assert "no checkpoints" in trainer.run("eval", tmp_path).stderr


def test_a_spike_names_the_document_that_it_comes_from(trainer, recipe_file, tmp_path):
    tokenizer, rng = train_tokenizer(), random.Random(6)
    eos_id = tokenizer.token_to_id("<|endoftext|>")
    documents = []
    for row in range(120):
        ids = tokenizer.encode(make_text("prose", rng)).ids
        if row == 77:  # bytes that no other document has
            rare = sorted(set(range(256)) - {token for text in TEXTS.values() for token in tokenizer.encode(text).ids})
            ids = rng.choices(rare, k=900)
        text = tokenizer.decode(ids).encode()
        documents.append(Document(text, np.array([*ids, eos_id], "<u2"), "prose", "crawl.jsonl", row))
    shards = {"train": [documents], "val": [[documents[0]]]}
    names = dict.fromkeys(WEIGHTS, 1)
    write_set(tmp_path / "set", Plan(shards, tokenizer.to_str(), eos_id, 320, WEIGHTS, '{"name": "tiny"}', names))
    changes = overrides(
        "train.global_batch=4", "train.steps=200", "train.spike_nats=1", "train.smoke_steps=0", "eval.every_steps=999"
    )
    done = trainer.run("train", recipe_file, "--shards", tmp_path / "set", "--run", tmp_path / "run", *changes)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    spike = next(index for index, line in enumerate(lines) if "a spike over" in line)
    assert "The documents that raise its loss most" in lines[spike]
    assert "prose crawl.jsonl row 77 (train-00000, row" in lines[spike + 1]
    assert float(lines[spike + 1].split()[0]) > 5
    assert all("row 77 " not in line for line in lines[spike + 3 :])
