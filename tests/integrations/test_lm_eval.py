"""lm-evaluation-harness on exported models: the same prompts, the same log-likelihoods, the same accuracies.

The items are made up. The harness reads them as local files, offline.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shards.eval_tasks.known import KNOWN_TASKS
from shards.eval_tasks.read import read_items
from tests.support.eval_task_rows import ROWS
from tests.support.recipes import write_lines
from tests.trainer.conftest import RECIPE, TEXTS, build_set
from tokenmill.__main__ import main
from trainer.evaluation.eval_tasks import add_examples, encode_items, judge_items, measure_likelihoods
from trainer.weights.trained_model import load_model

os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
lm_eval = pytest.importorskip("lm_eval")

CONTEXT = 448
"""With 3 examples, some items are longer: both cut them at their beginning."""
ITEMS = 40
KINDS = {"llama": [], "gpt2": ['model.kind="gpt2"', "model.num_key_value_heads=4"]}
OPTIONS = "fewshot_split: train\nfewshot_config: {sampler: first_n}\n"
OPTIONS += "metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]\n"
MMLU = {"mmlu": "mmlu/default/mmlu_high_school_us_history"}
MMLU |= {"mmlu_continuation": MMLU["mmlu"].replace("default", "continuation")}
UPSTREAM = {name: f"{name.partition('_')[0]}/{name}" for name in KNOWN_TASKS} | MMLU
UPSTREAM |= {"lambada": "lambada/lambada_openai", "winogrande": "winogrande/default"}
"""The harness's own descriptions of the known eval tasks."""


def run_harness(model: Path, folder: Path, tasks: list[str], shots: int) -> dict[str, list[dict[str, Any]]]:
    """Return what the harness logs of each item, in order, by task."""
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    lm = HFLM(pretrained=str(model), add_bos_token=True, dtype="float32", device="cpu", batch_size=8)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=lm, tasks=tasks, num_fewshot=shots, task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    assert found is not None
    return {name: sorted(found["samples"][name], key=lambda sample: sample["doc_id"]) for name in tasks}


@pytest.fixture(scope="module", params=KINDS)
def exported(request, tmp_path_factory) -> Path:
    """A folder with a trained run and its export."""
    folder = tmp_path_factory.mktemp(request.param)
    build_set(folder / "set", shard_tokens={"train": [20_000], "val": [1_500]})
    (folder / "recipe.toml").write_text(RECIPE)
    settings = ["checkpoint.every_steps=24", "train.seq_len=64", f"model.max_position_embeddings={CONTEXT}"]
    given = [f"--set={setting}" for setting in [*settings, *KINDS[request.param]]]
    place = ["--shards", str(folder / "set"), "--run", str(folder / "run")]
    assert main(["train", str(folder / "recipe.toml"), *place, *given]) == 0
    assert main(["export-model", str(folder / "run"), "--to", "hf", "--out", str(folder / "hf")]) == 0
    return folder


@pytest.fixture(scope="module")
def item_files(tmp_path_factory) -> tuple[Path, Path]:
    """Files of items and of examples, in the columns of ARC."""
    folder, rng = tmp_path_factory.mktemp("items"), random.Random(5)
    files = (
        write_lines(folder / f"{split}.jsonl", [make_row(rng) for _ in range(ITEMS)]) for split in ("test", "train")
    )
    return tuple(files)  # type: ignore[return-value]


def make_row(rng: random.Random) -> dict[str, Any]:
    words = [*TEXTS["prose"].split(), *TEXTS["code"].split(), "  ", "\n", "¿"]
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 8))) for _ in range(rng.randint(2, 5))]
    labels = list("ABCDE"[: len(texts)])
    question = "".join(rng.choices(words, k=rng.randint(0, 30)))
    return {"question": question, "choices": {"text": texts, "label": labels}, "answerKey": rng.choice(labels)}


def describe(task: str, files: dict[str, str], more: str = "") -> str:
    """Return a description of a known task, named local, for the harness that reads local files."""
    upstream = Path(lm_eval.__file__).parent / "tasks" / UPSTREAM[task]
    return (
        f"include: {upstream}.yaml\ntask: local\ntag: null\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs: {json.dumps({'data_files': files})}\n{more}"
    )


@pytest.mark.parametrize("shots", [0, 3])
def test_log_likelihoods_and_accuracies_agree(exported, item_files, shots, tmp_path):
    test, train = map(str, item_files)
    description = describe("arc_easy", {"train": train, "validation": train, "test": test}, OPTIONS)
    (tmp_path / "local.yaml").write_text(description)
    theirs = run_harness(exported / "hf", tmp_path, ["local"], shots)["local"]
    judged, likelihoods, notes = score(exported, item_files, shots)
    assert len(theirs) == len(likelihoods) == ITEMS

    furthest = 0.0
    for sample, own in zip(theirs, likelihoods, strict=True):
        nats = np.array([float(nats) for ((nats, _),) in sample["resps"]])
        greedy = [bool(greedy) for ((_, greedy),) in sample["resps"]]
        furthest = max(furthest, float(np.abs(own[0] - nats).max()))
        assert own[1].tolist() == greedy
    assert furthest < 1e-3
    assert judged[:, 0].tolist() == [sample["acc"] for sample in theirs]
    assert judged[:, 1].tolist() == [sample["acc_bytes"] for sample in theirs]
    spread = np.concatenate([nats for nats, _ in likelihoods]).std()
    print(f"{shots}-shot: furthest {furthest:.1e}, spread {spread:.1f} nats, {judged[:, 0].mean()=}, {notes}")
    assert spread > 1


def score(exported: Path, files: tuple[Path, Path], shots: int) -> tuple[np.ndarray, list[np.ndarray], dict[str, int]]:
    """Return the judgements of items, the likelihoods of their choices, and what is counted of them."""
    task = KNOWN_TASKS["arc_easy"]
    items, examples = (read_items(task, files=[path]).items for path in files)
    trained = load_model(exported / "run", print)
    scored, groups, notes = encode_items(trained, add_examples(items, examples, shots))
    likelihoods = measure_likelihoods(trained, groups)
    return judge_items("arc_easy", scored, likelihoods), likelihoods, notes


@pytest.mark.parametrize(("name", "shots"), [*((name, 0) for name in KNOWN_TASKS), *((name, 2) for name in MMLU)])
def test_prompts_agree(name, shots, tmp_path):
    """The harness's own description of each known task gives the same texts of the same row."""
    from lm_eval.tasks import TaskManager

    task, row = KNOWN_TASKS[name], ROWS[name.replace("challenge", "easy").removesuffix("_continuation")]
    path = write_lines(tmp_path / "items.jsonl", [row, row])
    files = dict.fromkeys(("train", "validation", "test"), str(path))
    # Examples are of the item's own subject, which the harness has as a task of its own.
    others = [row | {"question": f"{number}?", "answer": number} for number in range(3)] if shots else [row]
    files["dev"] = str(write_lines(tmp_path / "dev.jsonl", others))
    elsewhere = [one | {"subject": "virology"} for one in others]
    pool = read_items(task, files=[write_lines(tmp_path / "pool.jsonl", [*elsewhere, *others])]).items
    (tmp_path / "local.yaml").write_text(describe(name, files))
    theirs = TaskManager(include_path=str(tmp_path), include_defaults=False).load(["local"])["tasks"]["local"]
    (item,) = add_examples(read_items(task, files=[path]).items[:1], pool, shots)
    doc = next(iter(theirs.eval_docs))
    context = theirs.fewshot_context(doc, num_fewshot=shots)
    requests = theirs.construct_requests(doc, context, metadata=("local", 0, 1))
    asked = [request.args for request in (requests if isinstance(requests, list) else [requests])]
    assert asked == [(context, f" {choice}") for context, choice in zip(item.contexts, item.choices, strict=True)]
    if len(asked) > 1:
        perfect = [(-1.0 if place == item.answer else -9.0, False) for place in range(len(asked))]
        assert theirs.process_results(doc, perfect)["acc"] == 1.0
