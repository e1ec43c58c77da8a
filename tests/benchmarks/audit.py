"""How fast a set is audited and searched, on one core, and whether memory grows with the number of shards.

The set is one shard's files under many names, its manifest written to fit: as many shards as wanted for the cost of
links. Run alone it takes the folder of a set, or builds a small one from the standard library's source first:

    python -m tests.benchmarks.audit [DIR]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.material import MB, ROOT

ROUNDS = 3
"""Each is timed this often, in processor seconds, and its best round counts: other programs do not count."""

FEW, MANY = 4, 32
"""Training shards of the two sets whose peak memory is compared."""


def bench_audit(set_path: Path, work: Path) -> dict[str, Any]:
    """Time the counts, the whole look at a shard, and searches; watch the memory of whole audits.

    Args:
        set_path: a whole shard set with a training shard.
        work: scratch.

    Returns:
        `tokens` of the shard timed; `look_tokens_per_s` (all that the audit takes from a shard),
        `trace_text_tokens_per_s`, `trace_token_tokens_per_s`, `trace_regex_tokens_per_s`, each on one core;
        `few_shards_mb` and `many_shards_mb`, peaks of an audit's process with one worker at `FEW` and at `MANY` shards,
        and `memory_ratio` of the two.
    """
    from shards.audit.shard_figures import SampleRates, ShardAudit, audit_shard
    from shards.format.reader import open_set
    from shards.trace.search import Query
    from shards.trace.trace import trace

    shard_set = open_set(set_path)
    number, shard = next((n, s) for n, s in enumerate(shard_set.shards) if s.entry.split == "train")
    one = write_copies_of_shard(set_path, shard.name, work / "one", 1)
    search = ShardAudit(shard_set, SampleRates(documents=64, passages=64))
    steps = {
        "look": lambda: audit_shard(search, number),
        "trace_text": lambda: trace(one, Query("text", "PersonX")),
        "trace_token": lambda: trace(one, Query("token", str(shard_set.vocab_size - 1))),
        "trace_regex": lambda: trace(one, Query("regex", "PersonX")),
    }
    figures: dict[str, Any] = {"tokens": shard.num_tokens}
    for name, step in steps.items():
        figures[f"{name}_tokens_per_s"] = shard.num_tokens / min(_time(step) for _ in range(ROUNDS))
    peaks: list[float] = []
    for shards in (FEW, MANY):
        folder = write_copies_of_shard(set_path, shard.name, work / f"shards-{shards}", shards)
        peaks.append(_peak_bytes(folder, work / "audit") / MB)
        shutil.rmtree(folder)
    shutil.rmtree(one)
    return figures | {"few_shards_mb": peaks[0], "many_shards_mb": peaks[1], "memory_ratio": peaks[1] / peaks[0]}


def write_copies_of_shard(set_path: Path, name: str, folder: Path, count: int) -> Path:
    """Write a set that holds one training shard `count` times, with a manifest that fits; return its folder."""
    from shards.format import manifest
    from shards.format.reader import open_set
    from shards.format.writer import shard_file_names, shard_name, write_entry, write_manifest

    given = open_set(set_path).manifest
    entry = next(entry for entry in given.shards if entry.name == name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in (given.tokenizer.file, given.recipe.file):
        shutil.copyfile(set_path / file, folder / file)
    entries: list[manifest.ShardEntry] = []
    for index in range(count):
        copy = shard_name("train", index)
        tokens, documents, metadata = shard_file_names(copy)
        _link(set_path / entry.files.tokens.path, folder / tokens)
        _link(set_path / entry.files.documents.path, folder / documents)
        held = manifest.SidecarFiles(
            tokens=entry.files.tokens.model_copy(update={"path": tokens}),
            documents=entry.files.documents.model_copy(update={"path": documents}),
        )
        sidecar = json.loads((set_path / entry.files.metadata.path).read_bytes())
        sidecar |= {"name": copy, "files": held.model_dump()}
        files = manifest.ShardFiles(
            tokens=held.tokens,
            documents=held.documents,
            metadata=write_entry(folder / metadata, json.dumps(sidecar)),
        )
        entries.append(entry.model_copy(update={"name": copy, "files": files}))
    held = {
        name: entry.sources.get(name, manifest.SourceCounts(tokens=0, documents=0))
        for name in given.splits["train"].sources
    }
    sources = {
        name: manifest.SourceCounts(tokens=counts.tokens * count, documents=counts.documents * count)
        for name, counts in held.items()
    }
    tokens, documents = entry.tokens * count, entry.documents * count
    mix = [
        row.model_copy(
            update={
                "achieved": sources[row.source].tokens / tokens,
                "achieved_tokens": sources[row.source].tokens,
                "requested_tokens": int(tokens * row.requested),
            }
        )
        for row in given.mix
    ]
    split = manifest.SplitEntry(requested_tokens=tokens, tokens=tokens, documents=documents, sources=sources)
    epochs = [source.model_copy(update={"epochs": count}) for source in given.sources]
    update = {"splits": {"train": split}, "shards": entries, "mix": mix, "sources": epochs}
    write_manifest(folder, given.model_copy(update=update))
    return folder


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


_AUDIT = """
import sys
from pathlib import Path
from shards.audit.audit import audit
audit(sys.argv[1], out=Path(sys.argv[2]))
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))
"""


def _time(step: Any) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def _peak_bytes(folder: Path, out: Path) -> int:
    """Audit a set in a separate process and return its peak resident bytes (VmHWM: ru_maxrss is the parent's)."""
    command = [sys.executable, "-c", _AUDIT, str(folder), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"audit: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return int(done.stdout) * 1024


def main() -> None:
    """Measure the set named on the command line, or a sample."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as folder:
        work = Path(folder)
        if len(sys.argv) > 1:
            set_path = Path(sys.argv[1])
        else:
            from tests.benchmarks.validate import build_sample_set

            set_path = work / "set"
            set_path.mkdir()
            build_sample_set(set_path, copies=1)
        for name, value in bench_audit(set_path, work).items():
            print(f"{name}: {value:,.2f}" if isinstance(value, float) and value < 10_000 else f"{name}: {value:,.0f}")


if __name__ == "__main__":
    main()
