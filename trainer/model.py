"""The decoder, of two classes that share everything but their parts.

`llama`: RMSNorm, rotary positions, SwiGLU, grouped-query attention. `gpt2`: LayerNorm, learned positions, GELU (tanh),
biases. Parameter names, which the export maps, are those of transformers' LlamaForCausalLM for both:

    model.embed_tokens  model.embed_positions (gpt2)  model.norm  lm_head (untied)
    model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj, post_attention_layernorm}
    model.layers.N.mlp.{gate_proj (llama), up_proj, down_proj}

The vocabulary is padded to a multiple of 128 rows so that the largest matrix multiplication is aligned; padded ids have
a logit of minus infinity in a loss, and none elsewhere: they are not trained and never sampled. Nothing but weights
lives in the module: rotary tables are computed from the configuration in every forward pass (measured: under 1 % of a
step), so there is no buffer to lose when weights are saved, loaded or moved.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainer.config import ModelConfig

VOCAB_MULTIPLE = 128
"""Rows of the embedding are padded to this: tensor cores want dimensions in multiples of 64 (bf16), 128 covers all."""

INIT_STD = 0.02
"""Standard deviation of initial weights. Source: GPT-2."""

_KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""What `selective` activation checkpointing keeps; norms, rotations and activations are computed again."""

Mask = Tensor | BlockMask
Rotary = tuple[Tensor, Tensor]


def padded_vocab_size(vocab_size: int) -> int:
    """Return the rows of the embedding for a vocabulary."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """Count the parameters, padded vocabulary rows included; no memory is taken."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in LanguageModel(config, vocab_size).parameters())


def flops_per_token(config: ModelConfig, vocab_size: int, seq_len: int) -> float:
    """Return the floating point operations that training takes a token, forward and backward.

        6 * (parameters that are multiplied) + 12 * layers * hidden_size * seq_len

    Two operations a weight forward, four backward; embedding tables that are only looked up do not count, and padded
    rows do not. The second term is attention's two products over the whole length, without a discount for the causal
    half, nor is recomputation counted. Source: PaLM (arXiv:2204.02311), appendix B.
    """
    with torch.device("meta"):
        named = LanguageModel(config, vocab_size).named_parameters()
    weights = sum(weight.numel() for name, weight in named if "embed_" not in name and "lm_head" not in name)
    weights += vocab_size * config.hidden_size
    return 6 * weights + 12 * config.num_hidden_layers * config.hidden_size * seq_len


def rotary_tables(config: ModelConfig, positions: Tensor) -> Rotary:
    """Compute the cosines and sines of positions, int64 of any shape.

    Returns:
        cos, sin: float32 `(*positions.shape, head_dim)`, the two halves of the last axis equal.

    Source: RoFormer (arXiv:2104.09864) in the half-rotation layout of transformers.
    """
    # float32 whatever autocast says: bf16 cannot tell position 257 from 258.
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions.device) / config.head_dim
    angles = positions[..., None].float() * config.rope_theta**-exponents
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads by their positions: x `(batch, heads, length, head_dim)`, tables `(..., length, head_dim)`."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def label_documents(ids: Tensor, eos_id: int) -> Tensor:
    """Number the documents of each row from 0, int64 of the shape of ids; an EOS belongs to the one that it ends."""
    ends = (ids == eos_id).long()
    return ends.cumsum(-1) - ends


def positions_in_documents(documents: Tensor) -> Tensor:
    """Return each token's position in its document, counted from the row's start for the first, int64."""
    index = torch.arange(documents.shape[-1], device=documents.device).expand_as(documents)
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    return index - (index * begins).cummax(-1).values


def document_mask(documents: Tensor) -> Mask:
    """Return the mask of causal attention within documents `(batch, length)`, for `attend`.

    Dense on the CPU, bool `(batch, 1, length, length)`; on a GPU a block mask, with which the blocks between documents
    are not computed.
    """
    batch, length = documents.shape
    if documents.is_cuda:

        def allowed(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (documents[row, query] == documents[row, key])

        return create_block_mask(allowed, batch, None, length, length, device=documents.device)
    return (documents[:, None, :, None] == documents[:, None, None, :]).tril()


@functools.cache
def _compiled_flex_attention() -> Any:
    return torch.compile(flex_attention)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
    """Attend causally, or as a mask of `document_mask` says; `(batch, heads, length, head_dim)`."""
    grouped = key.shape[1] != query.shape[1]
    if isinstance(mask, BlockMask):
        # Without the compiler it would hold the whole score matrix. Inside a compiled model it is compiled anyway.
        compiled = query.is_cuda and not torch.compiler.is_compiling()
        run = _compiled_flex_attention() if compiled else flex_attention
        return run(query, key, value, block_mask=mask, enable_gqa=grouped)
    # A single new position attends to everything cached; is_causal would align it with the first key instead.
    how: dict[str, Any] = {"is_causal": True} if mask is None and query.shape[2] > 1 else {"attn_mask": mask}
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=grouped, **how)


class KeyValueCache:
    """Keys and values of the positions already seen, one pair a layer: `(batch, kv_heads, length, head_dim)`."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """Positions seen."""
        return self._layers[0][0].shape[2] if self._layers else 0

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's new keys and values and return all of them."""
        if layer in self._layers:
            old_key, old_value = self._layers[layer]
            key, value = torch.cat((old_key, key), dim=2), torch.cat((old_value, value), dim=2)
        self._layers[layer] = key, value
        return key, value


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer, self.head_dim, bias = layer, config.head_dim, config.kind == "gpt2"
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=bias)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor, rotary: Rotary | None, mask: Mask | None, cache: KeyValueCache | None) -> Tensor:
        """Map x `(batch, length, hidden_size)` to the same shape."""
        batch, length, width = x.shape
        query, key, value = (
            proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        attended = attend(query, key, value, mask)
        return self.o_proj(attended.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)); in a `gpt2` down(gelu(up(x)))."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        bias = config.kind == "gpt2"
        self.gate_proj = None if bias else nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x `(batch, length, hidden_size)` to the same shape."""
        if self.gate_proj is None:
            return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation, in float32 whatever the residual stream is in."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x `(batch, length, hidden_size)` to the same shape and dtype."""
        return super().forward(x.float()).to(x.dtype)


def build_norm(config: ModelConfig) -> nn.Module:
    """Build the class's normalisation of the residual stream."""
    kind = nn.LayerNorm if config.kind == "gpt2" else RMSNorm
    return kind(config.hidden_size, eps=config.rms_norm_eps)


class Layer(nn.Module):
    """Attention and feed-forward, each normalised before and added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.input_layernorm = build_norm(config)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = build_norm(config)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, rotary: Rotary | None, mask: Mask | None, cache: KeyValueCache | None) -> Tensor:
        """Map x `(batch, length, hidden_size)` to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The stack between token ids and the output projection."""

    def __init__(self, config: ModelConfig, vocab_rows: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_rows, config.hidden_size)
        learned = config.kind == "gpt2"
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = build_norm(config)


class LanguageModel(nn.Module):
    """A language model over a vocabulary of `vocab_size` ids.

    Attributes:
        activation_checkpointing: what a training step keeps for its backward pass; see `TrainConfig`.
    """

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.activation_checkpointing: Literal["none", "selective", "full"] = "none"
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
        documents: Tensor | None = None,
    ) -> Tensor:
        """Predict the token after each position.

        Args:
            ids: int64 `(batch, length)`.
            targets: int64 `(batch, length)`; with them the result is a loss, without them logits.
            reduction: the mean over all targets, or one loss a target.
            cache: keys and values of earlier positions, extended in place; `ids` then continues them. With a
                cache that is not empty, one position at a time.
            documents: int64 `(batch, length)`, from `label_documents`: no attention across, positions anew.

        Returns:
            float32 logits `(batch, length, vocab_size)`; or the cross-entropy in nats, `()` or `(batch, length)`.
        """
        start = cache.length if cache is not None else 0
        assert not start or ids.shape[1] == 1, "one position at a time once the cache holds any"
        mask, positions = None, torch.arange(start, start + ids.shape[1], device=ids.device)
        if documents is not None:
            mask, positions = document_mask(documents), positions_in_documents(documents)
        x, rotary = self.model.embed_tokens(ids), None
        if self.model.embed_positions is not None:
            x = x + self.model.embed_positions(positions)
        else:
            cos, sin = rotary_tables(self.config, positions)
            rotary = (cos.unsqueeze(-3), sin.unsqueeze(-3))  # an axis for the heads
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # else the whole residual stream would be float32
        for layer in self.model.layers:
            x = self._run_layer(layer, x, rotary, mask, cache)
        head = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        logits = F.linear(self.model.norm(x), head)
        if targets is None:
            return logits[..., : self.vocab_size].float()
        # Written in place: to cut the padded columns off would copy all logits, forward and backward (measured on a
        # CPU: 0.42 s against 0.34 s for product and loss together). What is -inf has a gradient of 0 all the same.
        logits.detach()[..., self.vocab_size :] = -torch.inf
        logits = logits.float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
        return losses if reduction == "mean" else losses.view_as(targets)

    def _run_layer(self, layer: nn.Module, x: Tensor, *arguments: Any) -> Tensor:
        if self.activation_checkpointing == "none" or not torch.is_grad_enabled():
            return layer(x, *arguments)
        select = functools.partial(create_selective_checkpoint_contexts, _KEPT)
        how = {"context_fn": select} if self.activation_checkpointing == "selective" else {}
        return checkpoint(layer, x, *arguments, use_reentrant=False, **how)  # type: ignore[return-value]


def build_model(config: ModelConfig, vocab_size: int, *, seed: int) -> LanguageModel:
    """Build a model on the CPU with seeded weights: normal, the projections into the residual stream scaled down.

    The scale 1 / sqrt(2 * layers) keeps the residual stream's variance independent of the depth. Source: GPT-2.
    """
    generator = torch.Generator().manual_seed(seed)
    model = LanguageModel(config, vocab_size)
    residual_std = INIT_STD / math.sqrt(2 * config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
        else:
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=residual_std if into_residual else INIT_STD, generator=generator)
    return model
