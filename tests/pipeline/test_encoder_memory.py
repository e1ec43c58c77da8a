"""The encoder's memory: words that never come again, and documents of any length."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.tokenizer import encoder as module
from pipeline.tokenizer.encoder import Encoder
from tests.support.builds import real_documents
from tests.support.tokenizers import train_byte_level, train_llama2, train_t5, with_normalizers

GROW = """
import json, sys
import numpy as np, pyarrow as pa
from pipeline.tokenizer import encoder as module
module.GROWTH_BYTES = 64 << 20
encoder = module.Encoder(json.load(open(sys.argv[1])))
first = encoder._fast
random, letters = np.random.default_rng(2), np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
for part in range(9):
    text = letters[random.integers(0, 26, 6_000_000)]
    text[::10], text[::5000] = 32, 10
    encoder.encode(pa.array(text.tobytes().decode().split(chr(10)), pa.large_string()))
    if part in (2, 8):
        print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
assert encoder._fast is not first
special = "<s>, </s> and <unk> are text."
assert encoder.encode(pa.array([special], pa.large_string()))[0].tolist() == encoder.encode_reference(special)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_words_that_never_come_again_do_not_stay_in_memory(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(train_byte_level(real_documents()[:150])))
    command = [sys.executable, "-c", GROW, str(tmp_path / "tokenizer.json")]
    early, late = map(int, subprocess.run(command, check=True, capture_output=True).stdout.split())
    assert late < 1.3 * early


@pytest.mark.parametrize("kind", ["byte level", "nfc", "llama2", "t5"])
@pytest.mark.parametrize("fast", [True, False])
def test_pieces_of_long_documents_have_the_ids_of_the_whole(
    kind: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = real_documents()[:150]
    tokenizer: dict[str, Any] = {
        "byte level": lambda: train_byte_level(texts),
        "nfc": lambda: with_normalizers(train_byte_level(texts), {"type": "NFC"}),
        "llama2": lambda: train_llama2(texts),
        "t5": lambda: train_t5(texts),
    }[kind]()
    encoder = Encoder(tokenizer)
    if not fast:
        encoder._fast = None
    monkeypatch.setattr(module, "PIECE_BYTES", 50_000)
    long = "\n".join(texts * 12)
    documents = [
        "short",
        long,
        "",
        long.replace("\n", "\r\n") + "\u088f",  # `tokenizers` encodes it: its Unicode tables are older
        "1234567890" * 20_000,
        "abc " + "7" * 60_000 + " abc",
        "\u4e2d\u6587\u5b57\uff0c\u6f22\u5b57\u3002" * 9_000,
        "cafe\u0301 " * 15_000,
        "a\n\n\n   b\t\tc " * 9_000,
    ]
    whole = [encoder.encode_reference(text) for text in documents]
    array = pa.array(["left out", *documents], pa.large_string())[1:]
    if kind == "byte level":
        assert len(encoder._cut(array)[0]) > len(documents) + 10
    ids, offsets = encoder.encode(array)
    assert [ids[start:stop].tolist() for start, stop in pairwise(offsets)] == whole
