"""`tokenmill COMMAND`: every command of the project, and how each is started.

Only the package of the command that was called is imported. The working directory is not on the path of this program
nor of the processes it starts, so a person's own `pipeline/` or `shards.py` is never imported. (With `python -m` it
is, as for any program.)

Exit statuses: 0 done; 1 it failed on the way, or the set has problems; 2 it could not run (bad input, nothing started);
3 training stopped at an off-ramp: a phase's goal was missed or its budget is spent; 130 or 143 after SIGINT or SIGTERM;
141: nobody read the output to its end (`| head`). After an off-ramp or a signal, training has saved a checkpoint,
unless a second SIGINT stopped it at once. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import csv
import gc
import hashlib
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

WAY = {
    "Build a set": {
        "init": ("pipeline.cli.init", "look at files, and write a recipe for them"),
        "plan": ("pipeline.cli.plan", "estimate what a build reads, writes and costs"),
        "build": ("pipeline.cli.build", "build a shard set from a recipe; run it again to resume"),
        "clean-report": ("pipeline.cli.clean_report", "show what each cleaning limit drops, to help choose limits"),
    },
    "Look at it and share it": {
        "validate": ("shards.cli.validate", "check every checksum, id, document and share"),
        "inspect": ("shards.cli.inspect_set", "show what is in a set, or one document with its origin"),
        "audit": ("shards.cli.audit", "find unusual and rare tokens, repeats and leaks before you train"),
        "trace": ("tokenmill.commands.trace", "find the documents that contain a string, and their sources"),
        "report": ("tokenmill.commands.report", "write an HTML page and a dataset card about the set"),
        "push": ("tokenmill.commands.push", "upload a set, or a model, to the Hugging Face Hub"),
        "pull": ("shards.cli.pull", "download a set from the Hub, and verify every file"),
        "export": ("shards.cli.export_set", "write a set in the layout of another trainer"),
    },
    "Train, look at the run, compare": {
        "fit": ("trainer.commands.fit", "estimate memory, speed and cost per GPU type"),
        "train": ("trainer.commands.train", "train a model on a set; run it again to resume"),
        "plot": ("trainer.commands.plot", "draw loss, learning rate, throughput and cost"),
        "sample": ("trainer.commands.sample", "continue prompts with the model"),
        "eval": ("trainer.commands.eval", "score a model on eval sets and tasks; list its hardest documents"),
        "compare": ("trainer.commands.compare", "compare runs: scores, differences, cost, recipes, plots"),
        "trace-step": ("trainer.commands.trace", "show the documents that a training step read"),
        "export-model": ("trainer.commands.export", "export the model to other libraries' formats"),
        "ablate": ("tokenmill.commands.ablate", "train small models to compare data, with error bars"),
        "mix-search": ("tokenmill.commands.mix_search", "find the best mix, with confidence intervals"),
    },
    "Other": {
        "keys": ("tokenmill.commands.keys", "list every key of a recipe or an experiment file"),
        "demo-corpus": ("pipeline.cli.demo_corpus", "gather the demo's text from this installation"),
    },
}
"""By group, in the order of the work: each command of `tokenmill` with its module and what it does."""

COMMANDS = {name: command for group in WAY.values() for name, command in group.items()}

EXAMPLES = """\
the whole pipeline, without a network:
  tokenmill build demo --out out/demo
  tokenmill report out/demo
  tokenmill train demo --shards out/demo --run out/demo-run
  tokenmill sample out/demo-run --prompt "Return the number of"

exit status: 0 done, 1 failed partway or the set has problems, 2 could not run, 3 goal missed or budget spent"""

PACKAGES = ("pipeline", "shards", "trainer")
DISTRIBUTION = "tokenmill"
REMEDY = (
    "Another distribution has a package of this name. "
    "Install tokenmill into a separate environment: python -m venv tokenmill-env, then pip install there."
)

COULD_NOT_RUN = 2

_GC_THRESHOLD = 200_000
"""New objects before the garbage collector runs. With Python's 700, it goes through all modules again and again while
they are loaded: 0.05 to 0.1 s of a build's start, and half of the time that a manifest of 150,000 shards takes."""


def main(arguments: list[str]) -> int:
    """Run a command of `tokenmill` and return its exit status."""
    from shards.errors import InputError, RunError, ShardSetError
    from shards.terminal.display import say
    from shards.terminal.hints import did_you_mean
    from shards.terminal.program import PROBLEMS, call_command, run_command

    name, *rest = arguments or [""]
    module, _ = COMMANDS.get(name, ("", ""))

    def stop_false_answer(status: int) -> None:
        # A library may have swallowed an interrupt; problems found after one may be its doing.
        if _interrupts and status == PROBLEMS:
            raise KeyboardInterrupt

    def run() -> int:
        if name == "--version":
            from importlib.metadata import version

            print(f"tokenmill {version(DISTRIBUTION)}")
            return 0
        if name in ("-h", "--help"):
            print(help_text())
            return 0
        if not arguments:
            say(help_text())
            return COULD_NOT_RUN
        if not module:
            hint = did_you_mean(name, [*COMMANDS]) or " `tokenmill --help` lists the commands."
            raise InputError(f"no command {name!r}.{hint}")
        try:
            return call_command(name, module, rest, stop_false_answer)
        except BaseException as error:
            # A library makes another error of it: pydantic a fault of the field whose pattern it was matching.
            if _interrupts:
                raise KeyboardInterrupt from error
            reads_sets = name in ("report", "trace", "push") or module.startswith("shards.")
            if reads_sets and isinstance(error, ShardSetError):
                raise RunError(error.problems) from error  # the set has problems: the answer, and no wrong command line
            raise

    # Training that cannot read or write a file has failed on the way.
    return run_command(
        run, as_json="--json" in rest, os_error_status=PROBLEMS if module.startswith("trainer.") else COULD_NOT_RUN
    )


def help_text() -> str:
    """Return what `tokenmill --help` prints: every command, in the order of the work."""
    lines = ["usage: tokenmill [--version] COMMAND ...", "", "From a recipe to a trained model.", ""]
    for group, commands in WAY.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<13} {summary}" for name, (_, summary) in commands.items()]
        lines.append("")
    lines.append("`tokenmill COMMAND --help` explains a command; `--help-all` also lists advanced flags.")
    return "\n".join(lines) + "\n\n" + EXAMPLES


_interrupts: list[float] = []
"""When signals interrupted this process, by `time.monotonic`."""

_IMPORT_S = 60.0
"""How long an interrupt waits for the end of an import at most."""
_AGAIN_S = 0.001
"""How soon it is tried again: before a command goes on from the import, or what ignored it, to an answer."""


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Interrupt the program, but not inside an import: that would keep the lock of imports, at which threads wait for
    ever, or leave half of a module; and libraries catch it there, or end the process."""
    # At once: what goes wrong while it waits is its doing, since it may have ended the workers.
    _interrupts.append(time.monotonic())
    while frame is not None:
        if "importlib" in frame.f_code.co_filename and _interrupts[-1] < _interrupts[0] + _IMPORT_S:
            _interrupt_again()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _interrupt_again() -> None:
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _tell_ignored(ignored: sys.UnraisableHookArgs) -> None:
    """Interrupt again if Python ignores it, as in `__del__`; report any other error there as Python does."""
    if ignored.exc_type is KeyboardInterrupt:
        _interrupt_again()
    else:
        sys.__unraisablehook__(ignored)


def find_clashes() -> list[str]:
    """Return why `tokenmill` must not start: a message for each package whose name imports something else.

    The names are generic: other distributions on the package index bring packages of the same names, and installing one
    replaces files of ours. Nothing of the three packages is imported here. Takes 0.5 ms.
    """
    # Compare where each name is found with where this file is, and our own file with what pip recorded.
    root = Path(__file__).resolve().parents[1]
    # Of what pip recorded, the SHA-256 by path; an editable install has none. Not by importlib.metadata, which imports
    # half of `email`: 0.01 s of every command.
    record = "".join(path.read_text("utf-8") for path in root.glob(f"{DISTRIBUTION}-*.dist-info/RECORD"))
    rows = [row for row in csv.reader(record.splitlines()) if len(row) > 1]
    recorded = {row[0]: row[1].removeprefix("sha256=") for row in rows if row[1].startswith("sha256=")}
    messages: list[str] = []
    for name in PACKAGES:
        expected = root / name / "__init__.py"
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        file = f"{name}/__init__.py"
        if found != expected:
            place = "nothing" if spec is None else str(found or f"a folder without {file}")
            messages.append(f"`import {name}` finds {place}; expected {expected}. {REMEDY}")
        elif file in recorded and recorded[file] != _sha256(expected):
            messages.append(f"{expected} is not the file that tokenmill installed. {REMEDY}")
    return messages


def _sha256(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")


def _open_closed_streams() -> None:
    """Open the null device for each standard stream closed before `tokenmill` starts (`>&-`), and for its children.

    Otherwise the next file that is opened would be stdout, and what is printed would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  open to the end
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def run() -> NoReturn:
    """Run `tokenmill` with the command line of this process and end it."""
    _open_closed_streams()
    # Before our packages are imported: another package of the same name must not be.
    if clashes := find_clashes():
        print("\n".join(f"error: {clash}" for clash in clashes), file=sys.stderr)
        sys.exit(COULD_NOT_RUN)
    os.environ["PYTHONSAFEPATH"] = "1"  # processes that this one starts: Python would put the working directory first
    sys.unraisablehook = _tell_ignored
    signal.signal(signal.SIGTERM, _interrupt)  # so that it, too, leaves no worker behind
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by `nohup`
        signal.signal(signal.SIGINT, _interrupt)
    arguments = sys.argv[1:]
    module, _ = COMMANDS.get("".join(arguments[:1]), ("", ""))
    builds = module.startswith("pipeline.")
    if builds or module.startswith("shards."):
        gc.set_threshold(_GC_THRESHOLD)
    if builds:
        # OpenBLAS starts a thread for each core when numpy is loaded, and they spin: 0.1 s of processor time on two
        # cores.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # pydantic looks for plugins in the metadata of every installed distribution.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        exit_status = main(arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:  # what tells of it is not imported yet
        print("error: interrupted", file=sys.stderr)
        exit_status = 128 + signal.SIGINT
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: an interrupt could only hide the exit status
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing waits for an import any more
    # Not after an interrupt: Python then ends itself by SIGINT, if that was in code that a library had made of text.
    if not builds and not _interrupts:
        sys.exit(exit_status)
    with contextlib.suppress(OSError):  # of stderr; what stdout held is written, or was discarded
        sys.stdout.flush()
        sys.stderr.flush()
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # removes the semaphores of the workers
    os._exit(exit_status)  # all is written; sys.exit would wait 0.2 s for the fork server to unload its libraries


if __name__ == "__main__":
    run()
