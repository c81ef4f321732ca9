"""What a recipe says of a recurrent layer: its shape, the choices its family made, and the state that a sequence has in it.

Knows no weights. Named in `penstock.models.config.LayerConfig`; `penstock.models.recurrent` computes by it. Sizes are of the
whole layer, over all ranks; states are divided by heads or channels.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from penstock.parallel.group import TensorGroup


@dataclass(frozen=True)
class StateShape:
    """One tensor of a layer's state, of one sequence on one rank."""

    shape: tuple[int, ...]
    is_fp32: bool = True  # else it has the dtype of the activations

    def bytes(self, itemsize: int) -> int:
        """What it takes where an activation takes `itemsize`."""
        return math.prod(self.shape) * (4 if self.is_fp32 else itemsize)


class RecurrentConfig(Protocol):
    """A kind of recurrent layer."""

    @property
    def width(self) -> int:
        """Numbers that it makes of a token before it gives its output."""

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """What a rank keeps of a sequence. Raises UnusableModel where ranks cannot divide it."""


@dataclass(frozen=True)
class Compression:
    """One entry of the cache stands for `rate` tokens. Where entries overlap, one is made of the tokens before it, too, of
    which every token then has numbers of its own.
    """

    rate: int
    overlaps: bool

    @property
    def reads(self) -> int:
        """V: tokens that an entry is made of."""
        return self.rate * (1 + self.overlaps)

    @property
    def row(self) -> int:
        """Rows of tokens in the cache that are a row of entries: an entry is in that of its last token, which it has for
        itself. It divides a block, whose size is a multiple of 16.
        """
        return math.gcd(self.rate, 16)


@dataclass(frozen=True)
class CompressedConfig:
    """Attention to the last tokens and to entries that stand for several each (DeepSeek V4): what a sequence keeps of the
    window, and of the tokens of entries that are not finished, is a state; all ranks have the whole. An indexer chooses entries.
    """

    head_dim: int
    window: int  # tokens, a query's own among them
    query_rank: int
    out_groups: int  # of heads, each with a matrix of its own to `out_rank` numbers
    out_rank: int
    compression: Compression | None = None  # None: it attends to the window alone
    index_heads: int = 0  # 0: it attends to all entries
    index_dim: int = 0
    most: int = 0  # entries that a query attends to

    @property
    def entry(self) -> int:
        """Numbers of an entry, its index key among them."""
        return self.head_dim + self.index_dim

    @property
    def pending(self) -> int:
        """Numbers that an entry is made of, of each token: values and gates."""
        if self.compression is None:
            return 0
        return 2 * (1 + self.compression.overlaps) * self.entry

    @property
    def past(self) -> int:
        """Numbers of a token and all before it that are read again."""
        reads = 0 if self.compression is None else self.compression.reads
        return self.window * self.head_dim + reads * self.pending

    @property
    def per_token(self) -> int:
        """Numbers of a token's row in the cache."""
        return 0 if self.compression is None else -(-self.entry // self.compression.row)

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 2 * (self.head_dim + self.pending)

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        near = StateShape((self.window - 1, self.head_dim), False)
        if self.compression is None:
            return (near,)
        return near, StateShape((self.compression.reads - 1, self.pending), False)


@dataclass(frozen=True)
class ShortConvConfig:
    """A causal convolution between two gates (LFM2)."""

    channels: int
    kernel: int
    bias: bool = False

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 4 * self.channels

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        mine = group.even_share(self.channels, "the channels of the convolution (hidden_size)")
        return (StateShape((self.kernel - 1, len(mine)), False),)


@dataclass(frozen=True)
class SmoothingConfig:
    """Causal convolutions of keys and values, and of what attention and the feed-forward layer give, each added to what it reads
    (Inkling). All ranks have the whole of the latter two.
    """

    kv_heads: int
    head_dim: int
    hidden: int  # E
    kernel: int

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 4 * max(2 * self.kv_heads * self.head_dim, self.hidden)

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        mine = 2 * len(group.key_heads(self.kv_heads)) * self.head_dim
        widths = (mine, self.hidden, self.hidden)
        return tuple(StateShape((self.kernel - 1, width), False) for width in widths)


@dataclass(frozen=True)
class DeltaConfig:
    """Gated delta rule (Qwen3-Next): each key head serves value_heads / key_heads value heads after one another."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    eps: float  # of the norm behind it
    beta_scale: float = 1.0  # over 1, a state may turn around what it held
    gate: Literal["silu", "sigmoid"] = "silu"  # what opens gates behind the norm

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 2 * (2 * self.key_heads * self.key_dim + 2 * self.value_heads * self.value_dim)

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        keys = len(
            group.even_share(self.key_heads, "the key heads of linear attention (linear_num_key_heads)")
        )
        values = keys * (self.value_heads // self.key_heads)
        channels = 2 * keys * self.key_dim + values * self.value_dim
        return (
            StateShape((self.kernel - 1, channels), False),
            StateShape((values, self.key_dim, self.value_dim)),
        )


@dataclass(frozen=True)
class ChannelDeltaConfig:
    """Kimi delta attention: a gated delta rule in which each channel of a key decays by itself."""

    heads: int
    head_dim: int
    kernel: int
    eps: float  # of the norm behind it
    low_rank: bool = True  # decays and gates are made of D numbers for all heads
    lower_bound: float | None = None  # the logarithm of a decay is this times a sigmoid, not a softplus

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 8 * self.heads * self.head_dim

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        heads = len(
            group.even_share(self.heads, "the heads of linear attention (linear_attn_config.num_heads)")
        )
        return (
            StateShape((self.kernel - 1, 3 * heads * self.head_dim), False),
            StateShape((heads, self.head_dim, self.head_dim)),
        )


@dataclass(frozen=True)
class LightningConfig:
    """Lightning attention (MiniMax): what a head keeps decays by its slope, whatever it reads."""

    slopes: tuple[float, ...]  # of each head
    head_dim: int
    activation: str

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 8 * len(self.slopes) * self.head_dim

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        heads = len(group.even_share(len(self.slopes), "the attention heads (num_attention_heads)"))
        return (StateShape((heads, self.head_dim, self.head_dim)),)


@dataclass(frozen=True)
class GriffinConfig:
    """Griffin's recurrent block (RecurrentGemma): channels whose gates are made by heads."""

    channels: int
    heads: int
    kernel: int
    activation: str

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 8 * self.channels

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        heads = len(group.even_share(self.heads, "the heads of the recurrence (num_attention_heads)"))
        mine = heads * (self.channels // self.heads)
        return (StateShape((self.kernel - 1, mine), False), StateShape((mine,)))


@dataclass(frozen=True)
class Factors:
    """Of the parts of a layer that has attention and Mamba 2 beside one another (Falcon-H1)."""

    attention_in: float = 1.0
    attention_out: float = 1.0
    key: float = 1.0
    out: float = 1.0
    gate: float = 1.0
    down: float = 1.0


@dataclass(frozen=True)
class Mamba2Config:
    """Mamba 2: heads of `head_dim` channels, whose groups have one B and one C of `state` numbers each."""

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    eps: float  # of the norm behind it
    norm: str = "gate first"  # "gate first", "gate last", or "none": only the gate
    norm_groups: int = 1  # parts of the channels that are normalised each by itself
    activation: str = "silu"
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool = False
    rate_limits: tuple[float, float] = (0.0, math.inf)
    # What parts of the projection are multiplied with: of z, x, B, C and dt.
    scales: tuple[float, ...] = (1.0,) * 5
    factors: Factors = Factors()

    @property
    def channels(self) -> int:
        """Of x."""
        return self.heads * self.head_dim

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 2 * (2 * self.channels + 2 * self.groups * self.state)

    def share(self, group: TensorGroup) -> tuple[range, range]:
        """A rank's heads, and the groups they are in. Raises UnusableModel."""
        heads = group.even_share(self.heads, "the heads of the state space (mamba_n_heads, mamba_num_heads)")
        return heads, group.key_heads(self.groups)

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        heads, groups = self.share(group)
        channels = len(heads) * self.head_dim + 2 * len(groups) * self.state
        return (
            StateShape((self.kernel - 1, channels), False),
            StateShape((len(heads), self.state, self.head_dim)),
        )


@dataclass(frozen=True)
class Mamba1Config:
    """Mamba: channels with a state of `state` numbers each."""

    channels: int
    state: int
    rate_rank: int  # numbers of which the rates are made
    kernel: int
    activation: str = "silu"
    conv_bias: bool = True
    bias: bool = False
    norms: tuple[bool, float] = (False, 0.0)  # whether rates, B and C are normalised, and the eps
    weighted_norms: bool = True  # with weights

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 5 * self.channels

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        mine = len(group.even_share(self.channels, "the channels of the state space"))
        return (StateShape((self.kernel - 1, mine), False), StateShape((mine, self.state)))


@dataclass(frozen=True)
class TimeMixConfig:
    """RWKV's attention: channels whose keys weigh their values, made of a token and the one before it."""

    hidden: int  # E
    channels: int

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 4 * self.hidden + 8 * self.channels

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        mine = len(group.even_share(self.channels, "the channels of attention (attention_hidden_size)"))
        return (StateShape((1, self.hidden), False), StateShape((3, mine)))


@dataclass(frozen=True)
class ChannelMixConfig:
    """RWKV's feed-forward layer, which is made of a token and the one before it, too."""

    hidden: int  # E
    inner: int  # F

    @property
    def width(self) -> int:
        """See RecurrentConfig."""
        return 4 * self.hidden + 2 * self.inner

    def states(self, group: TensorGroup) -> tuple[StateShape, ...]:
        """See RecurrentConfig."""
        return (StateShape((1, self.hidden), False),)
