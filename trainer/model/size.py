"""How large a model is: its parameters, and the operations that a token takes."""

from __future__ import annotations

import torch

from trainer.model.decoder import LanguageModel
from trainer.recipe import ModelConfig


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
