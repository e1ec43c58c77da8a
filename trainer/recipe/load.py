"""Reading a train recipe: every fault in one report."""

from collections.abc import Sequence
from pathlib import Path

from shards.config import Changes, Document, apply_changes, check_kind, check_settings, read_document
from shards.terminal.shipped_recipes import find_recipe
from trainer.recipe.schema import ModelConfig, TrainRecipe


def load_train_recipe(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    changes: Changes = (),
    trained: Document | None = None,
    model: ModelConfig | None = None,
) -> TrainRecipe:
    """Read a train recipe and apply `KEY=VALUE` overrides; before them `changes`, as if the file had them.

    The path is a TOML file, the JSON of a run folder, or the name of a shipped recipe. Of a file that is to score a
    model which was `trained` by another recipe, only `[eval]` counts; it may hold nothing else. A file without
    `[model]` has that of the weights that it begins with.

    Raises:
        InputError: with every fault of the file and of the overrides.
    """
    file = find_recipe(path, "train")
    data: Document = read_document(file)
    check_kind(data, "train", str(file))
    if trained is not None:
        unknown = {key: value for key, value in data.items() if key not in TrainRecipe.model_fields}
        data = unknown | trained | {"eval": data.get("eval", {})}
    if model is not None:
        data.setdefault("model", model.model_dump(exclude={"vocab_size"}))
    faults = apply_changes(data, changes, overrides)
    # A recipe that was found by its name may be anywhere: its paths begin where they would in a checkout at the working
    # directory.
    folder = file.parent if file == Path(path) else Path("recipes/train")
    return check_settings(TrainRecipe, data, where=str(file), faults=faults, context=folder)
