"""Evaluation items in documents: found whatever the typography, decided when the set is mixed, shown in their place."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pipeline
from pipeline.build.clean_report.read import read_clean_report
from pipeline.clean.documents import Documents
from pipeline.clean.evaluations import hits as hits_module
from pipeline.clean.evaluations.hits import HitFinder
from pipeline.clean.evaluations.items import (
    ITEM_DTYPE,
    LEAST_WORDS,
    NGRAM_WORDS,
    Items,
    collect_items,
    find_item_ngrams,
)
from pipeline.clean.evaluations.word_ngrams import find_hashed_words
from pipeline.mix.contamination import CONTAMINATION_FILE
from pipeline.sources.base import SourceError
from shards.errors import InputError
from tests.support.builds import real_documents

PUNCTUATION = r"\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f\u00a0-\u00bf\u2000-\u206f\u3000-\u303f"
SEPARATORS = re.compile(f"[{PUNCTUATION}]+")
WORD = re.compile(f"[^{PUNCTUATION}]+")


def slow_words(text: str) -> list[str]:
    """Return the words as the documentation says them: ASCII in small letters, cut at punctuation and white space."""
    small = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    return [word for word in SEPARATORS.split(small) if word]


def slow_hits(items: list[str], documents: list[str]) -> set[tuple[int, tuple[str, ...], int, int]]:
    """Return (document, n-gram, first byte, one past the last) of every n-gram of an item."""
    wanted: set[tuple[str, ...]] = set()
    for item in items:
        words = slow_words(item)
        size = min(len(words), NGRAM_WORDS)
        if size >= LEAST_WORDS:
            wanted |= {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}
    found: set[tuple[int, tuple[str, ...], int, int]] = set()
    for number, text in enumerate(documents):
        edges = [match.span() for match in WORD.finditer(text)]
        words = slow_words(text)
        assert len(edges) == len(words)
        for size in {len(ngram) for ngram in wanted}:
            for start in range(len(words) - size + 1):
                if tuple(words[start : start + size]) in wanted:
                    first, last = edges[start][0], edges[start + size - 1][1]
                    found.add(
                        (number, tuple(words[start : start + size]), *(len(text[:at].encode()) for at in (first, last)))
                    )
    return found


def items_of(texts: list[str]) -> Items:
    found = [find_item_ngrams(memoryview(text.encode())) for text in texts]
    rows = np.zeros(len(texts), ITEM_DTYPE)
    rows["words"], rows["size"] = zip(*((words, size) for words, size, _ in found), strict=True)
    return collect_items(rows, [ngrams for _, _, ngrams in found])


def documents_of(texts: list[str]) -> Documents:
    return Documents(pa.array(texts, pa.large_string()), np.arange(len(texts), dtype=np.uint32))


def test_typography_does_not_hide_words() -> None:
    typeset = "Natalia\u2019s \u201cclips\u201d\u2014sold\u00a0TO 48\nfriends\u3002Na\u00efve caf\u00e9"
    plain = "natalia s clips  sold to 48 friends na\u00efve caf\u00e9"
    (first, places), (second, _) = (
        find_hashed_words(np.frombuffer(text.encode(), np.uint8), np.array([0, len(text.encode())]))
        for text in (typeset, plain)
    )
    assert first.tolist() == second.tolist()
    cut = [typeset.encode()[start:stop].decode() for start, stop in places]
    assert cut == ["Natalia", "s", "clips", "sold", "TO", "48", "friends", "Na\u00efve", "caf\u00e9"]


TEXTS = st.lists(
    st.lists(st.sampled_from(["a", "b", "B", "\u00e9", "x1"]), max_size=40).map(" ".join)
    | st.text("ab \u2019\u00a0\u3001\u4e2dB.\n\U0001f642", max_size=60),
    min_size=1,
    max_size=6,
).map(lambda texts: [text or "." for text in texts])


@example(items=["a b c"], documents=["x a b", "c", "a b c"], size=1 << 20)
@example(items=["a b c", "b c d", "c d e", "d e a", "e a b"], documents=["a b c d e " * 20], size=64)
@example(items=["aaaaaaaa bbbbbbbb cccccccc"], documents=["aaaaaaaa bbbbbbbb cccccccc dddddddd"], size=8)
@given(items=TEXTS, documents=TEXTS, size=st.sampled_from([8, 64, 1 << 20]))
def test_hits_are_those_of_a_plain_search(items: list[str], documents: list[str], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hits_module, "SLICE_BYTES", size)
        found = HitFinder(items_of(items)).find(documents_of(documents))
    expected = slow_hits(items, documents)
    assert {(int(d), int(a), int(b)) for d, _, a, b in found.tolist()} == {(d, a, b) for d, _, a, b in expected}
    assert len(found) == len(expected)
    texts = {ngram: number for number, ngram in found[["document", "ngram"]].tolist()}
    assert len(texts) == len({ngram for _, ngram, _, _ in expected})


QUESTIONS = [
    f"Farmer {name} has {count} hens and sells {count // 2} eggs on each of {count % 7 + 2} market days, but {name} "
    f"drops {count % 5} of them on the way; how many eggs does {name} bring home at the end of a week with no rain?"
    for name, count in zip(["Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal"], range(30, 110, 10), strict=True)
]
SHORT = "Who painted Guernica in Paris"
COMMON = "which of the following statements about the text above is true and which one of them is false"


def hide(question: str, number: int) -> str:
    """Return a question as a page has it that copied it: other quotes, case and line breaks."""
    typeset = "\u201c" + question.replace(",", " \u2014") + "\u201d"
    capitals = "".join(letter.upper() if letter.isascii() else letter for letter in question)
    return [question, capitals, question.replace(" ", "\n"), typeset][number % 4]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of real prose; eight hold a question, one a short item, one half of a question, forty a common phrase."""
    folder = tmp_path_factory.mktemp("contaminated")
    pages = [text for text in real_documents() if len(text) > 200]
    rng = random.Random(4)
    rng.shuffle(pages)
    for number, question in enumerate(QUESTIONS):
        pages[number] = f"{pages[number]}\n{hide(question, number)}\n{pages[number][:300]}"
    pages[8] += f"\n{SHORT.lower()}?"
    first = QUESTIONS[0].split()
    pages[9] += " " + " ".join(first[: len(first) // 3])  # less than half
    for number in range(10, 50):
        pages[number] += f"\n{COMMON}: {number}"
    for number in range(4):  # so that a unit is encoded in several batches
        pages[number] += " ".join(rng.sample(pages[50:], 500) * 9)
    half = len(pages) // 2
    pq.write_table(pa.table({"text": pages[:half]}), folder / "one.parquet", row_group_size=40)
    pq.write_table(pa.table({"text": pages[half:] + pages[:3]}), folder / "two.parquet", row_group_size=40)
    (folder / "questions.jsonl").write_text(
        "".join(
            json.dumps({"question": text}) + "\n" for text in [*QUESTIONS, SHORT, "Why so?", "An item nowhere at all"]
        )
    )
    (folder / "choices.jsonl").write_text(json.dumps({"question": COMMON}) + "\n")
    return folder


def recipe_of(corpus: Path, action: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return a recipe of two sources; with `action`, it names the evaluation sets."""
    recipe: dict[str, Any] = {
        "name": "held",
        "sources": [{"name": name, "paths": [f"{corpus}/{name}.parquet"], "weight": 1} for name in ("one", "two")],
        "tokenizer": {"vocab_size": 400},
        "mix": {"when_short": "shrink"},
        "shards": {"tokens": 1_000_000},
    }
    if action:
        recipe["evaluations"] = [
            {
                "name": name,
                "paths": [f"{corpus}/{name}.jsonl"],
                "text": "question",
                "action": action,
                "max_dropped": 0.5,
            }
            for name in ("questions", "choices")
        ]
    return recipe | changes


def files_of(out: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in sorted(out.iterdir())
        if file.name not in ("manifest.json", "recipe.json")
    }


def ran(result: Any) -> dict[str, int]:
    return {name: stage.ran for name, stage in result.stages.items() if stage.ran}


def test_items_are_counted_shown_and_dropped(corpus: Path, tmp_path: Path) -> None:
    clean = pipeline.build_set(recipe_of(corpus), out=tmp_path / "clean", workers=1)
    reported = pipeline.build_set(recipe_of(corpus, "report"), out=tmp_path / "set", workers=1)
    # Reporting changes no byte of the set; only the sources are read once more.
    assert files_of(tmp_path / "clean") == files_of(tmp_path / "set")
    # Eight questions and the short item; copies of three pages are in the second source, too.
    (note,) = [note for note in reported.notes if "'questions'" in note and "found" in note]
    assert "9 of 11 items found in 12 documents, which stay" in note
    assert any("1 of 11 items not searched for: empty, or shorter than 3 words" in note for note in reported.notes)
    assert any("'choices': 0 of 1 items found; 1 items hold common phrases alone" in note for note in reported.notes)
    (evidence,) = tmp_path.glob(f"set.work/mix/*/{CONTAMINATION_FILE}")
    table = pq.read_table(evidence).to_pylist()
    texts = {name: pq.read_table(corpus / f"{name}.parquet").column("text").to_pylist() for name in ("one", "two")}
    assert len(table) == 12
    for row in table:
        group = int(row["unit"].rpartition("#rg")[2].split("-")[0])
        page = texts[row["source"]][group * 40 + row["row"]].encode()
        found = slow_words(page[row["start"] : row["stop"]].decode())
        assert found == slow_words([*QUESTIONS, SHORT][row["item_row"]])
        assert row["share"] == 1

    # Another action mixes and assembles again, no more.
    dropped = pipeline.build_set(recipe_of(corpus, "drop"), out=tmp_path / "set", workers=1)
    assert set(ran(dropped)) == {"mix", "assemble"}
    sources = {source.name: source for source in dropped.manifest.sources}
    reason = "holds an item of questions"
    assert sum(source.dropped.get(reason, 0) for source in sources.values()) == 12
    documents = {source.name: source.documents_available for source in clean.manifest.sources}
    assert sources["one"].documents_available == documents["one"] - 9
    assert sources["two"].documents_available == documents["two"]
    tables = [pq.read_table(file) for file in (tmp_path / "set").glob("*.docs.parquet")]
    hashes = {value.hex() for table in tables for value in table.column("hash").to_pylist()}
    assert not hashes & {row["hash"] for row in table}

    # The report shows the copies in their places.
    report = read_clean_report(str(tmp_path / "set"))
    questions = report["evaluations"][0]
    assert (questions["found"], questions["documents"]) == (9, {"one": 9, "two": 3})
    assert {row["item_row"] for row in questions["held"]} == set(range(9))
    for row in questions["held"]:
        assert row["item_text"] == [*QUESTIONS, SHORT][row["item_row"]]
        words = slow_words(row["found"]["hit"])  # a long hit is cut, perhaps inside a word
        assert words[:-1] == slow_words([*QUESTIONS, SHORT][row["item_row"]])[: len(words) - 1]
        assert len(words) > 4
    command = [sys.executable, "-m", "pipeline", "clean-report", str(tmp_path / "set.work"), "--examples", "1"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "9 of one, 3 of two" in printed
    assert ">>>" in printed

    # The same bytes with more workers and from nothing.
    again = pipeline.build_set(recipe_of(corpus, "drop"), out=tmp_path / "again", workers=2)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "set")
    assert again.manifest.sources == dropped.manifest.sources


def test_items_in_real_text_are_found_and_nothing_else(corpora: Path, tmp_path: Path) -> None:
    """100 passages of mathematics stand inside web pages; 10,000 other pages and 5,000 other passages hold none."""
    rng = random.Random(9)
    mathematics = pq.read_table(sorted((corpora / "finemath").glob("*.parquet"))[0]).column("text").to_pylist()
    files = [file for name in ("fineweb_edu", "bulk_prose") for file in sorted((corpora / name).glob("*.parquet"))]
    pages = [text for file in files for text in pq.read_table(file).column("text").to_pylist()][:10_100]
    items: list[str] = []
    for text in mathematics:
        words = text.split()
        if len(words) > 120:
            start = rng.randrange(len(words) - 60)
            items.append(" ".join(words[start : start + rng.randrange(16, 60)]))
    items = list(dict.fromkeys(items))[:1500]
    for number, item in enumerate(items[:100]):
        middle = pages[number].find(" ", len(pages[number]) // 2)
        pages[number] = f"{pages[number][:middle]} {hide(item, number)} {pages[number][middle:]}"
    pq.write_table(pa.table({"text": pages}), tmp_path / "pages.parquet", row_group_size=len(pages))
    pq.write_table(pa.table({"question": items}), tmp_path / "items.parquet")
    recipe = {
        "name": "real",
        "sources": [{"name": "pages", "paths": [f"{tmp_path}/pages.parquet"], "weight": 1}],
        "tokenizer": {"vocab_size": 400, "sample_bytes": "1 MB"},
        "evaluations": [{"name": "items", "paths": [f"{tmp_path}/items.parquet"], "text": "question"}],
    }
    pipeline.build_set(recipe, out=tmp_path / "set", workers=2, validate="quick")
    (evidence,) = tmp_path.glob(f"set.work/mix/*/{CONTAMINATION_FILE}")
    found = {(row["row"], row["item_row"]) for row in pq.read_table(evidence).to_pylist()}
    assert {place for place in found if place[0] == place[1]} == {(number, number) for number in range(100)}
    assert {page for page, _ in found} <= set(range(100))


@pytest.mark.parametrize("before", [1, 40_000])
def test_a_malformed_item_names_what_can_be_done(corpus: Path, tmp_path: Path, before: int) -> None:
    """At the head of a file, and where only reading finds it."""
    line = json.dumps({"question": QUESTIONS[0]}) + "\n"
    (tmp_path / "bad.jsonl").write_text(line * before + "{broken\n" + line)
    recipe = recipe_of(corpus) | {
        "evaluations": [{"name": "bad", "paths": [f"{tmp_path}/bad.jsonl"], "text": "question"}]
    }
    with pytest.raises(SourceError) as caught:
        pipeline.build_set(recipe, out=tmp_path / "set", workers=1)
    assert str(caught.value).startswith(f"evaluation set 'bad': bad.jsonl: record {before}: ")
    assert str(caught.value).endswith("Repair the record, or correct the column's name or type.")
    assert "max_malformed" not in str(caught.value)


def test_a_plan_searches_its_sample_too(corpus: Path) -> None:
    recipe = recipe_of(corpus, "drop")
    pipeline.plan_set(recipe)
    recipe["evaluations"][0]["text"] = "answer"
    with pytest.raises(InputError, match=r"evaluation set 'questions': .*answer"):
        pipeline.plan_set(recipe)


def test_a_rebuild_from_the_sets_own_recipe(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("one.parquet", "two.parquet", "questions.jsonl", "choices.jsonl"):
        (folder / name).write_bytes((corpus / name).read_bytes())
    recipe = recipe_of(Path(), "drop")
    (folder / "recipe.json").write_text(json.dumps(recipe))
    pipeline.build_set(folder / "recipe.json", out=tmp_path / "a" / "set", workers=1)
    pipeline.build_set(tmp_path / "a" / "set" / "recipe.json", out=tmp_path / "b" / "set", workers=1)
    first, second = ((tmp_path / name / "set" / "manifest.json").read_bytes() for name in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("item", "found"),
    [("An item that is nowhere at all", "0 of 1 items found"), (COMMON, "1 items hold common phrases alone")],
)
def test_a_corpus_without_items(corpus: Path, tmp_path: Path, item: str, found: str) -> None:
    (tmp_path / "none.jsonl").write_text(json.dumps({"question": item}) + "\n")
    table = {"name": "none", "paths": [f"{tmp_path}/none.jsonl"], "text": "question", "action": "drop"}
    built = pipeline.build_set(recipe_of(corpus) | {"evaluations": [table]}, out=tmp_path / "set", workers=1)
    assert any(found in note for note in built.notes)
    assert not any(source.dropped.get("holds an item of none") for source in built.manifest.sources)


def test_a_set_that_would_drop_too_much_stops_the_build(corpus: Path, tmp_path: Path) -> None:
    recipe = recipe_of(corpus, "drop")
    recipe["evaluations"][0]["max_dropped"] = 0.001
    with pytest.raises(InputError) as stopped:
        pipeline.build_set(recipe, out=tmp_path / "set", workers=1)
    message = str(stopped.value)
    assert re.search(r"source 'one': 9 of [\d,]+ documents \(\d\.\d\d%\) hold an item of the evaluation set", message)
    assert "max_dropped = 0.001 allows" in message
    assert read_clean_report(str(tmp_path / "set.work"))["evaluations"][0]["held"]
    recipe["evaluations"][0]["max_dropped"] = float(re.search(r"set its max_dropped = ([\d.]+)", message)[1])  # type: ignore[index]
    assert set(ran(pipeline.build_set(recipe, out=tmp_path / "set", workers=1))) == {"assemble"}


def test_the_alarm_comes_before_the_shortage_that_it_causes(corpus: Path, tmp_path: Path) -> None:
    pages = [f"{QUESTIONS[0]} Page {number}." for number in range(8)]  # a phrase in more documents would be common
    pq.write_table(pa.table({"text": pages}), tmp_path / "one.parquet")
    recipe = recipe_of(corpus, "drop")
    recipe["sources"][0]["paths"] = [f"{tmp_path}/one.parquet"]
    with pytest.raises(InputError, match=r"source 'one': 8 of 8 documents \(100\.00%\) hold an item"):
        pipeline.build_set(recipe, out=tmp_path / "set", workers=1)


def test_a_changed_evaluation_file_is_read_again(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text(json.dumps({"question": QUESTIONS[0]}) + "\n")
    recipe = recipe_of(corpus) | {
        "evaluations": [
            {
                "name": "more",
                "paths": [f"{tmp_path}/more.jsonl"],
                "text": "question",
                "action": "drop",
                "max_dropped": 1,
            }
        ]
    }
    first = pipeline.build_set(recipe, out=tmp_path / "set", workers=1)
    with (tmp_path / "more.jsonl").open("a") as file:
        file.write(json.dumps({"question": QUESTIONS[1]}) + "\n")
    second = pipeline.build_set(recipe, out=tmp_path / "set", workers=1)
    assert "tokenizer" not in ran(second)
    counts = [
        sum(s.dropped.get("holds an item of more", 0) for s in result.manifest.sources) for result in (first, second)
    ]
    assert counts == [2, 4]  # with the copies in the second source


@pytest.mark.parametrize(
    ("content", "change", "words"),
    [
        ('{"question": "one two three four"}\n', {"text": "answer"}, "answer"),
        ("", {}, "evaluation set 'items': items.jsonl: the file is empty"),
        ('{"question": ""}\n', {}, "no item can be searched for: its files hold none"),
        ('{"question": "too short"}\n', {}, "all 1 are shorter than 3 words"),
        ('{"question": "one two three four"}\n', {"action": "remove"}, "action"),
        ('{"question": "one two three four"}\n', {"paths": ["nowhere/*.jsonl"]}, "matches no file"),
        ('{"question": "one two three four"}\n', {"name": "a/b"}, "name"),
    ],
)
def test_evaluation_sets_that_cannot_be_used(
    corpus: Path, tmp_path: Path, content: str, change: dict[str, Any], words: str
) -> None:
    (tmp_path / "items.jsonl").write_text(content)
    table = {"name": "items", "paths": [f"{tmp_path}/items.jsonl"], "text": "question"} | change
    with pytest.raises(InputError, match=re.escape(words)):
        pipeline.build_set(recipe_of(corpus) | {"evaluations": [table]}, out=tmp_path / "set", workers=1)
    assert not (tmp_path / "set").exists()
