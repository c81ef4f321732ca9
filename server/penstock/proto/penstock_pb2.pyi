from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CacheKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_KIND_FULL: _ClassVar[CacheKind]
    CACHE_KIND_WINDOW: _ClassVar[CacheKind]
    CACHE_KIND_CHUNK: _ClassVar[CacheKind]
    CACHE_KIND_STATE: _ClassVar[CacheKind]
    CACHE_KIND_INDEX: _ClassVar[CacheKind]

class RowFlag(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_FLAG_NONE: _ClassVar[RowFlag]
    ROW_FLAG_START: _ClassVar[RowFlag]
    ROW_FLAG_CONTINUE: _ClassVar[RowFlag]
    ROW_FLAG_SAMPLE: _ClassVar[RowFlag]
    ROW_FLAG_PROMPT_LOGPROBS: _ClassVar[RowFlag]
    ROW_FLAG_MASKED: _ClassVar[RowFlag]
    ROW_FLAG_OWN_DRAFTS: _ClassVar[RowFlag]
CACHE_KIND_FULL: CacheKind
CACHE_KIND_WINDOW: CacheKind
CACHE_KIND_CHUNK: CacheKind
CACHE_KIND_STATE: CacheKind
CACHE_KIND_INDEX: CacheKind
ROW_FLAG_NONE: RowFlag
ROW_FLAG_START: RowFlag
ROW_FLAG_CONTINUE: RowFlag
ROW_FLAG_SAMPLE: RowFlag
ROW_FLAG_PROMPT_LOGPROBS: RowFlag
ROW_FLAG_MASKED: RowFlag
ROW_FLAG_OWN_DRAFTS: RowFlag

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelDescription(_message.Message):
    __slots__ = ("model_type", "recipe", "vocab_size", "eos_ids", "dtype", "device", "device_name", "block_size", "max_positions", "parameters", "weight_bytes", "kv_bytes_per_token", "rank", "world_size", "max_top_tokens", "contract", "decoder_start_ids", "max_side_positions", "stages", "positions_go_on", "state_bytes", "draft_model", "frames", "adapters")
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    DECODER_START_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIDE_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_GO_ON_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    model_type: str
    recipe: str
    vocab_size: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    device: str
    device_name: str
    block_size: int
    max_positions: int
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    rank: int
    world_size: int
    max_top_tokens: int
    contract: int
    decoder_start_ids: _containers.RepeatedScalarFieldContainer[int]
    max_side_positions: int
    stages: int
    positions_go_on: bool
    state_bytes: int
    draft_model: DraftModel
    frames: bool
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    def __init__(self, model_type: _Optional[str] = ..., recipe: _Optional[str] = ..., vocab_size: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., device_name: _Optional[str] = ..., block_size: _Optional[int] = ..., max_positions: _Optional[int] = ..., parameters: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., max_top_tokens: _Optional[int] = ..., contract: _Optional[int] = ..., decoder_start_ids: _Optional[_Iterable[int]] = ..., max_side_positions: _Optional[int] = ..., stages: _Optional[int] = ..., positions_go_on: _Optional[bool] = ..., state_bytes: _Optional[int] = ..., draft_model: _Optional[_Union[DraftModel, _Mapping]] = ..., frames: _Optional[bool] = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class DraftModel(_message.Message):
    __slots__ = ("model_type", "parameters")
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    model_type: str
    parameters: int
    def __init__(self, model_type: _Optional[str] = ..., parameters: _Optional[int] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("max_slots", "max_step_tokens", "max_sequence_tokens", "max_cache_tokens", "memory_fraction", "max_step_drafts")
    MAX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    max_slots: int
    max_step_tokens: int
    max_sequence_tokens: int
    max_cache_tokens: int
    memory_fraction: float
    max_step_drafts: int
    def __init__(self, max_slots: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., max_sequence_tokens: _Optional[int] = ..., max_cache_tokens: _Optional[int] = ..., memory_fraction: _Optional[float] = ..., max_step_drafts: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("pages", "cost", "cache_bytes", "free_bytes", "groups", "snapshots", "draft_cost", "draft_trees", "draft_states", "max_sequence_tokens")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_COST_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TREES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_STATES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    pages: int
    cost: CostModel
    cache_bytes: int
    free_bytes: int
    groups: _containers.RepeatedCompositeFieldContainer[CacheGroup]
    snapshots: int
    draft_cost: CostModel
    draft_trees: bool
    draft_states: int
    max_sequence_tokens: int
    def __init__(self, pages: _Optional[int] = ..., cost: _Optional[_Union[CostModel, _Mapping]] = ..., cache_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[CacheGroup, _Mapping]]] = ..., snapshots: _Optional[int] = ..., draft_cost: _Optional[_Union[CostModel, _Mapping]] = ..., draft_trees: _Optional[bool] = ..., draft_states: _Optional[int] = ..., max_sequence_tokens: _Optional[int] = ...) -> None: ...

class CacheGroup(_message.Message):
    __slots__ = ("kind", "tables", "reach", "layers", "bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: CacheKind
    tables: int
    reach: int
    layers: int
    bytes: int
    def __init__(self, kind: _Optional[_Union[CacheKind, str]] = ..., tables: _Optional[int] = ..., reach: _Optional[int] = ..., layers: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class CostModel(_message.Message):
    __slots__ = ("fixed_ns", "per_token_ns", "per_context_token_ns")
    FIXED_NS_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    PER_CONTEXT_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    fixed_ns: float
    per_token_ns: float
    per_context_token_ns: float
    def __init__(self, fixed_ns: _Optional[float] = ..., per_token_ns: _Optional[float] = ..., per_context_token_ns: _Optional[float] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("plan", "masks")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    plan: StepPlan
    masks: Masks
    def __init__(self, plan: _Optional[_Union[StepPlan, _Mapping]] = ..., masks: _Optional[_Union[Masks, _Mapping]] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("number", "digest", "released", "slots", "flags", "positions", "counts", "tokens", "new_block_counts", "new_pages", "prompt_targets", "starts", "traces", "drafts", "saves", "draft_parents", "copies")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    NEW_PAGES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TARGETS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PARENTS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    number: int
    digest: int
    released: bytes
    slots: bytes
    flags: bytes
    positions: bytes
    counts: bytes
    tokens: bytes
    new_block_counts: bytes
    new_pages: bytes
    prompt_targets: bytes
    starts: Starts
    traces: bytes
    drafts: bytes
    saves: bytes
    draft_parents: bytes
    copies: bytes
    def __init__(self, number: _Optional[int] = ..., digest: _Optional[int] = ..., released: _Optional[bytes] = ..., slots: _Optional[bytes] = ..., flags: _Optional[bytes] = ..., positions: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., new_block_counts: _Optional[bytes] = ..., new_pages: _Optional[bytes] = ..., prompt_targets: _Optional[bytes] = ..., starts: _Optional[_Union[Starts, _Mapping]] = ..., traces: _Optional[bytes] = ..., drafts: _Optional[bytes] = ..., saves: _Optional[bytes] = ..., draft_parents: _Optional[bytes] = ..., copies: _Optional[bytes] = ...) -> None: ...

class Masks(_message.Message):
    __slots__ = ("number", "only", "words")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    only: bytes
    words: bytes
    def __init__(self, number: _Optional[int] = ..., only: _Optional[bytes] = ..., words: _Optional[bytes] = ...) -> None: ...

class Starts(_message.Message):
    __slots__ = ("seeds", "temperatures", "top_ks", "top_ps", "typical_ps", "min_ps", "repetition_penalties", "frequency_penalties", "presence_penalties", "top_tokens", "history_counts", "history_outputs", "history", "bias_counts", "bias_tokens", "biases", "first_ends", "end_counts", "end_tokens", "watermark_deltas", "watermark_greens", "encoder_counts", "state_sources", "adapters")
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURES_FIELD_NUMBER: _ClassVar[int]
    TOP_KS_FIELD_NUMBER: _ClassVar[int]
    TOP_PS_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_PS_FIELD_NUMBER: _ClassVar[int]
    MIN_PS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTIES_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTIES_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTIES_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_COUNTS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    BIAS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENDS_FIELD_NUMBER: _ClassVar[int]
    END_COUNTS_FIELD_NUMBER: _ClassVar[int]
    END_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_DELTAS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_GREENS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_COUNTS_FIELD_NUMBER: _ClassVar[int]
    STATE_SOURCES_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    seeds: bytes
    temperatures: bytes
    top_ks: bytes
    top_ps: bytes
    typical_ps: bytes
    min_ps: bytes
    repetition_penalties: bytes
    frequency_penalties: bytes
    presence_penalties: bytes
    top_tokens: bytes
    history_counts: bytes
    history_outputs: bytes
    history: bytes
    bias_counts: bytes
    bias_tokens: bytes
    biases: bytes
    first_ends: bytes
    end_counts: bytes
    end_tokens: bytes
    watermark_deltas: bytes
    watermark_greens: bytes
    encoder_counts: bytes
    state_sources: bytes
    adapters: bytes
    def __init__(self, seeds: _Optional[bytes] = ..., temperatures: _Optional[bytes] = ..., top_ks: _Optional[bytes] = ..., top_ps: _Optional[bytes] = ..., typical_ps: _Optional[bytes] = ..., min_ps: _Optional[bytes] = ..., repetition_penalties: _Optional[bytes] = ..., frequency_penalties: _Optional[bytes] = ..., presence_penalties: _Optional[bytes] = ..., top_tokens: _Optional[bytes] = ..., history_counts: _Optional[bytes] = ..., history_outputs: _Optional[bytes] = ..., history: _Optional[bytes] = ..., bias_counts: _Optional[bytes] = ..., bias_tokens: _Optional[bytes] = ..., biases: _Optional[bytes] = ..., first_ends: _Optional[bytes] = ..., end_counts: _Optional[bytes] = ..., end_tokens: _Optional[bytes] = ..., watermark_deltas: _Optional[bytes] = ..., watermark_greens: _Optional[bytes] = ..., encoder_counts: _Optional[bytes] = ..., state_sources: _Optional[bytes] = ..., adapters: _Optional[bytes] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("number", "sampled", "logprobs", "top_tokens", "top_logprobs", "prompt_logprobs", "prompt_top_tokens", "prompt_top_logprobs", "errors", "prepare_ns", "forward_ns", "sample_ns", "accepted", "draft_ns")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    PREPARE_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_NS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NS_FIELD_NUMBER: _ClassVar[int]
    number: int
    sampled: bytes
    logprobs: bytes
    top_tokens: bytes
    top_logprobs: bytes
    prompt_logprobs: bytes
    prompt_top_tokens: bytes
    prompt_top_logprobs: bytes
    errors: _containers.RepeatedCompositeFieldContainer[RowError]
    prepare_ns: int
    forward_ns: int
    sample_ns: int
    accepted: bytes
    draft_ns: int
    def __init__(self, number: _Optional[int] = ..., sampled: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., top_tokens: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ..., prompt_logprobs: _Optional[bytes] = ..., prompt_top_tokens: _Optional[bytes] = ..., prompt_top_logprobs: _Optional[bytes] = ..., errors: _Optional[_Iterable[_Union[RowError, _Mapping]]] = ..., prepare_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., sample_ns: _Optional[int] = ..., accepted: _Optional[bytes] = ..., draft_ns: _Optional[int] = ...) -> None: ...

class RowError(_message.Message):
    __slots__ = ("row", "message")
    ROW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    row: int
    message: str
    def __init__(self, row: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckReply(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    def __init__(self, steps: _Optional[int] = ...) -> None: ...
