"""Sampling text from a run's newest checkpoint. The run folder is all that is needed: it holds the tokenizer too.

A prompt is text, never control: `<|endoftext|>` in it is encoded as these characters. It is taken as the beginning of
a document, and so follows an end of document as in training. Several prompts are continued in one batch, each with a
generator of its own: the text of each is what it would be alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shards.errors import InputError
from shards.terminal.arguments import number_in, positive_number

if TYPE_CHECKING:
    import tokenizers
    import torch

    from trainer.model import LanguageModel


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are chosen."""

    max_new_tokens: int = 200
    temperature: float = 0.8
    """0 or more; 0: the likeliest always."""
    top_k: int = 0
    """Choose among so many of the likeliest; 0: all."""
    top_p: float = 0.95
    """Choose among the likeliest, of those that top-k left, that together have this probability: above 0, at most 1."""
    repetition_penalty: float = 1.1
    """Above 1: tokens that occurred are less likely."""
    seed: int = 1337


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    prompts = "the beginning of a document; may be empty. Repeat the flag to continue several at once"
    text = {"action": "append", "required": True, "type": utf8, "metavar": "TEXT"}
    parser.add_argument("--prompt", dest="prompts", **text, help=prompts)
    parser.epilog = "--json prints one line for each prompt."
    parser.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="folder of a checkpoint (default: the newest of RUN)"
    )
    flags = (
        ("--max-new-tokens", positive_number, "1 or more"),
        ("--temperature", number_in(0, 100), "0 to 100; 0 always takes the likeliest token"),
        ("--top-k", number_in(0, 1 << 31, int), "choose among the N likeliest tokens; 0: all"),
        ("--top-p", number_in(1e-6, 1), "choose among the likeliest tokens whose probabilities add up to N"),
        (
            "--repetition-penalty",
            number_in(0.01, 100),
            "0.01 to 100; above 1, tokens that have occurred become less likely",
        ),
        ("--seed", number_in(0, (1 << 63) - 1, int), "0 or more"),
    )
    for flag, kind, note in flags:
        default = getattr(SamplingOptions(), flag[2:].replace("-", "_"))
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=f"{note} (default: %(default)s)")


def utf8(text: str) -> str:
    """Return a flag's text; raises ValueError for bytes that are no UTF-8, which Python shows as lone surrogates."""
    return text.encode().decode()


def run(options: argparse.Namespace) -> int:
    """Sample; prints each prompt and its continuation, of a single prompt as it comes. JSON: a line a prompt."""
    from shards.terminal.display import printable, say

    chosen = SamplingOptions(**{option.name: getattr(options, option.name) for option in fields(SamplingOptions)})
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
class Completion:
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

    from shards.stores.files import hash_file
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
    loaded: LoadedRun, prompts: list[str], options: SamplingOptions, on_text: Callable[[str], None] | None = None
) -> list[Completion]:
    """Continue prompts. The same arguments give the same texts on the same machine.

    Args:
        loaded: the model and its tokenizer.
        prompts: beginnings of documents, which may be empty.
        options: how to choose tokens.
        on_text: called with the prompt and then with each piece of text, whole characters, as it comes; one prompt.

    Raises:
        InputError: a prompt fills the model's context.
    """
    tokenizer = loaded.tokenizer
    tokenizer.encode_special_tokens = True
    prompt_ids = [[loaded.eos_id, *tokenizer.encode(text, add_special_tokens=False).ids] for text in prompts]
    context = loaded.model.config.max_position_embeddings
    if (longest := max(map(len, prompt_ids))) >= context:
        found = f"the longest has {longest} tokens with the one that begins a document"
        raise InputError(f"--prompt: {found}; expected fewer than the model's context of {context}")
    samples = [Completion(prompt, loaded.step) for prompt in prompts]
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
    model: LanguageModel, prompts: list[list[int]], options: SamplingOptions, eos_id: int
) -> Iterator[tuple[int, int]]:
    """Yield (prompt's number, next id), all prompts in turns.

    A prompt ends after an EOS, after `max_new_tokens` ids, and where the model's context is full. Its first id is never
    penalised. What all prompts have positions for is fed at once, then one position after another: the ids of the
    longer prompts and those chosen for the shorter ones, so that nothing has to be padded.
    """
    import torch

    from trainer.model import KeyValueCache

    device, cache = next(model.parameters()).device, KeyValueCache()
    generators = [torch.Generator().manual_seed(options.seed) for _ in prompts]
    texts, going = [list(ids) for ids in prompts], set(range(len(prompts)))
    shortest = min(map(len, prompts))
    fed = [ids[:shortest] for ids in prompts]
    while going:
        # Not `model(...)`: that of a training run may be compiled, and would be so anew for each length of the cache.
        with torch.inference_mode():  # not across a yield: the mode would leak to the caller
            logits = model.forward(torch.tensor(fed, device=device), cache=cache)[:, -1].cpu()
        for row in sorted(going):
            if len(texts[row]) > cache.length:
                continue  # in its prompt
            token = choose_token(logits[row], texts[row][1:], options, generators[row])
            texts[row].append(token)
            yield row, token
            full = cache.length == model.config.max_position_embeddings
            if token == eos_id or full or len(texts[row]) == len(prompts[row]) + options.max_new_tokens:
                going.remove(row)
        # Rows that have ended repeat their last id, whose logits nobody looks at.
        fed = [ids[cache.length :][:1] or ids[-1:] for ids in texts]


def choose_token(logits: torch.Tensor, seen: list[int], options: SamplingOptions, generator: torch.Generator) -> int:
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
    # Without the largest, which changes nothing, no temperature is too small.
    probabilities = torch.softmax((ordered - ordered[0]) / options.temperature, dim=0)
    # A token is kept while those before it have not reached top_p; the likeliest always is.
    keep = probabilities.cumsum(0) - probabilities < options.top_p
    return int(order[torch.multinomial(probabilities * keep, 1, generator=generator)])
