"""Tiny random Llama checkpoints in Hugging Face's layout, made on the spot by whoever tests with one."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def config(**changes: Any) -> dict[str, Any]:
    """A small config.json; a change to None leaves the key out."""
    return {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}


def tensors(config: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random weights that the config asks for, large enough that logits differ clearly."""
    generator = torch.Generator().manual_seed(seed)
    width, forward = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = (
        config["num_attention_heads"],
        config.get("num_key_value_heads", config["num_attention_heads"]),
    )
    size = config.get("head_dim", width // heads)
    made: dict[str, Tensor] = {}

    def matrix(name: str, rows: int, columns: int, bias: bool = False) -> None:
        made[f"{name}.weight"] = (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(dtype)
        if bias:
            made[f"{name}.bias"] = (torch.randn(rows, generator=generator) * 0.1).to(dtype)

    def norm(name: str) -> None:
        made[f"{name}.weight"] = (1 + 0.1 * torch.randn(width, generator=generator)).to(dtype)

    matrix("model.embed_tokens", config["vocab_size"], width)
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        attention, feed = config.get("attention_bias", False), config.get("mlp_bias", False)
        norm(at + "input_layernorm")
        for name, rows in (
            ("q_proj", heads * size),
            ("k_proj", kv_heads * size),
            ("v_proj", kv_heads * size),
        ):
            matrix(f"{at}self_attn.{name}", rows, width, attention)
        matrix(f"{at}self_attn.o_proj", width, heads * size, attention)
        norm(at + "post_attention_layernorm")
        matrix(f"{at}mlp.gate_proj", forward, width, feed)
        matrix(f"{at}mlp.up_proj", forward, width, feed)
        matrix(f"{at}mlp.down_proj", width, forward, feed)
    norm("model.norm")
    if not config.get("tie_word_embeddings"):
        matrix("lm_head", config["vocab_size"], width)
    return made


def write(
    folder: Path,
    config: dict[str, Any],
    weights: dict[str, Tensor] | None = None,
    shards: int = 1,
    generation: dict[str, Any] | None = None,
) -> Path:
    """Writes config.json and the weights, in one file or several with an index. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = tensors(config) if weights is None else weights
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = list(weights)
    where = {
        name: f"model-{1 + at * shards // len(names):05}-of-{shards:05}.safetensors"
        for at, name in enumerate(names)
    }
    for shard in sorted(set(where.values())):
        part = {name: weights[name] for name in names if where[name] == shard}
        save_file(part, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(t.nbytes for t in weights.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
