"""Write a run's model as a folder that transformers loads without Tokenmill.

    AutoModelForCausalLM.from_pretrained(DIR)      AutoTokenizer.from_pretrained(DIR)

The parts of a `llama` choose its class in transformers: Llama, Qwen3 (norms of queries and keys), Arcee (squared ReLU)
or Apertus (both). Rows that pad the vocabulary are cut off; a `gpt2` gets GPT-2's own parameter names, with query, key
and value in one matrix and matrices transposed. Text begins after an end of document, as in training, and
`generate` without a prompt does the same. The tokenizer gives the ids of training: BOS if the set has it, and special
tokens spelled in a text as text, unless it is called with `split_special_tokens=False`. A model of conversations has a
chat template, written from the set's format; it needs whole special tokens, so there that is the default. All this is
proved on probes and on documents of the set; `export.json` has the receipt, and which programs have the class of the
model. It takes at most twice the memory of the weights.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import InputError
from shards.terminal.arguments import add_new_folder, add_run
from shards.terminal.display import JsonObject
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from torch import Tensor

    from shards.convert.chat_template import Apply
    from shards.convert.tokenizer_proof import Encode
    from trainer.recipe import ModelConfig

DTYPES = ("float32", "bfloat16", "float16")
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"

GPT2_NAMES = {
    "model.embed_tokens": "transformer.wte",
    "model.embed_positions": "transformer.wpe",
    "model.norm": "transformer.ln_f",
    "model.layers": "transformer.h",
    "input_layernorm": "ln_1",
    "self_attn.q_proj": "attn.c_attn",
    "self_attn.o_proj": "attn.c_proj",
    "post_attention_layernorm": "ln_2",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}
"""The names in transformers' GPT-2 of parts that we name as its LLaMA does."""

GPT2_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
}
"""The names in transformers' GPT-2 of settings that we name as its LLaMA does."""

LLAMA_CLASSES = {
    ("silu", False): "Llama",
    ("silu", True): "Qwen3",
    ("relu2", False): "Arcee",
    ("relu2", True): "Apertus",
}
"""The class in transformers of a `llama` with some `hidden_act` and `use_qk_norm`."""

SERVERS = ["transformers", "vLLM", "llama.cpp"]
"""The programs that run the classes of an export: of Apertus with squared ReLU, which has an activation of its own
elsewhere, the first alone."""

CONTROL_TOKENS = "a program that serves this model may take special tokens that a user types for control"

PARTS = re.compile(
    r"lm_head|model\.(embed_tokens|embed_positions|norm|layers\.\d+\.((input|post_attention)_layernorm"
    r"|self_attn\.([qkvo]_proj|[qk]_norm)|mlp\.(gate|up|down)_proj))"
)
"""The parts that classes of transformers have, by our names."""

KEYS = {
    *("hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads"),
    *("num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "vocab_size"),
}
"""The keys of a model to export that configurations of transformers have, too."""
OTHER_KEYS = {"kind", "use_qk_norm", "zero_init_residual"}
"""Those that choose the class, or count in training alone."""

APERTUS_NAMES = {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}
"""The names in transformers' Apertus of parts that we name as its LLaMA does."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export-model`."""
    add_run(parser, checkpoint=True)
    parser.add_argument("--to", choices=["hf"], required=True, help="hf: a folder that transformers loads")
    add_new_folder(parser)
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="dtype of the weights (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Run `export`: write a checkpoint's folder for transformers, whole or not at all; return what it holds."""
    import torch

    from shards.convert.chat_template import prove_template, write_chat_template
    from shards.convert.export import EXPORT_FILE
    from shards.convert.tokenizer_proof import prove_tokenizer
    from shards.stores.files import write_folder, write_text
    from shards.terminal.display import say
    from trainer.checkpoint.tensors import write_tensors
    from trainer.commands.trace import find_training_set, open_training_set
    from trainer.trained_model import load_model
    from trainer.run_folder import TOKENIZER_FILE

    out: Path = options.out
    if out.exists():
        raise InputError(f"{out}: already exists and is not overwritten. Choose another folder, or delete it.")
    loaded = load_model(options.run, say, options.checkpoint)
    config, vocab_size, dtype = loaded.model.config, loaded.model.vocab_size, getattr(torch, options.dtype)
    weights = export_weights(loaded.model.state_dict(), config, vocab_size)
    weights = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in weights.items()}
    if large := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise InputError(f"{large[0]}: has weights that {options.dtype} cannot hold. Choose another --dtype.")
    tokens = {token.content: index for index, token in loaded.tokenizer.get_added_tokens_decoder().items()}
    files = describe_export_files(config, vocab_size, loaded.eos_id, tokens, options.dtype, bos_id=loaded.bos_id)
    if loaded.chat is not None:
        # A template's own special tokens must be whole, so text that spells one is control, too, unless a call says no.
        template = write_chat_template(loaded.chat, tokens)
        files["tokenizer_config.json"] |= {"split_special_tokens": False, "chat_template": template}
        files["generation_config.json"] |= {"eos_token_id": sorted(loaded.answer_ends)}
    (class_name,) = files[CONFIG_FILE]["architectures"]
    served_by = SERVERS[: 1 if class_name == "ApertusForCausalLM" else None]
    with write_folder(out) as folder:
        for name, content in files.items():
            write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        (folder / TOKENIZER_FILE).write_bytes((options.run / TOKENIZER_FILE).read_bytes())
        shard_set = None
        try:
            shard_set = open_training_set(options.run, find_training_set(options.run))
        except (InputError, OSError) as error:
            say(f"the set cannot be read, so the tokenizer is compared on probes alone: {error}")
        tokenizer = _load_auto_tokenizer(folder)
        others: dict[str, Encode] = {}
        if tokenizer is not None:
            others["transformers"] = lambda text: tokenizer(text, split_special_tokens=True)["input_ids"]
        proof = prove_tokenizer(folder / TOKENIZER_FILE, bos_id=loaded.bos_id, shard_set=shard_set, others=others)
        receipt: JsonObject = {"step": loaded.step, "served_by": served_by, "tokenizer_proof": proof}
        if loaded.chat is not None:
            proved = None if tokenizer is None or shard_set is None else prove_template(shard_set, _apply(tokenizer))
            receipt["chat_template"] = {"conversations_compared": proved, "control_tokens": CONTROL_TOKENS}
        write_text(folder / EXPORT_FILE, json.dumps(receipt, indent=2) + "\n")
        write_tensors(folder / WEIGHTS_FILE, weights, {"format": "pt"})
    parameters = sum(tensor.numel() for tensor in weights.values())
    result = {"path": str(out), "step": loaded.step, "parameters": parameters, "dtype": options.dtype}
    # A converter that knows tokenizers by name refuses one that was trained here.
    converter = " (tell its converter of the tokenizer)" * ("llama.cpp" in served_by)
    served = f"{class_name}, served by {', '.join(served_by)}{converter}"
    return Outcome(result | {"served_by": served_by}, [served, [result]])


def _load_auto_tokenizer(folder: Path) -> Any:
    """Return the tokenizer that transformers makes of an export; None if it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    auto: Any = transformers.AutoTokenizer
    return auto.from_pretrained(folder)


def _apply(tokenizer: Any) -> Apply:
    """Return what applies the template of an exported tokenizer."""

    def apply(messages: list[dict[str, str]], prompt: bool) -> tuple[list[int], list[int]]:
        asked = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": not prompt}
        found = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, **asked)
        return found["input_ids"], [] if prompt else found["assistant_masks"]

    return apply


def export_weights(state: dict[str, Tensor], config: ModelConfig, vocab_size: int) -> dict[str, Tensor]:
    """Return the weights to export under transformers' names, without the rows that pad the vocabulary.

    Raises:
        InputError: the model has a part, or a key, that no class of transformers has.
    """
    import torch

    others = [name for name in state if not PARTS.fullmatch(name.rpartition(".")[0])]
    # A part may have no weights, such as a factor: its key tells.
    fields = type(config).model_fields.items()
    others += [
        f"model.{key}"
        for key, field in fields
        if key not in KEYS | OTHER_KEYS and getattr(config, key) != field.default
    ]
    if others:
        raise InputError(f"{others[0]}: no class of transformers has this. Use the model by trainer.load_model.")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in state:
            state[name] = state[name][:vocab_size]
    if config.kind == "llama":
        # The rotation of halves is transformers' own, and so are the names, but for Apertus.
        names = APERTUS_NAMES if LLAMA_CLASSES[config.hidden_act, config.use_qk_norm] == "Apertus" else {}
        return {_rename(name, names): tensor for name, tensor in state.items()}
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if "k_proj" in name or "v_proj" in name:
            continue  # with the query's
        if "q_proj" in name:
            tensor = torch.cat([state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        name = _rename(name, GPT2_NAMES)
        out[name] = tensor.t() if ".h." in name else tensor  # its layers' matrices are (inputs, outputs)
    return out


def _rename(name: str, names: dict[str, str]) -> str:
    for ours, theirs in names.items():
        name = name.replace(ours, theirs)
    return name


def describe_export_files(
    config: ModelConfig, vocab_size: int, eos_id: int, tokens: dict[str, int], dtype: str, *, bos_id: int | None = None
) -> dict[str, JsonObject]:
    """Return the JSON files to export with weights and tokenizer, by name; `tokens` are the special ones, with ids.

    If the set has no BOS, an EOS came before each document, so EOS is named as the token that begins one.
    """
    names = {index: token for token, index in tokens.items()}
    eos, pad = names[eos_id], "<|pad|>" if "<|pad|>" in tokens else names[eos_id]
    bos_id = eos_id if bos_id is None else bos_id
    bos = names[bos_id]
    ids = {"bos_token_id": bos_id, "eos_token_id": eos_id, "pad_token_id": tokens[pad]}
    # Whatever trains the model further leaves the embedding of what its config calls padding as it is: not the EOS.
    common = ids | {
        "pad_token_id": tokens[pad] if pad != eos else None,
        "dtype": dtype,
        "vocab_size": vocab_size,
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    if config.kind == "llama":
        name = LLAMA_CLASSES[config.hidden_act, config.use_qk_norm]
        model: JsonObject = {"architectures": [f"{name}ForCausalLM"], "model_type": name.lower()}
        model |= config.model_dump(include=KEYS) | {"attention_bias": False, "mlp_bias": False}
        if name != "Llama":  # the others have defaults that differ
            model["head_dim"] = config.head_dim
            model["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
    else:
        model = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new"}
        model |= {theirs: getattr(config, ours) for theirs, ours in GPT2_KEYS.items()}
        model |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    # Without its class a gpt2 gets GPT2Tokenizer, which rebuilds parts of it.
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # text is data, as in training
        "extra_special_tokens": [token for token in tokens if token not in (bos, eos, pad)],
    }
    return {CONFIG_FILE: model | common, "generation_config.json": ids, "tokenizer_config.json": tokenizer}
