"""Builds with up to 16 workers beside the bare script with as many processes, and the loader with up to 8 readers.

The text is the modules of the installed packages, so that a machine without a network has it: as many parquet files as
the most workers, each of about one task's text. The files repeat the modules, under another first line in each.
"""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.benchmarks.harness import MB, Usage, build, remove, run_python
from tests.benchmarks.material import recipe_text, write_tokenizer

BATCH, SEQ_LEN = 64, 512
READ_S = 4.0
"""How long each number of readers is timed."""


def measure_cores(work: Path, left: Callable[[], float], say: Callable[..., None], *, large: bool) -> None:
    """Measure what the time allows.

    Args:
        work: scratch, 12 GB.
        left: returns the seconds left.
        say: called with the fields of each measurement.
        large: 4 GB of text and up to 16 workers, as a machine with 16 cores needs; else 1 MB and up to 2.
    """
    most, size = (16, 250 * MB) if large else (2, MB // 2)
    files = write_modules(work / "text", most, size)
    tokenizer = write_tokenizer(files[:1], work / "tokenizer.json", max_bytes=min(8 * MB, size))
    text_mb = most * size / MB
    say(what="text", files=most, text_mb=text_mb)
    recipe = recipe_text(files, tokenizer, val_tokens=100_000 if large else 1_000)

    def build_ours(count: int) -> Usage:
        name = "set" if count == most else "other"
        return build(work, recipe, "--workers", str(count), name=name, keep=count == most)

    def run_script(count: int) -> Usage:
        remove(work, "script")
        script = str(Path(__file__).with_name("bare_script.py"))
        arguments = [script, str(tokenizer), str(work / "script"), *map(str, files), "--processes", str(count)]
        return run_python(arguments, RAYON_NUM_THREADS="1")[0]

    # The most workers first: they say how long the fewer take, and leave the set for the loader.
    core_seconds: dict[str, float] = {}
    readers = (0, 1, 2, 4, 8) if large else (0, 1)
    for count in (16, 1, 8, 4, 2) if large else (2, 1):
        for side, run in (("build", build_ours), ("bare", run_script)):
            needs = core_seconds.get(side, 20) / count + 5
            if left() < needs:
                say(what=side, workers=count, skipped=f"{left():.0f} s left, needs {needs:.0f}")
                continue
            usage = run(count)
            core_seconds[side] = usage.core_seconds
            speed = text_mb / usage.seconds
            say(what=side, workers=count, seconds=usage.seconds, core_s=usage.core_seconds, mb_s=speed)
        if count == most:
            for number in readers:
                if left() > 3 * READ_S:
                    say(what="loader", readers=number, **read_windows(work / "set", number))


def write_modules(folder: Path, count: int, size: int) -> list[Path]:
    """Write files of the text of installed packages' modules, each of about `size` bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts: dict[str, None] = {}
    total = 0
    for path in Path(pa.__file__).parents[1].rglob("*.py"):
        text = path.read_text(errors="replace")
        if len(text) > 200 and text not in texts:
            texts[text] = None
            total += len(text)
        if total > min(400 * MB, count * size):
            break
    folder.mkdir()

    def write(number: int) -> Path:
        file, taken, rows = folder / f"{number:02d}.parquet", 0, list[str]()
        for turn, text in enumerate(itertools.chain.from_iterable(itertools.repeat(texts))):
            rows.append(f"# File {number}, turn {turn // len(texts)}.\n{text}")
            taken += len(rows[-1])
            if taken >= size:
                break
        pq.write_table(pa.table({"text": pa.array(rows, pa.large_string())}), file, compression="zstd")
        return file

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(write, range(count)))


def read_windows(place: Path, readers: int) -> dict[str, float]:
    """Read shuffled windows through a DataLoader for some seconds; return the first batch's time and the speed."""
    from torch.utils.data import DataLoader

    from shards.torch import TokenWindows, collate_windows

    began = time.perf_counter()
    windows = TokenWindows(place, seq_len=SEQ_LEN, samples=1_000_000)
    loader = DataLoader(windows, batch_size=BATCH, collate_fn=collate_windows, num_workers=readers)
    first, tokens, now = 0.0, 0, began
    for batch in loader:
        now = time.perf_counter()
        if not first:
            first = now
            continue
        tokens += batch["labels"].numel()
        if now - first > READ_S:
            break
    return {"first_batch_s": first - began, "tokens_per_s": round(tokens / (now - first))}
