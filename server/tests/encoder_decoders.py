"""Small encoder-decoders with random weights, and what transformers computes with them."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VOCABULARY = 199
WIDTH = 48
# Two inputs, and what a decoder is made to say after its start.
LONG = [(7 * i * i + 3 * i + 5) % VOCABULARY for i in range(60)]
SHORT = [(11 * i + 2) % VOCABULARY for i in range(23)]
SAID = [(5 * i * i + i + 1) % VOCABULARY for i in range(52)]

# A token that nobody says or reads: some families skip the padding token's position.
UNUSED = min({*range(VOCABULARY)} - {*LONG, *SHORT, *SAID})

T5 = {
    "d_model": WIDTH,
    "d_kv": 16,
    "d_ff": 80,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "relative_attention_max_distance": 40,
}
BART = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 128,
    "init_std": 0.3,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

# Family to its class in transformers, and its configuration.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "T5": ("T5", T5),
    "Flan-T5": ("T5", {**T5, **GATED}),
    "mT5": ("MT5", {**T5, **GATED}),
    "BART": ("Bart", {**BART, "decoder_start_token_id": 2}),
    "mBART": ("MBart", {**BART, "scale_embedding": True, "decoder_start_token_id": 2}),
    "MVP": ("Mvp", {**BART, "decoder_start_token_id": 2}),
    "PLBART": ("PLBart", {**BART, "decoder_start_token_id": 2}),
    "Marian (Opus-MT)": (
        "Marian",
        {
            **BART,
            "activation_function": "swish",
            "scale_embedding": True,
            "pad_token_id": UNUSED,
            "decoder_start_token_id": UNUSED,
        },
    ),
    "Pegasus": ("Pegasus", {**BART, "activation_function": "relu", "scale_embedding": True}),
    "Blenderbot": ("Blenderbot", {**BART, "scale_embedding": True}),
    "Blenderbot Small": ("BlenderbotSmall", BART),
    "M2M-100, NLLB": ("M2M100", {**BART, "pad_token_id": UNUSED}),
}
# The token that has no probability.
NEVER_SAID = {"Marian (Opus-MT)": UNUSED}


def architecture_of(family: str) -> str:
    """The name of the class in config.json."""
    name = FAMILIES[family][0]
    return "MarianMTModel" if name == "Marian" else f"{name}ForConditionalGeneration"


def reference(family: str) -> Any:
    """The model of transformers, in fp32, with weights that tell everything apart."""
    import transformers

    name, choices = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, **choices)
    model = getattr(transformers, architecture_of(family))(config).eval()
    with torch.no_grad():
        for tensor_name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn_like(weight))
            elif "relative_attention_bias" in tensor_name:
                weight.normal_()
        if family in ("Flan-T5", "mT5"):
            model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model


def write(folder: Path, family: str) -> Path:
    """Its checkpoint, as transformers writes it."""
    reference(family).save_pretrained(folder)
    return folder


class Reference:
    """What logits should be: those of fp32, to rounding; of a shorter type, as close to them as transformers is."""

    def __init__(self, family: str, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.never_said = NEVER_SAID.get(family)
        self.exact = reference(family)
        self.rounded = copy.deepcopy(self.exact).to(dtype)
        self.found: dict[tuple[int, ...], tuple[Tensor, float]] = {}

    def check(self, ours_V: Tensor, read: list[int], position: int) -> None:
        """Fails unless these are the logits after that position of SAID, of a decoder whose encoder read this."""
        if tuple(read) not in self.found:
            exact_TV, rounded_TV = (self._logits(model, read) for model in (self.exact, self.rounded))
            errors = (rounded_TV - exact_TV).norm(dim=-1) / exact_TV.norm(dim=-1)
            self.found[tuple(read)] = exact_TV, float(errors.max())
        exact_TV, theirs = self.found[tuple(read)]
        if self.never_said is not None:
            assert float(ours_V[self.never_said]) < -1e8
            ours_V = ours_V.clone()
            ours_V[self.never_said] = exact_TV[position, self.never_said]
        error = float((ours_V - exact_TV[position]).norm() / exact_TV[position].norm())
        limit = 1e-5 if self.dtype == torch.float32 else 1.5 * theirs
        assert error <= limit, f"position {position}: relative error {error:.2g}, limit {limit:.2g}"

    def _logits(self, model: Any, read: list[int]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(
                input_ids=torch.tensor([read]), decoder_input_ids=torch.tensor([SAID])
            ).logits[0]
        return logits.float()


def padded(read: list[int]) -> list[int]:
    """What an encoder reads and the rest of its last block."""
    return read + [0] * (-len(read) % 16)


def blocks(positions: int, first: int) -> list[int]:
    return list(range(first, first + -(-positions // 16)))
