"""`tokenmill COMMAND`: find the package that has the command, and run it there.

Only the package of the command that was called is imported. The working directory is not on the path of this program
nor of the processes it starts, so a person's own `pipeline/` or `shards.py` is never imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

COULD_NOT_RUN = 2

WAY = {
    "Build the set": {
        "plan": ("pipeline", "price a build: what it reads, writes and takes; writes nothing"),
        "build": ("pipeline", "build a shard set from a recipe; run it again to resume"),
        "clean-report": ("pipeline", "show what each limit of the presets drops, to choose limits"),
        "prune": ("pipeline", "remove from a work folder what the last set did not use"),
        "demo-corpus": ("pipeline", "gather the demo's text from this installation"),
        "keys": ("pipeline", "list every key of a data recipe"),
    },
    "Look at it": {
        "validate": ("shards", "check every checksum, id, document and share"),
        "inspect": ("shards", "show what a set holds, or one document with its origin"),
        "audit": ("shards", "find strange and rare tokens, repeats and leaks before the first GPU hour"),
        "trace": ("shards", "find the documents that hold a text, and where they are from"),
        "report": ("shards", "write a page and a data card about the set"),
        "schema": ("shards", "print the JSON Schema of a set's metadata"),
    },
    "Share it": {
        "push": ("shards", "send a set to the Hugging Face Hub"),
        "pull": ("shards", "download a set from there, every file verified"),
        "export": ("shards", "write a set in the layout of another trainer"),
        "import": ("shards", "make a set from another trainer's token files"),
    },
    "Train": {
        "train-keys": ("trainer", "list every key of a train recipe"),
        "fit": ("trainer", "estimate which micro-batches fit in a GPU's memory"),
        "cost": ("trainer", "compare GPUs in dollars per billion tokens"),
        "bench": ("trainer", "time training steps on this machine"),
        "train": ("trainer", "train a model on a set; run it again to resume"),
    },
    "Look at the run": {
        "plot": ("trainer", "draw loss, learning rate, throughput and dollars"),
        "sample": ("trainer", "continue prompts with the model"),
        "trace-step": ("trainer", "show the documents that a training step read"),
        "export-model": ("trainer", "write the model for other libraries"),
    },
}
"""By group, in the order of the work: each command with its package and what it does."""

COMMANDS = {name: package for group in WAY.values() for name, (package, _) in group.items()}

EXAMPLES = """\
the whole way, without a network:
  tokenmill build demo --out out/demo
  tokenmill report out/demo
  tokenmill train demo --shards out/demo --run out/demo-run
  tokenmill sample out/demo-run --prompt "Return the number of"

exit status: 0 done, 1 failed on the way or the set has problems, 2 could not run, 3 training stopped at an off-ramp
"""


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status; a command of the pipeline ends the process itself."""
    if arguments[:1] == ["--version"]:
        from importlib.metadata import version  # late: takes 20 ms to load

        print(f"tokenmill {version('tokenmill')}")
        return 0
    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text(), end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else COULD_NOT_RUN
    name, *rest = arguments
    if name not in COMMANDS:
        import difflib  # late: half of the time of --help

        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else "`tokenmill --help` lists the commands."
        print(f"error: no command {name!r}. {hint}", file=sys.stderr)
        return COULD_NOT_RUN

    from tokenmill.clash import find_clashes

    if clashes := find_clashes():
        print("\n".join(f"error: {clash}" for clash in clashes), file=sys.stderr)
        return COULD_NOT_RUN
    from shards.terminal.command_names import RENAMED

    package = COMMANDS[name]
    own_names = {ours: theirs for (owner, theirs), ours in RENAMED.items() if owner == package}
    return importlib.import_module(f"{package}.__main__").run_process([own_names.get(name, name), *rest])


def help_text() -> str:
    """Return what `tokenmill --help` prints: every command, in the order of the work."""
    lines = ["usage: tokenmill [--version] COMMAND ...", "", "From a recipe to a trained model.", ""]
    for group, commands in WAY.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<13} {summary}" for name, (_, summary) in commands.items()]
        lines.append("")
    lines.append("`tokenmill COMMAND --help` explains a command.")
    return "\n".join(lines) + "\n\n" + EXAMPLES


def run() -> NoReturn:
    """Run the command line of this process and end it."""
    os.environ["PYTHONSAFEPATH"] = "1"  # processes that this one starts: Python would put the working directory first
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
