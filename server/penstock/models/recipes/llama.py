"""Llama 2 and 3, TinyLlama, SmolLM and alike: config.json and checkpoint names to the decoder's."""

import math
import re
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.layers.norm import RmsNorm
from penstock.layers.rope import read_rope
from penstock.models.decoder import Decoder, DecoderConfig, Layer
from penstock.weights import Checkpoint

# In some checkpoints, and computed here: rotary frequencies; a copy of the embedding when tied.
IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight")


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""

    def count(name: str, default: int | None = None) -> int:
        value = config.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UnusableModel(f"config.json: {name} is {value!r}, not a positive whole number")
        return value

    def flag(name: str) -> bool:
        value = config.get(name)
        if value is not None and not isinstance(value, bool):
            raise UnusableModel(f"config.json: {name} is {value!r}, not true or false")
        return bool(value)

    width, heads = count("hidden_size"), count("num_attention_heads")
    kv_heads, head_dim = count("num_key_value_heads", heads), count("head_dim", width // heads)
    if heads % kv_heads:
        raise UnusableModel(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    if head_dim % 2:
        raise UnusableModel(f"config.json: head_dim {head_dim} is odd")
    activation = config.get("hidden_act", "silu")
    if activation not in ops.ACTIVATIONS:
        raise UnusableModel(
            f"config.json: unsupported hidden_act {activation!r}; supported: {', '.join(ops.ACTIVATIONS)}"
        )
    eps = config.get("rms_norm_eps", 1e-6)
    if not isinstance(eps, (int, float)) or not math.isfinite(eps) or eps < 0:
        raise UnusableModel(f"config.json: rms_norm_eps is {eps!r}, not a small number")
    if config.get("quantization_config"):
        raise UnusableModel(
            "config.json: quantization_config is set, and quantized weights are not supported"
        )
    return DecoderConfig(
        vocab_size=count("vocab_size"),
        width=width,
        feed_forward=count("intermediate_size"),
        layers=count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=float(eps),
        activation=activation,
        attention_bias=flag("attention_bias"),
        feed_forward_bias=flag("mlp_bias"),
        tied_head=flag("tie_word_embeddings"),
        rope=read_rope(config, head_dim, count("max_position_embeddings", 2048)),
    )


def load(config: DecoderConfig, checkpoint: Checkpoint) -> Decoder:
    """Takes the weights by the names that Hugging Face's Llama has."""
    width, feed_forward = config.width, config.feed_forward
    q_rows, kv_rows = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def linear(prefix: str, parts: dict[str, int], columns: int, bias: bool) -> Linear:
        weight = checkpoint.rows(
            [(f"{prefix}{name}.weight", (rows, columns)) for name, rows in parts.items()]
        )
        if not bias:
            return Linear(weight)
        return Linear(
            weight, checkpoint.rows([(f"{prefix}{name}.bias", (rows,)) for name, rows in parts.items()])
        )

    def norm(name: str) -> RmsNorm:
        return RmsNorm(checkpoint.rows([(f"{name}.weight", (width,))]), config.norm_eps)

    def layer(index: int) -> Layer:
        at = f"model.layers.{index}."
        attention, feed = config.attention_bias, config.feed_forward_bias
        qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
        return Layer(
            attention_norm=norm(at + "input_layernorm"),
            qkv=linear(at + "self_attn.", qkv, width, attention),
            attention_out=linear(at + "self_attn.", {"o_proj": width}, q_rows, attention),
            feed_forward_norm=norm(at + "post_attention_layernorm"),
            gate_up=linear(at + "mlp.", {"gate_proj": feed_forward, "up_proj": feed_forward}, width, feed),
            down=linear(at + "mlp.", {"down_proj": width}, feed_forward, feed),
        )

    embedding = checkpoint.rows([("model.embed_tokens.weight", (config.vocab_size, width))])
    layers = [layer(index) for index in range(config.layers)]
    head = Linear(embedding) if config.tied_head else linear("", {"lm_head": config.vocab_size}, width, False)
    return Decoder(config, embedding, layers, norm("model.norm"), head)
