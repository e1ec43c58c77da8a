"""Read a recipe and check every file that it names, so that one report holds all faults before a build begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.clean.datatrove_filters import check_filter
from pipeline.clean.language import check_model
from pipeline.demo.corpus import gather_missing_corpus
from pipeline.engine.stage_progress import Progress
from pipeline.mix.block_lists import check_entries, pin_entries
from pipeline.recipe import paths
from pipeline.recipe.raw_tables import list_clean, list_of, table_of
from pipeline.recipe.read import read_recipe
from pipeline.recipe.schema import Recipe, SourceRecipe
from pipeline.sources.globs import check_globs
from shards.config import Changes
from shards.errors import check_extra
from shards.stores.files import hash_file
from shards.terminal.shipped_recipes import find_recipe

SHIPPED_PATHS_BEGIN = Path("recipes/data")
"""If a shipped recipe is given by name, its paths begin at this folder of the working directory: so
`../../out/demo-corpus` becomes `out/demo-corpus` in the working directory."""


def load_checked_recipe(
    recipe: str | Path | dict[str, Any],
    *,
    overrides: Sequence[str] = (),
    changes: Changes = (),
    progress: Progress | None = None,
) -> Recipe:
    """Read a data recipe, and check the files that it names. For the shipped `demo`, gather its text if it is missing.

    Args:
        recipe: a TOML file, a set's recipe.json, the name of a shipped recipe, or the tables of a recipe.
        overrides: `dotted.key=value` strings; paths in them are relative to the working directory.
        changes: keys and their values, as if the recipe had them.
        progress: prints a note when the text of `demo` is gathered.

    Returns:
        The recipe, with the SHA-256 of each block list.

    Raises:
        InputError: with every fault, including globs that match nothing and block lists that cannot be read.
        MissingExtraError: a library that cleaning needs is not installed.
    """
    # A shipped recipe is found by its name, and its paths begin in the working directory.
    folder = None
    if not isinstance(recipe, dict):
        given, recipe = recipe, find_recipe(recipe, paths.SHIPPED)
        if recipe != Path(given):
            folder = Path.cwd() / SHIPPED_PATHS_BEGIN
            if recipe.stem == "demo":
                gather_missing_corpus(note=(progress or Progress(quiet=True)).note)
    # All faults of the recipe and of the files that it names come in one report.
    checks = (check_globs, _check_tokenizer_file, check_entries, _check_filters)
    loaded = read_recipe(recipe, folder=folder, overrides=overrides, changes=changes, checks=checks)
    if any(source.clean.presets() for source in loaded.sources):
        check_extra("numba", "clean")
    return _pin_models(pin_entries(loaded))


def _pin_models(recipe: Recipe) -> Recipe:
    """Return the recipe with the SHA-256 of each language model."""
    sources: list[SourceRecipe] = []
    for source in recipe.sources:
        table = source.clean.language
        if table is not None and not table.sha256:
            table = table.pinned(hash_file(Path(paths.join_path(source.folder, table.file))))
            source = source.model_copy(update={"clean": source.clean.model_copy(update={"language": table})})
        sources.append(source)
    return recipe.model_copy(update={"sources": sources})


def _check_filters(data: dict[str, Any], folder: Path) -> Iterator[str]:
    """Try every filter that a raw recipe names."""
    for place, clean in list_clean(data):
        for index, table in enumerate(map(table_of, list_of(clean.get("datatrove")))):
            if isinstance(name := table.get("filter"), str) and name:
                faults = check_filter(name, table.get("arguments", {}))
                yield from (f"{place}.datatrove.{index}: {fault}" for fault in faults)
        language = table_of(clean.get("language"))
        if isinstance(model := language.get("model"), str):
            file, _, sha256 = model.partition("#sha256=")
            faults = check_model(paths.join_path(folder, file), sha256, list_of(language.get("keep")))
            yield from (f"{place}.language: {fault}" for fault in faults)


def _check_tokenizer_file(data: dict[str, Any], folder: Path) -> Iterator[str]:
    file = table_of(data.get("tokenizer")).get("file")
    if isinstance(file, str) and not Path(paths.join_path(folder, file)).is_file():
        yield f"tokenizer.file: no file {paths.join_path(folder, file)!r}. {paths.explain_path(folder, file)}"
