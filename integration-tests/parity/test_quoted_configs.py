"""The recipe of each model reads the config.json that is quoted of it, with the sizes that it says; docs/models.md names the models."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
from quoted import PAGE, QUOTED, rows, written
from unread import need_not_be_read

from penstock.errors import UnusableModel
from penstock.layers.rope import RopeConfig
from penstock.models.config import DecoderConfig
from penstock.models.encoder_decoder_config import EncoderDecoderConfig
from penstock.models.recipes import read_config
from penstock_kernels.routing import Routing

# What the decoder has of what a file says.
READ: dict[str, Callable[[DecoderConfig], object]] = {
    "num_hidden_layers": lambda read: read.num_layers,
    "n_layer": lambda read: read.num_layers,
    "n_layers": lambda read: read.num_layers,
    "num_layers": lambda read: read.num_layers,
    "hidden_size": lambda read: read.width,
    "n_embd": lambda read: read.width,
    "n_embed": lambda read: read.width,
    "d_model": lambda read: read.width,
    "vocab_size": lambda read: read.vocab_size,
    "num_attention_heads": lambda read: read.heads,
    "n_head": lambda read: read.heads,
    "n_heads": lambda read: read.heads,
    "num_key_value_heads": lambda read: read.kv_heads,
    "head_dim": lambda read: read.head_dim,
    "intermediate_size": lambda read: read.feed_forward,
    "max_position_embeddings": lambda read: read.max_positions,
    "n_positions": lambda read: read.max_positions,
    "rope_theta": lambda read: max((rope.theta for rope in read.ropes), default=None),
    "sliding_window": lambda read: max(window.size for window in read.windows if window is not None),
    "tie_word_embeddings": lambda read: read.tied_head,
    "kv_lora_rank": lambda read: read.latent and read.latent.rank,
    "q_lora_rank": lambda read: read.latent and read.latent.query_rank,
    "qk_nope_head_dim": lambda read: read.latent and read.latent.plain_dim,
    "v_head_dim": lambda read: read.latent.value_dim if read.latent else read.value_dim,
    "num_kv_shared_layers": lambda read: sum(layer.keys_of is not None for layer in read.layers),
    "moe_intermediate_size": lambda read: experts(read).width,
    "num_experts_per_tok": lambda read: experts(read).routing.per_token,
    "num_experts_per_token": lambda read: experts(read).routing.per_token,
    "num_experts": lambda read: experts(read).count,
    "routed_scaling_factor": lambda read: experts(read).routing.scale,
    "rms_norm_eps": lambda read: read.norm.eps,
    "layer_norm_eps": lambda read: read.norm.eps,
    "layer_norm_epsilon": lambda read: read.norm.eps,
    "norm_epsilon": lambda read: read.norm.eps,
    "norm_eps": lambda read: read.norm.eps,
    "n_routed_experts": lambda read: experts(read).count,
    "num_local_experts": lambda read: experts(read).count,
    "first_k_dense_replace": lambda read: [layer.experts is None for layer in read.layers].index(False),
    "norm_topk_prob": lambda read: experts(read).routing.normalize,
    "n_group": lambda read: experts(read).routing.groups,
    "topk_group": lambda read: experts(read).routing.top_groups,
    "scoring_func": lambda read: scoring(experts(read).routing),
    "shared_expert_intermediate_size": lambda read: experts(read).shared_width,
    "n_shared_experts": lambda read: experts(read).shared_width // experts(read).width,
    "num_shared_experts": lambda read: experts(read).shared_width // experts(read).width,
    "qk_rope_head_dim": lambda read: read.latent.rope_dim if read.latent else read.ropes[0].head_dim,
    "index_n_heads": lambda read: index(read)[0],
    "index_head_dim": lambda read: index(read)[1],
    "index_topk": lambda read: index(read)[2],
    "attention_bias": lambda read: read.qkv_bias,
    "mlp_bias": lambda read: read.up_bias and read.down_bias,
    "lm_head_bias": lambda read: read.head_bias,
    "use_qk_norm": lambda read: read.qk_norm is not None,
    "qk_norm": lambda read: read.qk_norm is not None,
    "qk_layernorm": lambda read: read.qk_norm is not None,
    "hidden_act": lambda read: read.activation,
    "hidden_activation": lambda read: read.activation,
    "activation_function": lambda read: read.activation,
    "clip_qkv": lambda read: read.clip_qkv,
    "attention_multiplier": lambda read: read.scale,
    "embedding_multiplier": lambda read: read.embedding_scale,
    "residual_multiplier": lambda read: read.residual_scale,
    "logits_scaling": lambda read: 1 / read.logit_scale,
    "scale_emb": lambda read: read.embedding_scale,
    "logit_scale": lambda read: read.logit_scale,
    "lm_head_multiplier": lambda read: read.logit_scale,
    "final_logit_softcapping": lambda read: read.logit_softcap,
    "logits_soft_cap": lambda read: read.logit_softcap,
    "attn_logit_softcapping": lambda read: read.softcap,
    "query_pre_attn_scalar": lambda read: read.scale and read.scale**-2,
    "attention_value_scale": lambda read: read.value_scale,
    "alibi": lambda read: bool(read.slopes),
    "parallel_attn": lambda read: read.parallel,
    "use_parallel_residual": lambda read: read.parallel,
    "num_kv_heads": lambda read: read.kv_heads,
    "ffn_hidden_size": lambda read: read.feed_forward,
    "n_inner": lambda read: read.feed_forward,
    "ffn_dim": lambda read: read.feed_forward,
    "max_seq_len": lambda read: read.max_positions,
    "seq_length": lambda read: read.max_positions,
    "attn_config.kv_n_heads": lambda read: read.kv_heads,
    "attn_config.rope_theta": lambda read: read.ropes[0].theta,
    "attn_config.clip_qkv": lambda read: read.clip_qkv,
    "attn_config.alibi": lambda read: bool(read.slopes),
    "ffn_config.ffn_hidden_size": lambda read: experts(read).width,
    "ffn_config.moe_num_experts": lambda read: experts(read).count,
    "ffn_config.moe_top_k": lambda read: experts(read).routing.per_token,
    "conv_L_cache": lambda read: recurrent(read).kernel,
    "linear_conv_kernel_dim": lambda read: recurrent(read).kernel,
    "linear_num_key_heads": lambda read: recurrent(read).key_heads,
    "linear_num_value_heads": lambda read: recurrent(read).value_heads,
    "linear_key_head_dim": lambda read: recurrent(read).key_dim,
    "linear_value_head_dim": lambda read: recurrent(read).value_dim,
}


# What an encoder-decoder has.
SIDES: dict[str, Callable[[EncoderDecoderConfig], object]] = {
    "vocab_size": lambda read: read.vocab_size,
    "d_model": lambda read: read.width,
    "d_kv": lambda read: read.head_dim,
    "d_ff": lambda read: read.feed_forward,
    "num_heads": lambda read: read.heads,
    "num_layers": lambda read: read.encoder_layers,
    "num_decoder_layers": lambda read: read.num_layers,
    "encoder_layers": lambda read: read.encoder_layers,
    "encoder_attention_heads": lambda read: read.encoder_heads,
    "encoder_ffn_dim": lambda read: read.encoder_feed_forward,
    "decoder_layers": lambda read: read.num_layers,
    "decoder_attention_heads": lambda read: read.heads,
    "decoder_ffn_dim": lambda read: read.feed_forward,
    "max_position_embeddings": lambda read: read.max_side_positions,
    "layer_norm_epsilon": lambda read: read.norm.eps,
    "activation_function": lambda read: read.activation,
    "dense_act_fn": lambda read: read.activation,
    "is_gated_act": lambda read: read.gated,
    "normalize_before": lambda read: read.pre_norm,
    "normalize_embedding": lambda read: read.embedding_norm,
    "add_final_layer_norm": lambda read: read.final_norm,
    "static_position_embeddings": lambda read: read.sines is not None,
    "scale_embedding": lambda read: read.embedding_scale == read.width**0.5,
}


def scoring(routing: Routing) -> str:
    """What DeepSeek's files call how experts are chosen."""
    return "sigmoid" if routing.sigmoid else "sqrtsoftplus" if routing.root_softplus else "softmax"


def index(read: DecoderConfig) -> tuple[int, int, int]:
    """Heads of what chooses the keys that are attended to, numbers of a head, and how many it chooses."""
    chooses = next((layer for layer in read.compressed if layer is not None and layer.index_heads), None)
    if chooses is not None:
        return chooses.index_heads, chooses.index_dim, chooses.most
    assert read.latent is not None and read.latent.index is not None
    return read.latent.index.heads, read.latent.index.head_dim, read.latent.index.most


def recurrent(read: DecoderConfig) -> Any:
    """Of the first layer that keeps a state."""
    return next(layer.recurrent for layer in read.layers if layer.recurrent is not None)


def has_experts(read: DecoderConfig) -> bool:
    return any(layer.experts is not None for layer in read.layers)


def experts(read: DecoderConfig) -> Any:
    """Of the first layer that has some."""
    return next(layer.experts for layer in read.layers if layer.experts is not None)


def read_of(model: str) -> DecoderConfig:
    """What its recipe reads."""
    read = read_config(QUOTED[model].whole())
    assert isinstance(read, DecoderConfig)
    return read


@pytest.mark.tail
@pytest.mark.parametrize("model", QUOTED)
def test_a_recipe_reads_what_is_quoted_of_a_published_file(model: str) -> None:
    text, read = QUOTED[model].text, read_config(QUOTED[model].whole())
    if isinstance(read, EncoderDecoderConfig):
        assert {name: found(read) for name, found in SIDES.items() if name in text} == {
            name: text[name] for name in SIDES if name in text
        }
        return
    otherwise, stated = read_otherwise(model, text, read), dict(leaves(text))
    for name, found in READ.items():
        expected = otherwise[name] if name in otherwise else stated.get(name)
        if expected is not None:
            assert found(read) == approx(expected), name


def leaves(text: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a text's part, null left out, with its path."""
    for name, value in text.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{name}.")
        elif value is not None:
            yield above + name, value


def approx(value: object) -> object:
    """Equal but for rounding, where it is a fraction."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return pytest.approx(value, rel=1e-9) if is_number else value


def read_otherwise(model: str, text: dict[str, Any], read: DecoderConfig) -> dict[str, Any]:
    """Sizes that are another number here, or None where they are of what the decoder does not have."""
    others: dict[str, Any] = {}
    if any(read.compressed):
        others |= dict.fromkeys(("q_lora_rank", "rope_theta", "sliding_window"))
    elif text.get("sliding_window") and not any(read.windows):  # not used, or as long as the model can read
        assert (
            text.get("use_sliding_window") is False
            or text["sliding_window"] >= read.max_positions
            or set(text.get("layer_types", ())) == {"full_attention"}
        )
        others |= dict.fromkeys(("sliding_window",))
    if read.latent is not None or not any(layer.attends for layer in read.layers):
        others |= dict.fromkeys(("head_dim",))
    if has_experts(read):  # whose width some call intermediate_size
        others |= dict.fromkeys(("intermediate_size",))
    else:
        others |= dict.fromkeys(
            ("num_local_experts", "num_experts", "num_experts_per_tok", "routed_scaling_factor")
        )
    if text.get("use_mla") is False:  # sizes of a latent that it does not have
        others |= dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if not read.feed_forward:
        others |= dict.fromkeys(("intermediate_size",))
    if "MiMo V2" in model:  # it counts the tokens before
        others["sliding_window"] = text["sliding_window_size"] + 1
    if "cross_attention_layers" in text:  # a text passes them by
        others["num_hidden_layers"] = text["num_hidden_layers"] - len(text["cross_attention_layers"])
    if text.get("block_auto_adjust_ff_dim"):  # of LFM2: two thirds of it
        others |= dict.fromkeys(("intermediate_size",))
    for name in ("intermediate_size", "moe_intermediate_size", "rope_theta"):
        if isinstance(text.get(name), list) and others.get(name, 0) is not None:  # one for each layer
            others[name] = max(text[name])
    if (
        text.get("model_type") == "cohere" and "model_max_length" in text
    ):  # whose other field is for how long it was trained at first
        others["max_position_embeddings"] = text["model_max_length"]
    scaling = text.get("rope_scaling") or {}
    if scaling.get("rope_type") == "yarn" and text.get("model_type") == "arcee":  # the stretch is longer
        others["max_position_embeddings"] = int(
            scaling["factor"] * scaling["original_max_position_embeddings"]
        )
    if (
        scaling.get("rope_type", scaling.get("type")) == "linear" and text.get("model_type") == "llama"
    ):  # a stretch of all positions
        others["max_position_embeddings"] = int(text["max_position_embeddings"] * scaling["factor"])
    if "alpha" in scaling:  # of Hunyuan: a stretch of the base
        rotated = text["head_dim"]
        others["rope_theta"] = text["rope_theta"] * scaling["alpha"] ** (rotated / (rotated - 2))
    if not rotates(text):  # though the file may name a base
        others |= dict.fromkeys(("rope_theta",))
    if text.get("multi_query") is True and not text.get("new_decoder_architecture", True):
        others["num_kv_heads"] = 1
    if text.get("model_type") == "gemma" and text.get("hidden_activation") is None:  # GELU is another there
        others["hidden_act"] = "gelu_pytorch_tanh"
    if text.get("model_type") == "starcoder2":  # which reads hidden_act
        others |= dict.fromkeys(("activation_function",))
    if text.get("hidden_act") == "swigluoai":  # what gates are made of is in the experts' clamp
        others["hidden_act"] = "silu"
    if text.get("model_type") == "hyperclovax":  # it multiplies
        others["logits_scaling"] = 1 / text["logits_scaling"]
    if text.get("model_type") == "bailing_hybrid":  # normalised are the keys of its recurrent layers
        others |= dict.fromkeys(("use_qk_norm",))
    if "moe_shared_expert_intermediate_size" in text or "Inkling" in model:
        others |= dict.fromkeys(("n_shared_experts", "num_shared_experts"))
    if "rms_norm_eps" in text and text.get("model_type") == "cohere2_moe":  # it goes first
        others |= dict.fromkeys(("layer_norm_eps",))
    if "RecurrentGemma" in model:  # which counts gates and values
        others["intermediate_size"] = text["intermediate_size"] // 2
    if text.get("model_type") == "rwkv":  # its blocks keep two states, and are two layers here
        others["num_hidden_layers"] = 2 * text["num_hidden_layers"]
    if "Inkling" in model:  # rows without a token are left out, and experts for every token counted
        others |= {"vocab_size": 200058, "num_experts_per_tok": 8, "n_routed_experts": 258}
    return others


# Of families whose files may leave it to the class: how much of a head is rotated.
SHARES = {"bamba": 0.5, "glm": 0.5, "persimmon": 0.5}


def rotates(text: dict[str, Any]) -> bool:
    """Whether a model that its file may name a base of rotations of has some."""
    if text.get("model_type") in ("nemotron_h", "olmo_hybrid"):
        return False
    return text.get("position_embedding_type") != "nope"


def rotations(text: dict[str, Any]) -> list[dict[str, Any]]:
    """What a file says of each of its rotations, in the words of `RopeConfig`."""
    given = text.get("rope_parameters") or text.get("rope_scaling") or {}
    beside = {name: text[name] for name in ("rope_theta", "partial_rotary_factor") if name in text}
    kinds = [one for one in given.values() if isinstance(one, dict)] or [given]
    if isinstance(
        text.get("rope_theta"), list
    ):  # one for each layer, and a stretch of those without a window
        kinds = [{"rope_theta": min(text["rope_theta"])}, given | {"rope_theta": max(text["rope_theta"])}]
    if text.get("model_type") == "deepseek_v4":  # the stretch is of layers that compress keys
        kinds = [given | {"rope_theta": text["compress_rope_theta"]}]
    if (
        text.get("model_type") == "lfm3"
    ):  # angles of a part of a head are those of the whole, which is another base
        kinds = [
            one | {"rope_theta": one["rope_theta"] ** one.get("partial_rotary_factor", 1.0)}
            for one in given.values()
        ]
    found = []
    for one in kinds:
        said = {**beside, **one}
        if "alpha" in said:  # of Hunyuan: a stretch of the base, and no other
            size = text["head_dim"]
            said = {"rope_theta": said["rope_theta"] * said["alpha"] ** (size / (size - 2))}
        kind = said.pop("rope_type", None) or said.pop("type", None) or "default"
        said["variant"] = {"su": "longrope", "mrope": "default"}.get(kind, kind)
        if said.get("rope_theta") is not None:
            said["theta"] = said["rope_theta"]
        found.append(said)
    return found


@pytest.mark.tail
@pytest.mark.parametrize("model", QUOTED)
def test_a_recipe_rotates_as_a_published_file_says(model: str) -> None:
    """With each of its numbers: kind, base, factors and lengths of the stretch, and how much of a head."""
    text, read = QUOTED[model].text, read_config(QUOTED[model].whole())
    if isinstance(read, EncoderDecoderConfig) or not rotates(text):
        assert isinstance(read, EncoderDecoderConfig) or not read.ropes
        return
    names = {field.name for field in fields(RopeConfig)} - {"head_dim"}
    for said in rotations(text):
        expected = {
            name: tuple(value) if isinstance(value, list) else approx(value)
            for name, value in said.items()
            if name in names and value is not None
        }
        if set(expected) == {"variant"}:  # the file says nothing of it
            continue
        found = [rope for rope in read.ropes if {name: getattr(rope, name) for name in expected} == expected]
        assert found, f"{expected} is none of {read.ropes}"
        for at, layer in enumerate(read.layers):
            if layer.rope in found:
                assert rotated(layer.rope) in shares(said, text, read, at)


def rotated(rope: RopeConfig) -> int:
    """Numbers of a head that turn."""
    return rope.rotated if rope.variant == "proportional" else rope.head_dim


def shares(said: dict[str, Any], text: dict[str, Any], read: DecoderConfig, at: int) -> list[int]:
    """How many numbers of a head a file says that a layer rotates."""
    latent = read.latent_of(at)
    if latent is not None:
        return [latent.rope_dim]
    for name in ("rotary_dim", "attn_rotary_emb", "qk_rope_head_dim"):
        if text.get(name):
            return [text[name]]
    share = said.get(
        "partial_rotary_factor", text.get("rotary_pct", SHARES.get(text.get("model_type", ""), 1.0))
    )
    return [int(read.head_dim_of(at) * one + 1e-6) for one in text.get("partial_rotary_factors", [share])]


def others(value: object) -> list[Any]:
    """Values of its kind that it might be in place of this."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value + 2, value // 2]
    if isinstance(value, float):
        return [value / 2 + 0.125, 2 * value]
    if isinstance(value, str):
        return [f"{value}x"]
    assert isinstance(value, list)
    firsts = [[one, *value[1:]] for one in others(value[0])] if value else []
    return firsts + ([[*value[:-1], one] for one in others(value[-1])] if value else [])


def put(config: dict[str, Any], path: list[str], value: object) -> dict[str, Any]:
    """It with another value at a path."""
    name, *below = path
    return {**config, name: put(config[name], below, value) if below else value}


def notices(config: dict[str, Any], path: list[str], value: object, read: object) -> bool:
    """Whether the recipe reads it otherwise with this value, or refuses it."""
    try:
        return read_config(put(config, path, value)) != read
    except UnusableModel:
        return True


@pytest.mark.tail
@pytest.mark.parametrize("model", QUOTED)
def test_a_recipe_reads_every_value_of_a_published_file(model: str) -> None:
    """Another value in its place is read otherwise or refused, or unread.py says why it need not be."""
    one = QUOTED[model]
    whole, read = one.whole(), read_config(one.whole())
    ignored = [
        f"{path}: {value}"
        for path, value in leaves(one.text)
        if others(value)
        and not need_not_be_read(one.text, read, path, value)
        and not any(notices(whole, [*one.parts, *path.split(".")], other, read) for other in others(value))
    ]
    assert not ignored, "no recipe reads them, and unread.py does not say why"


def test_the_page_names_what_is_quoted() -> None:
    for one in QUOTED.values():
        assert all(re.fullmatch(r"[\w./-]+/[\w.-]+: \S.*", place) for place in one.found_in), one.found_in
    unknown = {row for one in QUOTED.values() for row in one.rows} - set(rows())
    assert not unknown, "rows that docs/models.md does not have"
    text = written()
    if os.environ.get("PENSTOCK_WRITE_DOCS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "PENSTOCK_WRITE_DOCS=1 writes docs/models.md anew"


def test_what_is_quoted_of_layers_is_read() -> None:
    """Which layers of published files attend, to what, and which keep a state."""

    assert not read_of("Mistral Small 3.1 24B").tied_head  # of which the file says nothing
    assert read_of("Gemma 3 27B").tied_head
    kimi = read_of("Kimi Linear 48B")
    assert [at for at, layer in enumerate(kimi.layers, 1) if layer.recurrent is not None] == QUOTED[
        "Kimi Linear 48B"
    ].text["linear_attn_config"]["kda_layers"]
    assert kimi.latent is not None and kimi.latent.rope_dim == 64
    assert not any(layer.rope for layer in kimi.layers)
    m3 = read_of("MiniMax M3")
    assert m3.index is not None and (m3.index.block, m3.index.most) == (128, 16)
    assert [layer.experts is not None for layer in m3.layers] == [
        frequency == 1 for frequency in QUOTED["MiniMax M3"].text["moe_layer_freq"]
    ]
    e2b = read_of("Gemma 4 E2B")
    assert [layer.keys_of for layer in e2b.layers[15:20]] == [13, 13, 13, 13, 14]
    assert [layer.feed_forward for layer in e2b.layers] == ([6144] * 15 + [12288] * 20)
    lfm2 = read_of("LFM2 350M")
    assert lfm2.feed_forward == 4608
    granite = read_of("Granite 4.0 H Tiny")
    assert [at for at, layer in enumerate(granite.layers) if layer.attends] == [5, 15, 25, 35]
    assert all(layer.experts is not None for layer in granite.layers)
    assert not any(layer.experts is not None for layer in read_of("Granite 4.0 H 1B").layers)
    jamba = read_of("Jamba 1.5 Mini")
    assert [at for at, layer in enumerate(jamba.layers) if layer.attends] == [4, 12, 20, 28]
    assert [layer.experts is not None for layer in jamba.layers] == [False, True] * 16
    minimax = read_of("MiniMax-Text-01")
    assert [at for at, layer in enumerate(minimax.layers) if layer.attends] == list(range(7, 80, 8))
    assert minimax.residual_factors == ((3.5565588200778455, 1.0),) * 3
    assert minimax.ropes[0].head_dim == 64
    nemotron = read_of("Nemotron Nano 9B v2")
    assert [layer.attends for layer in nemotron.layers] == [
        kind == "*" for kind in QUOTED["Nemotron Nano 9B v2"].text["hybrid_override_pattern"]
    ]
    gemma = read_of("RecurrentGemma 2B")
    assert [at for at, layer in enumerate(gemma.layers) if layer.attends] == list(range(2, 26, 3))
    v4 = read_of("DeepSeek V4 Flash")
    rates = [one.compression.rate if one is not None and one.compression else 0 for one in v4.compressed]
    assert rates == QUOTED["DeepSeek V4 Flash"].text["compress_ratios"][:-1] and {
        one.window for one in v4.compressed if one is not None
    } == {128}
    qwen4 = read_of("Qwen3.8-Flash-Next")
    assert [at for at, layer in enumerate(qwen4.layers) if layer.attends] == list(range(3, 48, 4))
    step = read_of("Step 3.7 Flash")
    caps = {
        at: (layer.experts.cap, layer.experts.shared_cap)
        for at, layer in enumerate(step.layers)
        if layer.experts
    }
    assert {at: cap for at, cap in caps.items() if any(cap)} == {43: (7.0, 16.0), 44: (7.0, 16.0)}
    maverick = read_of("Llama 4 Maverick")
    assert [layer.experts is not None for layer in maverick.layers] == [False, True] * 24
    assert [at for at, layer in enumerate(maverick.layers) if layer.rope is None] == list(range(3, 48, 4))
    # Of which the file says null, and Mistral's class 4096.
    assert not any(read_of("LLaVA-NeXT-Video 7B 32K").windows)
    # Other than the class's defaults.
    vault = read_of("VaultGemma 1B")
    assert not any(vault.windows) and vault.logit_softcap == vault.softcap == 0
    # Whose rotation is null, beside one of the whole model.
    micro = read_of("North Micro Vision 2.4B")
    assert [at for at, layer in enumerate(micro.layers) if layer.rope is None] == list(range(3, 28, 4))
    laguna = read_of("Laguna XS 2.1")
    assert [at for at, layer in enumerate(laguna.layers) if layer.window is None] == list(range(0, 40, 4))
    lightning, kinds = (
        read_of("Nemotron 3.5 Lightning"),
        QUOTED["Nemotron 3.5 Lightning"].text["layers_block_type"],
    )
    assert [layer.attends for layer in lightning.layers] == [kind == "attention" for kind in kinds]
    assert [layer.experts is not None for layer in lightning.layers] == [kind == "moe" for kind in kinds]
    for model, width, experts_width in (("Inkling", 24576, 3072), ("Inkling Small", 16384, 2048)):
        inkling = read_of(model)
        assert [at for at, layer in enumerate(inkling.layers) if layer.window is None] == list(
            range(5, inkling.num_layers, 6)
        )
        assert [at for at, layer in enumerate(inkling.layers) if layer.experts is None] == [0, 1]
        assert inkling.feed_forward == width and experts(inkling).width == experts_width
    lfm3 = read_of("LFM3 1.7B")
    assert [at for at, layer in enumerate(lfm3.layers) if layer.recurrent is None] == list(range(2, 24, 2))
    assert [at for at, layer in enumerate(lfm3.layers) if layer.window is not None] == list(range(4, 24, 4))
    assert [(rope.head_dim, rope.theta) for rope in lfm3.ropes] == [(64, 1000.0), (128, 10000.0)]
    olmo = read_of("OLMo Hybrid 7B")
    assert [at for at, layer in enumerate(olmo.layers) if layer.attends] == list(range(3, 32, 4))
    assert not olmo.ropes
    for model, every in (("Ling 3.0 Flash", 6), ("Ling 3.0 Tiny", 4), ("Edge0 8B", 4)):
        ling = read_of(model)
        assert [at for at, layer in enumerate(ling.layers) if layer.attends] == list(
            range(every - 1, ling.num_layers, every)
        )
        assert ling.ropes[0].head_dim == 64
    vision = read_of("Granite 4.0 3B Vision")
    assert (
        all(layer.attends and layer.rope is not None for layer in vision.layers) and len(vision.layers) == 40
    )
    assert {layer.recurrent for layer in vision.layers} == {None}
    for model, every, at in (("North Mini Code 1.0", 4, 0), ("Command A+", 4, 3)):
        windows = read_of(model).layer_windows
        assert [index for index, window in enumerate(windows) if window is None] == list(
            range(at, len(windows), every)
        )
    ocr = read_of("DeepSeek-OCR")
    assert [layer.experts is not None for layer in ocr.layers] == [False] + [
        True
    ] * 11 and ocr.head_dim == 128
    bamba = read_of("Bamba 9B")
    assert [at for at, layer in enumerate(bamba.layers) if layer.attends] == [9, 18, 27]
    assert bamba.ropes[0].head_dim == 64 and bamba.max_positions == 4096
    v32 = read_of("DeepSeek V3.2")
    assert v32.latent is not None and v32.latent.index is not None
    assert (v32.latent.index.heads, v32.latent.index.head_dim, v32.latent.index.most) == (64, 128, 2048)
