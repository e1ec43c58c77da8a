"""Shard sets of the text of eval sets: built by the pipeline as a program, in a cache folder that runs share.

    CACHE/DIGEST/recipe.json       the data recipe that the trainer wrote: one source, the run's tokenizer, no cleaning
    CACHE/DIGEST/tokenizer.json
    CACHE/DIGEST/set, set.work     what `tokenmill build` makes of them

CACHE is `tokenmill/eval_sets` in XDG_CACHE_HOME or ~/.cache. DIGEST is that of the source's keys, `max_tokens` and the
tokenizer. The build runs again whenever the eval set is opened: the pipeline lists the source's files, compares them
with those that it has read, and does nothing if none has changed. One process builds, and others, such as the ranks of
a run, wait for it. A folder of the cache may be deleted while no run starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from shards import ShardSet, open_set
from shards.errors import InputError, path_remedy, remedy_of
from shards.format.manifest import MANIFEST_FILE
from shards.format.tokenizer_json import parse_tokenizer
from shards.stores.cache import default_cache_folder
from shards.stores.files import atomic_open, lock_folder, write_text
from shards.terminal.reporter import Note
from trainer.eval_config import EvalSetConfig
from trainer.evaluation.validation import EvaluatedModel

RECIPE_FILE, TOKENIZER_FILE, SET_FOLDER = "recipe.json", "tokenizer.json", "set"
SOURCE = "text"
"""The name of the only source."""
_PATHS_RULE = re.compile(r"Paths begin at the recipe's folder, .*; paths of --set at the working directory\. ")


@contextlib.contextmanager
def build_text_set(config: EvalSetConfig, evaluated: EvaluatedModel, say: Note) -> Generator[ShardSet]:
    """Build the shard set of an eval set's text, or find it in the cache; no other process changes it in the body.

    Raises:
        InputError: the keys of the source, its files or the tokenizer cannot be used.
    """
    if "weight" in config.source:
        raise InputError(f"eval.sets.{config.name}.weight: unknown key. An eval set is one source: leave it out.")
    recipe = _describe_recipe(config, evaluated)
    content = json.dumps(recipe, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    digest = hashlib.sha256(f"{evaluated.tokenizer_sha256}\n{content}".encode()).hexdigest()[:32]
    folder = default_cache_folder().parent / "eval_sets" / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder, wait=f"eval set {config.name}: another process builds it in {folder}"):
            if not (folder / SET_FOLDER / MANIFEST_FILE).is_file():
                say(f"eval set {config.name}: encoding its text in {folder}")
            with atomic_open(folder / TOKENIZER_FILE) as file:
                file.write(evaluated.tokenizer_json)
            write_text(folder / RECIPE_FILE, content)
            _run_build(config.name, folder)
            yield open_set(folder / SET_FOLDER)
    except OSError as error:
        remedy = remedy_of(error) or path_remedy(error)
        message = f"{folder}: cannot be used for the eval set {config.name}: {error.strerror or error}{remedy}"
        raise InputError(f"{message} XDG_CACHE_HOME chooses another cache.") from error


def _describe_recipe(config: EvalSetConfig, evaluated: EvaluatedModel) -> dict[str, Any]:
    """Return the data recipe of an eval set's text."""
    names = {token: text for text, token in parse_tokenizer(evaluated.tokenizer_json).special.items()}
    tokenizer = {"file": TOKENIZER_FILE, "eos_token": names[evaluated.eos_id]}
    if evaluated.bos_id is not None:
        tokenizer["bos"] = names[evaluated.bos_id]
    return {
        "name": "eval-set",
        "sources": [{**config.source, "name": SOURCE, "weight": 1}],
        "tokenizer": tokenizer,
        "mix": {"tokens": config.max_tokens, "when_short": "shrink"},
    }


def _run_build(name: str, folder: Path) -> None:
    """Run the pipeline on a recipe of the cache.

    Raises:
        InputError: it refuses the recipe, or fails; the message has its problems, with the keys of the train recipe.
    """
    # -P: a folder `pipeline` in the working directory is not the program.
    command = [sys.executable, "-P", "-m", "tokenmill", "build", RECIPE_FILE, "--out", SET_FOLDER, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    try:
        found: list[str | dict[str, str]] = json.loads(done.stdout)["problems"]
        problems = [one if isinstance(one, str) else f"{one['where']}: {one['message']}" for one in found]
    except (ValueError, KeyError, TypeError):
        last = done.stderr[-2000:].strip() or f"exit status {done.returncode}"
        problems = [f"its shard set cannot be built in {folder}: {last}"]
    raise InputError([_word_problem(problem, f"eval.sets.{name}") for problem in problems])


def _word_problem(problem: str, place: str) -> str:
    """Return a problem of the cache's recipe as one of the train recipe, whose paths begin at the root by now."""
    problem = _PATHS_RULE.sub("", problem.removeprefix(f"{RECIPE_FILE}: "))
    problem = problem.replace(f"sources.{SOURCE}", place).replace(f"source {SOURCE!r}", place)
    return problem if problem.startswith(place) else f"{place}: {problem}"
