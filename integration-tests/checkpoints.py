"""Small Llama checkpoints made on the spot, with the shipped model's tokenizer and chat template.

They are what the shipped model is not: slow enough to be caught in the middle of a prompt, unable to end by
themselves, or broken in one chosen way.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SHIPPED = Path(str(files("penstock.tiny"))) / "model"


def shipped_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((SHIPPED / "config.json").read_text())
    return config


def write_config(folder: Path, **fields: Any) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "torch_dtype": "float32",
        **fields,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def random_llama(
    folder: Path,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    positions: int = 2048,
    seed: int = 0,
) -> Path:
    """A float32 Llama with random weights that never gives an end-of-sequence token.

    The first hidden dimension is the same for every token and no layer writes to it, so that a column of the
    head can hold the special tokens' logits down whatever the input is.
    """
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (SHIPPED / name).exists():
            shutil.copy(SHIPPED / name, folder / name)
    vocabulary = int(shipped_config()["vocab_size"])
    special = [token["id"] for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]]
    size = hidden // heads
    inner = 2 * hidden
    write_config(
        folder,
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=size,
        max_position_embeddings=positions,
        eos_token_id=special[-1],
    )
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**tokenizer_config, "model_max_length": positions})
    )

    generator = torch.Generator().manual_seed(seed)

    def weight(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).mul(scale / columns**0.5)

    tensors = {
        "model.embed_tokens.weight": torch.randn(vocabulary, hidden, generator=generator),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": weight(vocabulary, hidden, 4.0),
    }
    tensors["model.embed_tokens.weight"][:, 0] = 1.0
    tensors["lm_head.weight"][:, 0] = 0.0
    tensors["lm_head.weight"][special, 0] = -1000.0
    for layer in range(layers):
        name = f"model.layers.{layer}"
        tensors[f"{name}.input_layernorm.weight"] = torch.ones(hidden)
        tensors[f"{name}.post_attention_layernorm.weight"] = torch.ones(hidden)
        tensors[f"{name}.self_attn.q_proj.weight"] = weight(hidden, hidden, 2.0)
        tensors[f"{name}.self_attn.k_proj.weight"] = weight(kv_heads * size, hidden, 2.0)
        tensors[f"{name}.self_attn.v_proj.weight"] = weight(kv_heads * size, hidden)
        tensors[f"{name}.self_attn.o_proj.weight"] = weight(hidden, hidden)
        tensors[f"{name}.mlp.gate_proj.weight"] = weight(inner, hidden)
        tensors[f"{name}.mlp.up_proj.weight"] = weight(inner, hidden)
        tensors[f"{name}.mlp.down_proj.weight"] = weight(hidden, inner)
        tensors[f"{name}.self_attn.o_proj.weight"][0] = 0.0
        tensors[f"{name}.mlp.down_proj.weight"][0] = 0.0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def random_lfm2(folder: Path, *, hidden: int = 64, positions: int = 2048, seed: int = 0) -> Path:
    """A float32 LFM2 with random weights, whose layers have a recurrent state, keys and values, and a state. What follows a token is
    mostly the token's choice and to a part that of what was before it, so that texts repeat themselves now and then.
    """
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (SHIPPED / name).exists():
            shutil.copy(SHIPPED / name, folder / name)
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**tokenizer_config, "model_max_length": positions})
    )
    vocabulary, inner, kernel, heads = int(shipped_config()["vocab_size"]), 2 * hidden, 3, 4
    kinds = ("conv", "full_attention", "conv")
    config = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": len(kinds),
        "layer_types": list(kinds),
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "max_position_embeddings": positions,
        "conv_L_cache": kernel,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}

    def weight(name: str, *shape: int, scale: float = 1.0) -> None:
        noise = torch.randn(shape, generator=generator)
        tensors[f"{name}.weight"] = noise.mul(scale / shape[-1] ** 0.5)

    def norm(name: str, size: int = hidden) -> None:
        tensors[f"{name}.weight"] = 1 + 0.1 * torch.randn(size, generator=generator)

    weight("model.embed_tokens", vocabulary, hidden, scale=2.0)
    norm("model.embedding_norm")
    for index, kind in enumerate(kinds):
        at = f"model.layers.{index}."
        norm(at + "operator_norm")
        norm(at + "ffn_norm")
        for name in ("w1", "w3"):
            weight(f"{at}feed_forward.{name}", inner, hidden)
        weight(f"{at}feed_forward.w2", hidden, inner, scale=0.5)
        if kind == "conv":
            weight(at + "conv.in_proj", 3 * hidden, hidden)
            weight(at + "conv.conv", hidden, 1, kernel)
            weight(at + "conv.out_proj", hidden, hidden)
            continue
        for name, rows in (("q", hidden), ("k", hidden // 2), ("v", hidden // 2), ("out", hidden)):
            weight(f"{at}self_attn.{name}_proj", rows, hidden)
        norm(at + "self_attn.q_layernorm", hidden // heads)
        norm(at + "self_attn.k_layernorm", hidden // heads)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def repeating_llama(folder: Path, *, period: int, vocabulary: int, special: Collection[int]) -> Path:
    """A float32 Llama whose next token is the one `period` places before it, with no tokenizer: greedy, it repeats
    the end of its prompt for ever, but gives none of the `special` tokens.

    Queries and keys are constants, so that attention sees distances only (RoPE turns each pair of dimensions by an
    angle for each place), and a query is turned back by as much as the distance it is to look at. Values are the
    tokens' embeddings; the head reads what attention has written, in dimensions of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size, theta = 64, 100.0
    hidden = 3 * size
    write_config(
        folder,
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=size,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=size,
        max_position_embeddings=4096,
        eos_token_id=max(special),
        rope_theta=theta,
    )
    generator = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(vocabulary, size, generator=generator))
    own, seen = slice(1, 1 + size), slice(1 + size, 1 + 2 * size)
    angles = (period - 1) * theta ** (-torch.arange(0, size, 2) / size)

    tensors = {
        "model.embed_tokens.weight": torch.zeros(vocabulary, hidden),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": torch.zeros(vocabulary, hidden),
        "model.layers.0.input_layernorm.weight": torch.ones(hidden),
        "model.layers.0.post_attention_layernorm.weight": torch.ones(hidden),
        "model.layers.0.self_attn.q_proj.weight": torch.zeros(size, hidden),
        "model.layers.0.self_attn.k_proj.weight": torch.zeros(size, hidden),
        "model.layers.0.self_attn.v_proj.weight": torch.zeros(size, hidden),
        "model.layers.0.self_attn.o_proj.weight": torch.zeros(hidden, size),
        "model.layers.0.mlp.gate_proj.weight": torch.zeros(size, hidden),
        "model.layers.0.mlp.up_proj.weight": torch.zeros(size, hidden),
        "model.layers.0.mlp.down_proj.weight": torch.zeros(hidden, size),
    }
    tensors["model.embed_tokens.weight"][:, 0] = 1.0
    tensors["model.embed_tokens.weight"][:, own] = directions
    tensors["lm_head.weight"][:, seen] = 4.0 * directions
    tensors["lm_head.weight"][list(special), 0] = -1000.0
    tensors["model.layers.0.self_attn.q_proj.weight"][:, 0] = 2.0 * torch.cat([angles.cos(), -angles.sin()])
    tensors["model.layers.0.self_attn.k_proj.weight"][: size // 2, 0] = 1.0
    tensors["model.layers.0.self_attn.v_proj.weight"][:, own] = torch.eye(size)
    tensors["model.layers.0.self_attn.o_proj.weight"][seen] = torch.eye(size)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
