"""What reading a file of each format costs, beside Python's or the format's own library, and whether memory grows.

The same documents in each format, read in a process of its own without encoding, at one size and at ten times as much.
Seconds are of the processor, because other processes share the machine. Each pair of readers must give the same texts.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import lzma
import random
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import xxhash

from tests.benchmarks.harness import MB, Figures, alternate, memory_of, run_module
from tests.support.archives import warc_record, write_tar, write_zip

SMALL_DOCUMENTS, DOCUMENTS, QUICK_DOCUMENTS = 3_000, 30_000, 9_000
"""In the small file of a format, which is a few batches, and in the large one."""

Texts = Iterable[bytes]


class Format(NamedTuple):
    """How a format is written, and read by another reader."""

    name: str
    """The file's name."""
    write: Callable[[Path, Texts], object]
    read: Callable[[Path], Iterator[bytes]]


def _write_lines(path: Path, texts: Texts) -> None:
    with lzma.open(path, "wb", preset=1) as file:
        for text in texts:
            file.write(json.dumps({"text": text.decode()}).encode() + b"\n")


def _read_lines(path: Path) -> Iterator[bytes]:
    with lzma.open(path) as file:
        for line in file:
            yield json.loads(line)["text"].encode()


def _write_members(mode: str) -> Callable[[Path, Texts], object]:
    return lambda path, texts: write_tar(path, ((f"d/{n}.txt", text) for n, text in enumerate(texts)), mode)


def _write_samples(path: Path, texts: Texts) -> None:
    write_tar(path, (part for n, text in enumerate(texts) for part in ((f"{n}.txt", text), (f"{n}.json", b"{}"))))


def _read_tar(path: Path) -> Iterator[bytes]:
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            archive.members = []  # pyright: ignore
            file = archive.extractfile(member)
            if file and member.name.endswith(".txt"):
                yield file.read()


def _write_zip(path: Path, texts: Texts) -> None:
    write_zip(path, ((f"d/{n}.txt", text) for n, text in enumerate(texts)))


def _read_zip(path: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            yield archive.read(member)


def _write_wet(path: Path, texts: Texts) -> None:
    with path.open("wb") as file:
        for n, text in enumerate(texts):
            file.write(gzip.compress(warc_record(text, url=f"https://example.org/{n}"), 6))


def _read_wet(path: Path) -> Iterator[bytes]:
    from fastwarc.warc import ArchiveIterator  # pyright: ignore

    with path.open("rb") as file:
        for record in cast("Any", ArchiveIterator)(file, parse_http=False):
            yield record.reader.read()


def _batches(texts: Texts) -> Iterator[Any]:
    import pyarrow as pa

    for some in batched(texts, 1000):
        yield pa.record_batch({"text": pa.array([text.decode() for text in some], pa.large_string())})


def batched(texts: Texts, size: int) -> Iterator[list[bytes]]:
    """Yield texts in lists of a size, the last one shorter."""
    rest = iter(texts)
    while some := list(itertools.islice(rest, size)):
        yield some


def _write_ipc(kind: str) -> Callable[[Path, Texts], object]:
    def write(path: Path, texts: Texts) -> None:
        import pyarrow as pa

        new: Any = getattr(pa.ipc, f"new_{kind}")
        with new(str(path), pa.schema({"text": pa.large_string()})) as writer:
            for batch in _batches(texts):
                writer.write_batch(batch)

    return write


def _read_ipc(kind: str) -> Callable[[Path], Iterator[bytes]]:
    def read(path: Path) -> Iterator[bytes]:
        import pyarrow as pa

        with pa.OSFile(str(path), mode="r") as file:
            reader: Any = getattr(pa.ipc, f"open_{kind}")(file)
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches)) if kind == "file" else reader
            for batch in batches:
                yield from _texts_of(batch.column("text"))

    return read


def _texts_of(column: Any) -> Iterator[bytes]:
    return (text.as_buffer() for text in column)


def _write_csv(path: Path, texts: Texts) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["n", "text"])
        writer.writerows((n, text.decode()) for n, text in enumerate(texts))


def _read_csv(path: Path) -> Iterator[bytes]:
    from pyarrow import csv as pa_csv

    options = pa_csv.ReadOptions(use_threads=False, block_size=8 << 20)
    convert: Any = pa_csv.ConvertOptions(include_columns=["text"], column_types={"text": "large_string"})
    quoted = pa_csv.ParseOptions(newlines_in_values=True)
    for batch in pa_csv.open_csv(path, read_options=options, parse_options=quoted, convert_options=convert):
        yield from _texts_of(batch.column("text"))


def _write_array(path: Path, texts: Texts) -> None:
    with path.open("w") as file:
        for n, text in enumerate(texts):
            file.write(("[" if n == 0 else ",\n") + json.dumps({"n": n, "text": text.decode()}))
        file.write("]\n")


def _read_array(path: Path) -> Iterator[bytes]:
    for record in json.loads(path.read_bytes()):
        yield record["text"].encode()


FORMATS = {
    "arrow_stream": Format("a.arrow", _write_ipc("stream"), _read_ipc("stream")),
    "arrow_file": Format("f.arrow", _write_ipc("file"), _read_ipc("file")),
    "csv": Format("a.csv", _write_csv, _read_csv),
    "json_array": Format("a.json", _write_array, _read_array),
    "jsonl_xz": Format("a.jsonl.xz", _write_lines, _read_lines),
    "tar": Format("a.tar", _write_members("w"), _read_tar),
    "tar_gz": Format("a.tar.gz", _write_members("w:gz"), _read_tar),
    "zip": Format("a.zip", _write_zip, _read_zip),
    "webdataset": Format("s.tar", _write_samples, _read_tar),
    "wet_gz": Format("a.warc.wet.gz", _write_wet, _read_wet),
}


def bench_formats(work: Path, quick: bool) -> Figures:
    """Write and read a file of each format, small and large.

    Speeds are of ours and of the library, peaks of ours with the large file; `memory_ratio` is the largest peak with a
    large file to that with a small one.
    """
    count = QUICK_DOCUMENTS if quick else DOCUMENTS
    text_mb = sum(map(len, _make_texts(count))) / MB
    figures: Figures = {"text_mb": text_mb, "mb_per_core_s": {}, "library_mb_per_core_s": {}, "peak_mb": {}}
    growth: list[float] = []
    for name, format_ in FORMATS.items():
        done: dict[str, dict[str, Any]] = {}
        for size in (SMALL_DOCUMENTS, count):
            path = work / format_.name
            format_.write(path, _make_texts(size))
            sides = {
                side: partial(run_module, "tests.benchmarks.formats", side, name, path) for side in ("ours", "library")
            }
            small, done = done, {side: runs[0] for side, runs in alternate(1, sides).items()}
            if done["ours"]["texts"] != done["library"]["texts"]:
                raise RuntimeError(f"{name}: the readers give different texts")
            path.unlink()
        figures["mb_per_core_s"][name] = text_mb / done["ours"]["seconds"]
        figures["library_mb_per_core_s"][name] = text_mb / done["library"]["seconds"]
        figures["peak_mb"][name] = done["ours"]["peak_mb"]
        growth.append(done["ours"]["peak_mb"] / small["ours"]["peak_mb"])
    return figures | {"memory_ratio": max(growth)}


def _make_texts(count: int) -> Iterator[bytes]:
    rng = random.Random(1)
    words = [f"{start}{end}" for start in ("pre", "con", "un", "mi") for end in ("tain", "form", "ter", "gra", "lum")]
    page = " ".join(rng.choices(words, k=200_000))
    for number in range(count):
        start = rng.randrange(len(page) // 2)
        yield f"{number} {page[start : start + rng.randrange(100, 10_000)]}".encode()


def _read_ours(path: Path) -> Iterator[bytes]:
    from pipeline.recipe.sources import FilesSource
    from pipeline.sources import files
    from pipeline.sources.kinds import list_files, list_spans

    source = FilesSource(name="s", paths=[str(path)], weight=1)
    for span in list_spans(source, list_files(source)):
        for batch in files.read(source, span):
            for text in cast("Any", batch.text):
                yield text.as_buffer()


if __name__ == "__main__":
    reader, name, place = sys.argv[1:]
    read = _read_ours if reader == "ours" else FORMATS[name].read
    next(read(Path(place)))  # imports
    started, texts = time.process_time(), [0, 0]
    for text in read(Path(place)):
        texts = [texts[0] + 1, texts[1] ^ xxhash.xxh3_64_intdigest(cast("Any", text))]
    seconds = time.process_time() - started
    print(json.dumps({"seconds": seconds, "peak_mb": memory_of("self", "VmHWM") / MB, "texts": texts}))
