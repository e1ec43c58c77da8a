"""Check that the names `pipeline`, `shards` and `trainer` import this project's packages, and not another's.

The names are generic: other distributions on the package index bring packages of the same names, and installing one
replaces files of ours. Nothing of the three packages is imported here. Takes about 10 ms.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

PACKAGES = ("pipeline", "shards", "trainer")
DISTRIBUTION = "tokenmill"
REMEDY = "Install tokenmill into an environment of its own: python -m venv tokenmill-env, then pip install there."


def find_clashes() -> list[str]:
    """Return a message for each package whose name imports something else than this installation's package."""
    # Compare where each name is found with where this file is, and our own file with what pip recorded.
    root = Path(__file__).resolve().parents[1]
    recorded = _recorded_hashes()
    messages: list[str] = []
    for name in PACKAGES:
        expected = root / name / "__init__.py"
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        file = f"{name}/__init__.py"
        if found != expected:
            place = "nothing" if spec is None else str(found or f"a folder without {file}")
            messages.append(f"`import {name}` finds {place}; expected {expected}.{_owners(name)} {REMEDY}")
        elif file in recorded and recorded[file] != _sha256(expected):
            messages.append(f"{expected} is not the file that tokenmill installed.{_owners(name)} {REMEDY}")
    return messages


def _recorded_hashes() -> dict[str, str]:
    """Return the SHA-256 (URL-safe base64, no padding) by path that pip recorded; an editable install has no paths."""
    try:
        record = importlib.metadata.distribution(DISTRIBUTION).read_text("RECORD") or ""
    except importlib.metadata.PackageNotFoundError:
        record = ""
    rows = [row for row in csv.reader(record.splitlines()) if len(row) > 1]
    return {row[0]: row[1].removeprefix("sha256=") for row in rows if row[1].startswith("sha256=")}


def _sha256(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")


def _owners(name: str) -> str:
    """Return a sentence that names the other distributions that bring a package; empty when there are none."""
    owners = {
        str(distribution.metadata["Name"])
        for distribution in importlib.metadata.distributions()
        if any(file.parts[0] in (name, f"{name}.py") for file in distribution.files or [])
    } - {DISTRIBUTION}
    return f" The name is also that of the installed distribution {', '.join(sorted(owners))}." if owners else ""
