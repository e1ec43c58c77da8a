"""Sampling text from a run's newest checkpoint. The run folder is all that is needed: it holds the tokenizer too.

A prompt is text, never control: `<|endoftext|>` in it is encoded as these characters. It is taken as the beginning of
a document, and so follows an end of document as in training. Several prompts are continued in one batch, each with a
generator and positions of its own: the text of each is what it would be alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainer.errors import InputError

if TYPE_CHECKING:
    import tokenizers
    import torch

    from trainer.model import LanguageModel


def _option(default: float, holds: Callable[[float], bool], expected: str, note: str = "") -> Any:
    """Declare one of `SampleOptions`: its default, its bounds in code and in words, and what more its help says."""
    return field(default=default, metadata={"holds": holds, "expected": expected, "help": note})


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """How tokens are chosen."""

    max_new_tokens: int = _option(200, lambda value: value >= 1, "at least 1")
    temperature: float = _option(0.8, lambda value: 0 <= value < math.inf, "0 or more", "0: the likeliest always; ")
    top_k: int = _option(0, lambda value: value >= 0, "0 or more", "choose among so many of the likeliest; 0: all; ")
    top_p: float = _option(
        0.95,
        lambda value: 0 < value <= 1,
        "above 0 and at most 1",
        "choose among the likeliest, of those that top-k left, that together have this probability; ",
    )
    repetition_penalty: float = _option(
        1.1, lambda value: 0 < value < math.inf, "above 0", "above 1: tokens that occurred are less likely; "
    )
    seed: int = _option(1337, lambda value: 0 <= value < 1 << 63, "between 0 and 2**63 - 1")

    def find_problems(self) -> list[str]:
        """Return what is out of bounds."""
        values = [(option, getattr(self, option.name)) for option in fields(self)]
        return [
            f"--{option.name.replace('_', '-')} {value}: expected {option.metadata['expected']}"
            for option, value in values
            if not option.metadata["holds"](value)
        ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    prompts = "the beginning of a document; may be empty. Repeat it: several are continued at once"
    parser.add_argument("--prompt", action="append", required=True, dest="prompts", metavar="TEXT", help=prompts)
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="a checkpoint; default: the newest of RUN")
    for option in fields(SampleOptions):
        about = {"type": type(option.default), "default": option.default, "metavar": "N"}
        note = f"{option.metadata['help']}{option.metadata['expected']}; default %(default)s"
        parser.add_argument(f"--{option.name.replace('_', '-')}", **about, help=note)


def run(options: argparse.Namespace) -> int:
    """Sample; prints each prompt and its continuation, of a single prompt as it comes. JSON: a line a prompt."""
    from shards.display import printable
    from trainer.progress import say

    chosen = SampleOptions(**{option.name: getattr(options, option.name) for option in fields(SampleOptions)})
    loaded = load_run(options.run, say, options.checkpoint)
    stream = len(options.prompts) == 1 and not options.json

    def show(text: str) -> None:
        print(printable(text, keep="\n\t"), end="", flush=True)

    samples = sample_texts(loaded, options.prompts, chosen, on_text=show if stream else None)
    for index, sample in enumerate(samples):
        if options.json:
            print(json.dumps({**asdict(sample), "options": asdict(chosen)}, ensure_ascii=False))
            continue
        show("\n" if stream else "\n" * (index > 0) + sample.prompt + sample.text + "\n")
        if sample.finish == "context":
            say(f"stopped after {len(sample.token_ids)} tokens: the model's context is full")
    return 0


@dataclass(slots=True)
class Sample:
    """A continued prompt. `finish` says why it ended: `eos`, `length` (as asked) or `context` (the model's is full)."""

    prompt: str
    step: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: Literal["eos", "length", "context"] = "length"


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A trained model with its tokenizer."""

    model: LanguageModel
    tokenizer: tokenizers.Tokenizer
    eos_id: int
    step: int


def load_run(run: Path, say: Callable[[str], None], path: Path | None = None) -> LoadedRun:
    """Load a checkpoint of a run, by default its newest whole one, and its tokenizer.

    Raises:
        InputError: the folder holds none, or the tokenizer is not the one trained with.
    """
    import tokenizers

    from shards.structure import hash_file
    from trainer import checkpoint
    from trainer.device import choose_device
    from trainer.model import LanguageModel
    from trainer.recipe import parse_recipe
    from trainer.session import TOKENIZER_FILE

    found = checkpoint.read_checkpoint(path) if path else checkpoint.find_newest(run, say)
    if found is None:
        raise InputError(f"{run}: no checkpoints. Expected the folder given to `python -m trainer train --run`.")
    file = run / TOKENIZER_FILE
    if not file.is_file() or hash_file(file) != found.state.tokenizer_sha256:
        what = "is not the tokenizer of the checkpoint" if file.is_file() else "is missing"
        raise InputError(f"{file}: {what} (sha256 {found.state.tokenizer_sha256}). Copy it from the shard set.")
    model = LanguageModel(parse_recipe(found.state.recipe).model, found.state.vocab_size)
    checkpoint.load_weights(found, model)
    model.to(choose_device()).eval()
    return LoadedRun(model, tokenizers.Tokenizer.from_file(str(file)), found.state.eos_id, found.state.step)


def sample_texts(
    loaded: LoadedRun, prompts: list[str], options: SampleOptions, on_text: Callable[[str], None] | None = None
) -> list[Sample]:
    """Continue prompts. The same arguments give the same texts on the same machine.

    Args:
        loaded: the model and its tokenizer.
        prompts: beginnings of documents, which may be empty.
        options: how to choose tokens.
        on_text: called with the prompt and then with each piece of text, whole characters, as it comes; one prompt.

    Raises:
        InputError: an option is out of bounds, or a prompt fills the model's context.
    """
    problems, tokenizer = options.find_problems(), loaded.tokenizer
    tokenizer.encode_special_tokens = True
    prompt_ids = [[loaded.eos_id, *tokenizer.encode(text, add_special_tokens=False).ids] for text in prompts]
    context = loaded.model.config.max_position_embeddings
    problems += [
        f"--prompt: {len(ids)} tokens with the one that begins a document; expected fewer than the "
        f"model's context of {context}"
        for ids in prompt_ids
        if len(ids) >= context
    ]
    if problems:
        raise InputError(problems)
    samples = [Sample(prompt, loaded.step) for prompt in prompts]
    shown = 0
    if on_text:
        on_text(prompts[0])
    for row, token in iter_tokens(loaded.model, prompt_ids, options, loaded.eos_id):
        sample = samples[row]
        if token == loaded.eos_id:
            sample.finish = "eos"
            continue
        sample.token_ids.append(token)
        if on_text and not (text := tokenizer.decode(sample.token_ids, skip_special_tokens=False)).endswith("\ufffd"):
            on_text(text[shown:])
            shown = len(text)
    for sample in samples:
        sample.text = tokenizer.decode(sample.token_ids, skip_special_tokens=False)
        if sample.finish == "length" and len(sample.token_ids) < options.max_new_tokens:
            sample.finish = "context"
    if on_text:
        on_text(samples[0].text[shown:])
    return samples


def iter_tokens(
    model: LanguageModel, prompts: list[list[int]], options: SampleOptions, eos_id: int
) -> Iterator[tuple[int, int]]:
    """Yield (prompt's number, next id), all prompts in turns.

    A prompt ends after an EOS, after `max_new_tokens` ids, and where the model's context is full. Its first id is never
    penalised.
    """
    import torch

    from trainer.model import KeyValueCache

    device, context = next(model.parameters()).device, model.config.max_position_embeddings
    generators = [torch.Generator().manual_seed(options.seed) for _ in prompts]
    seen = [list(ids[1:]) for ids in prompts]
    rows, lengths = list(range(len(prompts))), [len(ids) for ids in prompts]
    width = max(lengths)
    padding = torch.tensor([width - length for length in lengths], device=device) if min(lengths) < width else None
    cache = KeyValueCache(padding=padding, prompt=width)
    fed, last = [ids + [eos_id] * (width - len(ids)) for ids in prompts], [length - 1 for length in lengths]
    for count in range(1, options.max_new_tokens + 1):
        with torch.inference_mode():  # not across a yield: the mode would leak to the caller
            logits = model(torch.tensor(fed, device=device), cache=cache)[range(len(rows)), last].cpu()
        going = []
        for index, row in enumerate(rows):
            token = choose_token(logits[index], seen[row], options, generators[row])
            seen[row].append(token)
            yield row, token
            if token != eos_id and count <= context - lengths[row]:
                going.append(index)
        if not going:
            return
        if len(going) < len(rows):
            cache.select(going)
        rows = [rows[index] for index in going]
        fed, last = [seen[row][-1:] for row in rows], [0] * len(rows)


def choose_token(logits: torch.Tensor, seen: list[int], options: SampleOptions, generator: torch.Generator) -> int:
    """Choose the next id.

    Args:
        logits: float32 `(vocab_size,)`.
        seen: ids that the repetition penalty applies to. Source of the penalty: CTRL (arXiv:1909.05858).
        options: how to choose.
        generator: a CPU generator.
    """
    import torch

    if seen and options.repetition_penalty != 1:
        logits = logits.clone()
        index = torch.tensor(sorted(set(seen)))
        values, penalty = logits[index], options.repetition_penalty
        logits[index] = torch.where(values > 0, values / penalty, values * penalty)
    if options.temperature == 0:
        return int(logits.argmax())
    ordered, order = logits.double().sort(descending=True, stable=True)
    if options.top_k:
        ordered = ordered[: options.top_k]
    probabilities = torch.softmax(ordered / options.temperature, dim=0)
    # A token is kept while those before it have not reached top_p; the likeliest always is.
    keep = probabilities.cumsum(0) - probabilities < options.top_p
    return int(order[torch.multinomial(probabilities * keep, 1, generator=generator)])
