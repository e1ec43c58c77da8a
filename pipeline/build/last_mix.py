"""What a build notes of its last mix for `clean-report`: where it lies, and what was dropped before encoding."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import xxhash

from pipeline.build.context import BuildContext
from pipeline.clean.evaluations.items import source_of
from pipeline.clean.filters import count_masked
from pipeline.encode.run import Run, RunList
from pipeline.recipe.schema import Recipe
from pipeline.tokenizer.encoder import TokenizerInfo
from shards.errors import InputError
from shards.stores.store import WritableStore

LAST_FILE = "last-cleaning.json"
"""In the folder of the mix stage."""
EXAMPLES = 20
"""Documents that are kept of each reason to drop them before encoding."""


def note_cleaning(
    context: BuildContext,
    recipe: Recipe,
    runs: RunList,
    tokenizer: TokenizerInfo,
    mix_digest: str,
    evaluations: WritableStore | None,
) -> None:
    """Note in the work folder which mix was the last that cleaned, and what encoding has dropped of its sources.

    Args:
        context: the build.
        recipe: the recipe.
        runs: the runs that were mixed, with the results of encoding.
        tokenizer: the tokenizer of the runs.
        mix_digest: the digest of the mix task.
        evaluations: the folder of the task that read the evaluation sets.
    """
    folder = str(recipe.folder)
    last = {
        "mix": mix_digest,
        "tokenizer_task": tokenizer.task.rpartition("/")[2] if tokenizer.task else None,
        "tokenizer_file": tokenizer.path,
        "sources": [
            {"name": source.name} | _count_encoded([run for run in runs.runs if run.source == number])
            for number, source in enumerate(recipe.sources)
        ],
        "evaluations": evaluations and str(evaluations).rpartition("/")[2],
        "evaluation_sources": [
            source_of(evaluation, folder).model_dump(mode="json") for evaluation in recipe.evaluations
        ],
        "recipe_folder": str(recipe.folder.absolute()),
    }
    context.work.child("mix").put(LAST_FILE, (json.dumps(last) + "\n").encode())
    context.used["mix"].add(LAST_FILE)


def _count_encoded(runs: list[Run]) -> dict[str, Any]:
    results = [run.output.result for run in runs]
    dropped: Counter[str] = Counter()
    examples: list[dict[str, Any]] = []
    for done in results:
        dropped.update(done["dropped"])
        examples += [item["document"] for item in done.get("fallen", {}).get("shown", [])]
        examples += done.get("filtered", {}).get("shown", [])
    return {"dropped": dict(dropped), "masked": count_masked(results), "examples": _draw(examples)}


def _draw(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `EXAMPLES` of each reason, by the hash of their place: not all of the first unit."""
    drawn: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for item in sorted(examples, key=lambda item: xxhash.xxh3_64_intdigest(f"{item['place']} {item['row']}".encode())):
        seen[item["reason"]] += 1
        if seen[item["reason"]] <= EXAMPLES:
            drawn.append({"value": None, "limit": None} | {key: item[key] for key in item if key != "step"})
    return drawn


def read_last(work: WritableStore) -> dict[str, Any]:
    """Return what was noted of the last mix in a work folder.

    Raises:
        InputError: nothing is there, no mix has cleaned, or an earlier version did.
    """
    try:
        last: dict[str, Any] = json.loads(work.child("mix").read(LAST_FILE))
    except OSError as error:
        if next(work.list(), None) is None:
            found = "is empty" if work.folder is None or work.folder.is_dir() else "no such folder"
            raise InputError(f"{work}: {found}. Give the work folder (--work) of a build, or its set.") from error
        raise InputError(
            f"{work}: no mix here has cleaned. Give the work folder (--work) of a build whose recipe has a `clean` "
            "table, such as [clean.gopher] or [clean.near_duplicates], or [[evaluations]]."
        ) from error
    if "sources" not in last:
        raise InputError(
            f"{work}: mixed by an earlier version of this program. Run the build again; it encodes nothing."
        )
    return last
