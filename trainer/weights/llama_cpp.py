"""The proof of a GGUF file by llama.cpp itself, as its server answers on the loopback interface.

Compared are ids of texts, conversations by the chat template, and what the model says: greedy texts, of which one is an
answer. llama.cpp runs in a process of its own, whose crash is an error like any other.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from shards.convert.chat_template import prove_template
from shards.convert.tokenizer_proof import PROBES, Encode, iter_documents, prove_tokenizer
from shards.errors import InputError
from shards.format.reader import ShardSet
from shards.terminal.display import JsonObject, find_difference
from shards.terminal.progress import show_progress
from trainer.model.generate import Completion, TrainedModel, complete
from trainer.recipe.eval_config import SamplingOptions

Ask = Callable[[str, JsonObject], Any]
"""Returns what llama.cpp's server answers at a path to a request."""

TEXTS, NEW_TOKENS, CONTEXT = 20, 24, 512
GREEDY = SamplingOptions(temperature=0, repetition_penalty=1)
QUESTION = "Who?"
TIES = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.5}
"""Texts may differ after two tokens whose logits differ by less: sums in another order, rounded to the dtype."""


@contextmanager
def serve(file: Path, context: int) -> Generator[Ask]:
    """Run llama.cpp's server on a GGUF file, in another process.

    Args:
        file: the file.
        context: tokens of the longest text.

    Raises:
        InputError: when it is asked: it cannot load the file, or has ended.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy is asked for the loopback
    command = [sys.executable, "-P", str(Path(__file__).with_name("llama_server.py")), str(file), str(context)]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().strip()  # empty if it has ended

        def ask(path: str, body: JsonObject) -> Any:
            try:
                asked = urllib.request.Request(f"{address}{path}", json.dumps(body).encode())
                asked.add_header("Content-Type", "application/json")
                with opener.open(asked, timeout=600) as answer:
                    return json.load(answer)
            except (OSError, ValueError) as error:
                log.seek(0)
                said = " ".join(log.read().decode(errors="replace").split()[-40:])
                raise InputError(
                    f"{file.name}: llama.cpp cannot run it ({error}): {said} Nothing was exported."
                ) from error

        try:
            yield ask
        finally:
            process.kill()


def prove_gguf(
    file: Path, trained: TrainedModel, tokenizer: Path, shard_set: ShardSet | None, dtype: str
) -> JsonObject:
    """Compare a GGUF file with its model: ids, prompts of conversations, greedy texts and an answer.

    Args:
        file: the file.
        trained: the model.
        tokenizer: its `tokenizer.json`.
        shard_set: whose documents and conversations are compared; None for probes alone.
        dtype: of the file's weights.

    Returns:
        The receipt: how much was compared, whether that is a proof, and how an answer ended.

    Raises:
        InputError: something differs, or llama.cpp cannot run the file.
        ShardSetError: a file of the set is not what the manifest says.
    """
    context = min(CONTEXT, trained.model.config.max_position_embeddings)
    with serve(file, context) as ask:

        def encode(text: str, special: bool = False) -> list[int]:
            return ask("/tokenize", {"content": text, "add_special": True, "parse_special": special})["tokens"]

        def apply(messages: list[dict[str, str]], prompt: bool) -> tuple[list[int], None]:
            asked = {"messages": messages, "add_generation_prompt": prompt}
            return encode(ask("/apply-template", asked)["prompt"], special=True), None

        # Without BOS a text begins with the EOS before it, which the proof does not expect.
        others: dict[str, Encode] = {"xllamacpp": lambda text: encode(text)[trained.bos_id is None :]}
        receipt: JsonObject = {
            "tokenizer_proof": prove_tokenizer(tokenizer, bos_id=trained.bos_id, shard_set=shard_set, others=others)
        }
        texts = [text for text, _ in islice(iter_documents(shard_set), TEXTS)] if shard_set else []
        begun = trained.encode([text[:80] for text in (*texts, *PROBES)][:TEXTS])
        new = min(NEW_TOKENS, context // 2)
        prompts = [[trained.begin_id, *ids[: context - new - 1]] for ids in begun]
        if trained.chat is not None:
            proved = prove_template(shard_set, "llama.cpp", apply) if shard_set else 0
            receipt["chat_template"] = {"conversations_compared": proved}
            prompts.append(apply([{"role": "user", "content": QUESTION}], True)[0])
        ends = trained.answer_ends if trained.chat else {trained.eos_id}
        ours = [Completion("", trained.step) for _ in prompts]
        complete(trained, ours, prompts, GREEDY.with_values(max_new_tokens=new), ends, None)
        equal = 0
        with show_progress("proof by llama.cpp", unit="texts") as progress:
            for number, (prompt, own) in enumerate(zip(prompts, ours, strict=True)):
                progress(number, len(prompts))
                asked = {"prompt": prompt, "n_predict": new, "temperature": 0, "cache_prompt": False}
                theirs = ask("/completion", asked | {"return_tokens": True})["tokens"]
                given = [token for token in theirs if token not in ends]
                if given == own.token_ids:
                    equal += 1
                else:
                    _check_tie(file, trained, prompt, own.token_ids, given, TIES[dtype])
    receipt |= {"proved": equal > 0, "greedy_texts": {"compared": len(prompts), "equal": equal}}
    return receipt | ({"answer_ends_by": ours[-1].finish} if trained.chat else {})


def _check_tie(
    file: Path, trained: TrainedModel, prompt: list[int], ours: list[int], theirs: list[int], tie: float
) -> None:
    """Refuse texts that differ where the model prefers its token clearly."""
    same = find_difference(ours, theirs)
    ids = torch.tensor([[*prompt, *ours[:same]]], device=trained.device)
    with torch.inference_mode():
        best = trained.model(ids)[0, -1].topk(2).values.tolist()
    if best[0] - best[1] > tie:
        raise InputError(
            f"{file.name}: llama.cpp continues {prompt[:20]} with {theirs}, the model with {ours}. Nothing was "
            "exported. Report it with the recipe."
        )
