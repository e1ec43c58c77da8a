"""Publishing a set: old shards are deleted before new ones are written, and the manifest is written at the end.

The manifest is deleted before the first shard changes and written after the last. So a folder with a manifest is a
complete set.
"""

import hashlib
import re

import xxhash

from pipeline.builder.running_build import RunningBuild
from pipeline.mix.mix_plan import ShardPlan
from pipeline.recipe.paths import state_recipe_folder
from pipeline.recipe.schema import Recipe
from pipeline.recipe.shares import Demand
from pipeline.tokenizer.given_tokenizer import TokenizerInfo
from pipeline.tokenizer.kept_text import add_up_kept_text
from pipeline.tokenizer.train import TOKENIZER_FILE
from shards.errors import InputError
from shards.format.manifest import (
    MANIFEST_FILE,
    ChatEntry,
    FileEntry,
    Manifest,
    PhaseEntry,
    RecipeEntry,
    RewritingEntry,
    ShardEntry,
    SourceEntry,
    TokenizerEntry,
    dtype_for,
)
from shards.format.totals import describe_mix, describe_phase, describe_split
from shards.format.writer import shard_file_names, shard_name
from shards.stores.files import delete_path, is_held
from shards.stores.store import WritableStore

RECIPE_FILE = "recipe.json"
SHARD_FILE = re.compile(r"(train|val)-\d{5,}\.(bin\.zst|docs\.parquet|json)")
TEMPORARY = re.compile(r"\..+\.tmp")


def clear_output(out: WritableStore, shards: tuple[ShardPlan, ...], *, whole: bool) -> None:
    """Delete shards that the set to publish does not have; first the manifest, unless all its shards are whole."""
    names = {name for shard in shards for name in shard_file_names(shard_name(shard.split, shard.index))}  # type: ignore[arg-type]
    # A manifest without its shards, or with others, must never be seen: it goes first.
    stale = [file.name for file in out.list() if SHARD_FILE.fullmatch(file.name) and file.name not in names]
    if stale or not whole:
        _withdraw(out)
    for name in stale:
        out.delete(name)


def publish(build: RunningBuild) -> Manifest:
    """Publish a built set, whose shards are written: the tokenizer, the resolved recipe and, last of all, the manifest.

    Returns:
        The manifest; the build gets its SHA-256.
    """
    out, recipe, tokenizer, plan, shards = build.out, build.recipe, build.tokenizer, build.plan, build.shards
    # Files that killed attempts and probes have left, on any host.
    for path in out.folder.iterdir() if out.folder else ():
        if TEMPORARY.fullmatch(path.name):
            delete_path(path)
    for file in list(out.list()):  # a folder's list leaves them out
        if TEMPORARY.fullmatch(file.name):
            out.delete(file.name)

    # The tokenizer and the recipe.
    # A set of another recipe may have the same shards; then its manifest goes before its recipe does.
    texts = {TOKENIZER_FILE: tokenizer.text, RECIPE_FILE: recipe.to_json()}
    if any(out.find(name) is None or out.read(name) != text.encode() for name, text in texts.items()):
        _withdraw(out)
    tokenizer_file, recipe_file = (_put(out, name, text) for name, text in texts.items())
    # A recipe without relative paths is the same with absolute ones.
    state_recipe_folder(build.work, None if texts[RECIPE_FILE] == recipe.to_json(as_written=False) else recipe.folder)

    # The manifest: the splits, the sources, and the mix.
    requested = {"train": plan.train_tokens, "val": recipe.split.val_tokens}
    names = recipe.source_names
    splits = {
        split: describe_split((entry for entry in shards if entry.split == split), names, tokens)
        for split, tokens in requested.items()
    }
    demand = Demand(recipe, plan.weights)
    manifest = Manifest(
        name=recipe.name,
        dtype=dtype_for(tokenizer.vocab_size),
        vocab_size=tokenizer.vocab_size,
        tokenizer=TokenizerEntry(
            file=tokenizer_file.path,
            sha256=tokenizer_file.sha256,
            eos_id=tokenizer.eos_id,
            bos_id=tokenizer.bos_id,
            special_tokens=tokenizer.special_tokens,
        ),
        recipe=RecipeEntry(file=recipe_file.path, sha256=recipe_file.sha256),
        chat=_chat_entry(recipe, tokenizer),
        sources=[_source_entry(build, index) for index in range(len(recipe.sources))],
        drop_hashes=list(plan.block_lists),
        eval_tasks=list(plan.eval_tasks),
        mix=describe_mix(demand.shares.by_name(recipe), plan.requested_tokens, splits["train"].sources),
        phases=_phase_entries(demand, plan.train_tokens, shards) if recipe.mix.phases else [],
        splits={split: entry for split, entry in splits.items() if split == "train" or entry.tokens},  # type: ignore[misc]
        shards=shards,
    )
    build.manifest = _put(out, MANIFEST_FILE, manifest.to_json()).sha256
    return manifest


def _withdraw(out: WritableStore) -> None:
    """Delete the manifest of a set that changes.

    Raises:
        InputError: a training on this machine reads the set.
    """
    if out.folder is not None and is_held(out.folder / MANIFEST_FILE):
        raise InputError(
            f"{out}: a training reads this set, which this build would change. Wait until it ends, or give another "
            "--out with the same --work: finished work is kept."
        )
    out.delete(MANIFEST_FILE)


def _put(out: WritableStore, name: str, text: str) -> FileEntry:
    data = text.encode()
    # In a folder, an equal file stays: who reads it holds it, and not its name.
    if out.folder is None or out.find(name) is None or out.read(name) != data:
        out.put(name, data)
    return FileEntry(path=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _phase_entries(demand: Demand, train_tokens: int, shards: list[ShardEntry]) -> list[PhaseEntry]:
    entries: list[PhaseEntry] = []
    names = demand.recipe.source_names
    for phase, tokens in zip(demand.phases, demand.phase_tokens(train_tokens), strict=True):
        # A phase is a split of its own: the training shards that have its name.
        own = describe_split((entry for entry in shards if entry.phase == phase.name), names, tokens)
        requested = [phase.shares.of(index, tokens) for index in range(len(names))]
        mix = describe_mix(phase.shares.by_name(demand.recipe), requested, own.sources)
        entries.append(describe_phase(str(phase.name), float(phase.share), own, mix))
    return entries


def _chat_entry(recipe: Recipe, tokenizer: TokenizerInfo) -> ChatEntry | None:
    if recipe.chat is None or tokenizer.chat is None:
        return None
    before, after = recipe.chat.table
    return ChatEntry(before=before, after=after, opening=tokenizer.chat.opening)


def _source_entry(build: RunningBuild, index: int) -> SourceEntry:
    source, drops, own = build.recipe.sources[index], build.drops[index], build.encoded(index)
    # Files without a commit are known by what was read of them.
    labels = "\n".join(label for result in own for label in result.labels)
    documents = f"xxh3:{xxhash.xxh3_128_hexdigest(labels.encode())}"
    kept = add_up_kept_text(result.kept for result in own)
    unread = build.selections[index].unread()
    return SourceEntry(
        name=source.name,
        weight=build.plan.weights[index],
        revision=source.pinned_revision or documents,
        tokens_available=drops.left.tokens,
        documents_available=drops.left.documents,
        unread_files=unread.files,
        unread_bytes=unread.bytes,
        dropped=dict(sorted(drops.dropped().items())),
        epochs=build.plan.epochs[index],
        trained_tokens=build.trained_tokens.get(source.name, 0) if source.has_conversations else None,
        rewriting=kept and RewritingEntry.model_validate(kept, from_attributes=True),
    )
