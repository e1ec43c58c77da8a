"""Measuring documents, compared with datatrove's filters on the same documents and one core: ms for each MB of text.

datatrove's filters split English with spaCy. Where spaCy is installed they do here; where it is not, they are given
`str.split`, with which they are several times faster than anybody has them, and the ratio has another name.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import tarfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from tests.benchmarks.harness import MB, Figures, alternate, median, timed
from tests.benchmarks.material import corpus_files, corpus_folder

PROSE_MB, CODE_MB = 8, 8
ROUNDS = 5
PRESETS = ("gopher", "fineweb", "code")
"""What datatrove's three filters are compared with; it has none for code."""


def bench_measures(work: Path, quick: bool) -> Figures:
    """Measure prose and code with our presets and with datatrove's filters, in the process's own time.

    `_ratio` is the time of datatrove's Gopher and FineWeb filters divided by that of `PRESETS`, `_ratio_str_split`
    without spaCy.
    """
    del work
    figures: Figures = {}
    for name, texts in (("prose", _read_prose()), ("code", _read_code())):
        texts = _first(texts, (PROSE_MB if name == "prose" else CODE_MB) * (MB // 4 if quick else MB))
        ours = _time_presets(texts, rounds=1 if quick else ROUNDS)
        # datatrove is slow and steady: a quarter of the documents, spread over all, says what it takes.
        theirs = _time_filters(texts[::4])
        figures[f"{name}_mb"] = _size(texts) / MB
        figures[f"{name}_ms_per_mb"] = ours
        figures[f"{name}_datatrove_ms_per_mb"] = theirs
        same = sum(spent for filter_name, spent in theirs.items() if "C4" not in filter_name)
        figures[f"{name}_ratio" if _has_spacy() else f"{name}_ratio_str_split"] = same / ours[" + ".join(PRESETS)]
    return figures


def _time_presets(texts: Sequence[str], *, rounds: int) -> dict[str, float]:
    import pyarrow as pa

    from pipeline.clean.measures.measure import measure_documents
    from pipeline.clean.measures.names import MEASURES
    from pipeline.recipe import presets

    column: Any = pa.array(texts, pa.large_string())
    sets = {name: preset.measures() for name, preset in presets.PRESETS.items()}
    together = dict.fromkeys(measure for name in PRESETS for measure in sets[name])
    wanted = {**sets, " + ".join(PRESETS): list(together), "all measures": list(MEASURES)}
    sides = {name: partial(timed, partial(measure_documents, column, own)) for name, own in wanted.items()}
    spent = {name: [usage.core_seconds for usage, _ in runs] for name, runs in alternate(rounds, sides).items()}
    return {name: 1000 * median(seconds) / (_size(texts) / MB) for name, seconds in spent.items()}


def _time_filters(texts: Sequence[str]) -> dict[str, float]:
    from datatrove.data import Document
    from datatrove.pipeline import filters
    from datatrove.utils.word_tokenizers import WordTokenizer

    class Split(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        def sent_tokenize(self, text: str) -> list[str]:
            return text.split(". ")

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            raise NotImplementedError

    language: Any = "eng" if _has_spacy() else Split()
    kinds: list[Callable[..., Any]] = [
        filters.GopherQualityFilter,
        filters.GopherRepetitionFilter,
        filters.FineWebQualityFilter,
        filters.C4QualityFilter,
    ]
    spent: dict[str, float] = {}
    for kind in kinds:
        filter_ = kind(language=language)
        filter_.filter(Document(text="What is loaded first. Once.", id="0"))
        start = process_time()
        for text in texts:
            filter_.filter(Document(text=text, id="0"))
        spent[kind.__name__] = 1000 * (process_time() - start) / (_size(texts) / MB)
    return spent


def _has_spacy() -> bool:
    return importlib.util.find_spec("spacy") is not None


def _size(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _first(texts: Sequence[str], most: int) -> list[str]:
    """Return texts from the begin, up to so many bytes."""
    chosen: list[str] = []
    for text in texts:
        most -= len(text.encode())
        if most < 0:
            break
        chosen.append(text)
    return chosen


def _read_prose() -> list[str]:
    import pyarrow.parquet as pq

    return list(filter(None, pq.read_table(corpus_files("bulk_prose")[0], columns=["text"])["text"].to_pylist()))


def _read_code() -> list[str]:
    texts: list[str] = []
    with tarfile.open(corpus_folder("python_edu") / "swh_content.tar") as archive:
        for member in filter(tarfile.TarInfo.isfile, archive):
            content: Any = archive.extractfile(member)
            with contextlib.suppress(UnicodeDecodeError):
                texts.append(gzip.decompress(content.read()).decode())
    return list(filter(None, texts))
