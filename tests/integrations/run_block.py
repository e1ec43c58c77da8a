"""Run the code of a section of docs/trainers.md as a program, and write down the rows that its model is trained on.

Usage: python -m tests.integrations.run_block TITLE RECORD [--kill-after STEPS] [--change OLD NEW]...
    [--then FILE]

Whatever an embedding is given is a line of RECORD/RANK.jsonl: seen in PyTorch itself, so it is what the model got and
not what a loader says. With --kill-after the last rank kills itself in the step that follows, before it is computed.
--then runs a file after the block with the block's names: a loop
for a block that has none.
"""

import argparse
import json
import os
import re
import signal
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

PAGE = Path(__file__).parents[2] / "docs/trainers.md"


def read_blocks(level: Literal["##", "###"]) -> dict[str, str]:
    """Return the first Python block of each section with a heading of this level."""
    pattern = rf"^{level} ([^\n]+)\n(?:(?!##)[^\n]*\n)*?```python\n(.*?)^```"
    return dict(re.findall(pattern, PAGE.read_text(), re.M | re.S))


def record_rows(folder: Path, kill_after: int | None) -> None:
    """Append to a file what embeddings of this process are given; kill the process when they have had so many."""
    rank, ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    steps = 0

    def record(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        if not isinstance(module, torch.nn.Embedding):
            return
        if steps == kill_after and rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        with (folder / f"{rank}.jsonl").open("a") as file:
            file.write(json.dumps(arguments[0].tolist()) + "\n")

    register_module_forward_pre_hook(record)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("title")
    parser.add_argument("record", type=Path)
    parser.add_argument("--kill-after", type=int)
    parser.add_argument("--change", nargs=2, action="append", default=[])
    parser.add_argument("--then", type=Path)
    given = parser.parse_args()
    code = read_blocks("###")[given.title]
    for old, new in given.change:
        assert old in code, f"the block has no {old!r}"
        code = code.replace(old, new)
    torch.set_num_threads(1)
    record_rows(given.record, given.kill_after)
    names = {"__name__": "__main__"}
    exec(compile(code, f"{PAGE.name}: {given.title}", "exec"), names)
    if given.then is not None:
        exec(compile(given.then.read_text(), given.then, "exec"), names)


if __name__ == "__main__":
    main()
