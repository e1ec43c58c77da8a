"""Flags that the pipeline's commands share: the recipe's, the network's, and the types of their values."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError
from shards.terminal import arguments as command_line
from shards.terminal.arguments import add_give_up_after, parse_path, positive_number, seconds

if TYPE_CHECKING:
    from pipeline.engine.executors import Executor
    from pipeline.sources.network import Network


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add the pipeline's recipe and the flags that override its keys, `options.recipe` and `options.overrides`."""
    example = "--set mix.tokens=1_000_000 --set sources.NAME.weight=2"
    command_line.add_recipe(parser, "a data recipe (TOML), the name of a shipped one, or a set's recipe.json", example)
    parser.add_argument(
        "--tokens",
        type=_tokens,
        metavar="N",
        help="training tokens: 1e9, 1B, 500M, 1_000_000_000 or max; reads only as much of the sources as needed, and "
        "scales split.val_tokens and shards.tokens that are too large for it, unless --set gives them",
    )
    parser.add_argument(
        "--source",
        type=_source,
        action="append",
        dest="sources",
        default=[],
        metavar="NAME=PATHS",
        help="read a source from local files that have its columns: a glob, a folder or a file; may be repeated. Rows "
        "of Software Heritage hold their text then, in the column `text`",
    )
    add_allow_code(parser)


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--allow-code`, which lets functions of a recipe run."""
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="run the Python functions that the recipe names in [[clean.python]]; read them first",
    )


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add to a pipeline's command the flags that `read_network` reads."""
    group = parser.add_argument_group("reading over a network")
    group.add_argument(
        "--cache",
        type=parse_path,
        metavar="DIR",
        help="keep every download in DIR, for other builds (default: the work folder keeps what is read twice)",
    )
    group.add_argument("--cache-limit", metavar="SIZE", help="size limit of the cache (default: 20GB)")
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        help="seconds without an answer after which a request fails (default: 30)",
    )
    add_give_up_after(group)
    group.add_argument(
        "--connections",
        type=positive_number,
        metavar="N",
        help="connections of each worker (default: 16 to the Hub, 64 to Software Heritage)",
    )
    group.add_argument(
        "--content-endpoint",
        metavar="URL",
        help="address of Software Heritage's files: https://HOST/PATH (default: its own bucket)",
    )


def read_network(options: argparse.Namespace) -> Network:
    """Return the settings that the flags about networks change."""
    from dataclasses import replace

    from pipeline.sources.network import network_settings

    limit = options.cache_limit
    given = {
        "timeout_s": options.timeout,
        "give_up_s": options.give_up_after,
        "cache_bytes": None if limit is None else command_line.parse_size("--cache-limit", limit),
        "connections": options.connections,
        "content_connections": options.connections,
        "content_endpoint": options.content_endpoint,
    }
    if options.cache:
        given |= {"cache": str(options.cache.absolute()), "cache_all": True}
    return replace(network_settings(), **{name: value for name, value in given.items() if value is not None})


def parse_build_place(text: str) -> str:
    """Parse a flag's place of a set or of a work folder: a folder with a name, or an address in an object store."""
    from shards.stores.open import absolute_place

    try:
        return absolute_place(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _tokens(text: str) -> str:
    from pipeline.recipe.key_values import parse_count

    with contextlib.suppress(ValueError):
        count = parse_count(text)
        if count == "max" or (isinstance(count, int) and count > 0):
            return text
    raise argparse.ArgumentTypeError(f"expected a number of tokens such as 1e9, 1B, 500M, or max; got {text!r}")


def _source(text: str) -> tuple[str, str]:
    name, separator, paths = text.partition("=")
    if not (name and separator and paths):
        raise argparse.ArgumentTypeError(f"expected NAME=PATHS, a source of the recipe and its files; got {text!r}")
    return name, paths


def source_files(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the files that the flag `--source` gives, by the name of their source."""
    return {name: [paths for given, paths in options.sources if given == name] for name, _ in options.sources}


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add to a pipeline's command the flags `--engine`, `--workers` and `--ray-address`."""
    parser.add_argument(
        "--engine",
        choices=["local", "ray"],
        default="local",
        help="where tasks run: in processes of this machine (default), or on a Ray cluster",
    )
    parser.add_argument(
        "--workers",
        type=positive_number,
        metavar="N",
        help="tasks that run at the same time (default: one per core of this machine, or per Ray CPU)",
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="head of the cluster with --engine ray, or "
        '"local" (default: RAY_ADDRESS, else the cluster of this machine, else local)',
    )


def open_executor(options: argparse.Namespace) -> Executor:
    """Return the executor that the flags ask for.

    Raises:
        InputError: the flag belongs to another engine, or the engine cannot be used.
    """
    # Only the engine that is asked for is imported.
    if options.engine == "ray":
        from pipeline.engine.ray_executor import RayExecutor
        from shards.terminal.display import say

        return RayExecutor(options.ray_address, workers=options.workers, say=say)
    if options.ray_address is not None:  # which would have no effect, silently
        raise InputError("--ray-address: only with --engine ray; this build has --engine local.")
    from pipeline.engine.executors import LocalExecutor, count_cores

    measures = _may_measure(options.recipe) if "recipe" in options else True
    return LocalExecutor(options.workers or count_cores(), measures=measures)


def _may_measure(recipe: str) -> bool:
    """Return whether a recipe, the value of a flag, may measure documents: whether its text has the word `clean`."""
    from shards.config import MAX_RECIPE_BYTES
    from shards.stores.files import read_file

    try:
        return b"clean" in read_file(Path(recipe), MAX_RECIPE_BYTES)
    except (OSError, ValueError):  # a shipped recipe, for example
        return True
