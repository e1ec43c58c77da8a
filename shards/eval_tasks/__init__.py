"""Eval tasks: items with a question, choices and an answer, by which a model is judged.

A training run scores the items, and a build finds the documents that hold them: both read the same descriptions here.
"""

from shards.eval_tasks.known import KNOWN_TASKS, EvalTask, Split
from shards.eval_tasks.own import OwnColumns
from shards.eval_tasks.prompts import Item
from shards.eval_tasks.read import TaskItems, read_items

__all__ = ["KNOWN_TASKS", "EvalTask", "Item", "OwnColumns", "Split", "TaskItems", "read_items"]
