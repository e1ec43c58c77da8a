"""The known eval tasks: where the items of each are on the Hub, at which commit, and in which form they are asked.

The commits are those of the data sets' main branches that public code pins; two independent projects name each. The
splits are those that lm-evaluation-harness scores, and takes few-shot examples from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from shards.eval_tasks import prompts
from shards.eval_tasks.prompts import Item, Row

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class EvalTask:
    """An eval task: its data set, and the form in which its rows are asked."""

    name: str
    ask: Callable[[Row], Item]
    """Makes an item of a row. It raises ValueError, KeyError or TypeError for a row that is not of the data set."""
    repo: str = ""
    """The data set on the Hub; empty for items in files of the user."""
    revision: str = ""
    """A commit of it, 40 hexadecimal digits."""
    files: Mapping[Split, str] = field(default_factory=dict[Split, str])
    """The file of each split."""
    split: Split = "test"
    """The split whose items are scored."""
    fewshot_split: Split = "train"
    """The split that few-shot examples come from."""
    compares_texts: bool = True
    """Whether the choices have different texts, so that accuracy can be normalised by their bytes."""


def _parquet(folder: str, *splits: Split) -> dict[Split, str]:
    return {split: f"{folder}/{split}-00000-of-00001.parquet" for split in splits}


_ARC = ("allenai/ai2_arc", "210d026faf9955653af8916fad021475a3f00453")

KNOWN_TASKS = {
    task.name: task
    for task in (
        EvalTask("arc_easy", prompts.ask_arc, *_ARC, _parquet("ARC-Easy", "train", "validation", "test")),
        EvalTask("arc_challenge", prompts.ask_arc, *_ARC, _parquet("ARC-Challenge", "train", "validation", "test")),
        EvalTask(
            "hellaswag",
            prompts.ask_hellaswag,
            "Rowan/hellaswag",
            "218ec52e09a7e7462a5400043bb9a69a41d06b76",
            _parquet("data", "train", "validation"),
            split="validation",
        ),
        EvalTask(
            "piqa",
            prompts.ask_piqa,
            "baber/piqa",
            "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1",
            {"train": "piqa_train.parquet", "validation": "piqa_validation.parquet"},
            split="validation",
        ),
        EvalTask(
            "sciq",
            prompts.ask_sciq,
            "allenai/sciq",
            "2c94ad3e1aafab77146f384e23536f97a4849815",
            _parquet("data", "train", "validation", "test"),
        ),
        EvalTask(
            "openbookqa",
            prompts.ask_openbookqa,
            "allenai/openbookqa",
            "388097ea7776314e93a529163e0fea805b8a6454",
            _parquet("main", "train", "validation", "test"),
        ),
        EvalTask(
            "winogrande",
            prompts.ask_winogrande,
            "allenai/winogrande",
            "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
            _parquet("winogrande_xl", "train", "validation"),
            split="validation",
            compares_texts=False,
        ),
        EvalTask(
            "lambada",
            prompts.ask_lambada,
            "EleutherAI/lambada_openai",
            "900124bf3b8235c6daf21033af9948b3f07346c4",
            {"test": "data/lambada_test.jsonl"},
            fewshot_split="test",
            compares_texts=False,
        ),
    )
}
"""The eval tasks that recipes name, by name."""
