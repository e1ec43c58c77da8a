"""What can be wrong with a shard set: one `Problem` per fault, and the error that carries all of them.

Kinds are stable words that programs may switch on; messages are for people. Nothing here reads a file.
"""

from __future__ import annotations

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


class ShardSetError(ValueError):
    """A shard set that cannot be used. Carries every problem found, not just the first."""

    def __init__(self, problems: list[Problem]):
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)
