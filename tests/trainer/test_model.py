"""The decoder: causality, attention groups, rotary positions, parameter counts, saving."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from trainer.config import ModelConfig
from trainer.model import (
    KeyValueCache,
    Llama,
    build_model,
    count_parameters,
    padded_vocab_size,
    rotary_tables,
    rotate,
)

VOCAB_SIZE = 200


def make_config(**changes: Any) -> ModelConfig:
    settings: dict[str, Any] = {
        "kind": "llama",
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 80,
        "max_position_embeddings": 32,
    }
    return ModelConfig(**(settings | changes))


def make_ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(5))


def test_a_later_token_does_not_change_earlier_logits():
    model = build_model(make_config(), VOCAB_SIZE, seed=1)
    ids = make_ids(2, 16)
    changed = ids.clone()
    changed[:, 10] = (changed[:, 10] + 1) % VOCAB_SIZE
    with torch.no_grad():
        before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=0, atol=1e-6)
    assert (before[:, 10:] - after[:, 10:]).abs().amax(dim=(0, 2)).min() > 1e-4


def test_grouped_heads_equal_repeated_key_value_heads():
    grouped = build_model(make_config(num_key_value_heads=2), VOCAB_SIZE, seed=1)
    plain = Llama(make_config(num_key_value_heads=4), VOCAB_SIZE)
    state = grouped.state_dict()
    for name in list(state):
        if "k_proj" in name or "v_proj" in name:
            heads = state[name].view(2, 12, 48)
            state[name] = heads.repeat_interleave(2, dim=0).reshape(48, 48)
    plain.load_state_dict(state)
    ids = make_ids(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(grouped(ids), plain(ids), rtol=1e-5, atol=1e-6)


def test_rotary_scores_depend_on_the_distance_alone():
    config = make_config()
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 1, 1, 1, config.head_dim, generator=generator)
    cos, sin = rotary_tables(config, 0, 32)

    def score(i: int, j: int) -> torch.Tensor:
        return (rotate(query, cos[i : i + 1], sin[i : i + 1]) * rotate(key, cos[j : j + 1], sin[j : j + 1])).sum()

    torch.testing.assert_close(score(3, 1), score(30, 28), rtol=1e-4, atol=1e-5)
    assert (score(3, 1) - score(3, 2)).abs() > 1e-3


def test_rotation_is_the_half_rotation_of_transformers():
    config = make_config(hidden_size=16, num_attention_heads=4, num_key_value_heads=4)
    cos, sin = rotary_tables(config, 5, 6)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    low, high = 5.0, 5.0 / 100.0  # angles at position 5: theta ** 0, theta ** -(2/4)
    expected = [
        1 * math.cos(low) - 3 * math.sin(low),
        2 * math.cos(high) - 4 * math.sin(high),
        3 * math.cos(low) + 1 * math.sin(low),
        4 * math.cos(high) + 2 * math.sin(high),
    ]
    torch.testing.assert_close(rotate(x.view(1, 1, 1, 4), cos, sin).flatten(), torch.tensor(expected))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("groups", [1, 4])
def test_the_parameter_formula_counts_what_the_model_has(tied: bool, groups: int):
    config = make_config(tie_word_embeddings=tied, num_key_value_heads=groups)
    model = Llama(config, VOCAB_SIZE)
    assert count_parameters(config, VOCAB_SIZE) == sum(parameter.numel() for parameter in model.parameters())


def test_the_parameter_formula_gives_the_1b_of_the_llama_class():
    config = make_config(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        tie_word_embeddings=True,
    )
    assert count_parameters(config, 32_005) == pytest.approx(1.04e9, rel=0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_saved_and_loaded_weights_give_equal_logits(tmp_path: Path, tied: bool):
    model = build_model(make_config(tie_word_embeddings=tied), VOCAB_SIZE, seed=1)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    # Built without memory, as loaders elsewhere do: whatever is not in the file would be garbage.
    with torch.device("meta"):
        loaded = Llama(make_config(tie_word_embeddings=tied), VOCAB_SIZE)
    loaded.to_empty(device="cpu")
    for parameter in loaded.parameters():
        nn.init.constant_(parameter, math.nan)
    loaded.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    ids = make_ids(2, 16)
    with torch.no_grad():
        assert torch.equal(model(ids), loaded(ids))
    assert not list(loaded.buffers())


def test_names_are_those_of_transformers():
    names = {name.replace(".0.", ".N.") for name in Llama(make_config(num_hidden_layers=1), VOCAB_SIZE).state_dict()}
    projections = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    projections += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    layers = {f"model.layers.N.{name}.weight" for name in projections}
    assert names == layers | {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}


def test_padded_ids_are_in_no_logits_and_no_loss():
    model = build_model(make_config(), VOCAB_SIZE, seed=1)
    assert padded_vocab_size(VOCAB_SIZE) == 256
    assert padded_vocab_size(256) == 256
    ids = make_ids(2, 9)
    with torch.no_grad():
        logits, loss = model(ids), model(ids[:, :-1], ids[:, 1:])
        assert model.lm_head is not None
        model.lm_head.weight[VOCAB_SIZE:] = 1e3
        assert torch.equal(model(ids[:, :-1], ids[:, 1:]), loss)
    assert logits.shape == (2, 9, VOCAB_SIZE)
    naive = -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
    torch.testing.assert_close(loss, naive)


def test_an_untrained_model_is_as_good_as_guessing():
    model = build_model(make_config(tie_word_embeddings=True), VOCAB_SIZE, seed=1)
    ids = make_ids(8, 33 - 1)
    with torch.no_grad():
        assert model(ids[:, :-1], ids[:, 1:]).item() == pytest.approx(math.log(VOCAB_SIZE), abs=0.1)


def test_the_cache_gives_the_logits_of_the_whole_sequence():
    model = build_model(make_config(), VOCAB_SIZE, seed=1)
    ids = make_ids(1, 12)
    cache = KeyValueCache()
    with torch.no_grad():
        whole = model(ids)
        parts = [model(ids[:, :6], cache=cache)] + [model(ids[:, i : i + 1], cache=cache) for i in range(6, 12)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)
    assert cache.length == 12


def test_the_seed_decides_the_weights():
    first, again, other = (build_model(make_config(), VOCAB_SIZE, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
