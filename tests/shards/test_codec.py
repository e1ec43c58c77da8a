"""The tokens file: round trips, ranges, golden bytes, other readers of the format, and the choice of compression."""

import contextlib
import hashlib
import io
import re
import resource
from pathlib import Path

import numpy as np
import pytest
import pyzstd
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.format import codec
from shards.format.codec import MOST_LARGER
from shards.stores.store import FolderStore, StoredFile

FRAME = codec.FRAME_BYTES


def compress(chunks, **options):
    """Return the file and its writer."""
    file = io.BytesIO()
    writer = codec.SeekableWriter(file, **options)
    for chunk in chunks:
        writer.write(chunk)
    writer.close()
    return file.getvalue(), writer


def content_of(size, seed=0):
    """Return bytes that compress somewhat, as tokens do."""
    return np.random.default_rng(seed).integers(0, 50, size, dtype=np.uint8).tobytes()


def read_table(path, content_bytes):
    file = StoredFile(FolderStore(path.parent), path.name)
    return codec.read_seek_table(file, size=path.stat().st_size, content_bytes=content_bytes)


def read_range(path, table, start, stop):
    """Return the content bytes [start, stop)."""
    out = bytearray(max(0, stop - start))
    codec.read_content(StoredFile(FolderStore(path.parent), path.name), table, start, memoryview(out))
    return out


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """A file of three and a half frames, and its content."""
    content = content_of(7 * FRAME // 2)
    path = tmp_path_factory.mktemp("codec") / "long.bin.zst"
    path.write_bytes(compress([content])[0])
    return path, content


@settings(max_examples=60, deadline=None)
@given(
    content=st.one_of(
        st.binary(max_size=5000), st.integers(FRAME - 3, 2 * FRAME + 3).map(lambda size: content_of(size, size))
    ),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    threads=st.integers(1, 3),
)
def test_any_bytes_in_any_chunks_by_any_threads_give_the_same_file(tmp_path_factory, content, cuts, threads):
    places = sorted(int(cut * len(content)) for cut in cuts)
    chunks = [content[a:b] for a, b in zip([0, *places], [*places, len(content)], strict=True)]
    data, writer = compress(chunks, threads=threads)
    assert data == compress([content])[0]
    assert writer.content_sha256 == hashlib.sha256(content).hexdigest()
    assert (writer.sha256, writer.bytes_written) == (hashlib.sha256(data).hexdigest(), len(data))
    path = tmp_path_factory.getbasetemp() / "round_trip.bin.zst"
    path.write_bytes(data)
    table = read_table(path, len(content))
    assert read_range(path, table, 0, len(content)) == content


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_byte_of_many_frames(threads):
    content = b"".join(content_of(FRAME, number) for number in range(11)) + b"rest"
    assert compress([content], threads=threads)[0] == compress([content])[0]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_range(long_file, data):
    path, content = long_file
    near = st.sampled_from([0, 1, FRAME - 1, FRAME, FRAME + 1, 2 * FRAME, 3 * FRAME, len(content) - 1, len(content)])
    start = data.draw(st.one_of(near, st.integers(0, len(content))))
    stop = data.draw(st.one_of(near.filter(lambda n: n >= start), st.integers(start, len(content))))
    table = read_table(path, len(content))
    assert read_range(path, table, start, stop) == content[start:stop]


def test_pyzstd_reads_the_file_and_its_seek_table(long_file):
    path, content = long_file
    with pyzstd.SeekableZstdFile(path, "r") as file:
        assert file.read() == content
        file.seek(3 * FRAME - 5)
        assert file.read(10) == content[3 * FRAME - 5 : 3 * FRAME + 5]


@settings(max_examples=200, deadline=None)
@given(tail=st.binary(max_size=64), content_bytes=st.integers(0, 3 * FRAME))
def test_no_tail_makes_the_reader_fail_otherwise(tmp_path_factory, tail, content_bytes):
    """Whatever the file's end says, the answer is a table or a CodecError."""
    path = tmp_path_factory.getbasetemp() / "tail.bin.zst"
    path.write_bytes(tail + bytes.fromhex("b1ea928f"))
    with contextlib.suppress(codec.CodecError):
        frames = read_table(path, content_bytes)
        assert sum(map(frames.size, range(len(frames)))) == content_bytes


def test_lying_frame_header_allocates_nothing(tmp_path):
    """A frame of a few hundred bytes that says it holds a gigabyte is refused by its header."""
    bomb = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(1 << 30))
    frames = codec.Frames([0, len(bomb)], FRAME)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(codec.CodecError, match=f"declares {1 << 30} bytes"):
        codec.decompress_frame(zstandard.ZstdDecompressor(), bomb, frames, 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "kilobytes"
    with pytest.raises(codec.CodecError, match="no checksum"):
        codec.decompress_frame(zstandard.ZstdDecompressor(), zstandard.compress(bytes(FRAME)), frames, 0)


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
@pytest.mark.parametrize("text", ["prose", "code"])
def test_the_default_keeps_its_bound(text, dtype, request):
    tokens = request.getfixturevalue(text).astype(dtype)
    small, default, fast = (
        len(compress([tokens], level=level, token_bytes=tokens.itemsize)[0]) for level in (9, None, 3)
    )
    assert small < default <= MOST_LARGER * fast


GOLDEN = {
    (None, 2): "505871b8aba36d2c98bf413869ac048ee65e793fea492db39636d2332bb4ce39",
    (None, 4): "d1de986319999272e43081f76dbe5d1e418d468742d697efa63498864f12acd0",
    (3, 2): "ae650dba1c9e44bc66127d3b6f18ee71377c93b0560c267ec528f723cff4e461",
}
"""Of the frames of `tokens` below, with this zstandard. A choice whose bytes change needs another digest."""


@pytest.mark.parametrize(("level", "token_bytes"), GOLDEN)
def test_golden_bytes(level, token_bytes):
    """The same tokens give the same file, on every machine with this zstandard."""
    numbers = np.arange(700_000, dtype=np.uint64) * 2654435761 >> 7
    tokens = (np.minimum(numbers % 977, numbers % 31) * 7).astype(f"<u{token_bytes}")
    data, writer = compress([tokens], level=level, token_bytes=token_bytes)
    assert writer.content_sha256 == hashlib.sha256(tokens.tobytes()).hexdigest()
    # The seek table, as FORMAT.md draws it: header, entries, footer.
    count = -(-tokens.nbytes // FRAME)
    frames, table = data[: -17 - 8 * count], data[-17 - 8 * count :]
    assert hashlib.sha256(frames).hexdigest() == GOLDEN[level, token_bytes]
    assert table[:8] == bytes.fromhex("5e2a4d18") + (8 * count + 9).to_bytes(4, "little")
    assert np.frombuffer(table[8:-9], "<u4")[1::2].tolist() == [*[FRAME] * (count - 1), tokens.nbytes % FRAME]
    assert table[-9:] == count.to_bytes(4, "little") + bytes.fromhex("00 b1ea928f")
