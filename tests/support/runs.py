"""Synthetic runs: documents with given hashes and lengths, written as the encode stage writes them."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.encode.run import DOCUMENT_DTYPE, DOCUMENTS_FILE, MEASURES_FILE, TOKENS_FILE, HashKey, Run, RunResult
from pipeline.engine.checksums import checksum_file, write_checksummed
from pipeline.engine.receipts import Result, write_receipt
from pipeline.mix.evidence import write_evidence
from pipeline.mix.index import Index
from pipeline.mix.mix_plan import MixPlan
from pipeline.recipe.schema import Recipe

EOS = 7


@dataclass(frozen=True)
class Document:
    """A document: its hash decides its tokens, as it does for real ones."""

    key: HashKey
    length: int
    given: tuple[int, ...] = ()
    """Tokens of a test's own, EOS included."""

    @property
    def tokens(self) -> list[int]:
        """The tokens, EOS included, `(length,)`."""
        return list(self.given) or [10 + (self.key[0] + self.key[1] + i) % 1000 for i in range(self.length - 1)] + [EOS]

    def measure(self, name: str) -> float:
        """Return a made-up measure of a few values, as float32."""
        return (self.key[0] // 3 + self.key[1] + len(name)) % 23 / 8


Corpus = list[list[Document]]
"""The documents of each source."""


def corpus_of(seed: int, number: int, size: int) -> Corpus:
    """Return sources that share some documents and repeat some. Drawn by seed: hypothesis would take minutes."""
    rng = random.Random(seed)
    ends = [0, 1, 1 << 63, (1 << 64) - 1]
    keys = {(rng.choice(ends), rng.randrange(8)) if rng.random() < 0.3 else draw_key(rng) for _ in range(size)}
    most = rng.choice([3, 60])
    pool = [Document(key, rng.randint(2, most)) for key in sorted(keys)]
    rng.shuffle(pool)
    sources = [pool[source::number] + rng.choices(pool, k=rng.randrange(10)) for source in range(number)]
    for documents in sources:
        rng.shuffle(documents)
    return sources


def draw_key(rng: random.Random) -> tuple[int, int]:
    return rng.getrandbits(64), rng.getrandbits(64)


def keep_first(sources: Corpus) -> Corpus:
    """Reference: the documents of each source in hash order, the first of equal ones only."""
    seen: set[Any] = set()
    kept: Corpus = []
    for documents in sources:
        own = {document.key: document for document in documents if document.key not in seen}
        seen |= own.keys()
        kept.append([own[key] for key in sorted(own)])
    return kept


def write_run(
    folder: Path, source: int, documents: list[Document], *, first_row: int = 0, measures: Sequence[str] = ()
) -> Run:
    """Write a run of one span; rows are numbered from `first_row`. With the names of measures, it has those too."""
    folder.mkdir(parents=True)
    places = sorted(range(len(documents)), key=lambda place: documents[place].key)
    rows = np.zeros(len(documents), DOCUMENT_DTYPE)
    tokens: list[int] = []
    for row, place in zip(rows, places, strict=True):
        document = documents[place]
        row["hash_hi"], row["hash_lo"] = document.key
        row["start"], row["length"], row["row"] = len(tokens), document.length, first_row + place
        tokens += document.tokens
    np.save(folder / DOCUMENTS_FILE, rows)
    files = {
        DOCUMENTS_FILE: checksum_file(folder / DOCUMENTS_FILE),
        TOKENS_FILE: write_checksummed(folder / TOKENS_FILE, np.array(tokens, "<u2").tobytes()),
    }
    if measures:
        values = [[documents[place].measure(name) for name in measures] for place in places]
        files[MEASURES_FILE] = write_checksummed(folder / MEASURES_FILE, np.array(values, "<f4").tobytes())
    labels = [f"source-{source}@1#file"]
    write_receipt(folder, RunResult(labels=labels, documents=len(rows), measures=list(measures), files=files))
    return Run(str(folder), source, "<u2")


def write_runs(
    folder: Path, sources: Corpus, cuts: list[list[int]], measures: Sequence[Sequence[str]] = ()
) -> list[Run]:
    """Write each source as runs, cut before the given positions, with the measures of each source."""
    runs: list[Run] = []
    for source, documents in enumerate(sources):
        edges = [0, *sorted({min(cut, len(documents)) for cut in cuts[source]}), len(documents)]
        runs += [
            write_run(
                folder / f"{source}-{number}",
                source,
                documents[first:last],
                first_row=first,
                measures=measures[source] if measures else (),
            )
            for number, (first, last) in enumerate(itertools.pairwise(edges))
        ]
    return runs


def make_recipe(
    weights: Sequence[float | None], *, val_tokens: int = 0, shard_tokens: int = 1000, **mix: object
) -> Recipe:
    """Return a recipe of sources called s0, s1, ..."""
    return Recipe.model_validate(
        {
            "name": "synthetic",
            "sources": [{"name": f"s{i}", "paths": ["x"], "weight": weight} for i, weight in enumerate(weights)],
            "tokenizer": {"vocab_size": 300},
            "mix": mix,
            "split": {"val_tokens": val_tokens},
            "shards": {"tokens": shard_tokens},
        }
    )


def kept_of(index: Index, run: int, first: int, last: int) -> Any:
    """Return which of the documents [first, last) of a run an index keeps."""
    return index.are_kept(np.full(last - first, run), np.arange(first, last))


def write_index(folder: Path, index: Index) -> None:
    """Write what an index says of its documents as a mix task writes it."""
    files = write_evidence(folder, index.places, index.reasons, index.read_reasons, lambda _: {})
    write_receipt(folder, Result(files=files))


Placed = tuple[int, int, HashKey, int]
"""(source, epoch, key, length) of a document in a shard."""


def place_documents(plan: MixPlan, runs: list[Run], index: Index) -> dict[tuple[str, int], list[Placed]]:
    """Return the documents of each shard of a plan."""
    placed: dict[tuple[str, int], list[Placed]] = {}
    for shard in plan.shards:
        found = placed[shard.split, shard.index] = []
        for part in shard.slices:
            for number, run in enumerate(runs):
                if run.source == part.source:
                    first, rows = run.read_between(part.start, part.stop)
                    rows = rows[kept_of(index, number, first, first + len(rows))]
                    found += [
                        (part.source, part.epoch, (int(row["hash_hi"]), int(row["hash_lo"])), int(row["length"]))
                        for row in rows
                    ]
    return placed
