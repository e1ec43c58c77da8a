"""The encoder's memory: words that never come again, and documents of any length."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.recipe.schema import TokenizerRecipe
from pipeline.tokenizer import encoder as module
from pipeline.tokenizer.encoder import Encoder
from pipeline.tokenizer.train import build_tokenizer_json
from shards.format.tokenizer_json import byte_characters
from shards.terminal.workers import WORKER_ENVIRONMENT
from tests.support.builds import real_documents
from tests.support.tokenizers import split_ids, train_byte_level, trained_kinds

GROW = """
import json, sys
import numpy as np, pyarrow as pa
from pipeline.tokenizer import encoder as module
module.GROWTH_BYTES = 64 << 20
encoder = module.Encoder(json.load(open(sys.argv[1])))
first = encoder._fast
random, letters = np.random.default_rng(2), np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
for part in range(12):
    text = letters[random.integers(0, 26, 6_000_000)]
    text[::10], text[::5000] = 32, 10
    encoder.encode(pa.array(text.tobytes().decode().split(chr(10)), pa.large_string()))
    if part in (2, 11):
        print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
assert encoder._fast is not first
special = "<s>, </s> and <unk> are text."
assert encoder.encode(pa.array([special], pa.large_string()))[0].tolist() == encoder.encode_reference(special)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_words_that_never_come_again_do_not_stay_in_memory(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(trained_kinds()["plain"]))
    command = [sys.executable, "-c", GROW, str(tmp_path / "tokenizer.json")]
    worker = os.environ | WORKER_ENVIRONMENT  # malloc keeps what is freed
    early, late = map(int, subprocess.run(command, check=True, capture_output=True, env=worker).stdout.split())
    assert late < 1.3 * early


@pytest.mark.parametrize("name", ["plain", "nfc", "llama2", "t5"])
@pytest.mark.parametrize("fast", [True, False])
def test_pieces_of_long_documents_have_the_ids_of_the_whole(
    name: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(trained_kinds()[name])
    if not fast:
        encoder._fast = None
    monkeypatch.setattr(module, "PIECE_BYTES", 12_000)
    monkeypatch.setattr(module, "_WINDOW_BYTES", 170)
    long = "\n".join(real_documents()[:50] * 7)
    documents = [
        "short",
        long,
        "",
        long.replace("\n", "\r\n") + "\u088f",  # `tokenizers` encodes it: its Unicode tables are older
        "1234567890" * 4_000,
        "abc " + "7" * 14_000 + " abc",
        "\u4e2d\u6587\u5b57\uff0c\u6f22\u5b57\u3002" * 2_000,
        "cafe\u0301 " * 3_500,
        "a\n\n\n   b\t\tc " * 2_000,
        "12 345,6\n7.89 " * 2_000,
    ]
    whole = [encoder.encode_reference(text) for text in documents]
    array = pa.array(["left out", *documents], pa.large_string())[1:]
    if name in ("plain", "t5"):
        assert len(encoder._encode_long(array[1:2])) > 5
        assert len(encoder._encode_long(array[-1:])) > 1
    assert split_ids(*encoder.encode(array)) == whole


def describe(merges: Iterable[tuple[str, str]], name: str) -> dict[str, Any]:
    recipe = TokenizerRecipe(special_tokens=["<s>"], pretokenizer=name, id_order="merge")  # type: ignore[arg-type]
    return json.loads(build_tokenizer_json(list(merges), recipe, Path()))


def draw_merges(chance: random.Random, letters: str) -> list[tuple[str, str]]:
    """Return random merges of the bytes of letters, some in an order in which training does not find them."""
    made = sorted({byte_characters()[byte] for byte in letters.encode()})
    merges: dict[tuple[str, str], None] = {}
    for _ in range(chance.randrange(1, 60)):
        pair = chance.choice(made), chance.choice(made)
        merges[pair] = made.append("".join(pair)) if len(pair[0]) < 20 else None
    return chance.sample(list(merges), len(merges)) if chance.random() < 0.3 else list(merges)


def test_a_cut_inside_a_word_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 400)
    monkeypatch.setattr(module, "_WINDOW_BYTES", 24)
    # With `ignore_merges`, a word that is an entry is its token: here the end of a word would be one if cut off.
    ignoring = train_byte_level(["abab ab"] * 9, vocab_size=270)
    ignoring["model"]["ignore_merges"] = True
    entries = ignoring["model"]["vocab"]
    entries.update({"ab" * size: len(entries) + size for size in range(9, 99)})
    # What is before these runs decides whether their last character is in a word with the next.
    last = byte_characters()["\u4e2d".encode()[-1]]
    edges = describe([(last, "A"), (last, "B"), ("Ċ", "Ġ"), ("/", "=")], "o200k")
    runs = ["a" + "\u4e2d" * 900 + "Ab", "\u4e2d" + "B" * 900 + "c", "=" + "\n" * 900 + " \n", "=\n" + "/" * 900 + "="]
    runs.append(" \n \n " * 300)
    # Without it they are cut.
    alike = ["Ab c " + "\u4e2d\u6587" * 900, "BA" * 900, "a" + " " * 1800 + "a", "\n" * 1800, "\t\n" * 900]
    assert all(len(Encoder(edges)._encode_long(pa.array([text], pa.large_string()))) > 1 for text in alike)
    cases = [(ignoring, ["ab" * 230]), (edges, runs + alike)]
    # Random tokenizers and documents.
    chance = random.Random(1)
    for _ in range(25):
        letters = chance.choice(
            ["\u1112\u1161\u11ab", "ab", "aB", "a\u4e2d", "\u4e2d\u6587", "x", "aB\u4e2d1", "a's", "!=\n", " \n", " "]
        )
        bodies = (
            "".join(chance.choices(letters, k=900)),
            "".join(chance.choice(letters) * chance.randrange(600) for _ in range(3)),
            "".join(chance.choices(letters, k=5)) * 200,
        )
        tokenizer = describe(draw_merges(chance, letters), chance.choice(["gpt2", "llama3", "qwen2", "o200k"]))
        cases.append((tokenizer, [chance.choice(["", "A", "\u4e2d", " 1"]) + body + "'s x" for body in bodies]))
    # NFC joins the vowel at byte 351 to the consonant before it, and moves the last mark before all others.
    composed = describe([], "gpt2") | {"normalizer": {"type": "NFC"}}
    hangul = "\u1112" * 117 + "\u1161" + "\u1112" * 300
    cases.append((composed, [hangul, "\u0301" * 600 + "\u0323"]))
    cases += [(tokenizer | {"normalizer": {"type": "NFC"}}, texts) for tokenizer, texts in cases[2:12]]
    cuts = 0
    for number, (tokenizer, texts) in enumerate(cases):
        encoder = Encoder(tokenizer)
        if number % 4 == 1:
            encoder._fast = None
        for text in texts:
            array = pa.array([text], pa.large_string())
            cuts += len(encoder._encode_long(array)) - 1
            assert encoder.encode(array)[0].tolist() == encoder.encode_reference(text)
    assert cuts > 100
