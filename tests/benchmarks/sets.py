"""How fast a set is validated and audited on one core, and whether memory grows with the number of shards."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.benchmarks.build import prose_recipe, write_set
from tests.benchmarks.harness import Figures, alternate, build, in_process, remove, timed
from tests.benchmarks.material import write_copies

ROUNDS = 3
"""Each side is timed this often, in turns, and its best round counts: a shared machine only ever makes it slower."""


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
            for _ in codec.iter_frames(shard.tokens_file, shard.frames, range(len(shard.frames))):
                pass

    def check() -> None:
        if problems := validate(place, level="full", threads=1).problems:
            raise RuntimeError(f"{place}: not a whole set: {problems[:3]}")

    return {"tokens": tokens, **_tokens_per_s(tokens, {"decompress": decompress, "validate": check})}


def bench_audit(work: Path, quick: bool) -> Figures:
    """Time the whole look at a shard on one core; watch the memory of audits of a set, and of one four times as large.

    The large set has 33 shards.
    """
    del quick
    from shards.audit.figures import ShardAudit, audit_shard
    from shards.format.reader import open_set

    place = write_set(work)
    shard_set = open_set(place)
    number, shard = next((n, s) for n, s in enumerate(shard_set.shards) if s.entry.split == "train")
    look = partial(audit_shard, ShardAudit(shard_set), number)
    figures: Figures = {"tokens": shard.num_tokens, **_tokens_per_s(shard.num_tokens, {"look": look})}
    build(work, prose_recipe(work, files=write_copies(work)), "--validate", "quick", name="large")
    for name in ("set", "large"):
        figures[f"{name}_mb"] = in_process(_audit, work / name, work / "audit")["resident_mb"]
    remove(work, "copies", "large", "large.work", "audit")
    return figures | {"memory_ratio": figures["large_mb"] / figures["set_mb"]}


def _tokens_per_s(tokens: int, sides: dict[str, Callable[[], object]]) -> Figures:
    """Return the tokens that each side takes in a second of the processor, at its best."""
    found = alternate(ROUNDS, {name: partial(timed, side) for name, side in sides.items()})
    best = {name: min(usage.core_seconds for usage, _ in runs) for name, runs in found.items()}
    return {f"{name}_tokens_per_s": tokens / seconds for name, seconds in best.items()}


def _audit(folder: Path, out: Path) -> Figures:
    from shards.audit.audit import audit

    audit(folder, out=out)
    return {}
