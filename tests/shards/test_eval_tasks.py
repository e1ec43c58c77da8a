"""Eval tasks: the prompt form of each known one, the user's columns, files and the Hub, and rows that are refused."""

import dataclasses
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shards.errors import InputError
from shards.eval_tasks.known import _TRUTHFULQA_EXAMPLES, KNOWN_TASKS, Item  # pyright: ignore[reportPrivateUsage]
from shards.eval_tasks.read import read_items
from tests.support.eval_task_rows import ROWS
from tests.support.recipes import write_lines
from tests.support.servers.hub import Hub, use_hub
from trainer.recipe.eval_config import EvalTaskConfig

MMLU = "The following are {} (with answers) about high school us history.\n\n"
ITEMS = {
    "arc_easy": (["Question: What is 1 + 1?\nAnswer:"], ["one", "two"], 1, "What is 1 + 1? two"),
    "openbookqa": (["The sun is"], ["hot", "cold"], 1, "The sun is cold"),
    "piqa": (["Question: How to grind?\nAnswer:"], ["with a mill", "with a river"], 0, "How to grind? with a mill"),
    "sciq": (
        ["The mill turns. \nQuestion: What turns?\nAnswer:"],
        ["a", "b", "c", "the mill"],
        3,
        "The mill turns.  What turns? the mill",
    ),
    "hellaswag": (
        ["Milling: A miller comes. How The stone"],
        ["turns once.", "stops."],
        1,
        "Milling: A miller comes. How The stone stops.",
    ),
    "winogrande": (
        ["The mill beat the river, for the mill", "The mill beat the river, for the river"],
        ["was loud.", "was loud."],
        1,
        "The mill beat the river, for the river was loud.",
    ),
    "mmlu": (
        [
            MMLU.format("multiple choice questions")
            + "What turns?\nA. a wheel\nB. a wall\nC. a 'well'\nD. rain\nAnswer:"
        ],
        ["A", "B", "C", "D"],
        2,
        "What turns? a 'well'",
    ),
    "mmlu_continuation": (
        [f"{MMLU.format('questions')}Question: What turns?\nAnswer:"],
        ["a wheel", "a wall", "a 'well'", "rain"],
        2,
        "What turns? a 'well'",
    ),
    "truthfulqa_mc1": (
        [f"{_TRUTHFULQA_EXAMPLES}Q: Do mills talk?\nA:"],
        ["No, they do not.", "Yes", "At night"],
        0,
        "Do mills talk? No, they do not.",
    ),
    "lambada": (["the river sings to the"], ["mill"], 0, "the river sings to the mill"),
}


@pytest.mark.parametrize("name", KNOWN_TASKS)
def test_items_of_known_tasks(name, tmp_path):
    task, asked = KNOWN_TASKS[name], name.replace("challenge", "easy")
    path = write_lines(tmp_path / "items.jsonl", [ROWS[asked.removesuffix("_continuation")]])
    contexts, choices, answer, text = ITEMS[asked]
    before = contexts[0].partition("\n\n")[0] + "\n\n" if "mmlu" in name else ""
    wanted = Item(tuple(contexts * (len(choices) // len(contexts))), tuple(choices), answer, text, before)
    assert read_items(task, files=[path]).items == [wanted]
    assert wanted.example == f"{wanted.contexts[answer][len(before) :]} {choices[answer]}"
    # What the trainer relies on.
    assert task.compares_texts == (len(set(choices)) > 1 and name != "mmlu")
    assert re.fullmatch("[0-9a-f]{40}", task.revision)
    assert task.file
    assert task.fewshot_file


def test_parquet_and_several_files(tmp_path):
    rows = [ROWS["piqa"], ROWS["piqa"] | {"label": 1}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "items.parquet")
    path = write_lines(tmp_path / "more.jsonl", rows[:1])
    found = read_items(KNOWN_TASKS["piqa"], files=[tmp_path / "items.parquet", path])
    assert [item.answer for item in found.items] == [0, 1, 0]
    hashes = found.hashes
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.parametrize(
    ("columns", "row", "answer"),
    [
        ({}, {"question": "q", "choices": ["a", "b"], "answer": 1}, 1),
        ({}, {"question": "q", "choices": ["a", "b"], "answer": "a"}, 0),
        (
            {"choices": "c.text", "labels": "c.label", "answer": "key", "question": "stem"},
            {"stem": "q", "c": {"text": ["a", "b"], "label": ["A", "B"]}, "key": "B"},
            1,
        ),
    ],
)
def test_own_columns(columns, row, answer, tmp_path):
    task = EvalTaskConfig(name="own", **columns, prompt="Q: {question}\nA:").describe()
    item = read_items(task, files=[write_lines(tmp_path / "own.jsonl", [row])]).items[0]
    assert (item.contexts, item.choices, item.answer) == (("Q: q\nA:",) * 2, ("a", "b"), answer)


def test_items_from_the_hub_at_their_commit_and_then_from_the_cache(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    task = KNOWN_TASKS["lambada"]
    folder = tmp_path / "repo"
    write_lines(folder / task.file, [ROWS["lambada"]])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Hub() as hub:
        use_hub(hub.url, monkeypatch)
        commit = hub.publish(task.repo, folder)
        # The Hub of the test names its commits by content.
        task = dataclasses.replace(task, revision=commit)
        with pytest.raises(InputError, match=r"passage-1\.jsonl"):
            read_items(dataclasses.replace(task, file="data/passage-1.jsonl"))
        found = read_items(task)
    assert [item.choices for item in found.items] == [("mill",)]
    assert found.place == f"hf://datasets/{task.repo}@{commit}/data/lambada_test.jsonl"
    assert read_items(task) == found  # no Hub answers any more
