"""Write a run's model, or a folder's, in the form of another program; nothing of Tokenmill is needed to use it.

`--to hf` is a folder that transformers loads:

    AutoModelForCausalLM.from_pretrained(DIR)      AutoTokenizer.from_pretrained(DIR)

The parts of a `llama` choose its class: Llama, Qwen3 (norms of queries and keys), Arcee (squared ReLU) or Apertus
(both). Rows that pad the vocabulary are cut off; a `gpt2` gets GPT-2's own parameter names, with query, key and value
in one matrix and matrices transposed. A text of a set without BOS begins after an end of document: `generate` without
a prompt and the chat template do so, and a prompt needs `bos_token` before it. The tokenizer gives the ids of training:
BOS if the set has it, and special tokens spelled in a text as text, unless it is called with
`split_special_tokens=False`. A model of conversations has a chat template, written from the set's format; it needs
whole special tokens, so there that is the default.

`--to gguf` is `model.gguf`, which llama.cpp and what is built on it run. It needs the extra `gguf`.

All this is proved, by transformers or llama.cpp if they are installed, on probes and on documents of the set;
`export.json` has the receipt, and which programs have the class of the model. It takes at most three times the memory
of the weights.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import InputError, check_extra, plural
from shards.terminal.arguments import add_new_folder, add_run
from shards.terminal.display import JsonObject, say
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from torch import Tensor

    from shards.convert.chat_template import Apply
    from shards.convert.tokenizer_proof import Encode
    from shards.format.reader import ShardSet
    from trainer.model.generate import TrainedModel

DTYPES = ("float32", "bfloat16", "float16")
GGUF_FILE = "model.gguf"

CONTROL_TOKENS = "a program that serves this model may take special tokens that a user types for control"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export-model`."""
    add_run(parser, checkpoint=True)
    about = "hf: a folder that transformers loads; gguf: a file that llama.cpp runs"
    parser.add_argument("--to", choices=["hf", "gguf"], required=True, help=about)
    add_new_folder(parser)
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="dtype of the weights (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Run `export`: write a checkpoint for another program, whole or not at all; return what was written."""
    import torch

    from shards.convert.chat_template import write_chat_template
    from shards.convert.export import EXPORT_FILE
    from shards.stores.files import write_folder, write_text
    from trainer.checkpoint.tensors import check_disk
    from trainer.run_folder import RUN_FILE, TOKENIZER_FILE, open_training_set
    from trainer.weights.trained_model import read_model
    from trainer.weights.transformers_folder import (
        Seen,
        describe_export_files,
        export_weights,
        find_class,
        list_servers,
    )

    out: Path = options.out
    if out.exists():
        raise InputError(f"{out}: already exists and is not overwritten. Choose another folder, or delete it.")
    if options.to == "gguf":
        check_extra("gguf")
    loaded = read_model(options.run, say, options.checkpoint)
    config, vocab_size, dtype = loaded.model.config, loaded.model.vocab_size, getattr(torch, options.dtype)
    weights = export_weights(loaded.model.state_dict(), config, vocab_size)
    weights = {name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}
    if large := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise InputError(f"{large[0]}: has weights that {options.dtype} cannot hold. Choose another --dtype.")
    tokens = {token.content: index for index, token in loaded.tokenizer.get_added_tokens_decoder().items()}
    files = describe_export_files(
        config, vocab_size, tokens, options.dtype, eos_id=loaded.eos_id, begin_id=loaded.begin_id
    )
    template = ""
    if loaded.chat is not None:
        # A template's own special tokens must be whole, so text that spells one is control, too, unless a call says no.
        template = write_chat_template(loaded.chat, tokens)
        files["tokenizer_config.json"] |= {"split_special_tokens": False, "chat_template": template}
        files["generation_config.json"] |= {"eos_token_id": sorted(loaded.answer_ends)}
    served_by = list_servers(config)
    shard_set = None
    try:
        if (options.run / RUN_FILE).exists():  # else a folder of transformers
            shard_set = open_training_set(options.run)
    except (InputError, OSError) as error:
        say(f"the set cannot be read, so the tokenizer is compared on probes alone: {error}")
    with write_folder(out) as folder:
        check_disk(folder, sum(tensor.nbytes for tensor in weights.values()), out)
        (folder / TOKENIZER_FILE).write_bytes(loaded.tokenizer_json)
        seen = Seen(step=loaded.step, chat=loaded.chat, untrained=tuple(sorted(loaded.untrained)))
        receipt: JsonObject = {"served_by": served_by, "seen": seen.model_dump(mode="json")}
        receipt |= {"control_tokens": CONTROL_TOKENS} if loaded.chat else {}
        if options.to == "gguf":
            receipt |= _write_gguf(folder, options, loaded, shard_set, template, weights)
        else:
            receipt |= _write_hf(folder, loaded, shard_set, files, weights)
        write_text(folder / EXPORT_FILE, json.dumps(receipt, indent=2) + "\n")
    parameters = sum(tensor.numel() for tensor in weights.values())
    result = {"path": str(out), "step": loaded.step, "parameters": parameters, "dtype": options.dtype}
    shown = [f"{find_class(config)}, served by {', '.join(served_by)}", [result]]
    return Outcome(result | {"served_by": served_by}, shown)


def _write_hf(
    folder: Path,
    loaded: TrainedModel,
    shard_set: ShardSet | None,
    files: dict[str, JsonObject],
    weights: dict[str, Tensor],
) -> JsonObject:
    """Write the files of `--to hf`; return the proof."""
    from shards.convert.chat_template import prove_template
    from shards.convert.tokenizer_proof import prove_tokenizer
    from shards.stores.files import write_text
    from trainer.checkpoint.tensors import write_tensors
    from trainer.run_folder import TOKENIZER_FILE
    from trainer.weights.transformers_folder import WEIGHTS_FILE

    for name, content in files.items():
        write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    tokenizer = _load_auto_tokenizer(folder)
    others: dict[str, Encode] = {}
    if tokenizer is not None:
        others["transformers"] = lambda text: tokenizer(text, split_special_tokens=True)["input_ids"]
    proof = prove_tokenizer(folder / TOKENIZER_FILE, bos_id=loaded.bos_id, shard_set=shard_set, others=others)
    receipt: JsonObject = {"tokenizer_proof": proof}
    if loaded.chat is not None:
        proved = None
        if shard_set is not None and tokenizer is not None:
            proved = prove_template(shard_set, "transformers", _apply(tokenizer))
        receipt["chat_template"] = {"conversations_compared": proved}
    write_tensors(folder / WEIGHTS_FILE, weights, {"format": "pt"})
    return receipt


def _write_gguf(
    folder: Path,
    options: argparse.Namespace,
    loaded: TrainedModel,
    shard_set: ShardSet | None,
    template: str,
    weights: dict[str, Tensor],
) -> JsonObject:
    """Write the file of `--to gguf`; return the proof, which says so if there is none."""
    from trainer.run_folder import TOKENIZER_FILE
    from trainer.weights.gguf_file import write_gguf
    from trainer.weights.llama_cpp import prove_gguf

    file = folder / GGUF_FILE
    write_gguf(file, options.run.absolute().name, loaded, weights, options.dtype, template)
    try:
        importlib.import_module("xllamacpp")
    except ImportError as error:
        say(f"the file is not proved by llama.cpp: the package 'xllamacpp' cannot be imported: {error}")
        return {"proved": False}
    receipt = prove_gguf(file, loaded, folder / TOKENIZER_FILE, shard_set, options.dtype)
    ids, texts, chat = receipt["tokenizer_proof"], receipt["greedy_texts"], receipt.get("chat_template")
    talks = f" and {plural(chat['conversations_compared'], 'conversation')}" if chat else ""
    say(
        f"the file is {'' if receipt['proved'] else 'not '}proved by llama.cpp: the ids of "
        f"{ids['probes'] + ids['documents']} texts{talks} are equal, and {texts['equal']} of {texts['compared']} "
        "greedy texts to the last token"
    )
    return receipt


def _load_auto_tokenizer(folder: Path) -> Any:
    """Return the tokenizer that transformers makes of an export; None if it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    auto: Any = transformers.AutoTokenizer
    return auto.from_pretrained(folder, model_max_length=1 << 40)  # long texts are compared, too


def _apply(tokenizer: Any) -> Apply:
    """Return what applies the template of an exported tokenizer."""

    def apply(messages: list[dict[str, str]], prompt: bool) -> tuple[list[int], list[int]]:
        asked = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": not prompt}
        found = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, **asked)
        return found["input_ids"], [] if prompt else found["assistant_masks"]

    return apply
