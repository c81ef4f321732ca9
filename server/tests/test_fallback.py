"""Models through transformers: refused in one sentence, or computed with our cache as by themselves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import checkpoints
import penstock_kernels as ops
from client import DEVICE, Worker, row
from driver import Driver
from penstock.doctor.examination import examine
from penstock.doctor.question import Question
from penstock.engine import device_pages, self_check
from penstock.engine.decoder_steps import DecoderSteps
from penstock.engine.engine import Engine
from penstock.errors import UnusableModel
from penstock.models import fallback, fallback_loader, fallback_states, own_attention
from penstock.models.bridge import BRIDGE, Bridge, Unfit, attention, mask
from penstock.models.config import Window
from penstock.models.fallback import Fallback
from penstock.models.fallback_loader import fallback_verdict
from penstock.models.layer_cache import LayerCache
from penstock.models.step import Step
from penstock.parallel.group import Pipeline, TensorGroup

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
LONGROPE = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [1.5 + i for i in range(8)]}


def made(folder: Path, model_type: str, **changes: Any) -> Path:
    """A model of transformers, with random weights, in a folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    kind: Any = AutoModelForCausalLM
    model = kind.from_config(AutoConfig.for_model(model_type, **{**SMALL, **changes}))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder


def engine_of(folder: Path, **options: Any) -> Engine:
    """Loads as the worker does, and checks as it does."""
    config = json.loads((folder / "config.json").read_text())
    engine = Engine(config, folder, torch.float32, CPU, **options)
    assert isinstance(engine.model, Fallback)
    self_check.check(engine)
    return engine


def refusal(folder: Path, **options: Any) -> str:
    """Why the folder is not served."""
    with pytest.raises(UnusableModel) as caught:
        engine_of(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def greedy(driver: Driver, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens."""
    blocks = list(range(-(-(len(prompt) + count) // 16)))
    rows, found = [row(0, prompt, 0, blocks, start={})], []
    for turn in range(count):
        found.append(int.from_bytes(driver.step(rows).sampled, "little"))
        rows = [row(0, None, len(prompt) + turn)]
    return found


@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 64},
        {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 64, **LONGROPE}},
        {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 256, **LONGROPE}},
    ],
    ids=["plain", "dynamic", "longrope long", "longrope short"],
)
def test_recipe_and_fallback_give_the_same_text(rope: dict[str, Any], tmp_path: Path) -> None:
    """Frequencies that depend on the length of a sequence are, in both, those of the longest that is served."""
    folder = checkpoints.write(tmp_path, checkpoints.config(**rope))
    longest = 64 if rope.get("max_position_embeddings") == 64 else 100
    prompt = [(7 * i * i + 3 * i + 5) % 199 for i in range(20)]
    drivers = [
        Driver(folder, max_sequence_tokens=longest, implementation=name)
        for name in ("penstock", "transformers")
    ]
    assert [driver.engine.recipe for driver in drivers] == ["LlamaForCausalLM", "transformers"]
    ours, theirs = (greedy(driver, prompt, longest - 20) for driver in drivers)
    assert ours == theirs
    for driver in drivers:
        driver.begin()
        driver.step([row(0, prompt, 0, [0, 1], start={})])
    torch.testing.assert_close(drivers[0].last_logits(), drivers[1].last_logits(), atol=2e-4, rtol=2e-4)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "indexer": (
        {"model_type": "axk2", "architectures": ["AXK2ForCausalLM"], "num_key_value_heads": 4},
        "layers of the type indexed_attention",
    ),
    "keys of blocks": (
        {"model_type": "big_bird", "architectures": ["BigBirdForCausalLM"], "is_decoder": True},
        "attention_type is block_sparse",
    ),
    "hears": ({"model_type": "whisper", "architectures": ["WhisperForCausalLM"]}, "num_mel_bins"),
    "encoder": (
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
        "has an encoder",
    ),
    "of no causal class": (
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        "unsupported architecture BertForMaskedLM: no recipe serves it, and it cannot be served through "
        "transformers: it is no causal language model",
    ),
    "a version that nobody knows": (
        {"model_type": "lfm9", "architectures": ["Lfm9ForCausalLM"]},
        "does not know; of other versions of it Lfm2ForCausalLM, Lfm3ForCausalLM are served",
    ),
    "sees what comes": (
        {"model_type": "bert", "architectures": ["BertLMHeadModel"]},
        "lets a token see those after it",
    ),
    "mixes tokens": (
        {
            "model_type": "doge",
            "architectures": ["DogeForCausalLM"],
            "num_key_value_heads": 2,
            "is_moe": True,
        },
        "logits that it mixes across tokens",
    ),
    "attention of its own": (
        {"model_type": "trocr", "architectures": ["TrOCRForCausalLM"]},
        "does not call attention",
    ),
    "takes images": (
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
        "takes more than text",
    ),
    "of another class than its model_type": (
        {"model_type": "llama", "architectures": ["NobodysForCausalLM"]},
        "which runs the model_type llama as LlamaForCausalLM",
    ),
    "unknown": ({"model_type": "wonder", "architectures": ["WonderForCausalLM"]}, "does not know"),
    "code of its own": (
        {
            "model_type": "wonder",
            "architectures": ["WonderForCausalLM"],
            "auto_map": {"AutoModelForCausalLM": "modeling.WonderForCausalLM"},
        },
        "only with --trust-remote-code",
    ),
    "quantized": (
        {
            "model_type": "apertus",
            "architectures": ["ApertusForCausalLM"],
            "quantization_config": {"quant_method": "gptq"},
        },
        "gptq",
    ),
    "nonsense": (
        {"model_type": "apertus", "architectures": ["ApertusForCausalLM"], "num_attention_heads": "four"},
        "num_attention_heads",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_work_is_refused_by_its_config_alone(name: str, tmp_path: Path) -> None:
    change, words = REFUSED[name]
    verdict = fallback_verdict({**SMALL, **change}, tmp_path)
    assert verdict is not None and words in verdict and "\n" not in verdict
    assert name == "quantized" or change["architectures"][0] in verdict


def test_a_model_that_can_work_is_described_by_its_config_alone(tmp_path: Path) -> None:
    folder = made(tmp_path, "exaone4", num_key_value_heads=2, head_dim=16, sliding_window=24)
    config = json.loads((folder / "config.json").read_text())
    assert fallback_verdict(config, folder) is None
    examined = fallback_loader.examine(config, folder)
    engine = engine_of(folder, implementation="transformers")
    assert examined.config == engine.model.config
    assert examined.parameters == engine.model.parameters
    assert engine.recipe == "transformers"


def test_kernels_that_the_published_xlstm_names_are_not_needed(tmp_path: Path) -> None:
    folder = made(tmp_path, "xlstm", hidden_size=128, embedding_dim=128, num_blocks=2, num_heads=2)
    before = engine_of(folder).model
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "chunkwise_kernel": "chunkwise--triton_xl_chunk",
        "sequence_kernel": "native_sequence__triton",
        "step_kernel": "triton",
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert fallback_verdict(config, folder) is None
    assert engine_of(folder).model.config == before.config


def test_a_tensor_that_is_in_two_files_is_refused(tmp_path: Path) -> None:
    """transformers reads every file whole."""
    folder = checkpoints.write(tmp_path, checkpoints.config(), shards=2)
    first, last = sorted(folder.glob("*.safetensors"))
    name = "model.embed_tokens.weight"
    save_file({**load_file(last), name: torch.zeros(199, 64)}, last, metadata={"format": "pt"})
    said = refusal(folder, implementation="transformers")
    assert said.startswith("model.safetensors.index.json: 1 tensor is in a second file, too")
    assert said.endswith(f"{name} ({last.name})") and first.name not in said


def test_the_doctor_knows_the_fallback(tmp_path: Path) -> None:
    folder = made(tmp_path, "bitnet", num_key_value_heads=2)
    report = examine(folder, Question(device="cpu"))
    assert (report.architecture, report.recipe, report.fallback) == ("BitNetForCausalLM", None, True)
    assert report.parameters == engine_of(folder).model.parameters
    assert report.weight_bytes_per_shard == [engine_of(folder).model.parameters * 4]
    assert report.kv_bytes_per_token == [2 * 2 * 2 * 16 * 4] and report.fits
    assert [problem for problem in report.problems if "tokenizer" not in problem] == []
    assert any("--num-shard 2" in problem for problem in examine(folder, Question(shards=2)).problems)
    assert any("--pipeline-parallel 2" in problem for problem in examine(folder, Question(stages=2)).problems)
    change = {"model_type": "cpmant", "architectures": ["CpmAntForCausalLM"]}
    (folder / "config.json").write_text(json.dumps({**SMALL, **change}))
    report = examine(folder, Question())
    assert any(fallback_loader.NOT_SERVED["cpmant"] in problem for problem in report.problems)
    assert (report.architecture, report.recipe, report.fallback) == ("CpmAntForCausalLM", None, False)


@pytest.mark.parametrize("model_type", fallback_loader.NOT_SERVED)
def test_what_nobody_has_made_served_is_refused_with_its_reason(model_type: str, tmp_path: Path) -> None:
    from transformers.models.auto import modeling_auto

    names = {
        **modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    name = names[model_type]
    verdict = fallback_verdict({"model_type": model_type, "architectures": [name]}, tmp_path)
    assert verdict is not None
    why, *others = verdict.split("; of other versions of it ")
    assert why == (
        f"config.json: unsupported architecture {name}: no recipe serves it, and it cannot be served through transformers: "
        f"it {fallback_loader.NOT_SERVED[model_type]}"
    )
    assert others == (["InklingForCausalLM is served"] if model_type == "inkling2_text" else [])


def test_a_bias_of_keys_is_a_part_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doge's, which is as large as scores are here."""
    folder = made(tmp_path, "doge", num_key_value_heads=2, head_dim=16, keep_window_size=100)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(".A"):
            tensor.copy_(torch.tensor([0.5, -2.0]))
        if name.endswith("dt_proj.weight"):
            tensor.mul_(3)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = engine_of(folder).model.config
    assert (config.max_positions, config.key_shape) == (100, (2, 24)), "behind them keys are chosen"
    monkeypatch.setattr(
        own_attention, "_key_bias", lambda module, values: values.new_ones(1, 2, values.shape[1], 1)
    )
    assert "off its own" in refusal(folder)


def test_shards_and_stages_are_refused_with_a_sentence(tmp_path: Path) -> None:
    folder = made(tmp_path, "bitnet", num_key_value_heads=2)
    said = refusal(folder, group=TensorGroup(0, 2))
    assert said.startswith("--num-shard 2: BitNetForCausalLM runs through transformers")
    stages = TensorGroup(pipeline=Pipeline(1, 2, TensorGroup(1, 2)))
    said = refusal(folder, group=stages)
    assert said.startswith("--pipeline-parallel 2: BitNetForCausalLM runs through transformers")


def test_a_name_that_a_file_has_is_one_line_of_an_error_and_has_an_end() -> None:
    name = "a\nb" * 1000
    configs: list[dict[str, Any]] = [{"architectures": [name]}, {"model_type": name}]
    for config in configs:
        with pytest.raises(UnusableModel) as refused:
            fallback_loader.refuse_division(config, 2, 1)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        (
            "lfm2",
            {"layer_types": ["conv", "full_attention"], "num_key_value_heads": 2},
        ),  # keeps more than keys
        ("roberta", {"is_decoder": True}),  # would count positions from 2 on
    ],
)
def test_what_computes_something_else_with_the_cache_is_refused(
    model_type: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback_loader, "ATTENTION_LAYERS", fallback_loader.ATTENTION_LAYERS | {"conv"})
    for module in (fallback, fallback_loader):
        monkeypatch.setattr(module, "first_position", lambda body: 0)
    folder = made(tmp_path, model_type, **changes)
    assert "off its own" in refusal(folder, implementation="transformers")


ZAMBA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
    "attention_head_dim": 32,
    "num_key_value_heads": 4,
}


def test_a_state_that_a_layer_does_not_go_on_from_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path, "zamba", **ZAMBA)
    config = engine_of(folder).model.config
    assert config.has_state and config.cached_layers(TensorGroup()) == [0, 1, None, None, None, None]
    # Zamba's scan of several tokens begins with an empty state, whatever it is given.
    monkeypatch.setattr(fallback_states, "CONTINUE", frozenset(("ZambaMambaMixer",)))
    assert "off its own" in refusal(folder)


ZAMBA_2: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention"],
    "head_dim": 32,
    "num_key_value_heads": 4,
    "n_mamba_heads": 8,
    "mamba_d_state": 16,
    "chunk_size": 16,
    "num_mem_blocks": 2,
}


def test_a_head_of_zamba_2_may_ignore_a_token(tmp_path: Path) -> None:
    """Its step is as good as 0 then, in prompts as in decodes: so what is computed again, as after a crash, is as it was."""
    from transformers import AutoModelForCausalLM

    folder = made(tmp_path, "zamba2", **ZAMBA_2)
    assert json.loads((folder / "config.json").read_text())["time_step_min"] == 0.001
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith("dt_bias"):
            tensor.fill_(-12.0)
        elif name.endswith("mamba.D"):  # what does not go through the state
            tensor.zero_()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    prompt = [(7 * i * i + 3 * i + 5) % 199 for i in range(20)]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, time_step_min=1e-30)
    with torch.inference_mode():
        expected_V = model(torch.tensor([prompt])).logits[0, -1]

    driver = Driver(folder)
    driver.step([row(0, prompt, 0, [0, 1], start={})])
    torch.testing.assert_close(driver.last_logits()[0], expected_V, atol=1e-4, rtol=1e-4)
    driver.begin()
    for at, token in enumerate(prompt):
        blocks = [0, 1] if at == 0 else None
        driver.step([row(0, [token], at, blocks, start=None if at else {}, sample=at == len(prompt) - 1)])
    torch.testing.assert_close(driver.last_logits()[0], expected_V, atol=1e-4, rtol=1e-4)


def test_positions_begin_behind_the_padding_token_where_the_model_has_them_so(tmp_path: Path) -> None:
    folder = made(tmp_path, "roberta", is_decoder=True)
    told = json.loads((folder / "config.json").read_text())
    before = told["pad_token_id"] + 1
    engine = engine_of(folder, implementation="transformers")
    assert engine.model.config.max_positions == told["max_position_embeddings"] - before > 0


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = made(tmp_path, "bitnet", num_key_value_heads=2)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"

    def save(changed: dict[str, Tensor]) -> None:
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})

    save({key: value for key, value in weights.items() if key != name})
    assert f"lacks tensor {name}" in refusal(folder)
    save({**weights, "model.extra": torch.zeros(2)})
    assert "model.extra" in refusal(folder)
    save({**weights, name: torch.zeros(3, 64)})
    assert name in refusal(folder) and "[3, 64]" in refusal(folder)
    save({**weights, name: torch.full_like(weights[name], torch.nan)})
    assert "not numbers" in refusal(folder)


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class WonderConfig(LlamaConfig):
    model_type = "wonder"
class WonderForCausalLM(LlamaForCausalLM):
    config_class = WonderConfig
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = -output.logits
        return output
"""


def test_code_of_the_repository_runs_with_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = made(tmp_path / "model", "llama", num_key_value_heads=2)
    config = json.loads((folder / "config.json").read_text())
    config.update(
        model_type="wonder",
        architectures=["WonderForCausalLM"],
        auto_map={
            "AutoConfig": "modeling.WonderConfig",
            "AutoModelForCausalLM": "modeling.WonderForCausalLM",
        },
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling.py").write_text(CODE)
    assert "only with --trust-remote-code" in refusal(folder)
    assert engine_of(folder, trusted=True).recipe == "transformers"


def plain(
    q_HTD: Tensor, k_KTD: Tensor, v_KTV: Tensor, softcap: float | None, sinks_H: Tensor | None
) -> Tensor:
    """Causal attention by its definition: (H, T, V)."""
    shared = len(q_HTD) // len(k_KTD)
    k_HTD, v_HTV = k_KTD.repeat_interleave(shared, 0), v_KTV.repeat_interleave(shared, 0)
    scores_HTT = q_HTD @ k_HTD.transpose(1, 2) * 0.3
    if softcap is not None:
        scores_HTT = (scores_HTT / softcap).tanh() * softcap
    hidden = torch.ones(scores_HTT.shape[1:], dtype=torch.bool).triu(1)
    scores_HTT = scores_HTT.masked_fill(hidden, -torch.inf)
    if sinks_H is not None:
        sinks_HT1 = sinks_H.view(-1, 1, 1).expand(*scores_HTT.shape[:2], 1)
        scores_HTT = torch.cat((scores_HTT, sinks_HT1), -1)
    return scores_HTT.softmax(-1)[..., : k_HTD.shape[1]] @ v_HTV


@pytest.mark.skipif(DEVICE != "cpu", reason="its caches are on the CPU")
def test_layers_of_different_sizes_share_one_shape_of_cache(tmp_path: Path) -> None:
    """Layers with fewer heads, shorter keys, other values than keys; soft caps; sinks; values taken from another."""
    generator = torch.Generator().manual_seed(1)
    tokens = 5
    shapes = [(8, 4, 16, 16, None, False), (6, 2, 8, 12, 2.0, False), (4, 1, 24, 16, None, True)]
    layers = []
    for heads, kv_heads, key, value, softcap, has_sinks in shapes:
        q, k = (torch.randn(1, n, tokens, key, generator=generator) for n in (heads, kv_heads))
        v = torch.randn(1, kv_heads, tokens, value, generator=generator)
        layers.append(
            (nn.Identity(), q, k, v, softcap, torch.randn(heads, generator=generator) if has_sinks else None)
        )

    def forward(bridge: Bridge) -> list[Tensor]:
        found = []
        for module, q, k, v, softcap, sinks in (*layers, layers[0]):
            setattr(module, BRIDGE, bridge)
            seen = mask(1, tokens, tokens, lambda b, h, query, key: key <= query)
            found.append(attention(module, q, k, v, seen, 0.3, softcap=softcap, s_aux=sinks)[0])
        return found

    bridge = Bridge()
    with bridge.tracing():
        forward(bridge)
    assert (bridge.caches, bridge.kv_heads, bridge.size, bridge.simple) == (3, 4, 24, False)
    folder = checkpoints.write(
        tmp_path, checkpoints.config(num_attention_heads=8, num_key_value_heads=4, head_dim=24)
    )
    driver = Driver(folder)
    steps: list[Step] = []
    caches = [LayerCache(torch.zeros(64, 8, 24), 0) for _ in range(3)]
    run: Any = driver.engine.model.forward

    def keep(step: Any, caches: list[LayerCache], given_TE: Tensor | None = None) -> Tensor:
        steps.append(step)
        hidden: Tensor = run(step, caches, given_TE)
        return hidden

    driver.engine.model.forward = keep  # type: ignore[method-assign]
    driver.step([row(0, [1] * tokens, 0, [1], start={})])
    with bridge.serving(steps[0], caches):
        found = forward(bridge)
    for (_, q, k, v, softcap, sinks), got in zip((*layers, layers[0]), found, strict=True):
        wanted = plain(q[0], k[0], v[0], softcap, sinks).transpose(0, 1)
        torch.testing.assert_close(got[0], wanted)


@pytest.mark.skipif(DEVICE != "cpu", reason="its caches are on the CPU")
def test_a_kernel_attends_for_layers_of_different_sizes_as_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token behind a thousand others, whose keys several programs share: what the self-check compares are prompts."""
    from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

    from penstock_kernels.gpu import attention as kernel

    monkeypatch.setattr(kernel, "PROGRAMS", 32)  # they run one after another here
    monkeypatch.setattr(interpreter_builder, "options", InterpreterOptions(sanitize_overflow=False))
    monkeypatch.setattr(device_pages, "has_kernels", lambda device: True)
    generator = torch.Generator().manual_seed(2)
    cached, blocks = 1030, list(range(65))
    shapes = [(8, 4, 16, 16, None, False), (6, 2, 8, 12, 2.0, False), (4, 1, 24, 16, None, True)]
    layers = []
    for heads, kv_heads, key, value, softcap, has_sinks in shapes:
        q, k = (torch.randn(1, n, cached + 1, key, generator=generator) for n in (heads, kv_heads))
        v = torch.randn(1, kv_heads, cached + 1, value, generator=generator)
        sinks = torch.randn(heads, generator=generator) if has_sinks else None
        layers.append((nn.Identity(), q, k, v, softcap, sinks))

    def forward(bridge: Bridge, tokens: slice) -> list[Tensor]:
        found = []
        for module, q, k, v, softcap, sinks in layers:
            setattr(module, BRIDGE, bridge)
            some = tuple(x[:, :, tokens] for x in (q, k, v))
            seen = mask(1, some[0].shape[2], some[0].shape[2], lambda b, h, query, key: key <= query)
            found.append(
                attention(module, some[0], some[1], some[2], seen, 0.3, softcap=softcap, s_aux=sinks)[0]
            )
        return found

    bridge = Bridge()
    with bridge.tracing():
        forward(bridge, slice(0, 3))
    config = checkpoints.config(
        num_attention_heads=8, num_key_value_heads=4, head_dim=24, max_position_embeddings=2048
    )
    driver = Driver(
        checkpoints.write(tmp_path, config), blocks=70, max_sequence_tokens=1040, max_step_tokens=1040
    )
    engine = driver.engine
    assert isinstance(engine.step_maker, DecoderSteps) and engine.step_maker.pages is not None
    steps: list[Step] = []

    def keep(step: Any, caches: list[LayerCache], given_TE: Tensor | None = None) -> Tensor:
        steps.append(step)
        return torch.zeros(len(step.ids_T), config["hidden_size"])

    engine.model.forward = keep  # type: ignore[method-assign]
    caches = [LayerCache(torch.zeros(72 * 16, 8, 24), 0) for _ in range(3)]
    driver.step([row(0, [1] * cached, 0, blocks, start={})])
    with monkeypatch.context() as patch, bridge.serving(steps[-1], caches):
        # What the prompt attends to nobody asks for.
        patch.setattr(ops, "paged_attention", lambda *_: None)
        forward(bridge, slice(0, cached))
    driver.step([row(0, None, cached)])
    with bridge.serving(steps[-1], caches):
        found = forward(bridge, slice(cached, cached + 1))
    for (_, q, k, v, softcap, sinks), got in zip(layers, found, strict=True):
        wanted = plain(q[0], k[0], v[0], softcap, sinks)[:, -1]
        torch.testing.assert_close(got[0, 0], wanted)


def test_masks_are_understood_by_what_they_do() -> None:
    def traced(size: int | None, sees: Any) -> Window | None:
        bridge, module = Bridge(), nn.Identity()
        setattr(module, BRIDGE, bridge)
        heads = torch.zeros(1, 2, 3, 4)
        with bridge.tracing():
            attention(module, heads, heads, heads, mask(1, 3, 3, sees, size), 1.0)
        return bridge.windows[0]

    assert traced(None, lambda b, h, q, k: k <= q) is None
    assert traced(7, lambda b, h, q, k: (k <= q) & (k > q - 7)) == Window(7)
    assert traced(7, lambda b, h, q, k: (k <= q) & (k // 7 == q // 7)) == Window(7, chunked=True)
    with pytest.raises(Unfit, match="see those after it"):
        traced(None, lambda b, h, q, k: k >= 0)
    with pytest.raises(Unfit, match="unknown kind"):
        traced(7, lambda b, h, q, k: (k <= q) & (k > q - 9))


def test_attention_that_asks_for_something_unknown_is_refused() -> None:
    heads = torch.zeros(1, 2, 3, 4)

    def refused(words: str, given: Tensor | None, **options: Any) -> None:
        bridge, module = Bridge(), nn.Identity()
        setattr(module, BRIDGE, bridge)
        with pytest.raises(Unfit, match=words), bridge.tracing():
            attention(module, heads, heads, heads, given, 1.0, **options)

    seen = mask(1, 3, 3, lambda b, h, q, k: k <= q)
    refused("without a mask", None)
    refused("changes the attention mask", seen + 0)
    refused("passes position_bias", seen, position_bias=torch.zeros(1))
    refused("not causal", seen, is_causal=False)


def test_a_worker_says_that_the_fallback_is_in_use(tmp_path: Path) -> None:
    folder = made(tmp_path / "model", "bitnet", num_key_value_heads=2)
    with Worker(folder, tmp_path / "socket") as worker:
        described = worker.describe()
        assert (described.model_type, described.recipe) == ("bitnet", "transformers")
        assert described.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
        assert worker.prepare().pages > 0
    checked = [entry for entry in worker.log if "checked" in entry["message"]]
    assert len(checked) == 1 and checked[0]["seconds"] < 60


def test_a_recipe_can_be_passed_over(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.config())
    with Worker(folder, tmp_path / "socket", "--model-impl", "transformers") as worker:
        assert worker.describe().recipe == "transformers"
    worker = Worker(
        made(tmp_path / "other", "bitnet", num_key_value_heads=2),
        tmp_path / "socket",
        "--model-impl",
        "penstock",
    )
    assert worker.exit_status() == 1
    assert "unsupported architecture BitNetForCausalLM" in worker.log[-1]["message"]
