"""The tokenizer stage: a byte-level BPE trained on a sample of the sources.

Merges are the ones that `tokenizers` learns. For the GPT-2 pre-tokenizer gigatoken learns them about 30 times faster;
it trains with no other. The result is a `tokenizer.json` as `tokenizers` writes it: special tokens first, then the
other entries in the order of `tokenizer.id_order`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.clean.reasons import describe_change, describe_drops
from pipeline.engine.checksums import write_checksummed
from pipeline.engine.receipts import Result
from pipeline.engine.tasks import Report
from pipeline.recipe.clean_recipe import CleanRecipe
from pipeline.recipe.schema import TokenizerRecipe
from pipeline.tokenizer.given_tokenizer import TokenizerError
from pipeline.tokenizer.sample import (
    DOCUMENT_SEPARATOR,
    MUCH,
    Drawn,
    TokenizerTask,
    draw_sample,
    iter_sample,
)
from shards.errors import RunError, plural
from shards.format.tokenizer_json import PATTERNS, byte_characters, hold_output
from shards.terminal.workers import map_tasks

if TYPE_CHECKING:
    import tokenizers

Merges = list[tuple[str, str]]
"""The pairs of entries that training joins, in order, in byte-level characters."""
TOKENIZER_FILE = "tokenizer.json"
COUNTED_BYTES = 1 << 24
"""About how much text ids are counted in: to count in more makes no set smaller, as docs/lab/compression.md shows."""
_BYTES_PER_ENTRY = 300
"""Of a sample with fewer bytes for each entry, gigatoken is slower, measured: 78 s for 64,000 entries of 19 MB, where
`tokenizers` takes 22; for a million of 12 MB, of which it has 145,000, over 5 minutes, where that takes 16 s."""
_BLOCK_BYTES = 1 << 18
_SMALL_SAMPLE_BYTES = 1 << 22
"""What training takes a second or two for."""
_OFFSET = 4
"""Measured: with 1 to 32, sizes of books, mathematics and code differ by 0.8% at most."""


@dataclass(slots=True, kw_only=True)
class TokenizerResult(Result):
    """The result of training a tokenizer."""

    sample: dict[str, Drawn]
    """By source."""
    sample_weights: dict[str, float]
    sample_limits: dict[str, CleanRecipe]


def train_tokenizer(folder: Path, task: TokenizerTask, report: Report) -> TokenizerResult:
    """Draw the sample, train the tokenizer, and write `tokenizer.json` into `folder`.

    Raises:
        TokenizerError: the sample offers fewer entries than `vocab_size`.
        SourceError: the data cannot be read as the recipe says.
    """
    sample = folder / "sample.bin"
    drawn = draw_sample(sample, task, report)
    report.lap("sample_s")
    recipe = task.recipe
    assert recipe.vocab_size is not None  # the recipe's check: given unless `file` is
    size = sum(own.text_bytes for own in drawn.values())
    # A line for each source that loses most of what was read.
    lost = "".join(
        f"source {name!r}: {describe_drops(own.dropped, own.records)}.\n"
        for name, own in drawn.items()
        if sum(own.dropped.values()) > MUCH * own.records
    )
    if not size:
        change = describe_change(reason for own in drawn.values() for reason in own.dropped)
        raise TokenizerError(f"{lost}tokenizer: no text is left to train on. {change}, or give a tokenizer `file`.")
    # More entries than a text of this size can give are refused before a trainer reserves memory for them.
    merges: Merges = []
    least = 256 + len(recipe.special_tokens)
    offered = least + size  # each merge needs a place of its own in the text
    if recipe.vocab_size <= offered:
        merges = train_merges(sample, recipe.vocab_size, recipe.special_tokens, recipe.pretokenizer)
        offered = least + len({left + right for left, right in merges})
    if recipe.vocab_size > offered:
        raise TokenizerError(
            f"{lost}tokenizer.vocab_size: {recipe.vocab_size:,} is too large for a sample of {size:,} bytes, which "
            f"offers at most {plural(offered, 'entry')}. Ask for fewer, or sample more text."
        )
    text = build_tokenizer_json(merges, recipe, sample)
    report.lap("train_s")
    sample.unlink()
    return TokenizerResult(
        sample=drawn,
        sample_weights=task.weights,
        sample_limits=task.limits,
        files={TOKENIZER_FILE: write_checksummed(folder / TOKENIZER_FILE, text.encode())},
    )


def pre_tokenizer(name: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer that a recipe names, for training."""
    from tokenizers import Regex, pre_tokenizers

    if name == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(PATTERNS[name]), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_merges(sample_path: Path, vocab_size: int, special_tokens: list[str], pretokenizer: str) -> Merges:
    """Train BPE: learn the merges from a sample file of documents with `DOCUMENT_SEPARATOR` between them.

    Args:
        sample_path: the sample.
        vocab_size: entries wanted, special tokens and the 256 bytes included.
        special_tokens: they take entries, and are never matched in the sample.
        pretokenizer: a name that recipes use.

    Returns:
        The merges in order, in byte-level characters: fewer than wanted when the sample offers no more pairs.

    Raises:
        RunError: the process ended: training took more memory than there is.
    """
    # Native code returns after minutes, and an interrupt waits for it: a large sample has a process of its own, unless
    # this is a worker already, which a build ends at once.
    here = sample_path.stat().st_size <= _SMALL_SAMPLE_BYTES or parent_process() is not None
    tasks = [(vocab_size, special_tokens, pretokenizer)]
    try:
        [(_, merges)] = map_tasks(_train_merges, sample_path, tasks, 1, here=here)
    except ChildProcessError as error:
        raise RunError(
            "tokenizer: the process that trains it died; out of memory? Set a smaller tokenizer.sample_bytes, or give "
            "a tokenizer `file`."
        ) from error
    return merges


def _train_merges(sample_path: Path, recipe: tuple[int, list[str], str]) -> Merges:
    vocab_size, special_tokens, pretokenizer = recipe
    if find_trainer(pretokenizer) == "gigatoken" and _BYTES_PER_ENTRY * vocab_size <= sample_path.stat().st_size:
        import gigatoken

        source = gigatoken.TextFileSource([sample_path], separator=DOCUMENT_SEPARATOR)
        with hold_output(1, 2):  # its progress
            _, pairs = gigatoken.train_bpe(source, vocab_size - len(special_tokens), [])
        table = byte_characters()
        merges = [("".join(table[b] for b in left), "".join(table[b] for b in right)) for left, right in pairs]
        # A sample that has no pairs left makes gigatoken go on with pairs that do not occur.
        if not _is_exhausted(sample_path, merges):
            return merges
    # Of a sample of a few megabytes `tokenizers` learns the same merges faster.
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(pretokenizer)  # type: ignore[assignment]
    tokenizer.train_from_iterator(iter_sample(sample_path), trainer)
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def find_trainer(pretokenizer: str) -> Literal["gigatoken", "tokenizers"]:
    """Return the library that trains, which learns the merges for a pre-tokenizer."""
    return "gigatoken" if pretokenizer == "gpt2" else "tokenizers"


def _is_exhausted(sample_path: Path, merges: Merges) -> bool:
    """Return whether training has no more to learn, as every word of the sample is one entry."""
    split = pre_tokenizer("gpt2").pre_tokenize_str
    entries = {*byte_characters(), *(left + right for left, right in merges)}
    return all(word in entries for document in iter_sample(sample_path) for word, _ in split(document))


def build_tokenizer_json(merges: Merges, recipe: TokenizerRecipe, sample_path: Path) -> str:
    """Return the text of the `tokenizer.json` that training ends with.

    Args:
        merges: learned from the sample.
        recipe: decides the special tokens, the pre-tokenizer and the order of ids.
        sample_path: the sample.

    Raises:
        TokenizerError: a special token is also an ordinary entry, so that text could produce its id.
    """
    ordinary = list(dict.fromkeys([*sorted(byte_characters()), *(left + right for left, right in merges)]))
    special_tokens, pretokenizer = recipe.special_tokens, recipe.pretokenizer
    if clash := [token for token in special_tokens if token in ordinary]:
        raise TokenizerError(
            f"tokenizer.special_tokens: {clash} are ordinary words of this vocabulary. Choose others, like <|name|>."
        )
    if recipe.id_order == "frequency":
        plain = _write_tokenizer_json(merges, [], ordinary, pretokenizer)
        numbers = _order_by_frequency(plain, len(ordinary), sample_path, first=len(special_tokens))
        ordinary = [ordinary[number] for number in numbers]
    return _write_tokenizer_json(merges, special_tokens, ordinary, pretokenizer)


def _write_tokenizer_json(merges: Merges, special_tokens: list[str], ordinary: list[str], pretokenizer: str) -> str:
    """Return the text of a trained `tokenizer.json` whose entries have ids in the order in which they are given."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    vocabulary = {entry: index for index, entry in enumerate([*special_tokens, *ordinary])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizer(pretokenizer)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return tokenizer.to_str(pretty=True) + "\n"


def _order_by_frequency(tokenizer: str, size: int, sample_path: Path, *, first: int) -> list[int]:
    """Return a trained tokenizer's entries in another order: those that its sample has most often have small bytes.

    Zstandard codes the low and the high byte of each token with one table, which pays off if few values of both are
    usual. Merges keep their order, so that text becomes the same entries. The result depends on the tokenizer and the
    sample alone.

    Args:
        tokenizer: the text of a `tokenizer.json` without special tokens.
        size: entries of the tokenizer.
        sample_path: the sample; up to `COUNTED_BYTES` all documents count, else those of evenly spaced blocks.
        first: the new id of the first entry.

    Returns:
        The old id of each new one, from `first` on. Of equally frequent entries, the one with the smaller old id comes
        first in the order of bytes.
    """
    import awkward  # noqa: F401  # pyright: ignore[reportUnusedImport]  # gigatoken gives lists if memory is too small for it
    import gigatoken

    encoder: Any = gigatoken.Tokenizer.from_json(tokenizer)
    counts = np.zeros(size, np.int64)
    for documents in _iter_counted(sample_path):
        source = gigatoken.BytesSource(documents, separator=DOCUMENT_SEPARATOR)
        ids = encoder.encode_batch(source, parallel=False).layout.content.data
        counts += np.bincount(ids, minlength=size)
    # The ids with small bytes come first: by the product of bytes plus `_OFFSET`.
    bytes_of_ids = np.arange(first, first + size, dtype="<u4").view(np.uint8).reshape(size, 4)
    by_bytes = np.argsort((bytes_of_ids.astype(np.int64) + _OFFSET).prod(axis=1), kind="stable")
    entries = np.empty(size, np.int64)
    entries[by_bytes] = np.argsort(-counts, kind="stable")
    return entries.tolist()


def _iter_counted(sample_path: Path) -> Iterator[bytes]:
    """Yield the documents that begin in each block of the sample that is counted after training."""
    size = sample_path.stat().st_size
    if not size:
        return
    step = -(-size // COUNTED_BYTES)
    with sample_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for block in range(0, size, step * _BLOCK_BYTES):
            begin, end = (_next_document(data, at) for at in (block, block + _BLOCK_BYTES))
            if begin < end:
                yield data[begin:end]


def _next_document(data: mmap.mmap, at: int) -> int:
    """Return where in the training sample the first document begins from a byte on, or the sample ends."""
    return 0 if not at else data.find(DOCUMENT_SEPARATOR, at - 1) + 1 or len(data)
