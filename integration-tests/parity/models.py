"""Small models of every family, made on the spot: the family's real config.json, shrunk, with random weights.

What they answer is compared with transformers on the whole sequence at once.
"""

import json
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import penstock_kernels  # noqa: F401 - before anything is computed: it tells MKL how to sum up

LENGTH = 100

# Of a bf16 model with experts: what another expert changes a token's logits by at most, and for how many tokens of a test: seen once, with
# Qwen3-MoE (0.2155). Which experts were chosen there was not compared.
MOST_TIPPED, TIPPED_TOKENS = 0.25, 1

# Fields of config.json that describe what reads images and sound.
ENCODERS = {
    "vision_config",
    "vq_config",
    "audio_config",
    "encoder_config",
    "acoustic_tokenizer_encoder_config",
}

# Names that transformers saves otherwise than they are published, and than it saves those of others: as saved, as published.
PUBLISHED = {
    "kimi_k25": ("language_model.model.blocks.", "language_model.model.layers."),
    "qianfan_ocr": ("language_model.model.encoder.layers.", "language_model.model.layers."),
}

# Models whose classes in transformers leave out the factor of logits that their text model has by itself: of Cohere
# `logit_scale`, of Granite what `logits_scaling` divides by.
UNSCALED = ("aya_vision", "cohere2_vision", "granite_speech", "granite_speech_plus")

# Models whose classes in transformers compute nothing without an image.
NEED_IMAGES = ("blip-2", "instructblip", "instructblipvideo")

# Ends of the names of buffers that are learned.
LEARNED = ("bias", "layer_scalar")


def ids(vocabulary: int, seed: int, length: int = LENGTH) -> list[int]:
    """Token ids from 3 on: some families give the first ones a meaning."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(3, vocabulary, (length,), generator=generator).tolist()
    return found


def kind_of(config: dict[str, Any]) -> Any:
    """The class of transformers that makes and reads the model."""
    transformers: Any = import_module("transformers")
    if config["model_type"] == "hy_v4":
        module: Any = import_module("transformers.models.hy_v4.modeling_hy_v4")
        module.apply_rotary_pos_emb = rotated_in_pairs
    if ENCODERS & config.keys() and not config["architectures"][0].endswith("ForCausalLM"):
        return transformers.AutoModelForMultimodalLM
    return transformers.AutoModelForCausalLM


def rotated_in_pairs(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, ...]:
    """Of Hunyuan 4, whose published rows are ordered so; transformers 5.23 takes them for halves."""
    cos, sin = (table[..., : table.shape[-1] // 2].unsqueeze(unsqueeze_dim) for table in (cos, sin))

    def rotated(x: Tensor) -> Tensor:
        first, second = x[..., ::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)

    return rotated(q), rotated(k)


def make(folder: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """Writes config.json as it is given, and weights in the layout that transformers saves. Returns the folder."""
    from transformers import AutoConfig

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(seed)
    read = AutoConfig.from_pretrained(folder)
    model = kind_of(config).from_config(read, dtype=torch.float32)
    randomize(model, seed)
    model.save_pretrained(folder)
    if config["model_type"] in PUBLISHED:
        publish_names(folder, *PUBLISHED[config["model_type"]])
    if config["model_type"] == "molmo2":
        split_embeddings(folder, config["text_config"]["vocab_size"])
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def split_embeddings(folder: Path, vocabulary: int) -> None:
    """Of Molmo 2: the rows of text in one tensor, those of images in another; transformers saves two halves."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    names = [f"model.transformer.wte.{name}" for name in ("embedding", "new_embedding")]
    rows = torch.cat([tensors[name] for name in names])
    tensors |= {names[0]: rows[:vocabulary].clone(), names[1]: rows[vocabulary:].clone()}
    save_file(tensors, file, {"format": "pt"})


def publish_names(folder: Path, saved: str, published: str) -> None:
    """Gives tensors the names that published checkpoints have, where transformers saves them under others."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = {name.replace(saved, published): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})


def experts_apart(tensors: dict[str, Tensor], turned: bool = False) -> dict[str, Tensor]:
    """Each expert in tensors of its own, as llm-compressor, GPTQ and AWQ leave those that a class stacks. `turned`: these are (X, in, out)."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        at, is_stacked, which = name.partition(".experts.")
        if not is_stacked or which not in ("gate_up_proj", "down_proj"):
            found[name] = tensor
            continue
        for expert, weight in enumerate(tensor.transpose(1, 2) if turned else tensor):
            parts = weight.chunk(2) if which == "gate_up_proj" else (weight,)
            kinds = ("gate_proj", "up_proj") if which == "gate_up_proj" else ("down_proj",)
            for kind, part in zip(kinds, parts, strict=True):
                found[f"{at}.experts.{expert}.{kind}.weight"] = part.contiguous()
    assert len(found) > len(tensors)
    return found


def randomize(model: Any, seed: int) -> None:
    """Weights that make logits differ clearly, and nothing that is 0 or 1 by chance of how it was made."""
    generator = torch.Generator().manual_seed(seed)
    state = {
        **dict(model.named_parameters()),
        **{n: b for n, b in model.named_buffers() if n.endswith(LEARNED)},
    }
    with torch.no_grad():
        for name, table in model.named_buffers():
            if name.endswith("tid2eid"):  # each token's experts, no two of them the same
                shares = torch.rand(len(table), model.config.n_routed_experts, generator=generator)
                table.copy_(shares.argsort(-1)[:, : table.shape[1]])
        for name in sorted(state):
            tensor = state[name]
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim < 2 or "norm" in name or "bias" in name:
                tensor.add_(0.1 * noise)
            else:
                tensor.copy_(noise * tensor.shape[-1] ** -0.5)


class Reference:
    """What logits should be: those of fp32, to rounding; of a shorter type, as close to them as transformers is."""

    def __init__(self, folder: Path, sequences: list[list[int]]) -> None:
        self.folder, self.sequences = folder, sequences
        # Tokens that another expert was chosen for: in bf16 a choice between two that are nearly equal may fall either way.
        self.has_experts = any("expert" in key for key in json.loads((folder / "config.json").read_text()))
        self.tipped: set[tuple[int, int]] = set()
        self.exact = logits_of(folder, sequences, torch.float32)

    @cached_property
    def rounded(self) -> list[Tensor]:
        """What transformers makes of them in bf16."""
        return logits_of(self.folder, self.sequences, torch.bfloat16)

    def check(self, ours_V: Tensor, sequence: int, position: int, dtype: torch.dtype) -> None:
        """Fails unless these are the logits after that position."""
        exact_V = self.exact[sequence][position]
        if dtype == torch.float32:
            torch.testing.assert_close(ours_V, exact_V, atol=5e-4, rtol=5e-4)
            return
        theirs = max(
            float(((rounded - exact).norm(dim=-1) / exact.norm(dim=-1)).max())
            for rounded, exact in zip(self.rounded, self.exact, strict=True)
        )
        error = float((ours_V - exact_V).norm() / exact_V.norm())
        if self.has_experts and 1.5 * theirs < error < MOST_TIPPED:
            self.tipped.add((sequence, position))
            assert len(self.tipped) <= TIPPED_TOKENS, f"other experts for {sorted(self.tipped)}"
            return
        assert error <= 1.5 * theirs, f"relative error {error:.4f}, of transformers up to {theirs:.4f}"


def logits_of(folder: Path, sequences: list[list[int]], dtype: torch.dtype) -> list[Tensor]:
    """Logits (T, V) in fp32 of transformers for each sequence, computed in `dtype`."""
    config = json.loads((folder / "config.json").read_text())
    # The eager attention of Falcon adds linear biases twice.
    attention = "sdpa" if config.get("alibi") else "eager"
    model = kind_of(config).from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    if config["model_type"] in NEED_IMAGES:
        model = model.language_model
    scale = 1.0
    if config["model_type"] in UNSCALED:
        text = config["text_config"]
        scale = text.get("logit_scale", 1.0) / text.get("logits_scaling", 1.0)
    with torch.inference_mode():
        return [scale * model(torch.tensor([sequence])).logits[0].float() for sequence in sequences]


def logits_of_text(folder: Path) -> torch.Tensor:
    """In fp32, of one prompt."""
    from client import row
    from driver import Driver

    driver = Driver(folder, torch.float32)
    driver.step([row(0, ids(190, 3, 20), 0, [0, 1], start={})])
    return driver.last_logits()


def within(
    architecture: str, model_type: str, part: str = "text_config"
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The configuration of a model that reads images, too, around that of its text model."""
    return lambda text: {
        "architectures": [architecture],
        "model_type": model_type,
        part: {name: value for name, value in text.items() if name != "architectures"},
        "vision_config": {"model_type": "some_encoder"},
    }
