"""T5, T5 1.1, Flan-T5 and mT5: encoder and decoder with biases by distance in place of positions, scores not scaled.

The first T5 has a plain feed-forward layer with ReLU and a head that is the embedding, of hidden states scaled
down; the later ones a gated layer and a head of their own.
"""

from typing import Any

from penstock.errors import UnusableModel
from penstock.models.encoder_decoder_config import EncoderDecoderConfig, RelativeBias
from penstock.models.encoder_decoder_loader import EncoderDecoderKeys, SideKeys
from penstock.models.recipe import EncoderDecoderRecipe
from penstock.models.recipes.fields import Fields


def read_config(config: dict[str, Any]) -> EncoderDecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    layers, heads = fields.count("num_layers", default=6), fields.count("num_heads", default=8)
    buckets = fields.count("relative_attention_num_buckets", default=32)
    furthest = fields.count("relative_attention_max_distance", default=128)
    if buckets < 4 or buckets % 4 or furthest <= buckets // 2:
        raise UnusableModel(
            f"config.json: {buckets} relative_attention_num_buckets for a relative_attention_max_distance of "
            f"{furthest}: a multiple of 4 is supported, of which half is less than the distance"
        )
    width = fields.count("d_model", default=512)
    return EncoderDecoderConfig(
        vocab_size=fields.count("vocab_size", default=32128),
        width=width,
        head_dim=fields.count("d_kv", default=64),
        encoder_layers=layers,
        encoder_heads=heads,
        encoder_feed_forward=fields.count("d_ff", default=2048),
        num_layers=fields.count("num_decoder_layers", default=layers),
        heads=heads,
        feed_forward=fields.count("d_ff", default=2048),
        norm=fields.norm("layer_norm_epsilon", 1e-6),
        activation=_activation(config),
        max_side_positions=0,
        default_start=fields.whole("pad_token_id", 0),
        gated=_is_gated(config),
        scale=1.0,
        relative=RelativeBias(buckets, furthest),
        hidden_scale=width**-0.5 if _is_scaled(config) else 1.0,
        wide_residual=True,
    )


def keys(config: dict[str, Any]) -> EncoderDecoderKeys:
    """What the tensors are called."""
    up = ("wi_0", "wi_1") if _is_gated(config) else ("wi",)

    def side(kind: str, last: int) -> SideKeys:
        feed_forward = f"layer.{last}."
        return SideKeys(
            layer=f"{kind}.block.{{}}.",
            attention="layer.0.SelfAttention.",
            attention_norm="layer.0.layer_norm",
            across="layer.1.EncDecAttention.",
            across_norm="layer.1.layer_norm",
            up=tuple(f"{feed_forward}DenseReluDense.{name}" for name in up),
            down=f"{feed_forward}DenseReluDense.wo",
            feed_forward_norm=f"{feed_forward}layer_norm",
            final_norm=f"{kind}.final_layer_norm",
            relative=f"{kind}.block.0.layer.0.SelfAttention.relative_attention_bias",
        )

    return EncoderDecoderKeys(
        embeddings=("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
        encoder=side("encoder", 1),
        decoder=side("decoder", 2),
        qkv=("q", "k", "v"),
        out="o",
        own_head=not _is_scaled(config),
        # In checkpoints of the first T5, and never used.
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )


def _is_scaled(config: dict[str, Any]) -> bool:
    """Whether the head is the embedding, of scaled hidden states: what the first T5 does."""
    if config.get("model_type") == "mt5":
        return False
    fields = Fields(config)
    # transformers 5 writes the first; files before it say the same by what they tie.
    return fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))


def _projection(config: dict[str, Any]) -> list[str]:
    given = config.get("feed_forward_proj") or ("gated-gelu" if config.get("model_type") == "mt5" else "relu")
    parts = str(given).split("-")
    if len(parts) > 2 or (len(parts) == 2 and parts[0] != "gated"):
        raise UnusableModel(
            f"config.json: feed_forward_proj is {given!r}, not an activation or gated-activation"
        )
    return parts


def _is_gated(config: dict[str, Any]) -> bool:
    return len(_projection(config)) == 2


def _activation(config: dict[str, Any]) -> str:
    # "gated-gelu" has always meant the approximation by tanh.
    name = _projection(config)[-1]
    name = "gelu_new" if _is_gated(config) and name == "gelu" else name
    return Fields({"feed_forward_proj": name}).activation("feed_forward_proj", default="relu")


RECIPE = EncoderDecoderRecipe(read_config, keys)
