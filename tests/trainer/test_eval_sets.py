"""Eval sets: bits per byte by document against a naive computation, documents of the training text, errors."""

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shards.errors import InputError, RunError
from shards.format.vocabulary import read_vocabulary
from shards.terminal.reporter import no_note, no_progress
from tests.support.recipes import to_lines, to_toml
from trainer.evaluation.eval_sets import measure_document_losses, open_eval_set, read_documents
from trainer.evaluation.scores import estimate_ratio
from trainer.metrics import read_metrics
from trainer.model.decoder import build_model
from trainer.model.generate import TrainedModel
from trainer.recipe import load_train_recipe
from trainer.recipe.eval_config import EvalSetConfig

SEQ_LEN = 24


def text_set(path: Path, **keys: object) -> EvalSetConfig:
    return EvalSetConfig.model_validate({"name": "web", "paths": [str(path)], "text": "body", **keys})


@torch.no_grad()
def loss_naively(evaluated: TrainedModel, ids: list[int]) -> float:
    """Return the nats of a document, one window after another, one target at a time."""
    sequence = [evaluated.eos_id, *ids] if evaluated.bos_id is None else ids
    targets, total = len(sequence) - 1, 0.0
    for first in range(0, targets, SEQ_LEN):
        # Windows predict SEQ_LEN tokens each; the last one begins earlier, to be full.
        begin = max(0, min(first, targets - SEQ_LEN))
        window = torch.tensor([sequence[begin : begin + SEQ_LEN]])
        logs = evaluated.model(window)[0].double().log_softmax(-1)
        total -= sum(logs[at - begin, sequence[at + 1]].item() for at in range(first, min(first + SEQ_LEN, targets)))
    return total


@pytest.mark.parametrize("document_mask", [False, True])
@pytest.mark.parametrize("bos", [False, True])
def test_losses_of_documents_equal_a_naive_computation(evaluated, shard_set, document_mask, bos):
    train = evaluated.train.with_values(document_mask=document_mask)
    evaluated = replace(evaluated, train=train, bos_id=5 if bos else None)
    documents = read_documents(shard_set, "val", 500, "eval.sets.web")
    ids = [documents.tokens[a:b].tolist() for a, b in itertools.pairwise(documents.bounds)]
    if bos:
        ids = [[5, *own] for own in ids]
    # Short, full, one more.
    ids += [[7, evaluated.eos_id], list(range(10, 10 + SEQ_LEN)), list(range(10, 11 + SEQ_LEN))]
    bounds = np.cumsum([0, *map(len, ids)])
    tokens = np.concatenate(ids).astype("<u2")
    documents = replace(documents, tokens=tokens, bounds=bounds, targets=np.ones(len(tokens), np.bool_))
    with torch.no_grad():
        found = measure_document_losses(evaluated, documents, no_progress)
    assert max(map(len, ids)) > 2 * SEQ_LEN
    assert found == pytest.approx([loss_naively(evaluated, own) for own in ids], rel=1e-5)


def test_documents_that_training_holds_are_left_out_and_text_is_encoded_once(evaluated, texts, text_file, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_bytes(text_file.read_bytes())
    said: list[str] = []
    eval_set, again = (open_eval_set(text_set(path), evaluated, said.append) for _ in range(2))
    assert [line.split(": ")[1][:8] for line in said] == ["encoding", "20 docum", "20 docum"]
    assert said[-1].endswith(", 10 in the training text")
    assert again.documents.tokens.tolist() == eval_set.documents.tokens.tolist()
    vocabulary = read_vocabulary(evaluated.tokenizer_json)
    tokens, bounds = eval_set.documents.tokens, eval_set.documents.bounds
    found = [vocabulary.decode_document(tokens[a : b - 1]) for a, b in itertools.pairwise(bounds)]
    assert sorted(found) == sorted(text.encode() for text in texts[:20])
    assert eval_set.documents.text_bytes.tolist() == list(map(len, found))
    assert (eval_set.notes["documents"], eval_set.notes["held_by_training"]) == (20, 10)
    assert [texts[row] for row in eval_set.documents.rows["row"].to_pylist()] == [text.decode() for text in found]

    with torch.no_grad():
        scores = eval_set.score(evaluated, no_progress)
    nats = sum(loss_naively(evaluated, tokens[a:b].tolist()) for a, b in itertools.pairwise(bounds))
    assert scores["web_bpb"]["value"] == pytest.approx(nats / math.log(2) / sum(map(len, found)), rel=1e-5)
    # A document whose loss is not finite is named.
    model = build_model(evaluated.model.config, 320, seed=3).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight[int(tokens[0])] = torch.nan
        with pytest.raises(RunError, match=r"web_bpb: is nan for web own\.jsonl.* row \d+; expected a finite number"):
            eval_set.score(replace(evaluated, model=model), no_progress)
    # Other text is encoded.
    path.write_text(path.read_text() + json.dumps({"body": "one more line of text"}) + "\n")
    assert open_eval_set(text_set(path), evaluated, no_note).notes["documents"] == 21


def test_the_standard_error_is_that_of_a_jackknife_over_documents():
    rng = np.random.default_rng(1)
    sizes = rng.lognormal(5, 1, 400)
    bits = sizes * rng.normal(1.1, 0.2, 400) + 8
    score = estimate_ratio(bits, sizes)
    left_out = (bits.sum() - bits) / (sizes.sum() - sizes)
    jackknife = math.sqrt(399 / 400 * ((left_out - left_out.mean()) ** 2).sum())
    assert score["value"] == pytest.approx(bits.sum() / sizes.sum())
    assert score["stderr"] == pytest.approx(jackknife, rel=0.03)
    assert estimate_ratio(bits[:1], sizes[:1])["stderr"] is None


def test_each_problem_of_a_build_is_told_in_one_line(evaluated, shard_set, tmp_path):
    (path := tmp_path / "null.jsonl").write_text('{"body": null}\n{"body": "x"}\n')
    other = replace(evaluated, tokenizer_json=b"{}")
    for config, model, problems in (
        (text_set(path), evaluated, [r"1 of 2 records \(50\.00%.* have no"]),
        (
            text_set(tmp_path / "*.csv", txt="b"),
            evaluated,
            [r"txt: unknown key", r"matches no file"],
        ),
        (
            EvalSetConfig(name="web", shards=str(shard_set.path)),
            other,
            [r"expected the model's, 44136f"],
        ),
    ):
        with pytest.raises(InputError) as refused:
            open_eval_set(config, model, no_note)
        for problem, expected in zip(refused.value.problems, problems, strict=True):
            assert re.match(r"eval\.sets\.web: .*" + expected, str(problem))


def test_all_documents_of_text_are_in_a_count_and_dropped_records_too(evaluated, texts, text_file, tmp_path):
    path = tmp_path / "forty.jsonl"
    own = [f"document {number} of forty" for number in range(10)]
    lines = to_lines({"body": text} for text in (*own, texts[0]))
    path.write_text(text_file.read_text() + lines + "{bad\n")
    said: list[str] = []
    notes = open_eval_set(text_set(path, max_tokens=1_000, max_malformed=0.1), evaluated, said.append).notes
    counts = [notes[key] for key in ("documents", "held_by_training", "past_max_tokens", "unread_bytes")]
    assert sum(counts) == len(texts) + len(own) == 40
    assert min(counts[:3]) > 0
    assert f"{counts[2]} not scored, as max_tokens is reached" in said[-1]
    assert notes["dropped"] == {"duplicate": 1, "malformed record": 1}
    assert said[-1].endswith(", 1 dropped: duplicate, 1 dropped: malformed record")


def test_paths_begin_at_the_recipes_folder_and_those_of_overrides_at_the_working_directory(
    recipe_file, tmp_path, monkeypatch
):
    path = tmp_path / "recipes" / "own.toml"
    path.parent.mkdir()
    path.write_text(recipe_file.read_text() + '[[eval.sets]]\nname = "a"\npaths = ["x/*.jsonl", "s3://b/y"]\n')
    monkeypatch.chdir(tmp_path)
    assert load_train_recipe(path).eval.sets[0].source["paths"] == [str(path.parent / "x/*.jsonl"), "s3://b/y"]
    changed = load_train_recipe(path, ['eval.sets.a.paths=["z"]'])
    assert changed.eval.sets[0].source["paths"] == [str(tmp_path / "z")]


def test_training_scores_its_sets_and_stops_at_a_missed_goal(train, text_file, tmp_path):
    table = {"name": "web", "paths": [str(text_file)], "text": "body"}
    phases = [
        {"name": "one", "until_step": 4, "goal": "web_bpb < 9"},
        {"name": "two", "until_step": 8, "goal": "web_bpb < 0.1"},
    ]
    changes = (f"eval.sets={to_toml([table])}", f"phases={to_toml(phases)}", "train.steps=12")
    run = tmp_path / "run"
    done = train(run, *changes, more=("--json",), status=3)
    scored = {line["step"]: line for line in read_metrics(run) if "scores" in line}
    assert list(scored) == [4, 8]
    score = scored[8]["scores"]["web_bpb"]
    assert 0.5 < score["value"] < 9
    assert score != scored[4]["scores"]["web_bpb"]
    assert 0 < score["stderr"] < 0.1
    assert scored[8]["score_notes"]["web"]["held_by_training"] == 10
    assert f"step 8  web_bpb {score['value']:.4f} ± {score['stderr']:.4f}" in done.stderr
    missed = f"phase 'two' ended at step 8 with web_bpb {score['value']:.4f}; its goal is web_bpb < 0.1"
    assert done.json["off_ramp"] == missed
    assert [row["goal_met"] for row in done.json["phases"]] == [True, False]

    # Going on with the same text says nothing; with other text, that scores no longer compare.
    assert "other text" not in train(run, *changes, status=3).stderr
    other = tmp_path / "other.jsonl"
    other.write_text("".join(text_file.read_text().splitlines(keepends=True)[:15]))
    again = train(run, f"eval.sets={to_toml([table | {'paths': [str(other)]}])}", "phases=[]", "train.steps=12")
    changed = [line for line in again.stderr.splitlines() if line.startswith("changed since the checkpoint")]
    assert changed == [
        f'changed since the checkpoint: eval.sets.web.paths = ["{other}"], not ["{text_file}"]',
        "changed since the checkpoint: phases.one is gone",
        "changed since the checkpoint: phases.two is gone",
    ]
    assert "web: scored on other text than before; its scores do not compare with those" in again.stderr
