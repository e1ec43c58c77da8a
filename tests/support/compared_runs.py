"""Runs that are compared: their folders, written without training."""

import json
from pathlib import Path
from typing import Any

from tests.support.recipes import write_lines
from trainer.recipe import load_train_recipe


def write_run(
    run: Path,
    *overrides: str,
    steps: int = 24,
    level: float = 3.0,
    size: int = 256,
    sha: str = "a",
    scores: dict[str, tuple[float, float | None]] | None = None,
    recipe: Path = Path("train.toml"),
    **changes: Any,
) -> None:
    """Write the files of a run: its recipe, set, tokenizer and metrics, validated at every eighth step.

    Args:
        run: the folder.
        overrides: of the recipe.
        steps: how many it has taken.
        level: of the loss, to which it falls.
        size: tokens of a step.
        sha: of the set and of the tokenizer.
        scores: at each validation, each with its standard error.
        recipe: the file of the recipe.
        changes: more keys of each validation.
    """
    run.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    found = {"scores": {name: {"value": value, "stderr": stderr} for name, (value, stderr) in (scores or {}).items()}}
    for step in range(1, steps + 1):
        figures = {"tokens": step * size, "loss": level + 1 / step, "lr": 1e-3, "tokens_per_s": 128.0}
        lines.append({"step": step, **figures, "seconds": step * 2.0, "usd": step * 0.5})
        if step % 8 == 0:
            losses = {"val_tokens": 1000, "val_loss": level + 2 / step, "val_bits_per_byte": level / 2}
            lines.append({"step": step, **losses, **found, "seconds": step * 2.0 + 1, "usd": step * 0.5, **changes})
    write_lines(run / "metrics.jsonl", lines)
    changed = ["train.steps=24", *overrides]
    (run / "recipe.json").write_text(load_train_recipe(recipe, changed).model_dump_json())
    (run / "run.json").write_text(json.dumps({"shards": f"/sets/{sha}", "manifest_sha256": sha * 64}))
    (run / "tokenizer.json").write_text(json.dumps(sha))
