"""What recipes read of a config.json against what transformers reads there: fields that are left out, null, of single layers, saved
again by transformers, or within larger models.
"""

import json
import math
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from models import ids, kind_of, logits_of, logits_of_text, make
from quoted import QUOTED
from ranks import TESTS  # noqa: F401  (where the driver is)
from transformers import CONFIG_MAPPING, AutoConfig, Gemma3TextConfig

from penstock import quantization
from penstock.errors import UnusableModel
from penstock.layers.rope_frequencies import frequencies
from penstock.loading.model_files import dtype_name, eos_ids
from penstock.models import recipes
from penstock.models.architectures import RECIPES, architecture_of, architectures
from penstock.models.config import DecoderConfig, Window
from penstock.models.decoder import Decoder, Experts
from penstock.models.recipes import read_config
from penstock.models.recipes.text_defaults import DEFAULTS
from penstock.models.recipes.vision_language import text_of
from penstock.models.recurrent_config import DeltaConfig, Mamba2Config

# Those whose configuration transformers saves in other words than it is published in.
RESAVED = (
    "Cohere Compass",
    "Gemma 4 12B",
    "Gemma 4 26B A4B",
    "Gemma 4 31B",
    "Gemma 4 E2B, E4B",
    "Gemma 4 with images",
    "Ling 3.0",
    "Qwen 3.5",
    "dots 3 Note",
)


@pytest.mark.parametrize("kind", DEFAULTS)
def test_what_published_models_leave_out_of_their_text_is_what_transformers_has(kind: str) -> None:
    theirs = CONFIG_MAPPING[kind]()
    assert {name: getattr(theirs, name) for name in DEFAULTS[kind]} == DEFAULTS[kind]


@pytest.mark.parametrize("family", RESAVED)
def test_a_config_that_transformers_saves_again_is_read_as_before(family: str, tmp_path: Path) -> None:
    published = FAMILIES[family]
    (tmp_path / "config.json").write_text(json.dumps(published))
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text()) | {"architectures": published["architectures"]}
    assert saved != published
    assert read_config(saved) == read_config(published)


@pytest.mark.parametrize("kind", ["gemma4_text", "gemma4_unified_text", "dots3_note_text"])
def test_fields_of_single_layers_are_found_in_models_of_more_than_ten(kind: str) -> None:
    """Whose numbers transformers writes with two digits."""
    whole = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    name = {"dots3_note_text": "Dots3NoteForCausalLM"}.get(kind, "Gemma4ForCausalLM")
    read = read_config(whole | {"architectures": [name], "model_type": kind})
    assert isinstance(read, DecoderConfig)
    given = whole["per_layer_config"]
    assert any(len(key) == 2 and key.startswith("0") for key in given)
    for key, own in given.items():
        at = int(key)
        assert read.heads_of(at) == own.get("num_attention_heads", whole["num_attention_heads"])
        if kind != "dots3_note_text":
            assert read.head_dim_of(at) == own["head_dim"]
    assert read == read_config(
        whole
        | {"per_layer_config": {str(int(key)): own for key, own in given.items()}}
        | {"architectures": [name], "model_type": kind}
    )


def test_other_fields_of_single_layers_are_refused_by_name() -> None:
    for given, message in (
        ({"2": {"sliding_window": 4}}, "per_layer_config has sliding_window, which no recipe knows"),
        ({"6": {"head_dim": 4}}, "per_layer_config has '6', which is none of 6 layers"),
        ({"x": {}}, "per_layer_config has 'x', which is none of 6 layers"),
        ({"1": 4}, "1 is not an object"),
    ):
        with pytest.raises(UnusableModel, match=message):
            read_config(FAMILIES["Gemma 4 31B"] | {"per_layer_config": given})


def test_null_is_no_factor_where_transformers_has_none() -> None:
    def read(family: str, **changes: Any) -> DecoderConfig:
        found = read_config(FAMILIES[family] | changes)
        assert isinstance(found, DecoderConfig)
        return found

    assert read("MiniCPM 3", scale_depth=None).residual_scale == 1
    assert read("MiniCPM 3", dim_model_base=None).logit_scale == 1
    text = FAMILIES["Cohere Compass"]["text_config"]
    assert read("Cohere Compass", text_config=text | {"logit_scale": None}).logit_scale == 1


def test_the_original_length_of_the_whole_configuration_goes_before_that_of_its_table() -> None:
    def original(config: dict[str, Any]) -> set[int]:
        read = read_config(config)
        assert isinstance(read, DecoderConfig)
        return {rope.original_max_position_embeddings for rope in read.ropes}

    for kind, more in (("yarn", {}), ("llama3", {"low_freq_factor": 1.0, "high_freq_factor": 4.0})):
        table = {"rope_type": kind, "factor": 8.0, "original_max_position_embeddings": 64, **more}
        config = FAMILIES["LLaMA 2"] | {"rope_scaling": table}
        assert original(config) == {64}
        longer = config | {"original_max_position_embeddings": 32}
        assert original(longer) == {32}
        theirs = CONFIG_MAPPING["llama"](**longer)
        theirs.standardize_rope_params()
        assert theirs.rope_parameters["original_max_position_embeddings"] == 32


def decoder_of(config: dict[str, Any]) -> DecoderConfig:
    read = read_config(config)
    assert isinstance(read, DecoderConfig)
    return read


# As Qwen's cards say it: how a context of 32,768 tokens is stretched.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize("named", ["rope_type", "type"])
def test_a_stretch_beside_the_parameters_that_transformers_saved_counts(named: str) -> None:
    scaling = {named if name == "rope_type" else name: value for name, value in YARN.items()}
    saved = QUOTED["Qwen3 0.6B"].whole() | {
        "max_position_embeddings": 40960,
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
    plain, read = decoder_of(saved), decoder_of(saved | {"rope_scaling": scaling})
    assert read.ropes == decoder_of(saved | {"rope_parameters": {**YARN, "rope_theta": 1e6}}).ropes
    assert [(rope.variant, rope.theta) for rope in read.ropes] == [("yarn", 1e6)]
    assert (plain.max_positions, read.max_positions) == (40960, 131072)
    # What stretches nothing changes nothing.
    for nothing in (None, {}, {"rope_type": "default"}, {"type": "mrope", "mrope_section": [16, 24, 24]}):
        assert decoder_of(saved | {"rope_scaling": nothing}) == plain
    # Within a model that reads images.
    text = {name: value for name, value in saved.items() if name != "architectures"}
    whole = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
    assert decoder_of(whole | {"text_config": text | {"rope_scaling": scaling}}).ropes == read.ropes


def test_the_magnitude_of_deepseek_r1_qwen3_is_1() -> None:
    """Which its file says in the word of YaRN's own code, vLLM and SGLang; transformers 5.23 passes it by."""
    published = QUOTED["DeepSeek-R1-0528-Qwen3 8B"].whole()
    table = published["rope_scaling"]

    def magnitude(**changes: Any) -> float:
        (rope,) = decoder_of(published | {"rope_scaling": table | changes}).ropes
        return frequencies(rope, 131072)[1]

    assert magnitude() == pytest.approx(1.0, abs=1e-9)
    usual = 0.1 * math.log(4) + 1
    assert magnitude(attn_factor=None) == magnitude(attn_factor=1.0) == pytest.approx(usual, rel=1e-12)
    assert magnitude(attn_factor=0.5) == pytest.approx(usual / 2, rel=1e-12)
    assert magnitude(attention_factor=1.25) == 1.25


def test_attention_in_chunks_of_several_positions_ends_a_sequence() -> None:
    """Of Qwen 2.5 1M and the million tokens of Qwen 3 2507, which vLLM and SGLang compute in longer ones otherwise."""
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    long: dict[str, Any] = {"max_position_embeddings": 1010000, "dual_chunk_attention_config": chunks}

    def positions(model: str, **changes: Any) -> tuple[int, int]:
        read = decoder_of(QUOTED[model].whole() | long | changes)
        return read.max_positions, read.most_positions

    for model in ("Qwen2 7B", "Qwen3 0.6B", "Qwen3 30B A3B"):
        assert positions(model) == (262144, 262144)
        assert positions(model, dual_chunk_attention_config=None) == (1010000, 1010000)
        assert positions(model, max_position_embeddings=32768) == (32768, 32768)
        assert positions(model, dual_chunk_attention_config=chunks | {"chunk_size": 65536}) == (65536, 65536)
        only = {"chunk_size": 262144, "local_size": 8192}
        assert positions(model, dual_chunk_attention_config=only) == (262144, 262144)
        # A table that goes on does not let these go on.
        for kind in ("linear", "dynamic"):
            assert positions(model, rope_scaling={"rope_type": kind, "factor": 2.0}) == (262144, 262144)
    with pytest.raises(UnusableModel, match="dual_chunk_attention_config is not an object"):
        positions("Qwen2 7B", dual_chunk_attention_config=262144)


def test_how_long_a_linear_table_is_depends_on_what_its_file_calls_its_length() -> None:
    """DeepSeek-Coder says 16,384 of the length behind the stretch, Vicuna 16k 4,096 of the one before it."""

    def positions(before: int, tokenizer: int) -> tuple[int, int]:
        table = {"type": "linear", "factor": 4.0, "model_max_length": tokenizer}
        config = QUOTED["DeepSeek-Coder 1.3B"].whole()
        read = decoder_of(config | {"max_position_embeddings": before, "rope_scaling": table})
        return read.max_positions, read.most_positions

    assert positions(16384, 16384) == (16384, 65536)
    assert positions(4096, 16384) == (16384, 16384)
    assert positions(4096, 8192) == (8192, 16384)
    assert positions(4096, 2048) == (4096, 16384)
    assert positions(4096, 131072) == positions(4096, 0) == (16384, 16384)


def test_llama_4_may_have_no_experts() -> None:
    """Llama Guard 4, as transformers' conversion writes it, which calls it the dense one."""
    published = QUOTED["Llama 4 Scout"].whole()
    none = dict.fromkeys(("num_local_experts", "num_experts_per_tok", "interleave_moe_layer_step"), 0)

    def read(**changes: Any) -> DecoderConfig:
        return decoder_of(published | {"text_config": published["text_config"] | changes})

    for dense in (read(**none, moe_layers=[]), read(**none), read(moe_layers=[])):
        assert not any(layer.experts for layer in dense.layers) and dense.feed_forward == 16384
    assert all(layer.experts for layer in read().layers)
    for wrong in ("num_local_experts", "num_experts_per_tok"):
        with pytest.raises(UnusableModel, match=f"{wrong} is 0, not a positive whole number"):
            read(**{wrong: 0})


def test_llama_4_without_a_size_of_chunks_has_none() -> None:
    """null, as Llama Guard 4 has it (transformers' pull request 45002); where the field is left out they are its class's."""
    published = QUOTED["Llama 4 Scout"].whole()

    def windows(text: dict[str, Any]) -> set[Window | None]:
        return set(decoder_of(published | {"text_config": text}).windows)

    text = published["text_config"]
    assert windows(text | {"attention_chunk_size": None}) == {None}
    without = {name: value for name, value in text.items() if name != "attention_chunk_size"}
    assert windows(without) == {Window(8192, chunked=True), None}


def test_a_stretch_is_of_layers_that_attend_to_all() -> None:
    """As transformers has it, of whose classes OLMo 3's says it."""
    both = {
        kind: {"rope_type": "default", "rope_theta": 5e5} for kind in ("full_attention", "sliding_attention")
    }
    published = QUOTED["Olmo 3 7B Instruct"].whole()
    saved = published | {"rope_theta": None, "rope_scaling": None, "rope_parameters": both}
    read = decoder_of(saved | {"rope_scaling": published["rope_scaling"]})
    assert [layer.rope for layer in read.layers] == [layer.rope for layer in decoder_of(published).layers]
    assert {rope.variant for rope in read.ropes} == {"yarn", "default"}


def test_a_stretch_of_deepseek_v4_is_of_layers_that_compress_keys() -> None:
    """Beside the two tables that transformers saves, as in the published file, which has none."""
    published = QUOTED["DeepSeek V4 Flash"].whole()
    plain = {"rope_type": "default", "partial_rotary_factor": 0.125}
    tables = {"main": plain | {"rope_theta": 10000.0}, "compress": plain | {"rope_theta": 160000.0}}
    saved = {name: value for name, value in published.items() if name != "rope_scaling"}
    saved |= {"rope_parameters": tables}
    assert {rope.variant for rope in decoder_of(saved).ropes} == {"default"}
    read = decoder_of(saved | {"rope_scaling": published["rope_scaling"]})
    assert [layer.rope for layer in read.layers] == [layer.rope for layer in decoder_of(published).layers]
    assert {rope.variant for rope in read.ropes} == {"yarn", "default"}


def test_what_a_file_of_kimi_linear_leaves_out_is_that_of_its_class() -> None:
    published = QUOTED["Kimi Linear 48B"].whole()
    theirs = CONFIG_MAPPING["kimi_linear"]()
    less = {
        name: value for name, value in published.items() if name not in ("rms_norm_eps", "model_max_length")
    }
    assert len(less) == len(published) - 2
    read = decoder_of(less)
    assert (read.max_positions, read.norm.eps) == (theirs.max_position_embeddings, theirs.rms_norm_eps)


def test_the_steepest_bias_of_mpt_is_that_of_its_own_code() -> None:
    """Which transformers 5.23 does not read: MosaicML's `gen_slopes`."""
    config = FAMILIES["MPT"]
    read = read_config(config | {"attn_config": config["attn_config"] | {"alibi_bias_max": 16}})
    assert isinstance(read, DecoderConfig)
    above = 2 ** math.ceil(math.log2(read.heads))
    slopes = [1 / 2 ** (head * 16 / above) for head in range(1, above + 1)]
    if above != read.heads:
        slopes = (slopes[1::2] + slopes[::2])[: read.heads]
    assert read.slopes == pytest.approx(slopes, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({}, (0.0, math.inf)),
        ({"time_step_limit": None}, (0.0, math.inf)),
        ({"time_step_limit": [0.0, {"__float__": "Infinity"}]}, (0.0, math.inf)),
        ({"time_step_limit": [0.01, 0.5]}, (0.01, 0.5)),
        ({"mamba_dt_limit": [0.01, 0.5]}, (0.01, 0.5)),
    ],
)
def test_limits_of_the_step_of_nemotron_h_are_those_that_are_called_so(
    changes: dict[str, Any], limits: tuple[float, float]
) -> None:
    published = QUOTED["Nemotron-H 47B"].whole()
    assert published["time_step_min"] == 0.001 and published["time_step_limit"] == [0.0, math.inf]
    read = read_config(published | changes)
    assert isinstance(read, DecoderConfig)
    found = {
        layer.recurrent.rate_limits for layer in read.layers if isinstance(layer.recurrent, Mamba2Config)
    }
    assert found == {limits}


def test_a_head_of_nemotron_h_may_ignore_a_token(tmp_path: Path) -> None:
    """Its step is as good as 0 then. As published, `time_step_min` is what steps are at first, in training."""
    from safetensors.torch import load_file, save_file

    config = FAMILIES["Nemotron-H"]
    folder = make(tmp_path, config)
    tensors = load_file(folder / "model.safetensors")
    steps = {name: tensor.fill_(-12.0) for name, tensor in tensors.items() if name.endswith("dt_bias")}
    assert steps
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    expected = logits_of(folder, [ids(190, 3, 20)], torch.float32)[0][-1]
    published = {"time_step_min": 0.001, "time_step_max": 0.1, "time_step_limit": [0.0, math.inf]}
    (folder / "config.json").write_text(json.dumps(config | published))
    torch.testing.assert_close(logits_of_text(folder)[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "eps"),
    [
        ("GLM-4.7 Flash", 1e-5),
        ("GLM-5.3", 1e-5),
        ("GLM-5 FP8", 1e-5),
        ("Kimi K2.5", 1e-6),
        ("DeepSeek V3", 1e-6),
    ],
)
def test_latents_of_glm_are_normalised_as_the_model_is(model: str, eps: float) -> None:
    latent = decoder_of(QUOTED[model].whole()).latent
    assert latent is not None and latent.rank_norm.eps == eps


@pytest.mark.parametrize("family", ["GLM-4.7 Flash", "GLM-5"])
def test_small_latents_of_glm_are_what_its_own_eps_makes_of_them(family: str, tmp_path: Path) -> None:
    """transformers 5.23 leaves its norms' default to them, which is a tenth of what the published files say."""
    from safetensors.torch import load_file, save_file

    folder = make(tmp_path, FAMILIES[family])
    tensors = load_file(folder / "model.safetensors")
    latents = [
        tensor for name, tensor in tensors.items() if re.search(r"(q_a_proj|kv_a_proj_with_mqa)", name)
    ]
    assert latents
    for tensor in latents:
        tensor.mul_(0.003)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model = kind_of(FAMILIES[family]).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    for name, module in model.named_modules():
        if name.endswith("_a_layernorm"):
            assert module.variance_epsilon == 1e-6
            module.variance_epsilon = 1e-5
    with torch.inference_mode():
        expected = model(torch.tensor([ids(190, 3, 20)])).logits[0, -1]
    torch.testing.assert_close(logits_of_text(folder)[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["MiniMax M2", "MiniMax M3"])
def test_a_router_of_minimax_keeps_its_bits(family: str, tmp_path: Path) -> None:
    """It is fp32 in a checkpoint of bf16 and fp8."""
    from safetensors.torch import load_file

    folder = make(tmp_path, FAMILIES[family])
    model = recipes.load(FAMILIES[family], folder, torch.bfloat16, torch.device("cpu"))
    assert isinstance(model, Decoder)
    found = [layer.feed_forward.router for layer in model.layers if isinstance(layer.feed_forward, Experts)]
    saved = load_file(folder / "model.safetensors")
    published = [saved[name] for name in sorted(saved) if re.fullmatch(r".*(moe|mlp)\.gate\.weight", name)]
    assert len(found) == len(published) > 0
    for ours, theirs in zip(found, published, strict=True):
        torch.testing.assert_close(ours.weight_OI, theirs, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("model", "changes", "is_long"),
    [
        ("Hunyuan 3", {}, True),
        ("Hunyuan 3", {"enable_lm_head_fp32": False}, False),
        ("Hunyuan 3", {"enable_lm_head_fp32": None}, False),
        ("Hy4-preview", {}, True),
        ("Hy4-preview", {"enable_lm_head_fp32": None}, True),
        ("Hy4-preview", {"enable_lm_head_fp32": False}, False),
        ("DeepSeek V3.2", {}, True),
        ("DeepSeek V4 Flash", {}, True),
        ("MiniMax-Text-01", {}, True),
        ("MiniMax M2", {}, False),
        ("DeepSeek V3", {}, False),
        ("GLM-5 FP8", {}, False),
    ],
)
def test_the_products_of_a_head_are_fp32_where_the_file_says_so_or_the_familys_own_code_has_it(
    model: str, changes: dict[str, Any], is_long: bool
) -> None:
    assert decoder_of(QUOTED[model].whole() | changes).long_head == is_long


@pytest.mark.parametrize(
    "family", ["Hunyuan 3", "Hunyuan 4", "DeepSeek V3.2", "DeepSeek V4", "MiniMax-Text-01"]
)
def test_a_near_tie_of_a_long_head_in_bf16_is_none(family: str, tmp_path: Path) -> None:
    """Rounded to bf16 two logits are one number, and the lower id is chosen, as in transformers 5.23."""
    chosen = {}
    folder = make(tmp_path, FAMILIES[family])
    for is_long in (True, False):
        model = recipes.load(FAMILIES[family], folder, torch.bfloat16, torch.device("cpu"))
        assert isinstance(model, Decoder) and model.ends.head is not None and model.ends.norm is not None
        assert model.config.long_head
        model.config = replace(model.config, long_head=is_long)
        hidden_SE = torch.randn((1, 64), generator=torch.Generator().manual_seed(0)).bfloat16()
        weight_VE, read_SE = model.ends.head.weight_OI, model.ends.norm(hidden_SE)
        # Row 7 is the likeliest, row 9 a little likelier: by less than what lies between two numbers of bf16 there.
        weight_VE[7] = weight_VE[9] = 4 * read_SE[0]
        least = int(read_SE[0].abs().argmin())
        weight_VE[9, least] *= 2
        exact_SV = read_SE.float() @ weight_VE.float().T
        assert 0 < exact_SV[0, 9] - exact_SV[0, 7] < 0.25 and exact_SV[0, 7] > 128
        logits_SV = model.logits(hidden_SE, torch.empty(1, model.config.vocab_size))
        if is_long:
            torch.testing.assert_close(
                logits_SV, exact_SV[:, : model.config.vocab_size], atol=1e-4, rtol=1e-6
            )
        chosen[is_long] = int(logits_SV.argmax())
    assert chosen == {True: 9, False: 7}


@pytest.mark.parametrize(
    "model", ["Qwen 3.5 27B", "Qwen3-Next 80B", "Qwen 3.5 35B A3B", "Qwen3.8-Flash-Next"]
)
def test_what_opens_the_gate_behind_a_delta_rule_is_what_the_file_says(model: str) -> None:
    def gates(**changes: Any) -> set[str]:
        one = QUOTED[model]
        config = one.whole()
        for part in one.parts:
            changes = {part: config[part] | changes}
        read = decoder_of(config | changes)
        return {layer.recurrent.gate for layer in read.layers if isinstance(layer.recurrent, DeltaConfig)}

    assert gates(output_gate_type=None) == {"silu"}
    assert gates(output_gate_type="swish") == gates(output_gate_type="silu") == {"silu"}
    assert gates(output_gate_type="sigmoid") == {"sigmoid"}
    with pytest.raises(UnusableModel, match="output_gate_type is 'gelu'"):
        gates(output_gate_type="gelu")
    with pytest.raises(UnusableModel, match="attn_output_gate is False"):
        gates(attn_output_gate=False)


def test_a_stretch_of_ling_3_turns_all_that_is_turned_without_it() -> None:
    """What is rotated has a width of its own there; a share of a head that stands in the stretch is none of it."""
    published = QUOTED["Ling 3.0 Flash"].whole()
    assert "rope_parameters" not in published
    stretch = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 131072}
    for more in ({}, {"partial_rotary_factor": 0.5}):
        read = decoder_of(published | {"rope_scaling": stretch | more})
        assert {(rope.variant, rope.head_dim) for rope in read.ropes} == {("yarn", 64)}


def test_command_r_reads_as_far_as_it_was_trained() -> None:
    """Its file has 8192 in the usual place, and the rest in another."""

    def positions(**changes: Any) -> int:
        read = read_config(FAMILIES["Cohere (Command R)"] | changes)
        assert isinstance(read, DecoderConfig)
        return read.max_positions

    assert positions(max_position_embeddings=8192, model_max_length=131072) == 131072
    assert positions(max_position_embeddings=8192, model_max_length=None) == 8192
    assert positions(max_position_embeddings=None) == 8192


def test_an_empty_list_of_step_3_5_says_nothing_of_any_layer() -> None:
    published = QUOTED["Step 3.7 Flash"].whole()
    text = published["text_config"]
    lists = ("use_rope_layers", "swiglu_limits", "swiglu_limits_shared", "partial_rotary_factors")
    without = {name: value for name, value in text.items() if name not in lists}
    read = read_config(published | {"text_config": without | {name: [] for name in lists}})
    assert read == read_config(published | {"text_config": without})
    assert isinstance(read, DecoderConfig) and all(layer.rope is not None for layer in read.layers)
    # As published, where the other lists say something.
    assert read_config(published | {"text_config": {**text, "use_rope_layers": []}}) == read_config(published)


def test_laguna_m_1_has_no_window() -> None:
    """Of which its file says 0 (llama.cpp's pull request 25165, by Poolside)."""
    published = QUOTED["Laguna XS 2.1"].whole()
    everywhere = {"layer_types": ["full_attention"] * 40, "sliding_window": 0, "gating": "per-element"}
    read = read_config(published | everywhere)
    assert isinstance(read, DecoderConfig) and not any(read.windows)
    with pytest.raises(UnusableModel, match="sliding_window is 0, not a positive whole number"):
        read_config(published | {"sliding_window": 0})


def test_windows_of_smollm3_are_those_of_layers_that_know_no_positions() -> None:
    config = FAMILIES["SmolLM3"] | {"use_sliding_window": True, "sliding_window": 24, "layer_types": None}
    read = read_config(config)
    assert isinstance(read, DecoderConfig)
    theirs = CONFIG_MAPPING["smollm3"](**config)
    assert [window is not None for window in read.layer_windows] == [
        kind == "sliding_attention" for kind in theirs.layer_types
    ]
    assert len(set(read.layer_windows)) == 2


@pytest.mark.parametrize("is_larger", [False, True], ids=["nothing", "sizes"])
@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_text_that_says_only_what_differs_is_read_as_transformers_reads_it(
    kind: str, is_larger: bool
) -> None:
    default = CONFIG_MAPPING[kind]()
    given = {name: 2 * getattr(default, name) for name in ("hidden_size", "num_attention_heads") if is_larger}
    if kind == "persimmon":
        given["rope_theta"] = 10000.0  # the class's own, and not that of Fuyu
    whole = json.loads(CONFIG_MAPPING[kind](**given).to_json_string(use_diff=False))

    def read(text: dict[str, Any]) -> DecoderConfig:
        config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
        found = read_config(config | {"tie_word_embeddings": False})
        assert isinstance(found, DecoderConfig)
        return replace(found, tied_head=False)

    assert read({"model_type": kind, **given}) == read(whole | {"model_type": kind})


def test_a_window_of_null_is_none_and_one_left_out_is_that_of_the_class() -> None:
    def windows(**text: Any) -> set[Window | None]:
        config = {
            "architectures": ["Idefics2ForConditionalGeneration"],
            "model_type": "idefics2",
            "text_config": {"model_type": "mistral", **text},
        }
        read = read_config(config)
        assert isinstance(read, DecoderConfig)
        return set(read.layer_windows)

    assert windows() == {Window(4096)}
    assert windows(sliding_window=None) == {None}


def test_an_architecture_that_is_not_named_is_that_of_the_model_type() -> None:
    """The same that transformers takes, of mbart-large-en-ro, say; where it has a text and the whole for one model_type, the whole."""
    auto: Any = import_module("transformers.models.auto.modeling_auto")
    tasks = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM")
    theirs: dict[str, str] = {}
    named: Any
    for task in tasks:
        for kind, named in getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            names = [named] if isinstance(named, str) else named
            served = [name for name in names if name in RECIPES]
            if served:
                theirs.setdefault(kind, served[0])
    assert len(theirs) > 200
    for kind, name in theirs.items():
        assert [RECIPES[found] for found in architectures({"model_type": kind})] == [RECIPES[name]], kind
    # The published names of two say their model_type, and not those of the classes that transformers runs.
    others = {kind for kind, name in theirs.items() if architectures({"model_type": kind}) != [name]}
    assert others == {"internlm3", "nemo_speechlm"}
    assert architectures({"model_type": "mbart", "architectures": None}) == ["MBartForConditionalGeneration"]
    assert architectures({"model_type": "mbart", "architectures": ["NobodysModel"]}) == ["NobodysModel"]
    unknown: list[dict[str, Any]] = [
        {},
        {"model_type": ""},
        {"model_type": None},
        {"model_type": ["llama"]},
        {"model_type": "text"},
        {"model_type": "llama_text"},
        {"model_type": "vlm"},  # of HyperCLOVA X SEED Think, and it may be of any
    ]
    assert not [one for one in unknown if architectures(one)]


def test_published_files_are_what_they_are_without_their_architectures() -> None:
    """As they are quoted: models under the names of their authors' code among them."""
    # The first is told apart by its name alone, and of the second the quoted model_type is another model's.
    others = {"HyperCLOVA X SEED Think 32B": None, "MiniMax-M2 AWQ": "mixtral"}
    for model, quoted in QUOTED.items():
        named = architecture_of(quoted.config)
        assert named is not None, model
        found = architecture_of({**quoted.config, "architectures": []})
        assert (None if found is None else RECIPES[found]) == others.get(model, RECIPES[named]), model


def test_the_text_within_a_thinker_is_found() -> None:
    """Qwen3-ASR as it is quoted: neither its thinker nor its text has a model_type."""
    text = {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 65536,
        "rope_theta": 1000000,
        "rope_scaling": {"mrope_section": [24, 20, 20], "mrope_interleaved": True},
        "eos_token_id": 151645,
    }
    quantized = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    config = {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "thinker_config": {"dtype": "bfloat16", "text_config": text, "quantization_config": quantized},
    }
    read = read_config(config)
    assert isinstance(read, DecoderConfig) and (read.width, read.num_layers) == (2048, 28)
    assert dtype_name(config, "auto") == "bfloat16" and eos_ids(config, None) == [151645]
    assert quantization.published(config) == "groups_128"
    assert quantization.scheme_of(config, Path("nowhere")) == ("gptq", "config.json: quantization_config")


@pytest.mark.parametrize("kind", ["qwen3_vl_moe", "qwen2_5_omni_thinker", "cohere_compass"])
def test_whether_the_head_is_tied_is_said_by_the_whole_where_transformers_reads_it_there(kind: str) -> None:
    theirs = json.loads(CONFIG_MAPPING[kind]().to_json_string())
    assert (theirs["tie_word_embeddings"], theirs["text_config"]["tie_word_embeddings"]) == (False, True)
    for tied in (False, True):
        assert text_of(theirs | {"tie_word_embeddings": tied})["tie_word_embeddings"] == tied
    assert text_of({name: theirs[name] for name in ("model_type", "text_config")})["tie_word_embeddings"]


def test_nemotron_3_5_transcribe_as_published_says_nothing_of_its_text() -> None:
    """Which NeMo keeps in a file of its own, and transformers' class as its default."""
    published = {"architectures": ["NeMoSpeechLMForConditionalGeneration"], "model_type": "nemo_speechlm"}
    theirs = json.loads(CONFIG_MAPPING["nemo_speechlm"]().to_json_string(use_diff=False))
    read = read_config(published)
    assert read == read_config(theirs | published)
    assert isinstance(read, DecoderConfig) and (read.width, read.num_layers) == (2688, 52)


def test_llava_as_published_says_little_of_its_text() -> None:
    text = {
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "vocab_size": 32064,
    }
    read = read_config({"architectures": ["LlavaForConditionalGeneration"], "text_config": text})
    assert isinstance(read, DecoderConfig)
    assert (read.vocab_size, read.width, read.num_layers, read.kv_heads) == (32064, 4096, 32, 32)


def test_what_the_published_gemma_3_leaves_out_is_known() -> None:
    text: dict[str, Any] = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    read = read_config({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    theirs = Gemma3TextConfig(**text)
    assert isinstance(read, DecoderConfig)
    assert (read.vocab_size, read.heads, read.kv_heads) == (
        theirs.vocab_size,
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
    )
    assert (read.head_dim, read.max_positions) == (theirs.head_dim, theirs.max_position_embeddings)
    assert read.scale == theirs.query_pre_attn_scalar**-0.5 and read.norm.eps == theirs.rms_norm_eps
    assert [w and w.size for w in read.layer_windows] == [
        1024 if kind == "sliding_attention" else None for kind in theirs.layer_types or ()
    ]
    assert [layer.rope and layer.rope.theta for layer in read.layers] == [
        1e4 if kind == "sliding_attention" else 1e6 for kind in theirs.layer_types or ()
    ]
    assert read.tied_head
