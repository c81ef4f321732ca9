"""BART and what came of it: encoder-decoders with layer norms, biases and positions of their own for each side.

They differ in what is normalised (sums, or what a branch reads), in positions that are learned or sines, and in where the
norm of embeddings stands: BART, MVP, PLBART, mBART, Marian (Opus-MT), Pegasus, Blenderbot, M2M-100 and NLLB.
"""

from dataclasses import dataclass, field
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.config import NormConfig
from penstock.models.encoder_decoder_config import EncoderDecoderConfig, Sines
from penstock.models.encoder_decoder_loader import EncoderDecoderKeys, SideKeys
from penstock.models.recipe import EncoderDecoderRecipe
from penstock.models.recipes.fields import Fields


@dataclass(frozen=True)
class Family:
    """What config.json does not say."""

    start: int | None  # what the decoder begins with by default
    pre_norm: bool = False
    embedding_norm: bool = True
    normed_before_positions: bool = False  # of the decoder's embeddings
    final_norm: bool = False
    position_offset: int = 0
    after_padding: bool = False  # position 0 has the row behind that of the padding token
    sines: Sines | None = None
    only_pads: bool = False  # its padding token is never said
    defaults: dict[str, Any] = field(default_factory=dict)


# By model_type; the defaults are those of its class in transformers.
FAMILIES = {
    "bart": Family(start=2, position_offset=2),
    "mvp": Family(start=2, position_offset=2, defaults={"vocab_size": 50267}),
    "plbart": Family(
        start=None,
        position_offset=2,
        defaults={
            "vocab_size": 50005,
            "d_model": 768,
            "layers": 6,
            "attention_heads": 12,
            "ffn_dim": 3072,
            "scale_embedding": True,
        },
    ),
    "mbart": Family(start=None, pre_norm=True, final_norm=True, position_offset=2),
    "marian": Family(
        start=58100,
        embedding_norm=False,
        sines=Sines(longest_included=False),
        only_pads=True,
        defaults={"vocab_size": 58101, "pad_token_id": 58100},
    ),
    "pegasus": Family(
        start=0,
        pre_norm=True,
        embedding_norm=False,
        final_norm=True,
        sines=Sines(longest_included=False),
    ),
    "blenderbot": Family(
        start=1,
        pre_norm=True,
        embedding_norm=False,
        final_norm=True,
        defaults={
            "vocab_size": 8008,
            "d_model": 2560,
            "encoder_layers": 2,
            "decoder_layers": 24,
            "attention_heads": 32,
            "ffn_dim": 10240,
            "max_position_embeddings": 128,
        },
    ),
    "blenderbot-small": Family(
        start=1,
        normed_before_positions=True,
        defaults={
            "d_model": 512,
            "layers": 8,
            "ffn_dim": 2048,
            "max_position_embeddings": 512,
        },
    ),
    "m2m_100": Family(
        start=2,
        pre_norm=True,
        embedding_norm=False,
        final_norm=True,
        after_padding=True,
        sines=Sines(longest_included=True),
        defaults={
            "vocab_size": 128112,
            "pad_token_id": 1,
            "activation_function": "relu",
            "scale_embedding": True,
        },
    ),
}

BART = {
    "vocab_size": 50265,
    "d_model": 1024,
    "layers": 12,
    "attention_heads": 16,
    "ffn_dim": 4096,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
}


def read_config(config: dict[str, Any]) -> EncoderDecoderConfig:
    """Checks config.json and names its choices."""
    fields, family = Fields(config), _family(config)
    defaults = {**BART, **family.defaults}

    def count(name: str) -> int:
        default = defaults.get(name, defaults.get(name.removeprefix("encoder_").removeprefix("decoder_")))
        return fields.count(name, default=default)

    width, vocabulary = count("d_model"), count("vocab_size")
    encoder_heads, heads = count("encoder_attention_heads"), count("decoder_attention_heads")
    if encoder_heads != heads or width % heads:
        raise UnusableModel(
            f"config.json: d_model {width} with {encoder_heads} encoder_attention_heads and {heads} "
            "decoder_attention_heads: as many of both are supported, which divide it"
        )
    if family.sines is not None and (width % 2 or width < 4):
        raise UnusableModel(
            f"config.json: d_model {width} is odd or below 4, and positions are sines and cosines"
        )
    fields.refuse("use_prompt", False)  # MVP's prompts, which are layers of their own
    fields.refuse("share_encoder_decoder_embeddings", True)
    fields.refuse("decoder_vocab_size", vocabulary)
    offset = family.position_offset
    if family.after_padding:
        offset = fields.whole("pad_token_id", defaults["pad_token_id"]) + 1
    return EncoderDecoderConfig(
        vocab_size=vocabulary,
        width=width,
        head_dim=width // heads,
        encoder_layers=count("encoder_layers"),
        encoder_heads=encoder_heads,
        encoder_feed_forward=count("encoder_ffn_dim"),
        num_layers=count("decoder_layers"),
        heads=heads,
        feed_forward=count("decoder_ffn_dim"),
        norm=NormConfig(1e-5, layer=True, bias=True),
        activation=fields.activation("activation_function", default=defaults["activation_function"]),
        max_side_positions=count("max_position_embeddings"),
        default_start=family.start,
        bias=True,
        position_offset=offset,
        sines=family.sines,
        pre_norm=family.pre_norm,
        embedding_norm=family.embedding_norm,
        normed_before_positions=family.normed_before_positions,
        final_norm=family.final_norm,
        embedding_scale=width**0.5 if fields.flag("scale_embedding", defaults["scale_embedding"]) else 1.0,
        never_said=_padding(fields, family, vocabulary),
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

    ignored = [r"(model\.)?(encoder|decoder)\.version"]
    if _family(config).sines is not None:
        # Older checkpoints hold the table, which is computed.
        ignored.append(r"(model\.)?(encoder|decoder)\.embed_positions\.weights?")
    return EncoderDecoderKeys(
        embeddings=("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
        encoder=side("encoder"),
        decoder=side("decoder"),
        qkv=("q_proj", "k_proj", "v_proj"),
        out="out_proj",
        prefixes=("model.", ""),
        own_head=not Fields(config).flag("tie_word_embeddings", True),
        logits_bias="final_logits_bias",
        ignored=tuple(ignored),
    )


def _family(config: dict[str, Any]) -> Family:
    name = config.get("model_type", "bart")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise UnusableModel(
            f"config.json: model_type is {name!r}, and only {', '.join(FAMILIES)} are supported"
        )
    return family


def _padding(fields: Fields, family: Family, vocabulary: int) -> int | None:
    """The token that pads and is never said. Marian's has no row that was trained, so that it may score best."""
    if not family.only_pads:
        return None
    token = fields.whole("pad_token_id", family.defaults["pad_token_id"])
    return token if token < vocabulary else None


RECIPE = EncoderDecoderRecipe(read_config, keys)
