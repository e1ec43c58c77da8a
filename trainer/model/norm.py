"""Normalisation of the residual stream, and of queries and keys."""

from __future__ import annotations

from torch import Tensor, nn

from trainer.recipe import ModelConfig


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation, in float32 whatever the residual stream is in."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x `(..., features)` to the same shape and dtype."""
        return super().forward(x.float()).to(x.dtype)


def build_norm(config: ModelConfig) -> nn.Module:
    """Build the normalisation of the residual stream for the model's kind."""
    kind = nn.LayerNorm if config.kind == "gpt2" else RMSNorm
    return kind(config.hidden_size, eps=config.rms_norm_eps)
