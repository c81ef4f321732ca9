"""The tiny model as it is trained: a Llama in plain torch, in Hugging Face's layout and weight names.

Used by `train` and `evaluate`; the server runs the exported folder with its own decoder, never this one.
Letters in shapes: S sequences, T tokens of one, E width, H query heads, K key-value heads, D head size.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

# Of the seven that bfloat16 has. The evaluation scores the same with three, and git stores half the bytes.
MANTISSA_BITS = 3


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the names are those of the head of `config.json`."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, head = shape.hidden_size, shape.head_dim
        self.input_layernorm = nn.Parameter(torch.ones(width))
        self.post_attention_layernorm = nn.Parameter(torch.ones(width))
        self.q_proj = nn.Linear(width, shape.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(width, shape.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(width, shape.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * head, width, bias=False)
        self.gate_proj = nn.Linear(width, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(width, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, width, bias=False)

    def forward(self, x_STE: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        shape = self.shape
        sequences, length, width = x_STE.shape
        h_STE = F.rms_norm(x_STE, (width,), self.input_layernorm, shape.rms_norm_eps)

        def heads(y: Tensor) -> Tensor:
            return y.view(sequences, length, -1, shape.head_dim).transpose(1, 2)

        q_SHTD = _rotate(heads(self.q_proj(h_STE)), rope)
        k_SKTD = _rotate(heads(self.k_proj(h_STE)), rope)
        v_SKTD = heads(self.v_proj(h_STE))
        attended_SHTD = _attend(q_SHTD, k_SKTD, v_SKTD)
        x_STE = x_STE + self.o_proj(attended_SHTD.transpose(1, 2).reshape(sequences, length, -1))
        h_STE = F.rms_norm(x_STE, (width,), self.post_attention_layernorm, shape.rms_norm_eps)
        out: Tensor = x_STE + self.down_proj(F.silu(self.gate_proj(h_STE)) * self.up_proj(h_STE))
        return out


class TinyLlama(nn.Module):
    """Token ids in, the last layer's normed states out; `embed_tokens` is also the head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden_size))
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and not name.startswith("embed"):
                nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        angles = torch.outer(torch.arange(shape.max_position_embeddings).float(), shape.rope_theta**-half)
        angles = torch.cat((angles, angles), dim=1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids_ST: Tensor) -> Tensor:
        """ids (S, T) int64, from position 0 -> states (S, T, E)."""
        length = ids_ST.shape[1]
        cos, sin = self.get_buffer("cos")[:length], self.get_buffer("sin")[:length]
        rope = (cos, sin)
        if torch.is_autocast_enabled("cpu"):
            rope = (cos.to(torch.bfloat16), sin.to(torch.bfloat16))
        x_STE = self.embed_tokens(ids_ST)
        for layer in self.layers:
            x_STE = layer(x_STE, rope)
        return F.rms_norm(x_STE, (self.shape.hidden_size,), self.norm, self.shape.rms_norm_eps)

    def logits(self, states: Tensor) -> Tensor:
        """(..., E) -> (..., vocabulary)."""
        return F.linear(states, self.embed_tokens.weight)


def save_weights(network: TinyLlama, folder: Path) -> None:
    """config.json and model.safetensors (bf16), as `LlamaForCausalLM` reads them."""
    shape = network.shape
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | vars(shape)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = {
        _exported(name): _rounded(tensor.detach()).to(torch.bfloat16).contiguous()
        for name, tensor in network.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # save_file makes it private


def load_weights(folder: Path) -> TinyLlama:
    """The inverse of `save_weights`, in float32."""
    config = json.loads((folder / "config.json").read_text())
    shape = Shape(**{name: config[name] for name in vars(Shape())})
    network = TinyLlama(shape)
    tensors = load_file(folder / "model.safetensors")
    network.load_state_dict({name: tensors[_exported(name)].float() for name in network.state_dict()})
    return network


def _rounded(x: Tensor) -> Tensor:
    """`x` with MANTISSA_BITS behind the leading one, half to even."""
    mantissa, exponent = torch.frexp(x.float())  # a mantissa in [0.5, 1): the leading one is a bit of it
    steps = 2.0 ** (MANTISSA_BITS + 1)
    return torch.ldexp(torch.round(mantissa * steps) / steps, exponent)


def _exported(name: str) -> str:
    """Our parameter name -> Hugging Face's."""
    parts = name.split(".")
    if parts[0] == "norm" or parts[-1].endswith("layernorm"):
        parts.append("weight")
    if len(parts) > 2 and parts[2] in ("q_proj", "k_proj", "v_proj", "o_proj"):
        parts.insert(2, "self_attn")
    elif len(parts) > 2 and parts[2] in ("gate_proj", "up_proj", "down_proj"):
        parts.insert(2, "mlp")
    return ".".join(["model", *parts])


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions on (S, heads, T, D): halves, as in Hugging Face's Llama."""
    cos_TD, sin_TD = rope
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    rotated: Tensor = torch.addcmul(x * cos_TD, turned, sin_TD)
    return rotated


def _attend(q_SHTD: Tensor, k_SKTD: Tensor, v_SKTD: Tensor) -> Tensor:
    """Causal attention. Written out because on short rows it is faster on a CPU than torch's fused one, whose
    backward pass took a quarter of a step."""
    sequences, heads, length, head = q_SHTD.shape
    shared = k_SKTD.shape[1]
    q = q_SHTD.reshape(
        sequences * shared, -1, head
    )  # the query heads of one key head stand one after another
    k = k_SKTD.reshape(sequences * shared, length, head)
    v = v_SKTD.reshape(sequences * shared, length, head)
    later = torch.ones(length, length, dtype=torch.bool).triu(1).repeat(heads // shared, 1)
    scores = (q @ k.mT * head**-0.5).masked_fill(later, -torch.inf)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
    attended: Tensor = (weights @ v).view(sequences, heads, length, head)
    return attended
