"""A build as its stages fill it in, and as its work folder keeps it for `clean-report` and `trace --hash`.

The stored form names tasks by digest, so a work folder may be moved. The recipe's paths begin at the root. It is
written when the set is mixed, and again when the set is published: a mix whose alarm stopped the build is there, too.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipeline.clean.tally import Tally
from pipeline.encode.encode import EncodeResult
from pipeline.encode.run import CONNECTIONS, Run
from pipeline.engine.checksums import seal
from pipeline.engine.receipts import TaskOutput, WorkFileDamagedError, read_sealed
from pipeline.engine.tasks import last_part
from pipeline.recipe.schema import Recipe
from pipeline.tokenizer.chat_tokens import write_chat_tokens
from pipeline.tokenizer.given_tokenizer import TokenizerInfo
from pipeline.tokenizer.train import TOKENIZER_FILE
from shards.errors import InputError, RunError, unread
from shards.format.vocabulary import MAX_TOKENIZER_BYTES
from shards.stores.files import read_file
from shards.stores.open import open_store
from shards.stores.store import WritableStore
from shards.terminal.display import JsonObject
from shards.terminal.workers import map_in_threads

BUILD_FILE = "last-build.json"
"""The stored build, in the work folder."""


@dataclass
class Build:
    """A build: its work folder, its recipe, and what its stages have made."""

    work: WritableStore
    recipe: Recipe = field(repr=False)
    tokenizer: TokenizerInfo = field(init=False)
    evaluations: WritableStore | None = field(init=False, default=None)
    """The folder of the task that read the evaluation sets; None if the recipe names none."""
    runs: list[Run] = field(init=False, default_factory=list[Run])
    """The runs in the order of the units, which is that of the mix."""
    has_more: tuple[bool, ...] = field(init=False, default=())
    """For each source, whether parts of it were not read."""
    mix: WritableStore = field(init=False)
    """The folder of the mix task."""
    manifest: str | None = field(init=False, default=None)
    """SHA-256 of the manifest of the set; None if the build stopped before."""

    def store(self) -> None:
        """Keep the build in its work folder, unless what is stored there says the same."""
        # The address of a trained tokenizer is known from its task, the address of a given one is a path.
        stored = {
            "recipe": json.loads(self.recipe.to_json(as_written=False)),
            "tokenizer": asdict(self.tokenizer) | {"text": "", "task": last_part(self.tokenizer.task)},
            "evaluations": last_part(self.evaluations),
            "runs": [[run.digest, run.source, run.dtype] for run in self.runs],
            "has_more": self.has_more,
            "mix": last_part(self.mix),
            "manifest": self.manifest,
        }
        # Written only if it is news, so that a build that does nothing writes nothing.
        try:
            known: JsonObject = read_sealed(self.work, BUILD_FILE) or {}
        except WorkFileDamagedError:
            known = {}  # then it is written again
        if self.manifest is None and known.get("mix") == stored["mix"]:
            stored["manifest"] = known.get("manifest")  # of the set that this very mix has made
        if json.loads(json.dumps(stored)) != known:
            self.work.put(BUILD_FILE, seal(stored))

    def read_tallies(self) -> list[Tally]:
        """Return what cleaning did before encoding, of each source.

        Raises:
            WorkFileDamagedError: a run's receipt is not as it was written.
        """

        def read(run: Run) -> Tally:
            return TaskOutput(open_store(run.place), EncodeResult).result.tally

        found = map_in_threads(read, self.runs, CONNECTIONS)
        return [
            Tally.sum(tally for run, tally in zip(self.runs, found, strict=True) if run.source == source)
            for source in range(len(self.recipe.sources))
        ]

    def read_tokenizer(self) -> bytes:
        """Return the bytes of the `tokenizer.json` of the runs, with the special tokens of their conversations.

        Raises:
            InputError: the recipe's file is gone.
        """
        if self.tokenizer.task is not None:
            folder = self.work.child("tokenizer").child(self.tokenizer.task.rpartition("/")[2])
            return bytes(TaskOutput(folder).read(TOKENIZER_FILE))
        try:
            content = read_file(Path(self.tokenizer.path), MAX_TOKENIZER_BYTES)
        except OSError as error:
            remedy = f"It is the tokenizer of the sorted runs in {self.work}; restore it, or build again."
            raise InputError(f"{self.tokenizer.path}: {unread(error, remedy)}") from error
        return write_chat_tokens(content, self.tokenizer.added)


def read_build(work: WritableStore) -> Build:
    """Return the stored build of a work folder: the last one that has mixed.

    Raises:
        InputError: the folder holds none that this version understands.
        WorkFileDamagedError: the stored build is not as it was written.
    """
    stored = read_sealed(work, BUILD_FILE)
    if stored is None:
        found = "no build here has reached the mix"
        if next(work.list(), None) is None:
            found = "is empty" if work.folder is None or work.folder.is_dir() else "no such folder"
        raise InputError(
            f"{work}: {found}. Give the work folder of a build (--work), by default OUT.work. If a step before "
            "encoding stopped the build, set its max_dropped = 1.0, and build again. If an earlier version of "
            "tokenmill made the folder, run the same build command again."
        )
    # Digests become addresses in the folder where the work is now.
    try:
        build = Build(work, Recipe.model_validate(stored["recipe"]))
        build.tokenizer = TokenizerInfo(**stored["tokenizer"])
        if stored["evaluations"] is not None:
            build.evaluations = work.child("evaluations").child(stored["evaluations"])
        encode = work.child("encode")
        build.runs = [Run(str(encode.child(digest)), source, dtype) for digest, source, dtype in stored["runs"]]
        build.has_more = tuple(stored["has_more"])
        build.mix = work.child("mix").child(stored["mix"])
        build.manifest = stored["manifest"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{work}/{BUILD_FILE}: {type(error).__name__}: {error}. Run the same build command again: it "
            "writes this file again."
        ) from error
    return build


@contextmanager
def stored_build_errors() -> Generator[None]:
    """Say that a build makes again what is damaged in a work folder, if the command that found the damage cannot.

    Raises:
        RunError: in the place of a WorkFileDamagedError.
    """
    try:
        yield
    except WorkFileDamagedError as error:
        raise RunError(
            f"{error.where}: {error.reason}. Run the build command again: it rebuilds what is missing or damaged."
        ) from error
