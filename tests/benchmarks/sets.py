"""How fast a set is validated, audited and searched on one core, and whether memory grows with the number of shards."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.benchmarks.build import write_set
from tests.benchmarks.harness import Figures, alternate, in_process, remove, timed

ROUNDS = 3
"""Each side is timed this often, in turns, and its best round counts: a shared machine only ever makes it slower."""

FEW, MANY = 4, 32
"""Training shards of the two sets whose peak memory is compared."""


def bench_validate(work: Path, quick: bool) -> Figures:
    """Validate a set in full beside plain decompression of the same files, each on one thread."""
    del quick
    from shards.format import codec
    from shards.format.reader import open_set
    from shards.validation.validate import validate

    place = write_set(work)
    shard_set = open_set(place)
    tokens = sum(shard.num_tokens for shard in shard_set.shards)

    def decompress() -> None:
        for shard in shard_set.shards:
            for _ in codec.iter_frames(shard.tokens_file, shard.frames):
                pass

    def check() -> None:
        if problems := validate(place, level="full", threads=1).problems:
            raise RuntimeError(f"{place}: not a whole set: {problems[:3]}")

    return {"tokens": tokens, **_tokens_per_s(tokens, {"decompress": decompress, "validate": check})}


def bench_audit(work: Path, quick: bool) -> Figures:
    """Time the whole look at a shard, and searches, on one core; watch the memory of whole audits."""
    del quick
    from shards.audit.figures import ShardAudit, audit_shard
    from shards.format.reader import open_set
    from shards.trace.search import Query
    from shards.trace.trace import trace

    place = write_set(work)
    shard_set = open_set(place)
    number, shard = next((n, s) for n, s in enumerate(shard_set.shards) if s.entry.split == "train")
    one = write_copies_of_shard(place, shard.name, work / "one", 1)
    search = ShardAudit(shard_set)
    sides: dict[str, Callable[[], object]] = {
        "look": partial(audit_shard, search, number),
        "trace_text": partial(trace, one, Query("text", "PersonX")),
        "trace_token": partial(trace, one, Query("token", str(shard_set.vocab_size - 1))),
        "trace_regex": partial(trace, one, Query("regex", "PersonX")),
    }
    figures: Figures = {"tokens": shard.num_tokens, **_tokens_per_s(shard.num_tokens, sides)}
    for name, shards in (("few", FEW), ("many", MANY)):
        folder = write_copies_of_shard(place, shard.name, work / name, shards)
        figures[f"{name}_shards_mb"] = in_process(_audit, folder, work / "audit")["resident_mb"]
    remove(work, "few", "many", "one")
    return figures | {"memory_ratio": figures["many_shards_mb"] / figures["few_shards_mb"]}


def _tokens_per_s(tokens: int, sides: dict[str, Callable[[], object]]) -> Figures:
    """Return the tokens that each side takes in a second of the processor, at its best."""
    found = alternate(ROUNDS, {name: partial(timed, side) for name, side in sides.items()})
    best = {name: min(usage.core_seconds for usage, _ in runs) for name, runs in found.items()}
    return {f"{name}_tokens_per_s": tokens / seconds for name, seconds in best.items()}


def _audit(folder: Path, out: Path) -> Figures:
    from shards.audit.audit import audit

    audit(folder, out=out)
    return {}


def write_copies_of_shard(set_path: Path, name: str, folder: Path, count: int) -> Path:
    """Write a set that holds one training shard `count` times, with a manifest that fits; return its folder."""
    from shards.format import manifest
    from shards.format.reader import open_set
    from shards.format.writer import shard_file_names, shard_name, write_entry, write_manifest

    given = open_set(set_path).manifest
    entry = next(entry for entry in given.shards if entry.name == name)
    remove(folder.parent, folder.name)
    folder.mkdir(parents=True)
    for file in (given.tokenizer.file, given.recipe.file):
        shutil.copyfile(set_path / file, folder / file)
    entries: list[manifest.ShardEntry] = []
    for index in range(count):
        copy = shard_name("train", index)
        tokens, documents, metadata = shard_file_names(copy)
        for source, target in ((entry.files.tokens, tokens), (entry.files.documents, documents)):
            os.link(set_path / source.path, folder / target)
        held = manifest.SidecarFiles(
            tokens=entry.files.tokens.model_copy(update={"path": tokens}),
            documents=entry.files.documents.model_copy(update={"path": documents}),
        )
        sidecar = json.loads((set_path / entry.files.metadata.path).read_bytes())
        sidecar |= {"name": copy, "files": held.model_dump()}
        own = write_entry(folder / metadata, json.dumps(sidecar))
        files = manifest.ShardFiles(tokens=held.tokens, documents=held.documents, metadata=own)
        entries.append(entry.model_copy(update={"name": copy, "files": files}))

    def times_count(name: str) -> manifest.SourceCounts:
        counts = entry.sources.get(name, manifest.SourceCounts(tokens=0, documents=0))
        return manifest.SourceCounts(tokens=counts.tokens * count, documents=counts.documents * count)

    sources = {name: times_count(name) for name in given.splits["train"].sources}
    total = {"tokens": entry.tokens * count, "documents": entry.documents * count}
    mix: list[manifest.MixEntry] = []
    for row in given.mix:
        achieved, requested = sources[row.source].tokens, int(total["tokens"] * row.requested)
        update = {"achieved": achieved / total["tokens"], "achieved_tokens": achieved, "requested_tokens": requested}
        mix.append(row.model_copy(update=update))
    split = manifest.SplitEntry(requested_tokens=total["tokens"], sources=sources, **total)
    epochs = [source.model_copy(update={"epochs": count}) for source in given.sources]
    update = {"splits": {"train": split}, "shards": entries, "mix": mix, "sources": epochs}
    write_manifest(folder, given.model_copy(update=update))
    return folder
