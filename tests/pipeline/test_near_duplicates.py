"""Near-duplicates: shingles, signatures, candidate pairs, exact similarity and the selection, by slow references."""

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.encode.run import Run, RunList, RunResult
from pipeline.engine.receipts import write_receipt
from pipeline.engine.tasks import Report, digest_of_payload
from pipeline.mix.near_duplicates import bands, normal_text, similar
from pipeline.mix.near_duplicates import pairs as pairs_module
from pipeline.mix.near_duplicates.bands import BAND_DTYPE, BandsTask, bands_digest, write_bands
from pipeline.mix.near_duplicates.drop import SimilarDocuments, choose_dropped
from pipeline.mix.near_duplicates.normal_text import Entries, hash_shingles
from pipeline.mix.near_duplicates.pairs import CENTERS, PairsTask, find_pairs, read_pairs
from pipeline.mix.near_duplicates.similar import SIMILAR_DTYPE, SimilarTask, compare_pairs
from shards.format.vocabulary import Vocabulary
from shards.stores.store import FolderStore
from tests.support.near_duplicates import (
    DRESSES,
    count_characters,
    jaccard,
    shingles,
    words,
    write_scripts,
)
from tests.support.runs import Document, write_run

SCRAPS = [
    "a", "B", " ", "\n", "word", "WORD", "é", "e\u0301", "É", "ß", "İ", "\u0345", "ſ", "\u0323\u0307", "中", "。", "が",
    "か\u3099", "ก่", "่", "각", "\u1100\u1161", "\u11a8", "\u00a0", "\u2001", "\u0085", "\u3000", "ﬁ", "Ω", "😀",
    "𝒜", "नि", "़", "\U0002f800", "\0",
]  # fmt: skip
PIECES = [b" a", b"\xc3", b"\xb8\xad\xe4", b" word word word", b"\xcc\x81 ", b"\xe3\x80", *map(str.encode, SCRAPS)]
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(255)), b"<|end|>", *PIECES], {"<|end|>": 255})


def tokenize(text: str, draw: random.Random) -> list[int]:
    """Return some tokens of a text, and EOS, 255: other ids are bytes and, from 256 on, `PIECES`."""
    data, tokens = text.encode(), list[int]()
    while data:
        fit = [number for number, piece in enumerate(PIECES, 256) if data.startswith(piece)]
        own = draw.choice([*fit, data[0]])
        tokens.append(own)
        data = data[1 if own < 256 else len(PIECES[own - 256]) :]
    return [*tokens, 255]


def hash_texts(texts: list[str], seed: int = 0) -> list[tuple[list[int], int]]:
    """Return the hashes of each text's shingles, each once, and its characters; what tokens it has is drawn."""
    draw = random.Random(seed)
    return hash_tokens([tokenize(text, draw) for text in texts], Entries(VOCABULARY))


def hash_tokens(tokens: list[list[int]], entries: Entries) -> list[tuple[list[int], int]]:
    joined, lengths = np.concatenate(tokens).astype(np.uint16), np.array([len(own) for own in tokens])
    pieces = [joined[at : at + 50] for at in range(0, len(joined), 50)]
    found: list[tuple[list[int], int]] = [([], 0) for _ in tokens]
    for first, counts, characters, hashes in hash_shingles(pieces, lengths, entries):
        for place, part in enumerate(np.split(hashes, np.cumsum(counts)), first):
            if place < first + len(counts):
                found[place] = found[place][0] + part.tolist(), found[place][1] + int(characters[place - first])
    return [(list(dict.fromkeys(hashes)), characters) for hashes, characters in found]


def check_shingles(texts: list[str], found: list[tuple[list[int], int]]) -> None:
    """Compare with the reference: equal shingles have equal hashes, and others have others."""
    expected = [list(dict.fromkeys(shingles(text))) for text in texts]
    assert [len(own) for own in expected] == [len(hashes) for hashes, _ in found]
    assert [count_characters(text) for text in texts] == [characters for _, characters in found]
    pairs = {pair for own, (hashes, _) in zip(expected, found, strict=True) for pair in zip(own, hashes, strict=True)}
    assert len(pairs) == len({shingle for shingle, _ in pairs}) == len({value for _, value in pairs})


@pytest.mark.parametrize("part_tokens", [7, 1000])
def test_shingles_are_those_of_the_normal_form_whatever_the_tokens(
    part_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normal_text, "PART_TOKENS", part_tokens)
    draw = random.Random(part_tokens)
    texts = ["", " ", *("".join(draw.choices(SCRAPS, k=draw.choice((1, 4, 20, 90)))) for _ in range(200))]
    texts += [dress(text) for text in write_scripts(9, 1) for dress in DRESSES.values()]
    check_shingles(texts, hash_texts(texts))
    assert hash_texts(texts, 1) == hash_texts(texts, 2)


@pytest.mark.parametrize("part_tokens", [7, 1000])
@pytest.mark.parametrize("leads", [("system\n", "user\n", "assistant\n"), ("", "", "")])
def test_of_conversations_is_compared_what_users_and_answers_say(
    leads: tuple[str, ...], part_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normal_text, "PART_TOKENS", part_tokens)
    draw, size = random.Random(5), len(VOCABULARY.entries)
    names = [b"<|start|>", b"<|user|>", b"<|assistant|>", b"<|stop|>"]
    special = {str(name, "utf-8"): size + number for number, name in enumerate(names)}
    vocabulary = Vocabulary([*VOCABULARY.entries, *names], {"<|end|>": 255} | special)
    # One special token for all roles, whose names follow it; or one for each role.
    heads = [(size if leads[0] else size + number,) for number in range(3)]
    said, tokens = list[str](), list[list[int]]()
    for _ in range(60):
        turns = [(draw.randrange(3), "".join(draw.choices(SCRAPS, k=draw.choice((1, 4, 30))))) for _ in range(5)]
        said.append(" ".join(text for role, text in turns if role))
        ids = [(*heads[role], *tokenize(leads[role] + text, draw)[:-1], size + 3) for role, text in turns]
        tokens.append([*itertools.chain.from_iterable(ids), 255])
    check_shingles(said, hash_tokens(tokens, Entries(vocabulary, tuple(zip(heads, leads, strict=True)))))


def test_a_tokenizer_that_loses_bytes_is_no_fault() -> None:
    tokens = [0xC3, ord("a"), 255, 0x82, 255, 0xC3, ord("A"), ord(" "), 0xCC, 0x81, 255]
    (part,) = hash_shingles([np.array(tokens, np.uint16)], np.array([3, 2, 6]), Entries(VOCABULARY))
    assert part[1].tolist() == [1, 1, 1]


@pytest.mark.long
@pytest.mark.parametrize("context", ["{}", "e\u0301{}a\u0323"])
def test_each_character_is_folded_as_unicode_says(context: str) -> None:
    texts = [context.format(chr(code)) for code in (*range(0xD800), *range(0xE000, 0x32000))]
    tokens = [np.frombuffer(text.encode() + b"\xff", np.uint8) for text in texts]
    lengths, entries = np.array([len(own) for own in tokens]), Entries(VOCABULARY)
    parts = [part[3] for part in hash_shingles([np.concatenate(tokens)], lengths, entries)]
    hashes = np.concatenate(parts).tolist()
    pairs = set(zip((tuple(words(text)) for text in texts), hashes, strict=True))
    assert len(pairs) == len({own for own, _ in pairs}) == len(set(hashes)) > 190_000


def write_corpus(folder: Path) -> tuple[list[Run], dict[int, str]]:
    """Write two runs, of which many documents are similar, some equal and some short; return each hash's text too."""
    draw = random.Random(0)
    texts: list[str] = []
    for number in range(200):
        if number % 3 and texts:
            own = draw.choice(texts).split(" ")
            for _ in range(draw.randrange(4)):
                own[draw.randrange(len(own))] = draw.choice(("É", "é", "中", "word\n"))
            texts.append(draw.choice([str, *DRESSES.values()])(" ".join(own)))
        else:
            texts.append(" ".join(f"w{draw.randrange(900)}" for _ in range(draw.choice((1, 3, 6, 80, 200, 400)))))
    names: dict[str, int] = {}
    hashes = [names.setdefault(text, draw.getrandbits(128)) for text in texts]
    tokens = [tuple(tokenize(text, draw)) for text in texts]
    given = [
        Document((value >> 64, value & (2**64 - 1)), len(own), own) for own, value in zip(tokens, hashes, strict=True)
    ]
    runs = [write_run(folder / f"run-{number}", number, given[number::2]) for number in range(2)]
    return runs, {value: text for text, value in names.items()}


def find_similar(folder: Path, runs: list[Run], *, ranges: int = 1, tasks: int = 1) -> dict[frozenset[int], float]:
    """Run the three stages as a build does; return the similarity of each pair of hashes."""
    listed = RunList(FolderStore(folder), runs)
    listed.write()
    tokenizer = ("", "", None, ())

    def run(stage: str, function: Any, payload: Any) -> None:
        own = folder / stage / digest_of_payload(payload)
        own.mkdir(parents=True)
        write_receipt(own, function(own, payload, Report()))

    for item in runs:
        run("bands", write_bands, BandsTask(item.place, item.dtype, tokenizer))
    for number in range(ranges):
        run("pairs", find_pairs, PairsTask(listed.address, f"{folder}/bands", number, ranges))
    found: dict[frozenset[int], float] = {}
    for number in range(tasks):
        task = SimilarTask(listed.address, f"{folder}/pairs", ranges, number, tasks, tokenizer)
        run("similar", compare_pairs, task)
        digest = digest_of_payload(task)
        for row in similar.read_similar(FolderStore(folder / "similar" / digest), 0.0).tolist():
            key = frozenset((row[0] << 64 | row[1], row[2] << 64 | row[3]))
            assert key not in found
            assert len(key) == 2
            found[key] = row[4]
    return found


def test_similar_documents_are_found_whatever_ranges_tasks_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_entries(*_: Any) -> Entries:
        return Entries(VOCABULARY)

    for module in (bands, similar):
        monkeypatch.setattr(module, "load_entries", load_entries)
    runs, texts = write_corpus(tmp_path)
    exact = {frozenset(pair): jaccard(*(texts[digest] for digest in pair)) for pair in itertools.combinations(texts, 2)}
    found = find_similar(tmp_path / "one", runs)
    assert found == {pair: exact[pair] for pair in found}
    alike = {pair for pair, value in exact.items() if value >= 0.9}
    assert len(alike) > 10
    assert alike <= found.keys()
    monkeypatch.setattr(pairs_module, "PART_PAIRS", 7)
    monkeypatch.setattr(similar, "BATCH_TOKENS", 500)
    monkeypatch.setattr(similar, "READ_BYTES", 1000)
    for module in (bands, normal_text):
        monkeypatch.setattr(module, "PART_TOKENS", 60)
    assert find_similar(tmp_path / "many", runs, ranges=16, tasks=4) == found


def write_rows(folder: Path, run: Run, rows: Any) -> None:
    """Write band rows as `write_bands` does, so that `find_pairs` takes them for a run's."""
    Path(run.place).mkdir()
    write_receipt(Path(run.place), RunResult(documents=len(rows)))  # the list of runs reads it
    own = folder / "bands" / bands_digest(run.digest)
    own.mkdir(parents=True)
    rows = rows[np.argsort(rows["key"], kind="stable")]
    edges = np.searchsorted(rows["key"] >> np.uint64(64 - bands.EDGE_BITS), np.arange((1 << bands.EDGE_BITS) + 1))
    files = {
        bands.BANDS_FILE: bands.write_checksummed(own / bands.BANDS_FILE, rows.view(np.uint8).data),
        bands.EDGES_FILE: bands.write_checksummed(own / bands.EDGES_FILE, edges.astype("<u8").tobytes()),
    }
    write_receipt(own, bands.BandsResult(rows=len(rows), files=files))


def pairs_of_rows(folder: Path, runs: list[Run], ranges: int) -> tuple[list[tuple[int, int]], int]:
    """Return the pairs that `find_pairs` finds, the longer document first, and how many it leaves out."""
    listed = RunList(FolderStore(folder), runs)
    listed.write()
    found: list[tuple[int, int]] = []
    left_out = 0
    for number in range(ranges):
        own = folder / f"pairs-{ranges}-{number}"
        own.mkdir()
        result = find_pairs(own, PairsTask(listed.address, f"{folder}/bands", number, ranges), Report())
        write_receipt(own, result)
        left_out += result.left_out
        found += read_pairs(FolderStore(own), 0, pairs_module.PARTITIONS).tolist()
    return found, left_out


def test_a_bucket_is_paired_up_and_one_that_explodes_is_cut_and_counted(tmp_path: Path) -> None:
    generator, members = np.random.default_rng(9), 2000
    runs = [Run(str(tmp_path / f"r{number}"), number, "<u2") for number in range(3)]
    buckets: dict[int, list[tuple[int, int, int]]] = {}
    for number, run in enumerate(runs):
        rows = np.zeros(400 + (0 if number else members), BAND_DTYPE)
        rows["key"], rows["index"] = 99, np.arange(len(rows))
        rows["key"][:400] = generator.integers(0, 150, 400, np.uint64) << np.uint64(56)
        rows["characters"] = 1 + rows["index"] % 3
        rows["characters"][400:] = generator.permutation(len(rows) - 400)
        rows["hash"] = rows["index"] * 3 + number
        write_rows(tmp_path, run, rows)
        for row in rows.tolist():
            buckets.setdefault(row[0], []).append((-row[1], row[2], number << 32 | row[3]))
    # Of the large bucket, every document is compared with each of the longest alone.
    paired = {key: (sorted(own), CENTERS if key == 99 else len(own)) for key, own in buckets.items()}
    expected = {
        (own[a][2], own[b][2]) for own, most in paired.values() for a in range(most) for b in range(a + 1, len(own))
    }
    everything = sum(len(own) * (len(own) - 1) // 2 for own in buckets.values())
    for ranges in (1, 8):
        found, left_out = pairs_of_rows(tmp_path, runs, ranges)
        assert len(found) == len(set(found)) == everything - left_out
        assert set(found) == expected


@st.composite
def similar_documents(draw: st.DrawFn) -> tuple[SimilarDocuments, Any]:
    count = draw(st.integers(2, 14))
    hashes = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    lengths = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    keys = [(hashes[place], place) for place in range(count)]
    chosen = draw(st.sets(st.sampled_from(list(itertools.combinations(range(count), 2))), min_size=1))
    pairs = np.zeros(len(chosen), SIMILAR_DTYPE)
    for row, (first, second) in zip(pairs, sorted(chosen), strict=True):
        row["hi_a"], row["lo_a"] = keys[first]
        row["hi_b"], row["lo_b"] = keys[second]
        row["characters_a"], row["characters_b"] = lengths[first], lengths[second]
        row["jaccard"] = draw(st.sampled_from((0.8, 0.9)))
    documents = SimilarDocuments.of(pairs)
    alive = draw(st.lists(st.booleans(), min_size=len(documents.hi), max_size=len(documents.hi)))
    return documents, np.array(alive)


def choose_slowly(documents: SimilarDocuments, alive: Any) -> list[tuple[int, int, float]]:
    """Reference: from the longest on, each document stays that is similar to none that stays. Return the others."""
    pairs = [documents.first.tolist(), documents.second.tolist(), documents.jaccard.tolist()]
    similar = {frozenset(own): value for *own, value in zip(*pairs, strict=True)}
    stay: list[int] = []
    dropped: list[tuple[int, int, float]] = []
    for place in np.lexsort((documents.lo, documents.hi, -documents.characters)).tolist():
        found = [(similar[pair], other) for other in stay if (pair := frozenset((place, other))) in similar]
        if alive[place] and found:
            value, kept = max(found, key=lambda one: one[0])  # of equal ones the first
            dropped.append((place, kept, value))
        elif alive[place]:
            stay.append(place)
    return sorted(dropped)


CHAIN = np.zeros(9, SIMILAR_DTYPE)
"""Each document is similar to the next alone: every second one stays, and none goes for a document that goes."""
CHAIN["hi_a"], CHAIN["hi_b"], CHAIN["jaccard"] = np.arange(9), np.arange(1, 10), 0.9
CHAIN["characters_a"], CHAIN["characters_b"] = 100 - np.arange(9), 99 - np.arange(9)


@settings(max_examples=300)
@example((SimilarDocuments.of(CHAIN), np.ones(10, bool)))
@example((SimilarDocuments.of(CHAIN), np.arange(10) != 4))
@given(similar_documents())
def test_selection(drawn: tuple[SimilarDocuments, Any]) -> None:
    documents, alive = drawn
    assert np.lexsort((documents.lo, documents.hi)).tolist() == list(range(len(alive)))
    found = choose_dropped(documents, alive)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == choose_slowly(documents, alive)
