"""Runs that begin with the weights of a run, or of a folder of transformers; such folders scored and sampled."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from shards import ShardSet, open_set
from shards.torch import TokenWindows
from tests.support.builds import read_json
from tests.support.recipes import overrides, write_lines
from tests.support.shard_sets import Plan, write_set
from tests.trainer.conftest import WEIGHTS, encode, losses_of, make_text, train_tokenizer
from trainer.model.decoder import LanguageModel
from trainer.weights.given_weights import begin_from, open_weights
from trainer.weights.trained_model import load_model

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
Make = Callable[..., Path]


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory, shard_set: ShardSet) -> Make:
    """Return what writes a folder of transformers with random weights and the tokenizer of `shard_set`."""

    def make(kind: str = "llama", **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("hf") / kind
        settings = (
            SIZES | {"vocab_size": 320, "eos_token_id": 318, "tie_word_embeddings": True, "head_dim": 16} | changes
        )
        torch.manual_seed(4)
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **settings))
        model.save_pretrained(folder, max_shard_size=changes.get("max_shard_size", "1GB"))
        (folder / "tokenizer.json").write_bytes(shard_set.tokenizer_json)
        return folder

    return make


@pytest.fixture(scope="session")
def recipe_without_model(recipe_file: Path, tmp_path_factory) -> Path:
    """The train recipe without [model], at a constant rate."""
    head, _, rest = recipe_file.read_text().partition("[model]")
    path = tmp_path_factory.mktemp("recipes") / "chat.toml"
    path.write_text(head + "[train]" + rest.partition("[train]")[2].replace("warmup_steps = 2", "min_lr_ratio = 1.0"))
    return path


@pytest.fixture(scope="session")
def longer_set(tmp_path_factory) -> ShardSet:
    """Another set: its tokenizer has two special tokens more, which its documents have not."""
    tokenizer, folder = train_tokenizer(), tmp_path_factory.mktemp("sets") / "longer"
    tokenizer.add_special_tokens(["<|user|>", "<|assistant|>"])
    rng = random.Random(5)
    documents = [
        encode(tokenizer, make_text(source, rng), source, "unit", row) for row in range(60) for source in WEIGHTS
    ]
    shards = {"train": [documents[:100]], "val": [documents[100:]]}
    write_set(
        folder, Plan(shards, tokenizer.to_str(), 318, 322, WEIGHTS, '{"name": "tiny"}', dict.fromkeys(WEIGHTS, 1))
    )
    return open_set(folder)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False, "max_shard_size": "40KB"}),
        ("qwen3", {"dtype": "bfloat16"}),
    ],
    ids=["llama", "llama-untied-in-parts", "qwen3-bf16"],
)
def test_a_folder_computes_what_transformers_does(
    kind, changes, make_folder, trainer, recipe_without_model, shard_set, tmp_path
):
    folder = make_folder(kind, **changes)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours, ids = load_model(folder), torch.randint(0, 320, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours.model(ids), theirs(ids).logits, rtol=0, atol=1e-5)
    assert (ours.eos_id, ours.bos_id, ours.step) == (318, None, 0)

    # One step, and a plain loop's.
    run, asked = tmp_path / "run", overrides("train.steps=1", "eval.every_steps=1")
    trainer.run(
        "train", recipe_without_model, "--shards", shard_set.path, "--run", run, "--weights", folder, *asked, expect=0
    )
    batch = TokenWindows(shard_set, seq_len=32, seed=1337, samples=8).read(range(8))
    decay = [weight for weight in theirs.parameters() if weight.ndim == 2]
    others = {"params": [weight for weight in theirs.parameters() if weight.ndim == 1], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([{"params": decay}, others], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    logits = theirs(batch["input_ids"]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    optimizer.step()
    trained = load_model(run)
    with torch.no_grad():
        torch.testing.assert_close(trained.model(ids), theirs(ids).logits, rtol=0, atol=1e-5)

    # Exported, and read again.
    trainer.run("export-model", run, "--to", "hf", "--out", tmp_path / "hf", expect=0)
    again = load_model(tmp_path / "hf")
    with torch.no_grad():
        assert torch.equal(again.model(ids), trained.model(ids))
    assert (again.step, again.untrained) == (1, frozenset())


def test_new_tokens_begin_as_the_mean_and_the_same_command_resumes(
    train, run, longer_set, recipe_without_model, trainer, tmp_path
):
    def go(folder: Path, *more: object, status: int = 0):
        given = more or ("--weights", run)
        return train(folder, "train.steps=12", "checkpoint.keep_last=9", more=given, shards=longer_set, status=status)

    whole = go(tmp_path / "whole")
    assert losses_of(tmp_path / "whole")[0] < 5.0  # guessing is 5.77
    assert f"begins with the weights of {run}, step 40" in whole.stderr
    said = "the rows of 3 tokens begin as the mean of the trained rows: '<|pad|>', '<|user|>', '<|assistant|>'"
    assert said in whole.stderr
    record = read_json(tmp_path / "whole/run.json")
    assert (record["weights"], len(record["weights_sha256"])) == (str(run), 64)
    state = read_json(tmp_path / "whole/checkpoints/step-00000012/state.json")
    assert state["untrained"] == [319, 320, 321]

    # Killed after step 6, and before the first checkpoint.
    for name, kept in {"late": [3, 6], "early": []}.items():
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        for path in (tmp_path / name / "checkpoints").iterdir():
            if int(path.name[5:]) not in kept:
                shutil.rmtree(path)
    refused = go(tmp_path / "early", "--go-on", status=2)
    assert f"began with the weights of {run} ({record['weights_sha256']}); --weights gives none" in refused.stderr
    for name in ("late", "early"):
        go(tmp_path / name)
        files = [tmp_path / one / "checkpoints/step-00000012/model.safetensors" for one in (name, "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert f"began with the weights of {run}" in trainer.run("compare", tmp_path / "whole", expect=0).stdout
    # A run that begins from its checkpoint goes on by the same command, although killed before its own first one.
    begun = ("--from", tmp_path / "whole/checkpoints/step-00000006")
    train(tmp_path / "fork", "train.steps=12", more=begun, shards=longer_set)
    shutil.rmtree(tmp_path / "fork/checkpoints")
    train(tmp_path / "fork", "train.steps=12", more=begun, shards=longer_set)
    # Without them the run resumes, too; with others, or where there were none, it does not.
    assert "complete" in train(tmp_path / "late", "train.steps=12", "checkpoint.keep_last=9", shards=longer_set).stdout
    other = go(tmp_path / "late", "--weights", tmp_path / "whole", status=2)
    assert "Choose another run folder, or begin as it began" in other.stderr
    plain = train(run, "train.steps=40", more=("--weights", tmp_path / "whole"), status=2)
    assert "began with no weights of another" in plain.stderr


def test_the_rows_of_new_tokens_are_the_mean(run, longer_set, make_folder, trainer, recipe_without_model, tmp_path):
    weights = open_weights(run, print)
    model = LanguageModel(weights.trained.model.config, 322)
    begin_from(weights, model, longer_set, print)
    table, old = model.model.embed_tokens.weight, weights.trained.model.model.embed_tokens.weight
    assert torch.equal(table[:319], old[:319])
    assert table[319:].allclose(old[:319].mean(dim=0).expand(384 - 319, -1))
    given = ("--shards", longer_set.path, "--run", tmp_path / "run", "--weights", make_folder(), "--set")
    done = trainer.run("train", recipe_without_model, *given, "train.steps=2", expect=0)
    assert "the rows of 2 tokens begin as the mean of the trained rows: '<|user|>', '<|assistant|>'" in done.stderr
    assert load_model(tmp_path / "run").model.vocab_size == 322


def test_a_model_of_the_recipe_must_be_that_of_the_weights(train, run, shard_set, tmp_path):
    changes = ("model.num_hidden_layers=3", "model.tie_word_embeddings=false", "model.max_position_embeddings=128")
    done = train(tmp_path / "run", *changes, more=("--weights", run), status=2)
    assert f"model.num_hidden_layers = 3: the weights of {run} have 2. Take that value" in done.stderr
    assert "model.tie_word_embeddings = false: the weights of" in done.stderr
    assert "max_position" not in done.stderr
    of_step_20 = ("--weights", run / "checkpoints/step-00000020")
    assert "step 20" in train(tmp_path / "run", changes[2], "train.steps=2", more=of_step_20).stderr
    assert load_model(tmp_path / "run").model.config.max_position_embeddings == 128
    rehearsed = train(tmp_path / "tiny", more=("--rehearse", *of_step_20), status=2)
    assert "--rehearse: its model is tiny" in rehearsed.stderr


def test_a_folder_is_scored_and_sampled_like_its_run(trainer, run, texts, tmp_path):
    trainer.run("export-model", run, "--to", "hf", "--out", tmp_path / "hf", expect=0)
    write_lines(tmp_path / "web.jsonl", [{"text": text} for text in texts[:20]])  # no set holds these
    transformers.AutoTokenizer.from_pretrained(tmp_path / "hf").save_pretrained(
        tmp_path / "hf"
    )  # with parts of its own
    recipe = tmp_path / "eval.toml"
    recipe.write_text('[[eval.sets]]\nname = "web"\npaths = ["web.jsonl"]\n')
    scores = []
    for place in (run, tmp_path / "hf"):
        asked = overrides("train.seq_len=32", "train.precision=fp32")
        done = trainer.run("eval", place, "--recipe", recipe, *asked, "--json", expect=0)
        scores.append(done.json["scores"]["web_bpb"]["value"])
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    said = [trainer.run("sample", place, "--prompt", "the mill", expect=0).stdout for place in (run, tmp_path / "hf")]
    assert said[0] == said[1]
    lost = trainer.run("eval", tmp_path / "hf", expect=2)
    assert "has no recipe of its own. Give --recipe FILE" in lost.stderr
