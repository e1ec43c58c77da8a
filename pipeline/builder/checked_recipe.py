"""Read a recipe and check every file that it names, so that one report holds all faults before a build begins."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from pipeline.clean.datatrove import check_filter
from pipeline.clean.language import check_model
from pipeline.clean.python import load_function, read_function
from pipeline.demo.corpus import gather_missing_corpus
from pipeline.engine.stage_progress import Progress
from pipeline.mix.block_lists import check_entries, pin_entries
from pipeline.recipe.checks import CHECKS
from pipeline.recipe.clean_recipe import PACKAGED_MODEL, find_model
from pipeline.recipe.paths import DIGEST_MARK, SHIPPED, TypedPath, explain_path, find_recipe_folder, locate
from pipeline.recipe.schema import Recipe, SourceRecipe
from pipeline.recipe.shares import small_phases
from pipeline.sources.files import check_globs
from pipeline.tokenizer.given_tokenizer import explain_making
from pipeline.tokenizer.train import TOKENIZER_FILE
from shards.config import (
    Changes,
    apply_changes,
    apply_override,
    check_settings,
    find_other_kind,
    list_of,
    named_tables,
    read_document,
    settings_error,
    table_of,
)
from shards.errors import InputError, check_extra
from shards.format.manifest import MANIFEST_FILE
from shards.stores.files import PIPE, hash_file
from shards.stores.store import FolderStore
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
    allow_code: bool = False,
) -> Recipe:
    """Read a data recipe, and check the files that it names. For the shipped `demo`, gather its text if it is missing.

    Args:
        recipe: a TOML file, a set's recipe.json, the name of a shipped recipe, or the tables of a recipe.
        overrides: `dotted.key=value` strings; paths in them are relative to the working directory.
        changes: keys and their values, as if the recipe had them.
        progress: prints a note when the text of `demo` is gathered.
        allow_code: whether functions that the recipe names run if its file is in a set or another user's.

    Returns:
        The recipe, with the SHA-256 of each block list, language model and function.

    Raises:
        InputError: with every fault, including globs that match nothing and block lists that cannot be read.
        MissingExtraError: a library that cleaning needs is not installed.
    """
    folder, where, data = None, "recipe", copy.deepcopy(recipe) if isinstance(recipe, dict) else {}
    own: list[Path] = []
    if not isinstance(recipe, dict):
        if Path(recipe).is_dir() and not (SHIPPED / f"{recipe}.toml").is_file():
            if (Path(recipe) / MANIFEST_FILE).is_file():
                raise InputError(f"{recipe}: is a shard set; its recipe is {Path(recipe) / 'recipe.json'}.")
            raise InputError(f"{recipe}: is a folder; `tokenmill init {recipe}` writes a recipe for its files.")
        file = find_recipe(recipe, SHIPPED)
        data, where, folder = read_document(file), str(file), file.parent
        own.append(file)
        if file != Path(recipe):
            # A shipped recipe is found by its name, and its paths begin in the working directory.
            folder = SHIPPED_PATHS_BEGIN
            if file.stem == "demo":
                gather_missing_corpus(note=(progress or Progress(quiet=True)).note)
        elif file.name == "recipe.json":
            folder = _find_set_folder(file, data)
    if other := find_other_kind(data, "data"):
        raise settings_error(where, [other])
    folder = Path(os.path.abspath(folder or Path()))  # without `..`: the same paths from any working directory
    before = _leave_out(data.copy())
    if faults := apply_changes(data, changes):
        raise settings_error(where, faults)
    faults = [fault for override in overrides for fault in apply_override(data, override, _mark_typed)]
    # Tables may name a source that a change leaves out: messages give that as a remedy.
    left_out = _leave_out(data) - before
    section = table_of(data.get("tokenizer"))
    tables = [section.get("sample_weights"), section.get("sample_limits")]
    for table in (*tables, *(phase.get("weights") for _, phase in named_tables(data, "mix.phases"))):
        for name in left_out:
            table_of(table).pop(name, None)
    # All faults of the recipe and of the files that it names come in one report.
    on_files = (_check_tokenizer_file, _check_filters, check_globs, check_entries)
    checks = (*CHECKS, *(partial(check, folder=folder) for check in on_files))
    checked = check_settings(Recipe, data, where=where, checks=checks, faults=faults, context=folder)
    # A phase smaller than a shard is known only when all numbers are good.
    if isinstance(checked.mix.tokens, int) and (small := small_phases(checked, checked.mix.tokens)):
        raise settings_error(where, small)
    if any(source.clean.presets() for source in checked.sources):
        check_extra("numba")
    return pin_models(pin_entries(checked), None if allow_code else own)


def _leave_out(data: dict[str, Any]) -> set[str]:
    """Leave the sources of weight 0 out of a recipe, and return their names; `false`, which equals 0, is refused."""
    sources = list_of(data.get("sources"))
    kept = [one for one in sources if repr(table_of(one).get("weight")) not in ("0", "0.0")]
    if sources:
        data["sources"] = kept
    return {str(table_of(one).get("name")) for one in sources if one not in kept}


def _find_set_folder(file: Path, data: dict[str, Any]) -> Path:
    """Return the folder at which paths begin if the recipe to check is a set's recipe.json.

    It says `tokenizer.json` for the set's own; if the recipe had such a file, it is the same.
    """
    folder = find_recipe_folder(FolderStore(file.parent)) or file.parent
    section = table_of(data.get("tokenizer"))
    if section.get("file") == TOKENIZER_FILE and folder != file.parent:
        section["file"] = locate(Path(os.path.abspath(file.parent)), TOKENIZER_FILE).seen_from(folder)
    return folder


def _mark_typed(value: Any) -> Any:
    """Mark the texts of an override before a recipe is checked: their paths begin at the working directory."""
    if isinstance(value, dict):
        return {key: _mark_typed(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_mark_typed(item) for item in cast("list[Any]", value)]
    return TypedPath(value) if isinstance(value, str) else value


def pin_models(recipe: Recipe, own: Sequence[Path] | None = ()) -> Recipe:
    """Return the checked recipe with the SHA-256 of each language model's file, and with the modules of its functions.

    Args:
        recipe: the recipe.
        own: files that must be the user's own, like the modules, if functions are run; None if all may run.

    Raises:
        InputError: a function is not there, not as it was pinned, not the user's own, or cannot be loaded.
    """
    sources: list[SourceRecipe] = []
    for source in recipe.sources:
        language = source.clean.language
        if language is not None and not language.sha256:
            language = language.model_copy(update={"model": language.model.pinned(hash_file(Path(language.file)))})
        python = [read_function(table) for table in source.clean.python or ()] or None
        for table in python or ():
            for path in () if own is None else (*own, *map(Path, table.modules)):
                elsewhere = bool(own) and "/" in table.function.written
                if elsewhere or (path.parent / MANIFEST_FILE).exists() or path.stat().st_uid not in (0, os.geteuid()):
                    raise InputError(
                        f"{path}: is in a set ({MANIFEST_FILE} is beside it), another user's, or names a module of "
                        f"another folder, so {table.step} is not run. Read the module, then give --allow-code (in "
                        "Python, allow_code=True)."
                    )
            load_function(table)
        clean = source.clean.model_copy(update={"language": language, "python": python})
        sources.append(source.model_copy(update={"clean": clean}))
    return recipe.model_copy(update={"sources": sources})


def _check_filters(data: dict[str, Any], folder: Path) -> Iterator[str]:
    """Check every filter and language model that a recipe names, by trying it."""
    tables = [("", data), *((f"{place}.", table) for place, table in named_tables(data, "sources"))]
    for place, clean in ((f"{place}clean", table_of(table.get("clean"))) for place, table in tables):
        for index, table in enumerate(map(table_of, list_of(clean.get("datatrove")))):
            if isinstance(name := table.get("filter"), str) and name:
                faults = check_filter(name, table.get("arguments", {}))
                yield from (f"{place}.datatrove.{index}: {fault}" for fault in faults)
        language = table_of(clean.get("language"))
        model = language.get("model", PACKAGED_MODEL if language.get("enabled", bool(language)) else None)
        if isinstance(model, str):
            model = locate(folder, model)
            faults = check_model(find_model(model), model.partition(DIGEST_MARK)[2], list_of(language.get("keep")))
            yield from (f"{place}.language: {fault}" for fault in faults)


def _check_tokenizer_file(data: dict[str, Any], folder: Path) -> Iterator[str]:
    file = table_of(data.get("tokenizer")).get("file")
    if not isinstance(file, str):
        return
    located = Path(locate(folder, file))
    if located.is_dir():
        inside = located / TOKENIZER_FILE
        found = f"Give its file {str(inside)!r}." if inside.is_file() else explain_making(located)
        yield f"tokenizer.file: {str(located)!r} is a folder, not a tokenizer.json. {found}"
    elif located.exists() and not located.is_file():
        yield f"tokenizer.file: {str(located)!r} is {PIPE}. Write its contents to a file."
    elif not located.is_file():
        yield f"tokenizer.file: no file {str(located)!r}. {explain_path(folder, file)}"
