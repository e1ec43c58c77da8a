"""The items of a source's `carry`: a column by its name, with its type or without."""

from __future__ import annotations

from typing import cast

from shards.format.carried import CARRIED_TYPES, CarriedType, find_name_faults


def parse_carry(text: str) -> tuple[str, CarriedType | None]:
    """Return the column that `"url"` or `"url: string"` names, and its type; None if the files decide it.

    Raises:
        ValueError: the type is not one of ours.
    """
    name, colon, kind = text.rpartition(":")
    if not colon:
        return text.strip(), None
    if kind.strip() not in CARRIED_TYPES:
        raise ValueError(
            f"{text!r}: expected the name of a column, or NAME: TYPE with one of {', '.join(CARRIED_TYPES)}"
        )
    return name.strip(), cast("CarriedType", kind.strip())


def checked_carry(items: list[str]) -> list[str]:
    """Refuse items that cannot be parsed, and names that a carried column cannot have."""
    names = [name for name, _ in map(parse_carry, items)]
    faults = find_name_faults(names)
    faults += [f"{name!r} is listed more than once. Keep one" for name in dict.fromkeys(names) if names.count(name) > 1]
    if faults:
        raise ValueError("; ".join(faults))
    return items
