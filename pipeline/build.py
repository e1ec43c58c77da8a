"""Build: from a recipe to a validated shard set, stage by stage. A re-run does only what is missing.

    sources --units--> encode --runs sorted by content hash--> mix --cut keys--> assemble --> shard set
       \\__ sample __> tokenizer __/

The set's bytes depend on the recipe and the data alone: not on the number of workers, on interruptions, or on time.
Only the work folder's build.json holds times.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from pipeline import assemble, encode, mix, plan, sample
from pipeline.engine import StageResult, Task, digest_of, lock_folder, read_receipt, run_stage
from pipeline.progress import Progress
from pipeline.recipe import Recipe, SourceRecipe
from pipeline.run import Run
from pipeline.sources.base import Unit
from pipeline.tokenizer import TokenizerInfo, load_tokenizer
from shards.manifest import (
    MANIFEST_FILE,
    Manifest,
    MixEntry,
    RecipeEntry,
    ShardEntry,
    SourceCounts,
    SourceEntry,
    SplitEntry,
    TokenizerEntry,
    dtype_for,
)
from shards.reader import Level
from shards.validate import Report, validate
from shards.writer import SetProperties, atomic_open, shard_file_names, shard_name, write_manifest, write_text

RECIPE_FILE = "recipe.json"
_SHARD_FILE = re.compile(r"(train|val)-\d{5,}\.(bin\.zst|docs\.parquet|json)")
_TEMPORARY_FILE = re.compile(r"\..+\.\d+\.tmp")


class OutputError(ValueError):
    """The output folder cannot take the set."""


@dataclass(frozen=True)
class BuildReport:
    """What a build did."""

    manifest: Manifest
    validation: Report
    stages: dict[str, StageResult]
    notes: tuple[str, ...]
    seconds: float

    @property
    def tasks_run(self) -> int:
        """Tasks that were not already done."""
        return sum(stage.ran for stage in self.stages.values())


def build(
    recipe: Recipe,
    *,
    out: Path,
    work: Path,
    workers: int,
    progress: Progress,
    level: Level = "full",
) -> BuildReport:
    """Build a shard set.

    Args:
        recipe: what to build.
        out: the set's folder; created, and emptied of an earlier version of the same set.
        work: scratch, receipts and build.json; keep it to make re-runs cheap.
        workers: processes.
        progress: told what happens.
        level: how the finished set is validated. A build that ran no task is validated quickly.

    Raises:
        SourceError, TokenizerError, MixError, DiskError, OutputError, WorkFolderBusyError: as their names say.
        OSError: the disk filled up, or cannot be written; re-run to go on.
    """
    started = time.perf_counter()
    _check_out(out, recipe)
    units = plan.resolve_units(recipe)
    with _locked(work, out):
        builder = _Builder(recipe, units, out, work, workers, progress)
        report = builder.run(level)
    summary = {
        "seconds": time.perf_counter() - started,
        "workers": workers,
        "text_bytes": sum(result["text_bytes"] for result in report.stages["encode"].results),
        "stages": {name: stage.summary() for name, stage in report.stages.items()},
    }
    with atomic_open(work / "build.json") as file:
        file.write((json.dumps(summary, indent=2) + "\n").encode())
    return replace(report, seconds=summary["seconds"])


@contextmanager
def _locked(work: Path, out: Path) -> Generator[None]:
    with ExitStack() as stack:
        for folder in (work, out):
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise OutputError(f"{folder}: no permission to write. Choose another folder, or change its mode.")
            stack.enter_context(lock_folder(folder))
        yield


def _check_out(out: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds anything but an earlier version of this set."""
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out}: is a file; expected a folder. Choose another --out.")
    foreign = sorted(path.name for path in out.iterdir() if not _is_ours(path.name)) if out.exists() else []
    if foreign:
        names = ", ".join(foreign[:5])
        raise OutputError(f"{out}: holds files that are not of a shard set: {names}. Choose an empty folder for --out.")
    manifest = out / MANIFEST_FILE
    if manifest.exists():
        try:
            name = json.loads(manifest.read_bytes()).get("name")
        except (ValueError, AttributeError):
            name = None
        if name != recipe.name:
            raise OutputError(
                f"{out}: holds the set {name!r}, not {recipe.name!r}; building here would replace it. "
                "Choose another --out, or delete the folder."
            )


def _is_ours(name: str) -> bool:
    fixed = name in (MANIFEST_FILE, RECIPE_FILE, sample.TOKENIZER_FILE)
    return fixed or bool(_SHARD_FILE.fullmatch(name) or _TEMPORARY_FILE.fullmatch(name))


class _Builder:
    """One build's stages, each a method from what came before to a StageResult."""

    def __init__(
        self,
        recipe: Recipe,
        units: list[list[Unit]],
        out: Path,
        work: Path,
        workers: int,
        progress: Progress,
    ):
        self.recipe = recipe
        self.units = units
        self.out = out
        self.work = work
        self.workers = workers
        self.progress = progress
        self.stages: dict[str, StageResult] = {}
        self.notes: list[str] = []

    def run(self, level: Level) -> BuildReport:
        tokenizer = self.tokenizer()
        runs = self.encode(tokenizer)
        mixed, masks = self.mix(runs)
        entries = self.assemble(mixed, runs, masks, tokenizer)
        manifest = self.publish(mixed, runs, entries, tokenizer)
        self.prune()
        ran = sum(stage.ran for stage in self.stages.values())
        self.progress.note(f"validate: {level if ran else 'quick'}")
        report = validate(self.out, level=level if ran else "quick", threads=self.workers)
        return BuildReport(manifest, report, self.stages, tuple(self.notes), 0.0)

    def _stage(self, name: str, function: str, tasks: list[Task], outputs: Path | None = None) -> StageResult:
        result = run_stage(
            name,
            function,
            tasks,
            work=self.work,
            workers=self.workers,
            progress=self.progress,
            outputs=outputs,
        )
        self.stages[name] = result
        self._used = getattr(self, "_used", {}) | {name: {task.digest for task in tasks}}
        return result

    def tokenizer(self) -> TokenizerInfo:
        """Train the tokenizer, or take the given file."""
        section = self.recipe.tokenizer
        if section.file is not None:
            info = load_tokenizer(Path(section.file), eos_token=section.eos_token)
            if section.vocab_size not in (None, info.vocab_size):
                raise ValueError(
                    f"tokenizer.vocab_size: {section.vocab_size}, but {section.file} has {info.vocab_size} entries. "
                    "Leave vocab_size out, or correct it."
                )
            self._check_disk()
            return info
        weights = section.sample_weights or {source.name: source.weight for source in self.recipe.sources}
        task = sample.TokenizerTask(
            section,
            tuple(self.recipe.sources),
            tuple(tuple(span for unit in own for span in unit.spans) for own in self.units),
            tuple(weights[source.name] for source in self.recipe.sources),
            self.recipe.seed,
        )
        digest = digest_of(
            {
                "code": [sample.CODE_VERSION, version("gigatoken"), version("tokenizers"), version("pyarrow")],
                # Without the mix's weights: mixing anew shall not train anew. The weights used are in the receipt,
                # and the resolved recipe records them, so that it gives the same tokenizer anywhere.
                "tokenizer": section.model_dump(),
                "sources": [[source.name, _reading(source)] for source in self.recipe.sources],
                "units": [[unit.identity() for unit in own] for own in self.units],
                "seed": self.recipe.seed,
            }
        )
        if not (self.work / "tokenizer" / digest).exists():
            self._check_disk()
        result = self._stage("tokenizer", "pipeline.sample:train_tokenizer", [Task(digest, task, section.sample_bytes)])
        used = result.results[0]["sample_weights"]
        if used != weights:
            self._note(
                f"tokenizer: kept as trained, on a sample with weights {used}. "
                "Set tokenizer.sample_weights to train another."
            )
        self.recipe = self.recipe.model_copy(update={"tokenizer": section.model_copy(update={"sample_weights": used})})
        path = self.work / "tokenizer" / digest / sample.TOKENIZER_FILE
        return load_tokenizer(path, eos_token=section.eos_token)

    def encode(self, tokenizer: TokenizerInfo) -> list[Run]:
        """Encode every unit."""
        dtype = np.dtype("<u2" if dtype_for(tokenizer.vocab_size) == "uint16" else "<u4")
        libraries = [version(name) for name in ("gigatoken", "pyarrow", "xxhash")]
        tasks: list[Task] = []
        for own, source in zip(self.units, self.recipe.sources, strict=True):
            for unit in own:
                payload = encode.EncodeTask(
                    unit, source, str(tokenizer.path), tokenizer.sha256, tokenizer.eos_id, dtype.str
                )
                identity = {
                    "code": [encode.CODE_VERSION, *libraries],
                    "source": _reading(source),
                    "spans": unit.identity(),
                    "tokenizer": tokenizer.sha256,
                    "eos_id": tokenizer.eos_id,
                }
                tasks.append(Task(digest_of(identity), payload, unit.text_bytes))
        # Two sources may read the same files; their runs are the same run.
        distinct = list({task.digest: task for task in tasks}.values())
        self._stage("encode", "pipeline.encode:encode_unit", distinct)
        by_digest = dict(zip([task.digest for task in distinct], self.stages["encode"].results, strict=True))
        results = [by_digest[task.digest] for task in tasks]
        self._encoded = results
        self._run_digests = [task.digest for task in tasks]
        return [
            Run(self.work / "encode" / task.digest, task.payload.unit.source, tuple(result["labels"]), dtype)
            for task, result in zip(tasks, results, strict=True)
        ]

    def mix(self, runs: list[Run]) -> tuple[mix.Plan, list[Path]]:
        """Plan which documents go where."""
        recipe = self.recipe
        digest = digest_of(
            {
                "code": mix.CODE_VERSION,
                "runs": [[run.source, digest] for run, digest in zip(runs, self._run_digests, strict=True)],
                "weights": [source.weight for source in recipe.sources],
                "names": [source.name for source in recipe.sources],
                "mix": recipe.mix.model_dump(),
                "val_tokens": recipe.split.val_tokens,
                "shard_tokens": recipe.shards.tokens,
            }
        )
        payload = (recipe, runs)
        result = self._stage("mix", "pipeline.build:mix_runs", [Task(digest, payload, 0)]).results[0]
        self._mix_digest = digest
        planned = mix.plan_from_dict(result["plan"])
        for note in planned.notes:
            self._note(f"mix: {note}")
        return planned, [self.work / "mix" / digest / f"keep-{i:06d}.npy" for i in range(len(runs))]

    def assemble(
        self, mixed: mix.Plan, runs: list[Run], masks: list[Path], tokenizer: TokenizerInfo
    ) -> list[ShardEntry]:
        """Write every shard that is not there yet."""
        recipe = self.recipe
        properties = SetProperties(tokenizer.vocab_size, tokenizer.eos_id, tokenizer.sha256, recipe.shards.zstd_level)
        libraries = [version(name) for name in ("zstandard", "pyarrow")]
        tasks: list[Task] = []
        for shard in mixed.shards:
            payload = assemble.AssembleTask(
                shard,
                tuple(replace(run) for run in runs),  # without what this process has mapped
                tuple(map(str, masks)),
                tuple(source.name for source in recipe.sources),
                recipe.seed,
                str(self.out),
                properties,
            )
            identity = [assemble.CODE_VERSION, libraries, self._mix_digest, shard.split, shard.index, recipe.seed]
            identity += [properties.zstd_level, tokenizer.sha256]
            tasks.append(Task(digest_of(identity), payload, self._shard_bytes(mixed)))
        self._clear_out(tasks, mixed)
        result = self._stage("assemble", "pipeline.assemble:assemble_shard", tasks, outputs=self.out)
        return [ShardEntry.model_validate(item["entry"]) for item in result.results]

    def _shard_bytes(self, mixed: mix.Plan) -> int:
        tokens = mixed.train_tokens + self.recipe.split.val_tokens
        return 2 * tokens // max(1, len(mixed.shards))

    def _clear_out(self, tasks: list[Task], mixed: mix.Plan) -> None:
        """Take the manifest away before a shard changes, and shards that the new plan does not have."""
        names = {name for shard in mixed.shards for name in shard_file_names(shard_name(shard.split, shard.index))}
        stale = [
            path
            for path in self.out.iterdir()
            if (_SHARD_FILE.fullmatch(path.name) and path.name not in names) or _TEMPORARY_FILE.fullmatch(path.name)
        ]
        done = [read_receipt(self.work / "assemble" / task.digest, self.out) for task in tasks]
        if stale or None in done:
            (self.out / MANIFEST_FILE).unlink(missing_ok=True)
        for path in stale:
            path.unlink()

    def publish(
        self, mixed: mix.Plan, runs: list[Run], entries: list[ShardEntry], tokenizer: TokenizerInfo
    ) -> Manifest:
        """Write the tokenizer, the recipe and, last, the manifest."""
        recipe = self.recipe
        text = tokenizer.path.read_text(encoding="utf-8")
        files = [(sample.TOKENIZER_FILE, text), (RECIPE_FILE, recipe.to_json())]
        written = [write_text(self.out / name, content) for name, content in files]
        splits = {split: _split_entry(recipe, entries, split) for split in ("train", "val")}
        train = splits["train"]
        shares = mix.Shares(tuple(source.weight for source in recipe.sources))
        manifest = Manifest(
            name=recipe.name,
            dtype=dtype_for(tokenizer.vocab_size),
            vocab_size=tokenizer.vocab_size,
            tokenizer=TokenizerEntry(
                file=written[0].path,
                sha256=written[0].sha256,
                eos_id=tokenizer.eos_id,
                special_tokens=tokenizer.special_tokens,
            ),
            recipe=RecipeEntry(file=written[1].path, sha256=written[1].sha256),
            sources=[self._source_entry(index, mixed, runs) for index in range(len(recipe.sources))],
            mix=[
                MixEntry(
                    source=source.name,
                    requested=float(shares.fractions[index]),
                    achieved=train.sources[source.name].tokens / train.tokens if train.tokens else 0.0,
                    requested_tokens=mixed.sources[index].requested_tokens,
                    achieved_tokens=train.sources[source.name].tokens,
                )
                for index, source in enumerate(recipe.sources)
            ],
            splits={split: entry for split, entry in splits.items() if split == "train" or entry.tokens},
            shards=entries,
        )
        write_manifest(self.out, manifest)
        return manifest

    def _source_entry(self, index: int, mixed: mix.Plan, runs: list[Run]) -> SourceEntry:
        source, totals = self.recipe.sources[index], mixed.sources[index]
        dropped = dict(totals.dropped)
        labels: list[str] = []
        for run, result in zip(runs, self._encoded, strict=True):
            if run.source == index:
                labels += run.labels
                for reason, count in result["dropped"].items():
                    dropped[reason] = dropped.get(reason, 0) + count
        return SourceEntry(
            name=source.name,
            weight=float(source.weight),
            revision=f"xxh3:{xxhash.xxh3_128_hexdigest(chr(10).join(labels).encode())}",
            tokens_available=totals.tokens,
            documents_available=totals.documents,
            dropped=dict(sorted(dropped.items())),
            epochs=totals.epochs,
        )

    def prune(self) -> None:
        """Delete what an earlier version of the recipe left in the work folder and this one does not use."""
        for stage, used in self._used.items():
            for path in (self.work / stage).iterdir():
                if path.name not in used:
                    shutil.rmtree(path)

    def _check_disk(self) -> None:
        needs = plan.estimate(self.recipe, self.units)
        have = sum(path.stat().st_size for path in self.work.glob("encode/*/*") if path.is_file())
        written = sum(path.stat().st_size for path in self.out.iterdir())
        plan.check_disk(
            [
                ("scratch", self.work, max(0, needs.scratch_bytes - have)),
                ("the set", self.out, max(0, needs.output_bytes - written)),
            ]
        )

    def _note(self, message: str) -> None:
        self.notes.append(message)
        self.progress.note(message)


def mix_runs(folder: Path, payload: tuple[Recipe, list[Run]], report: Any) -> dict[str, Any]:
    """Run the mix stage as a task: keep masks into `folder`, the plan into the receipt."""
    from pipeline.index import Index

    recipe, runs = payload
    index = Index(runs, len(recipe.sources), folder)
    planned = mix.plan_mix(recipe, index)
    files = {path.name: _file_facts(path) for path in sorted(folder.glob("keep-*.npy"))}
    return {"plan": planned.to_dict(), "files": files}


def _file_facts(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}


def _reading(source: SourceRecipe) -> dict[str, Any]:
    """Return what of a source decides the documents read from it: not its weight, nor its name."""
    return source.model_dump(exclude={"weight", "name", "paths"})


def _split_entry(recipe: Recipe, entries: list[ShardEntry], split: str) -> SplitEntry:
    own = [entry for entry in entries if entry.split == split]
    sources = {
        source.name: SourceCounts(
            tokens=sum(entry.sources[source.name].tokens for entry in own if source.name in entry.sources),
            documents=sum(entry.sources[source.name].documents for entry in own if source.name in entry.sources),
        )
        for source in recipe.sources
    }
    return SplitEntry(
        tokens=sum(counts.tokens for counts in sources.values()),
        documents=sum(counts.documents for counts in sources.values()),
        sources=sources,
    )
