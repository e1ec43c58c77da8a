"""A build beside the bare script: what the guarantees cost, in core-seconds and by the clock, and where they go.

Both get the same files and tokenizer, and are commands of their own on two processes, start included, by turns. The
text is `bulk_prose`, 8 times (1.2 GB) and 16 times (2.4 GB), each document with its copy's number before it.
"""

from functools import partial
from pathlib import Path

from tests.benchmarks.harness import MB, Figures, Usage, alternate, build, median, remove, run_python
from tests.benchmarks.material import prose_tokenizer, recipe_text, text_bytes, write_copies
from tests.support.builds import read_json

COPIES = (8, 16)
ROUNDS = 3


def bench_bare(work: Path, quick: bool) -> Figures:
    """Build both ways by turns; with `quick` 1.2 GB once, else 2.4 GB too, with the prefix `large_`.

    `core_ratio` and `wall_ratio` are medians of ours divided by the script's of the same turn; `core_seconds` are those
    of the last build, by step.
    """
    figures = _compare(work, COPIES[0], rounds=1 if quick else ROUNDS)
    large = {} if quick else _compare(work, COPIES[1], rounds=ROUNDS)
    return figures | {f"large_{name}": value for name, value in large.items()}


def _compare(work: Path, copies: int, *, rounds: int) -> Figures:
    tokenizer, files = prose_tokenizer(work), write_copies(work, copies)
    ours = partial(build, work, recipe_text(files, tokenizer), name="bare")
    script = partial(_run_script, work, tokenizer, files)
    found = alternate(rounds, {"script": script, "ours": ours})
    _check_tokens(work)
    figures: Figures = {"text_mb": text_bytes(files) / MB}
    for name, usages in found.items():
        figures[f"{name}_core_s"] = median([usage.core_seconds for usage in usages])
        figures[f"{name}_s"] = median([usage.seconds for usage in usages])
    pairs = list(zip(found["ours"], found["script"], strict=True))
    figures["core_ratio"] = median([ours.core_seconds / bare.core_seconds for ours, bare in pairs])
    figures["wall_ratio"] = median([ours.seconds / bare.seconds for ours, bare in pairs])
    figures["core_seconds"] = _divide_core_seconds(work / "bare.work", found["ours"][-1].core_seconds)
    remove(work, "copies", "bare", "bare.work", "script")
    return figures


def _run_script(work: Path, tokenizer: Path, files: list[Path]) -> Usage:
    remove(work, "script")
    script = str(Path(__file__).with_name("bare_script.py"))
    usage, _ = run_python([script, str(tokenizer), str(work / "script"), *map(str, files)])
    return usage


def _check_tokens(work: Path) -> None:
    """Check that the set has the script's tokens, but for the documents that were dropped because they repeat."""
    manifest = read_json(work / "bare" / "manifest.json")
    ours = sum(split["tokens"] for split in manifest["splits"].values())
    script = sum(path.stat().st_size for path in (work / "script").iterdir()) // 2
    if not 0.99 * script <= ours <= script:
        raise RuntimeError(f"the set has {ours} tokens, the script's files {script}: they did not do the same work")


def _divide_core_seconds(work: Path, total: float) -> dict[str, float]:
    """Return where the core-seconds of a build went, by stage and step, from its build.json; the rest last."""
    report = read_json(work / "build.json")
    steps = {
        f"{stage}: {step.removesuffix('_s')}": spent
        for stage, facts in report["stages"].items()
        for step, spent in facts["core_seconds"].items()
    }
    steps["validation"] = report["validate"]["core_seconds"]
    return steps | {"start, mix, manifest, end": total - sum(steps.values())}
