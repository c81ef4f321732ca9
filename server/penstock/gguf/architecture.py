"""What is read of the files of one `general.architecture`: its config.json, and of what each tensor is made. Must not import torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.gguf.container import Header
from penstock.gguf.fields import Fields
from penstock.gguf.layout import Layout
from penstock.gguf.names import Names

Config = dict[str, Any]
HEADS, KEY_HEADS = "num_attention_heads", "num_key_value_heads"


@dataclass(frozen=True)
class Architecture:
    """One of them."""

    model_type: str
    kind: str
    """The class, as `architectures` of config.json has it."""
    names: Names
    more: Callable[[Fields, Config], None] | None = None
    """Adds what only this family has to config.json. Raises UnusableModel."""
    made: Callable[[Header, Config], Layout] | None = None
    """The tensors that are made of several of the file's."""

    def config(self, header: Header) -> Config:
        """config.json, as transformers would save it. Raises UnusableModel, naming the field of the metadata."""
        fields = Fields(header)
        made = _common(fields) | {"model_type": self.model_type, "architectures": [self.kind]}
        if self.more is not None:
            self.more(fields, made)
        return {name: value for name, value in made.items() if value is not None}

    def layout(self, header: Header, config: Config) -> Layout:
        """Of what each tensor is made that the recipe asks for. The file need not have them all: what is missing is found where it is asked for."""
        heads = {name: config[name] for name in (HEADS, KEY_HEADS) if name in config}
        made = dict(self.names.layout(header, heads))
        return made if self.made is None else made | dict(self.made(header, config))


def _common(fields: Fields) -> Config:
    heads = fields.count("attention.head_count", least=1)
    layers = fields.layers() - fields.count("nextn_predict_layers", 0)
    if layers < 1:
        raise fields.wrong("nextn_predict_layers", "all layers would be such")
    key_heads, inner = (
        fields.counts(name, layers, default)
        for name, default in (("attention.head_count_kv", heads), ("feed_forward_length", 0))
    )
    made: Config = {
        "vocab_size": fields.rows_of("token_embd.weight"),
        "hidden_size": fields.count("embedding_length", least=1),
        # Those that guess tokens beyond the next one are counted with the others, and are not read.
        "num_hidden_layers": layers,
        # Where layers differ, the first one's; which others there are the family says.
        "intermediate_size": inner[0] or None,
        HEADS: heads,
        # Of the layers that have some; which these are the family says.
        KEY_HEADS: max(key_heads) or heads,
        "head_dim": fields.count("attention.key_length", 0) or None,
        "max_position_embeddings": fields.count("context_length"),
        "rope_theta": fields.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": not fields.has_tensor("output.weight"),
    }
    if fields.has("attention.layer_norm_rms_epsilon"):
        made["rms_norm_eps"] = fields.number("attention.layer_norm_rms_epsilon")
    if fields.has("attention.layer_norm_epsilon"):
        made["layer_norm_eps"] = fields.number("attention.layer_norm_epsilon")
    scaling = _scaling(fields)
    if scaling is not None:
        made["rope_scaling"] = scaling
    return made


def _scaling(fields: Fields) -> Config | None:
    """A rotary table that is stretched, as fields say it."""
    kind = fields.value("rope.scaling.type")
    if kind == "linear":
        return {"rope_type": "linear", "factor": fields.number("rope.scaling.factor")}
    if kind == "yarn":
        made: Config = {
            "rope_type": "yarn",
            "factor": fields.number("rope.scaling.factor"),
            "original_max_position_embeddings": fields.count("rope.scaling.original_context_length"),
        }
        for name, ours in (
            ("yarn_beta_fast", "beta_fast"),
            ("yarn_beta_slow", "beta_slow"),
            ("yarn_attn_factor", "attention_factor"),
        ):
            if fields.has(f"rope.scaling.{name}"):
                made[ours] = fields.number(f"rope.scaling.{name}")
        return made
    if kind not in (None, "none", "longrope"):
        raise fields.wrong("rope.scaling.type", "linear, yarn and longrope are read")
    return None


def partial_rotary(fields: Fields, config: Config) -> float:
    """Which part of a head is rotated."""
    size = config.get("head_dim") or config["hidden_size"] // config[HEADS]
    part: float = fields.count("rope.dimension_count", size) / size
    return part


def layer_types(fields: Fields, config: Config, every: int) -> list[str]:
    """Which layers have a window: by the file, or all but each of so many."""
    layers = config["num_hidden_layers"]
    windowed = fields.per_layer("attention.sliding_window_pattern", layers)
    if windowed is None:
        windowed = [(at + 1) % every != 0 for at in range(layers)]
    return ["sliding_attention" if one else "full_attention" for one in windowed]
