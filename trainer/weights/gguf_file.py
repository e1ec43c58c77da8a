"""A model as a GGUF file, which llama.cpp runs: weights, tokenizer, chat template.

llama.cpp knows what a model computes by its architecture, and how text is divided into words by the name of a
pre-tokenizer, of which its own converter finds only those of published tokenizers.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import json
from pathlib import Path
from typing import Any

import gguf
from torch import Tensor

from shards.errors import InputError
from shards.format.tokenizer_json import find_pretokenizer, parse_tokenizer
from shards.stores.files import sync_path
from trainer.model.generate import TrainedModel
from trainer.recipe import ModelConfig
from trainer.weights.transformers_folder import find_class

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "ArceeForCausalLM": gguf.MODEL_ARCH.ARCEE,
    "GPT2LMHeadModel": gguf.MODEL_ARCH.GPT2,
}
"""By the class in transformers."""
PRETOKENIZERS = {"gpt2": "gpt-2", "llama3": "llama-bpe", "qwen2": "qwen2", "o200k": "gpt-4o"}
"""Our names, and llama.cpp's."""
DTYPES = {
    "float32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "bfloat16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "float16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
}
_TURNED = (gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.ARCEE)
"""Where llama.cpp rotates pairs of neighbours, not of halves: the rows of queries and keys change places."""
_UNUSED, _CONTROL = gguf.TokenType.UNUSED, gguf.TokenType.CONTROL


def write_gguf(
    file: Path, name: str, trained: TrainedModel, weights: dict[str, Tensor], dtype: str, template: str
) -> None:
    """Write a model.

    Args:
        file: the new file.
        name: the model's name.
        trained: its settings and its tokenizer.
        weights: by transformers' names, on the CPU.
        dtype: of the matrices; vectors and learned positions are float32.
        template: the chat template; empty without one.

    Raises:
        InputError: llama.cpp has no name for the model's class or for its pre-tokenizer.
        OSError: the disk is full or not writable.
    """
    config, tokenizer = trained.model.config, json.loads(trained.tokenizer_json)
    class_name = find_class(config)
    arch = ARCHITECTURES.get(class_name)
    pretokenizer = PRETOKENIZERS.get(find_pretokenizer(tokenizer) or "")
    if arch is None or pretokenizer is None:
        what, known = (class_name, ARCHITECTURES) if arch is None else ("the pre-tokenizer", PRETOKENIZERS)
        remedy = "Use --to hf" + (', or train with hidden_act = "silu"' if arch is None else "")
        raise InputError(f"{what}: llama.cpp has no name for it. It has for: {', '.join(known)}. {remedy}.")
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_name(name)
    writer.add_file_type(DTYPES[dtype][1])
    _add_config(writer, config, trained.model.vocab_size)
    _add_tokenizer(writer, tokenizer, pretokenizer, trained, template)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for theirs, tensor in weights.items():
        if arch in _TURNED and theirs.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = tensor.view(-1, 2, config.head_dim // 2, config.hidden_size).transpose(1, 2).flatten(0, 2)
        elif theirs.startswith("transformer.h.") and tensor.ndim == 2:
            tensor = tensor.t()  # back to (outputs, inputs)
        kind = DTYPES[dtype][0] if tensor.ndim == 2 and ".wpe." not in theirs else gguf.GGMLQuantizationType.F32
        values = gguf.quants.quantize(tensor.float().contiguous().numpy(), kind)
        writer.add_tensor(str(names.get_name(theirs, (".weight", ".bias"))), values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    sync_path(file)


def _add_config(writer: Any, config: ModelConfig, vocab_size: int) -> None:
    writer.add_vocab_size(vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if config.kind == "gpt2":
        writer.add_layer_norm_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_theta)
        writer.add_rope_dimension_count(config.head_dim)


def _add_tokenizer(writer: Any, tokenizer: Any, pretokenizer: str, trained: TrainedModel, template: str) -> None:
    """Add the entries and what begins and ends texts: as in training, BOS or the end of a document begins one."""
    parsed = parse_tokenizer(trained.tokenizer_json)
    entries = {index: (text, gguf.TokenType.NORMAL) for text, index in parsed.vocabulary.items()}
    entries |= {index: (text, _CONTROL) for text, index in parsed.added.items()}
    listed = [entries.get(index, (f"<|unused_{index}|>", _UNUSED)) for index in range(trained.model.vocab_size)]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pretokenizer)
    writer.add_token_list([text for text, _ in listed])
    writer.add_token_types([kind for _, kind in listed])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(trained.begin_id)
    writer.add_eos_token_id(trained.eos_id)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    if trained.chat is not None:
        writer.add_chat_template(template)
        heads = trained.chat_ids.heads
        writer.add_eot_token_id((trained.chat_ids.tail or heads["user"])[0])
