"""A run's model as a folder that transformers loads with no code of ours.

    AutoModelForCausalLM.from_pretrained(DIR)      AutoTokenizer.from_pretrained(DIR)

Rows that pad the vocabulary are cut off; a `gpt2` gets GPT-2's own parameter names, with query, key and value in one
matrix and matrices transposed. Text begins after an end of document, as in training: `generate` starts so from no
prompt, but the tokenizer adds nothing. Special tokens spelled in a text are matched, as transformers does by default;
`split_special_tokens=True` gives the ids of training, where text is never control. Holds the weights in memory twice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.config import ModelConfig

DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--to", choices=["hf"], required=True, help="hf: a folder for transformers")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="a checkpoint; default: the newest of RUN")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights; default %(default)s")


def run(options: argparse.Namespace) -> int:
    """Write the folder, whole or not at all, and print what it holds."""
    import torch

    from shards.staging import stage_folder
    from shards.writer import write_text
    from trainer.checkpoint import write_tensors
    from trainer.progress import print_summary, say
    from trainer.sample import load_run
    from trainer.session import TOKENIZER_FILE

    out: Path = options.out
    if out.exists():
        raise InputError(f"{out}: exists already; nothing is overwritten. Choose another folder, or delete it.")
    loaded = load_run(options.run, say, options.checkpoint)
    config, vocab_size, dtype = loaded.model.config, loaded.model.vocab_size, getattr(torch, options.dtype)
    # Contiguous copies: a view would be written with all that it is a view of.
    weights = {
        name: tensor.to("cpu", dtype).clone(memory_format=torch.contiguous_format)
        for name, tensor in convert_weights(loaded.model.state_dict(), config, vocab_size).items()
    }
    tokens = {token.content: index for index, token in loaded.tokenizer.get_added_tokens_decoder().items()}
    files = describe_files(config, vocab_size, loaded.eos_id, tokens, options.dtype)
    with stage_folder(out) as folder:
        for name, content in files.items():
            write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        (folder / TOKENIZER_FILE).write_bytes((options.run / TOKENIZER_FILE).read_bytes())
        write_tensors(folder / "model.safetensors", weights, {"format": "pt"})
    parameters = sum(tensor.numel() for tensor in weights.values())
    result = {"path": str(out), "step": loaded.step, "parameters": parameters, "dtype": options.dtype}
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print_summary(files["config.json"]["architectures"][0], [(key, str(value)) for key, value in result.items()])
    return 0


def convert_weights(state: dict[str, Tensor], config: ModelConfig, vocab_size: int) -> dict[str, Tensor]:
    """Return the weights under transformers' names, without the rows that pad the vocabulary."""
    import torch

    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in state:
            state[name] = state[name][:vocab_size]
    if config.kind == "llama":
        return state  # the names are its own, and so is the rotation of halves
    top = {"model.embed_tokens.": "transformer.wte.", "model.embed_positions.": "transformer.wpe."}
    top |= {"model.norm.": "transformer.ln_f.", "lm_head.": "lm_head."}
    out = {
        new + kind: state[old + kind] for old, new in top.items() for kind in ("weight", "bias") if old + kind in state
    }
    parts = {"input_layernorm": "ln_1", "self_attn.o_proj": "attn.c_proj", "post_attention_layernorm": "ln_2"}
    parts |= {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}
    for layer in range(config.num_hidden_layers):
        old, new = f"model.layers.{layer}.", f"transformer.h.{layer}."
        for kind in ("weight", "bias"):
            for ours, theirs in parts.items():
                out[f"{new}{theirs}.{kind}"] = state[f"{old}{ours}.{kind}"].t()  # its matrices are (inputs, outputs)
            joined = torch.cat([state[f"{old}self_attn.{part}_proj.{kind}"] for part in "qkv"])
            out[f"{new}attn.c_attn.{kind}"] = joined.t()
    return out


def describe_files(
    config: ModelConfig, vocab_size: int, eos_id: int, tokens: dict[str, int], dtype: str
) -> dict[str, dict[str, Any]]:
    """Return the JSON files beside weights and tokenizer, by name; `tokens` are the special ones and their ids."""
    names = {index: token for token, index in tokens.items()}
    eos, pad = names[eos_id], "<|pad|>" if "<|pad|>" in tokens else names[eos_id]
    ids = {"bos_token_id": eos_id, "eos_token_id": eos_id, "pad_token_id": tokens[pad]}
    common = {**ids, "vocab_size": vocab_size, "tie_word_embeddings": config.tie_word_embeddings, "dtype": dtype}
    if config.kind == "llama":
        keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
        keys += ("max_position_embeddings", "rope_theta", "rms_norm_eps", "head_dim")
        model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
        model |= {key: getattr(config, key) for key in keys} | {"attention_bias": False, "mlp_bias": False}
    else:
        model = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new"}
        model |= {
            "n_embd": config.hidden_size,
            "n_layer": config.num_hidden_layers,
            "n_inner": config.intermediate_size,
        }
        model |= {"n_head": config.num_attention_heads, "n_positions": config.max_position_embeddings}
        model |= {"layer_norm_epsilon": config.rms_norm_eps}
        model |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # else a gpt2 gets GPT2Tokenizer, which builds parts anew
        "model_max_length": config.max_position_embeddings,
        "bos_token": eos,
        "eos_token": eos,
        "pad_token": pad,
        "extra_special_tokens": [token for token in tokens if token not in (eos, pad)],
        "clean_up_tokenization_spaces": False,
    }
    return {"config.json": model | common, "generation_config.json": ids, "tokenizer_config.json": tokenizer}
