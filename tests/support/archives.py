"""Archives with members of every kind, written by Python's own modules, and WARC records."""

# pyright: basic
from __future__ import annotations

import io
import tarfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.sources import files
from tests.support.builds import list_spans_of

Entry = tuple[str, bytes] | tarfile.TarInfo


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    """Return a member of a tar archive that has no content, such as a folder or a link."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def write_tar(path: Path, entries: Iterable[Entry], mode: str = "w", format_: int = tarfile.PAX_FORMAT) -> Path:
    """Write a tar archive; a `mode` such as `w:xz` compresses it."""
    with tarfile.open(path, mode, format=format_, encoding="utf-8") as archive:  # pyright: ignore
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            archive.addfile(info, io.BytesIO(entry[1]))
    return path


def write_zip(path: Path, entries: Iterable[tuple[str | zipfile.ZipInfo, bytes]], method: int = 8) -> Path:
    """Write a zip archive."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as archive:
        warnings.simplefilter("ignore")  # of two members of one name
        for name, data in entries:
            archive.writestr(name, data, compress_type=method)
    return path


def counts_of(recipe: Any) -> Counter[str]:
    """Return how many rows of a source are not read, by reason."""
    counts: Counter[str] = Counter()
    for span in list_spans_of(recipe):
        for batch in files.read(recipe, span):
            counts.update(batch.rejected)
    return counts


def carried_of(recipe: Any) -> list[dict[str, Any]]:
    """Return the carried values of a source's documents."""
    rows: list[dict[str, Any]] = []
    for span in list_spans_of(recipe):
        columns: Any = [(item, kind or "string") for item, kind in zip(recipe.carry, span.carried, strict=True)]
        for batch in files.read(recipe, span, tuple(columns)):
            rows += batch.carried.to_pylist() if batch.carried else []
    return rows


def warc_record(
    block: bytes, kind: str = "conversion", url: str | None = "https://example.org/", **headers: str | None
) -> bytes:
    """Return a WARC record; `headers` are others, with `_` for `-`, and None leaves one out."""
    fields: dict[str, str | None] = {
        "WARC-Type": kind,
        "WARC-Target-URI": url,
        "WARC-Date": "2024-05-01T12:00:00Z",
        "WARC-Record-ID": "<urn:uuid:00000000-0000-4000-8000-000000000000>",
        "Content-Type": "text/plain",
        "Content-Length": str(len(block)),
    }
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join(["WARC/1.0", *lines, "", ""]).encode() + block + b"\r\n\r\n"


def http_response(body: bytes, content_type: str = "text/plain", *headers: str) -> bytes:
    """Return a WARC record of an answer over HTTP."""
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", *headers, "", ""]
    return warc_record(
        "\r\n".join(lines).encode() + body, "response", Content_Type="application/http; msgtype=response"
    )
