"""Loading a model for commands and Python programs: from a run's folder, or from one of transformers."""

import hashlib
import os
from pathlib import Path

import tokenizers
import torch

from shards.errors import InputError, unread
from shards.format.chat import find_chat_faults
from shards.format.tokenizer_json import parse_tokenizer
from shards.format.vocabulary import MAX_TOKENIZER_BYTES
from shards.stores.files import read_file
from shards.terminal.display import say as print_note
from shards.terminal.reporter import Note
from trainer.checkpoint.folders import (
    MODEL_FILE,
    STATE_FILE,
    Checkpoint,
    find_newest_checkpoint,
    locate_checkpoint,
    read_checkpoint,
)
from trainer.checkpoint.tensors import load_weights
from trainer.device import choose_device
from trainer.model.decoder import LanguageModel
from trainer.model.generate import TrainedModel
from trainer.run_folder import TOKENIZER_FILE
from trainer.weights.transformers_folder import CONFIG_FILE, read_folder


def load_model(run: str | Path, say: Note | None = None, path: str | Path | None = None) -> TrainedModel:
    """Load a run's newest whole checkpoint, or the one at a path, and its tokenizer; or a folder of transformers.

    The model is in evaluation mode, on the GPU if there is one, unless its recipe chooses the CPU. `model(ids)` maps
    int64 `(batch, length)` to float32 logits `(batch, length, vocab_size)`.

    Args:
        run: the run's folder, a checkpoint in it, or a folder of transformers with a model of Llama's or Qwen3's kind.
        say: called with what the user should know, such as that a newer checkpoint is corrupt; printed when None.
        path: a checkpoint's folder.

    Raises:
        InputError: the folder has no checkpoint, or the tokenizer is not the one that the model was trained with.
    """
    trained = read_model(Path(run), say or print_note, path)
    trained.model.to(choose_device("cpu" if trained.train.device == "cpu" else "auto"))
    return trained


def read_model(run: Path, say: Note, path: str | Path | None = None) -> TrainedModel:
    """Load a model as `load_model` does, on the CPU."""
    if not path and os.path.lexists(run / CONFIG_FILE):
        return read_folder(run)
    if not path and (run / STATE_FILE).exists():
        run, path = locate_checkpoint(run).parent.parent, run
    found = read_checkpoint(Path(path)) if path else find_newest_checkpoint(run, say)
    if found is None:
        raise InputError(
            f"{run}: {'no checkpoints' if run.is_dir() else 'no such folder'}. Expected the folder given to `tokenmill "
            "train --run`, or one of transformers, downloaded whole."
        )
    with torch.device("meta"):  # no memory for weights that the checkpoint does not have
        model = LanguageModel(found.recipe.model, found.state.vocab_size)
    load_weights(found, model)
    model.eval()
    state = found.state
    return TrainedModel(
        model,
        found.recipe.train,
        _read_tokenizer(run / TOKENIZER_FILE, found),
        state.eos_id,
        state.bos_id,
        state.step,
        chat=state.chat,
        untrained=frozenset(state.untrained),
        files=(found.path / MODEL_FILE,),
    )


def _read_tokenizer(file: Path, found: Checkpoint) -> bytes:
    """Read the tokenizer of a training run.

    Raises:
        InputError: it is missing, damaged, or not that of the checkpoint.
    """
    state = found.state
    remedy = f"(sha256 {state.tokenizer_sha256}). Copy it from the shard set."
    try:
        content = read_file(file, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise InputError(f"{file}: {unread(error, f'Expected that of the checkpoint {remedy}')}") from error
    # Another tokenizer would turn the ids into other text.
    if hashlib.sha256(content).hexdigest() != state.tokenizer_sha256:
        raise InputError(f"{file}: is not the tokenizer of the checkpoint {remedy}")
    try:
        parsed = parse_tokenizer(content)
        tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # tokenizers has no error of its own
        raise InputError(f"{file}: not a tokenizer: {error} {remedy}") from error
    if max(parsed.size, found.recipe.model.vocab_size or 0) != state.vocab_size:
        raise InputError(
            f"{found.path}: its tokenizer has {parsed.size} ids, its state vocab_size = {state.vocab_size}. Use "
            "another checkpoint, or train again."
        )
    if state.chat and (faults := [*find_chat_faults(state.chat, parsed.special, state.vocab_size)]):
        raise InputError([f"{found.path}: {fault}. Use another checkpoint, or train again." for fault in faults])
    if unknown := {state.eos_id, state.bos_id} - {None, *parsed.special.values()}:
        raise InputError(
            f"{found.path}: {unknown.pop()}, EOS or BOS of its state, is no special token of the tokenizer. Use "
            "another checkpoint, or train again."
        )
    return content
