"""Compression by choice: plain Zstandard reads it, and sizes keep their bounds."""

import hashlib
import io
import re
from pathlib import Path

import numpy as np
import pytest
import zstandard

from shards.format import codec
from shards.format.codec import MOST_LARGER, choose_compressor

NAMES = ("fast", "balanced", "small")
FRAME = codec.FRAME_BYTES


def frames_of(tokens):
    data = tokens.tobytes()
    return [data[start : start + FRAME] for start in range(0, len(data), FRAME)]


def sizes_of(compression, tokens):
    compressor = choose_compressor(compression, token_bytes=tokens.itemsize)
    return [len(compressor(frame)) for frame in frames_of(tokens)]


@pytest.fixture(scope="module")
def prose():
    """Words drawn by Zipf's law, and phrases that come again: about as compressible as tokens of prose."""
    rng = np.random.default_rng(1)
    words = np.minimum(rng.zipf(1.25, 900_000), 30_000).astype("<u2")
    phrases = [words[start : start + 4].copy() for start in rng.integers(0, 5000, 400)]
    for place in rng.integers(0, len(words) - 4, 40_000):
        words[place : place + 4] = phrases[rng.integers(0, len(phrases))]
    return words


@pytest.fixture(scope="module")
def code():
    """The standard library's sources, a token a character: long matches, and many of them."""
    folder = Path(re.__file__).parent.parent
    text = "".join(path.read_text() for path in sorted(folder.glob("*.py")))[:800_000]
    return np.array([ord(character) for character in text], "<u2")


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("compression", [*NAMES, 1, 5])
def test_a_plain_decompressor_gives_the_plain_tokens(compression, dtype, prose):
    tokens = prose[:600_000].astype(dtype)
    file = io.BytesIO()
    writer = codec.SeekableWriter(file, compression=compression, token_bytes=tokens.itemsize)
    writer.write(tokens)
    writer.close()
    file.seek(0)
    assert zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read() == tokens.tobytes()
    for start, size in zip(np.cumsum([0, *(a for a, _ in writer._entries[:-1])]), writer._entries, strict=True):
        frame = zstandard.get_frame_parameters(file.getvalue()[start : start + size[0]])
        assert (frame.has_checksum, frame.content_size) == (True, size[1])
        assert frame.window_size <= FRAME


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("text", ["prose", "code"])
def test_the_choices_keep_their_order_and_the_default_its_bound(text, dtype, request):
    tokens = request.getfixturevalue(text).astype(dtype)
    fast, balanced, small, level = (sum(sizes_of(compression, tokens)) for compression in (*NAMES, 3))
    assert small < balanced <= MOST_LARGER * level
    assert balanced < fast < 1.15 * level


GOLDEN = {
    ("fast", 2): "5793b5b26d6008d9372594e1325b4ddd390d5d6d88162e5426d6329ecdbf8715",
    ("balanced", 2): "505871b8aba36d2c98bf413869ac048ee65e793fea492db39636d2332bb4ce39",
    ("small", 2): "742c70e5ee2c372b6665ec38977fa2ab3405aa4ca240a6dd66b64ac245732c19",
    ("fast", 4): "4b83a27b2e5b9cef3db4dbd271bd3658385b4d92bdb8d7b62df2a3c006d7e99c",
    ("balanced", 4): "d1de986319999272e43081f76dbe5d1e418d468742d697efa63498864f12acd0",
    ("small", 4): "7e374286386a0dcdbb539cd9162b2ce30e54046c6600aa49cbee6e6e753cb9e3",
    (3, 2): "ae650dba1c9e44bc66127d3b6f18ee71377c93b0560c267ec528f723cff4e461",
}
"""Of the frames of `tokens` below, with this zstandard. A choice whose bytes change needs another digest."""


@pytest.mark.parametrize(("compression", "token_bytes"), GOLDEN)
def test_golden_frames(compression, token_bytes):
    numbers = np.arange(700_000, dtype=np.uint64) * 2654435761 >> 7
    tokens = (np.minimum(numbers % 977, numbers % 31) * 7).astype(f"<u{token_bytes}")
    compressor = choose_compressor(compression, token_bytes=token_bytes)
    found = hashlib.sha256(b"".join(map(compressor, frames_of(tokens)))).hexdigest()
    assert found == GOLDEN[compression, token_bytes]
