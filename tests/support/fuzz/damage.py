"""Damage to one file, drawn by chance: bytes, values of JSON, columns of Parquet, or what is no file in its place."""

# pyright: basic
import contextlib
import hashlib
import json
import os
import random
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tests.support.wrong_values import VALUES

JSON_VALUES: list[Any] = [
    *(value for value in VALUES if "datetime" not in repr(value)), 2**31, 2**32, 2**63, 2**64 - 1, -(2**63), 10**18,
    1e-320, "../up", "/etc/passwd", "a/b", "\0", "nul\0", "\x1b[31m", "\u202e", "x" * 70_000, [0] * 70_000,
    {str(number): number for number in range(3000)}, ".", "..", "CON", "%s%n{0}",
]  # fmt: skip
ODD = [
    "[" * 100_000, '{"a":' * 3000, "9" * 5000, "1e999", "-1e-999", "NaN", "-Infinity", '{"a":1,"a":2}', "01", "'x'",
]  # fmt: skip
"""Text for the place of a value of JSON."""
LARGE = 3 << 30
"""The size of a file with holes: more than the memory that a case may have."""


def damage_bytes(chance: random.Random, data: bytes) -> bytes:
    """Flip, overwrite, cut, repeat or add bytes."""
    at, end = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    how = chance.randrange(8)
    if how <= 1:
        changed = bytearray(data)
        for _ in range(chance.choice([1, 1, 3, 30])):
            if changed:
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if how == 2:
        return data[:at] + bytes([chance.choice([0, 255, 65])]) * (end - at) + data[end:]
    if how == 3:
        return data[:at] + chance.randbytes(min(8, end - at)) + data[min(at + 8, end) :]
    return [data[:at], data[:at] + data[end:], data + data[at:end], data + chance.randbytes(9)][how - 4]


def list_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value within a value of JSON."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*place, key)
        yield from list_places(inner, (*place, key))


def damage_json(chance: random.Random, data: bytes) -> bytes:
    """Replace, remove, rename, move or repeat a value; nest deeply; or write a number that no reader can hold."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # damaged before
        return damage_bytes(chance, data)
    places = list(list_places(value))
    if not places or chance.random() < 0.1:
        return damage_bytes(chance, data)
    for _ in range(chance.choice([1, 1, 1, 3])):
        *parents, key = chance.choice(places)
        at = value
        try:
            for part in parents:
                at = at[part]
            old = at[key]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has removed it
        how = chance.randrange(10)
        if how == 0:
            del at[key]
        elif how == 1 and isinstance(at, dict):
            at[chance.choice(["", "x", key + "s", "\ud800", "format"])] = at.pop(key)
        elif how == 2 and isinstance(at, list):
            at.append(old)
        elif how == 3 and isinstance(old, int | float):
            at[key] = chance.choice([old + 1, old - 1, -old, old * 1000, float(old), str(old)])
        elif how == 4:
            at[key] = "@@"
        else:
            at[key] = chance.choice(JSON_VALUES)
    return json.dumps(value).replace('"@@"', chance.choice(ODD)).encode(errors="surrogatepass")


def damage_parquet(chance: random.Random, data: bytes) -> bytes:
    """Change a column's values, type or name, remove or repeat it, or change the rows."""
    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError):  # damaged before
        return damage_bytes(chance, data)
    place = chance.randrange(table.num_columns)
    name, column = table.column_names[place], table.column(place)
    rows = len(table)
    values: list[Callable[[], Any]] = [
        lambda: pa.nulls(rows, column.type),
        lambda: pa.nulls(rows),
        lambda: pa.array([chance.choice(["", "x" * 70_000, "../up", "\0", "\x1b[2J"])] * rows),
        lambda: pa.array([chance.choice([0, 1, 2**32 - 1, 2**63])] * rows, pa.uint64()),
        lambda: pa.array([-1] * rows),
        lambda: pa.array([float("nan")] * rows),
        lambda: pa.array([b"\xff" * chance.choice([1, 16])] * rows),
        lambda: pa.array([[1, 2]] * rows),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array(column.to_pylist()[::-1], column.type),
    ]
    how = chance.randrange(16)
    if how < len(values):
        made = values[how]()
        table = table.set_column(place, name, made)
    else:
        table = [
            lambda: table.drop_columns([name]),
            lambda: table.append_column(name, column),
            lambda: table.rename_columns([other + "x" * (other == name) for other in table.column_names]),
            lambda: table.slice(0, chance.choice([0, 1, rows // 2])),
            lambda: pa.concat_tables([table, table]),
            lambda: table.replace_schema_metadata({"pandas": "x", "ARROW:schema": "y", "huggingface": "{"}),
        ][how - len(values)]()
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=chance.choice([1, 3, 1000]), compression=chance.choice(["none", "zstd"]))
    return sink.getvalue().to_pybytes()


def damage_safetensors(chance: random.Random, data: bytes) -> bytes:
    """Damage the header, its length, or the numbers."""
    size = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size], data[8 + size :]
    how = chance.randrange(6)
    if how == 0:
        return struct.pack("<Q", chance.choice([0, 1, size - 1, size + 1, 2**40, 2**64 - 1])) + header + body
    if how <= 3:
        header = damage_json(chance, header)
        return struct.pack("<Q", len(header)) + header + body
    if how == 4:
        filled = chance.choice(
            [b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\0\0\0\0"]
        )  # NaN, inf, largest, 0
        return data[: 8 + size] + filled * (len(body) // 4) + body[len(body) // 4 * 4 :]
    return data[: 8 + size] + damage_bytes(chance, body)


def replace_file(chance: random.Random, path: Path, *, large: bool = True) -> None:
    """Put something else in place of a file, perhaps a large one, or take it away."""
    data = path.read_bytes()
    path.unlink()
    how = chance.randrange(11)
    if how == 0:
        os.mkfifo(path)
    elif how == 1:
        path.mkdir()
    elif how <= 4:
        path.symlink_to([path.name, "nowhere", "/dev/zero"][how - 2])
    elif how == 5:
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)  # a path has at most 107 bytes
    elif how == 6:
        path.write_bytes(b"")
    elif how == 7:
        path.write_bytes(data)
        os.truncate(path, LARGE if large else len(data) // 2)
    elif how == 8:
        other = chance.choice(sorted(one for one in path.parent.iterdir() if one.is_file()) or [Path(os.devnull)])
        shutil.copy(other, path) if other.is_file() else None
    elif how == 9:
        path.symlink_to(path.parent)


BY_ENDING = {".json": damage_json, ".parquet": damage_parquet, ".safetensors": damage_safetensors}


def damage_file(chance: random.Random, path: Path, *, large: bool = True) -> None:
    """Damage a file in a way that fits it, or in one that fits any."""
    how = chance.random()
    if not path.is_file() or path.stat().st_size >= LARGE:  # damaged before
        return
    if how < 0.2:
        replace_file(chance, path, large=large)
        return
    damage = damage_bytes if how < 0.4 else BY_ENDING.get(path.suffix, damage_bytes)
    path.write_bytes(damage(chance, path.read_bytes()))


def reseal(folder: Path) -> None:
    """Make every statement of size and digest in the JSON of a folder true again, as a forger would."""

    def update(value: Any) -> None:
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            update(inner)
        name = isinstance(value, dict) and (value.get("path") or value.get("file"))
        if not isinstance(name, str) or not ("bytes" in value or "sha256" in value):
            return
        file = folder / name.replace("\0", "")
        if file.is_file() and file.stat().st_size < LARGE:
            content = file.read_bytes()
            value.update(
                {"sha256": hashlib.sha256(content).hexdigest()} | ({"bytes": len(content)} if "bytes" in value else {})
            )

    names = sorted(folder.glob("train-*.json")) + sorted(folder.glob("val-*.json")) + [folder / "manifest.json"]
    sums = folder / "checksums.json"
    for path in (*names, sums):
        if not path.is_file() or path.is_symlink() or path.stat().st_size >= LARGE:
            continue
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            continue
        if path == sums and isinstance(value, dict):
            files = {name: folder / name for name in value if (folder / name).is_file()}
            value |= {
                name: xxhash.xxh3_128_hexdigest(file.read_bytes())
                for name, file in files.items()
                if file.stat().st_size < LARGE
            }
        update(value)
        path.write_text(json.dumps(value, indent=2))
