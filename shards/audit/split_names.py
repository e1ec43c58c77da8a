"""Which files are a test or validation split, by their names and those of the files beside them.

A file or folder is one if its name becomes a sibling's when `train` replaces its word for a split (`en/test.txt` beside
`en/train.txt`, `split=dev/` beside `split=train/`), and a file of records if its name has nothing but the word
(`test-00000-of-00002.parquet`). Words are whole: `testimony.txt` and `latest/` are none. Source code is none either:
`eval.py` beside `train.py` is a program.
"""

import re
from collections.abc import Collection, Iterator

_WORDS = r"(?<![^\W\d_])(?:{})(?![^\W\d_])"
_SPLIT = re.compile(
    _WORDS.format(
        "(?:test|testing|val|valid|validating|validation|dev|eval|evaluation|h[eo]ld[-_. ]?out)(?:set|data)?"
    ),
    re.IGNORECASE,
)
_TRAIN = re.compile(_WORDS.format("(?:train|training)(?:set|data)?"), re.IGNORECASE)
_NUMBER = re.compile(r"(?<![^\W_])(?=[a-f]*\d)[0-9a-f]+(?![^\W_])|\d+|" + _WORDS.format("of"))
"""Of one of several files: its number, how many there are, a digest."""
_RECORDS = re.compile(r"\.(jsonl?|ndjson|csv|tsv|tab|psv|parquet|arrow|feather)$")
_COMPRESSED = re.compile(r"\.(gz|zst|bz2|xz)$")
_CODE = re.compile(
    r"(?i)\.(pyi?|pyx|ipynb|sh|bash|c|cc|cpp|cu|hpp|h|m|js|mjs|tsx?|jsx|java|go|rs|rb|lua|jl|r|scala|kt|swift|php|pl)$"
)
_PAGE = re.compile(r"(?i)\.(md|rst|html?|svg|ya?ml|toml|cfg|ini|conf)$")


def has_split_word(name: str) -> bool:
    """Return whether a name has a word for a test or validation split."""
    return _SPLIT.search(name) is not None


def list_above(name: str) -> Iterator[str]:
    """Yield the folders above a file, the nearest first."""
    while name := name.rpartition("/")[0]:
        yield name


def find_splits(names: Collection[str]) -> dict[str, str]:
    """Return the names of files that belong to a test or validation split, each with the file or folder that is it.

    Args:
        names: of files that are read together, with their folders.
    """
    files = {*names}
    paths = {path for name in files for path in (name, *list_above(name))}
    trained: dict[tuple[str, ...], bool] = {}
    for path in paths:
        if word := _TRAIN.search(_base(path)):
            trained[_place(path, _TRAIN.sub("train", _base(path)))] = word[0].islower()
    splits = {path for path in paths if has_split_word(_base(path)) and _is_split(path, path in files, trained)}
    found: dict[str, str] = {}
    for name in files:
        own = [path for path in (name, *list_above(name)) if path in splits]
        if own and not _CODE.search(name):
            found[name] = own[-1]
    return found


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _place(path: str, base: str) -> tuple[str, ...]:
    """Return a path's folder and the words of a name there, without numbers and how it is compressed."""
    return path.rpartition("/")[0], *re.findall(r"[^\W\d_]+", _NUMBER.sub(" ", _COMPRESSED.sub("", base.lower())))


def _is_split(path: str, is_file: bool, trained: dict[tuple[str, ...], bool]) -> bool:
    """Return whether a path is a split, by the places of those for training and whether their word is in lower case."""
    base = _base(path)
    records = _RECORDS.search(_COMPRESSED.sub("", base.lower())) if is_file else None
    if is_file and _PAGE.search(base):
        return False
    if _place(path, _SPLIT.sub(" ", base))[1:] == ((records[1],) if records else ("split",)):
        return True
    for word in _SPLIT.finditer(base):
        begin, end = base[: word.start()], base[word.end() :]
        names = [f"{begin}train{end}"]
        if records:
            names.append(f"{begin}train{records[0]}")  # test_matched.tsv is of train.tsv
        if any(_place(path, name) in trained for name in names):
            return True
        # So is my_test.tsv; but "Turing test.tsv" may be text.
        if records and " " not in begin and trained.get(_place(path, f"train{end}")) == word[0].islower():
            return True
    return False
