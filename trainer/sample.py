"""Sampling text from a run's newest checkpoint. The run folder is all that is needed: it holds the tokenizer too.

A prompt is text, never control: `<|endoftext|>` in it is encoded as these characters. It is taken as the beginning of
a document, and so follows an end of document as in training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import tokenizers
import torch
from torch import Tensor

from trainer import checkpoint
from trainer.device import choose_device
from trainer.errors import InputError
from trainer.model import KeyValueCache, Llama
from trainer.progress import say
from trainer.recipe import parse_recipe
from trainer.session import TOKENIZER_FILE
from trainer.vocabulary import hash_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="the beginning of a document; may be empty")
    parser.add_argument("--max-new-tokens", type=int, default=200, metavar="N", help="default %(default)s")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0: likeliest; default %(default)s")
    parser.add_argument("--top-p", type=float, default=0.95, metavar="P", help="default %(default)s")
    parser.add_argument(
        "--repetition-penalty", type=float, default=1.1, metavar="R", help="1: none; default %(default)s"
    )
    parser.add_argument("--seed", type=int, default=1337, metavar="S", help="default %(default)s")


def run(options: argparse.Namespace) -> int:
    """Sample; prints the prompt and its continuation."""
    names = ("max_new_tokens", "temperature", "top_p", "repetition_penalty", "seed")
    chosen = SampleOptions(**{name: getattr(options, name) for name in names})
    result = sample_text(load_run(options.run, say), options.prompt, chosen)
    if options.json:
        print(json.dumps({**asdict(result), "options": asdict(chosen)}, indent=2, ensure_ascii=False))
        return 0
    print(result.prompt + result.text)
    if result.finish == "context":
        say(f"stopped after {len(result.token_ids)} tokens: the model's context is full")
    return 0


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """How tokens are chosen."""

    max_new_tokens: int = 200
    temperature: float = 0.8
    """0 takes the likeliest token always."""
    top_p: float = 0.95
    """Choose among the likeliest tokens that together have this probability."""
    repetition_penalty: float = 1.1
    """Above 1 makes tokens less likely that occurred already; 1 does nothing."""
    seed: int = 1337

    def find_problems(self) -> list[str]:
        """Return what is out of bounds."""
        checks = [
            ("max-new-tokens", self.max_new_tokens, self.max_new_tokens >= 1, "at least 1"),
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 or more"),
            ("top-p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("repetition-penalty", self.repetition_penalty, 0 < self.repetition_penalty < float("inf"), "above 0"),
            ("seed", self.seed, 0 <= self.seed < 1 << 63, "between 0 and 2**63 - 1"),
        ]
        return [f"--{name} {value}: expected {expected}" for name, value, holds, expected in checks if not holds]


@dataclass(frozen=True, slots=True)
class Sample:
    """A continued prompt. `finish` says why it ended: `eos`, `length` (as asked) or `context` (the model's is full)."""

    prompt: str
    text: str
    token_ids: list[int]
    finish: Literal["eos", "length", "context"]
    step: int


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A trained model with its tokenizer."""

    model: Llama
    tokenizer: tokenizers.Tokenizer
    eos_id: int
    step: int


def load_run(run: Path, say: Callable[[str], None]) -> LoadedRun:
    """Load a run's newest whole checkpoint and its tokenizer.

    Raises:
        InputError: the folder holds none, or the tokenizer is not the one trained with.
    """
    found = checkpoint.find_newest(run, say)
    if found is None:
        raise InputError(f"{run}: no checkpoints. Expected the folder given to `python -m trainer train --run`.")
    file = run / TOKENIZER_FILE
    if not file.is_file() or hash_file(file) != found.state.tokenizer_sha256:
        what = "is not the tokenizer of the checkpoint" if file.is_file() else "is missing"
        raise InputError(f"{file}: {what} (sha256 {found.state.tokenizer_sha256}). Copy it from the shard set.")
    model = Llama(parse_recipe(found.state.recipe).model, found.state.vocab_size)
    checkpoint.load_weights(found, model)
    model.to(choose_device()).eval()
    return LoadedRun(model, tokenizers.Tokenizer.from_file(str(file)), found.state.eos_id, found.state.step)


def sample_text(loaded: LoadedRun, prompt: str, options: SampleOptions) -> Sample:
    """Continue a prompt. The same arguments give the same text on the same machine.

    Raises:
        InputError: an option is out of bounds, or the prompt fills the model's context.
    """
    problems = options.find_problems()
    loaded.tokenizer.encode_special_tokens = True
    prompt_ids = [loaded.eos_id, *loaded.tokenizer.encode(prompt, add_special_tokens=False).ids]
    context = loaded.model.config.max_position_embeddings
    if len(prompt_ids) >= context:
        problems.append(
            f"--prompt: {len(prompt_ids)} tokens with the one that begins a document; expected fewer than the "
            f"model's context of {context}"
        )
    if problems:
        raise InputError(problems)
    ids: list[int] = []
    finish: Literal["eos", "length", "context"] = "length"
    for token in iter_tokens(loaded.model, prompt_ids, options):
        if token == loaded.eos_id:
            finish = "eos"
            break
        ids.append(token)
    if finish == "length" and len(ids) < options.max_new_tokens:
        finish = "context"
    return Sample(prompt, loaded.tokenizer.decode(ids, skip_special_tokens=False), ids, finish, loaded.step)


@torch.inference_mode()
def iter_tokens(model: Llama, prompt_ids: list[int], options: SampleOptions) -> Iterator[int]:
    """Yield up to `max_new_tokens` ids, fewer when the context is full. The first prompt id is never penalised."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(options.seed)
    cache = KeyValueCache()
    fed, seen = prompt_ids, list(prompt_ids[1:])
    room = model.config.max_position_embeddings - len(prompt_ids) + 1
    for _ in range(min(options.max_new_tokens, room)):
        logits = model(torch.tensor([fed], device=device), cache=cache)[0, -1].cpu()
        token = choose_token(logits, seen, options, generator)
        yield token
        fed = [token]
        seen.append(token)


def choose_token(logits: Tensor, seen: list[int], options: SampleOptions, generator: torch.Generator) -> int:
    """Choose the next id.

    Args:
        logits: float32 `(vocab_size,)`.
        seen: ids that the repetition penalty applies to. Source of the penalty: CTRL (arXiv:1909.05858).
        options: how to choose.
        generator: a CPU generator.
    """
    if seen and options.repetition_penalty != 1:
        logits = logits.clone()
        index = torch.tensor(sorted(set(seen)))
        values, penalty = logits[index], options.repetition_penalty
        logits[index] = torch.where(values > 0, values / penalty, values * penalty)
    if options.temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.double() / options.temperature, dim=0)
    ordered, order = probabilities.sort(descending=True, stable=True)
    # A token is kept while those before it have not reached top_p; the likeliest always is.
    keep = ordered.cumsum(0) - ordered < options.top_p
    return int(order[torch.multinomial(ordered * keep, 1, generator=generator)])
