"""Read a recipe and check every file that it names, so that one report holds all faults before a build begins."""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pipeline.clean.datatrove import check_filter
from pipeline.clean.functions.modules import read_function
from pipeline.clean.language import check_model
from pipeline.demo.corpus import gather_missing_corpus
from pipeline.engine.stage_progress import Progress
from pipeline.mix.block_lists import check_entries, pin_entries
from pipeline.recipe.paths import SHIPPED, RecipePath, explain_path, find_recipe_folder
from pipeline.recipe.schema import Recipe, SourceRecipe
from pipeline.recipe.shares import Demand, fit_sizes
from pipeline.recipe.sources import read_from_files
from pipeline.sources.files import check_globs
from pipeline.tokenizer.given_tokenizer import explain_making
from pipeline.tokenizer.train import TOKENIZER_FILE
from shards.config import (
    Changes,
    Document,
    TypedText,
    apply_changes,
    check_document,
    check_kind,
    check_settings,
    list_of,
    read_document,
    settings_error,
    table_of,
)
from shards.errors import InputError, check_extra, shell_command, unread
from shards.format.manifest import MANIFEST_FILE
from shards.format.vocabulary import MAX_TOKENIZER_BYTES
from shards.stores.files import hash_file, open_named
from shards.stores.store import FolderStore, folder_beside
from shards.terminal.shipped_recipes import find_recipe

SHIPPED_PATHS_BEGIN = Path("recipes/data")
"""If a shipped recipe is given by name, its paths begin at this folder of the working directory: so
`../../out/demo-corpus` becomes `out/demo-corpus` in the working directory."""


def load_checked_recipe(
    recipe: str | Path | Document,
    *,
    overrides: Sequence[str] = (),
    changes: Changes = (),
    tokens: int | str | None = None,
    files: Mapping[str, Sequence[str]] = {},
    progress: Progress | None = None,
    allow_code: bool = False,
) -> Recipe:
    """Read a data recipe, and check the files that it names; gather the text of the shipped demos if it is missing.

    Args:
        recipe: a TOML file, a set's recipe.json, the name of a shipped recipe, or the tables of a recipe.
        overrides: `dotted.key=value` strings; paths in them are relative to the working directory.
        changes: keys and their values, as if the recipe had them.
        tokens: `mix.tokens` of a smaller set; what is too large for it is scaled, unless an override gives it.
        files: by the name of a source, the paths that it is read from instead of its own place.
        progress: prints a note when the text of the demo is gathered, and what is scaled.
        allow_code: whether functions that the recipe names may run.

    Returns:
        The recipe, with the SHA-256 of each block list, language model and function.

    Raises:
        InputError: with every fault, including globs that match nothing and block lists that cannot be read.
        MissingExtraError: a library that cleaning needs is not installed.
    """
    folder, where, given = Path(), "recipe", {}
    changes = list(changes)
    if isinstance(recipe, dict):
        check_document(recipe, where)
        given = copy.deepcopy(recipe)
    else:
        if Path(recipe).is_dir() and not (SHIPPED / f"{recipe}.toml").is_file():
            if (Path(recipe) / MANIFEST_FILE).is_file():
                raise InputError(f"{recipe}: is a shard set; its recipe is {Path(recipe) / 'recipe.json'}.")
            command = shell_command("tokenmill", "init", Path(recipe))
            raise InputError(f"{recipe}: is a folder; `{command}` writes a recipe for its files.")
        file = find_recipe(recipe, "data")
        given, where, folder = read_document(file), str(file), file.parent
        if file != Path(recipe):
            # A shipped recipe is found by its name, and its paths begin in the working directory.
            folder = SHIPPED_PATHS_BEGIN
            if file.stem in ("demo", "chat-demo"):
                gather_missing_corpus(note=(progress or Progress(quiet=True)).note)
        elif file.name == "recipe.json":
            work = folder_beside(FolderStore(file.parent), "work")
            folder = find_recipe_folder(FolderStore(work)) or file.parent
            # A set's own tokenizer; if the recipe had such a file, it is the same.
            if table_of(given.get("tokenizer")).get("file") == TOKENIZER_FILE:
                own_file = os.path.relpath(file.with_name(TOKENIZER_FILE), folder)
                changes.insert(0, ("tokenizer.file", ["tokenizer", "file"], own_file))
    check_kind(given, "data", where)
    folder = Path(os.path.abspath(folder))  # without `..`: the same paths from any working directory
    absent, whole = _names_without_weight(given), table_of(given.get("mix")).get("tokens")
    for source in map(table_of, list_of(given.get("sources"))):
        if str(source.get("name")) in files:
            read_from_files(source)
    for name, paths in files.items():
        typed = all(isinstance(path, TypedText) for path in paths)
        changes.append((f"--source {name}" if typed else f"sources[{name!r}]", ["sources", name, "paths"], [*paths]))
    if tokens is not None:
        changes.append((f"--tokens {tokens}", ["mix", "tokens"], tokens))
    faults = list(apply_changes(given, changes, overrides))
    _leave_out(given, _names_without_weight(given) - absent)
    # All faults of the recipe and of the files that it names come in one report.
    on_files = (_check_tokenizer_file, check_globs, check_entries)
    checks = (_check_filters, *(partial(check, folder=folder) for check in on_files))
    checked = check_settings(Recipe, given, where=where, checks=checks, faults=faults, context=folder)
    # What is too large, and a phase smaller than a shard, are known only when all numbers are good.
    if tokens is not None:
        checked, scaled = fit_sizes(checked, whole, {override.partition("=")[0].strip() for override in overrides})
        if scaled and progress:
            progress.note_once(f"--tokens {tokens}: scaled to fit: {scaled}. Give your own with --set.")
    if isinstance(checked.mix.tokens, int) and (small := Demand(checked).small_phases(checked.mix.tokens)):
        raise settings_error(where, small)
    if checked.clean.near_duplicates or any(source.clean.presets() for source in checked.sources):
        check_extra("numba")
    return pin_models(pin_entries(checked), allow_code=allow_code)


def _leave_out(data: Document, names: set[str]) -> None:
    """Take sources whose weight a change has set to 0 out of the phases, too: messages give that as a remedy."""
    for phase in list_of(table_of(data.get("mix")).get("phases")):
        for name in names:
            table_of(table_of(phase).get("weights")).pop(name, None)


def _names_without_weight(data: Document) -> set[str]:
    sources = map(table_of, list_of(data.get("sources")))
    # `false`, which equals 0, is refused.
    return {str(one.get("name")) for one in sources if repr(one.get("weight")) in ("0", "0.0")}


def pin_models(recipe: Recipe, *, allow_code: bool) -> Recipe:
    """Return the checked recipe with the SHA-256 of each language model's file, and with the modules of its functions.

    Args:
        recipe: the recipe.
        allow_code: whether its functions may run.

    Raises:
        InputError: a function is not there, or not as it was pinned.
    """
    sources: list[SourceRecipe] = []
    for source in recipe.sources:
        language = source.clean.language
        if language is not None and not language.model.sha256:
            language = language.with_values(model=language.model.pinned(hash_file(Path(language.file))))
        python = [read_function(table, allow_code=allow_code) for table in source.clean.python or ()] or None
        clean = source.clean.with_values(language=language, python=python)
        sources.append(source.with_values(clean=clean))
    return recipe.with_values(sources=sources)


def _check_filters(recipe: Recipe) -> Iterator[str]:
    """Check every filter and language model that a recipe names, by trying it."""
    for place, clean in recipe.clean_tables:
        for index, table in enumerate(clean.datatrove or ()):
            if isinstance(table.filter, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                for fault in check_filter(table.filter, table.arguments):
                    yield f"{place}.datatrove.{index}: {fault}"
        table = clean.language
        if table and isinstance(table.model, RecipePath) and (table.enabled or "model" in table.model_fields_set):  # pyright: ignore[reportUnnecessaryIsInstance]
            faults = check_model(table.file, table.model.sha256, table.keep)
            yield from (f"{place}.language: {fault}" for fault in faults)


def _check_tokenizer_file(recipe: Recipe, folder: Path) -> Iterator[str]:
    file = recipe.tokenizer.file
    if not isinstance(file, RecipePath):
        return
    if os.path.isdir(file):
        inside = Path(file) / TOKENIZER_FILE
        found = f"Give its file {str(inside)!r}." if inside.is_file() else explain_making(Path(file))
        yield f"tokenizer.file: {str(file)!r} is a folder, not a tokenizer.json. {found}"
        return
    try:
        with open_named(file, MAX_TOKENIZER_BYTES):
            return
    except OSError as error:
        remedy = "Give a tokenizer.json." if os.path.exists(file) else explain_path(folder, file.written)
        yield f"tokenizer.file: {str(file)!r} {unread(error, remedy)}"
