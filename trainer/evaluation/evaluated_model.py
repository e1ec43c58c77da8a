"""A model to score, with all that decides how it reads text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shards import ShardSet
from trainer.model.decoder import LanguageModel
from trainer.recipe import TrainConfig


@dataclass(frozen=True)
class EvaluatedModel:
    """A model to score, with what decides how it reads text."""

    model: LanguageModel
    train: TrainConfig
    """How the model was trained: `seq_len` and `document_mask`; `micro_batch` sizes the forward passes."""
    precision: Literal["fp32", "bf16"]
    tokenizer_json: bytes
    """The content of `tokenizer.json`."""
    eos_id: int
    bos_id: int | None
    """The token that begins each document, in a set that has one; else an EOS came before each document."""
    trained_on: ShardSet | None
    """The set that the model was trained on; None if it is not known."""

    @cached_property
    def tokenizer_sha256(self) -> str:
        """The digest of `tokenizer.json`."""
        return hashlib.sha256(self.tokenizer_json).hexdigest()
