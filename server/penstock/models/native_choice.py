"""Whether the CPU engine runs a model, and how its weights are quantized for that. Asked where a model is built from its checkpoint, and
by the doctor.
"""

import torch

from penstock.errors import UnusableModel
from penstock.models import native
from penstock.models.cache_format import FLAG as CACHE_FLAG
from penstock.models.config import DecoderConfig
from penstock.models.model import ModelConfig
from penstock.models.packing import FORMATS, Quantizer
from penstock.models.recorder import undivided, unknown_choice
from penstock.parallel.exchange import Local
from penstock.parallel.group import TensorGroup
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine, WrongInstructionSet
from penstock_kernels.program import MOST_BYTE_INPUTS


def why_not(shape: ModelConfig, dtype: torch.dtype, group: TensorGroup) -> str | None:
    """What the engine does not serve of a model that is served in `dtype` by the ranks of `group`; None: it serves it."""
    if dtype != torch.bfloat16:
        return f"{str(dtype).removeprefix('torch.')} weights"
    if group.pipeline is not None:
        return "several stages"
    if not isinstance(shape, DecoderConfig):
        return "no decoder of a recipe"
    if group.size > 1:
        if group.exchange is not None and not isinstance(group.exchange, Local):
            return "shards that meet at --master-addr"
        undone = undivided(shape, group)
        if undone is not None:
            return f"{undone} in several shards"
    return unknown_choice(shape)


def only_engine(
    says: str,
    shape: ModelConfig | None,
    dtype: torch.dtype,
    device: torch.device,
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


def refuse_cache(
    name: str, shape: ModelConfig | None, dtype: torch.dtype, device: torch.device, group: TensorGroup
) -> None:
    """Raises UnusableModel where --kv-cache-dtype asks for what a model of this shape would not have."""
    if name != "auto":
        only_engine(f"{CACHE_FLAG} {name}: only the CPU engine has such a cache", shape, dtype, device, group)


def quantizer(
    shape: ModelConfig | None,
    dtype: torch.dtype,
    device: torch.device,
    group: TensorGroup,
    quantize: str,
    head: bool,
) -> Quantizer:
    """Of --quantize and --quantize-head, for a model of this shape; None: transformers run it. Raises UnusableModel where the
    CPU engine would not run it: nothing else computes with quantized weights.
    """
    says = f"--quantize {quantize}: only the CPU engine quantizes weights"
    runs = only_engine(says, shape, dtype, device, group)
    assert isinstance(shape, DecoderConfig), "it serves no other"
    widest = max(
        shape.width,
        shape.feed_forward,
        shape.mixer_width // 4,
        *(layer.feed_forward for layer in shape.layers),
        *(shape.heads_of(at) * shape.head_dim_of(at) for at in range(shape.num_layers)),
    )
    if widest > MOST_BYTE_INPUTS:
        raise UnusableModel(
            f"--quantize {quantize}: config.json: {widest} inputs of a matrix, and the most are {MOST_BYTE_INPUTS}"
        )
    return Quantizer(FORMATS[quantize], head, runs, torch.get_num_threads())


def instruction_set(
    shape: ModelConfig, dtype: torch.dtype, device: torch.device, group: TensorGroup
) -> str | None:
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
