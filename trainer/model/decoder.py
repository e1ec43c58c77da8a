"""The model: embeddings, layers of attention and feed-forward, and the loss.

`llama`: RMSNorm, rotary positions, SwiGLU or squared ReLU, grouped-query attention, with RMSNorm of queries and keys if
asked for. `gpt2`: LayerNorm, learned positions, GELU (tanh), biases. The parameter names of all, which the export maps,
are those of transformers' LlamaForCausalLM and Qwen3ForCausalLM:

    model.embed_tokens  model.embed_positions (gpt2)  model.norm  lm_head (untied)
    model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj, post_attention_layernorm}
    model.layers.N.self_attn.{q,k}_norm (use_qk_norm)
    model.layers.N.mlp.{gate_proj (SwiGLU), up_proj, down_proj}

The vocabulary is padded to a multiple of 128 rows so that the largest matrix multiplication is aligned. In a loss the
padded ids have a logit of minus infinity, elsewhere they have no logit: they are not trained and never sampled.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import functools
import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from shards.torch.batch import positions_in_documents
from trainer.model.attention import (
    Attention,
    KeyValueCache,
    Linear,
    Mask,
    Rotary,
    build_norm,
    document_mask,
    rotary_tables,
)
from trainer.recipe.schema import ModelConfig, Recomputation

VOCAB_MULTIPLE = 128
"""The embedding's rows are padded to a multiple of this: tensor cores want multiples of 64 (bf16); 128 suits all."""

TABLES = ("model.embed_tokens.weight", "lm_head.weight")
"""The weights that have a row for each id."""

INIT_STD = 0.02
"""Standard deviation of initial weights. Source: GPT-2."""

_KEPT_OPERATIONS = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""Operations whose results `selective` activation checkpointing keeps; norms, rotations and activations run again."""


class Embedding(nn.Embedding):
    """An embedding whose vectors `build_model` sets."""

    def reset_parameters(self) -> None:
        """Leave the vectors unset: NaN."""
        nn.init.constant_(self.weight, math.nan)


def padded_vocab_size(vocab_size: int) -> int:
    """Return the number of rows of the decoder's embedding for a vocabulary."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)); or down(relu(up(x)) ** 2); in a `gpt2` down(gelu(up(x)))."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        bias = config.kind == "gpt2"
        self.squared = not bias  # without a gate
        gated = config.kind == "llama" and config.hidden_act == "silu"
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False) if gated else None
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x `(batch, length, hidden_size)` to the same shape."""
        up = self.up_proj(x)
        if self.gate_proj is not None:
            return self.down_proj(F.silu(self.gate_proj(x)) * up)
        return self.down_proj(F.relu(up).square() if self.squared else F.gelu(up, approximate="tanh"))


class Layer(nn.Module):
    """Attention and feed-forward; each normalises its input and adds its output to the residual stream."""

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
        self.embed_tokens = Embedding(vocab_rows, config.hidden_size)
        learned = config.kind == "gpt2"
        self.embed_positions = Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = build_norm(config)


class LanguageModel(nn.Module):
    """A language model over a vocabulary of `vocab_size` ids.

    Attributes:
        activation_checkpointing: which activations are kept for the backward pass; see `TrainConfig`.
    """

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.activation_checkpointing: Recomputation = "none"
        rows = padded_vocab_size(vocab_size)
        self.model = Decoder(config, rows)
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, rows, bias=False)

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        *,
        reduction: Literal["mean", "sum", "none"] = "mean",
        cache: KeyValueCache | None = None,
        documents: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Predict the token after each position.

        Args:
            ids: int64 `(batch, length)`.
            targets: int64 `(batch, length)`; with them the result is a loss, without them logits. That of -100 is 0.
            reduction: `mean` or `sum` over all targets, or `none`, one loss for each target.
            cache: keys and values of earlier positions, extended in place; `ids` then continues them. With a
                cache that is not empty, one position at a time.
            documents: int64 `(batch, length)`, of `TrainedModel.number_documents` or packed rows. With them there is no
                attention across documents, and positions count from each document's start.
            chosen: bool `(batch, length)`, without targets: only the tokens after these positions are predicted.

        Returns:
            float32 logits `(batch, length, vocab_size)`, with `chosen` `(chosen, vocab_size)`; or the cross-entropy in
            nats, `()` or `(batch, length)`.
        """
        # Which positions the tokens have, and which of them attend to which.
        start = cache.length if cache is not None else 0
        assert not start or ids.shape[1] == 1, "one position at a time once the cache holds any"
        mask = None
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        if documents is not None:
            mask = document_mask(documents)
            positions = positions_in_documents(documents)

        # Embeddings, with learned positions added or rotary tables made for the layers.
        x = self.model.embed_tokens(ids)
        rotary = None
        if self.model.embed_positions is not None:
            x = x + self.model.embed_positions(positions)
        else:
            rotary = rotary_tables(positions, self.config.head_dim, self.config.rope_theta)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # else the whole residual stream would be float32

        for layer in self.model.layers:
            x = self._run_layer(layer, x, rotary, mask, cache)

        # Logits, and the loss if there are targets.
        head = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        if chosen is not None:
            x = x[chosen]
        logits = F.linear(self.model.norm(x), head)
        if targets is None:
            return logits[..., : self.vocab_size].float()
        # Written in place: to cut the padded columns off takes 8% more of a step on an H200 (docs/lab/training.md) and
        # a copy of all logits on a CPU. The gradient of a logit of -inf is 0.
        logits.detach()[..., self.vocab_size :] = -torch.inf
        logits = logits.float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
        return losses.view_as(targets) if reduction == "none" else losses

    def _run_layer(self, layer: nn.Module, x: Tensor, *arguments: Any) -> Tensor:
        if self.activation_checkpointing == "none" or not torch.is_grad_enabled():
            return layer(x, *arguments)
        select = functools.partial(create_selective_checkpoint_contexts, _KEPT_OPERATIONS)
        how: dict[str, Any] = {"context_fn": select} if self.activation_checkpointing == "selective" else {}
        return checkpoint(layer, x, *arguments, use_reentrant=False, **how)  # type: ignore[return-value]


def build_model(config: ModelConfig, vocab_size: int, *, seed: int) -> LanguageModel:
    """Build a model on the CPU with seeded weights: normal, the projections into the residual stream scaled down.

    The scale 1 / sqrt(2 * layers) keeps the residual stream's variance independent of the depth. Source: GPT-2. With
    `zero_init_residual` it is 0, so that each layer begins as the identity. Source: muP's practice (arXiv:2203.03466).

    Only the weights of `Linear` and `Embedding` that nothing has set get such values. What any other module gives its
    parameters stays; its draws from torch's own generator are seeded, too.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = LanguageModel(config, vocab_size)
    residual_std = 0.0 if config.zero_init_residual else INIT_STD / math.sqrt(2 * config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if (unset := parameter.isnan()).any():
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            drawn = torch.empty_like(parameter)
            nn.init.normal_(drawn, std=residual_std if into_residual else INIT_STD, generator=generator)
            parameter.data.copy_(drawn.where(unset, parameter))
    return model


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """Return the size of a model in parameters, padded vocabulary rows included; no memory is allocated for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in LanguageModel(config, vocab_size).parameters())


def flops_per_token(config: ModelConfig, vocab_size: int, seq_len: int) -> float:
    """Return the floating point operations of training on one token, forward and backward.

        6 * (parameters in matrix multiplications) + 12 * layers * hidden_size * seq_len

    A weight takes two operations forward and four backward. Embedding tables that are only looked up do not count, and
    neither do padded rows. The second term is attention's two products over the whole length, without a discount for
    the causal half. Recomputation is not counted. Source: PaLM (arXiv:2204.02311), appendix B.
    """
    with torch.device("meta"):
        named = LanguageModel(config, vocab_size).named_parameters()
    weights = sum(weight.numel() for name, weight in named if "embed_" not in name and "lm_head" not in name)
    weights += vocab_size * config.hidden_size
    return 6 * weights + 12 * config.num_hidden_layers * config.hidden_size * seq_len
