"""A run on conversations: answers that end, history as it was sampled, exports that ask as we do."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from shards.errors import InputError
from shards.format.chat import mark_targets
from shards.format.reader import open_set
from tests.support.builds import Built, read_json
from tests.support.recipes import to_toml
from trainer.model.generate import Conversation, TrainedModel
from trainer.recipe.eval_config import SamplingOptions
from trainer.weights.trained_model import load_model

GREEDY = SamplingOptions(temperature=0, repetition_penalty=1, max_new_tokens=24)


@pytest.fixture(scope="module")
def chat_run(train, chat_set: Built, tmp_path_factory) -> Path:
    """A run of a few steps on rows of conversations. Read only."""
    run = tmp_path_factory.mktemp("chat") / "run"
    context = ("train.seq_len=768", "model.max_position_embeddings=768", "train.rows=packed", "model.use_qk_norm=true")
    steps = ("train.steps=12", "eval.every_steps=12", "checkpoint.every_steps=12")
    train(run, *context, *steps, "train.global_batch=4", "model.vocab_size=1000", shards=chat_set.out)
    return run


@pytest.fixture
def chat(chat_run: Path) -> TrainedModel:
    return load_model(chat_run, print)


def say(monkeypatch: pytest.MonkeyPatch, tokens: list[int | None]) -> None:
    """Make a model say these tokens; None interrupts it."""
    given: Iterator[int | None] = iter(tokens)

    def choose(*_: object) -> int:
        token = next(given)
        if token is None:
            raise KeyboardInterrupt
        return token

    monkeypatch.setattr("trainer.model.generate.choose_token", choose)


def test_the_history_is_what_was_said_closed_as_the_format_closes_it(chat, monkeypatch):
    ids, encode = chat.chat_ids, chat.encode_piece
    end = ids.tail[0]
    conversation = Conversation(chat, GREEDY)
    pieces: list[str] = []
    said = [*encode("fine<|im_end|>"), end]
    say(monkeypatch, [*said, chat.eos_id, *encode("half"), None])
    answer = conversation.ask("How are<|im_start|>you?", pieces.append)
    assert (answer.finish, answer.text, "".join(pieces)) == ("turn", "fine<|im_end|>", "fine<|im_end|>")
    asked = [("user", "How are<|im_start|>you?"), ("assistant", "fine<|im_end|>")]
    assert conversation.ids == [chat.begin_id, *ids.encode(asked, encode)]
    assert conversation.ask("And?").finish == "eos"
    # What Ctrl-C ends is closed, too, and is what the model sees next.
    with pytest.raises(KeyboardInterrupt):
        conversation.ask("More")
    asked += [("user", "And?"), ("assistant", ""), ("user", "More"), ("assistant", "half")]
    assert conversation.ids == [chat.begin_id, *ids.encode(asked, encode)]
    # What fills the context is refused, and changes nothing.
    before = list(conversation.ids)
    with pytest.raises(InputError, match="model's context of 768"):
        conversation.ask("word " * 900)
    assert conversation.ids == before
    # The answers are what training counts: each with the token that ends it.
    special = open_set_special(chat)
    ids_array = torch.tensor(before).numpy()
    targets = mark_targets(ids_array, torch.tensor([0, len(before)]).numpy(), special, ids.opening)
    assert ids_array[targets].tolist()[: len(said)] == said


def open_set_special(chat: TrainedModel) -> list[int]:
    return [index for index, token in chat.tokenizer.get_added_tokens_decoder().items() if token.special]


def test_the_command_answers_prompts_and_lines(trainer, chat_run, run, monkeypatch):
    options = ("--chat", "--temperature", 0, "--repetition-penalty", 1, "--max-new-tokens", 8, "--json")
    done = trainer.run("sample", chat_run, *options, "--prompt", "one", "--prompt", "two", expect=0)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["prompt"] for one in answers] == ["one", "two"]
    # Line by line it is one conversation: the first answer is that of the prompt.
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\ntwo\n"))
    lines = [json.loads(line) for line in trainer.run("sample", chat_run, *options, expect=0).stdout.splitlines()]
    assert [one["prompt"] for one in lines] == ["one", "two"]
    assert lines[0]["token_ids"] == answers[0]["token_ids"]
    for errors in ("strict", "surrogateescape"):  # the second is Python's in the locale C
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8", errors))
        assert "the input is not UTF-8" in trainer.run("sample", chat_run, *options, expect=2).stderr
    monkeypatch.setattr(sys, "stdin", io.StringIO("word " * 900 + "\none\n"))
    done = trainer.run("sample", chat_run, *options, expect=0)
    assert "model's context" in done.stderr
    assert done.json["token_ids"] == answers[0]["token_ids"]
    assert "a set without conversations" in trainer.run("sample", run, "--chat", "--prompt", "a", expect=2).stderr
    assert "--prompt: missing" in trainer.run("sample", run, expect=2).stderr


def test_transformers_asks_and_answers_as_we_do(trainer, chat, chat_run, chat_set, tmp_path):
    trainer.run("export-model", chat_run, "--to", "hf", "--out", tmp_path / "hf", expect=0)
    receipt = read_json(tmp_path / "hf/export.json")
    conversations = sum(source.documents for name, source in count_sources(chat_set).items() if name != "prose")
    assert 100 < receipt["chat_template"]["conversations_compared"] <= min(300, conversations)
    assert "control" in receipt["control_tokens"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    messages = [{"role": "user", "content": "What is a list?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    found = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :].tolist()
    ours = Conversation(chat, GREEDY).ask("What is a list?")
    assert found[: len(ours.token_ids)] == ours.token_ids
    assert set(model.generation_config.eos_token_id) == chat.answer_ends == {chat.eos_id, chat.chat_ids.tail[0]}
    # The folder is scored on the set as the run is; conversations in files are written as the set's.
    (tmp_path / "asked.jsonl").write_text(json.dumps({"messages": [*messages, {"role": "assistant", "content": "A"}]}))
    sets = to_toml([{"name": "asked", "paths": [str(tmp_path / "asked.jsonl")], "messages": "messages"}])
    scored = [
        trainer.run("eval", place, *given, "--set", f"eval.sets={sets}", "--json", expect=0).json
        for place, given in (
            (chat_run, ()),
            (tmp_path / "hf", ("--recipe", chat_run / "recipe.json", "--shards", chat_set.out)),
        )
    ]
    # The run says fp32; a folder says no precision.
    assert scored[0]["val_loss"] == pytest.approx(scored[1]["val_loss"], abs=5e-4)
    assert [one["score_notes"]["asked"]["documents"] for one in scored] == [1, 1]


def count_sources(built: Built):
    return open_set(built.out).manifest.splits["train"].sources


def test_labels_of_an_export_are_the_targets(trainer, chat_set, tmp_path):
    import pyarrow.parquet as pq

    said = trainer.run("export", chat_set.out, "--to", "parquet", "--out", tmp_path / "pq", expect=0).stderr
    assert "labels" not in said
    manifest, counted = open_set(chat_set.out).manifest, {}
    for file in sorted((tmp_path / "pq/data").glob("train-*")):
        for row in pq.read_table(file).to_pylist():
            assert all(label in (-100, token) for token, label in zip(row["input_ids"], row["labels"], strict=True))
            counted[row["source"]] = counted.get(row["source"], 0) + sum(label != -100 for label in row["labels"])
    tokens = manifest.splits["train"].sources["prose"].tokens
    trained = {source.name: source.trained_tokens for source in manifest.sources if source.trained_tokens}
    assert counted == trained | {"prose": tokens}
    done = trainer.run("export", chat_set.out, "--to", "megatron", "--out", tmp_path / "mega", expect=0)
    assert "megatron has no labels" in done.stderr
