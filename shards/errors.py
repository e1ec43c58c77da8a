"""The errors of the three packages, and the problems of a shard set: one `Problem` for each fault.

Kinds are stable words that programs may switch on; messages are for people. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

ProblemKind = Literal[
    "manifest_missing",  # no manifest.json: the build did not finish, or this is not a shard set
    "manifest_invalid",  # not JSON, or keys and types that FORMAT.md does not allow
    "format_unknown",  # `format` is not "tokenmill"
    "version_unknown",  # `format_version` is one this reader does not know
    "path_unsafe",  # a file name that is not a plain name in the set's own folder
    "file_missing",  # the manifest names it, the folder lacks it
    "file_unreadable",  # it is there, but cannot be opened, or is not a regular file
    "file_foreign",  # the folder holds it, the manifest does not name it
    "file_size",  # bytes on disk differ from the manifest
    "file_checksum",  # sha256 of the file differs from the manifest
    "sidecar_mismatch",  # a shard's own metadata disagrees with the manifest
    "totals_mismatch",  # sums over shards, splits or sources do not add up
    "dtype_mismatch",  # dtype does not fit the vocabulary, or the tokens file's size
    "tokenizer_mismatch",  # tokenizer.json disagrees with vocab_size, eos_id or special_tokens
    "seek_table",  # the seek table is absent, malformed or disagrees with the file
    "frame_corrupt",  # a frame does not decompress to what the seek table says
    "tokens_checksum",  # sha256 of the decompressed tokens differs
    "token_out_of_range",  # an id >= vocab_size
    "eos_misplaced",  # EOS absent at a document's end, or present inside one
    "document_table",  # unreadable, wrong columns, or not contiguous
    "source_sum",  # a source's tokens or documents differ from the document table
    "mix_share",  # a source is further than one document from its share
    "split_leak",  # the same document in train and val
    "document_repeated",  # the same document more often than its source's epochs allow
    "source_mismatch",  # a document re-read from its source is not what the shard holds
]

PROBLEM_KINDS: tuple[str, ...] = get_args(ProblemKind)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. `where` is a file of the set, or a place in it such as `train-00000 document 7`."""

    kind: ProblemKind
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.kind}]"

    def to_dict(self) -> dict[str, str]:
        """Return the problem as the JSON object that `validate --json` prints."""
        return asdict(self)


class TokenmillError(Exception):
    """Base of every error that is told to a person without a traceback.

    TokenmillError
    ├── InputError      what was given cannot be used: a recipe, data, a shard set, a flag, the machine. Exit status 2
    │   └── ShardSetError   the shard set has problems
    └── RunError        the work began and failed on the way. Exit status 1

    Every other error of the three packages is one of these two.
    """

    exit_status = 2

    def __init__(self, problems: str | Sequence[str | Problem]):
        """Keep one entry for each fault: its place, what was found, what was expected, and the remedy."""
        super().__init__(problems)
        self.problems: Sequence[str | Problem] = [problems] if isinstance(problems, str) else problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class InputError(TokenmillError, ValueError):
    """What was given cannot be used, found before any work is done or lost. Exit status 2."""


class RunError(TokenmillError, RuntimeError):
    """Work that began and could not go on; the message says what is kept and how to go on. Exit status 1."""

    exit_status = 1


class ShardSetError(InputError):
    """A shard set that cannot be used. Carries every problem found, not just the first."""

    problems: list[Problem]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, problems: list[Problem]):
        super().__init__(problems)
