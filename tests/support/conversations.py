"""Conversations of real text, in the shapes in which they are found, and a set of them."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shards.format.chat import ROLE_MARKS, Message
from shards.format.manifest import Role
from tests.support.builds import read_json, real_documents
from tests.support.recipes import source, write_lines, write_recipe, write_texts

CORPUS = Path(__file__).parents[3] / "shared/corpora/chat"
"""Conversations as published; tests that read them skip where there are none."""


BEGUN: list[list[Message]] = [[("assistant", f"I begin {number}.")] for number in range(40)]
"""Conversations of one answer."""


def make_conversations(number: int, *, seed: int = 3) -> list[list[Message]]:
    """Return conversations of up to five turns, some with a system message; no two are equal."""
    rng, texts = random.Random(seed), real_documents()
    made: list[list[Message]] = []
    for at in range(number):
        messages: list[Message] = [("system", f"Answer {rng.choice(texts)[:60]}.")] if rng.random() < 0.3 else []
        for turn in range(1 + int(rng.random() ** 3 * 5)):
            question, answer = rng.choice(texts), rng.choice(texts)
            messages += [
                ("user", f"{at}.{turn} {question[:200]}"),
                ("assistant", answer.strip()[: rng.randrange(1, 400)]),
            ]
        made.append(messages)
    return made


def write_conversation(messages: Iterable[Message]) -> str:
    """Return the text of a conversation: each message's mark, then its content."""
    return "".join(ROLE_MARKS[role] + content for role, content in messages)


def to_records(conversations: Sequence[Sequence[Message]]) -> list[dict[str, list[dict[str, str]]]]:
    """Return conversations as records of a column `messages`."""
    return [{"messages": [{"role": role, "content": text} for role, text in one]} for one in conversations]


def read_lines(name: str) -> list[dict[str, Any]]:
    """Return the records of a published file of JSON lines."""
    return [json.loads(line) for line in (CORPUS / name).read_text(encoding="utf-8").split("\n") if line]


def read_corpus() -> list[list[Message]]:
    """Return the published conversations, all of them in one shape."""
    roles: dict[str, Role] = {"human": "user", "gpt": "assistant"}
    lines = read_lines("gsm8k-train.jsonl")
    found: list[list[Message]] = [[("user", line["question"]), ("assistant", line["answer"])] for line in lines]
    for one in read_json(CORPUS / "sharegpt-dummy.json"):
        found.append([(roles[message["from"]], message["value"]) for message in one["conversations"]])
    questions = {line["question_id"]: line["turns"] for line in read_lines("mt_bench-question.jsonl")}
    for line in read_lines("mt_bench-gpt4.jsonl"):
        messages: list[Message] = []
        for asked, told in zip(questions[line["question_id"]], line["choices"][0]["turns"], strict=False):
            messages += [("user", asked), ("assistant", told)]
        found.append(messages)
    return found


def write_chat_recipe(folder: Path, chat: str = "chatml", **tables: object) -> Path:
    """Write conversations in two shapes, prose, and the recipe `chat.toml`, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    records = to_records(make_conversations(600))
    write_texts(folder / "prose.jsonl", real_documents()[:400])
    write_lines(folder / "chats.jsonl", [*records[:500], *to_records(BEGUN)])
    pairs = [[message["content"] for message in record["messages"][-2:]] for record in records[500:]]
    pq.write_table(
        pa.table(dict(zip(("prompt", "completion"), zip(*pairs, strict=True), strict=True))), folder / "pairs.parquet"
    )
    sources = [
        source("chats", "chats.jsonl", weight=6, messages="messages"),
        source("pairs", "pairs.parquet", weight=1, messages=["prompt", "completion"]),
        source("prose", "prose.jsonl", weight=3),
    ]
    given = {
        "tokenizer": {"vocab_size": 1000},
        "chat": {"format": chat},
        "mix": {"when_short": "shrink"},
        "split": {"val_tokens": 5000},
        "shards": {"tokens": 30_000},
    }
    return write_recipe(folder / "chat.toml", *sources, **(given | tables))
