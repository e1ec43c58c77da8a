"""Training from counted words: the pre-tokens and the merges are those of `tokenizers`, whatever the text."""

# pyright: basic

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from pipeline.tokenizer import train
from pipeline.tokenizer.compiled_merges import learn_merges
from pipeline.tokenizer.sample import DOCUMENT_SEPARATOR, iter_sample
from pipeline.tokenizer.scanner import END_OF_TEXT
from pipeline.tokenizer.train import PATTERNS, train_merges, train_merges_slowly
from pipeline.tokenizer.word_counts import COUNT, LENGTH, OFFSET, count_words
from tests.support.small_recipe import write_small_recipe
from tests.support.tokenizers import write_sample

NAMES = list(PATTERNS)
SPECIAL = ["<|endoftext|>", "<|pad|>"]
PARTS = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from("abAB12 .,/\n\r\t'\u00a0"),
    st.sampled_from(
        ["'s", "'S", "'\u017f", "'ll", "'Re", "'vE", "'x", "'", "''", "\r\n", "\n\n", "  ", " \n ", "/\n/"]
    ),
    st.sampled_from(
        ["e\u0301", "\u0301", "中文", "ǅ", "ʰ", "İ", "ß", "ﬁ", "½", "٣٤٥٦", "\u2028", "\x85", "\x00", "🙂", "𐐀"]
    ),
)
ANY_TEXT = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def count(path: Path, name: str, threads: int = 2) -> Counter[bytes]:
    data, words = count_words(path, name, threads)
    counts: Counter[bytes] = Counter()
    for row in words:
        counts[data[row[OFFSET] : row[OFFSET] + row[LENGTH]].tobytes()] += int(row[COUNT])
    assert len(counts) == len(words)  # no word has two rows
    return counts


def expected_counts(texts: list[str], name: str) -> Counter[bytes]:
    split = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated").pre_tokenize_str
    return Counter(word.encode() for text in texts for word, _ in split(text))


@pytest.mark.parametrize("name", NAMES)
@ANY_TEXT
@given(texts=st.lists(st.lists(PARTS, max_size=25).map("".join), max_size=3))
@example(texts=["中A b", "aB'Ll", "\u0301A", "A\u0301\u0301b", "x'\u017fy", "'\u017f", "(\u0301", "((\u0301x"])
@example(texts=[" \r\n \t x", "a  b   ", "\n/\r//x", "1234567 ١٢٣٤", "don't'S", "\u00a0\u00a0a"])
@example(texts=["", "'", "'l", "'L", "x" * 15, "x" * 16, "x" * 17, "x" * 16 + "y", "é" * 9])
def test_words_are_counted_as_tokenizers_splits(name: str, texts: list[str], tmp_path: Path) -> None:
    sample = write_sample(tmp_path / "s", texts)
    assert count(sample, name) == expected_counts(texts, name)


@pytest.mark.parametrize("name", ["llama3", "o200k"])  # qwen2 differs in how long numbers may be
def test_every_character_in_every_place_is_split_alike(name: str, tmp_path: Path) -> None:
    """Each code point after a letter, before one, after an apostrophe, a digit and a space."""
    codes = [*range(0xD800), *range(0xF900, 0x20000), *range(0xE0000, 0xE0200)]
    texts = ["".join(f"a{chr(c)}B'{chr(c)}1{chr(c)} {chr(c)}\n" for c in codes[k : k + 64]) for k in range(0, 8192, 64)]
    texts += ["".join(f"'{chr(c)}A{chr(c)} " for c in codes[k : k + 512]) for k in range(8192, len(codes), 512)]
    assert count(write_sample(tmp_path / "s", texts), name) == expected_counts(texts, name)


def test_a_word_over_the_edge_of_a_table(tmp_path: Path) -> None:
    """More distinct words than a table has room for at first, in parts for one thread and for many."""
    texts = [
        " ".join(f"w{''.join(chr(97 + int(d)) for d in str(k * 7))}" for k in range(at, 80_000, 9)) for at in range(9)
    ]
    sample = write_sample(tmp_path / "s", texts)
    counts = [count(sample, "llama3", threads) for threads in (1, 7)]
    assert counts[0] == expected_counts(texts, "llama3")
    assert counts[0] == counts[1]


def test_a_sample_without_a_last_separator_or_without_text(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"one two" + DOCUMENT_SEPARATOR + "three é".encode())
    assert count(path, "o200k", 3) == Counter([b"one", b" two", b"three", " é".encode()])
    path.write_bytes(b"")
    assert train_merges(path, 300, SPECIAL, "llama3") == []
    assert bytes([END_OF_TEXT]) == DOCUMENT_SEPARATOR


def learn(texts: list[str], name: str, vocab_size: int, folder: Path) -> tuple[Any, Any]:
    """Return the merges learned from counted words, and by `tokenizers`."""
    sample = write_sample(folder / "s", texts)
    return train_merges(sample, vocab_size, SPECIAL, name), train_merges_slowly(sample, vocab_size, SPECIAL, name)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(
        st.lists(st.one_of(PARTS, st.sampled_from(["ab", "ba", "aaa", "abab", "é"])), max_size=40).map("".join)
    ),
    more=st.integers(0, 60),
)
@example(texts=["aaaa aaaaa aaaaaa", "ababab bababa abab", "abcabc abc bca cab bc ab"], more=40)
def test_merges_with_ties_are_those_of_tokenizers(texts: list[str], more: int, tmp_path: Path) -> None:
    """Short texts are full of ties, repeated letters, and merges that make the same bytes; some end before `more`."""
    found, expected = learn(texts, "qwen2", 256 + len(SPECIAL) + more, tmp_path)
    assert found == expected


def test_merges_of_random_words_over_few_letters(tmp_path: Path) -> None:
    """Long words over three letters: the same bytes come up by many merges, and pairs overlap themselves."""
    for seed in range(12):
        chance = random.Random(seed)
        texts = [" ".join("".join(chance.choices("abc", [6, 2, 1], k=chance.randint(1, 40))) for _ in range(60))]
        found, expected = learn(texts, "llama3", 256 + len(SPECIAL) + 3000, tmp_path)
        assert found == expected, seed


REPEATS = st.builds(str.__mul__, st.sampled_from(["a", "b", "ab", "ba", "aab"]), st.integers(1, 9))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.lists(REPEATS, min_size=1, max_size=4).map("".join), min_size=1, max_size=8))
@example(words=["aaaa"])
@example(words=["a" * length for length in range(2, 20)])
@example(words=["abababa", "bababab", "aabaabaa", "baaaab", "aaaaab", "baaaaa"])
def test_no_two_merges_make_the_same_bytes(words: list[str], tmp_path: Path) -> None:
    """Words that overlap themselves, merged to the end: no pair, and no entry, comes up again once it is made."""
    found, expected = learn([" ".join(words)], "llama3", 256 + len(SPECIAL) + 3000, tmp_path)
    assert found == expected
    assert len({left + right for left, right in found}) == len(found)


ODD_TEXT = "0 " + "very" * 5000 + "\r\n\r\n\t--- \u00a0 DON'T Don'ſ 12345 ٣٤٥٦ 中文，日本語 Straße"


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("folder", ["fineweb_edu", "finemath"])
def test_merges_of_real_text(name: str, folder: str, corpora: Path, tmp_path: Path) -> None:
    file = pq.ParquetFile(next((corpora / folder).glob("*.parquet")))
    texts = [str(text) for text in next(file.iter_batches(batch_size=150, columns=["text"])).column(0).to_pylist()]
    found, expected = learn([*texts, ODD_TEXT], name, 3000, tmp_path)
    assert found == expected


@pytest.mark.parametrize("name", NAMES)
def test_merges_of_program_text(name: str, tmp_path: Path) -> None:
    texts = [path.read_text() for path in sorted(Path(train.__file__).parents[1].rglob("*.py"))[:60]]
    found, expected = learn([*texts, ODD_TEXT], name, 2000, tmp_path)
    assert found == expected


def test_without_numba_tokenizers_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = write_sample(tmp_path / "s", ["low lower lowest newer newest"] * 3)
    fast = train_merges(sample, 290, SPECIAL, "qwen2")
    monkeypatch.setattr(train.importlib.util, "find_spec", lambda name: None)
    for module in ("merges", "scanner", "words"):
        monkeypatch.setitem(sys.modules, f"pipeline.tokenizer.{module}", None)
    assert train.find_trainer("qwen2") == "tokenizers"
    assert train.find_trainer("gpt2") == "gigatoken"
    assert train_merges(sample, 290, SPECIAL, "qwen2") == fast
    assert list(iter_sample(sample)) == ["low lower lowest newer newest"] * 3


def test_a_sample_that_ends_early_gives_fewer_merges() -> None:
    data = np.frombuffer(b"abab", np.uint8)
    words = np.zeros((1, 5), np.int64)
    words[0, LENGTH], words[0, COUNT] = 4, 5
    assert learn_merges(data, words, 1000) == [(b"a", b"b"), (b"ab", b"ab")]


def test_plan_and_build_say_that_training_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    recipe = write_small_recipe(tmp_path, tokenizer={"vocab_size": 300, "pretokenizer": "o200k"})
    line = "tokenizer: `tokenizers` learns the merges for o200k, about 4 MB of text a second"
    remedy = f"{sys.executable} -m pip install 'numba>="

    def plan_and_build(out: str) -> list[str]:
        planned = run_cli("plan", recipe)
        built = run_cli("build", recipe, "--out", out, "--workers", "1")
        assert (planned.returncode, built.returncode) == (0, 0), planned.stderr + built.stderr
        return [" ".join(output.split()) for output in (planned.stdout, built.stderr)]

    assert not any("learns the merges" in said for said in plan_and_build("fast"))
    monkeypatch.setattr(train.importlib.util, "find_spec", lambda name: None)
    assert all(line in said and remedy in said for said in plan_and_build("slow"))
