"""Evaluation items in documents: found whatever the typography, decided when the set is mixed, shown in their place."""

import html
import json
import random
import re
import unicodedata
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pipeline
from pipeline.builder.clean_report import read_clean_report
from pipeline.clean.decontamination import hits as hits_module
from pipeline.clean.decontamination.hits import LEAST_HITS, REACH, HitFinder
from pipeline.clean.decontamination.items import LEAST_WORDS, LONG_WORDS, NGRAM_WORDS, load_items
from pipeline.clean.decontamination.normal_form import find_hashed_words, normalise
from pipeline.encode.run import Run
from pipeline.mix import contamination
from pipeline.mix.contamination import count_documents
from shards import open_set
from shards.eval_tasks.known import KNOWN_TASKS
from shards.eval_tasks.read import read_items
from shards.format.content_hash import hash_document
from shards.stores.cache import Cache
from shards.validation.validate import validate
from tests.support.builds import digests, real_documents
from tests.support.evidence import read_rows
from tests.support.held_items import documents_of, find_held, items_of
from tests.support.recipes import to_lines, write_texts

ENTITY_OR_CHARACTER = re.compile(
    r"&(?:amp;)*(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});|.", re.DOTALL
)


def slow_places(text: str) -> list[tuple[str, int, int, int]]:
    """Return the words as documented: each with its first character, one past its last, its letters."""
    letters: list[tuple[str, int, int]] = []
    for match in ENTITY_OR_CHARACTER.finditer(text):
        start, stop = match.span()
        plain = html.unescape(html.unescape(html.unescape(match[0])))
        is_entity = plain != match[0]
        for place, part in enumerate([plain] if is_entity else plain, start):
            for letter in unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", part).casefold()):
                if unicodedata.category(letter) != "Cf" and not unicodedata.combining(letter):
                    letters.append((letter, start if is_entity else place, stop if is_entity else place + 1))
    units: list[tuple[int, str, int, int]] = []
    for inside, own in groupby(letters, lambda one: unicodedata.category(one[0])[0] in "LNM"):
        script = None
        for letter, start, stop in own if inside else ():
            before, script = script, UNSPACED.get(unicodedata.name(letter).split()[0], 1)
            is_mark = script > 1 and unicodedata.category(letter)[0] == "M"
            if before is None or (not is_mark and (script > 1 or before > 1)):
                units.append((1 if is_mark else script, letter, start, stop))
            else:
                count, text, first, _ = units[-1]
                units[-1] = (count, text + letter, first, stop)
    # In scripts without spaces, a word begins at each letter, and has a number of them.
    words: list[tuple[str, int, int, int]] = []
    for place, (count, _, start, _) in enumerate(units):
        if place + count > len(units):
            break
        own = units[place : place + count]
        words.append(("|".join(text for _, text, _, _ in own), start, own[-1][3], count))
    return words


UNSPACED = {"CJK": 2, "HIRAGANA": 3, "KATAKANA": 3, "THAI": 5, "LAO": 5, "KHMER": 5, "MYANMAR": 5}


def slow_words(text: str) -> list[str]:
    return [word for word, *_ in slow_places(text)]


def slow_hits(items: list[str], documents: list[str]) -> set[tuple[int, tuple[str, ...], int, int]]:
    """Return (document, n-gram, first byte, one past the last) of every n-gram of an item that counts."""
    long: set[tuple[str, ...]] = set()
    short: set[tuple[str, ...]] = set()
    for item in items:
        places = slow_places(item)
        if len(places) < LEAST_WORDS or sum(60 // count for *_, count in places[:-1]) < 60 * (LEAST_WORDS - 1):
            continue  # it has no three words that do not overlap
        words = [word for word, *_ in places]
        if len(words) >= LONG_WORDS:
            long |= {tuple(words[start : start + NGRAM_WORDS]) for start in range(len(words) - NGRAM_WORDS + 1)}
        else:
            short.add(tuple(words))
    found: set[tuple[int, tuple[str, ...], int, int]] = set()
    for number, text in enumerate(documents):
        words = slow_places(text)
        hits: list[tuple[tuple[str, ...], int, int]] = []
        for size in {len(ngram) for ngram in long | short}:
            for start in range(len(words) - size + 1):
                ngram = tuple(word for word, *_ in words[start : start + size])
                if ngram in long | short:
                    edges = (words[start][1], max(stop for _, _, stop, _ in words[start : start + size]))
                    hits.append((ngram, *(len(text[:at].encode()) for at in edges)))
        hits.sort(key=lambda hit: hit[1:])
        alone = [hit for hit in hits if hit[0] not in short]
        for first in range(len(alone) - LEAST_HITS + 1):
            close = alone[first : first + LEAST_HITS]
            if close[-1][1] - close[0][1] <= REACH * (close[0][2] - close[0][1]):
                found |= {(number, *hit) for hit in close}
        found |= {(number, *hit) for hit in hits if hit[0] in short}
    return found


def hashed(text: str) -> list[int]:
    return find_hashed_words(normalise(text.encode())[0])[0].tolist()


def test_typography_does_not_hide_words():
    plain = (
        'The r\u00e9sum\u00e9 of Zo\u00eb\'s office: "final flow, first finish" - costs $5 & 40% more than 1/2 of 38 '
        "caf\u00e9s; \u0391\u03b8\u03ae\u03bd\u03b1 and \u041c\u043e\u0441\u043a\u0432\u0430, d\u00e9j\u00e0 vu."
    )
    # Capitals, accents apart, entities, ligatures, line breaks, characters that are not seen, full width, directions.
    hidden = (
        "\u202bTHE re\u0301sume\u0301\u00a0of Zo&euml;&amp;#39;s o\ufb03ce\uff1a &ldquo;\ufb01nal\r\n"
        "\ufb02ow\u2014fi\u00adr&shy;st f\u200bin\ufe0fish\u201d costs \u20ac 5 "
        "&amp;amp; 40% m&#111;re than 1&#x2f;2&nbsp;of \uff13\uff18 cafe\u0301s; \u0391\u0398\u0389\u039d\u0391 "
        "and \u041c\u043e\u0441\u043a\u0432\u0430, d&eacute;j\u00e0 vu.\u202c"
    )
    assert hashed(hidden) == hashed(plain) != hashed(plain.replace("costs", "cost"))


LETTERS = "ab \u2019\u00a0\u3001\u4e2dB.\n\U0001f642\u00e9\u0301\u00ad\u200b\u20ac\uff21\u00bd\ufb01\ud55c&;"
THAI = "\u0e01\u0e34\u0e33\u0e40\u0e48"
TEXTS = st.lists(
    st.lists(st.sampled_from(["a", "b", "B", "\u00e9", "x1"]), max_size=40).map(" ".join)
    | st.text(LETTERS, max_size=60)
    | st.text(f"\u4e00\u4e8c\u304b\u304c\u30ab{THAI}", max_size=40)
    | st.text(f"a1 \u3002\u00ad\u4e00\uff76\u337f{THAI}", max_size=60)
    | st.lists(st.sampled_from(["a", "b", " ", "&amp;", "&nbsp;", "&#97;", "&eacute;", "&no", ";"])).map("".join),
    min_size=1,
    max_size=6,
).map(lambda texts: [text or "." for text in texts])


@example(items=["a b c"], documents=["x a b", "c", "a b c"], size=1 << 20)
@example(items=["a b c", "b c d", "c d e", "d e a", "e a b"], documents=["a b c d e " * 20], size=64)
@example(items=["a b c d e a b c d"], documents=["b c d e a b c d e"], size=1 << 20)
@example(items=["a b c d e a b c d"], documents=["a b c d e b b b c d e a b", "a b c d e " * 40], size=64)
@example(items=["a b c"], documents=["a b c&am", "p;a b c"], size=1 << 20)
@example(
    items=["\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03"],
    documents=["a\u4e00\u4e8c\u4e09\u3002\u56db\n\u4e94\u516d\u4e03\u4e00"] * 2,
    size=8,
)
@example(items=[8 * THAI], documents=["\u4e00" + 40 * THAI + "\u4e00", 8 * THAI], size=64)
@example(items=["a a no"], documents=["\u0e01", "a a no a"], size=64)
@example(items=["1\u337f\u0e01"], documents=["1\u337f\u0e01\u00ad\u0e33"], size=64)
@example(items=["\u0e341\u0e481"], documents=["\u0e341\u0e481"], size=64)
@example(
    items=["\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u0e01 b"],
    documents=["\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u0e01 b c d e"],
    size=64,
)
@example(items=["กกกかかか一一ก"], documents=["\u0e48กกกかかか一一"], size=8)
@example(items=["aaaaaaaa bbbbbbbb cccccccc"], documents=["aaaaaaaa bbbbbbbb cccccccc dddddddd"], size=8)
@given(items=TEXTS, documents=TEXTS, size=st.sampled_from([8, 64, 1 << 20]))
def test_hits_are_those_of_a_plain_search(items: list[str], documents: list[str], size: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hits_module, "SLICE_BYTES", size)
        found = HitFinder(items_of(items)).find(documents_of(documents))
    expected = slow_hits(items, documents)
    assert {(int(d), int(a), int(b)) for d, _, a, b in found.tolist()} == {(d, a, b) for d, _, a, b in expected}
    assert len(found) == len(expected)
    texts = {ngram: number for number, ngram in found[["document", "ngram"]].tolist()}
    assert len(texts) == len({ngram for _, ngram, _, _ in expected})


QUESTIONS = [
    "Farmer Ada has 30 hens and sells 15 eggs on each of 4 market days, but Ada drops 3 of them on the way; how many "
    "eggs does she bring home at the end of a week with no rain?",
    "A train leaves Lyon at noon with 240 people on board, and at every one of its six stops a quarter of those left "
    "get off while nine climb in; who can say how full it is in Brest?",
    "Twelve painters need five days for the long wall of the old harbour, so how many hours would two of them work on "
    "the short one, which is a third as high and half as wide?",
    "If a baker mixes 7 cups of rye flour with 3 of water for each loaf, what weight of dough stands on the table once "
    "all 18 tins, two of which leak, have been filled to the brim?",
]
SHORT = "Who painted Guernica in Paris"


def hide(question: str, number: int) -> str:
    """Return a question as a page has it that copied it: other quotes, case and line breaks."""
    typeset = "\u201c" + question.replace(",", " \u2014") + "\u201d"
    capitals = "".join(letter.upper() if letter.isascii() else letter for letter in question)
    return [question, capitals, question.replace(" ", "\n"), typeset][number % 4]


def write_corpus(folder: Path) -> None:
    """Write pages of real prose, of which four hold a question, and one a short item."""
    pages = [text for text in real_documents() if len(text) > 200]
    rng = random.Random(4)
    rng.shuffle(pages)
    for number, question in enumerate(QUESTIONS):
        pages[number] = f"{pages[number]}\n{hide(question, number)}\n{pages[number][:300]}"
    pages[4] += f"\n{SHORT.lower()}?"
    for number in range(4):  # so that a unit is encoded in several batches
        pages[number] += " ".join(rng.sample(pages[50:], 500) * 9)
    half = len(pages) // 2
    pq.write_table(pa.table({"text": pages[:half]}), folder / "one.parquet", row_group_size=40)
    pq.write_table(pa.table({"text": pages[half:] + pages[:3]}), folder / "two.parquet", row_group_size=40)
    questions = [*QUESTIONS, SHORT, "Why so?", "An item nowhere at all"]
    write_texts(folder / "questions.jsonl", questions, "question")


def recipe_of(corpus: Path, **changes: Any) -> dict[str, Any]:
    """Return a recipe of two sources."""
    return {
        "name": "held",
        "sources": [{"name": name, "paths": [f"{corpus}/{name}.parquet"], "weight": 1} for name in ("one", "two")],
        "tokenizer": {"vocab_size": 400},
        "mix": {"when_short": "shrink"},
        "shards": {"tokens": 1_000_000},
    } | changes


def read_held(work: Path) -> list[dict[str, Any]]:
    """Return the documents that hold items, once for each item."""
    return [row | item for row in read_rows(work) for item in row["items"]]


def test_items_are_counted_and_their_places_known(tmp_path: Path):
    write_corpus(tmp_path)
    pipeline.build_set(recipe_of(tmp_path), out=tmp_path / "clean", workers=1)
    questions = {"name": "questions", "paths": [f"{tmp_path}/questions.jsonl"], "text": "question"}
    recipe = recipe_of(tmp_path, evaluations=[questions | {"action": "report"}])
    reported = pipeline.build_set(recipe, out=tmp_path / "set", workers=1)
    # Reporting changes no byte of the set; only the sources are read once more.
    changed = dict(digests(tmp_path / "clean").items() - digests(tmp_path / "set").items())
    assert changed.keys() == {"manifest.json", "recipe.json"}
    # Four questions and the short item; copies of three pages are in the second source, too.
    (note,) = [note for note in reported.notes if "'questions'" in note and "found" in note]
    assert "5 of 7 items found in 8 documents, which stay" in note
    assert any("1 of 7 items not searched for: empty, or shorter than 3 words" in note for note in reported.notes)
    table = read_held(tmp_path / "set.work")
    texts = {name: pq.read_table(tmp_path / f"{name}.parquet").column("text").to_pylist() for name in ("one", "two")}
    assert len(table) == 8
    for row in table:
        group = int(row["unit"].rpartition("#rg")[2].split("-")[0])
        page = texts[row["source"]][group * 40 + row["row"]].encode()
        found = slow_words(page[row["start"] : row["stop"]].decode())
        assert found == slow_words([*QUESTIONS, SHORT][row["item_row"]])
        assert row["share"] == 1
    (questions,) = read_clean_report(str(tmp_path / "set"))["evaluations"]
    assert (questions["found"], questions["documents"]) == (5, {"one": 5, "two": 3})


@pytest.mark.parametrize("counts", [0, 1000])
def test_a_part_of_an_item_is_not_the_item(counts: int):
    """Of 17 words a document needs 12; if all n-grams are common, it needs nearly all of them."""
    item = re.findall(r"\w+", "a tall man in red sold nine old maps of Spain to my aunt for ten coins")
    ends = range(3, len(item) + 1)
    needed = 12 if not counts else 16
    expected = {(place, 0) for place, end in enumerate(ends) if end >= needed}
    assert find_held([" ".join(item)], [f"so {' '.join(item[:end])} or so" for end in ends], counts) == expected
    # The same words over a long stretch, or in another order.
    apart = [f"{' '.join(item[start : start + 4])} {'and so on ' * 20}" for start in range(0, 16, 4)]
    assert find_held([" ".join(item)], [" ".join(apart), " ".join(item[::-1])], counts) == set()


LICENCE = (
    "this text may be copied and changed by anyone for any purpose if this notice is kept in all copies of it and "
    "if the names of its authors are not used to sell it"
)


def write_planted(folder: Path) -> None:
    """Write pages of prose in which items are planted more often than common phrases occur, and the items.

    Items 0 and 1 are in 40 different pages each, 1 with a changed word; 2 in part, in 40 copies of one page; 3 in part,
    in 40 pages that are nearly the same; 4 to 9 are little more than a sentence that 60 pages have; 10 is short, and in
    30 pages.
    """
    pages = [text for text in real_documents() if 150 < len(text) < 4000]
    items = QUESTIONS[:4]
    items += [f"{LICENCE}, says {name}" for name in ("Ann", "Ben", "Carl", "Dora", "Eva", "Fritz")]
    items.append("one of the best of all")
    changed = QUESTIONS[1].split()
    changed[len(changed) // 2] = "lantern"
    for number in range(40):
        pages[number] += f"\n{QUESTIONS[0]}"
        pages[number + 40] += f"\n{' '.join(changed)}"
    for number in range(60):
        pages[number + 80] += f"\n{LICENCE}."
    for number in range(30):
        pages[number + 140] += f"\n{items[-1]}"
    # Parts count only if their n-grams are not common.
    copied = f"{pages[170]}\n{' '.join(QUESTIONS[2].split()[5:])}"
    part = " ".join(QUESTIONS[3].split()[5:])
    near = ["\n".join([*pages[171:176], part, f"Page {number}."]) for number in range(40)]
    write_texts(folder / "items.jsonl", items, "question")
    pq.write_table(pa.table({"text": [*pages[:170], *near, *pages[176:400], *[copied] * 20]}), folder / "one.parquet")
    pq.write_table(pa.table({"text": [*[copied] * 20, *pages[400:420]]}), folder / "two.parquet")


def test_items_in_many_documents_are_found_and_shared_phrases_are_not(tmp_path: Path):
    write_planted(tmp_path)
    table = {"name": "items", "paths": ["items.jsonl"], "text": "question", "action": "drop", "max_dropped": 1}
    recipe = recipe_of(Path(), evaluations=[table], clean={"near_duplicates": {"max_dropped": 1}}) | {"name": "planted"}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    built = pipeline.build_set(tmp_path / "recipe.json", out=tmp_path / "set", workers=1, validate="quick")
    rows = read_held(tmp_path / "set.work")
    assert Counter(row["item_row"] for row in rows) == {0: 40, 1: 40, 2: 40, 3: 40}
    assert any(note.startswith("mix: evaluation set 'items': 4 of 11 items found in 160") for note in built.notes)
    assert sum(source.dropped["holds an item of items"] for source in built.manifest.sources) == 160
    # The set's own recipe leads to the same files, and so to the same set.
    pipeline.build_set(tmp_path / "set/recipe.json", out=tmp_path / "again", work=f"{tmp_path}/set.work", workers=1)
    assert digests(tmp_path / "set") == digests(tmp_path / "again")
    # Parts of the hash space do not change the counts.
    runs = [Run(str(path.parent), 0, "<u2") for path in sorted(tmp_path.glob("set.work/encode/*/receipt.json"))]
    (place,) = tmp_path.glob("set.work/evaluations/*/receipt.json")
    ngrams = len(load_items(str(place.parent)).ngrams)
    counts = count_documents(ngrams, runs, None)
    assert {40, 60} <= set(counts.tolist()) <= set(range(61))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contamination, "PART_HITS", 64)
        assert count_documents(ngrams, runs, None).tolist() == counts.tolist()


def test_the_manifest_names_the_items_that_the_training_split_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Items are in documents of both splits, in some that the mix leaves out, in a copy, and in none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    task = KNOWN_TASKS["lambada"]
    passages = [" ".join(f"word{number}of{place}" for place in range(20)) for number in range(50)]
    texts = [*passages, "too short"]
    key = f"hf://datasets/{task.repo}@{task.revision}/{task.file}"
    Cache().put(key, to_lines({"text": text} for text in texts).encode())
    documents = [f"Page {number} begins. {passage}" for number, passage in enumerate(passages[:40])]
    documents += [f"Some words of page {number} stand here alone, and nothing else does." for number in range(200)]
    for name, own in (("one", documents[::2]), ("two", [*documents[1::2], *documents[:20:2]])):
        pq.write_table(pa.table({"text": own}), tmp_path / f"{name}.parquet")
    recipe = recipe_of(
        tmp_path,
        tokenizer={"vocab_size": 300},
        mix={
            "tokens": 1000,
            "phases": [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5, "weights": {"two": 2}}],
        },
        split={"val_tokens": 400},
        shards={"tokens": 300},
    )
    items = [hash_document(text.encode()).hex() for text in texts]
    for action in ("report", "drop"):
        evaluation = {"task": "lambada", "action": action, "max_dropped": 1}
        recipe["evaluations"] = [evaluation | {"name": name} for name in ("lambada", "again")]
        (entry,) = pipeline.build_set(recipe, out=tmp_path / "set", workers=1).manifest.eval_tasks
        hashes = {
            split: {one.hex() for shard in shards for one in shard.documents().column("hash").to_pylist()}
            for split, shards in open_set(tmp_path / "set").splits.items()
        }
        places = {
            split: {items[n] for n in range(40) if hash_document(documents[n].encode()).hex() in own}
            for split, own in hashes.items()
        }
        assert entry.held == sorted(places["train"])
        assert (entry.task, entry.items, entry.too_short) == ("lambada", 51, [items[50]])
        assert entry.items_sha256 == read_items(task).sha256
        assert validate(tmp_path / "set", level="full").problems == []
        if action == "drop":
            assert not entry.held
        else:  # some are in validation only, some in no split
            assert entry.held
            assert places["val"] - places["train"]
            assert len(places["val"] | places["train"]) < 40
