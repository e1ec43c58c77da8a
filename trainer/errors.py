"""What can stop a command and is told without a traceback: bad input (exit 2) or a failure of the work (exit 1)."""

from __future__ import annotations


class InputError(ValueError):
    """Input that cannot be used, before anything is done: a recipe, a shard set, a checkpoint or an option.

    Attributes:
        problems: one message per fault, each naming its place, what was found and what was expected.
    """

    def __init__(self, problems: str | list[str]):
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(self.problems))


class RunError(RuntimeError):
    """A run that started and could not go on; says what is left and how to go on."""
