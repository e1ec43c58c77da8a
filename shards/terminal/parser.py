"""A parser of command lines whose refusals are those of other bad input: one sentence, without the usage."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from shards.errors import InputError
from shards.terminal.gone import did_you_mean

_FAULTS = {
    r"the following arguments are required: (.*)": "missing: {0}",
    r"one of the arguments (.*) is required": "missing: one of {0}",
    r"unrecognized arguments: (.*)": "unknown: {0}",
    r"ambiguous option: (\S+) could match (.*)": "{0}: could be {1}. Write the whole name",
    r"argument (.+?): expected (?:one|at least one|\d+) arguments?": "{0}: its value is missing",
    r"argument (.+?): ignored explicit argument (.*)": "{0}: takes no value, got {1}",
    r"argument (.+?): not allowed with argument (.*)": "{0}: cannot be given with {1}. Leave one of them out",
    r"argument (.+?): invalid choice: (.*) \(choose from (.*)\)": "{0}: expected one of {2}; got {1}",
    r"argument (.+?): (.*)": "{0}: {1}",
}
"""argparse's messages, and ours; the last one is of a flag's type, which says itself what it expects."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `InputError`, for `run_command` to tell."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]  the overloads of typeshed
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse a command line, and refuse what is left: here the command is known, whose flags may be meant."""
        options, left = super().parse_known_args(args, namespace)
        if left:
            flags = [flag for action in self._actions for flag in action.option_strings]
            # Only words that look like flags are compared with flags.
            given = [word.partition("=")[0] for word in left if word.startswith("-")]
            hints = "".join(did_you_mean(word, flags) for word in given)
            self.error(f"unrecognized arguments: {' '.join(left)}{hints and '.'}{hints}")
        return options, left

    def error(self, message: str) -> NoReturn:
        """Refuse a command line.

        Raises:
            InputError: always, with argparse's message in our words.
        """
        # argparse has no hook for its messages: they are recognised by their words.
        for pattern, words in _FAULTS.items():
            if found := re.fullmatch(pattern, message, re.DOTALL):
                message = words.format(*found.groups())
                if choices := re.fullmatch(r".*expected one of (.*); got '(.*)'", message):
                    hint = did_you_mean(choices[2], re.findall(r"[\w-]+", choices[1]))
                    message += hint and f".{hint}"
                break
        end = "" if message.endswith(("?", ".")) else "."
        raise InputError(f"{message}{end} `{self.prog} --help` explains the arguments.")
