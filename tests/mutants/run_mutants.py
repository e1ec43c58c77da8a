"""Break the product on purpose, one place at a time, and see that the tests named beside each break turn red.

    python -m tests.mutants.run_mutants [NAME ...] [--check]

Each `AREA.toml` in this folder holds mutants of one part of the product: the file, the text to find in it (exactly
once), what takes its place, and the tests that must fail. The file is restored after each mutant, also after Ctrl-C.
`--check` runs no test: it only fails if a text is no longer found. A mutant that no test catches is printed, and the
exit status is 1. A mutant takes some seconds, so this is a tool for those who change tests, and no part of `make test`.
"""

import argparse
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 300
"""How long the tests of a mutant may take: a mutant that makes them hang counts as caught."""


@dataclass(frozen=True)
class Mutant:
    """One break: `find` occurs once in `file`, and `tests` (arguments of pytest) fail while `replace` stands there."""

    area: str
    name: str
    file: str
    find: str
    replace: str
    tests: list[str]

    def broken(self) -> str:
        """Return the text of the file with the break.

        Raises:
            ValueError: the text to find does not occur exactly once.
        """
        text = (ROOT / self.file).read_text()
        found = text.count(self.find)
        if found != 1 or self.find == self.replace:
            raise ValueError(f"{self.area}/{self.name}: {found} places in {self.file} instead of 1: {self.find!r}")
        return text.replace(self.find, self.replace)


def list_mutants() -> list[Mutant]:
    """Return the mutants of every area, in the order of the files."""
    return [
        Mutant(area=path.stem, name=name, **values)
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for name, values in tomllib.loads(path.read_text()).items()
    ]


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Keep the break in the file for the length of a block."""
    path = ROOT / mutant.file
    whole = path.read_text()
    path.write_text(mutant.broken())
    try:
        yield
    finally:
        path.write_text(whole)


def is_caught(mutant: Mutant) -> bool:
    """Return whether a test fails with the break. An error of the command line (a test that is gone) does not count."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests]
    with applied(mutant):
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return True
    if done.returncode not in (0, 1):
        print(done.stdout[-2000:] + done.stderr[-2000:])
    return done.returncode == 1


def main() -> int:
    """Run the mutants that the command line chooses; return 1 if one is not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    chosen = [one for one in list_mutants() if not arguments.names or one.name in arguments.names]
    missed: list[str] = []
    for mutant in chosen:
        mutant.broken()
        if arguments.check:
            continue
        start = time.monotonic()
        caught = is_caught(mutant)
        seconds = time.monotonic() - start
        print(f"{'caught' if caught else 'MISSED'}  {mutant.area}/{mutant.name}  {seconds:.0f} s", flush=True)
        if not caught:
            missed.append(mutant.name)
    print(f"{len(chosen)} mutants, {len(missed)} not caught" + "".join(f"\n  {name}" for name in missed))
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
