"""Sources that are data sets on the Hub: `datasets` resolves configuration and split; files are read at one commit.

Files are read like those of other sources, over range requests (`pipeline.sources.hub_file`). The Hub's own
libraries read HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE. The file list is kept in the cache, so that a re-run sends no
request.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pipeline.recipe.schema import Recipe
from pipeline.recipe.sources import HubSource, SourceRecipe
from pipeline.sources.base import File, SourceError
from pipeline.sources.network import network_settings, open_cache
from shards.errors import import_extra
from shards.stores.hub_client import ask_hub, limit_hub_requests, open_hub_client, say_token
from shards.stores.hub_store import COMMIT, check_commit, list_file
from shards.stores.retry import StoreError
from shards.stores.store import WritableStore

_REVISIONS_FILE = "revisions.json"
_Answer = TypeVar("_Answer")


def pin_revisions(recipe: Recipe, work: WritableStore | None = None, *, keep: bool = True) -> Recipe:
    """Pin every Hub source of a recipe to a commit: the one of the work folder's first build, if any.

    Args:
        recipe: the recipe.
        work: the work folder.
        keep: whether the work folder gets the commits that it has not.

    Raises:
        SourceError: with one line for each source that cannot be resolved.
    """
    known: dict[str, str] = {}
    if work is not None and work.find(_REVISIONS_FILE) is not None:
        known = json.loads(work.read(_REVISIONS_FILE))
    commits = known.copy()
    sources: list[SourceRecipe] = []
    faults: list[str] = []
    for source in recipe.sources:
        if isinstance(source, HubSource) and not COMMIT.fullmatch(source.revision):
            key = f"{source.repo}@{source.revision}"
            try:
                commits[key] = commits.get(key) or resolve_commit(source)
                source = source.model_copy(update={"revision": commits[key]})
            except SourceError as error:
                faults.append(str(error))
        sources.append(source)
    # The commits are kept before anything is read, so that a stopped build goes on with the same ones.
    if faults:
        raise SourceError("\n".join(faults))
    if work is not None and keep and commits != known:
        work.put(_REVISIONS_FILE, (json.dumps(commits, indent=2) + "\n").encode())
    return recipe.model_copy(update={"sources": sources})


def resolve_commit(source: HubSource) -> str:
    """Return the commit of a Hub source's revision.

    Raises:
        SourceError: no such repository or revision, or no permission; the message says whether a token was sent.
    """
    where = f"source {source.name!r}: {source.repo}, revision {source.revision!r}"
    client = open_hub_client()
    return _ask(
        where,
        lambda: check_commit(where, client.dataset_info(source.repo, revision=source.revision, expand=["sha"]).sha),
    )


def _ask(where: str, request: Callable[[], _Answer]) -> _Answer:
    """Ask the Hub about a source by its libraries, and again if it fails in a way that may pass.

    Raises:
        SourceError: the Hub refuses, does not answer in time, or HF_HUB_OFFLINE forbids to ask.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        raise SourceError(f"{where}: HF_HUB_OFFLINE is set, and this is not in the cache. Unset it.")
    settings = network_settings()
    limit_hub_requests(settings.give_up_s, wait_s=settings.timeout_s)
    try:
        return ask_hub(where, request)
    except StoreError as error:
        raise SourceError(f"{error} Correct the source's keys if they are wrong.") from error


def list_files(source: HubSource) -> list[File]:
    """List the files of a Hub source's split, in the order that `datasets` reads them.

    Raises:
        SourceError: no such configuration or split; the message lists the existing ones.
    """
    key = f"files {source.repo} {source.config} {source.split} {source.revision}"
    cache = open_cache()
    if cache and (kept := cache.get(key)) is not None:
        return [File(**item) for item in json.loads(kept)]
    import_extra("datasets")
    files = _ask(f"source {source.name!r}: {source.repo}", lambda: list(_resolve_files(source)))
    if cache:
        cache.put(key, json.dumps([asdict(file) for file in files]).encode())
    return files


def _resolve_files(source: HubSource) -> Iterator[File]:
    import datasets
    from huggingface_hub import HfFileSystem

    where = f"source {source.name!r}: {source.repo}"
    datasets.disable_progress_bars()
    config: Any = datasets.config  # pyright: ignore[reportAttributeAccessIssue]
    config.HF_UPDATE_DOWNLOAD_COUNTS = False  # prevents a request to another host, whose failure would be retried
    if Path(source.repo).exists():
        raise SourceError(f"{where}: `datasets` would read the folder of that name here. Run in another folder.")
    try:
        builder = datasets.load_dataset_builder(source.repo, source.config, revision=source.revision)
    except ValueError as error:  # what `datasets` raises for an unknown configuration, and for a missing one
        names = datasets.get_dataset_config_names(source.repo, revision=source.revision)
        if source.config in names:
            raise SourceError(f"{where}: {error}") from error
        raise SourceError(
            f"{where}: no configuration {source.config!r}; there are {', '.join(names)}. Correct `config`."
        ) from error
    except FileNotFoundError as error:
        raise SourceError(f"{where}: {error} {say_token()}.") from error
    # The builder has listed the repository: which files are the split's?
    splits: Any = builder.config.data_files or {}
    if source.split not in splits:
        raise SourceError(
            f"{where}: no split {source.split!r} in configuration {builder.config.name!r}; there are "
            f"{', '.join(map(str, splits))}. Correct `split`."
        )
    fs = HfFileSystem()  # the instance with which `datasets` listed the repository: it has cached the answers
    for url in splits[source.split]:
        info: dict[str, Any] = fs.info(url, expand_info=False)
        path = url.partition(f"@{source.revision}/")[2]
        # The Hub's entity tag is the SHA-256 of a large file, and the blob id of a small one.
        etag = (info.get("lfs") or {}).get("sha256") or info["blob_id"]
        listed = list_file(where, path, info["size"], etag)
        version = f"{listed.bytes} bytes, {listed.version}"
        address = f"hf://datasets/{source.repo}@{source.revision}/{path}"  # as fsspec writes it
        yield File(address, f"{source.repo}/{path}", listed.bytes, version, source.revision)
