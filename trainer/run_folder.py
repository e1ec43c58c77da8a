"""The small files of a run folder, by name.

RUN/recipe.json      the resolved recipe
RUN/run.json         the set that the run is trained on, where it began, what was changed and passed later
RUN/tokenizer.json   a copy of the set's
RUN/metrics.jsonl    `trainer.metrics`
RUN/checkpoints/     `trainer.checkpoint`
RUN/samples/         JSON lines of texts drawn at milestones and the ends of phases
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from shards import ShardSet, open_set
from shards.config import Settings, in_form, load_settings
from shards.errors import InputError
from shards.stores.files import read_file, write_text
from shards.stores.open import Place
from shards.stores.parse import HALF, load_json
from shards.terminal.arguments import parse_place

RECIPE_FILE = "recipe.json"
TOKENIZER_FILE = "tokenizer.json"
RUN_FILE = "run.json"


Gate = Literal["goal", "budget", "pause"]
"""What may stop a run in a phase: a missed goal, a spent budget, a pause."""
PassedGate = Annotated[tuple[str, Gate], Field(strict=False)]
ProcessStart = Annotated[tuple[float, float], Field(strict=False)]


MAX_SAMPLES_BYTES = 1 << 26
"""A larger file of samples is refused."""


class RecipeChange(Settings):
    """Keys of a run's recipe that changed when it was resumed, or began from another run."""

    after_step: Annotated[int, Field(ge=1, le=1 << 53)]
    """The last step that had the values before."""
    keys: dict[str, Annotated[list[Any], Field(min_length=2, max_length=2)]]
    """By its dotted key, the value before, and the one from the next step on; null: the recipe has no such key."""


class RunRecord(Settings):
    """`run.json`: what a run's recipe does not say."""

    shards: Annotated[str, in_form("[^\0]{1,4095}", "the folder or the address of a set")]
    """The folder of the set that it is trained on, absolute, or its address in a remote store; it may have moved."""
    manifest_sha256: str
    start: str | None = None
    """The folder of the checkpoint of another run that it began from, absolute; it may be gone. None: from step 0."""
    weights: str | None = None
    """The run, or the folder of transformers, whose weights it began with, absolute; None: with its own."""
    weights_sha256: str | None = None
    """Of the files that had them, one after the other."""
    changes: list[RecipeChange] = []
    """In the order of steps."""
    parameters: NonNegativeInt = 0
    """Of its model."""
    passed: list[PassedGate] = []
    """The phases, with what stood there, that `--go-on` has passed."""
    processes: list[ProcessStart] = []
    """When each process of the run began, in seconds since 1970, and how many seconds the run had taken by then."""

    @property
    def idle_seconds(self) -> float:
        """The time between the beginnings of the first and the last process in which no step was taken."""
        if not self.processes:
            return 0.0
        (began, before), (last, taken) = self.processes[0], self.processes[-1]
        return max(0.0, last - began - (taken - before))


def check_run_folder(run: Path) -> None:
    """Refuse a folder that is not a run's, has no place for samples, or whose name is not UTF-8.

    A run has its record, metrics or checkpoints; `recipe.json` and `tokenizer.json` are in sets, too. A scheduler may
    have written logs before.

    Raises:
        InputError: it is refused.
    """
    if HALF.search(str(run)):
        raise InputError(f"--run {str(run)!r}: not UTF-8, so no checkpoint in it could be read. Choose another.")
    names = {path.name for path in run.glob("[!.]*") if path.suffix not in (".log", ".out", ".err")}
    if names and not names & {RUN_FILE, "metrics.jsonl", "checkpoints"}:
        raise InputError(f"{run}: holds {min(names)!r}, and no training run. Give --run a folder of its own.")
    if "samples" in names and not (run / "samples").is_dir():
        raise InputError(f"{run / 'samples'}: a file, or a link to nothing; expected a folder. Remove it.")


def find_run_record(run: Path) -> RunRecord | None:
    """Read the record in a run's folder; None if it has none.

    Raises:
        InputError: the file is not such a record.
    """
    file = run / RUN_FILE
    try:
        return load_settings(RunRecord, file) if file.exists() else None
    except InputError as error:
        remedy = "Restore it, or delete it to resume without: the run then forgets where it began and what was changed."
        raise InputError([*error.problems, f"{file}: {remedy}"]) from error


def sample_file(run: Path, step: int) -> Path:
    """Return the path of the texts that a run draws after a step."""
    return run / "samples" / f"step-{step:08d}.jsonl"


def read_samples(run: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the texts that a run has drawn, by step in order: each has its `prompt` and `text`.

    Raises:
        InputError: a file is not of such texts.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(sample_file(run, 0).parent.glob("step-*.jsonl")):
        try:
            lines = [load_json(line) for line in read_file(path, MAX_SAMPLES_BYTES).splitlines()]
            found[int(path.stem[5:])] = [{key: str(line[key]) for key in ("prompt", "text")} for line in lines]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path}: is not what `train` writes. Delete it.") from error
    return found


def update_run_record(run: Path, **changes: Any) -> None:
    """Change some fields of the record in the folder of a run that is at work."""
    record = read_run_record(run).with_values(**changes)
    write_text(run / RUN_FILE, record.to_json())


def read_run_record(run: Path) -> RunRecord:
    """Read the record in a run's folder.

    Raises:
        InputError: the file is missing, or is not such a record.
    """
    record = find_run_record(run)
    if record is None:
        raise InputError(f"{run / RUN_FILE}: is missing. Expected the whole folder of a training run.")
    return record


def find_training_set(run: Path) -> Place:
    """Return the place of the set that a run was trained on.

    Raises:
        InputError: the run does not say, or the set is no longer there.
    """
    place = parse_place(read_run_record(run).shards)
    if isinstance(place, Path) and not place.is_dir():
        raise InputError(f"{run}: was trained on {place}, which is not there. Add --shards SET.")
    return place


def open_training_set(run: Path, place: Place | None = None) -> ShardSet:
    """Open the set that a run was trained on, at its current place; where the run says if None.

    Raises:
        InputError: the set cannot be found or read, or is another one.
    """
    place = place or find_training_set(run)
    shard_set, sha256 = open_set(place), read_run_record(run).manifest_sha256
    if sha256 != shard_set.manifest_sha256:
        raise InputError(
            f"{place}: has the manifest sha256 {shard_set.manifest_sha256}; the run was trained on {sha256}. Give the "
            "set it was trained on with --shards."
        )
    return shard_set
