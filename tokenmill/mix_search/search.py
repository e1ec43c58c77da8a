"""A mix search from start to end: rounds of arms, the fit of their scores, and the winner beside the recipe's own mix.

The arms of all rounds are those of ablations in one folder: what is done stays done, and a search that is called again
goes on. `tokenmill.experiments.ablation` lists the folder.

Matched repetition: small models see a scarce source as often as the real run will, whatever its share of the mix. A run
of T tokens at share w takes w T tokens of a source of A tokens: w T / A epochs. A model of t tokens takes w t of the
source's part t / T: as many epochs, for any w. Sources that the real run does not use up stay whole: neither run
repeats them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.plan.plan import plan_set
from pipeline.recipe.schema import MAX_EPOCHS, Recipe
from shards.config import Document, load_settings, settings_error
from shards.errors import InputError, RunError, plural
from shards.stores.files import write_text
from tokenmill.experiments.ablation import Ablation, Training, list_failed
from tokenmill.experiments.answer import have_other_texts, note_failed
from tokenmill.experiments.arms import Experiment
from tokenmill.experiments.schema import AblationConfig, ArmConfig
from tokenmill.mix_search.fit import SearchFit, fit_scores
from tokenmill.mix_search.schema import MixSearchConfig
from tokenmill.mix_search.space import DECIMALS, MixSpace, Shares, draw_near, find_space, list_candidates, spread_out
from trainer.evaluation.scores import unit_of
from trainer.recipe import load_train_recipe

OWN, WINNER = "recipe", "winner"
"""The arms with the recipe's own mix, and with the best mix of the fit."""
OBJECTIVE = "objective_bpb"

_FIRST_ROUND = 0.5
"""The part of the arms that fills the space."""
_FEWEST_DOCUMENTS = 10
"""A part of a source with fewer documents says nothing of the source."""
_SURE = 1.1
"""Bounds are refused if even this many times the tokens measured would be too few."""


SourceSize = tuple[int | None, float]
"""What a source has for the real run, by the estimate of `plan`: its tokens, None if it has more than the real run can
take within the bounds, and the part of its documents in the sets of the arms."""


class MixSearch:
    """A mix search in its folder, and what it has found once it has run."""

    ablation: Ablation
    """The arms of all rounds, trained."""
    mixes: dict[str, Shares]
    """The shares of the arms by name; arms with a failed training are left out."""
    fit: SearchFit
    winner: Shares
    """The best mix of the fit, rounded."""
    last: Ablation | None = None
    """The comparison of the winner with the recipe's own mix; None if they are the same."""

    def __init__(self, experiment: Experiment):
        """Read the file of the mix search, and check its recipes and bounds.

        Raises:
            InputError: the file or a recipe that it names cannot be used.
        """
        self.experiment, file = experiment, experiment.file
        self.config = load_settings(MixSearchConfig, file)
        data, train = map(experiment.locate_recipe, (self.config.data, self.config.train))
        self.recipe = load_checked_recipe(data, progress=experiment.progress)
        self.space = find_space(file, self.recipe, self.config.bounds)
        known = load_train_recipe(train).eval.score_names
        if faults := [*find_faults(self.config, self.recipe, self.space, known)]:
            raise settings_error(str(file), faults)
        self.target = int(self.config.target_tokens or self.recipe.mix.tokens)
        self.sizes = self._measure_sources()
        self.candidates = list_candidates(self.space)
        self.own = self._open_mixes({OWN: self.space.own}).arms[0]

    @property
    def rounds(self) -> list[int]:
        """The arms of each round, the recipe's own mix and the winner not counted."""
        return split_rounds(self.config.arms, self.config.rounds, self.space.parameters)

    @property
    def trainings(self) -> list[Training]:
        """All trainings; arms may share one."""
        return [*self.ablation.trainings, *(self.last.trainings if self.last else [])]

    def values(self, score: str) -> Shares:
        """Return a score of each arm and seed, `(arms, seeds)`."""
        return np.array([[one.scores[score]["value"] for one in self.ablation.results(arm)] for arm in self.mixes])

    def find_pending(self) -> tuple[Ablation, int]:
        """Return the arms of the first undone round, and how many trainings are missing, those of all later
        rounds with it; nothing is trained."""
        for mixes in self._propose():
            ablation = self._open_mixes(mixes)
            if pending := ablation.find_pending():
                later = count_trainings(self.config) - len(ablation.trainings)
                return ablation, len(pending) + later
            self._train(mixes)
        last = self._open_last(resamples=0)
        return last or self.ablation, len(last.find_pending()) if last else 0

    def run(self) -> None:
        """Train all arms, fit their scores, and train the winner beside the recipe's own mix.

        Raises:
            InputError: a set cannot be built, or the folder is in use.
            RunError: too few trainings succeeded to fit their scores; call again to go on.
        """
        for mixes in self._propose():
            self._train(mixes)
        self.last = self._open_last(self.config.resamples)
        if self.last is None:
            return
        self.last.run()
        self._check_texts(self.last)
        self.last.count_looks()
        # The comparison answers for the objective, too.
        parts = self.config.objective
        for training in self.last.trainings:
            scores = training.result.scores
            if not training.result.failed:
                value = sum(scores[name]["value"] * part for name, part in parts.items()) / sum(parts.values())
                own = {OBJECTIVE: {"value": value, "stderr": None}}
                training.result = replace(training.result, scores=scores | own)
        self.last.config = self.last.config.with_values(scores=[OBJECTIVE, *self.config.objective])

    def _propose(self) -> Iterator[dict[str, Shares]]:
        """Yield the arms up to each round, for the caller to train: later ones depend on their scores."""
        mixes = {OWN: self.space.own}
        for number, count in enumerate(self.rounds, start=1):
            candidates = self.candidates
            if number > 1:
                candidates = draw_near(candidates, self._fit(0).best, number)
            chosen = spread_out(self.space, candidates, count, np.array(list(mixes.values())))
            fewer = f", not {count}: the bounds leave no others" if len(chosen) < count else ""
            self.experiment.progress.note(f"round {number} of {len(self.rounds)}: {plural(len(chosen), 'mix')}{fewer}")
            mixes |= {f"mix-{len(mixes) + index:02d}": mix for index, mix in enumerate(chosen)}
            yield mixes

    def _train(self, mixes: Mapping[str, Shares]) -> None:
        """Train the arms that are missing."""
        self.ablation = self._open_mixes(mixes)
        self.ablation.run()
        self._check_texts(self.ablation)
        # Arms with a failed training say nothing.
        failed = list_failed(self.ablation.trainings)
        without = {one["arm"] for one in failed}
        self.mixes = {name: mix for name, mix in mixes.items() if name not in without}
        if len(self.mixes) < self.space.parameters:
            raise RunError([*note_failed(failed), f"{plural(len(self.mixes), 'arm')} left: too few to fit"])

    def _check_texts(self, ablation: Ablation) -> None:
        """Refuse scores of other text: arms leave out other documents of an eval set that they hold."""
        results = [one.result for one in ablation.trainings]
        problems = [
            f"{self.experiment.file}: objective.{score}: the arms were scored on other text each, because sources hold "
            "documents of the eval set. Take them out of the sources or of the eval set, and run the search again."
            for score in self.config.objective
            if have_other_texts(score, results)
        ]
        if problems:
            raise InputError(problems)

    def _fit(self, resamples: int) -> SearchFit:
        return fit_scores(
            self.space,
            self.candidates,
            np.array(list(self.mixes.values())),
            {score: self.values(score) for score in self.config.objective},
            self.config.objective,
            resamples=resamples,
        )

    def _open_mixes(self, mixes: Mapping[str, Shares], seeds: Sequence[int] | None = None) -> Ablation:
        """Return the ablation with these mixes as arms, with matched repetition."""
        part = self.config.tokens / self.target
        common: Document = {
            "mix": {"when_short": "repeat", "max_epochs": MAX_EPOCHS},
            # As much less as the training; at least a token of the largest source, since a training validates.
            "split": {"val_tokens": max(2 * len(self.recipe.sources), int(self.recipe.split.val_tokens * part))},
        }
        # An arm differs in its weights, and takes a part of scarce sources.
        arms: list[ArmConfig] = []
        for name, mix in mixes.items():
            sources: Document = {
                source: {"weight": weight, "take": self.sizes[source][1]}
                for source, weight in self.space.weights(mix).items()
            }
            arms.append(ArmConfig(name=name, data={"sources": sources, **common}))
        shared = {key: getattr(self.config, key) for key in ("name", "data", "train", "tokens", "threads")}
        own = list(seeds or self.config.seeds)
        config = AblationConfig.model_construct(**shared, seeds=own, scores=[], arms=arms)
        return Ablation(self.experiment, config)

    def _open_last(self, resamples: int) -> Ablation | None:
        """Fit the scores of all arms. Return the comparison of the winner, whose seeds are its own if the file says so;
        None if the winner is the recipe's own mix."""
        self.fit = self._fit(resamples)
        self.winner = self.space.round(self.fit.best)
        if np.abs(self.winner - self.space.own).max() < 10**-DECIMALS:
            return None
        shares = ", ".join(f"{name} {share:.2%}" for name, share in zip(self.space.names, self.winner, strict=True))
        self.experiment.progress.note(f"the winner: {shares}")
        return self._open_mixes({OWN: self.space.own, WINNER: self.winner}, self.config.last_seeds)

    def write_recipe(self, file: Path) -> Path:
        """Write the data recipe with the found weights, for the real run's tokens, as JSON.

        It has every key, and paths that any working directory finds.
        """
        weights = self.space.weights(self.winner)
        sources = [source.with_values(weight=weights[source.name]) for source in self.recipe.sources]
        mix: Document = {"tokens": self.target}
        # The real run repeats what it lacks.
        if any((size or self.target) < weights[name] / 100 * self.target for name, (size, _) in self.sizes.items()):
            mix["when_short"] = "repeat"
        found = self.recipe.with_values(sources=sources, mix=self.recipe.mix.with_values(**mix))
        write_text(file, found.to_json(as_written=False))
        return file

    def _measure_sources(self) -> dict[str, SourceSize]:
        """Return what each source of a search has for the real run, and the part of it that the arms take.

        Raises:
            InputError: a bound repeats a source more often than `mix.max_epochs`
                allows, or an arm would see too few documents of a source.
        """
        config, recipe, target = self.config, self.recipe, self.target
        greatest = self.space.divide(self.space.high)
        # A plan in which each source has its greatest share of the target tells whether that is more than it has.
        sources = [one.with_values(weight=max(greatest[one.name], 1e-9)) for one in recipe.sources]
        most = {"tokens": max(1, int(target * sum(greatest.values()))), "when_short": "shrink"}
        greatest_mix = recipe.with_values(sources=sources, mix=recipe.mix.with_values(**most))
        planned = plan_set(greatest_mix, allow_code=self.experiment.allow_code)
        sizes: dict[str, SourceSize] = {}
        problems: list[str] = []
        for source, found in zip(recipe.sources, planned.sources, strict=True):
            # How often the real run would take the source at its greatest share.
            epochs = greatest[source.name] * target / max(1, found.tokens)
            if found.has_more or epochs <= 1:
                sizes[source.name] = (None if found.has_more else found.tokens, source.take)
                continue
            take = source.take * config.tokens / target
            sizes[source.name] = (found.tokens, take)
            place = f"{self.experiment.file}: bounds: {source.name!r} has about {plural(found.tokens, 'token')}"
            if epochs > recipe.mix.max_epochs * _SURE:
                share = recipe.mix.max_epochs * found.tokens / target
                problems.append(
                    f"{place}: its greatest share, {greatest[source.name]:.4g} of {target:,}, repeats it {epochs:.1f} "
                    f"times, and mix.max_epochs is {recipe.mix.max_epochs}. Give it a bound of at most {share:.4f}, or "
                    "raise mix.max_epochs in the data recipe."
                )
            # How many documents an arm would see.
            left = found.documents * config.tokens / target
            if left < _FEWEST_DOCUMENTS:
                problems.append(
                    f"{place}: models of {plural(config.tokens, 'token')} would see about "
                    f"{plural(round(left), 'document')} of it, to repeat them as often as the real run of {target:,}. "
                    "Give more tokens to each model."
                )
        if problems:
            raise InputError(problems)
        return sizes


def count_trainings(config: MixSearchConfig) -> int:
    """Return how many trainings a search takes, those of the last comparison included."""
    # The winner has the last seeds alone; the recipe's own mix has those and the others.
    own = len({*config.seeds, *config.last_seeds})
    return own + (config.arms - 2) * len(config.seeds) + len(config.last_seeds)


def split_rounds(arms: int, rounds: int, parameters: int) -> list[int]:
    """Return the search's arms of each round, without the recipe's mix and the winner; one is enough for a fit."""
    left = arms - 2
    first = left if rounds == 1 else min(left, max(parameters, round(_FIRST_ROUND * left)))
    later = [(left - first + extra) // (rounds - 1) for extra in reversed(range(rounds - 1))]  # the larger ones first
    return [first, *filter(None, later)]


def find_faults(config: MixSearchConfig, recipe: Recipe, space: MixSpace, known: Sequence[str]) -> Iterator[str]:
    """Yield why a search cannot be run: scores that are not computed, too few arms, or no tokens of the real run.

    Args:
        config: the search.
        recipe: its data recipe.
        space: the mixes within its bounds.
        known: the scores that its train recipe computes.
    """
    likelihoods = [score for score in known if unit_of(score) == "bits per byte"]
    for score in config.objective:
        if score not in likelihoods:
            yield (
                f"objective.{score}: the train recipe does not compute it in bits per byte. "
                f"Expected one of: {', '.join(likelihoods)}."
            )
    target, least = config.target_tokens or recipe.mix.tokens, space.parameters + 2
    if target == "max":
        yield (
            'target_tokens: required key is missing: the data recipe has mix.tokens = "max". Give the tokens of the '
            "real run: the small models repeat scarce sources as often."
        )
    elif target < config.tokens:
        yield (
            f"tokens = {config.tokens:,}: more than the {target:,} of the real run. Give fewer, or raise target_tokens."
        )
    if config.arms < least:
        yield (
            f"{plural(config.arms, 'arm')}: the fit of {len(space.own)} shares has "
            f"{plural(space.parameters, 'parameter')}: it takes at least {least} arms, the recipe's own mix and the "
            "winner among them. Give more, shorter trainings, or fewer bounds."
        )
