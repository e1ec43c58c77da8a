"""The pilot's stages: the sample of a plan as runs, mixed, and written into one shard, by the build's own tasks.

Near-duplicates are pairs, so a part of the text shows fewer than all of it has: their share is a lower bound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.clean.evaluations import items
from pipeline.encode.run import Run, RunList, token_dtype
from pipeline.engine.checksums import checksum_file
from pipeline.engine.receipts import Result, ResultT, write_receipt
from pipeline.engine.tasks import Payload, TaskFunction, digest_of_payload
from pipeline.mix.cuts import MixResult, MixTask, mix_runs
from pipeline.mix.near_duplicates import bands, pairs, similar
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.recipe.schema import MixRecipe, Recipe, SplitRecipe
from pipeline.sources.base import Span, Unit
from pipeline.sources.software_heritage.fetched_documents import FORMAT, DocumentWriter
from pipeline.tokenizer.encoder import TokenizerInfo
from shards.stores.store import FolderStore

if TYPE_CHECKING:
    from pipeline.assemble.assemble import AssembleResult
    from pipeline.encode.encode import EncodeResult

_ONE_SHARD = 1 << 62


@dataclass(frozen=True, slots=True)
class PilotStages:
    """Runs the tasks of a build on a sample, one after the other, in a folder of this machine."""

    recipe: Recipe
    folder: Path

    def run(self, stage: str, function: TaskFunction[ResultT], task: Payload, name: str = "") -> tuple[Path, ResultT]:
        """Run a task; return its folder, of which the name is its digest or a given one, and its result."""
        own = self.folder / stage / (name or digest_of_payload(task))
        own.mkdir(parents=True)
        result = function(own, task, _report_nothing)
        write_receipt(own, result)
        return own, result

    def write_unit(self, source: int, half: int, texts: list[bytes]) -> Unit:
        """Write documents of a source as the build keeps fetched ones; return the unit that reads them."""
        folder = self.folder / "documents" / f"{source}-{half}"
        folder.mkdir(parents=True)
        path = folder / "documents.parquet"
        writer = DocumentWriter(path)
        for row, text in enumerate(texts):
            writer.add(row, text)
        writer.close({})
        write_receipt(folder, Result(files={path.name: checksum_file(path)}))
        size = sum(map(len, texts))
        span = Span(str(path), path.name, "", FORMAT, "rg", 0, 1, size, len(texts), path.stat().st_size)
        return Unit(source, (span,))

    def read_evaluations(self) -> str | None:
        """Read the items of the recipe's evaluation sets, if it names any; return the address of their folder."""
        if not self.recipe.evaluations:
            return None
        return str(self.run("evaluations", items.read_items, items.make_items_task(self.recipe))[0])

    def encode(self, unit: Unit, tokenizer: TokenizerInfo, evaluations: str | None) -> tuple[Run, EncodeResult]:
        """Encode a unit, whose texts have passed all filters."""
        from pipeline.encode.encode import EncodeTask, encode_unit

        source = self.recipe.sources[unit.source]
        task = EncodeTask(
            unit,
            source.model_copy(update={"clean": source.clean.without_filters()}),
            tokenizer.path,
            tokenizer.sha256,
            tokenizer.eos_id,
            token_dtype(tokenizer.vocab_size),
            evaluations=evaluations,
            bos_id=tokenizer.bos_id,
        )
        name = Path(unit.spans[0].url).parent.name  # two sources may have the same text: each has runs of its own
        folder, result = self.run("encode", encode_unit, task, name)
        return Run(str(folder), unit.source, task.dtype, result), result

    def mix(self, runs: list[Run], vocab_size: int, evaluations: str | None) -> tuple[str, RunList, MixResult, float]:
        """Mix the runs into one shard, with all that the sources allow.

        Returns:
            The folder of the mix, the list of the runs, the result, and the CPU seconds that near-duplicates took for
            each token, without the pairs stage, which grows with the documents.
        """
        listed = RunList(FolderStore(self.folder), runs)
        listed.write()
        tokens = sum(run.tokens_bytes // np.dtype(run.dtype).itemsize for run in runs)
        found, seconds = self._find_similar(listed, vocab_size)

        # Without `take`, whose share is known: what it leaves of the sample would tell less of the other steps.
        changes: dict[str, Any] = {
            "sources": [source.model_copy(update={"take": 1.0}) for source in self.recipe.sources],
            "mix": MixRecipe(),
            "split": SplitRecipe(),
            "shards": self.recipe.shards.model_copy(update={"tokens": _ONE_SHARD}),
        }
        task = MixTask(self.recipe.model_copy(update=changes), (), listed.address, (), evaluations, similar=found)
        folder, result = self.run("mix", mix_runs, task)
        return str(folder), listed, result, seconds / max(1, tokens)

    def _find_similar(self, listed: RunList, vocab_size: int) -> tuple[SimilarPairs | None, float]:
        """Run the three stages; return the pairs, and the seconds of the first and the last."""
        settings = self.recipe.clean.near_duplicates
        if settings is None:
            return None, 0.0
        began = time.process_time()
        for run in listed.runs:
            self.run("bands", bands.write_bands, bands.BandsTask(run.place, run.dtype, vocab_size))
        seconds = time.process_time() - began
        self.run("pairs", pairs.find_pairs, pairs.PairsTask(listed.address, f"{self.folder}/bands", 0, 1))
        began = time.process_time()
        task = similar.SimilarTask(listed.address, f"{self.folder}/pairs", 1, 0, 1, vocab_size)
        place, _ = self.run("similar", similar.compare_pairs, task)
        seconds += time.process_time() - began
        return SimilarPairs((str(place),), 0, settings.min_jaccard, settings.action), seconds

    def assemble(self, mix: str, listed: RunList, mixed: MixResult, tokenizer: TokenizerInfo) -> AssembleResult | None:
        """Write the shard; None if the mix has none, because a source has nothing left."""
        from pipeline.assemble.assemble import AssembleTask, assemble_shards
        from shards.format.writer import SetProperties

        if mixed.plan is None:
            return None
        properties = SetProperties(
            tokenizer.vocab_size,
            tokenizer.eos_id,
            tokenizer.sha256,
            self.recipe.shards.chosen_compression,
            bos_id=tokenizer.bos_id,
        )
        names = tuple(source.name for source in self.recipe.sources)
        task = AssembleTask(mixed.plan.shards, listed.address, mix, names, self.recipe.seed, properties)
        return self.run("assemble", assemble_shards, task)[1]


def _report_nothing(_done: int, _made: int) -> None:
    """Do nothing: a plan shows no progress of these tasks."""
