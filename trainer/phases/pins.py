"""Ends of a train recipe that a phase of the set's mix gives: of the run, of its phases, where the cool-down begins.

A border of the mix is between two windows, and often within a batch. What ends there ends with the last step before it,
so that a checkpoint of that step has seen nothing of what follows; the cool-down begins with the step after that one.
Phases of the mix are those of the first epoch. A cool-down that would go on into the next epoch, whose first phase is
another mix, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shards.errors import InputError
from shards.format.windows.order import PhaseWindows, WindowOrder
from shards.terminal.reporter import Note
from trainer.recipe import PhaseConfig, TrainRecipe, check_rules


def pin_to_mix(recipe: TrainRecipe, order: WindowOrder, say: Note) -> TrainRecipe:
    """Return the recipe with the steps that `until_mix_phase` and `decay_from_mix_phase` stand for, and print them.

    Raises:
        InputError: the set has no such phase, the recipe says another step too, or the steps break a rule.
    """
    pins = _Pins(order, recipe.train.global_batch)
    train, schedule = recipe.train, recipe.schedule

    # The ends of the run and of its phases.
    steps = pins.end("train", "steps", train.steps, train.until_mix_phase)
    phases: list[PhaseConfig] = []
    for phase in recipe.phases:
        end = pins.end(f"phases.{phase.name}", "until_step", phase.until_step, phase.until_mix_phase)
        phases.append(phase.model_copy(update={"until_step": end}))

    # Where the cool-down begins: counted from the end of the run.
    decay_steps = schedule.decay_steps
    if schedule.decay_from_mix_phase is not None:
        decay_steps = pins.cool_down(recipe, steps=steps)

    pinned = recipe.model_copy(
        update={
            "train": train.model_copy(update={"steps": steps}),
            "schedule": schedule.model_copy(update={"decay_steps": decay_steps}),
            "phases": phases,
        }
    )
    if not pins.notes and not pins.problems:
        return recipe
    given = f" With this set and batch, {'; '.join(pins.notes)}."
    if problems := pins.problems or [fault + given for fault in check_rules(pinned.model_dump())]:
        raise InputError(problems)
    for note in pins.notes:
        say(note)
    return pinned


@dataclass
class _Pins:
    """The pins of a recipe, and their faults."""

    order: WindowOrder
    global_batch: int
    notes: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])

    def end(self, table: str, key: str, step: int, name: str | int | None) -> int:
        """Return the last step before a phase of the mix ends; the recipe's own `step` if it names none."""
        place = f"{table}.until_mix_phase = {name!r}"
        phase = self._find(place, name, f"{table}.{key}")
        if phase is None:
            return step
        end = phase.stop // self.global_batch
        if step not in (0, end):
            found = f"{table}.{key} = {step}: {phase.name!r} ends at step {end} with this set, batch and seq_len"
            self.problems.append(f"{found}. Leave {key} or until_mix_phase out.")
        self.notes.append(f"{place} is {table}.{key} = {end}")
        return end

    def cool_down(self, recipe: TrainRecipe, *, steps: int) -> int | None:
        """Return the `decay_steps` of a cool-down that begins with a phase of the mix."""
        schedule, name = recipe.schedule, recipe.schedule.decay_from_mix_phase
        place = f"schedule.decay_from_mix_phase = {name!r}"
        phase = self._find(place, name, "schedule.decay_steps")
        if phase is None:
            return schedule.decay_steps
        before = phase.first // self.global_batch
        found, decay_steps = f"{place}: {phase.name!r} begins in step {before + 1}", steps - before
        if decay_steps <= 0:
            self.problems.append(f"{found}, after the last one, train.steps = {steps}. Raise steps.")
        elif before < schedule.warmup_steps:
            warm_up = f"the warm-up, schedule.warmup_steps = {schedule.warmup_steps}"
            self.problems.append(f"{found}, before the end of {warm_up}. Lower warmup_steps or name a later phase.")
        elif steps > (whole := self.order.per_epoch // self.global_batch):
            next_epoch = f"step {whole + 1} has windows of {self.order.phases[0].name!r}, of the next epoch"
            remedy = f"Lower steps to {whole}, or give decay_steps, the last steps of training, instead"
            self.problems.append(
                f"{found}, and training ends after the epoch, train.steps = {steps}: {next_epoch}. {remedy}."
            )
        elif schedule.decay_steps not in (None, decay_steps):
            agreed = f"with this set, batch and seq_len that is decay_steps = {decay_steps}"
            found = f"schedule.decay_steps = {schedule.decay_steps} with decay_from_mix_phase = {name!r}"
            self.problems.append(f"{found}: {agreed}. Leave one of them out.")
        self.notes.append(f"{place} is schedule.decay_steps = {decay_steps}: from step {before + 1} on")
        return decay_steps

    def _find(self, place: str, name: str | int | None, key: str) -> PhaseWindows | None:
        """Return a phase of the mix by its name or its number from 1; note a problem if there is none."""
        phases = self.order.phases
        for number, phase in enumerate(phases, 1):
            if name in (phase.name, number):
                return phase
        if name is not None and phases:
            names = ", ".join(phase.name for phase in phases)
            self.problems.append(f"{place}: expected one of {names}, or a number from 1 to {len(phases)}.")
        elif name is not None:
            self.problems.append(f"{place}: the set's mix has no phases. Give {key} instead.")
        return None
