"""Whether the CPU engine runs a model, and how its weights are quantized for that. Asked where a model is built from its checkpoint, and
by the doctor.
"""

from typing import Any

from penstock import quantization
from penstock.errors import UnusableModel
from penstock.loading.host import threads_of
from penstock.models import encoder_decoder_recorder, native, recipes
from penstock.models.cache_format import FLAG as CACHE_FLAG
from penstock.models.choice import uses_fallback
from penstock.models.config import DecoderConfig
from penstock.models.device_packing import FORMATS as DEVICE_FORMATS
from penstock.models.device_packing import DeviceQuantizer, Published
from penstock.models.encoder_decoder_config import EncoderDecoderConfig
from penstock.models.model import ModelConfig
from penstock.models.packing import FORMATS, Quantizer
from penstock.models.recorder import undivided, unknown_choice
from penstock.parallel.group import ALONE, TensorGroup
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine, WrongInstructionSet
from penstock_kernels.gpu.choice import why_not as no_gpu_kernels
from penstock_kernels.program import GROUPED, MOST_BYTE_INPUTS, Format


def why_not(shape: ModelConfig, dtype: Any, group: TensorGroup) -> str | None:
    """What the engine does not serve of a model that is served in `dtype` by the ranks of `group`; None: it serves it."""
    named = str(dtype).removeprefix("torch.")
    if named != "bfloat16":
        return f"{named} weights"
    if group.pipeline is not None:
        return "several stages"
    if isinstance(shape, EncoderDecoderConfig):  # whose loader refuses several ranks
        return encoder_decoder_recorder.unknown_choice(shape)
    if not isinstance(shape, DecoderConfig):
        return "no model of a recipe"
    if group.size > 1:
        if not group.is_local:
            return "shards that meet at --master-addr"
        undone = undivided(shape, group)
        if undone is not None:
            return f"{undone} in several shards"
    return unknown_choice(shape)


def only_engine(
    says: str,
    shape: ModelConfig | None,
    dtype: Any,
    device: Any,
    group: TensorGroup,
) -> str:
    """The instruction set that the CPU engine runs a model of this shape with, where nothing else would do: `says` is why. Raises
    UnusableModel where the engine would not run it. None as the shape: transformers run it.
    """
    if device.type != "cpu":
        raise UnusableModel(f"{says}, and this worker runs on {device}")
    why = "models through transformers" if shape is None else why_not(shape, dtype, group)
    if why is not None:
        raise UnusableModel(f"{says}, and it does not serve {why}")
    try:
        return cpu_engine.instruction_set()
    except WrongInstructionSet as error:
        raise UnusableModel(str(error)) from error
    except NoCpuEngine as error:
        raise UnusableModel(f"{says}: {error}") from error


def needs_torch(
    config: dict[str, Any], named: str, implementation: str, group: TensorGroup = ALONE
) -> str | None:
    """What of a model that the ranks of `group` serve on a CPU only torch runs, in words; None: the CPU engine runs it. `named`: its dtype. Raises
    UnusableModel.
    """
    if uses_fallback(config, implementation):
        return "models through transformers"
    why = why_not(recipes.read_config(config), named, group)
    if why is not None:
        return f"models with what the CPU engine does not serve ({why})"
    try:
        cpu_engine.instruction_set()
    except WrongInstructionSet as error:
        raise UnusableModel(str(error)) from error
    except NoCpuEngine as error:
        return f"models where there is no CPU engine ({error})"
    return None


def refuse_cache(name: str, shape: ModelConfig | None, dtype: Any, device: Any, group: TensorGroup) -> None:
    """Raises UnusableModel where --kv-cache-dtype asks for what a model of this shape would not have."""
    if name != "auto":
        if isinstance(shape, DecoderConfig) and shape.compressions:
            raise UnusableModel(
                f"{CACHE_FLAG} {name}: entries that stand for several tokens are in the model's dtype"
            )
        only_engine(f"{CACHE_FLAG} {name}: only the CPU engine has such a cache", shape, dtype, device, group)


def quantizer(
    shape: ModelConfig | None,
    dtype: Any,
    device: Any,
    group: TensorGroup,
    quantize: str,
    head: bool,
    threads: int = 0,
) -> Quantizer | DeviceQuantizer:
    """Of --quantize and --quantize-head, for a model of this shape; None: transformers run it. Raises UnusableModel where nothing computes
    with its weights quantized: on a CPU all but the engine, and on a GPU what `_unquantized` says.
    """
    if device.type == "cuda":
        why = _unquantized(shape, dtype) or _without_kernels()
        if why is not None:
            raise UnusableModel(f"--quantize {quantize}: on a GPU {why}")
        return DeviceQuantizer(device, *DEVICE_FORMATS[quantize], head)
    says = f"--quantize {quantize}: only the CPU engine quantizes weights"
    runs = only_engine(says, shape, dtype, device, group)
    assert isinstance(shape, DecoderConfig | EncoderDecoderConfig), "it serves no other"
    widest = _widest(shape)
    if widest > MOST_BYTE_INPUTS:
        raise UnusableModel(
            f"--quantize {quantize}: config.json: {widest} inputs of a matrix, and the most are {MOST_BYTE_INPUTS}"
        )
    format, rounding = FORMATS[quantize]
    return Quantizer(format, head, runs, threads_of(threads), rounding)


def published(
    config: dict[str, Any],
    shape: ModelConfig | None,
    dtype: Any,
    device: Any,
    group: TensorGroup,
    threads: int = 0,
) -> Quantizer | DeviceQuantizer | None:
    """Of a checkpoint that is published in 4 bits: it stays what it is where the CPU engine runs it, and on a GPU where its numbers are whole
    ones. None: it is served in bf16.
    """
    named = quantization.published(config)
    if named is None or shape is None:
        return None
    if device.type == "cuda" and named != quantization.FP4 and _unquantized(shape, dtype) is None:
        if _without_kernels() is not None:
            return None
        try:
            found = Published(Format[named.upper()], cpu_engine.instruction_set(), threads_of(threads))
        except (NoCpuEngine, WrongInstructionSet):
            return None
        return DeviceQuantizer(device, 4, GROUPED[found.format], with_zeros=True, published=found)
    if device.type != "cpu" or why_not(shape, dtype, group) is not None:
        return None
    assert isinstance(shape, DecoderConfig | EncoderDecoderConfig), "it serves no other"
    try:
        runs = cpu_engine.instruction_set()
    except (NoCpuEngine, WrongInstructionSet):  # `instruction_set` says why
        return None
    return (
        None
        if _widest(shape) > MOST_BYTE_INPUTS
        else Quantizer(
            Format.INT8,
            quantization.has_published_head(config),
            runs,
            threads_of(threads),
            published=Format[named.upper()],
            share=quantization.share_in_4_bits(config),
        )
    )


def _unquantized(shape: ModelConfig | None, dtype: Any) -> str | None:
    """What is not served with quantized weights on a GPU; None: it is."""
    named = str(dtype).removeprefix("torch.")
    if named != "bfloat16":
        return f"quantized weights go with bfloat16, not with {named}"
    if not isinstance(shape, DecoderConfig):
        return "weights of encoder-decoders and of models through transformers are not quantized"
    if any(layer.experts is not None for layer in shape.layers):
        return "experts are not quantized"
    return None


def dtype_on_gpu(config: dict[str, Any], named: str, asked: str, quantize: str, implementation: str) -> str:
    """What a GPU serves a checkpoint in whose dtype is `named`, with --dtype `asked`: bfloat16 where weights of 4 bits stay that. Those are mostly
    published beside fp16.
    """
    is_free = (
        asked == "auto" and not quantize and quantization.published(config) not in (None, quantization.FP4)
    )
    if not is_free or uses_fallback(config, implementation):
        return named
    stays = _unquantized(recipes.read_config(config), "bfloat16") is None and _without_kernels() is None
    return "bfloat16" if stays else named


def _without_kernels() -> str | None:
    """Why this process' GPU would not compute with quantized weights; None: it would, or there is none to be asked."""
    import torch

    if not torch.cuda.is_available():
        return None
    why = no_gpu_kernels()
    return None if why is None else f"kernels alone compute with quantized weights, and there are none: {why}"


def _widest(shape: DecoderConfig | EncoderDecoderConfig) -> int:
    """Most inputs of a matrix."""
    if isinstance(shape, EncoderDecoderConfig):
        inner = shape.heads * shape.head_dim
        return max(shape.width, shape.feed_forward, shape.encoder_feed_forward, inner)
    return max(
        shape.width,
        shape.feed_forward,
        shape.mixer_width // 4,
        *(layer.feed_forward for layer in shape.layers),
        *(shape.heads_of(at) * shape.head_dim_of(at) for at in range(shape.num_layers)),
    )


def instruction_set(shape: ModelConfig, dtype: Any, device: Any, group: TensorGroup) -> str | None:
    """What the CPU engine would run a model of this shape with; None: torch runs it, and a line says why. Raises UnusableModel where
    the environment asks for an instruction set that there is not.
    """
    if device.type != "cpu":
        return None
    try:
        found = cpu_engine.instruction_set()
    except WrongInstructionSet as error:
        raise UnusableModel(str(error)) from error
    except NoCpuEngine as error:
        if group.rank == 0:
            native.tell(f"torch runs the model: {error}", level="INFO" if error.asked else "WARN")
        return None
    why = why_not(shape, dtype, group)
    if why is not None and group.rank == 0:
        native.tell(f"torch runs the model: the CPU engine does not serve {why}")
    return found if why is None else None
