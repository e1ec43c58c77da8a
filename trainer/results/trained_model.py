"""Loading a run's model from its folder, for commands and Python programs. The folder holds the tokenizer too."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from shards.errors import InputError
from shards.stores.files import hash_file
from shards.terminal.display import say
from shards.terminal.reporter import Note
from trainer.checkpoint.folders import find_newest_checkpoint, read_checkpoint
from trainer.checkpoint.tensors import load_weights
from trainer.device import choose_device
from trainer.model.decoder import LanguageModel
from trainer.model.generate import TrainedModel
from trainer.run_folder import TOKENIZER_FILE


def load_model(run: str | Path, say: Note = say, path: str | Path | None = None) -> TrainedModel:
    """Load a run's newest whole checkpoint, or the one at a path, and its tokenizer.

    The model is in evaluation mode, on the GPU if there is one. `model(ids)` maps int64 `(batch, length)` to float32
    logits `(batch, length, vocab_size)`.

    Args:
        run: the run's folder.
        say: called with what the user should know, such as that a newer checkpoint is corrupt.
        path: a checkpoint's folder.

    Raises:
        InputError: the folder has no checkpoint, or the tokenizer is not the one that the model was trained with.
    """
    run = Path(run)
    found = read_checkpoint(Path(path)) if path else find_newest_checkpoint(run, say)
    if found is None:
        command = "tokenmill train"
        raise InputError(f"{run}: no checkpoints. Expected the folder given to `{command} --run`.")
    # Another tokenizer would turn the ids into other text.
    file = run / TOKENIZER_FILE
    if not file.is_file() or hash_file(file) != found.state.tokenizer_sha256:
        fault = "is not the tokenizer of the checkpoint" if file.is_file() else "is missing"
        raise InputError(f"{file}: {fault} (sha256 {found.state.tokenizer_sha256}). Copy it from the shard set.")
    model = LanguageModel(found.recipe.model, found.state.vocab_size)
    load_weights(found, model)
    model.to(choose_device()).eval()
    state = found.state
    return TrainedModel(model, tokenizers.Tokenizer.from_file(str(file)), state.eos_id, state.step, state.bos_id)
