"""`tokenmill COMMAND`: find the package that has the command, and run it there.

Only the package of the command that was called is imported. The working directory is not on the path of this program
nor of the processes it starts, so a person's own `pipeline/` or `shards.py` is never imported.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import NoReturn

COULD_NOT_RUN = 2

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
    # From here on our packages are imported: another package of the same name must not be.
    from tokenmill.clash import find_clashes

    if clashes := find_clashes():
        print("\n".join(f"error: {clash}" for clash in clashes), file=sys.stderr)
        return COULD_NOT_RUN
    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text(), end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else COULD_NOT_RUN
    from shards.terminal.command_names import COMMANDS, commands_of
    from shards.terminal.gone import did_you_mean

    name, *rest = arguments
    if name not in COMMANDS:
        hint = did_you_mean(name, [*COMMANDS]) or " `tokenmill --help` lists the commands."
        print(f"error: no command {name!r}.{hint}", file=sys.stderr)
        return COULD_NOT_RUN
    module, _ = COMMANDS[name]
    package = module.partition(".")[0]
    if package == "tokenmill":
        return run_own(arguments)
    own_name = next(own for own, (named, _) in commands_of(package).items() if named == module)
    return importlib.import_module(f"{package}.__main__").run_process([own_name, *rest])


def run_own(arguments: list[str]) -> int:
    """Run a command that needs both the pipeline and the trainer, and return its exit status."""
    from shards.terminal.exit_status import run_command
    from shards.terminal.program import build_parser, run_called

    signal.signal(signal.SIGTERM, _interrupt)
    return run_command(
        lambda: run_called(build_parser("tokenmill", "Experiments on data.", arguments), arguments),
        as_json="--json" in arguments,
        interrupted="interrupted; finished work is kept. Run the same command again to resume.",
    )


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def help_text() -> str:
    """Return what `tokenmill --help` prints: every command, in the order of the work."""
    from shards.terminal.command_names import WAY

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
