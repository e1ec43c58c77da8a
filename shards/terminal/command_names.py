"""Every command by name: its module, what it does, and the words that call it, for usage lines and hints."""

from __future__ import annotations

import os
import sys

WAY = {
    "Build the set": {
        "plan": ("pipeline.cli.plan", "price a build: what it reads, writes and takes; writes nothing"),
        "build": ("pipeline.cli.build", "build a shard set from a recipe; run it again to resume"),
        "clean-report": ("pipeline.cli.clean_report", "show what each limit of the presets drops, to choose limits"),
        "demo-corpus": ("pipeline.cli.demo_corpus", "gather the demo's text from this installation"),
        "keys": ("tokenmill.commands.keys", "list every key of a recipe or of an experiment's file"),
    },
    "Look at it": {
        "validate": ("shards.cli.validate", "check every checksum, id, document and share"),
        "inspect": ("shards.cli.inspect_set", "show what a set holds, or one document with its origin"),
        "audit": ("shards.cli.audit", "find strange and rare tokens, repeats and leaks before the first GPU hour"),
        "trace": ("shards.cli.trace", "find the documents that hold a text, and where they are from"),
        "report": ("shards.cli.report", "write a page and a data card about the set"),
        "schema": ("shards.cli.schema", "print the JSON Schema of a set's metadata"),
    },
    "Share it": {
        "push": ("shards.cli.push", "send a set to the Hugging Face Hub"),
        "pull": ("shards.cli.pull", "download a set from there, every file verified"),
        "export": ("shards.cli.export_set", "write a set in the layout of another trainer"),
        "import": ("shards.cli.import_set", "make a set from another trainer's token files"),
    },
    "Train": {
        "fit": ("trainer.commands.fit", "estimate which micro-batches fit in a GPU's memory"),
        "cost": ("trainer.commands.cost", "compare GPUs in dollars per billion tokens"),
        "bench": ("trainer.commands.bench", "time training steps on this machine"),
        "train": ("trainer.commands.train", "train a model on a set; run it again to resume"),
    },
    "Compare data": {
        "ablate": ("tokenmill.commands.ablate", "find out which data is better, by small models with error bars"),
        "mix-search": ("tokenmill.commands.mix_search", "find the best shares of the sources, with intervals"),
    },
    "Look at the run": {
        "plot": ("trainer.commands.plot", "draw loss, learning rate, throughput and dollars"),
        "compare": ("trainer.commands.compare", "compare runs: scores, differences, cost, recipes, pictures"),
        "eval": ("trainer.commands.eval", "score a model on eval sets and tasks; find the text that it finds hardest"),
        "sample": ("trainer.commands.sample", "continue prompts with the model"),
        "trace-step": ("trainer.commands.trace", "show the documents that a training step read"),
        "export-model": ("trainer.commands.export", "write the model for other libraries"),
    },
}
"""By group, in the order of the work: each command of `tokenmill` with its module and what it does."""

COMMANDS = {name: command for group in WAY.values() for name, command in group.items()}

RENAMED = {
    ("trainer", "export"): "export-model",
    ("trainer", "trace"): "trace-step",
}
"""Commands with another name in `tokenmill`, because another package has a command of the same name too."""


def commands_of(package: str) -> dict[str, tuple[str, str]]:
    """Return the commands of a package by their names in it: module, and what each does."""
    own_names = {ours: theirs for (owner, theirs), ours in RENAMED.items() if owner == package}
    return {
        own_names.get(name, name): (module, summary)
        for name, (module, summary) in COMMANDS.items()
        if module.startswith(f"{package}.")
    }


def called_as(package: str, command: str = "") -> str:
    """Return the words that call a command of a package, in the form in which this process was called.

    `python -m trainer trace` if a package was run as a module, else `tokenmill trace-step`.
    """
    # `python -m PACKAGE` sets the first argument to the package's __main__.py.
    folder, file = os.path.split(sys.argv[0])
    if file == "__main__.py" and os.path.basename(folder) in ("pipeline", "shards", "trainer"):
        words = ["python", "-m", package, command]
    else:
        words = ["tokenmill", RENAMED.get((package, command), command)]
    return " ".join(word for word in words if word)
