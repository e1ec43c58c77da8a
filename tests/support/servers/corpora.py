"""Folders for the Hub and objects for the bucket, named and shaped like the real data sets that a build reads.

A small set with the same names and schemas, from Python's own texts.
Not included: the other configurations of these repositories, and the `date` column of FineWeb-Edu's `default`.
"""

import ast
import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.support.conversations import make_conversations, to_records

FINEWEB, FINEMATH = "HuggingFaceFW/fineweb-edu", "HuggingFaceTB/finemath"
SMOLLM, STORIES = "HuggingFaceTB/smollm-corpus", "roneneldan/TinyStories"
SMOLTALK = "HuggingFaceTB/smoltalk"
CLIMBMIX = "karpathy/climbmix-400b-shuffle"
NESTED = ["dump", "url", "date", "language", "language_score", "token_count", "score", "int_score"]
STORIES_FILES = ("2d5a1467fff1081b", "5852b56a2bd28fd9", "a26307300439e943", "d243063613e5a057")
PIECES = 3
"""Files of each configuration."""


@dataclass(frozen=True, slots=True)
class Corpora:
    """The folders that were written; `Hub(root)` and `Bucket(objects)` serve them."""

    root: Path
    objects: dict[str, bytes]


def write(out: Path) -> Corpora:
    """Write the repositories below out/hub."""
    root, web, math, (code, objects) = out / "hub", small_web(), small_math(), small_code()
    flat = web.append_column("date", pa.nulls(len(web), pa.timestamp("s")))
    metadata = pa.StructArray.from_arrays([flat[name].combine_chunks() for name in NESTED], NESTED)
    nested = flat.select(["text", "id"]).append_column("metadata", metadata)
    samples = {f"sample-{size}": (web, f"sample/{size}/{{:03d}}_00000") for size in ("10BT", "100BT", "350BT")}
    write_repository(root / FINEWEB, {"default": (web, "data/CC-MAIN-2013-20/train-{:05d}-of-00003")} | samples)
    maths = {name: (math, f"{name}/train-{{:05d}}-of-00003") for name in ("finemath-3plus", "finemath-4plus")}
    write_repository(root / FINEMATH, maths)
    smollm = (("fineweb-edu-dedup", nested), ("python-edu", code))  # the second without text
    write_repository(root / SMOLLM, {name: (table, f"{name}/train-{{:05d}}-of-00003") for name, table in smollm})
    talks = pa.Table.from_pylist(to_records(make_conversations(600)))
    write_repository(root / SMOLTALK, {"all": (talks, "data/all/train-{:05d}-of-00003")})
    write_stories(root / STORIES, small_stories())
    place(web.select(["text"]), [root / CLIMBMIX / f"shard_{index:05d}.parquet" for index in range(PIECES)])
    write_card(root / CLIMBMIX, {})  # the shuffled mirror: files beside the card, and no configurations
    return Corpora(root, objects)


# --- The repositories ---


def write_repository(folder: Path, configs: dict[str, tuple[pa.Table, str]]) -> None:
    """Write each configuration's table into files with numbers in their names, and a card that lists the split."""
    for table, name in configs.values():
        place(table, [folder / f"{name.format(index)}.parquet" for index in range(PIECES)])
    patterns = {config: name.partition("{")[0] + "*" for config, (_, name) in configs.items()}
    lines = [{"config_name": one, "data_files": [{"split": "train", "path": path}]} for one, path in patterns.items()]
    write_card(folder, {"configs": lines})


def write_stories(folder: Path, table: pa.Table) -> None:
    """Write TinyStories: two splits that only the files' names tell, for its card has no configurations."""
    cut = len(table) * 9 // 10
    parts = len(STORIES_FILES)
    names = [f"train-{index:05d}-of-{parts:05d}-{mark}.parquet" for index, mark in enumerate(STORIES_FILES)]
    place(table.slice(0, cut), [folder / "data" / name for name in names])
    place(table.slice(cut), [folder / "data/validation-00000-of-00001-869c898b519ad725.parquet"])
    write_card(folder, {"task_categories": ["text-generation"]})


def place(table: pa.Table, targets: list[Path]) -> None:
    """Cut a table into the targets, in order."""
    size = -(-len(table) // len(targets))
    for index, target in enumerate(targets):
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(index * size, size), target, row_group_size=100, compression="zstd")


def write_card(folder: Path, block: dict[str, Any]) -> None:
    """Write README.md with its YAML, and .gitattributes."""
    text = yaml.safe_dump({"license": "odc-by", "language": ["en"]} | block, sort_keys=False)
    (folder / "README.md").write_text(f"---\n{text}---\n\n# {folder.name}\n\nMade for tests.\n", encoding="utf-8")
    (folder / ".gitattributes").write_text("*.parquet filter=lfs diff=lfs merge=lfs -text\n", encoding="utf-8")


# --- The small set: the same schemas, from Python's own texts ---


def small_web() -> pa.Table:
    """Return about 1,000 paragraphs of the language reference as web pages."""
    from pydoc_data.topics import topics

    return pages_of([part for name in sorted(topics) for part in topics[name].split("\n\n") if len(part) > 80])


def small_math() -> pa.Table:
    """Return docstrings of the standard library's mathematics, with the columns of web pages."""
    return pages_of(docstrings("_pydecimal", "fractions", "random", "statistics"))


def pages_of(texts: list[str]) -> pa.Table:
    """Return the rows of FineWeb-Edu for texts, some columns with nulls."""
    rows = [
        {
            "text": text,
            "id": f"<urn:uuid:{hashlib.md5(text.encode()).hexdigest()}>",
            "dump": "CC-MAIN-2013-20",
            "url": f"https://pages.example/{index}",
            "language": "en",
            "language_score": None if index % 7 == 0 else 0.65 + index % 35 / 100,
            "token_count": len(text) // 4,
            "score": 2.5 + index % 25 / 10,
            "int_score": round(2.5 + index % 25 / 10),
        }
        for index, text in enumerate(dict.fromkeys(texts))
    ]
    return pa.Table.from_pylist(rows)


def small_stories() -> pa.Table:
    """Return docstrings of a few modules, one column."""
    return pa.table({"text": docstrings("argparse", "doctest", "inspect", "pickle", "tarfile", "typing")})


def docstrings(*modules: str) -> list[str]:
    """Return the distinct docstrings in some files of the standard library, in order."""
    texts = [(Path(json.__file__).parent.parent / f"{name}.py").read_text(encoding="utf-8") for name in modules]
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    found = (ast.get_docstring(node) for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module))
    return list(dict.fromkeys(text for text in found if text and len(text) > 30))


def small_code() -> tuple[pa.Table, dict[str, bytes]]:
    """Return rows for some of the standard library's files, and the bodies of their objects.

    With a file that is not UTF-8, one that is empty, and one that two repositories hold: one object, two rows.
    """
    library = Path(json.__file__).parent.parent
    files = {f"/Lib/{path.name}": path.read_bytes() for path in sorted(library.glob("*.py"))[:120]}
    files |= {"/Lib/latin1.py": "# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"), "/Lib/empty.py": b""}
    rows: list[dict[str, Any]] = []
    objects: dict[str, bytes] = {}
    for index, (path, content) in enumerate(files.items()):
        key = hashlib.sha1(content).hexdigest()
        row = {"blob_id": key, "repo_name": "python/cpython", "path": path, "length_bytes": len(content)}
        rows.append(row | {"score": 3.5 + index % 15 / 10, "int_score": round(3.5 + index % 15 / 10)})
        objects[key] = gzip.compress(content, mtime=0)
    rows.append(rows[0] | {"repo_name": "someone/fork"})
    return pa.Table.from_pylist(rows), objects
