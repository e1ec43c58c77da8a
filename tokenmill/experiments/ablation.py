"""An ablation from start to end: the sets of its arms, the trainings of its proxies, the answer.

OUT/sets/DIGEST   the set of an arm, deleted when its models are trained
OUT/work          the work folder of all sets: what is equal is done once
OUT/runs/ARM/seed-N-DIGEST
                  the run folder of each training
OUT/trainings     the receipts of the trainings, as a build's work folder has those of its tasks
OUT/tokenizers    the tokenizers of the sets; that of the first arm is shared by the others
OUT/manifests     the manifests of the sets
OUT/looks.json    the answers that were looked at: of each arm, the digests of the trainings compared
OUT/ablation.json the answer; OUT/ablation.html, .png and .svg show it
"""

import json
import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pipeline.builder.build import build_set
from pipeline.clean.functions.modules import check_allowed
from pipeline.engine.driver import Driver
from pipeline.engine.tasks import Task, digest_of, make_task
from pipeline.recipe.paths import RecipePath
from pipeline.recipe.schema import TokenizerRecipe
from shards.config import Settings, load_settings
from shards.errors import InputError
from shards.format.manifest import Manifest, parse_json
from shards.stores.files import lock_folder, make_folder, write_text
from shards.stores.open import open_writable_store
from shards.terminal.display import JsonObject
from tokenmill.experiments.arms import Arm, Experiment, resolve_arms
from tokenmill.experiments.proxy import ProxyResult, ProxyTask, train_proxy
from tokenmill.experiments.schema import AblationConfig

LOOKS_FILE = "looks.json"
_STAGE = "train"
_MOST_ERROR = 0.1
"""Of the difference between the mixes of two arms, the part that an error of a mix may be."""


@dataclass(slots=True)
class Training:
    """The training of an arm with one seed."""

    arm: Arm
    seed: int
    task: Task
    result: ProxyResult = field(default_factory=lambda: ProxyResult(failed="it has not run"))


def list_failed(trainings: Iterable[Training]) -> list[JsonObject]:
    """Return the trainings of an ablation that failed, each with its `arm`, `seed` and `why`."""
    failed = [one for one in trainings if one.result.failed]
    return [{"arm": one.arm.name, "seed": one.seed, "why": one.result.failed} for one in failed]


class _Looks(Settings):
    """The file of an ablation's looks."""

    looks: dict[str, list[str]]
    """For each comparison the digests of the trainings compared, one a look."""


class Ablation:
    """An ablation in its folder."""

    def __init__(self, experiment: Experiment, config: AblationConfig):
        """Resolve and check the arms.

        Raises:
            InputError: a recipe cannot be used; with every fault.
        """
        self.experiment, self.config, self.out = experiment, config, experiment.out
        self.looks: dict[str, int] = {}
        """By arm, how many different answers of it and the first arm have been looked at, this one included."""
        # Trainings are tasks with receipts, in a work folder of their own.
        store = open_writable_store(str(self.out / "trainings"))
        self.driver = Driver(store, experiment.executor, experiment.progress)
        self.arms = resolve_arms(experiment, config, store)
        self.trainings = [Training(arm, seed, self._make_task(arm, seed)) for arm in self.arms for seed in config.seeds]

    def find_pending(self) -> list[Training]:
        """Return the trainings that are not done; nothing runs."""
        _, pending, _ = self.driver.look_up(_STAGE, train_proxy, [one.task for one in self.trainings], None)
        # Trainings of other arms may share a task.
        missing = {task.digest for task in pending}
        return [one for one in self.trainings if one.task.digest in missing]

    def results(self, arm: str) -> list[ProxyResult]:
        """Return the results of an arm's trainings, in the order of the seeds."""
        return [one.result for one in self.trainings if one.arm.name == arm]

    def find_mixes(self) -> list[JsonObject]:
        """Return the mix of each arm: `arm`, `source`, and its shares `requested` and `achieved`.

        Sets are built if they were not yet.

        Raises:
            InputError: a set cannot be built, the folder is in use, or a set misses its mix by more than a tenth of
                what its arm and the first one are apart.
            RunError: a build failed on the way; call again to go on.
        """
        make_folder(self.out)
        with lock_folder(self.out):
            # Before the first of them is built.
            unbuilt = (arm.recipe.sources for arm in self.arms if not self._kept(arm, "manifest").is_file())
            check_allowed(chain.from_iterable(unbuilt))
            mixes = [
                parse_json(Manifest, self._keep(arm, "manifest").read_bytes(), where=f"arm {arm.name}").mix
                for arm in self.arms
            ]
        # An arm with the mix of the first, and the first itself, go by the arm that is nearest to them.
        apart = [
            round(max(abs(a.requested - b.requested) for a, b in zip(mixes[0], mix, strict=False)), 9) for mix in mixes
        ]
        nearest = min(filter(None, apart), default=math.inf)
        found = list(zip(self.arms, mixes, apart, strict=True))
        problems = [
            f"arm {arm.name}: {one.source} is {one.achieved:.2%} of its set, not {one.requested:.2%}. Expected an "
            f"error of at most a tenth of the {own or nearest:.2%} between arms. Documents are never cut: give more "
            "tokens, or arms that are further apart."
            for arm, mix, own in found
            for one in mix
            if abs(one.achieved - one.requested) > (own or nearest) * _MOST_ERROR
        ]
        if problems:
            raise InputError(problems)
        return [
            {"arm": arm.name, **one.model_dump(include={"source", "requested", "achieved"})}
            for arm, mix, _ in found
            for one in mix
        ]

    def run(self) -> None:
        """Build sets and train models as far as they are missing. Each training has its result then.

        Raises:
            InputError: a set cannot be built, or the folder is in use.
            RunError: a build or a training's process failed on the way; call again to go on.
        """
        make_folder(self.out)
        with lock_folder(self.out):
            (self.out / "trainings").mkdir(exist_ok=True)  # other nodes look for it
            # Arms that share a seed may share a training.
            tasks = {one.task.digest: one.task for one in self.trainings}
            stage = self.driver.run_stage(_STAGE, train_proxy, [*tasks.values()], unit="tokens", before=self._build_for)
            for one in self.trainings:
                one.result = stage.results[one.task.digest]
                if one.result.failed:
                    # It has a receipt: without that, the next call tries again.
                    self.driver.work.child(_STAGE).child(one.task.digest).delete_all()
            shutil.rmtree(self.out / "sets", ignore_errors=True)

    def count_looks(self) -> None:
        """Count this answer's look at each arm, and keep it. Equal trainings are one look, and one seed is none.

        Raises:
            OSError: the file cannot be written.
            InputError: it cannot be read, or is damaged.
        """
        file, base = self.out / LOOKS_FILE, self.arms[0].name
        kept = load_settings(_Looks, file).looks if file.exists() else {}
        for arm in self.arms[1:] if len(self.config.seeds) > 1 else ():
            compared = digest_of(sorted(one.task.digest for one in self.trainings if one.arm.name in (base, arm.name)))
            seen = kept.setdefault(f"{arm.name} minus {base}", [])
            if compared not in seen:
                seen.append(compared)
            self.looks[arm.name] = len(seen)
        write_text(file, json.dumps({"looks": kept}, indent=2) + "\n")

    def results_folder(self, training: Training) -> Path:
        """Return the folder of a training's result: its metrics and recipe, as in a run folder."""
        return self.out / "trainings" / _STAGE / training.task.digest / training.result.folder

    def _set_folder(self, arm: Arm) -> Path:
        """Return the folder of an arm's set; arms with equal sets share it."""
        return self.out / "sets" / arm.data

    def _make_task(self, arm: Arm, seed: int) -> Task:
        recipe = arm.train.with_values(train=arm.train.train.with_values(seed=seed))
        payload = ProxyTask(
            data=arm.data,
            evals=arm.evals,
            recipe=recipe.model_dump(mode="json"),
            threads=self.config.threads,
            shards=str(self._set_folder(arm)),
            run=str(self.out / "runs" / arm.name / f"seed-{seed}"),
        )
        return make_task(payload, arm.tokens, f"{arm.name} seed {seed}")

    def _build_for(self, pending: list[Task]) -> None:
        """Build the sets that trainings need."""
        missing = {task.digest for task in pending}
        wanted = {one.arm.data for one in self.trainings if one.task.digest in missing}
        for arm in self.arms:
            # The first arm with a set stands for all with it: its tokenizer is its own.
            if arm.data in wanted:
                wanted.remove(arm.data)
                self._build(arm)

    def _build(self, arm: Arm) -> None:
        """Build an arm's set unless it is there, with the first arm's tokenizer or its own."""
        folder = self._set_folder(arm)
        # Arms without a tokenizer of their own share that of the first.
        recipe = arm.recipe
        if not arm.own_tokenizer and recipe.tokenizer.file is None:
            file = RecipePath(str(self._keep(self.arms[0], "tokenizer")))
            given = TokenizerRecipe(file=file, eos_token=recipe.tokenizer.eos_token, bos=recipe.tokenizer.bos)
            recipe = recipe.with_values(tokenizer=given)
        self.experiment.progress.note(f"arm {arm.name}: its set in {folder}")
        try:
            build_set(
                recipe,
                out=folder,
                work=self.out / "work",
                executor=self.experiment.executor,
                progress=True,
                allow_code=self.experiment.allow_code,
            )
        except InputError as error:
            raise InputError([f"arm {arm.name}: {problem}" for problem in error.problems]) from error
        for name in ("tokenizer", "manifest"):
            kept = self._kept(arm, name)
            kept.parent.mkdir(exist_ok=True)
            write_text(kept, (folder / f"{name}.json").read_text())

    def _kept(self, arm: Arm, name: str) -> Path:
        return self.out / f"{name}s" / f"{arm.data}.json"

    def _keep(self, arm: Arm, name: str) -> Path:
        """Return the copy of a file of an arm's set; build the set if it is missing."""
        file = self._kept(arm, name)
        if not file.is_file():
            self._build(arm)
        return file
