"""BART and mBART: learned positions, layer norms and biases; BART normalises sums, mBART what branches read."""

from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import NormConfig
from penstock.models.encoder_decoder import EncoderDecoderConfig
from penstock.models.encoder_decoder_loader import EncoderDecoderKeys, SideKeys
from penstock.models.recipe import EncoderDecoderRecipe
from penstock.models.recipes.fields import Fields


def read_config(config: dict[str, Any]) -> EncoderDecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    width = fields.count("d_model", default=1024)
    encoder_heads = fields.count("encoder_attention_heads", default=16)
    heads = fields.count("decoder_attention_heads", default=16)
    if encoder_heads != heads or width % heads:
        raise UnusableModel(
            f"config.json: d_model {width} with {encoder_heads} encoder_attention_heads and {heads} "
            "decoder_attention_heads: as many of both are supported, which divide it"
        )
    pre_norm = _is_mbart(config)
    return EncoderDecoderConfig(
        vocab_size=fields.count("vocab_size", default=50265),
        width=width,
        head_dim=width // heads,
        encoder_layers=fields.count("encoder_layers", default=12),
        encoder_heads=encoder_heads,
        encoder_feed_forward=fields.count("encoder_ffn_dim", default=4096),
        num_layers=fields.count("decoder_layers", default=12),
        heads=heads,
        feed_forward=fields.count("decoder_ffn_dim", default=4096),
        norm=NormConfig(1e-5, layer=True, bias=True),
        activation=fields.activation("activation_function", default="gelu"),
        max_side_positions=fields.count("max_position_embeddings", default=1024),
        default_start=None if pre_norm else 2,
        bias=True,
        position_offset=2,
        pre_norm=pre_norm,
        embedding_norm=True,
        final_norm=pre_norm,
        embedding_scale=width**0.5 if fields.flag("scale_embedding") else 1.0,
    )


def keys(config: dict[str, Any]) -> EncoderDecoderKeys:
    """What the tensors are called."""

    def side(kind: str) -> SideKeys:
        return SideKeys(
            layer=f"{kind}.layers.{{}}.",
            attention="self_attn.",
            attention_norm="self_attn_layer_norm",
            across="encoder_attn.",
            across_norm="encoder_attn_layer_norm",
            up=("fc1",),
            down="fc2",
            feed_forward_norm="final_layer_norm",
            positions=f"{kind}.embed_positions",
            embedding_norm=f"{kind}.layernorm_embedding",
            final_norm=f"{kind}.layer_norm",
        )

    return EncoderDecoderKeys(
        embeddings=("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
        encoder=side("encoder"),
        decoder=side("decoder"),
        qkv=("q_proj", "k_proj", "v_proj"),
        out="out_proj",
        prefixes=("model.", ""),
        own_head=not Fields(config).flag("tie_word_embeddings", True),
        logits_bias="final_logits_bias",
        ignored=(r"(model\.)?(encoder|decoder)\.version",),
    )


def _is_mbart(config: dict[str, Any]) -> bool:
    return config.get("model_type") == "mbart"


RECIPE = EncoderDecoderRecipe(read_config, keys)
