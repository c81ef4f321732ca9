"""Checkpoints of one family under the different names that they have on the hub."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from models import experts_apart, ids, kind_of, logits_of, logits_of_text, make, within
from ranks import TESTS  # noqa: F401  (where the driver is)

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config

# A family, other names for its tensors, and what such checkpoints hold besides.
RENAMED: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "GPT-2": (lambda name: name.removeprefix("transformer."), ("h.0.attn.bias", "h.1.attn.masked_bias")),
    "BLOOM": (lambda name: name.removeprefix("transformer."), ()),
    "GPT-J": (lambda name: name, ("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias")),
    "OPT": (lambda name: name.removeprefix("model."), ()),
    "GPT": (lambda name: name.removeprefix("transformer."), ("h.0.attn.bias",)),
    "CodeGen": (lambda name: name, ("transformer.h.0.attn.causal_mask",)),
    "GPT-Neo": (
        lambda name: name,
        ("transformer.h.0.attn.attention.bias", "transformer.h.1.attn.attention.masked_bias"),
    ),
    "Falcon 7B": (lambda name: name, ("lm_head.weight",)),
    # Layers that predict several tokens ahead.
    "GLM-4.5, 4.6, 4.7": (
        lambda name: name,
        ("model.layers.3.eh_proj.weight", "model.layers.3.mlp.experts.0.up_proj.weight"),
    ),
    "GLM-4.7 Flash": (lambda name: name, ("model.layers.3.enorm.weight",)),
    "GLM-OCR": (
        lambda name: name,
        (
            "model.language_model.layers.3.eh_proj.weight",
            "model.language_model.layers.3.self_attn.q_proj.weight",
            "model.language_model.layers.3.shared_head.head.weight",
        ),
    ),
    "GLM-5": (lambda name: name, ("model.layers.3.self_attn.indexer.wk.weight",)),
    # As published, where transformers saves some other names.
    "Hunyuan 4": (
        lambda name: re.sub(
            r"(hc_(?:attn|mlp)_layer\.)(?=hc_)",
            r"\1hc_pre.",
            re.sub(r"(mlp|experts)\.linear_gate", r"\1.gate_proj", name.replace("hc_pre.", "")),
        ),
        ("model.mtp_layers.0.enorm.weight",),
    ),
    # As published, where transformers saves some other names, and layers that predict several tokens ahead.
    "DeepSeek V4": (
        lambda name: re.sub(
            r"(?<=attn\.)norm(?=\.weight)|embed_tokens|hc_head\.hc",
            lambda found: {"norm": "kv_norm", "embed_tokens": "embed"}.get(found[0], "hc_head"),
            name.removeprefix("model."),
        ),
        ("mtp.0.attn.wkv.weight", "mtp.0.hc_head_fn"),
    ),
    "XGLM": (lambda name: name.removeprefix("model."), ("embed_positions.weights",)),
    # As state-spaces' own code names it.
    "Mamba": (lambda name: name.replace("embeddings.", "embedding."), ()),
    "Mamba 2": (lambda name: name.replace("embeddings.", "embedding."), ()),
    "ERNIE 4.5 MoE": (lambda name: name, ("model.mtp_block.0.mlp.up_proj.weight",)),
    "K-EXAONE": (lambda name: name, ("mtp.layers.0.mlp.up_proj.weight",)),
    "MiniMax M2": (lambda name: name, ("model.mtp.0.enorm.weight",)),
    # Matrices for keys that the layer reads of an earlier one.
    "Gemma 3n": (
        lambda name: name,
        ("model.layers.5.self_attn.k_proj.weight", "model.layers.3.self_attn.v_proj.weight"),
    ),
    # The text model alone, and layers that predict several tokens ahead.
    "MiniMax M3": (
        lambda name: name.removeprefix("language_model."),
        ("mtp.layers.0.self_attn.q_proj.weight",),
    ),
    # As the families' own releases have it, and as transformers saves it.
    "Qwen2.5-VL": (
        lambda name: name.replace("model.", "model.language_model.").replace("visual.", "model.visual."),
        (),
    ),
    "InternVL 3 (Qwen 2)": (
        lambda name: name.replace("language_model.model.", "model.language_model.").replace(
            "language_model.lm_head", "lm_head"
        ),
        ("model.vision_tower.a.weight", "model.multi_modal_projector.b.weight"),
    ),
    "Phi 4 multimodal": (
        lambda name: name,
        ("model.layers.0.mlp.down_proj.lora_A.vision.weight",),
    ),
    "Pythia, GPT-NeoX": (
        lambda name: {"embed_out.weight": "lm_head.weight", "lm_head.weight": "embed_out.weight"}.get(
            name, name
        ),
        (
            "gpt_neox.layers.0.attention.bias",
            "gpt_neox.layers.0.attention.masked_bias",
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq",
        ),
    ),
    "Qwen3-Next": (lambda name: name, ("mtp.fc.weight", "mtp.layers.0.mlp.gate.weight")),
    "Qwen 3.5": (
        lambda name: name.replace("model.", "model.language_model."),
        ("model.visual.patch_embed.proj.weight", "mtp.norm.weight"),
    ),
    # As published, with a tower for images and a layer that predicts a further token.
    "Qwen 4": (
        lambda name: name.replace("model.", "model.language_model."),
        (
            "model.visual.patch_embed.proj.weight",
            "mtp.norm.weight",
            "mtp.layers.0.self_attn.indexer.q_layernorm.weight",
        ),
    ),
    # What is published, where transformers saves other names.
    "Kimi Linear": (lambda name: name.replace("layers.0.block_sparse_moe.", "layers.0.mlp."), ()),
    "OLMo Hybrid": (
        lambda name: name.replace("layers.2.feedforward_layer_norm", "layers.2.post_attention_layernorm"),
        (),
    ),
    "Nemotron-H": (lambda name: name, ("mtp.layers.0.norm.weight",)),
    # Beside NeMo's names, which transformers saves, what its exports hold of other modules.
    "Nemotron 3.5 Transcribe": (
        lambda name: name,
        ("llm.mtp.layers.0.norm.weight", "llm.model.layers.0.mixer.in_proj._extra_state"),
    ),
}


def test_experts_of_qwen_3_5_may_be_stacked(tmp_path: Path) -> None:
    """As they are published: two tensors for all experts of a layer."""
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    folder = make(tmp_path, FAMILIES["Qwen 3.5 (experts)"])

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, list(range(3, 20)), 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    tensors = load_file(folder / "model.safetensors")
    for at in {name.partition(".experts.")[0] for name in tensors if ".experts." in name}:

        def stacked(which: str, at: str = at) -> torch.Tensor:
            names = [f"{at}.experts.{expert}.{which}.weight" for expert in range(6)]
            return torch.stack([tensors.pop(name) for name in names])

        tensors[f"{at}.experts.gate_up_proj"] = torch.cat((stacked("gate_proj"), stacked("up_proj")), 1)
        tensors[f"{at}.experts.down_proj"] = stacked("down_proj")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(logits(), before)


def test_dots_3_note_is_read_as_published_and_as_transformers_saves_it() -> None:
    from transformers import Dots3NoteTextConfig

    published = FAMILIES["dots 3 Note"]
    saved = json.loads(Dots3NoteTextConfig(**published).to_json_string(use_diff=False))
    assert "swa_head_dim" not in saved and "per_layer_config" in saved
    read = read_config(published)
    assert isinstance(read, DecoderConfig) and len(read.latents) == 2
    assert read_config({**saved, "architectures": published["architectures"]}) == read


def test_a_table_of_ngrams_may_be_one_tensor(tmp_path: Path) -> None:
    """As transformers' module has it; published and saved it is in parts."""
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    folder = make(tmp_path, FAMILIES["Qwen 4"])

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, list(range(3, 20)), 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    tensors = load_file(folder / "model.safetensors")
    for at in {name.partition("shard_")[0] for name in tensors if "ngram_embedding.shard_" in name}:
        tensors[f"{at}weight"] = torch.cat([tensors.pop(f"{at}shard_{shard}.weight") for shard in range(5)])
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(logits(), before)


@pytest.mark.parametrize("family", RENAMED)
def test_a_checkpoint_may_have_the_other_names_of_its_family(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    rename, added = RENAMED[family]
    folder = make(tmp_path, FAMILIES[family])
    before = logits_of_text(folder)
    tensors = load_file(folder / "model.safetensors")
    renamed = {rename(name): tensor for name, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys() or added
    # A head that is the embedding is the embedding once more; of all else no more than the name counts.
    renamed |= {name: torch.ones(1) for name in added if name != "lm_head.weight"}
    if "lm_head.weight" in added:
        renamed["lm_head.weight"] = renamed["transformer.word_embeddings.weight"].clone()
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    torch.testing.assert_close(logits_of_text(folder), before, atol=0, rtol=0)


@pytest.mark.parametrize("family", ["Kimi K2.5, Kimi-VL", "Qianfan-OCR", "Nemotron 3.5 Transcribe"])
def test_a_published_model_that_transformers_saves_again_is_read(family: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "published", FAMILIES[family])
    again = tmp_path / "again"
    kind_of(FAMILIES[family]).from_pretrained(folder, dtype=torch.float32).save_pretrained(again)
    (again / "config.json").write_text(json.dumps(FAMILIES[family]))
    torch.testing.assert_close(logits_of_text(again), logits_of_text(folder), atol=0, rtol=0)


def test_queries_of_ling_3_may_be_of_low_rank(tmp_path: Path) -> None:
    """Those of Ling-3.0-tiny are; transformers' class has none of these, and gets two matrices and a norm for its one."""
    from safetensors.torch import load_file, save_file
    from torch import nn
    from transformers import AutoModelForCausalLM

    config, rank = FAMILIES["Ling 3.0"], 12
    folder = make(tmp_path, config)
    prompt = ids(190, 3, 20)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tensors = load_file(folder / "model.safetensors")
    for at, layer in enumerate(model.model.layers):
        whole = tensors.get(f"model.layers.{at}.attention.q_proj.weight")
        if not hasattr(layer.self_attn, "kv_a_proj_with_mqa") or whole is None:
            continue
        parts = (
            nn.Linear(whole.shape[1], rank, bias=False),
            nn.RMSNorm(rank, eps=1e-6),
            nn.Linear(rank, whole.shape[0], bias=False),
        )
        layer.self_attn.q_proj = nn.Sequential(*parts)
        del tensors[f"model.layers.{at}.attention.q_proj.weight"]
        for name, part in zip(("q_a_proj", "q_a_layernorm", "q_b_proj"), parts, strict=True):
            tensors[f"model.layers.{at}.attention.{name}.weight"] = part.state_dict()["weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config, "q_lora_rank": rank}))
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(logits_of_text(folder)[0], expected, atol=1e-4, rtol=1e-4)


def test_a_base_of_null_says_that_nothing_is_rotated() -> None:
    """Of OLMo Hybrid: wherever it stands, and of its whole table; without one the usual base is meant."""

    def rotates(**changes: Any) -> bool:
        plain = {name: value for name, value in FAMILIES["OLMo Hybrid"].items() if "rope" not in name}
        read = read_config(plain | changes)
        assert isinstance(read, DecoderConfig)
        return any(layer.rope is not None for layer in read.layers)

    assert not rotates(rope_theta=None)
    assert not rotates(rope_parameters={"rope_type": "default", "rope_theta": None})
    assert not rotates(
        rope_parameters={"rope_type": None}
    )  # as allenai/Olmo-Hybrid-7B has had it since May 2026
    assert not rotates(rope_parameters=None)  # as Olmo-Hybrid-Think-SFT-7B has it, and the 7B had it before
    assert rotates()
    assert rotates(rope_parameters=None, rope_theta=10000.0)
    assert rotates(rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def test_the_last_layers_of_ling_3_attend_where_its_own_code_names_it() -> None:
    def attends(architecture: str) -> list[int]:
        config = FAMILIES["Ling 3.0"] | {"architectures": [architecture], "num_hidden_layers": 5}
        read = read_config(config)
        assert isinstance(read, DecoderConfig)
        return [at for at, layer in enumerate(read.layers) if layer.attends]

    assert attends("BailingHybridForCausalLM") == [2]
    assert attends("BailingMoeV3ForCausalLM") == [2, 3, 4]


@pytest.mark.parametrize(
    "shares", [{"index_topk_freq": 2, "index_skip_topk_offset": 1}, {"index_topk_pattern": "FSFS"}]
)
def test_indexers_of_layers_that_share_a_choice_may_be_in_the_file(
    shares: dict[str, Any], tmp_path: Path
) -> None:
    """GLM-5's and 5.1's files have those of all layers; 5.2's have those of its full layers alone."""
    from safetensors.torch import load_file, save_file

    given = FAMILIES["GLM-5, layers that share a choice"] | {"index_topk": 6}
    folder = make(tmp_path, given)
    before = logits_of_text(folder)
    tensors = load_file(folder / "model.safetensors")
    indexers = {name: tensor for name, tensor in tensors.items() if ".layers.0.self_attn.indexer." in name}
    assert indexers and not any(".layers.1.self_attn.indexer." in name for name in tensors)
    for layer in (1, 3):
        tensors |= {name.replace(".0.", f".{layer}."): torch.randn_like(x) for name, x in indexers.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {name: value for name, value in given.items() if name != "indexer_types"} | shares
    (folder / "config.json").write_text(json.dumps(config))
    torch.testing.assert_close(logits_of_text(folder), before, atol=0, rtol=0)
    # In a layer that chooses by itself they are read.
    (folder / "config.json").write_text(json.dumps(config | {"index_topk_pattern": "FSFF"}))
    assert not torch.equal(logits_of_text(folder), before)


def test_experts_of_qwen3_vl_are_read_as_published_and_as_saved(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    folder = make(tmp_path, FAMILIES["Qwen3-VL-MoE"])

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, ids(199, 3, 20), 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    tensors = load_file(folder / "model.safetensors")
    turned = {
        name: tensor.transpose(1, 2).contiguous() if ".mlp.experts." in name else tensor
        for name, tensor in tensors.items()
    }
    assert any(turned[name].shape != tensor.shape for name, tensor in tensors.items())
    save_file(turned, folder / "model.safetensors", {"format": "pt"})
    torch.testing.assert_close(logits(), before, atol=0, rtol=0)


@pytest.mark.parametrize(
    "family",
    ["Qwen3-VL-MoE", "Llama 4", "Mistral Small 4 with images", "Gemma 4 26B A4B", "Hunyuan 4"],
)
def test_experts_that_a_class_stacks_may_be_in_tensors_of_their_own(family: str, tmp_path: Path) -> None:
    """As who quantizes such a model leaves them."""
    from safetensors.torch import load_file, save_file

    folder = make(tmp_path, FAMILIES[family])
    before = logits_of_text(folder)
    file = folder / "model.safetensors"
    save_file(experts_apart(load_file(file), turned=family == "Llama 4"), file, {"format": "pt"})
    torch.testing.assert_close(logits_of_text(folder), before, atol=0, rtol=0)


@pytest.mark.parametrize("family", ["Granite 3 MoE", "Granite MoE, shared expert", "Granite 4 (experts)"])
def test_experts_of_granite_may_be_in_tensors_of_their_own(family: str, tmp_path: Path) -> None:
    """As llm-compressor leaves them."""
    from safetensors.torch import load_file, save_file

    folder = make(tmp_path, FAMILIES[family])
    before = logits_of_text(folder)
    file = folder / "model.safetensors"
    found: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(file).items():
        at, is_stacked, which = name.partition("block_sparse_moe.")
        if not is_stacked or which not in ("input_linear.weight", "output_linear.weight"):
            found[name] = tensor
            continue
        kinds = ("gate", "up") if which.startswith("input") else ("down",)
        for expert, weight in enumerate(tensor):
            for kind, part in zip(kinds, weight.chunk(len(kinds)), strict=True):
                found[f"{at}block_sparse_moe.experts.{expert}.{kind}_proj.weight"] = part.contiguous()
    assert not any("sparse_moe.input_linear" in name for name in found)
    save_file(found, file, {"format": "pt"})
    torch.testing.assert_close(logits_of_text(folder), before, atol=0, rtol=0)


@pytest.mark.parametrize("below", ["moe.experts", "moe"])
def test_experts_of_step_3_5_may_be_in_tensors_of_their_own(below: str, tmp_path: Path) -> None:
    """As llm-compressor and AMD's Quark leave them."""
    from safetensors.torch import load_file, save_file

    folder = make(tmp_path, FAMILIES["Step 3.7 Flash"])
    before = logits_of_text(folder)
    file = folder / "model.safetensors"
    found: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(file).items():
        at, is_stacked, which = name.partition(".moe.")
        if not is_stacked or not which.endswith("_proj.weight"):
            found[name] = tensor
            continue
        found |= {f"{at}.{below}.{expert}.{which}": weight.clone() for expert, weight in enumerate(tensor)}
    assert any(f".{below}.5.down_proj" in name for name in found)
    save_file(found, file, {"format": "pt"})
    torch.testing.assert_close(logits_of_text(folder), before, atol=0, rtol=0)


@pytest.mark.parametrize("inner", ["experts.experts", "experts"])
def test_experts_of_aria_may_be_in_tensors_of_their_own(inner: str, tmp_path: Path) -> None:
    """As Aria-sequential_mlp."""
    from safetensors.torch import load_file, save_file

    folder = make(tmp_path, FAMILIES["Aria"])
    before = logits_of_text(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [one for one in tensors if ".mlp.experts.fc" in one]:
        at, _, which = name.partition("experts.")
        stacked = tensors.pop(name).transpose(1, 2)  # it is (X, in, out)
        for expert, weight in enumerate(stacked):
            kinds = ("gate_proj", "up_proj") if which == "fc1.weight" else ("down_proj",)
            for kind, part in zip(kinds, weight.chunk(len(kinds)), strict=True):
                tensors[f"{at}{inner}.{expert}.{kind}.weight"] = part.contiguous()
    assert any(f".mlp.{inner}.1.up_proj." in name for name in tensors)
    save_file(tensors, file, {"format": "pt"})
    torch.testing.assert_close(logits_of_text(folder), before, atol=0, rtol=0)


def test_minicpm_is_granite_under_other_names(tmp_path: Path) -> None:
    """transformers has no class of it."""
    granite = FAMILIES["Granite 3"] | {"attention_multiplier": 0.25, "residual_multiplier": 0.75}
    folder = make(tmp_path, granite)
    before = logits_of_text(folder)
    minicpm = {name: value for name, value in granite.items() if "multiplier" not in name}
    del minicpm["logits_scaling"]
    minicpm |= {"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", "dim_model_base": 32}
    minicpm |= {"scale_emb": 3, "scale_depth": 0.75 * 3**0.5}
    (folder / "config.json").write_text(json.dumps(minicpm))
    torch.testing.assert_close(logits_of_text(folder), before, atol=1e-6, rtol=1e-6)
    # With chosen keys it is served as long as it chooses none.
    read = read_config(minicpm | {"sparse_config": {"dense_len": 100}})
    assert isinstance(read, DecoderConfig) and read.max_positions == 100
    for name, value in (("num_experts", 8), ("mixer_types", ["lightning"])):
        with pytest.raises(UnusableModel, match=name):
            read_config(minicpm | {name: value})


def test_internlm_2_is_llama_with_one_matrix_for_queries_keys_and_values(tmp_path: Path) -> None:
    """Of which transformers has no class: alone, and as InternVL 2 and 2.5 have it."""
    from safetensors.torch import load_file, save_file

    config = FAMILIES["LLaMA 2"] | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // heads
    folder = make(tmp_path, config)
    expected = logits_of(folder, [ids(190, 3, 20)], torch.float32)[0][-1]
    tensors = load_file(folder / "model.safetensors")
    names = {
        "embed_tokens": "tok_embeddings",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "lm_head": "output",
    }
    for at in range(config["num_hidden_layers"]):
        q, k, v = (tensors.pop(f"model.layers.{at}.self_attn.{name}_proj.weight") for name in "qkv")
        grouped = (
            q.view(kv_heads, heads // kv_heads, size, -1),
            *(one.view(kv_heads, 1, size, -1) for one in (k, v)),
        )
        tensors[f"model.layers.{at}.attention.wqkv.weight"] = torch.cat(grouped, 1).flatten(0, 2).contiguous()
    alone = config | {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": False}
    whole = within("InternVLChatModel", "internvl_chat", "llm_config")(alone)
    for written, prefix in ((alone, ""), (whole, "language_model.")):
        named = {"mlp1.0.weight": torch.ones(1)} if prefix else {}
        for name, tensor in tensors.items():
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
            named[prefix + name] = tensor
        save_file(named, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(written))
        torch.testing.assert_close(logits_of_text(folder)[0], expected, atol=1e-4, rtol=1e-4)


def test_internlm_3_is_llama(tmp_path: Path) -> None:
    """As published, with a rotation that longer sequences would stretch; transformers has no class of it."""
    config = FAMILIES["LLaMA 2"] | {
        "head_dim": 32,
        "rope_theta": 50000000,
        "rope_scaling": {"rope_type": "dynamic", "factor": 6.0},
    }
    folder = make(tmp_path, config)
    expected = logits_of(folder, [ids(190, 3, 20)], torch.float32)[0][-1]
    own = {"architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3", "qkv_bias": False}
    (folder / "config.json").write_text(json.dumps(config | own | {"bias": False}))
    torch.testing.assert_close(logits_of_text(folder)[0], expected, atol=1e-4, rtol=1e-4)
