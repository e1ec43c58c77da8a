"""The state of a `TokenStream`, found in nested dicts; every value of it is checked before one is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from shards.errors import InputError, plural

KEYS = ("samples", "set", "split", "seq_len", "seed")
REMEDY = "Give what state_dict returned, unchanged, or the state of an earlier checkpoint."


class StateError(InputError):
    """A state with which a stream cannot go on: it is damaged, or of another order, loader or number of samples."""


def is_integer(value: object) -> bool:
    """Return whether a value, of a state or an argument, is an integer of Python or numpy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return int(value) if is_integer(value) else value


Index = Annotated[int, BeforeValidator(_plain), Field(ge=0, strict=True)]
"""An integer from 0, of Python or numpy."""


class StreamState(BaseModel):
    """A state that is whole."""

    samples: Index
    """How many samples all ranks have consumed."""
    set: str
    split: str
    seq_len: Index
    seed: Index
    order_version: Index = 1
    """That of the order; the first one was not named."""
    worker: Annotated[dict[Literal["id", "of", "batch", "total"], Index], Field(min_length=4)] | None = None
    """What the own place of a DataLoader's worker depends on; None if the state is not of a worker."""


def parse_states(nested: Any) -> list[StreamState]:
    """Return the states of streams in nested dicts and lists, at least one.

    Raises:
        StateError: there is none, keys are missing, values are of another type or negative, or a StatefulDataLoader
            has handed out batches since it kept its workers' states.
    """
    found = list(_find_states(nested))
    if not found:
        raise StateError(f"not the state of a stream: expected the keys {', '.join(KEYS)}. {REMEDY}")
    # A whole state counts alone: parts of one may be keys of a trainer that have the same names.
    whole = [state for state in found if state.keys() >= set(KEYS)]
    states: list[StreamState] = []
    faults: dict[str, None] = {}  # the states of several workers often have the same fault
    for state in whole or found:
        try:
            states.append(StreamState.model_validate(state))
        except ValidationError as error:
            faults |= dict.fromkeys(_describe_fault(dict(fault)) for fault in error.errors(include_url=False))
    if faults:
        raise StateError(list(faults))
    return states


def _find_states(nested: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the dicts that have some of a state's keys, and no dict with more of them inside."""
    if isinstance(nested, Mapping):
        values = cast("Mapping[str, Any]", nested)
        if values.keys() >= set(KEYS):
            yield values
            return
        if steps := values.get("_steps_since_snapshot"):
            found = f"the loader has handed out {plural(steps, 'batch')} since its workers' states"
            raise StateError(f"{found}. Save with snapshot_every_n_steps=1, or load the state into a loader like it.")
        inner = [state for value in values.values() for state in _find_states(value)]
        # A checkpoint of a trainer may have a key `samples` or `seed` of its own; a damaged state has more than one.
        yield from inner or ([values] if len(values.keys() & set(KEYS)) > 1 else [])
    elif isinstance(nested, list | tuple):
        for value in cast("Sequence[Any]", nested):
            yield from _find_states(value)


def _describe_fault(fault: dict[str, Any]) -> str:
    place = ".".join(map(str, fault["loc"]))
    got = "" if fault["type"] == "missing" else f"; got {fault['input']!r:.80}"
    return f"the state's {place}: {fault['msg']}{got}. {REMEDY}"
