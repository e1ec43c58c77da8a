"""A mix search from start to end: rounds of arms, the fit of their scores, and the winner beside the recipe's own mix.

The arms of all rounds are those of ablations in one folder: what is done stays done, and a search that is called again
goes on. `tokenmill.experiments.ablation` lists the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.engine.executors import Executor
from pipeline.engine.stage_progress import Progress
from pipeline.recipe.schema import MAX_EPOCHS
from shards.errors import InputError, RunError, plural
from tokenmill.experiments.ablation import Ablation
from tokenmill.experiments.arms import locate_recipe
from tokenmill.experiments.proxy import ProxyResult
from tokenmill.experiments.schema import AblationConfig, ArmConfig
from tokenmill.mix_search.budget import count_arms, count_trainings, split_rounds
from tokenmill.mix_search.design import draw_near, list_candidates, spread_out
from tokenmill.mix_search.fit import SearchFit, count_parameters, fit_scores
from tokenmill.mix_search.repetition import find_target, measure_sources
from tokenmill.mix_search.schema import load_mix_search
from tokenmill.mix_search.space import DECIMALS, Shares, find_space
from trainer.results.curves import unit_of

OWN, WINNER = "recipe", "winner"
"""The arms with the recipe's own mix, and with the best mix of the fit."""
OBJECTIVE = "objective_bpb"


class Trained(NamedTuple):
    """The arms of a search that are trained so far."""

    names: list[str]
    mixes: Shares
    """Their shares, `(arms, dimensions)`."""
    results: list[list[ProxyResult]]
    """For each arm the result of each seed; arms with a failed training are left out."""
    failed: list[dict[str, Any]]
    """The trainings that failed, each with its `arm`, `seed` and `why`."""
    paid: dict[str, ProxyResult]
    """The result of each training by its digest: arms may share one."""

    def values(self, score: str) -> Shares:
        """Return a score of each arm and seed, `(arms, seeds)`."""
        return np.array([[one.scores[score]["value"] for one in results] for results in self.results])


class Found(NamedTuple):
    """What a search found."""

    trained: Trained
    fit: SearchFit
    winner: Shares
    """The best mix of the fit, rounded."""
    last: Ablation | None
    """The comparison of the winner with the recipe's own mix; None if they are the same."""
    last_results: list[ProxyResult]
    failed: list[dict[str, Any]]
    paid: list[ProxyResult]
    """The results of all trainings, each once."""


class MixSearch:
    """A mix search in its folder."""

    def __init__(self, file: Path, out: Path, executor: Executor, progress: Progress, *, keep: bool = False):
        """Read the file of the search, and check its recipes and bounds.

        Args:
            file: the file.
            out: the folder for all that the search makes.
            executor: where builds and trainings run.
            progress: shows them.
            keep: whether sets and checkpoints stay.

        Raises:
            InputError: the file or a recipe that it names cannot be used.
        """
        self.file, self.config, self.out = file, load_mix_search(file), out.absolute()
        self._executor, self._progress, self._keep = executor, progress, keep
        if self.config.data.endswith(".json"):
            raise InputError(f"{file}: data: expected a recipe in TOML, into which the found weights are written")
        self.recipe = load_checked_recipe(locate_recipe(file, self.config.data), progress=progress)
        # An arm as the recipes are, since it says what is scored.
        self._check_objective(self._open([ArmConfig(name=OWN)], self.config.seeds).arms[0].train.eval.score_names)
        self.space = find_space(file, self.recipe, self.config.bounds)
        self.target = find_target(file, self.config, self.recipe)
        self.sizes = measure_sources(file, self.config, self.recipe, self.space)
        self.candidates = list_candidates(self.space, self.config.design_seed)
        own = self._open_mixes({OWN: self.space.own})
        self.own = own.arms[0]
        self.arms = count_arms(file, self.config, own, self.out)
        self._check_arms()

    @property
    def rounds(self) -> list[int]:
        """The arms of each round, the recipe's own mix and the winner not counted."""
        return split_rounds(self.arms, self.config.rounds, count_parameters(len(self.space.own)))

    def find_pending(self) -> tuple[Ablation, int]:
        """Return the arms of the first round that is not done, and how many trainings are missing, those of all later
        rounds with it; nothing is trained."""
        mixes: dict[str, Shares] = {}
        for arms in self._propose(run=False):
            mixes, ablation = arms, self._open_mixes(arms)
            if pending := ablation.find_pending():
                later = count_trainings(self.config, self.arms) - len(ablation.trainings)
                return ablation, len(pending) + later
        trained = self._train(mixes)
        winner = self.space.round(self._fit(trained, 0).best)
        last = None if self._is_own(winner) else self._open_last(winner)
        return last or self._open_mixes(mixes), len(last.find_pending()) if last else 0

    def run(self) -> Found:
        """Train all arms, fit their scores, and train the winner beside the recipe's own mix.

        Raises:
            InputError: a set cannot be built, or the folder is in use.
            RunError: too few trainings succeeded to fit their scores; call again to go on.
        """
        mixes: dict[str, Shares] = {}
        for arms in self._propose(run=True):
            mixes = arms
        trained = self._train(mixes)
        fit = self._fit(trained, self.config.resamples)
        winner = self.space.round(fit.best)
        if self._is_own(winner):
            return Found(trained, fit, winner, None, [], trained.failed, [*trained.paid.values()])
        self._progress.note(f"the winner: {self.describe(winner)}")
        last = self._open_last(winner)
        results = last.run()
        failed, paid = trained.failed + list_failed(last, results), trained.paid | _by_digest(last, results)
        results = [self._add_objective(one) for one in results]
        last.config = last.config.model_copy(update={"scores": [OBJECTIVE, *self.config.objective]})
        return Found(trained, fit, winner, last, results, failed, [*paid.values()])

    def _propose(self, *, run: bool) -> Iterator[dict[str, Shares]]:
        """Yield the arms up to each round; those of a later round depend on the scores of these."""
        mixes = {OWN: self.space.own}
        for number, count in enumerate(self.rounds, start=1):
            candidates = self.candidates
            if number > 1:
                trained = self._train(mixes)
                best = self._fit(trained, 0).best
                candidates = draw_near(candidates, best, number)
            chosen = spread_out(self.space, candidates, count, np.array(list(mixes.values())))
            if run:
                fewer = f", not {count}: the bounds leave no others" if len(chosen) < count else ""
                self._progress.note(f"round {number} of {len(self.rounds)}: {plural(len(chosen), 'mix')}{fewer}")
            mixes |= {f"mix-{len(mixes) + index:02d}": mix for index, mix in enumerate(chosen)}
            yield mixes

    def _train(self, mixes: Mapping[str, Shares]) -> Trained:
        """Train the arms that are missing, and return what is trained."""
        ablation = self._open_mixes(mixes)
        by_arm: dict[str, list[ProxyResult]] = {name: [] for name in mixes}
        results = ablation.run()
        for training, result in zip(ablation.trainings, results, strict=True):
            by_arm[training.arm.name].append(result)
        names = [name for name, own in by_arm.items() if not any(one.failed for one in own)]
        failed = list_failed(ablation, results)
        if len(names) < count_parameters(len(self.space.own)):
            raise RunError(
                [f"{one['arm']}, seed {one['seed']}: failed: {one['why']}" for one in failed]
                + [f"{plural(len(names), 'arm')} left: too few to fit. Run the same command again to retry the others."]
            )
        shares = np.array([mixes[name] for name in names])
        return Trained(names, shares, [by_arm[name] for name in names], failed, _by_digest(ablation, results))

    def _fit(self, trained: Trained, resamples: int) -> SearchFit:
        return fit_scores(
            self.space,
            self.candidates,
            trained.mixes,
            {score: trained.values(score) for score in self.config.objective},
            self.config.objective,
            resamples=resamples,
            seed=self.config.design_seed,
        )

    def _open_mixes(self, mixes: Mapping[str, Shares], seeds: Sequence[int] | None = None) -> Ablation:
        """Return the ablation whose arms have these mixes, with matched repetition."""
        part = self.config.tokens / self.target
        common: dict[str, Any] = {
            "mix": {"when_short": "repeat", "max_epochs": MAX_EPOCHS},
            # As much less as the training; at least a token of the largest source, since a training validates.
            "split": {"val_tokens": max(2 * len(self.recipe.sources), int(self.recipe.split.val_tokens * part))},
        }
        arms: list[ArmConfig] = []
        for name, mix in mixes.items():
            sources: dict[str, Any] = {
                source: {"weight": weight, "take": self.sizes[source].take}
                for source, weight in self.space.weights(mix).items()
            }
            arms.append(ArmConfig(name=name, data={"sources": sources, **common}))
        return self._open(arms, seeds or self.config.seeds)

    def _open(self, arms: list[ArmConfig], seeds: Sequence[int]) -> Ablation:
        shared = {key: getattr(self.config, key) for key in ("name", "data", "train", "tokens", "threads")}
        config = AblationConfig.model_construct(
            **shared,
            seeds=list(seeds),
            smallest_difference=self.config.smallest_difference,
            scores=[],
            arms=arms,
        )
        return Ablation(self.file, config, self.out, self._executor, self._progress, keep=self._keep)

    def _open_last(self, winner: Shares) -> Ablation:
        """Return the comparison of the winner, whose seeds are its own if the file says so."""
        return self._open_mixes({OWN: self.space.own, WINNER: winner}, self.config.last_seeds)

    def _is_own(self, mix: Shares) -> bool:
        return bool(np.abs(mix - self.space.own).max() < 10**-DECIMALS)

    def _add_objective(self, result: ProxyResult) -> ProxyResult:
        """Return a result with the objective among its scores."""
        parts = self.config.objective
        if result.failed:
            return result
        value = sum(result.scores[name]["value"] * part for name, part in parts.items()) / sum(parts.values())
        return replace(result, scores={**result.scores, OBJECTIVE: {"value": value, "stderr": None}})

    def _check_objective(self, known: Sequence[str]) -> None:
        """Refuse scores that are not computed, and accuracies."""
        likelihoods = [score for score in known if unit_of(score) == "bits per byte"]
        problems = [
            f"{self.file}: objective.{score}: "
            + (
                "an accuracy rises where the others fall, and is too coarse for small models. "
                if score in known
                else "the train recipe does not compute it. "
            )
            + f"Expected one of: {', '.join(likelihoods)}."
            for score in self.config.objective
            if score not in likelihoods
        ]
        if problems:
            raise InputError(problems)

    def _check_arms(self) -> None:
        """Refuse fewer arms than the fit takes."""
        shares = len(self.space.own)
        least = count_parameters(shares) + 2
        if self.arms < least:
            raise InputError(
                f"{self.file}: {plural(self.arms, 'arm')}: the fit of {shares} shares has "
                f"{plural(count_parameters(shares), 'parameter')}: it takes at least {least} arms, the "
                "recipe's own mix and the winner among them. Give more, shorter trainings, or fewer bounds."
            )

    def describe(self, mix: Shares) -> str:
        """Return the shares of a mix in words."""
        return ", ".join(f"{name} {share:.2%}" for name, share in zip(self.space.names, mix, strict=True))


def _by_digest(ablation: Ablation, results: Sequence[ProxyResult]) -> dict[str, ProxyResult]:
    """Return the result of each training by its digest."""
    return {one.task.digest: result for one, result in zip(ablation.trainings, results, strict=True)}


def list_failed(ablation: Ablation, results: Sequence[ProxyResult]) -> list[dict[str, Any]]:
    """Return the trainings that failed, each with its `arm`, `seed` and `why`."""
    return [
        {"arm": one.arm.name, "seed": one.seed, "why": result.failed}
        for one, result in zip(ablation.trainings, results, strict=True)
        if result.failed
    ]
