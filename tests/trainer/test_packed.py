"""Training on packed rows: a step's loss is the mean over its targets, whoever reads them, and documents are apart."""

import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from shards import ShardSet
from shards.format.chat import find_targets
from shards.terminal.reporter import no_progress
from shards.torch import TokenWindows
from tests.support.packed_sets import BOS, EOS, edit_manifest, make_documents, write_documents
from tests.support.ranks import run_ranks
from tests.support.recipes import overrides
from tests.support.shard_sets import Document
from tests.trainer import conftest
from tests.trainer.conftest import losses_of, make_config, make_text, read_steps, take_steps, train_tokenizer
from trainer.commands.trace import find_step_documents
from trainer.evaluation.eval_sets import Documents, measure_document_losses, measure_labels, read_documents
from trainer.evaluation.evaluate import evaluate
from trainer.model.decoder import build_model
from trainer.session import Session
from trainer.train import step
from trainer.train.faults import rank_batch_documents
from trainer.train.step import open_training_windows
from trainer.train.train_model import _describe_end, run_training

PACKED = ("train.rows=packed", "train.seq_len=64")
TURN = 319  # <|pad|>


def write_chat_set(folder: Path, answers: list[list[int]], questions: int, texts: int) -> ShardSet:
    """Write a set whose source `code` has conversations with such answers, in train and val, and `prose` texts."""
    tokenizer, rng = train_tokenizer(), random.Random(5)
    eos, opening = tokenizer.token_to_id("<|endoftext|>"), [TURN, tokenizer.token_to_id("a")]
    documents = [conftest.encode(tokenizer, make_text("prose", rng)[:60], "prose", "u", row) for row in range(texts)]
    for row, answer in enumerate(answers):
        question = [rng.randrange(300) for _ in range(questions)]
        ids = np.array([TURN, *question, *opening, *answer, TURN, eos], "<u2")
        documents.append(Document(f"{row}".encode(), ids, "code", "u", row))
    rng.shuffle(documents)
    shard_set = conftest.write_documents(folder, {"train": [documents[4:]], "val": [documents[:4]]}, tokenizer)
    own = sum(len(one.tokens) - questions - 4 for one in documents[4:] if one.source == "code")

    def change(manifest: dict[str, Any]) -> None:
        before = {"system": "<|pad|>s", "user": "<|pad|>u", "assistant": "<|pad|>a"}
        manifest["chat"] = {"before": before, "after": "<|pad|>", "opening": opening}
        manifest["sources"][1]["trained_tokens"] = own

    assert shard_set.manifest.sources[1].name == "code"
    return edit_manifest(folder, change)


@pytest.fixture(scope="session")
def chat_set(tmp_path_factory) -> ShardSet:
    """Conversations with answers of 0 to 20 tokens, and texts. Read only."""
    rng = random.Random(1)
    answers = [[rng.randrange(300) for _ in range(rng.randrange(21))] for _ in range(150)]
    return write_chat_set(tmp_path_factory.mktemp("sets") / "chat", answers, 20, 60)


def test_micro_batches_of_unequal_targets_give_one_gradient(open_run, tmp_path, monkeypatch):
    answers = [[], *([[9] * size for size in (0, 3, 30, 200, 500, 899, 899)]), *([[9] * 9] * 4)]
    unequal = write_chat_set(tmp_path / "unequal", answers, 1020, 0)
    found: dict[int, tuple[dict[str, Any], list[torch.Tensor]]] = {}
    for micro_batch in (1, 2, 8):
        gradients: list[torch.Tensor] = []

        def keep(session: Session, max_norm: float, gradients: list[torch.Tensor] = gradients) -> torch.Tensor:
            gradients += [weight.grad.clone() for weight in session.model.parameters() if weight.grad is not None]
            return torch.zeros(())

        monkeypatch.setattr(step, "clip_gradients", keep)
        sizes = ("train.seq_len=2048", "model.max_position_embeddings=2048", f"train.micro_batch={micro_batch}")
        session = open_run("train.rows=packed", *sizes, name=str(micro_batch), shards=unequal)
        weights = [weight.detach().clone() for weight in session.model.parameters()]
        found[micro_batch] = take_steps(session)[0], gradients
    for record, gradients in found.values():
        assert record["loss"] == pytest.approx(found[8][0]["loss"], rel=1e-6)
        for gradient, other in zip(gradients, found[8][1], strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-6)
    # Beside the mean over all targets of the batch, of the same weights.
    with torch.no_grad():
        for weight, first in zip(session.model.parameters(), weights, strict=True):
            weight.copy_(first)
    batch = TokenWindows(unequal, seq_len=2048, rows="packed", fields=["document_ids"]).read(range(8))
    counts = (batch["labels"] != -100).sum(-1)
    assert (counts.min(), counts.sum()) == (1, found[8][0]["targets"])
    assert counts.max() >= 900
    with torch.no_grad():
        expected = session.model(batch["input_ids"], batch["labels"], documents=batch["document_ids"])
    assert found[1][0]["loss"] == pytest.approx(expected.item(), rel=1e-6)


def test_windows_keep_the_mean_of_their_micro_batches_bit_for_bit(open_run):
    session = open_run()
    batch = TokenWindows(session.shard_set, seq_len=32, seed=session.recipe.train.seed).read(range(8))
    total = torch.zeros(())
    with torch.no_grad():
        for row in range(0, 8, 2):
            total += session.model(batch["input_ids"][row : row + 2], batch["labels"][row : row + 2]) / 4
    assert take_steps(session)[0]["loss"] == total.item()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_another_document_at_its_place_changes_no_other_loss(tmp_path, kind):
    shard_set = write_documents(tmp_path / "set", [make_documents(2, [9, 11, 12, 9, 8, 40, 3])])
    model = build_model(make_config(kind), 320, seed=3).eval()
    batch = TokenWindows(shard_set, seq_len=48, rows="packed", fields=["document_ids"]).read(range(2))
    with torch.no_grad():
        losses = model(batch["input_ids"], batch["labels"], documents=batch["document_ids"], reduction="none")
        for number in range(int(batch["document_ids"].max())):
            own = batch["document_ids"] == number
            ids = torch.where(own & (batch["input_ids"] != EOS), 300 - batch["input_ids"], batch["input_ids"])
            changed = model(ids, batch["labels"], documents=batch["document_ids"], reduction="none")
            assert torch.equal(changed[~own], losses[~own])
            assert not torch.equal(changed[own], losses[own])


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("chat", [False, True])
@torch.no_grad()
def test_a_document_in_a_row_has_the_loss_that_eval_measures(evaluated, tmp_path, bos, chat):
    documents = make_documents(4, random.Random(2).choices(range(2, 25), k=40), bos=bos, chat=chat)
    shard_set = write_documents(tmp_path / "set", [documents], bos=bos, chat=chat)
    trained = replace(evaluated, eos_id=EOS, bos_id=BOS if bos else None)
    tokens = np.array([token for document in documents for token in document])
    bounds = np.append(0, np.cumsum([len(document) for document in documents]))
    targets = find_targets(shard_set.manifest, tokens, bounds)
    scored = Documents(tokens, bounds, targets, np.ones(len(documents)), pa.table({}))
    whole = measure_document_losses(trained, scored, no_progress)
    windows = TokenWindows(shard_set, seq_len=24, rows="packed", fields=["document_ids"])
    batch = windows.read(range(len(windows)))
    ids, numbers = batch["input_ids"], batch["document_ids"]
    losses = measure_labels(trained, ids, batch["labels"], numbers)
    assert (numbers.max(-1).values > 1).any()
    found: dict[tuple[int, ...], float] = {}
    for row in range(len(ids)):
        for number in numbers[row].unique():
            own = numbers[row] == number
            found[tuple(ids[row][own].tolist())] = losses[row][own].sum().item()
    for document, expected in zip(documents, whole.tolist(), strict=True):
        fed = document[:-1] if bos else [EOS, *document[:-1]]
        assert found[tuple(fed)] == pytest.approx(expected, rel=1e-6)


def test_what_is_said_of_an_epoch_is_what_is_done(open_run, chat_set):
    sizes = ("train.global_batch=1", "train.micro_batch=1", "train.log_every=50", "eval.every_steps=500")
    said: list[str] = []
    order = open_run(*PACKED, *sizes, name="count", shards=chat_set).order
    more = (f"train.steps={order.per_epoch}", "checkpoint.every_steps=500", "train.smoke_steps=0")
    session = open_run(*PACKED, *sizes, *more, shards=chat_set, say=said.append)
    (line,) = (line for line in said if "padding" in line)
    found = re.search(r"tokens: ([\d,]+) rows of 64, ([\d.]+)% .* ([\d,]+) targets and ([\d,.]+) steps", line)
    assert found is not None
    rows, waste, targets, steps = (float(part.replace(",", "")) for part in found.groups())
    ended = run_training(session, said.append)
    figures = _describe_end(ended).figures
    train = chat_set.manifest.splits["train"]
    assert (rows, steps, figures["epochs"]) == (session.step, session.step, 1.0)
    assert ended.log.last("loss")["targets"] == targets < train.tokens == figures["tokens_used"]
    assert waste == pytest.approx(100 - 100 * train.tokens / (64 * rows), abs=0.01)
    used = {name: {"used": count.tokens, "repeated": 0} for name, count in train.sources.items()}
    assert figures["tokens_by_source"] == used


def test_validation_counts_the_targets_of_whole_documents(open_run, chat_set):
    session = open_run(*PACKED, shards=chat_set)
    session.model.eval()
    found = evaluate(session.trained, 10_000, [], lambda name: None)  # type: ignore[arg-type, return-value]
    documents = read_documents(chat_set, "val", 10_000, "here")
    nats, targets = 0.0, 0
    with torch.no_grad():
        for begin, end in zip(documents.bounds, documents.bounds[1:], strict=False):
            ids = torch.tensor([chat_set.eos_id, *documents.tokens[begin:end].tolist()])
            losses = session.model(ids[None, :-1], ids[None, 1:], reduction="none")[0]
            own = torch.from_numpy(documents.targets[begin:end])
            nats, targets = nats + losses[own].sum().item(), targets + int(own.sum())
    assert found["val_tokens"] == targets < len(documents.tokens)
    assert found["val_loss"] == pytest.approx(nats / targets, rel=1e-6)


def test_a_run_goes_on_with_other_micro_batches_and_keeps_its_targets(train, chat_set, tmp_path):
    settings = (*PACKED, "train.steps=12", "eval.every_steps=12")
    train(tmp_path / "whole", *settings, shards=chat_set)
    stop = "phases=[{name='a', until_step=5, goal='loss < 0'}]"
    train(tmp_path / "part", *settings, stop, "train.micro_batch=1", shards=chat_set, status=3)
    train(tmp_path / "part", *settings, "train.micro_batch=8", shards=chat_set)
    whole, part = (read_steps(tmp_path / name) for name in ("whole", "part"))
    assert [line["targets"] for line in part] == [line["targets"] for line in whole]
    assert losses_of(tmp_path / "part") == pytest.approx(losses_of(tmp_path / "whole"), rel=1e-4)


@pytest.mark.long
def test_two_ranks_give_the_gradients_and_losses_of_one(train, recipe_file, chat_set, tmp_path):
    settings = (*PACKED, "train.steps=6", "eval.every_steps=6")
    train(tmp_path / "one", *settings, "train.micro_batch=8", shards=chat_set)
    one = read_steps(tmp_path / "one")
    for parallel, micro_batch in (("ddp", 1), ("fsdp", 4)):
        sizes = overrides(*settings, f"train.parallel={parallel}", f"train.micro_batch={micro_batch}")
        run_ranks("train", recipe_file, "--shards", chat_set.path, "--run", tmp_path / parallel, *sizes)
        lines = read_steps(tmp_path / parallel)
        assert [line["targets"] for line in lines] == [line["targets"] for line in one]
        assert losses_of(tmp_path / parallel) == pytest.approx(losses_of(tmp_path / "one"), rel=1e-4)
        assert lines[0]["grad_norm"] == pytest.approx(one[0]["grad_norm"], rel=1e-6)


def test_a_batch_is_traced_to_the_documents_of_its_rows(open_run, chat_set):
    session = open_run(*PACKED, shards=chat_set)
    train = session.recipe.train
    batch, documents, _ = find_step_documents(chat_set, train, 2, limit=1_000)
    with open_training_windows(chat_set, train, stop=24) as windows:
        sample = windows.read(range(8, 16))
        slots = sum(document["in_window"] for document, _, _ in documents)
        padding = ((sample["labels"] == -100) & (sample["input_ids"] == chat_set.eos_id)).sum(-1)
        assert batch["tokens"] == slots
        assert 8 * 64 - int(padding.sum()) <= slots <= 8 * 64
        ranked = rank_batch_documents(session, windows, 2)
    with torch.no_grad():
        loss = session.model(
            sample["input_ids"], sample["labels"], documents=sample["document_ids"], reduction="sum"
        ).item()
    assert {own.place.hash for own in ranked} == {place.hash for _, place, _ in documents}
    assert math.fsum(own.nats for own in ranked) == pytest.approx(loss, rel=1e-5)
    assert sum(own.targets for own in ranked) == int((sample["labels"] != -100).sum())
