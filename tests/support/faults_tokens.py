"""Faults of the tokens files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import zstandard

from tests.support.faults import edit, flip, names, replace_tokens, reseal, seek_entries, write_entries
from tests.support.shard_sets import Plan


@names("file_size", "seek_table")
def tokens_truncated(folder: Path) -> None:
    path = folder / "train-00000.bin.zst"
    os.truncate(path, path.stat().st_size - 1000)


@names("file_size", "seek_table")
def tokens_empty(folder: Path) -> None:
    os.truncate(folder / "train-00000.bin.zst", 0)


@names("file_size")
def documents_truncated(folder: Path) -> None:
    path = folder / "train-00000.docs.parquet"
    os.truncate(path, path.stat().st_size - 10)


@names("file_checksum", "frame_corrupt")
def bit_flipped_in_first_frame(folder: Path) -> None:
    flip(folder / "train-00000.bin.zst", 5000)


@names("file_checksum", "frame_corrupt")
def bit_flipped_in_frame_checksum(folder: Path) -> None:
    _frames, entries = seek_entries(folder / "train-00000.bin.zst")
    flip(folder / "train-00000.bin.zst", entries[0][0] - 1)


@names("file_checksum", "frame_corrupt")
def bit_flipped_in_frame_header(folder: Path) -> None:
    flip(folder / "train-00000.bin.zst", 1)


@names("seek_table")
def bit_flipped_in_seek_table(folder: Path) -> None:
    flip(folder / "train-00000.bin.zst", -15)


@names("file_checksum")
def bit_flipped_in_documents(folder: Path) -> None:
    flip(folder / "train-00000.docs.parquet", 1)  # the leading magic, which no reader looks at


@names("file_checksum", "manifest_invalid")
def bit_flipped_in_sidecar(folder: Path) -> None:
    flip(folder / "train-00000.json", 0)


@names("file_size", "seek_table")
def tokens_files_swapped(folder: Path) -> None:
    swap(folder / "train-00000.bin.zst", folder / "val-00000.bin.zst")


@names("file_size")
def documents_files_swapped(folder: Path) -> None:
    swap(folder / "train-00000.docs.parquet", folder / "train-00001.docs.parquet")


def swap(one: Path, two: Path) -> None:
    """Exchange two files."""
    spare = one.with_name("spare")
    one.rename(spare)
    two.rename(one)
    spare.rename(two)


@names("tokens_checksum", "sidecar_mismatch")
def tokens_digest_wrong(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["shards"][2].update(tokens_sha256="0" * 64))


@names("frame_corrupt")
def frame_larger_than_declared(folder: Path) -> None:
    """A decompression bomb: the last frame holds a gigabyte, the seek table says a few tokens."""
    path = folder / "train-00000.bin.zst"
    frames, entries = seek_entries(path)
    bomb = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(1 << 30))
    frames = frames[: -entries[-1][0]] + bomb
    write_entries(path, frames, [*entries[:-1], (len(bomb), entries[-1][1])])
    reseal(folder)


@names("frame_corrupt")
def frame_hides_another(folder: Path) -> None:
    path = folder / "train-00000.bin.zst"
    frames, entries = seek_entries(path)
    hidden = zstandard.ZstdCompressor().compress(b"hidden")
    write_entries(path, frames + hidden, [*entries[:-1], (entries[-1][0] + len(hidden), entries[-1][1])])
    reseal(folder)


@names("frame_corrupt")
def frames_in_another_order(folder: Path) -> None:
    path = folder / "train-00000.bin.zst"
    frames, entries = seek_entries(path)
    size = entries[0][0]
    write_entries(path, frames[size:] + frames[:size], entries)
    reseal(folder)


@names("seek_table")
def seek_table_declares_billions(folder: Path) -> None:
    path = folder / "train-00000.bin.zst"
    data = path.read_bytes()
    path.write_bytes(data[:-9] + struct.pack("<IBI", 0xFFFFFFFF, 0, 0x8F92EAB1))
    reseal(folder)


@names("seek_table")
def seek_table_adds_a_frame(folder: Path) -> None:
    path = folder / "train-00000.bin.zst"
    frames, entries = seek_entries(path)
    write_entries(path, frames, [*entries, (0, 2)])
    reseal(folder)


@names("dtype_mismatch")
def tokens_of_twice_the_width(folder: Path) -> None:
    path = folder / "val-00000.bin.zst"
    tokens = np.frombuffer(zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read(), "<u2")
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(tokens.astype("<u4").tobytes())
    write_entries(path, frame, [(len(frame), 4 * len(tokens))])
    reseal(folder, "val-00000")


@names("token_out_of_range")
def token_beyond_the_vocabulary(plan: Plan) -> None:
    tokens = plan.documents["train"][1][40].tokens.tolist()
    replace_tokens(plan, "train", 1, 40, [300, *tokens[1:]])


@names("token_out_of_range", "eos_misplaced")
def token_of_all_ones_ends_a_document(plan: Plan) -> None:
    tokens = plan.documents["train"][1][-1].tokens.tolist()
    replace_tokens(plan, "train", 1, -1, [*tokens[:-1], 65535])


@names("eos_misplaced")
def eos_inside_a_document(plan: Plan) -> None:
    tokens = plan.documents["train"][0][3].tokens.tolist()
    replace_tokens(plan, "train", 0, 3, [plan.eos_id, *tokens[1:]])


@names("eos_misplaced")
def eos_absent(plan: Plan) -> None:
    tokens = plan.documents["train"][0][0].tokens.tolist()
    replace_tokens(plan, "train", 0, 0, [*tokens[:-1], tokens[0]])


@names("eos_misplaced")
def eos_absent_at_the_very_end(plan: Plan) -> None:
    tokens = plan.documents["val"][0][-1].tokens.tolist()
    replace_tokens(plan, "val", 0, -1, [*tokens[:-1], tokens[0]])


@names("eos_misplaced")
def eos_one_token_early(plan: Plan) -> None:
    """There are as many EOS as documents, but one is in the wrong place."""
    tokens = plan.documents["train"][1][7].tokens.tolist()
    replace_tokens(plan, "train", 1, 7, [*tokens[:-2], tokens[-1], tokens[-2]])
