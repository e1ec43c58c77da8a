"""The decoder with a cache, several prompts in one batch, stopping, streaming."""

import json

import pytest
import torch

from tests.trainer.conftest import make_config
from trainer.model.decoder import LanguageModel, build_model
from trainer.model.generate import generate_texts, iter_tokens
from trainer.recipe.eval_config import SamplingOptions

VOCAB_SIZE, EOS = 200, 0
GREEDY = SamplingOptions(max_new_tokens=30, temperature=0.0, repetition_penalty=1.0)
PROMPTS = [[0], [0, 5, 9, 3, 7, 11, 2], [0, 8, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request) -> LanguageModel:
    model = build_model(make_config(request.param, num_hidden_layers=3), VOCAB_SIZE, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 8  # far enough from the start that positions matter to what is likeliest
    return model


def continue_all(model: LanguageModel, prompts: list[list[int]], options: SamplingOptions) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in prompts]
    for row, token in iter_tokens(model, prompts, options, {EOS}):
        rows[row].append(token)
    return rows


@pytest.mark.parametrize("options", [GREEDY, SamplingOptions(max_new_tokens=40, temperature=1.0, top_k=20)])
def test_a_batch_gives_each_prompt_the_tokens_it_has_alone(model, options):
    together = continue_all(model, PROMPTS, options)
    assert together == [continue_all(model, [prompt], options)[0] for prompt in PROMPTS]
    assert len({tuple(row) for row in together}) > 1


def test_streamed_pieces_are_the_text_in_whole_characters(loaded, monkeypatch):
    ids = loaded.tokenizer.encode("ñandú 字 🚀", add_special_tokens=False).ids
    tokens = iter([*ids, loaded.eos_id])
    monkeypatch.setattr("trainer.model.generate.choose_token", lambda *_: next(tokens))
    pieces: list[str] = []
    (sample,) = generate_texts(loaded, ["the"], SamplingOptions(), on_text=pieces.append)
    assert pieces[0] == "the"
    assert "".join(pieces) == "the" + sample.text == "theñandú 字 🚀"
    assert len([piece for piece in pieces if piece]) > 5
    assert "\ufffd" not in "".join(pieces)


def test_the_command_continues_several_prompts(trainer, run):
    arguments = ("sample", run, "--prompt", "the mill", "--prompt", "def", "--max-new-tokens", 6)
    done = trainer.run(*arguments, "--json", expect=0)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["prompt"] for result in results] == ["the mill", "def"]
    assert all(1 <= len(result["token_ids"]) <= 6 for result in results)
    assert trainer.run(*arguments).stdout == "\n".join(r["prompt"] + r["text"] + "\n" for r in results)
    alone = trainer.run("sample", run, "--prompt", "def", "--max-new-tokens", 6)
    assert alone.stdout == "def" + results[1]["text"] + "\n"
    # Control characters do not reach the terminal.
    assert trainer.run("sample", run, "--prompt", "a\x1b[2Jb", "--max-new-tokens", 1).stdout.startswith("a\\x1b[2Jb")
