"""Hints for a name that is not known: the nearest known name, or what to do instead of what other tools have."""

import re
from collections.abc import Sequence

ELSEWHERE = {
    "litdata": "export to parquet, from which LitData writes its chunks",
    "mds": "export to parquet, from which mosaicml-streaming writes its shards",
    "slurm": "build by `sbatch recipes/slurm/build.sbatch RECIPE --out PLACE`, on Slurm by Ray: docs/clusters.md",
    "tar": "unpack the archive (`tar -xf`), and name the files that it holds",
    "warc": "write its text as JSON lines: docs/data.md#archives-and-web-crawls",
    "webdataset": "unpack the archive (`tar -xf`), and name the files that it holds",
    "zip": "unpack the archive (`unzip`), and name the files that it holds",
    "--resume": "run the same command, which resumes RUN; `--from CHECKPOINT` begins another run from a checkpoint",
}
"""What other tools have under a name that a person may bring here, and what to do instead."""


def nearest(word: str, words: Sequence[str]) -> str:
    """Return the hint for a wrong word: that of `did_you_mean`, or a list of all words if no word is near."""
    return did_you_mean(word, words) or f" Expected one of: {', '.join(sorted(words))}."


def did_you_mean(word: str, words: Sequence[str]) -> str:
    """Return ' Did you mean X?' for a wrong word, or what to do here if other tools have it; else nothing."""
    if word in ELSEWHERE:
        return f" Instead of {word!r}, {ELSEWHERE[word]}."
    import difflib  # late: half of the time of --help

    # `steps` may mean `every_steps`, but `limit` not `delimiter`: there its letters are in the middle of a word.
    near = [other for other in words if not re.search(f"[a-z]{re.escape(word)}[a-z]", other)]
    close = difflib.get_close_matches(word, near, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
