"""The state of a `TokenStream`, found in nested dicts; every value of it is checked before one is used."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from shards.errors import InputError, plural

IDENTITY = ("set", "split", "seq_len", "seed")
KEYS = ("samples", *IDENTITY)
TEXTS = ("set", "split")
WORKER_KEYS = ("id", "of", "batch", "total")
REMEDY = "Give what state_dict returned, unchanged, or the state of an earlier checkpoint."


class StateError(InputError):
    """A state with which a stream cannot go on: it is damaged, or of another order, loader or number of samples."""


@dataclass(frozen=True)
class StreamState:
    """A state that is whole.

    Attributes:
        samples: how many samples all ranks have consumed.
        identity: what decides which sample a number is.
        worker: what the own place of a DataLoader's worker depends on; None if the state is not of a worker.
    """

    samples: int
    identity: Mapping[str, str | int]
    worker: Mapping[str, int] | None


def is_integer(value: object) -> bool:
    """Return whether a value, of a state or an argument, is an integer of Python or numpy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def parse_states(nested: Any) -> list[StreamState]:
    """Return the states of streams in nested dicts and lists, at least one.

    Raises:
        StateError: there is none, keys are missing, values are of another type or negative, or a StatefulDataLoader
            has handed out batches since it kept its workers' states.
    """
    found = list(_find_states(nested))
    whole = [state for state in found if state.keys() >= set(KEYS)]
    if not whole:
        faults = [_describe_missing(state) for state in found]
        raise StateError(faults or [f"not the state of a stream: expected the keys {', '.join(KEYS)}. {REMEDY}"])
    if faults := [fault for state in whole for fault in _list_faults(state)]:
        raise StateError(list(dict.fromkeys(faults)))
    return [
        StreamState(operator.index(state["samples"]), {key: state[key] for key in IDENTITY}, state.get("worker"))
        for state in whole
    ]


def _find_states(nested: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the dicts that have some of a state's keys, and no dict with more of them inside."""
    if isinstance(nested, Mapping):
        values = cast("Mapping[str, Any]", nested)
        if values.keys() >= set(KEYS):
            yield values
            return
        if values.get("_steps_since_snapshot"):
            found = (
                f"the loader has handed out {plural(values['_steps_since_snapshot'], 'batch')} since its workers' "
                "states"
            )
            raise StateError(f"{found}. Save with snapshot_every_n_steps=1, or load the state into a loader like it.")
        inner = [state for value in values.values() for state in _find_states(value)]
        # A checkpoint of a trainer may have a key `samples` or `seed` of its own; a damaged state has more than one.
        yield from inner or ([values] if len(values.keys() & set(KEYS)) > 1 else [])
    elif isinstance(nested, list | tuple):
        for value in cast("Sequence[Any]", nested):
            yield from _find_states(value)


def _describe_missing(state: Mapping[str, Any]) -> str:
    missing = ", ".join(repr(key) for key in KEYS if key not in state)
    return f"the state lacks {missing}: expected the keys {', '.join(KEYS)}. {REMEDY}"


def _list_faults(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault for each value that is not what `state_dict` gives."""
    for key in KEYS:
        if key in TEXTS:
            usable, expected = isinstance(state[key], str), "a text"
        else:
            usable, expected = is_integer(state[key]) and state[key] >= 0, "an integer from 0"
        if not usable:
            yield f"the state's {key} is {state[key]!r}: expected {expected}. {REMEDY}"
    worker = state.get("worker")
    if worker is None:
        return
    if not isinstance(worker, Mapping):
        yield f"the state's worker is {worker!r}: expected the keys {', '.join(WORKER_KEYS)}. {REMEDY}"
        return
    for key in WORKER_KEYS:
        value = cast("Mapping[str, Any]", worker).get(key)
        if not is_integer(value) or cast("int", value) < 0:
            yield f"the state's worker.{key} is {value!r}: expected an integer from 0. {REMEDY}"
