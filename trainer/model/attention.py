"""Causal attention: rotary positions, masks of documents, the cache of keys and values, grouped queries; norms.

Nothing but weights lives in the module: rotary tables are computed in every forward pass (measured: under 1% of a
step), so there is no buffer to lose when weights are saved, loaded or moved.
"""

# pyright: reportUnknownMemberType=false
import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from trainer.recipe import ModelConfig

Mask = Tensor | BlockMask
Rotary = tuple[Tensor, Tensor]


def rotary_tables(positions: Tensor, head_dim: int, rope_theta: float) -> tuple[Tensor, Tensor]:
    """Compute the cosines and sines of rotary positions, int64 of any shape.

    Returns:
        cos, sin: float32 `(*positions.shape, 1, head_dim / 2)`, with an axis for the heads.

    Source: RoFormer (arXiv:2104.09864) in the half-rotation layout of transformers.
    """
    # Outside of torch.compile, an operation of our own would load the whole compiler: 2.8 s of a processor, measured.
    compute = _rotary_operation if torch.compiler.is_compiling() else _compute_rotary_tables
    return compute(positions, head_dim, rope_theta)


def _compute_rotary_tables(positions: Tensor, head_dim: int, rope_theta: float) -> tuple[Tensor, Tensor]:
    # float32 whatever autocast says: bf16 cannot tell position 257 from 258.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = positions[..., None, None].float() * rope_theta**-exponents
    return angles.cos(), angles.sin()


_rotary_operation = torch.library.custom_op("tokenmill::rotary_tables", _compute_rotary_tables, mutates_args=())
"""The tables as one operation: torch.compile would compute them again in each layer, for each number of each head
(measured on an H200: with the rotation itself, 11.3 of a step's 51 ms)."""


@_rotary_operation.register_fake
def _(positions: Tensor, head_dim: int, rope_theta: float) -> tuple[Tensor, Tensor]:
    table = torch.empty((*positions.shape, 1, head_dim // 2), dtype=torch.float32, device=positions.device)
    return table, torch.empty_like(table)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads by their positions: x `(batch, length, heads, head_dim)`, tables of `rotary_tables`."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def document_mask(documents: Tensor) -> Mask:
    """Return the mask of causal attention within documents `(batch, length)`, for `attend`.

    Dense on the CPU and where a model is scored, bool `(batch, 1, length, length)`; where a GPU trains a block mask,
    with which the blocks between documents are not computed. Compiled, that is.
    """
    batch, length = documents.shape
    if documents.is_cuda and torch.is_grad_enabled():

        def allowed(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (documents[row, query] == documents[row, key])

        return create_block_mask(allowed, batch, None, length, length, device=documents.device)
    return (documents[:, None, :, None] == documents[:, None, None, :]).tril()


@functools.cache
def _compiled_flex_attention() -> Any:
    return torch.compile(flex_attention)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
    """Return causal attention, or attention under a mask of `document_mask`; `(batch, heads, length, head_dim)`."""
    grouped = key.shape[1] != query.shape[1]
    if isinstance(mask, BlockMask):
        # Uncompiled, flex attention holds the whole score matrix. Inside a compiled model it is compiled anyway.
        compiled = query.is_cuda and not torch.compiler.is_compiling()
        run: Any = _compiled_flex_attention() if compiled else flex_attention
        return run(query, key, value, block_mask=mask, enable_gqa=grouped)
    # A single new position attends to everything cached; is_causal would align it with the first key instead. The flag
    # is a constant, since a length that is compiled as dynamic makes a comparison with it no plain bool.
    if mask is None and query.shape[2] > 1:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)


class Linear(nn.Linear):
    """A projection whose weights `build_model` sets; a bias begins as 0."""

    def reset_parameters(self) -> None:
        """Leave the weights unset: NaN."""
        nn.init.constant_(self.weight, math.nan)
        if self.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            nn.init.zeros_(self.bias)


class KeyValueCache:
    """Keys and values of the positions already seen, one pair for each layer: `(batch, kv_heads, length, head_dim)`."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """The number of positions."""
        return self._layers[0][0].shape[2] if self._layers else 0

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's new keys and values and return all of them."""
        if layer in self._layers:
            old_key, old_value = self._layers[layer]
            key = torch.cat((old_key, key), dim=2)
            value = torch.cat((old_value, value), dim=2)
        self._layers[layer] = key, value
        return key, value


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        bias = config.kind == "gpt2"
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.k_proj = Linear(config.hidden_size, kv_width, bias=bias)
        self.v_proj = Linear(config.hidden_size, kv_width, bias=bias)
        self.o_proj = Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.q_norm, self.k_norm = (
            RMSNorm(config.head_dim, eps=config.rms_norm_eps) if config.use_qk_norm else None for _ in range(2)
        )

    def forward(self, x: Tensor, rotary: Rotary | None, mask: Mask | None, cache: KeyValueCache | None) -> Tensor:
        """Map x `(batch, length, hidden_size)` to the same shape."""
        batch, length, width = x.shape
        query, key, value = (
            proj(x).view(batch, length, -1, self.head_dim) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        # Only now: what attention gives is laid out as its queries are, and then needs no copy for `o_proj`.
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        attended = attend(query, key, value, mask).transpose(1, 2).reshape(batch, length, width)
        return self.o_proj(attended)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation, in float32 whatever the residual stream is in."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x `(..., features)` to its norm, of the same shape and dtype."""
        return F.rms_norm(x.float(), self.normalized_shape, self.weight.float(), self.eps).to(x.dtype)


def build_norm(config: ModelConfig) -> nn.Module:
    """Build the normalisation of the residual stream for the model's kind."""
    kind = nn.LayerNorm if config.kind == "gpt2" else RMSNorm
    return kind(config.hidden_size, eps=config.rms_norm_eps)
