"""What can stop a command: bad input before the work (exit 2) or a failure during it (exit 1).

TrainerError
├── InputError   the run could not start; carries every problem found
└── RunError     the run started and failed; says what is left and how to go on
"""

from __future__ import annotations


class TrainerError(Exception):
    """Anything the trainer reports to its user without a traceback."""


class InputError(TrainerError, ValueError):
    """Input that cannot be used: a recipe, a shard set, a checkpoint or an option.

    Attributes:
        problems: one message per fault, each naming its place, what was found and what was expected.
    """

    def __init__(self, problems: str | list[str]):
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(self.problems))


class RunError(TrainerError, RuntimeError):
    """A run that started and could not go on."""
