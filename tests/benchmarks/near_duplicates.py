"""Near-duplicates: the price of signatures, and datatrove's stages beside ours."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from tokenizers import Tokenizer

from pipeline.mix.near_duplicates.bands import EMPTY, SLOTS, add_shingles, band_keys
from pipeline.mix.near_duplicates.normal_text import Entries, hash_shingles
from shards.format.vocabulary import read_vocabulary
from tests.benchmarks.harness import MB, Figures, build, remove, run_module, run_python
from tests.benchmarks.material import prose_files, prose_tokenizer, recipe_text
from tests.support.builds import read_json
from tests.support.evidence import read_rows
from tests.support.near_duplicates import Planted, jaccard, plant

NEAR, APART = 300, 200


def bench_near_duplicates(work: Path, quick: bool) -> Figures:
    """Measure signatures of a megabyte of text, and datatrove beside ours.

    `ours_s` are our stages up to the mix. `_recall` is the share of the planted pairs at 0.85 and above that was found,
    `_dropped_of_apart` how many of those at 0.4 to 0.6 were dropped.
    """
    files, tokenizer = prose_files(), prose_tokenizer(work)
    return _bench_signatures(files, tokenizer) | _bench_datatrove(work, files, tokenizer, quick=quick)


def _bench_signatures(files: list[Path], tokenizer: Path) -> Figures:
    """Measure spelling, shingles and signatures of about 10 MB of books; the best of three."""
    texts = pq.read_table(files[0], columns=["text"])["text"].to_pylist()[:1500]
    encoded = Tokenizer.from_file(str(tokenizer)).encode_batch(texts, add_special_tokens=False)
    lengths = np.array([len(item.ids) + 1 for item in encoded])
    tokens = np.array([token for item in encoded for token in [*item.ids, 0]], np.uint16)
    entries = Entries(read_vocabulary(tokenizer.read_bytes()))

    def once() -> float:
        begun = time.process_time()
        slots = np.full(len(lengths) * SLOTS, EMPTY, np.uint32)
        for first, counts, _, hashes in hash_shingles([tokens], lengths, entries):
            add_shingles(slots[first * SLOTS :], hashes, counts)
        band_keys(slots)
        return time.process_time() - begun

    size = sum(len(text.encode()) for text in texts) / MB
    return {"signatures_ms_mb": 1000 * min(once() for _ in range(3)) / size}


def _bench_datatrove(work: Path, files: list[Path], tokenizer: Path, *, quick: bool) -> Figures:
    """Drop the near-duplicates of books with planted ones: our command on an encoded corpus, and datatrove's stages."""
    folder = work / "near"
    remove(work, "near")
    (folder / "text").mkdir(parents=True)
    texts = [text for text in pq.read_table(files[0], columns=["text"])["text"].to_pylist() if len(text) > 400]
    planted = plant(texts[:2000] if quick else texts, near=NEAR, apart=APART)
    for number in range(4):
        places = range(number, len(planted.documents), 4)
        rows = {"id": [str(place) for place in places], "text": [planted.documents[place] for place in places]}
        pq.write_table(pa.table(rows), folder / f"text/{number}.parquet")
    size = sum(len(text.encode()) for text in planted.documents)
    plain = recipe_text(sorted((folder / "text").iterdir()), tokenizer, val_tokens=10_000)
    threads = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    build(folder, plain, **threads)
    (folder / "near.toml").write_text(plain + '[clean.near_duplicates]\naction = "drop"\n')
    command = ["-m", "tokenmill", "build", str(folder / "near.toml"), "--out", str(folder / "set"), "--workers", "2"]
    run_python(command, **threads)  # what is encoded stays
    stages = read_json(folder / "set.work/build.json")["stages"]
    dropped = {row["hash"] for row in read_rows(folder / "set.work") if "twin" in row}

    theirs = run_module("tests.benchmarks.datatrove_minhash", folder / "text", folder / "datatrove", **threads)
    removed = {planted.documents[int(number)] for number in theirs["ids"]}
    ours = {text for text in planted.documents if xxhash.xxh3_128_hexdigest(text.encode()) in dropped}
    ours_s = sum(stages[name]["seconds"] for name in ("bands", "pairs", "similar", "mix"))
    figures: Figures = {"text_mb": size / MB, "ours_s": ours_s, "datatrove_s": theirs["seconds"]}
    figures["ratio"] = theirs["seconds"] / ours_s
    for name, gone in (("ours", ours), ("datatrove", removed)):
        figures |= _found(name, planted, gone)
    remove(work, "near")
    return figures


def _found(name: str, planted: Planted, gone: set[str]) -> Figures:
    def similar(pair: tuple[int, int]) -> float:
        return jaccard(*(planted.documents[place] for place in pair))

    near = [pair for pair in planted.near if similar(pair) >= 0.85]
    hit = sum(any(planted.documents[place] in gone for place in pair) for pair in near)
    wrong = sum(any(planted.documents[place] in gone for place in pair) for pair in planted.apart)
    return {f"{name}_dropped": len(gone), f"{name}_recall": hit / len(near), f"{name}_dropped_of_apart": wrong}
