"""Steps of a train recipe that a mix phase decides: the ends of the run and its phases, the start of the cool-down.

A border of the mix is between two windows, and often within a batch. What ends there ends with the last step before it,
so that a checkpoint of that step has seen nothing of what follows; the cool-down begins with the step after that one.
Phases of the mix are those of the first epoch. A cool-down that would go on into the next epoch, whose first phase is
another mix, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from shards.errors import InputError
from shards.format.windows.order import PhaseWindows, WindowOrder
from shards.terminal.reporter import Note
from trainer.recipe import PhaseConfig, ScheduleConfig, TrainConfig, TrainRecipe, check_rules


def pin_to_mix(recipe: TrainRecipe, order: WindowOrder, say: Note) -> TrainRecipe:
    """Return the recipe with the steps that `until_mix_phase` and `decay_from_mix_phase` stand for, and print them.

    Raises:
        InputError: the set has no such phase, the recipe says another step too, or the steps break a rule.
    """
    batch, notes, problems = recipe.train.global_batch, list[str](), list[str]()

    def find_phase(place: str, name: str | int, key: str) -> PhaseWindows | None:
        """Return a phase of the mix by its name or its number from 1; note a problem if there is none."""
        for number, phase in enumerate(order.phases, 1):
            if name in (phase.name, number):
                return phase
        names = ", ".join(phase.name for phase in order.phases)
        known = f"expected one of {names}, or a number from 1 to {len(order.phases)}"
        absent = f"the set's mix has no phases. Give {key} instead"
        problems.append(f"{place}: {known if names else absent}.")
        return None

    def find_end(table: str, key: str, config: TrainConfig | PhaseConfig) -> int:
        """Return the last step before a phase of the mix ends; the recipe's own step if it names none."""
        step, name = getattr(config, key), config.until_mix_phase
        place = f"{table}.until_mix_phase = {name!r}"
        phase = None if name is None else find_phase(place, name, f"{table}.{key}")
        if phase is None:
            return step
        end = phase.stop // batch
        if step not in (0, end):
            found = f"{table}.{key} = {step}: {phase.name!r} ends at step {end} with this set, batch and seq_len"
            problems.append(f"{found}. Leave {key} or until_mix_phase out.")
        notes.append(f"{place} is {table}.{key} = {end}")
        return end

    # The ends of the run and of its phases.
    train = recipe.train.model_copy(update={"steps": find_end("train", "steps", recipe.train)})
    phases = [
        phase.model_copy(update={"until_step": find_end(f"phases.{phase.name}", "until_step", phase)})
        for phase in recipe.phases
    ]

    # Where the cool-down begins: counted from the end of the run.
    schedule, name = recipe.schedule, recipe.schedule.decay_from_mix_phase
    place = f"schedule.decay_from_mix_phase = {name!r}"
    phase = None if name is None else find_phase(place, name, "schedule.decay_steps")
    if phase is not None:
        before = phase.first // batch
        problems += _find_decay_faults(schedule, phase, order, place=place, before=before, train=train)
        schedule = schedule.model_copy(update={"decay_steps": train.steps - before})
        notes.append(f"{place} is schedule.decay_steps = {train.steps - before}: from step {before + 1} on")

    if not notes and not problems:
        return recipe
    pinned = recipe.model_copy(update={"train": train, "schedule": schedule, "phases": phases})
    given = f" With this set and batch, {'; '.join(notes)}."
    if faults := problems or [fault + given for fault in check_rules(pinned.model_dump())]:
        raise InputError(faults)
    for note in notes:
        say(note)
    return pinned


def _find_decay_faults(
    schedule: ScheduleConfig, phase: PhaseWindows, order: WindowOrder, *, place: str, before: int, train: TrainConfig
) -> Iterator[str]:
    """Yield why a cool-down cannot begin with a phase of the mix, after so many steps."""
    found, steps = f"{place}: {phase.name!r} begins in step {before + 1}", train.steps
    decay_steps, whole = steps - before, order.per_epoch // train.global_batch
    if decay_steps <= 0:
        yield f"{found}, after the last one, train.steps = {steps}. Raise steps."
    elif before < schedule.warmup_steps:
        warm_up = f"the warm-up, schedule.warmup_steps = {schedule.warmup_steps}"
        yield f"{found}, before the end of {warm_up}. Lower warmup_steps or name a later phase."
    elif steps > whole:
        next_epoch = f"step {whole + 1} has windows of {order.phases[0].name!r}, of the next epoch"
        remedy = f"Lower steps to {whole}, or give decay_steps, the last steps of training, instead"
        yield f"{found}, and training ends after the epoch, train.steps = {steps}: {next_epoch}. {remedy}."
    elif schedule.decay_steps not in (None, decay_steps):
        agreed = f"with this set, batch and seq_len that is decay_steps = {decay_steps}"
        found = f"schedule.decay_steps = {schedule.decay_steps} with {place.removeprefix('schedule.')}"
        yield f"{found}: {agreed}. Leave one of them out."
