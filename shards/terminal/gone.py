"""Hints for a name that is not known: what to do instead of a name that is gone, or the nearest known name."""

from __future__ import annotations

import re
from collections.abc import Sequence

GONE: dict[str, str] = {
    "litdata": "export to parquet, from which LitData writes its chunks",
    "mds": "export to parquet, from which mosaicml-streaming writes its shards",
    "import": "make the set from the text: `tokenmill build`",
    "off": "`enabled = false` turns a table of `clean` off",
    "tar": "unpack the archive (`tar -xf`), and name the files that it holds",
    "order_version": "there is one order of the data (shards/FORMAT.md); leave the key out",
    "budget_usd": "give `arms`; `--dry-run` says how many trainings they take, and of how many tokens",
    "prune": "`tokenmill build --prune` deletes from the work folder what that build did not use",
    "--revision": "write it into the address: OWNER/NAME@REVISION",
    "--gpu-usd-per-hour": "`--usd-per-hour` is the price of all machines that are rented while the build runs",
    "--verify": "`tokenmill validate SET` compares the SHA-256 of every file",
    "fallback_encoding": "files that are not UTF-8 are counted and left out; `max_missing` says how many may be",
    "compression": "leave it out, or give `zstd_level`: 1 for fast, 9 for small",
    "schema": "shards/FORMAT.md states every key of manifest.json",
    "warc": "write its text as JSON lines: docs/data.md#html-chats-archives-and-web-crawls",
    "webdataset": "unpack the archive (`tar -xf`), and name the files that it holds",
    "zip": "unpack the archive (`unzip`), and name the files that it holds",
    "slurm": "`sbatch recipes/slurm/build.sbatch RECIPE --out PLACE` builds on Slurm by Ray: docs/clusters.md",
    "--slurm": "give it to sbatch: `sbatch --time=2:00:00 recipes/slurm/build.sbatch RECIPE --out PLACE`",
    "cost": "`tokenmill fit RECIPE --usd-per-hour N` says hours and dollars",
    "--tokens-per-s": "`tokenmill fit RECIPE` has the speed of each card; hours are tokens / speed / 3,600",
    "bench": "`tokenmill fit RECIPE --measure` takes steps on this machine",
    "--resume": "the same command resumes RUN; `--from CHECKPOINT` begins another run from a checkpoint",
    "seeds": "an ablation has one list of `seeds` for all arms; a recipe has `seed`",
    "card_number": "card numbers are not looked for; `drop_if_matches` drops documents with numbers of a known form",
}
"""Keys, values, flags (`--flag`), commands and extras that are gone, as a user writes them: what to do instead."""


def nearest(word: str, words: Sequence[str]) -> str:
    """Return the hint for a wrong word: that of `did_you_mean`, or a list of all words if no word is near."""
    return did_you_mean(word, words) or f" Expected one of: {', '.join(sorted(words))}."


def did_you_mean(word: str, words: Sequence[str]) -> str:
    """Return ' Did you mean X?' for a wrong word, or what to do if the word is gone; nothing if no word is near."""
    if word in GONE:
        return f" {word!r} is gone: {GONE[word]}."
    import difflib  # late: half of the time of --help

    # `steps` may mean `every_steps`, but `limit` not `delimiter`: there its letters are in the middle of a word.
    near = [other for other in words if not re.search(f"[a-z]{re.escape(word)}[a-z]", other)]
    close = difflib.get_close_matches(word, near, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
