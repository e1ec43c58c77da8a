"""Test items in books: which damage hides them, whether any is found that is not there, and the price of the search.

The items are those of ARC-Easy and GSM8K. Each is planted once, in a page of its own, damaged in one way. Words are
replaced at random places of the item's middle half, by words of the books.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from pipeline.encode.encode import EncodeResult
from pipeline.engine.receipts import TaskOutput
from shards.stores.store import FolderStore
from tests.benchmarks.harness import MB, Figures, TopicSkippedError
from tests.benchmarks.material import corpus_files, corpus_folder
from tests.support.evidence import read_rows

Damage = Callable[[str, random.Random], str]
CLASSES = {"3 to 7": (3, 7), "8 to 12": (8, 12), "13 to 17": (13, 17), "18 to 60": (18, 60), "61 or more": (61, 10**6)}
"""Words of the items, split at white space."""
EACH = 100
"""Items of each class and damage, as far as there are so many."""
WORDS = ["lantern", "seven", "whereas", "copper", "paints", "slowly", "garden", "above", "twelve", "carried"]


def bench_evaluations(work: Path, quick: bool) -> Figures:
    """Plant the items, build with `action = "report"`, and compare what was planted with what was found.

    For each damage and class of length the share of the items that were found, in words; `found_elsewhere` are pages of
    books without a planted item that hold one; `hits_ms_mb` is processor time of the search, `hits_share` its share of
    the whole encode stage.
    """
    items = read_items()
    files = corpus_files("bulk_prose")
    pages = [text for file in files[: 2 if quick else None] for text in pq.read_table(file)["text"].to_pylist()]
    planted = plant(items, pages, EACH // 5 if quick else EACH)
    shutil.rmtree(work / "evaluations", ignore_errors=True)
    folder = work / "evaluations"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": pages}), folder / "pages.parquet", row_group_size=len(pages))
    pq.write_table(pa.table({"question": items}), folder / "items.parquet")
    recipe = {
        "name": "planted",
        "sources": [{"name": "pages", "paths": [f"{folder}/pages.parquet"], "weight": 1}],
        "tokenizer": {"vocab_size": 4000, "sample_bytes": "4 MB"},
        "evaluations": [{"name": "items", "paths": [f"{folder}/items.parquet"], "text": "question"}],
    }
    pipeline.build_set(recipe, out=folder / "set", workers=2, validate="quick")
    found = {(row["row"], item["item_row"]) for row in read_rows(folder / "set.work") for item in row["items"]}
    tally: Counter[tuple[str, str, bool]] = Counter()
    for page, (damage, words, item) in enumerate(planted):
        tally[damage, words, (page, item) in found] += 1
    figures: Figures = {
        damage: {words: _describe(tally, damage, words) for words in CLASSES if _describe(tally, damage, words)}
        for damage in DAMAGES
    }
    results = [
        TaskOutput(FolderStore(path.parent), EncodeResult).result for path in folder.glob("set.work/encode/*/hits.bin")
    ]
    size = sum(result.text_bytes for result in results) / MB
    seconds = sum(result.core_seconds["hits_s"] for result in results)
    whole = sum(sum(result.core_seconds.values()) for result in results)
    return figures | {
        "pages": len(pages) - len(planted),
        "found_elsewhere": len({page for page, _ in found if page >= len(planted)}),
        "least_typography": min(
            tally[damage, words, True] / (tally[damage, words, True] + tally[damage, words, False])
            for damage in TYPOGRAPHY
            for words in CLASSES
            if tally[damage, words, True] + tally[damage, words, False]
        ),
        "hits_ms_mb": 1000 * seconds / size,
        "hits_share": seconds / whole,
    }


def _describe(tally: Counter[tuple[str, str, bool]], damage: str, words: str) -> str:
    hits, misses = tally[damage, words, True], tally[damage, words, False]
    return f"{hits} of {hits + misses}" if hits + misses else ""


def read_items() -> list[str]:
    """Return the distinct questions of both test sets.

    Raises:
        TopicSkippedError: they are not there.
    """
    root = corpus_folder("bulk_prose").parent
    files = [*sorted((root / "tasks").glob("arc_easy-*.jsonl")), root / "chat/gsm8k-train.jsonl"]
    if len(files) < 4 or not files[-1].is_file():
        raise TopicSkippedError(f"no test items in {root}/tasks and {root}/chat")
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return list(dict.fromkeys(json.loads(line)["question"] for line in lines))


def plant(items: list[str], pages: list[str], each: int) -> list[tuple[str, str, int]]:
    """Put damaged items into the middle of the first pages; return damage, class of length and item of each page."""
    rng = random.Random(11)
    planted: list[tuple[str, str, int]] = []
    for words, (least, most) in CLASSES.items():
        own = [number for number, item in enumerate(items) if least <= len(item.split()) <= most]
        rng.shuffle(own)
        share = min(each, len(own) // len(DAMAGES))
        for place, (damage, change) in enumerate(DAMAGES.items()):
            for number in own[place * share : (place + 1) * share]:
                page = pages[len(planted)]
                middle = page.find(" ", len(page) // 2)
                pages[len(planted)] = f"{page[:middle]} {change(items[number], rng)} {page[middle:]}"
                planted.append((damage, words, number))
    return planted


def replace_words(count: int) -> Damage:
    """Return what replaces so many words of an item's middle half, or all of it if it has no more."""

    def change(text: str, rng: random.Random) -> str:
        words = text.split()
        middle = range(len(words) // 4, max(len(words) - len(words) // 4, len(words) // 4 + 1))
        for place in rng.sample(middle, min(count, len(middle))):
            words[place] = rng.choice(WORDS)
        return " ".join(words)

    return change


def replace_every_fourth_word(text: str, rng: random.Random) -> str:
    """Replace a quarter of the words, evenly spaced."""
    return " ".join(rng.choice(WORDS) if place % 4 == 2 else word for place, word in enumerate(text.split()))


def write_entities(text: str, rng: random.Random) -> str:
    """Write all marks and some letters and spaces as HTML entities."""
    return "".join(
        f"&#{ord(one)};"
        if not (one.isalnum() or one == " ") or rng.random() < 0.1
        else "&nbsp;"
        if one == " " and rng.random() < 0.3
        else one
        for one in text
    )


TYPOGRAPHY: dict[str, Damage] = {
    "soft hyphens": lambda text, _: re.sub(r"(\w\w)(?=\w)", "\\1\u00ad", text),
    "zero-width spaces in words": lambda text, _: re.sub(r"(\w)(?=\w)", "\\1\u200b", text),
    "full width": lambda text, _: "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in text),
    "HTML entities": write_entities,
    "accents, in NFD": lambda text, _: unicodedata.normalize("NFD", text.replace("e", "\u00e9")),
    "other quotes, dashes, currency": lambda text, _: text.translate(
        {ord("'"): "\u2019", ord('"'): "\u201d", ord("-"): "\u2014", ord("$"): "\u20ac"}
    ),
    "capitals and line breaks": lambda text, _: text.upper().replace(" ", "\n"),
}
DAMAGES: dict[str, Damage] = {
    "none": replace_words(0),
    "1 word replaced": replace_words(1),
    "2 words replaced": replace_words(2),
    "3 words replaced": replace_words(3),
    "every fourth word replaced": replace_every_fourth_word,
    **TYPOGRAPHY,
}
