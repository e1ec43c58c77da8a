"""A train recipe shrunken to a rehearsal: everything that it asks for happens, within minutes on any machine.

The model has two layers of a few features, and keeps what its parts are: its kind, activation, norms, grouped heads,
ties. Steps are counted anew: each phase end and each milestone stays a step of its own, with `GAP` steps between two.
"""

import os

from shards.config import check_settings
from trainer.recipe.schema import TrainRecipe

GAP = 12
"""Steps between two ends of phases or milestones."""
LENGTH, BATCH, TOKENS, ITEMS = 64, 4, 2_000, 8
"""At most so many tokens of a sequence, sequences of a micro-batch, scored tokens, and scored items."""


def shrink_recipe(recipe: TrainRecipe) -> TrainRecipe:
    """Return the rehearsal of a train recipe."""
    raw = recipe.model_dump(mode="json")
    model, train, schedule, scored = recipe.model, recipe.train, recipe.schedule, recipe.eval

    # Groups of heads stay groups.
    group = model.num_attention_heads // model.num_key_value_heads
    heads = 2 * group
    raw["name"] = f"rehearsal of {recipe.name}"
    raw["model"] |= {
        "hidden_size": 16 * heads,
        "intermediate_size": 64 * heads,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
    }

    # Where something happens: each such step becomes a multiple of the gap.
    marks = sorted({*recipe.milestones, train.steps})
    places = {mark: GAP * (at + 1) for at, mark in enumerate(marks)}
    steps = places[train.steps]

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    # Packed rows keep their length, or conversations would be longer than a row.
    packed = train.rows == "packed"
    length, batch = (train.seq_len, 1) if packed else (min(LENGTH, train.seq_len), BATCH)
    raw["train"] |= {
        "steps": steps,
        "seq_len": length,
        "compile": False,
        "log_every": 1,
        "micro_batch": batch,
        "global_batch": 2 * batch * ranks,
        "rehearsal": True,
        "smoke_steps": min(train.smoke_steps, steps),
    }
    raw["schedule"]["warmup_steps"] = min(schedule.warmup_steps, 1)
    if schedule.decay_steps is not None:
        raw["schedule"]["decay_steps"] = min(schedule.decay_steps, GAP // 2)
    for phase in raw["phases"]:
        phase["until_step"] = places[phase["until_step"]]
        phase["milestones"] = [places[step] for step in phase["milestones"]]
    raw["checkpoint"]["every_steps"] = GAP // 2

    # What is scored is the beginning.
    raw["eval"] |= {"every_steps": GAP // 2, "max_tokens": min(TOKENS, scored.max_tokens)}
    raw["eval"]["samples"]["max_new_tokens"] = min(20, scored.samples.max_new_tokens)
    for table in raw["eval"]["sets"]:
        table["max_tokens"] = min(TOKENS, table["max_tokens"])
    for table in raw["eval"]["tasks"]:
        table["limit"] = min(ITEMS, table["limit"] or ITEMS)
    return check_settings(TrainRecipe, raw, where="--rehearse")
