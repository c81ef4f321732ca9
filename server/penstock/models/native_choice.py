"""Whether the CPU engine runs a model, and how its weights are quantized for that. Asked where a model is built from its checkpoint, and
by the doctor.
"""

import torch

from penstock.errors import UnusableModel
from penstock.models import native
from penstock.models.config import DecoderConfig
from penstock.models.model import ModelConfig
from penstock.models.packing import FORMATS, Quantizer
from penstock.models.recorder import unknown_choice
from penstock.parallel.group import TensorGroup
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine, WrongInstructionSet
from penstock_kernels.program import MOST_BYTE_INPUTS


def why_not(shape: ModelConfig, dtype: torch.dtype, group: TensorGroup) -> str | None:
    """What the engine does not serve of a model that is served in `dtype` by the ranks of `group`; None: it serves it."""
    if dtype != torch.bfloat16:
        return f"{str(dtype).removeprefix('torch.')} weights"
    if group.everyone.size > 1:
        return "several shards or stages"
    if not isinstance(shape, DecoderConfig):
        return "no decoder of a recipe"
    return unknown_choice(shape)


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
    if device.type != "cpu":
        raise UnusableModel(f"{says}, and this worker runs on {device}")
    why = "models through transformers" if shape is None else why_not(shape, dtype, group)
    if why is not None:
        raise UnusableModel(f"{says}, and it does not serve {why}")
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
    try:
        instruction_set = cpu_engine.instruction_set()
    except WrongInstructionSet as error:
        raise UnusableModel(str(error)) from error
    except NoCpuEngine as error:
        raise UnusableModel(f"{says}: {error}") from error
    return Quantizer(FORMATS[quantize], head, instruction_set, torch.get_num_threads())


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
