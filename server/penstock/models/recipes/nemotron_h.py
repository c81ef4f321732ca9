"""Nemotron-H and Nemotron 3: a layer is Mamba 2, attention without positions, a feed-forward layer or experts, and nothing else."""

from dataclasses import replace
from typing import Any

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.decoder import Experts
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.mamba2 import Mamba2Loader
from penstock.models.recipes.mamba2_layers import ATTENTION, RECURRENT, rate_limits
from penstock.models.recurrent_config import Mamba2Config
from penstock.parallel.group import ranges
from penstock_kernels.later import Tensor

KEYS = CheckpointKeys(
    embedding="embeddings",
    layer="layers.{}.",
    norm="norm_f",
    prefixes=("backbone.", "model."),
    attention_norm="norm",
    feed_forward_norm="norm",
    q="mixer.q_proj",
    k="mixer.k_proj",
    v="mixer.v_proj",
    out="mixer.o_proj",
    up="mixer.up_proj",
    down="mixer.down_proj",
    experts=ExpertKeys(
        router="mixer.gate",
        up="mixer.experts.{}.up_proj",
        down="mixer.experts.{}.down_proj",
        shared_up="mixer.shared_experts.up_proj",
        shared_down="mixer.shared_experts.down_proj",
        correction="mixer.gate.e_score_correction_bias",
    ),
    ignored=(r"(?:llm\.)?mtp\..*",),
)
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    fields = Fields(config)
    kinds = kinds_of(config)
    names = {
        "num_hidden_layers": len(kinds),
        "intermediate_size": 1,
        "head_dim": fields.count("attention_head_dim", default=128),
    }
    defaults = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096}
    read = llama.read_config({**defaults, **names, **config, "num_hidden_layers": len(kinds)})
    fields.refuse("sliding_window")
    mixer = Mamba2Config(
        heads=fields.count("mamba_num_heads", default=128),
        head_dim=fields.count("mamba_head_dim", default=64),
        groups=fields.count("n_groups", "mamba_n_groups", default=8),
        state=fields.count("ssm_state_size", default=128),
        kernel=fields.count("conv_kernel", "mamba_d_conv", default=4),
        eps=fields.number("layer_norm_epsilon", default=1e-5),
        norm_groups=fields.count("n_groups", "mamba_n_groups", default=8),
        activation=fields.activation("mamba_hidden_act", default="silu"),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias"),
        out_bias=fields.flag("use_bias"),
        # `time_step_min` is for the first values of dt_bias, though transformers 5.23 takes it for a limit in prompts.
        rate_limits=rate_limits(fields),
    )
    read = replace(
        read,
        norm=fields.norm("layer_norm_epsilon", 1e-5),
        activation=fields.activation("mlp_hidden_act", default="relu2"),
        gated=False,
        qkv_bias=False,
        attention_out_bias=False,
    )
    experts = _experts(fields) if "moe" in kinds else None
    return read.with_layers(
        rope=[None] * len(kinds),
        attends=[kind in ATTENTION for kind in kinds],
        recurrent=[mixer if kind in RECURRENT else None for kind in kinds],
        feeds_forward=[kind in ("mlp", "moe") for kind in kinds],
        experts=[experts if kind == "moe" else None for kind in kinds],
    )


def kinds_of(config: dict[str, Any]) -> list[str]:
    """What each layer is: a list of names, or a letter each."""
    kinds = config.get("layers_block_type") or config.get("layer_types")
    if kinds is None:
        pattern = config.get("hybrid_override_pattern")
        if not isinstance(pattern, str) or not pattern or set(pattern) - set(LETTERS):
            raise UnusableModel(
                f"config.json: hybrid_override_pattern is {pattern!r}, not a text of {' '.join(LETTERS)}"
            )
        kinds = [LETTERS[letter] for letter in pattern]
    known = (*RECURRENT, *ATTENTION, "mlp", "moe")
    if not isinstance(kinds, list) or not kinds or any(kind not in known for kind in kinds):
        raise UnusableModel(f"config.json: layers_block_type is not a list of {', '.join(known)}")
    return kinds


def _experts(fields: Fields) -> ExpertsConfig:
    routing = ops.Routing(
        fields.count("num_experts_per_tok", default=2),
        sigmoid=True,
        normalize=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", default=1.0),
        groups=fields.count("n_group", default=1),
        top_groups=fields.count("topk_group", default=1),
        group_best=2,
    )
    return ExpertsConfig(
        fields.count("n_routed_experts", default=8),
        fields.count("moe_intermediate_size", default=7688),
        routing,
        shared_width=fields.count("moe_shared_expert_intermediate_size", default=7688),
        latent=fields.whole("moe_latent_size", 0),
        correction=True,
        long_router=True,
    )


class NemotronLoader(Mamba2Loader):
    """Reads experts without gates."""

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """The experts below `at`, each two matrices."""
        keys, mine = KEYS.experts, self.group.share(choice.count)
        width = choice.latent or self.config.width
        assert keys is not None
        if self.checkpoint.has(f"{at}mixer.experts.gate_and_up_projs"):
            up_XGE = self.turned(f"{at}mixer.experts.gate_and_up_projs", (choice.count, width, choice.width))
            down_XEF = self.turned(f"{at}mixer.experts.down_projs", (choice.count, choice.width, width))
            return self.with_latent(at, choice, up_XGE, down_XEF)
        up_XGE = self.checkpoint.new((len(mine), choice.width, width))
        down_XEF = self.checkpoint.new((len(mine), width, choice.width))
        for expert in range(choice.count):
            up, down = at + keys.up.format(expert), at + keys.down.format(expert)
            if expert in mine:
                self.read(up, (choice.width, width), into=up_XGE[expert - mine.start])
                self.read(down, (width, choice.width), into=down_XEF[expert - mine.start])
            else:
                self.checkpoint.expect(f"{up}.weight", (choice.width, width))
                self.checkpoint.expect(f"{down}.weight", (width, choice.width))
        return self.with_latent(at, choice, up_XGE, down_XEF)

    def turned(self, name: str, shape_XIO: tuple[int, int, int]) -> Tensor:
        """(X, O, I) of this rank's experts, which NeMo exports in one tensor (X, I, O)."""
        mine = self.group.share(shape_XIO[0])
        return self.checkpoint.tensor(name, shape_XIO, ranges([mine])).transpose(1, 2).contiguous()

    def with_latent(self, at: str, choice: ExpertsConfig, up_XGE: Tensor, down_XEF: Tensor) -> Experts:
        """These experts with what else belongs to them; around those of a latent width, the matrices to and from it."""
        mine = self.group.share(choice.count)
        made = self.mixture(at, choice, mine.start, up_XGE, None, down_XEF, None)
        if choice.latent:
            width, whole, bias = choice.latent, self.config.width, self.config.up_bias
            names = (f"{at}mixer.fc1_latent_proj", f"{at}mixer.fc2_latent_proj")
            biases = [
                self.read(name, (rows,), kind="bias") if bias else None
                for name, rows in zip(names, (width, whole), strict=True)
            ]
            made.latent_in = Linear(self.read(names[0], (width, whole)), biases[0])
            # The ranks add up what it gives.
            made.latent_out = Linear(
                self.read(names[1], (whole, width)), biases[1] if self.group.rank == 0 else None
            )
        return made


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, NemotronLoader)
