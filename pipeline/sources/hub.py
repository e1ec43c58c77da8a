"""Sources that are data sets on the Hub: configuration and split resolved by `datasets`, files read at one commit.

Parquet files are read by row groups over range requests (`pipeline.sources.ranges`); other formats stream through
`datasets` in Arrow batches, one file a span. HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are honoured by the Hub's own
libraries. What was resolved is kept in the cache: a re-run asks nothing of the network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.sources.base import Batch, SourceError, Span
from pipeline.sources.network import network

if TYPE_CHECKING:
    from pipeline.recipe import Recipe, SourceRecipe

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISIONS_FILE = "revisions.json"
_RESOLVE_THREADS = 16


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a split."""

    path: str
    """In the repository."""
    size: int
    etag: str
    """SHA-256 of a large file, blob id of a small one."""

    @property
    def version(self) -> str:
        """What tells that the file has changed."""
        return f"{self.size} bytes, {self.etag}"


def pin_revisions(recipe: Recipe, work: Path | None = None) -> Recipe:
    """Return the recipe with every Hub source at a commit: that of the work folder's first build, where there was one.

    Raises:
        SourceError: with one line for each source that cannot be had.
    """
    path = work / _REVISIONS_FILE if work else None
    known: dict[str, str] = json.loads(path.read_text()) if path and path.exists() else {}
    found: dict[str, str] = {}
    faults: list[str] = []
    for source in recipe.sources:
        if source.kind == "hub" and not _COMMIT.fullmatch(source.revision):
            key = f"{source.repo}@{source.revision}"
            try:
                found[key] = known.get(key) or found.get(key) or resolve_commit(source)
            except SourceError as error:
                faults.append(str(error))
    if faults:
        raise SourceError("\n".join(faults))
    if path and found.keys() - known.keys():
        from shards.writer import write_text

        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known | found, indent=2) + "\n")
    sources = [
        source.model_copy(update={"revision": found.get(f"{source.repo}@{source.revision}", source.revision)})
        for source in recipe.sources
    ]
    return recipe.model_copy(update={"sources": sources})


def resolve_commit(source: SourceRecipe) -> str:
    """Return the commit of a source's revision.

    Raises:
        SourceError: no such repository or revision, or no permission; says whether a token was sent.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.utils import get_token

    from pipeline.sources.client import install

    install()
    where = f"source {source.name!r}: {source.repo}"
    token = "A token was sent" if get_token() else "No token was sent; set HF_TOKEN if the data set needs one"
    try:
        commit = HfApi().dataset_info(_repo(source), revision=source.revision, files_metadata=False).sha
    except RevisionNotFoundError as error:
        raise SourceError(f"{where}: no revision {source.revision!r}. Correct `revision`. {token}.") from error
    except GatedRepoError as error:
        raise SourceError(f"{where}: access must be asked for on the data set's page. {token}.") from error
    except RepositoryNotFoundError as error:
        raise SourceError(f"{where}: no such data set, or it is private. Correct `repo`. {token}.") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "error"
        raise SourceError(f"{where}: the Hub answered HTTP {status}: {error}. {token}.") from error
    if not commit:
        raise SourceError(f"{where}: the Hub told no commit for {source.revision!r}")
    return commit


def list_files(source: SourceRecipe) -> list[HubFile]:
    """List the files of a source's split, in the order that `datasets` reads them.

    Raises:
        SourceError: no such configuration or split; lists those there are.
    """
    key = f"files {source.repo} {source.config} {source.split} {source.revision}"
    from pipeline.sources.ranges import open_cache

    cache = open_cache()
    if cache and (kept := cache.get(key)) is not None:
        return [HubFile(**item) for item in json.loads(kept)]
    files = _resolve_files(source)
    if cache:
        cache.put(key, json.dumps([asdict(file) for file in files]).encode())
    return files


def _resolve_files(source: SourceRecipe) -> list[HubFile]:
    from pipeline.sources.client import install

    install()
    import datasets
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import HfFileSystem

    where = f"source {source.name!r}: {source.repo}"
    datasets.disable_progress_bars()
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # a request to another host, whose failure would be retried
    try:
        builder = datasets.load_dataset_builder(_repo(source), source.config, revision=source.revision)
    except (DatasetNotFoundError, FileNotFoundError) as error:
        raise SourceError(f"{where}: {error}") from error
    except ValueError as error:
        if isinstance(error, SourceError):
            raise
        names = datasets.get_dataset_config_names(_repo(source), revision=source.revision)
        raise SourceError(
            f"{where}: no configuration {source.config!r}; there are {', '.join(names)}. Correct `config`."
        ) from error
    splits: dict[str, list[str]] = builder.config.data_files or {}
    if source.split not in splits:
        raise SourceError(
            f"{where}: no split {source.split!r} in configuration {builder.config.name!r}; there are "
            f"{', '.join(map(str, splits))}. Correct `split`."
        )
    fs = HfFileSystem()  # the one that `datasets` listed the repository with: it knows the answers
    files: list[HubFile] = []
    for url in splits[source.split]:
        info: dict[str, Any] = fs.info(url, expand_info=False)
        etag = (info.get("lfs") or {}).get("sha256") or info["blob_id"]
        files.append(HubFile(url.partition(f"@{source.revision}/")[2], int(info["size"]), str(etag)))
    return files


def list_spans(source: SourceRecipe, file: HubFile) -> list[Span]:
    """Cut one file into spans.

    Raises:
        SourceError: the file is broken or lacks a column.
    """
    from dataclasses import replace

    from pipeline.sources.files import format_of
    from pipeline.sources.ranges import hub_url, keep_fetched

    url = hub_url(_repo(source), source.revision, file.path)
    format_ = format_of(file.path) if source.format == "auto" else source.format
    name = f"{source.repo}/{file.path}"
    if format_ == "parquet":
        from pipeline.sources import parquet

        with keep_fetched():  # the footer is read again by whoever reads the file
            spans = parquet.list_spans(source, url, name, file.version)
        return [replace(span, revision=source.revision) for span in spans]
    raise NotImplementedError


def resolve(source: SourceRecipe) -> list[Span]:
    """List a source's spans, in order.

    Raises:
        SourceError: with one line for each file that cannot be read or has not the columns.
    """
    with ThreadPoolExecutor(min(_RESOLVE_THREADS, network().connections)) as pool:
        listed = pool.map(lambda file: list_spans(source, file), list_files(source))
        return [span for spans in listed for span in spans]


def read(source: SourceRecipe, span: Span) -> Iterator[Batch]:
    """Stream a span's batches.

    Raises:
        SourceError: the file is broken, is another one now, or cannot be had in time.
    """
    if span.format == "parquet":
        from pipeline.sources import parquet

        return parquet.read_span(source, span)
    raise NotImplementedError


def _repo(source: SourceRecipe) -> str:
    assert source.repo is not None  # the recipe's check: `hub` needs it
    return source.repo
