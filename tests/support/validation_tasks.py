"""Validate a set as a build does: as tasks on an engine, with the checksums that the writer has noted."""

from __future__ import annotations

import contextlib
from pathlib import Path

import xxhash
import zstandard

import shards
from pipeline.assemble.assemble import AssembleResult
from pipeline.builder.running_build import RunningBuild
from pipeline.builder.stages.validation import run_validation
from pipeline.engine.driver import Driver, StageResult
from pipeline.engine.stage_progress import Progress
from pipeline.recipe.schema import Recipe
from shards.errors import ShardSetError
from shards.stores.open import open_writable_store
from shards.stores.store import FolderStore
from shards.validation.validate import ValidationResult
from tests.support.json_executor import JsonExecutor


def validate_as_tasks(
    place: Path | str, work: Path, checksums: dict[str, str] | None = None
) -> tuple[ValidationResult, JsonExecutor]:
    """Check a set in full, by calls that have been JSON; return what was found, and the calls."""
    executor = JsonExecutor()
    driver = Driver(FolderStore(work), executor, Progress(quiet=True))
    build = RunningBuild(driver.work, Recipe.model_construct(), open_writable_store(place), driver, [])
    build.stages["assemble"] = StageResult([AssembleResult(checksums=checksums or {})], 0, 0.0)
    report, _ = run_validation(build)
    assert not (work / "validate").exists()
    return report, executor


def claim_checksums(folder: Path) -> dict[str, str]:
    """Return what the writer of a set would have noted: by the SHA-256 of the manifest the XXH3-128 of what is there.

    Files that cannot be read are left out.
    """
    claims: dict[str, str] = {}
    with contextlib.suppress(ShardSetError, OSError):
        for shard in shards.open_set(folder).shards:
            with contextlib.suppress(ShardSetError, OSError, zstandard.ZstdError):
                data = (folder / shard.entry.files.tokens.path).read_bytes()
                content = xxhash.xxh3_128(b"".join(tokens.tobytes() for tokens in shard.iter_tokens()))
                claims[shard.entry.files.tokens.sha256] = xxhash.xxh3_128_hexdigest(data)
                claims[shard.entry.tokens_sha256] = content.hexdigest()
    return claims
