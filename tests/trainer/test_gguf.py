"""GGUF files in llama.cpp: the ids of training, the texts of `sample`; and what is refused."""

import json
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from shards.errors import InputError
from shards.format.tokenizer_json import make_plain
from tests.support.builds import build_here, read_json, real_documents
from tests.support.conversations import to_records
from tests.support.recipes import source, write_lines, write_recipe
from tests.support.tokenizers import texts_of, trained_kinds
from tests.trainer.conftest import make_config
from trainer.model.decoder import build_model
from trainer.model.generate import TrainedModel
from trainer.recipe import TrainConfig
from trainer.weights.gguf_file import write_gguf
from trainer.weights.llama_cpp import prove_gguf, serve
from trainer.weights.transformers_folder import export_weights

APERTUS = make_config(use_qk_norm=True, hidden_act="relu2")
KINDS = {
    "Llama": make_config(),
    "Qwen3": make_config(use_qk_norm=True, tie_word_embeddings=True, rope_theta=500.0),
    "Arcee": make_config(hidden_act="relu2", rms_norm_eps=1e-3),
    "GPT2": make_config("gpt2", tie_word_embeddings=True),
}
Write = Callable[..., tuple[Path, TrainedModel]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return what writes a model with random weights and a tokenizer, `tokenizer.json` beside it."""

    def write_model(kind: str = "Llama", splitter: str = "plain", dtype: str = "float32") -> tuple[Path, TrainedModel]:
        tokenizer = trained_kinds()[splitter]
        content = json.dumps(tokenizer).encode()
        (tmp_path / "tokenizer.json").write_bytes(content)
        size = len(tokenizer["model"]["vocab"])
        torch.manual_seed(5)
        model = build_model(KINDS.get(kind, APERTUS), size + 5, seed=5).eval()
        with torch.no_grad():  # so that tokens are chosen clearly, and not one again and again
            for weight in model.parameters():
                weight.mul_(8 if weight.ndim == 2 else 1).add_(torch.randn_like(weight) * 0.05)
        train = TrainConfig(seq_len=32, global_batch=1, micro_batch=1, steps=1)
        trained = TrainedModel(model, train, content, 2, None, 7)
        weights = export_weights(model.state_dict(), model.config, model.vocab_size)
        weights = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights.items()}
        write_gguf(tmp_path / "m.gguf", "m", trained, weights, dtype, "")
        return tmp_path / "m.gguf", trained

    return write_model


@pytest.mark.long
@pytest.mark.parametrize("splitter", ["plain", "llama3", "qwen2", "o200k"])
def test_llama_cpp_gives_our_ids(splitter: str, write: Write):
    file, trained = write("Qwen3", splitter)
    plain = Tokenizer.from_str(json.dumps(make_plain(json.loads(trained.tokenizer_json))))
    texts = texts_of(2000)
    assert len(texts) > 2300
    with serve(file, 32) as ask:
        for text in texts:
            asked = {"content": text, "add_special": True, "parse_special": False}
            ids = [trained.begin_id, *plain.encode(text, add_special_tokens=False).ids]
            assert ask("/tokenize", asked)["tokens"] == ids, text


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_llama_cpp_continues_texts_as_we_do(kind: str, dtype: str, write: Write):
    file, trained = write(kind, "llama3" if kind == "GPT2" else "plain", dtype)
    prove = partial(prove_gguf, file, trained, file.with_name("tokenizer.json"), None, dtype)
    receipt = prove()
    assert receipt["tokenizer_proof"]["probes"] > 20
    assert receipt["greedy_texts"]["compared"] == 20
    if dtype == "float32":
        assert receipt["greedy_texts"]["equal"] == 20
    # Other weights are seen: their greedy texts differ.
    with torch.no_grad():
        trained.model.model.layers[0].self_attn.q_proj.weight.neg_()
    with pytest.raises(InputError, match=r"m\.gguf: llama\.cpp continues \[2"):
        prove()
    # Weights whose logits are all equal prove nothing.
    with torch.no_grad():
        for weight in trained.model.parameters():
            weight.zero_()
    assert not prove()["proved"]


def test_what_llama_cpp_has_no_name_for_is_refused(write: Write):
    for splitter in ("words", "nfc"):
        with pytest.raises(InputError, match=r"the pre-tokenizer: llama\.cpp has no name for it\. It has for: gpt2"):
            write("Llama", splitter)
    with pytest.raises(InputError, match=r"ApertusForCausalLM: llama\.cpp has no name for it\. It has for: Llama"):
        write("Apertus")


def test_without_llama_cpp_the_file_is_written_and_called_unproved(trainer, run, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    done = trainer.run("export-model", run, "--to", "gguf", "--out", tmp_path / "gguf", expect=0)
    assert "the file is not proved by llama.cpp: the package 'xllamacpp' cannot be imported" in done.stderr
    assert read_json(tmp_path / "gguf/export.json")["proved"] is False
    assert (tmp_path / "gguf/model.gguf").read_bytes()[:4] == b"GGUF"


def test_a_file_that_llama_cpp_cannot_run_is_refused(write: Write):
    file, trained = write()
    content = bytearray(file.read_bytes())
    place = content.index(b"llama.block_count") + len("llama.block_count") + 4
    content[place : place + 4] = struct.pack("<I", 3)  # a layer more than there are weights for
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"m\.gguf: llama\.cpp cannot run it.*Nothing was exported"):
        prove_gguf(file, trained, file.with_name("tokenizer.json"), None, "float32")


@pytest.mark.long
@pytest.mark.parametrize("chat", ["chatml", "roles"])
def test_an_answer_stops_at_its_end_in_llama_cpp(chat: str, train, trainer, tmp_path: Path):
    turn = [("user", "And so?"), ("assistant", "Yes.")]
    questions = [f"{number} {text[:80]}" for number, text in enumerate(real_documents()[:400])]
    records = to_records([[("user", question), turn[1], *turn] for question in questions])
    write_lines(tmp_path / "chats.jsonl", records)
    recipe = write_recipe(
        tmp_path / "chat.toml",
        source("chats", "chats.jsonl", messages="messages"),
        tokenizer={"vocab_size": 600},
        chat={"format": chat},
        split={"val_tokens": 1000},
        mix={"when_short": "shrink"},
        shards={"tokens": 100_000},
    )
    build_here(recipe, tmp_path / "set")
    packed = ("train.rows=packed", "train.seq_len=128", "model.max_position_embeddings=128", "model.use_qk_norm=true")
    steps = ("train.steps=50", "eval.every_steps=50", "checkpoint.every_steps=50")
    train(tmp_path / "run", *packed, *steps, shards=tmp_path / "set")
    done = trainer.run("export-model", tmp_path / "run", "--to", "gguf", "--out", tmp_path / "gguf", expect=0)
    assert "texts and 300 conversations are equal" in done.stderr
    receipt = read_json(tmp_path / "gguf/export.json")
    assert receipt["greedy_texts"] == {"compared": 21, "equal": 21}
    assert (receipt["answer_ends_by"], receipt["chat_template"]["conversations_compared"]) == ("turn", 300)
    with serve(tmp_path / "gguf/model.gguf", 128) as ask:
        asked = {"messages": [{"role": "user", "content": "Is it so?"}], "temperature": 0}
        (choice,) = ask("/v1/chat/completions", asked)["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Yes.", "stop")
