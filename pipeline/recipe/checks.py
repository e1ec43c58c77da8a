"""Rules between the keys of a data recipe, checked on the raw one: of sources, weights, phases and tokenizer.

They check the raw document, so that their faults are in the same report as the model's. No file is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from math import inf
from typing import Any

from pydantic import BaseModel

from pipeline.recipe.presets import PRESETS
from pipeline.recipe.schema import BOS_TEXTS, NUM_BYTES, EvaluationRecipe, TokenizerRecipe
from pipeline.recipe.sources import SourceRecipe
from shards.config import list_of, named_tables, read_partly, table_of
from shards.errors import plural
from shards.eval_tasks.known import KNOWN_TASKS
from shards.terminal.gone import nearest

MOST_SUM_PER_WEIGHT = 1_000_000_000
"""The weight of a source must be at least one in so many of the sum of all weights."""
_KEYS_OF_CONTENT = ("blob_id", "max_missing")
_KEYS_OF_FILES = ("format", "text", "separator", "delimiter")
_KEYS_OF_TRAINING = (
    "vocab_size",
    "special_tokens",
    "pretokenizer",
    "id_order",
    "sample_bytes",
    "sample_weights",
    "sample_limits",
)


def check_sources(data: dict[str, Any]) -> Iterator[str]:
    """Yield the faults between the keys of each source of a raw recipe, and between sources."""
    yield from _check_names(data, "evaluations", "evaluation sets")
    for place, table in named_tables(data, "evaluations"):
        yield from _check_evaluation(place, table)
    yield from _check_names(data, "sources", "sources")
    sources = named_tables(data, "sources")
    for place, source in sources:
        yield from _check_source(place, source)
    names = sorted(str(source["name"]) for _, source in sources if "name" in source)
    section = table_of(data.get("tokenizer"))
    weights = section.get("sample_weights")
    if isinstance(weights, dict) and sorted(table_of(weights)) != names:
        yield f"tokenizer.sample_weights: expected one weight for each of {names}, got {sorted(table_of(weights))}"
    # Limits of the sample: tables of what the sample is not cleaned by when documents are.
    for name, tables in table_of(section.get("sample_limits")).items():
        source = next((source for _, source in sources if source.get("name") == name), None)
        clean = table_of(data.get("clean")) | table_of(source.get("clean")) if source else {}
        mixed = [preset for preset in PRESETS if _applies_in_mix(clean.get(preset))]
        for preset, table in table_of(tables).items():
            if preset not in mixed or not _applies_in_mix(table):
                expected = ", ".join(mixed) or "none"
                yield (
                    f"tokenizer.sample_limits.{name}.{preset}: expected a table of a preset that the source has on, "
                    f'both with when = "mix": {expected}'
                )


def _check_evaluation(place: str, table: dict[str, Any]) -> Iterator[str]:
    # The items are in files, or those of a known eval task.
    task = table.get("task")
    if isinstance(task, str) and task not in KNOWN_TASKS:
        yield f"{place}.task = {task!r}: no such eval task.{nearest(task, list(KNOWN_TASKS))}"
    elif task is not None:
        if table.get("paths"):
            yield f"{place}.task: the items of an eval task come from the Hub. Leave `task` or `paths` out."
        why = "not used: it says how files are read. Leave `{key}` or `task` out."
        yield from _refuse(EvaluationRecipe, place, table, _KEYS_OF_FILES, why)
    elif "paths" not in table:
        yield f"{place}.paths: required key is missing. Give it, or task."
    elif table["paths"] == []:
        yield f"{place}.paths: expected at least one glob"


def _applies_in_mix(table: Any) -> bool:
    return isinstance(table, dict) and table_of(table).get("when", "mix") == "mix"


def _check_source(place: str, source: dict[str, Any]) -> Iterator[str]:
    for key in SourceRecipe.foreign_keys(source):
        yield f"{place}.{key}: {SourceRecipe.kind_of(source).REMEDY}"
    if source.get("content", "column") == "column":
        why = "only with content = 'software-heritage'. Leave it out, or set `content`."
        yield from _refuse(SourceRecipe, place, source, _KEYS_OF_CONTENT, why)
    else:
        why = "the text comes from `content`, not from a column. Leave it out."
        yield from _refuse(SourceRecipe, place, source, ("text",), why)
    encoding = str(source.get("encoding", "utf-8"))
    try:
        str(source.get("separator", "")).encode(encoding)
    except UnicodeEncodeError:
        yield f"{place}.separator: cannot be written in {encoding}, so no file has it. Correct one of them."
    except (LookupError, UnicodeError):
        pass  # no such encoding, or none of texts: the model reports that, and a second fault would say the same


def check_weights(data: dict[str, Any]) -> Iterator[str]:
    """Check the weights of a raw recipe: yield those whose share of the mix is next to nothing beside the others."""
    weights = {place: table.get("weight") for place, table in named_tables(data, "sources")}
    exact = {
        place: Fraction(str(weight))
        for place, weight in weights.items()
        if isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < inf
    }
    for place, weight in exact.items():
        if weight * MOST_SUM_PER_WEIGHT < sum(exact.values()):
            yield (
                f"{place}.weight: {weights[place]} is less than one in {MOST_SUM_PER_WEIGHT:,} of the sum of the "
                "weights. Give it more, or leave the source out."
            )


def check_phases(data: dict[str, Any]) -> Iterator[str]:
    """Yield the faults between the keys of phases and of sources. A phase that the model refuses is left out."""
    phases = [(place, phase) for place, phase in named_tables(data, "mix.phases") if _is_phase(phase)]
    if not phases:
        return
    yield from _check_names(data, "mix.phases", "phases")
    shares = [Decimal(str(phase["share"])) for _, phase in phases]
    # The shares of phases that the model refuses are unknown: then their sum says nothing.
    if sum(shares) != 1 and len(phases) == len(named_tables(data, "mix.phases")):
        *before, _ = shares
        left = 1 - sum(before)
        remedy = f"Give {phases[-1][0]} the share {left}" if left > 0 else "Give the phases smaller shares"
        listed = " + ".join(map(str, shares))
        yield f"mix.phases: the shares add up to {listed} = {sum(shares)}; expected exactly 1. {remedy}."
    own = {str(source["name"]): source.get("weight") for _, source in named_tables(data, "sources") if "name" in source}
    used: set[str] = set()
    for place, phase in phases:
        given = table_of(phase.get("weights"))
        if unknown := sorted(given.keys() - own.keys()):
            yield f"{place}.weights: no source has the name {', '.join(map(repr, unknown))}; expected some of {[*own]}"
        # A source that a phase does not name keeps its own weight.
        weights = {name: given.get(name, weight) for name, weight in own.items()}
        used |= {name for name, weight in weights.items() if weight}
        if own and not any(weights.values()):
            yield f"{place}.weights: every source has the weight 0. Give one of them more."
    for name in sorted(own.keys() - used):
        yield f"sources.{name}: every phase gives it the weight 0. Leave the source out, or give it a weight."


def _is_phase(phase: dict[str, Any]) -> bool:
    """Return whether the rules between phases can be applied to a raw one; the model reports what is wrong with it."""
    numbers = [phase.get("share"), *table_of(phase.get("weights")).values()]
    return "name" in phase and all(
        isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < inf for number in numbers
    )


def check_tokenizer(data: dict[str, Any]) -> Iterator[str]:
    """Yield the faults between the keys of `[tokenizer]`."""
    if not isinstance(data.get("tokenizer"), dict):
        return
    raw = table_of(data["tokenizer"])
    # A file decides almost everything; a trained tokenizer must have room for what it always holds.
    if raw.get("file") is not None:
        why = "the tokenizer `file` decides it, so the key has no effect. Leave it out "
        why += "(on the command line: --set 'tokenizer={{file = \"...\"}}')"
        yield from _refuse(TokenizerRecipe, "tokenizer", raw, _KEYS_OF_TRAINING, why)
        return
    why = "a trained tokenizer knows every character. Leave it out, or give a tokenizer `file`."
    yield from _refuse(TokenizerRecipe, "tokenizer", raw, ("max_unknown",), why)
    section = read_partly(TokenizerRecipe, raw)
    if not isinstance(given := raw.get("special_tokens", section.special_tokens), list):
        return
    specials = list_of(given)
    for key, token in (("eos_token", section.eos_token), ("bos", section.bos)):
        if isinstance(token, str) and token not in specials:
            yield f"tokenizer.{key}: {token!r} is not among special_tokens {specials}"
    # Known before training, as it would be of the trained tokenizer.
    if section.bos is True and sum(token in BOS_TEXTS for token in specials) != 1:
        found = f"which of special_tokens {specials} begins documents is not clear"
        yield f"tokenizer.bos: {found}. Give one of them as `bos`."
    elif section.bos == section.eos_token:
        yield f"tokenizer.bos: {section.bos!r} ends documents already. Give another one, or leave `bos` out."
    least = NUM_BYTES + len(specials)
    if section.vocab_size is None:
        yield "tokenizer.vocab_size: required key is missing. Give it, or a tokenizer `file`."
    elif section.vocab_size < least:
        yield (
            f"tokenizer.vocab_size: {section.vocab_size} is too small; {NUM_BYTES} bytes and "
            f"{plural(len(specials), 'special token')} need at least {least}"
        )


CHECKS = (check_sources, check_tokenizer, check_weights, check_phases)
"""From a raw recipe, of any shape, to faults."""


def _check_names(data: dict[str, Any], key: str, what: str) -> Iterator[str]:
    names = [str(table["name"]) for _, table in named_tables(data, key) if "name" in table]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{key}: {names.count(name)} {what} are called {name!r}; expected distinct names"


def _refuse(
    model: type[BaseModel], place: str, table: dict[str, Any], keys: tuple[str, ...], why: str
) -> Iterator[str]:
    """Yield a fault for each key of a data recipe that may not stand beside another, unless it has its default."""
    for key in keys:
        if key in table and table[key] != model.model_fields[key].get_default(call_default_factory=True):
            yield f"{place}.{key}: {why.format(key=key)}"
