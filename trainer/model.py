"""The decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU; a LLaMA whose weights keep that name.

Parameter names are those of transformers' LlamaForCausalLM. The vocabulary is padded to a multiple of 128 rows so that
the largest matrix multiplication is aligned; padded ids are cut off before the softmax, so they are in no loss and
are never sampled. Nothing but weights lives in the module: rotary tables are computed from the configuration in every
forward pass (measured: under 1 % of a step), so there is no buffer to lose when weights are saved, loaded or moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig

VOCAB_MULTIPLE = 128
"""Rows of the embedding are padded to this: tensor cores want dimensions in multiples of 64 (bf16), 128 covers all."""

INIT_STD = 0.02
"""Standard deviation of initial weights. Source: GPT-2."""


def padded_vocab_size(vocab_size: int) -> int:
    """Return the rows of the embedding for a vocabulary."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """Count the parameters from the configuration alone, padded vocabulary rows included."""
    width, kv_width = config.hidden_size, config.num_key_value_heads * config.head_dim
    attention = 2 * width * width + 2 * width * kv_width
    layer = attention + 3 * width * config.intermediate_size + 2 * width
    embeddings = padded_vocab_size(vocab_size) * width * (1 if config.tie_word_embeddings else 2)
    return embeddings + config.num_hidden_layers * layer + width


def rotary_tables(
    config: ModelConfig, start: int, stop: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Compute the cosines and sines of positions [start, stop).

    Returns:
        cos, sin: float32 `(stop - start, head_dim)`, the two halves of the last axis equal.

    Source: RoFormer (arXiv:2104.09864) in the half-rotation layout of transformers.
    """
    # float32 whatever autocast says: bf16 cannot tell position 257 from 258.
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    frequencies = config.rope_theta**-exponents
    angles = torch.arange(start, stop, dtype=torch.float32, device=device)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads by their positions: x `(batch, heads, length, head_dim)`, tables `(length, head_dim)`."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


@dataclass
class KeyValueCache:
    """Keys and values of the positions already seen, one pair a layer: `(batch, kv_heads, length, head_dim)`."""

    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Positions seen."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's new keys and values and return all of them."""
        if layer in self.layers:
            old_key, old_value = self.layers[layer]
            key, value = torch.cat((old_key, key), dim=2), torch.cat((old_value, value), dim=2)
        self.layers[layer] = key, value
        return key, value


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyValueCache | None) -> Tensor:
        """Map x `(batch, length, hidden_size)` to the same shape."""
        batch, length, width = x.shape
        query, key, value = (
            proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        # A single new position attends to everything cached; is_causal would align it with the first key instead.
        attended = F.scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, enable_gqa=key.shape[1] != query.shape[1]
        )
        return self.o_proj(attended.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x `(batch, length, hidden_size)` to the same shape."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward, each normalised before and added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyValueCache | None) -> Tensor:
        """Map x `(batch, length, hidden_size)` to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The stack between token ids and the output projection."""

    def __init__(self, config: ModelConfig, vocab_rows: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_rows, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Llama(nn.Module):
    """A LLaMA-class language model over a vocabulary of `vocab_size` ids."""

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        rows = padded_vocab_size(vocab_size)
        self.model = Decoder(config, rows)
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(config.hidden_size, rows, bias=False)

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        *,
        reduction: Literal["mean", "none"] = "mean",
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Predict the token after each position.

        Args:
            ids: int64 `(batch, length)`.
            targets: int64 `(batch, length)`; with them the result is a loss, without them logits.
            reduction: the mean over all targets, or one loss a target.
            cache: keys and values of earlier positions, extended in place; `ids` then continues them. With a
                cache that is not empty, one position at a time.

        Returns:
            float32 logits `(batch, length, vocab_size)`; or the cross-entropy in nats, `()` or `(batch, length)`.
        """
        start = cache.length if cache is not None else 0
        assert not start or ids.shape[1] == 1, "one position at a time once the cache holds any"
        cos, sin = rotary_tables(self.config, start, start + ids.shape[1], ids.device)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, cache)
        head = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        logits = F.linear(self.model.norm(x), head)[..., : self.vocab_size].float()
        if targets is None:
            return logits
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
        return losses if reduction == "mean" else losses.view_as(targets)


def build_model(config: ModelConfig, vocab_size: int, *, seed: int) -> Llama:
    """Build a model on the CPU with seeded weights: normal, the projections into the residual stream scaled down.

    The scale 1 / sqrt(2 * layers) keeps the residual stream's variance independent of the depth. Source: GPT-2.
    """
    generator = torch.Generator().manual_seed(seed)
    model = Llama(config, vocab_size)
    residual_std = INIT_STD / math.sqrt(2 * config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.ones_(parameter)
        else:
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=residual_std if into_residual else INIT_STD, generator=generator)
    return model
