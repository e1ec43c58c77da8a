"""The language of documents, by a fastText model that the recipe names: `fasttext-predict`, one thread.

The model's file is checked to its end before a build begins: fastText never stops reading a file that was cut off.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.clean.tally import Documents, Tally
from pipeline.recipe import paths
from shards.errors import InputError, import_extra
from shards.stores.files import hash_file
from shards.terminal.gone import nearest

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

_LABEL = "__label__"
_MAGIC, _VERSION = 793712314, 12
"""The first two numbers of a model (fastText, `FastText::checkModel`)."""
_CENTROIDS = 256


def identify_language(source: SourceRecipe) -> list[Any] | None:
    """Return what decides which documents are dropped for their language; None if none are."""
    table = source.clean.language
    if table is None or not table.is_on:
        return None
    keep = sorted(table.keep)
    return [version("fasttext-predict"), table.sha256 or table.model, keep, table.min_score, table.first_bytes]


def drop_other_languages(source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
    """Drop the documents that are in none of the languages to keep.

    Raises:
        InputError: the model's file has changed.
    """
    table = source.clean.language
    if table is None or not table.is_on:
        return documents
    model = _open_model(paths.join_path(source.folder, table.file), table.sha256)
    wanted = {_LABEL + language for language in table.keep}
    found: dict[int, str] = {}
    for index, data in enumerate(documents):
        # fastText reads one line.
        line = _first_bytes(bytes(data), table.first_bytes).replace("\n", " ")
        labels, _ = model.predict(line, k=-1, threshold=table.min_score)
        if wanted.isdisjoint(labels):
            # None of the languages to keep scores enough: the best one says why.
            (best, *_), _ = model.predict(line, k=1)
            low = ", score below min_score" if best in wanted else ""
            found[index] = f"{table.step}: {best.removeprefix(_LABEL)}{low}"
    return tally.drop(table.step, documents, found)


def check_model(path: str, sha256: str, keep: list[Any]) -> Iterator[str]:
    """Yield the faults of a model's file, and of the languages to keep.

    Raises:
        MissingExtraError: `fasttext-predict` is not installed.
    """
    import_extra("fasttext")
    try:
        languages = read_languages(Path(path).read_bytes())
        found = hash_file(Path(path))
    except OSError as error:
        yield f"{path} cannot be read: {error.strerror}"
        return
    except InputError as error:
        yield f"{path}: {error}"
        return
    if sha256 not in ("", found):
        yield f"{path}: its SHA-256 is {found}, expected {sha256}: it is another model. Restore it"
    for language in keep:
        if isinstance(language, str) and language not in languages:
            yield f"{path}: the model has no language {language!r}.{nearest(language, languages)}"


def read_languages(data: bytes) -> list[str]:
    """Return the languages that a fastText model tells apart.

    Raises:
        InputError: the bytes are not such a model, or not all of it.
    """
    if len(data) >= 8 and struct.unpack_from("<ii", data) != (_MAGIC, _VERSION):
        raise InputError("no fastText model. Expected a file such as lid.176.ftz or lid.176.bin")
    try:
        labels, end = _read_model(data)
    except (struct.error, ValueError) as error:
        raise InputError(f"a fastText model that was cut off after {len(data):,} bytes. Fetch it again") from error
    if end > len(data):
        raise InputError(f"a fastText model that was cut off: {len(data):,} of {end:,} bytes. Fetch it again")
    if not labels:
        raise InputError("a fastText model without labels, which cannot tell languages apart")
    return labels


def _read_model(data: bytes) -> tuple[list[str], int]:
    """Return a model's labels, and where the file should end: the format of `FastText::loadModel`, version 12."""
    place = 8 + 12 * 4 + 8  # the two numbers, then the settings of its training
    # The dictionary: words and labels, each with its count and kind; then what was pruned.
    entries, _, _, _, pruned = struct.unpack_from("<iiiqq", data, place)
    place += struct.calcsize("<iiiqq")
    labels: list[str] = []
    for _ in range(entries):
        stop = data.index(b"\0", place)
        (kind,) = struct.unpack_from("<b", data, stop + 9)
        if kind == 1:
            labels.append(data[place:stop].decode().removeprefix(_LABEL))
        place = stop + 10
    place += 8 * max(0, pruned)
    # Then the input and the output matrix: where the last one ends, the file must end.
    quantized, place = _skip_matrix(data, place)
    _, place = _skip_matrix(data, place, may_be_quantized=quantized)
    return labels, place


def _skip_matrix(data: bytes, place: int, *, may_be_quantized: bool = True) -> tuple[bool, int]:
    """Return whether the matrix at a place is quantized, and where it ends."""
    (quantized,) = struct.unpack_from("<?", data, place)
    place += 1
    if not (quantized and may_be_quantized):
        rows, columns = struct.unpack_from("<qq", data, place)
        return quantized, place + 16 + 4 * rows * columns
    # A quantized matrix: codes and their centroids, and again for the norms.
    with_norm, rows, _, codes = struct.unpack_from("<?qqi", data, place)
    place = _skip_quantizer(data, place + struct.calcsize("<?qqi") + codes)
    return quantized, _skip_quantizer(data, place + rows) if with_norm else place


def _skip_quantizer(data: bytes, place: int) -> int:
    (size,) = struct.unpack_from("<i", data, place)
    return place + 16 + 4 * size * _CENTROIDS


def _first_bytes(data: bytes, count: int | None) -> str:
    return data.decode() if count is None else data[:count].decode("utf-8", "ignore")


@lru_cache(maxsize=2)
def _open_model(path: str, sha256: str) -> Any:
    if sha256 and hash_file(Path(path)) != sha256:
        raise InputError(f"{path}: its SHA-256 is not {sha256} any more. Restore the model")
    return import_extra("fasttext").load_model(path)
