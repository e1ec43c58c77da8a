"""Exports, loaded by the real transformers: the same logits, the same ids, the same special tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

from shards.errors import InputError
from tests.support.builds import read_json
from trainer.recipe import ModelConfig
from trainer.weights.trained_model import load_model
from trainer.weights.transformers_folder import describe_export_files, export_weights

transformers = pytest.importorskip("transformers")

TIED, UNTIED = (f"model.tie_word_embeddings={tied}" for tied in ("true", "false"))
NORM, RELU2 = "model.use_qk_norm=true", "model.hidden_act=relu2"
THETA, EPSILON = "model.rope_theta=500.0", "model.rms_norm_eps=1e-3"
GPT2 = ("model.kind=gpt2", "model.num_key_value_heads=4")
CLASSES = {
    "llama-tied": [TIED, THETA],
    "llama-untied": [UNTIED, EPSILON],
    "qwen3-tied": [NORM, THETA, TIED],
    "arcee-untied": [RELU2, EPSILON, UNTIED],
    "apertus-tied": [NORM, RELU2, THETA, TIED],
    "apertus-untied": [NORM, RELU2, "model.zero_init_residual=true", UNTIED, "optimizer.kind=muon"],
    "gpt2-tied": [*GPT2, TIED],
    "gpt2-untied": [*GPT2, UNTIED, EPSILON],
}


@pytest.fixture(scope="module", params=CLASSES)
def exported(request, trainer, train, tmp_path_factory) -> tuple[Path, Path]:
    """A run of a few steps and its export. Read only."""
    folder = tmp_path_factory.mktemp("exports")
    trained = train(folder / "run", "train.steps=12", "checkpoint.every_steps=12", *CLASSES[request.param])
    assert ("an export of this model runs in transformers alone" in trained.stderr) == ("apertus" in request.param)
    done = trainer.run("export-model", folder / "run", "--to", "hf", "--out", folder / "hf", "--json", expect=0)
    result, receipt = done.json, read_json(folder / "hf/export.json")
    assert result["step"] == receipt["seen"]["step"] == 12
    others = [] if "apertus" in request.param else ["vLLM", "llama.cpp"]
    assert result["served_by"] == receipt["served_by"] == ["transformers", *others]
    return folder / "run", folder / "hf"


def load(folder: Path) -> Any:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in info), info
    return model.eval()


@torch.no_grad()
def test_logits_are_equal(exported):
    run, folder = exported
    ours, theirs = load_model(run, print), load(folder)
    ids = torch.randint(0, 320, (2, 64), generator=torch.Generator().manual_seed(1))
    assert theirs.dtype == torch.float32
    logits = theirs(ids).logits
    assert logits.shape == (2, 64, 320)
    torch.testing.assert_close(logits, ours.model(ids), rtol=0, atol=1e-4)
    assert ours.model(ids).std() > 0.3  # it has learnt something: equal logits are no accident of the start


def test_spelled_tokens_are_text_and_text_comes_back(exported):
    """That ids are equal is proved by the export."""
    run, folder = exported
    ours, theirs = load_model(run, print).tokenizer, transformers.AutoTokenizer.from_pretrained(folder)
    ours.encode_special_tokens = True
    assert type(theirs) is transformers.PreTrainedTokenizerFast  # not GPT2Tokenizer, which builds parts anew
    spelled = "it 's naïve , 🙂  \n a<|endoftext|>b"
    assert theirs(spelled)["input_ids"] == (ids := ours.encode(spelled).ids)
    assert theirs.decode(ids) == spelled
    assert theirs(spelled, split_special_tokens=False)["input_ids"].count(318) == 1
    assert len(theirs) == 320


def test_special_tokens_are_set_everywhere(exported):
    _, folder = exported
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), load(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|endoftext|>", 318)
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (318, 319)
    assert set(tokenizer.all_special_ids) == {318, 319}
    assert tokenizer.model_max_length == 64
    for settings in (model.config, model.generation_config):
        assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == (318, 318, 319)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_an_eos_that_pads_too_is_trained_further(kind):
    config = ModelConfig(
        kind=kind, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=8
    )
    files = describe_export_files(config, 10, {"<|endoftext|>": 3}, "float32", eos_id=3, begin_id=3)
    assert files["tokenizer_config.json"]["pad_token"] == "<|endoftext|>"
    assert files["generation_config.json"]["pad_token_id"] == 3
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**files["config.json"]))
    ids = torch.tensor([[3, 1, 2]])
    model(input_ids=ids, labels=ids).loss.backward()
    assert model.get_input_embeddings().weight.grad[3].any()


@pytest.mark.parametrize("exported", ["gpt2-tied"], indirect=True)
def test_a_part_that_no_class_of_transformers_has_is_refused(exported):
    class Scaled(ModelConfig):
        attention_scale: float = 1.0

    model = load_model(exported[0], print).model
    scaled = Scaled(**model.config.model_dump(), attention_scale=0.5)
    with pytest.raises(InputError, match=r"model\.attention_scale: no class of transformers has this"):
        export_weights(model.state_dict(), scaled, 320)
    state = model.state_dict() | {"model.layers.0.self_attn.gate_proj.weight": torch.zeros(64, 64)}
    with pytest.raises(InputError, match=r"0\.self_attn\.gate_proj\.weight: no class of transformers has this"):
        export_weights(state, model.config, 320)


@pytest.mark.parametrize("exported", ["llama-tied"], indirect=True)
def test_another_dtype_and_a_folder_that_exists(trainer, exported, tmp_path):
    run, _ = exported
    arguments = ("export-model", run, "--to", "hf", "--dtype", "bfloat16", "--out", tmp_path / "new/bf16")
    done = trainer.run(*arguments, expect=0)
    assert "LlamaForCausalLM, served by transformers, vLLM, llama.cpp\n" in done.stdout
    assert load(tmp_path / "new/bf16").dtype == torch.bfloat16
    half, whole = ((folder / "model.safetensors").stat().st_size for folder in (tmp_path / "new/bf16", exported[1]))
    assert half < 0.55 * whole
    again = trainer.run(*arguments, expect=2)
    assert "already exists" in again.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bf16"]
