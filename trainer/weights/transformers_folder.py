"""A model as a folder of transformers: which class and which names its parts and settings have there, both ways.

Written are all classes of `CLASSES`, read Llama and Qwen3: `config.json`, `tokenizer.json`, and weights as safetensors,
in one file or in those that an index names. Pickled weights are never loaded.
"""

# pyright: reportUnknownMemberType=false
import json
import re
from pathlib import Path

import torch
from pydantic import Field
from tokenizers import Tokenizer
from torch import Tensor

from shards.config import Document, Settings, check_settings, list_of, table_of
from shards.convert.export import EXPORT_FILE
from shards.errors import InputError, unread
from shards.format.chat import find_chat_faults
from shards.format.manifest import ChatEntry
from shards.format.tokenizer_json import make_set_tokenizer, parse_tokenizer
from shards.format.vocabulary import MAX_TOKENIZER_BYTES
from shards.stores.files import read_file
from shards.stores.parse import load_json
from shards.terminal.display import JsonObject
from trainer.checkpoint.tensors import load_tensors
from trainer.model.decoder import TABLES, LanguageModel
from trainer.model.generate import TrainedModel
from trainer.recipe import ModelConfig, TrainConfig
from trainer.recipe.schema import Count
from trainer.run_folder import TOKENIZER_FILE

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

CLASSES = {
    ("silu", False): "Llama",
    ("silu", True): "Qwen3",
    ("relu2", False): "Arcee",
    ("relu2", True): "Apertus",
}
"""The class in transformers of a `llama` with some `hidden_act` and `use_qk_norm`."""

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


def export_weights(state: dict[str, Tensor], config: ModelConfig, vocab_size: int) -> dict[str, Tensor]:
    """Return the weights to export under transformers' names, without the rows that pad the vocabulary.

    Raises:
        InputError: the model has a part, or a key, that no class of transformers has.
    """
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
    for name in TABLES:
        if name in state:
            state[name] = state[name][:vocab_size]
    if config.kind == "llama":
        # The rotation of halves is transformers' own, and so are the names, but for Apertus.
        names = APERTUS_NAMES if find_class(config) == "ApertusForCausalLM" else {}
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
    config: ModelConfig, vocab_size: int, tokens: dict[str, int], dtype: str, *, eos_id: int, begin_id: int
) -> dict[str, JsonObject]:
    """Return the JSON files to export with weights and tokenizer, by name; `tokens` are the special ones, with ids.

    The token that begins a document is named as BOS: EOS, if the set has no BOS.
    """
    names = {index: token for token, index in tokens.items()}
    bos, eos = names[begin_id], names[eos_id]
    pad = "<|pad|>" if "<|pad|>" in tokens else eos
    ids = {"bos_token_id": begin_id, "eos_token_id": eos_id, "pad_token_id": tokens[pad]}
    # Whatever trains the model further leaves the embedding of what its config calls padding as it is: not the EOS.
    common = ids | {
        "pad_token_id": tokens[pad] if pad != eos else None,
        "architectures": [find_class(config)],
        "dtype": dtype,
        "vocab_size": vocab_size,
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    if config.kind == "llama":
        name = CLASSES[config.hidden_act, config.use_qk_norm]
        model: JsonObject = {"model_type": name.lower(), "attention_bias": False, "mlp_bias": False}
        model |= config.model_dump(include=KEYS)
        if name != "Llama":  # the others have defaults that differ
            model["head_dim"] = config.head_dim
            model["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
    else:
        model = {"model_type": "gpt2", "activation_function": "gelu_new"}
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


SERVERS = ["transformers", "vLLM", "llama.cpp"]
"""The programs that run an export, but for Apertus with squared ReLU: elsewhere it has an activation of its own."""


def find_class(config: ModelConfig) -> str:
    """Return the class of a model in transformers."""
    return (
        "GPT2LMHeadModel" if config.kind == "gpt2" else f"{CLASSES[config.hidden_act, config.use_qk_norm]}ForCausalLM"
    )


def list_servers(config: ModelConfig) -> list[str]:
    """Return the programs that run the export of a model."""
    return SERVERS[: 1 if find_class(config) == "ApertusForCausalLM" else None]


class Seen(Settings):
    """What an export's receipt says of a model's training, which the forms of other programs have no place for."""

    step: Count = 0
    chat: ChatEntry | None = None
    untrained: tuple[Count, ...] = Field(default=(), strict=False)


LENGTH, BATCH = 2048, 16
"""A folder does not say how its model was trained: it is scored in windows of at most so many tokens."""
MAX_JSON_BYTES = 1 << 26


def read_folder(folder: Path) -> TrainedModel:
    """Read a model of Llama's or Qwen3's kind, on the CPU, its weights as float32.

    Raises:
        InputError: a file is missing or damaged, or the model has a part or a setting that ours have not; with every
            reason.
    """
    config = _read_json(folder / CONFIG_FILE)
    content = _read(folder / TOKENIZER_FILE, MAX_TOKENIZER_BYTES)
    model = parse_config(config, folder / CONFIG_FILE)
    try:
        parsed, tokenizer, given = parse_tokenizer(content), Tokenizer.from_buffer(content), json.loads(content)
    except Exception as error:  # tokenizers has no error of its own
        raise InputError(f"{folder / TOKENIZER_FILE}: {error}. Get it again, or use another model.") from error
    tokenizer.no_padding()
    names = {index: text for text, index in parsed.special.items()}
    bos_id = next((index for index in tokenizer.encode("").ids[:1] if index in names), None)
    # As a set that is built with it has it.
    if (own := make_set_tokenizer(given, None if bos_id is None else names[bos_id])) != given:
        content = (json.dumps(own, indent=2, ensure_ascii=False) + "\n").encode()
    eos_id, vocab_size = config.get("eos_token_id"), model.vocab_size or 0
    (eos_id, *_) = list_of(eos_id) or [eos_id]
    if not isinstance(eos_id, int) or eos_id not in names:
        raise InputError(
            f"{folder / CONFIG_FILE}: eos_token_id = {eos_id}; expected that of a special token, of {names!s:.80}. "
            "Correct it."
        )
    if parsed.size > vocab_size:
        raise InputError(
            f"{folder}: {TOKENIZER_FILE} has {parsed.size:,} ids, the model {vocab_size:,}. Get its own tokenizer."
        )
    receipt = _read_json(folder / EXPORT_FILE) if (folder / EXPORT_FILE).exists() else {}
    seen = check_settings(Seen, table_of(receipt.get("seen")), where=f"{folder / EXPORT_FILE}: seen")
    if seen.chat and (faults := [*find_chat_faults(seen.chat, parsed.special, vocab_size)]):
        raise InputError([f"{folder / EXPORT_FILE}: seen: {fault}. Get the folder again." for fault in faults])
    decoder, files = read_weights(folder, model)
    train = TrainConfig(
        seq_len=min(LENGTH, model.max_position_embeddings), global_batch=BATCH, micro_batch=BATCH, steps=1
    )
    untrained = frozenset(seen.untrained) & {*parsed.special.values()}
    return TrainedModel(
        decoder.eval(), train, content, eos_id, bos_id, seen.step, chat=seen.chat, untrained=untrained, files=files
    )


def parse_config(config: Document, file: Path) -> ModelConfig:
    """Return the settings of a model by the `config.json` of a folder.

    Raises:
        InputError: it has a part or a setting that ours have not; with every reason.
    """
    ropes: Document = {key: config.get(key) or {} for key in ("rope_parameters", "rope_scaling")}
    theta = table_of(ropes["rope_parameters"]).get("rope_theta", config.get("rope_theta", 10_000.0))
    model = {key: config[key] for key in KEYS & config.keys()} | {"kind": "llama", "rope_theta": theta}
    model |= {"use_qk_norm": config.get("model_type") == "qwen3", "rms_norm_eps": config.get("rms_norm_eps", 1e-6)}
    found = check_settings(ModelConfig, model, where=str(file))
    needed = {
        "model_type": ["llama", "qwen3"],
        "hidden_act": ["silu"],
        "head_dim": [found.head_dim, None],
        **{key: [False, None] for key in ("attention_bias", "mlp_bias", "use_sliding_window", "quantization_config")},
    }
    faults = [
        f"{file}: {key} = {config.get(key)!r:.80}; expected {' or '.join(map(repr, allowed))}. Use another model."
        for key, allowed in needed.items()
        if config.get(key) not in allowed
    ]
    for key, rope in ropes.items():
        table = table_of(rope)
        if table != rope or table.get("rope_type", table.get("type", "default")) != "default":
            faults.append(f"{file}: {key} = {rope!r:.80}; expected positions without scaling. Use another model.")
    if faults:
        raise InputError(faults)
    return found


def read_weights(folder: Path, config: ModelConfig) -> tuple[LanguageModel, tuple[Path, ...]]:
    """Read the weights of a folder's model; return it, and the files that have them.

    Raises:
        InputError: a file is missing, pickled or damaged, or has other tensors than the model.
    """
    with torch.device("meta"):
        model = LanguageModel(config, config.vocab_size or 0)
    expected = model.state_dict()
    rows = expected["model.embed_tokens.weight"][: config.vocab_size]
    expected |= {name: rows for name in TABLES if name in expected}
    allowed = {"lm_head.weight": rows} | expected
    files, tensors = tuple(sorted(folder.glob("*.safetensors"))), dict[str, Tensor]()
    for file in files:
        tensors |= load_tensors(file, allowed, optional=allowed.keys(), convert=True)
    head = None if "lm_head.weight" in expected else tensors.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, tensors.get("model.embed_tokens.weight", head)):
        raise InputError(
            f"{folder / CONFIG_FILE}: tie_word_embeddings = true; {files[-1].name} has an lm_head.weight of its own. "
            "Set it to false."
        )
    if missing := expected.keys() - tensors.keys():
        pickled = [f", and {path.name}, which is pickled and never loaded" for path in sorted(folder.glob("*.bin"))]
        raise InputError(
            f"{folder}: {len(files)} files of safetensors{''.join(pickled[:1])}; none has {min(missing)}, which "
            f"{CONFIG_FILE} asks for. Get the whole folder again, with weights as safetensors."
        )
    model.to_empty(device="cpu")
    for name, tensor in model.state_dict().items():
        given = tensors.pop(name)
        tensor.zero_()[: len(given)] = given  # rows that pad the vocabulary have no say
    return model, files


def _read_json(file: Path) -> Document:
    content = _read(file, MAX_JSON_BYTES)
    try:
        return table_of(load_json(content))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: is damaged: {error}. Get it again.") from error


def _read(file: Path, most: int) -> bytes:
    try:
        return read_file(file, most)
    except OSError as error:
        raise InputError(f"{file}: {unread(error, 'Expected a whole folder of transformers.')}") from error
