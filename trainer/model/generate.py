"""Continuing texts with a model, token by token, and answering in a conversation.

A prompt is plain text: `<|endoftext|>` in it is encoded as these characters. It is the beginning of a document, and so
follows an end-of-document token, as in training. Several prompts are continued in one batch, each with a separate
random generator, so that each text is the same as if its prompt were alone.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer

from shards import ShardSet
from shards.errors import InputError, RunError, plural
from shards.format.chat import ChatIds, make_chat_ids
from shards.format.manifest import ChatEntry
from shards.format.tokenizer_json import make_plain, parse_tokenizer, without_prefix
from shards.torch.batch import number_documents
from trainer.model.attention import KeyValueCache
from trainer.model.decoder import LanguageModel
from trainer.recipe.eval_config import SamplingOptions
from trainer.recipe.schema import TrainConfig


@dataclass(slots=True)
class Completion:
    """A prompt and its continuation.

    Attributes:
        prompt: the prompt.
        step: the training step of the model.
        text: the continuation.
        token_ids: its tokens, without the end of document.
        finish: why it ended: `eos`, `turn` (an answer ended), `length` (as many tokens as asked for) or `context` (the
            model's context is full).
    """

    prompt: str
    step: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    finish: Literal["eos", "turn", "length", "context"] = "length"


@dataclass(frozen=True)
class TrainedModel:
    """A model at a step of its training, with its tokenizer and what decides how it reads text."""

    model: LanguageModel
    train: TrainConfig
    """How it was trained: `seq_len`, `document_mask`, `precision`; `micro_batch` sizes the passes that score it."""
    tokenizer_json: bytes
    eos_id: int
    bos_id: int | None
    """The id that begins each document of its set; None if none does, and an EOS comes before a document."""
    step: int
    trained_on: ShardSet | None = None
    """The set that it was trained on; None if it is not known."""
    chat: ChatEntry | None = None
    """The format of its set's conversations; None if it has none."""
    untrained: frozenset[int] = frozenset()
    """The ids of special tokens that no text of its training had."""
    files: tuple[Path, ...] = ()
    """The files that its weights were read from."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Encodes text alone: what spells a special token is encoded as these characters, whole and unpadded."""
        tokenizer = Tokenizer.from_buffer(self.tokenizer_json)
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def tokenizer_sha256(self) -> str:
        """The digest of the content of `tokenizer.json`."""
        return hashlib.sha256(self.tokenizer_json).hexdigest()

    @cached_property
    def chat_ids(self) -> ChatIds:
        """How messages are written as ids.

        Raises:
            InputError: the model has seen no conversations.
        """
        if self.chat is None:
            raise InputError("--chat: the model was trained on a set without conversations. Leave --chat out.")
        special = parse_tokenizer(self.tokenizer_json).special
        return make_chat_ids(self.chat.before, self.chat.after, special, self.encode_piece)

    @property
    def answer_ends(self) -> set[int]:
        """The ids that end an answer: EOS, and what stands after one; where nothing does, what begins a message."""
        chat = self.chat_ids
        return {self.eos_id, *(chat.tail[:1] or (head[0] for head in chat.heads.values()))}

    @cached_property
    def encode_piece(self) -> Callable[[str], list[int]]:
        """Returns the ids of a piece of a conversation, before which no space is put."""
        pieces = Tokenizer.from_str(json.dumps(make_plain(without_prefix(json.loads(self.tokenizer_json)))))
        return lambda text: pieces.encode(text, add_special_tokens=False).ids

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def rows(self) -> int:
        """The windows of a forward pass that scores: uncompiled, each takes more memory than in training."""
        return max(1, self.train.micro_batch // 4)

    @property
    def begin_id(self) -> int:
        """The id that comes before a text: BOS, or the end of the document before."""
        return self.eos_id if self.bos_id is None else self.bos_id

    def number_documents(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Return the documents of windows `(windows, length)` that do not see each other; None if all do.

        What comes before a text, `begin_id`, is of the document that it begins: training, scores, continued texts and
        exports see the same there.
        """
        eos = "begins" if self.bos_id is None else "ends"
        return number_documents(ids, self.eos_id, eos=eos) if self.train.document_mask else None

    def encode_prompts(self, prompts: list[str], key: str) -> list[list[int]]:
        """Return the ids of texts to continue, each after what begins a document.

        Raises:
            InputError: one fills the model's context; the message begins with the key or flag that has them.
        """
        found = [[self.begin_id, *ids] for ids in self.encode(prompts)]
        context = self.model.config.max_position_embeddings
        if (longest := max(map(len, found), default=0)) >= context:
            raise InputError(
                f"{key}: the longest has {plural(longest, 'token')} with the one that begins a document; expected "
                f"fewer than the model's context of {context}"
            )
        return found

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of texts."""
        return [one.ids for one in self.tokenizer.encode_batch(texts, add_special_tokens=False)]


def generate_texts(
    trained: TrainedModel,
    prompts: list[str],
    options: SamplingOptions,
    on_text: Callable[[str], None] | None = None,
) -> list[Completion]:
    """Generate texts that continue prompts. The same arguments give the same texts on the same machine.

    Args:
        trained: the model and its tokenizer.
        prompts: beginnings of documents, which may be empty.
        options: how to choose tokens.
        on_text: called with the prompt, and then with each piece of text as soon as its characters are whole; for a
            single prompt only.

    Raises:
        InputError: a prompt fills the model's context.
    """
    completions = [Completion(prompt, trained.step) for prompt in prompts]
    prompt_ids = trained.encode_prompts(prompts, "--prompt")
    if on_text:
        on_text(prompts[0])
    complete(trained, completions, prompt_ids, options, {trained.eos_id}, on_text)
    return completions


def complete(
    trained: TrainedModel,
    completions: list[Completion],
    prompt_ids: list[list[int]],
    options: SamplingOptions,
    ends: Set[int],
    on_text: Callable[[str], None] | None,
) -> None:
    """Generate the texts and tokens of completions, which have them so far if this is interrupted.

    Args:
        trained: the model and its tokenizer.
        completions: filled in here.
        prompt_ids: what each continues.
        options: how to choose tokens.
        ends: the ids that end a text.
        on_text: as for `generate_texts`.
    """
    tokenizer = trained.tokenizer
    # Collect tokens, and show the text as soon as its characters are whole.
    shown = 0
    for row, token in iter_tokens(trained.model, prompt_ids, options, ends):
        completion = completions[row]
        if token in ends:
            completion.finish = "eos" if token == trained.eos_id else "turn"
            continue
        completion.token_ids.append(token)
        if on_text:
            text = tokenizer.decode(completion.token_ids, skip_special_tokens=False)
            if not text.endswith("\ufffd"):  # the last character is whole
                on_text(text[shown:])
                shown = len(text)

    # Decode, and find out why each text ended.
    for completion in completions:
        completion.text = tokenizer.decode(completion.token_ids, skip_special_tokens=False)
        if completion.finish == "length" and len(completion.token_ids) < options.max_new_tokens:
            completion.finish = "context"
    if on_text:
        on_text(completions[0].text[shown:])


class Conversation:
    """What was said so far.

    Attributes:
        ids: all ids from the one that begins a document.
    """

    def __init__(self, trained: TrainedModel, options: SamplingOptions):
        """Begin a conversation.

        Raises:
            InputError: the model has seen no conversations.
        """
        self._trained, self._options, self._chat = trained, options, trained.chat_ids
        self.ids = [trained.begin_id]

    def ask(self, question: str, on_text: Callable[[str], None] | None = None) -> Completion:
        """Return the answer to a question; it belongs to the conversation also if it is interrupted.

        Args:
            question: what the user says.
            on_text: called with each piece of the answer as soon as its characters are whole.

        Raises:
            InputError: the question fills the model's context; the conversation stays as it was.
        """
        trained, chat = self._trained, self._chat
        ids = [*self.ids, *chat.encode([("user", question)], trained.encode_piece), *chat.opening]
        context = trained.model.config.max_position_embeddings
        if len(ids) >= context:
            raise InputError(
                f"the conversation has {plural(len(ids), 'token')} with this question; expected fewer than the model's "
                f"context of {context}. Ask less, or begin another conversation."
            )
        answer = Completion(question, trained.step)
        try:
            complete(trained, [answer], [ids], self._options, trained.answer_ends, on_text)
        finally:
            self.ids = [*ids, *answer.token_ids, *chat.tail]
        return answer


def iter_tokens(
    model: LanguageModel, prompts: list[list[int]], options: SamplingOptions, ends: Set[int]
) -> Iterator[tuple[int, int]]:
    """Generate tokens: yield (number of the prompt, next id), taking turns between the prompts.

    A prompt ends after one of `ends`, after `max_new_tokens` ids, or when the model's context is full. The first id of
    a prompt is never penalised. The positions that all prompts have are fed to the model at once, then one position
    after another: the remaining ids of the longer prompts and the chosen ids of the shorter ones, so that nothing is
    padded.
    """
    device = next(model.parameters()).device
    cache = KeyValueCache()
    generators = [torch.Generator().manual_seed(options.seed) for _ in prompts]
    texts = [list(ids) for ids in prompts]
    going = set(range(len(prompts)))
    shortest = min(map(len, prompts))
    fed = [ids[:shortest] for ids in prompts]
    while going:
        # `forward`, not `model(...)`: the model of a run may be compiled, and would be again for each cache length.
        with torch.inference_mode():  # not across a yield: the mode would leak to the caller
            logits = model.forward(torch.tensor(fed, device=device), cache=cache)[:, -1].cpu()
        if not logits.isfinite().all():
            raise RunError("the model's logits are not finite: its weights are too large. Use an earlier checkpoint.")
        for row in sorted(going):
            if len(texts[row]) > cache.length:
                continue  # still in its prompt
            token = choose_token(logits[row], texts[row][1:], options, generators[row])
            texts[row].append(token)
            yield row, token
            full = cache.length == model.config.max_position_embeddings
            if token in ends or full or len(texts[row]) == len(prompts[row]) + options.max_new_tokens:
                going.remove(row)
        # Rows that have ended repeat their last id; their logits are not used.
        fed = [ids[cache.length :][:1] or ids[-1:] for ids in texts]


def choose_token(logits: torch.Tensor, seen: list[int], options: SamplingOptions, generator: torch.Generator) -> int:
    """Choose the next id to generate.

    Args:
        logits: float32 `(vocab_size,)`.
        seen: ids that the repetition penalty applies to. Source of the penalty: CTRL (arXiv:1909.05858).
        options: how to choose.
        generator: a CPU generator.
    """
    if seen and options.repetition_penalty != 1:
        logits = logits.clone()
        index = torch.tensor(sorted(set(seen)))
        values = logits[index]
        penalty = options.repetition_penalty
        logits[index] = torch.where(values > 0, values / penalty, values * penalty)
    if options.temperature == 0:
        return int(logits.argmax())
    ordered, order = logits.double().sort(descending=True, stable=True)
    if options.top_k:
        ordered = ordered[: options.top_k]
    # Subtracting the largest logit changes no probability, and no temperature is too small.
    probabilities = torch.softmax((ordered - ordered[0]) / options.temperature, dim=0)
    # A token is kept while the tokens before it have not reached top_p; the likeliest always is.
    keep = probabilities.cumsum(0) - probabilities < options.top_p
    return int(order[torch.multinomial(probabilities * keep, 1, generator=generator)])
