"""Small Llama checkpoints made on the spot, with the shipped model's tokenizer and chat template.

They are what the shipped model is not: slow enough to be caught in the middle of a prompt, unable to end by
themselves, or broken in one chosen way.
"""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SHIPPED = Path(str(files("penstock.tiny"))) / "model"


def shipped_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((SHIPPED / "config.json").read_text())
    return config


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
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": special[-1],
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
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
