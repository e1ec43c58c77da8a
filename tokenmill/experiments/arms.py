"""The arms of an ablation: their recipes, resolved and checked, and the digest that tells their sets apart."""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.engine.executors import Executor
from pipeline.engine.stage_progress import Progress
from pipeline.engine.tasks import digest_of
from pipeline.recipe.schema import Recipe
from pipeline.sources.files import list_files
from pipeline.sources.hub import pin_revisions
from shards.config import Changes, table_of
from shards.errors import InputError, plural
from shards.format.manifest import MANIFEST_FILE
from shards.stores.files import hash_file
from shards.stores.store import WritableStore
from tokenmill.experiments.proxy import scored_keys
from tokenmill.experiments.schema import AblationConfig, ArmConfig, flatten_keys
from trainer.recipe import TrainRecipe, load_train_recipe
from trainer.recipe.eval_config import EVAL_GLOB_KEYS, EVAL_PATH_KEYS

_VALIDATION_PART, _VALIDATION_TOKENS = 0.02, 20_000
"""Of the tokens of a training; at least as many tokens: enough for a document of most corpora."""


@dataclass(frozen=True)
class Experiment:
    """What an experiment is called with."""

    file: Path
    """The file of the experiment, at whose folder paths begin."""
    out: Path
    """The folder for all that it makes; absolute."""
    executor: Executor
    """Where builds and trainings run."""
    progress: Progress
    """Shows them."""
    allow_code: bool
    """Whether functions of its recipes may run."""

    def locate_recipe(self, given: str) -> Path:
        """Return the path of a recipe that the experiment's file names, or the name of a shipped one as it is."""
        path = Path(given)
        if not path.suffix and path.name == given and not (self.file.parent / path).is_file():
            return path
        return Path(os.path.normpath(self.file.parent / path))


@dataclass(frozen=True)
class Arm:
    """One alternative of an ablation, with its recipes as they are run."""

    name: str
    recipe: Recipe
    """The data recipe; its set has no more tokens than the training takes."""
    train: TrainRecipe
    """The train recipe; its seed is replaced by each of the ablation's."""
    own_tokenizer: bool
    """Whether its set has a tokenizer of its own, and not that of the first arm."""
    data: str
    """A digest of all that decides the bytes of its set: its recipe, and the source files as they are listed."""
    evals: str
    """A digest of the local files of its eval sets and tasks as they are listed."""

    @property
    def tokens(self) -> int:
        """Tokens that each model of the arm is trained on."""
        return self.train.train.tokens


def resolve_arms(experiment: Experiment, ablation: AblationConfig, work: WritableStore) -> list[Arm]:
    """Resolve and check the arms of an ablation.

    Args:
        experiment: what it is called with.
        ablation: what its file says.
        work: keeps the commits of sources on the Hub.

    Raises:
        InputError: a recipe cannot be used, with every fault of all arms; or two arms do not differ.
    """
    file = experiment.file
    arms: list[Arm] = []
    problems: list[str] = []
    for config in ablation.arms:
        try:
            arms.append(_resolve(experiment, ablation, config, arms, work))
        except InputError as error:
            problems += [f"{file}: arms.{config.name}: {problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    # Every arm takes the scores, and no two train the same models on the same bytes.
    problems = [
        f"{file}: scores: {score!r}: arm {arm.name!r} does not compute it. Expected one of: {', '.join(known)}."
        for arm in arms
        for score in ablation.scores
        if score not in (known := arm.train.eval.score_names)
    ]
    seen: dict[Any, str] = {}
    for arm in arms:
        key = (arm.data, arm.evals, digest_of(scored_keys(arm.train.model_dump(mode="json"))))
        if seen.setdefault(key, arm.name) != arm.name:
            problems.append(
                f"{file}: arms.{arm.name}: does not differ from arm {seen[key]!r}: the same text and model. "
                "Change a key that counts, or remove the arm."
            )
    if problems:
        raise InputError(problems)
    return arms


def _resolve(
    experiment: Experiment, ablation: AblationConfig, arm: ArmConfig, earlier: Sequence[Arm], work: WritableStore
) -> Arm:
    # The train recipe first, since it says how many tokens the set needs.
    train = load_train_recipe(experiment.locate_recipe(ablation.train), changes=list_changes("train", arm))
    train = _make_proxy(train, ablation)
    tokens = train.train.tokens
    recipe = load_checked_recipe(
        experiment.locate_recipe(ablation.data),
        changes=list_changes("data", arm),
        progress=experiment.progress,
        allow_code=experiment.allow_code,
    )
    if recipe.chat is not None:
        train = train.with_values(train=train.train.with_values(rows="packed"))
    # The set is as small as the training allows.
    if ablation.tokens is not None and "tokens" not in table_of(arm.data.get("mix")):
        recipe = _shrink(recipe, tokens, train.train.seq_len)
    if "split" not in arm.data:
        recipe = _shrink_validation(recipe, tokens)
    if recipe.mix.tokens != "max" and recipe.mix.tokens < tokens:
        experiment.progress.note(
            f"arm {arm.name}: trains on {plural(tokens, 'token')}, and mix.tokens = {recipe.mix.tokens:,} of its data "
            f"recipe: each is read {tokens / recipe.mix.tokens:.1f} times"
        )
    recipe = pin_revisions(recipe, work)
    own_tokenizer = not earlier or "tokenizer" in arm.data
    # Listing the files of equal recipes once is enough.
    equal = next((other for other in earlier if other.recipe == recipe), None)
    data = equal.data if equal else _digest_data(recipe, None if own_tokenizer else earlier[0])
    return Arm(arm.name, recipe, train, own_tokenizer, data, _digest_eval_files(train))


def _digest_data(recipe: Recipe, tokenizer_of: Arm | None) -> str:
    """Return the digest of what decides the bytes of an arm's set: the recipe, the files, whose tokenizer it has."""
    tables = recipe.model_dump(mode="json")
    if tokenizer_of is not None:
        tables["tokenizer"] = tokenizer_of.data
    files = {
        source.name: [[file.name, file.stored_bytes, file.version] for file in list_files(source)]
        for source in recipe.sources
    }
    return digest_of([tables, files])


def list_changes(kind: str, arm: ArmConfig) -> Changes:
    """Return the keys of a recipe that an arm changes, each as it is written, in parts, and with its value."""
    return [(".".join((kind, *key)), key, value) for key, value in flatten_keys(getattr(arm, kind))]


def _make_proxy(recipe: TrainRecipe, ablation: AblationConfig) -> TrainRecipe:
    """Return a train recipe for the arms of an ablation: no off-ramps, no prompts, and its tokens in whole steps.

    Raises:
        InputError: the tokens are less than one step, or there are no scores to compare.
    """
    train = recipe.train
    if ablation.tokens is not None:
        step = train.global_batch * train.seq_len
        if ablation.tokens < step:
            raise InputError(
                f"tokens = {ablation.tokens:,}: one step takes {step:,} (global_batch * seq_len). Give more."
            )
        train = train.with_values(steps=ablation.tokens // step)
        if faults := list(recipe.with_values(train=train, phases=[]).rules()):
            raise InputError([f"tokens = {ablation.tokens:,}: {fault}" for fault in faults])
    if not recipe.eval.sets and not recipe.eval.tasks:
        raise InputError(
            "the train recipe has no [[eval.sets]] and no [[eval.tasks]]: the validation splits of two arms hold other "
            "text, so only those compare. Add one to the train recipe."
        )
    shown = recipe.eval.with_values(prompts=[])
    return recipe.with_values(train=train, eval=shown, phases=[])


def _shrink(recipe: Recipe, tokens: int, seq_len: int) -> Recipe:
    """Return an arm's data recipe for a set just large enough for a training: what windows leave out, too."""
    shards = tokens // recipe.shards.tokens + 1 + len(recipe.mix.phases)
    needed = tokens + 2 * (seq_len + 1) * shards
    if recipe.mix.tokens != "max" and recipe.mix.tokens <= needed:
        return recipe
    return recipe.with_values(mix=recipe.mix.with_values(tokens=needed))


def _shrink_validation(recipe: Recipe, tokens: int) -> Recipe:
    """Return an arm's data recipe with a small validation split, as trainings ask for: it takes the first documents of
    a source, by its weight.

    With a large one, arms with other weights would train on other documents of the same source.
    """
    most = max(int(tokens * _VALIDATION_PART), _VALIDATION_TOKENS)
    split = recipe.split.with_values(val_tokens=min(recipe.split.val_tokens or most, most))
    return recipe.with_values(split=split)


def _digest_eval_files(recipe: TrainRecipe) -> str:
    """Return a digest of the local files of an arm's eval sets and tasks: content, or a set's manifest; no addresses.

    Raises:
        InputError: a path of an eval set or task matches no file.
    """
    problems: list[str] = []
    found: set[str] = set()
    for kind, tables in (("sets", recipe.eval.sets), ("tasks", recipe.eval.tasks)):
        for table in tables:
            values = table.model_dump()
            for key in EVAL_PATH_KEYS:
                given: Any = values.get(key) or []
                names = [given] if isinstance(given, str) else cast("list[str]", given)
                local = [name for name in names if "://" not in name]
                patterns = local if key in EVAL_GLOB_KEYS else map(glob.escape, local)
                paths = [path for pattern in patterns for path in glob.glob(pattern, recursive=True)]
                found.update(paths)
                if local and not paths and key != "exclude":
                    problems.append(f"eval.{kind}.{table.name}.{key}: matches no file. Correct the path.")
    if problems:
        raise InputError(problems)
    contents = (os.path.join(path, MANIFEST_FILE) if os.path.isdir(path) else path for path in sorted(found))
    return digest_of([hash_file(Path(path)) for path in contents if os.path.isfile(path)])
