"""What computes steps, by where a model runs: arrays, the sampler, what makes steps of plans, and graphs, of the CPU engine or of torch.

Asked by the engine when a model is loaded and when caches are made, never in a step. Must not import torch but where it runs the model.
"""

from typing import TYPE_CHECKING, Any, Protocol

from penstock.engine.arrays import Arrays, HostArrays
from penstock.engine.logits_indices import LogitsIndices
from penstock.engine.native_encoder_decoder_steps import NativeEncoderDecoderSteps
from penstock.engine.native_sampling import NativeSampler
from penstock.engine.native_steps import NativeSteps
from penstock.engine.plan import Plan
from penstock.engine.slot_sampling import SlotSampling
from penstock.engine.slots import Limits, SlotTable
from penstock.models.layer_cache import LayerCache
from penstock.models.model import Model
from penstock.models.native import NativeModel
from penstock.telemetry import log
from penstock_kernels.gpu.choice import may_record_graphs, unwritable_cache, why_not
from penstock_kernels.program import Array

if TYPE_CHECKING:
    from penstock.engine.step_graphs import StepGraphs


class StepMaker(Protocol):
    """From plans to what a model's forward pass reads."""

    def make(self, plan: Plan, last_sampled: Array) -> tuple[LogitsIndices, Any]:
        """Of a plan that `SlotTable.apply` has accepted; `last_sampled` has the last token of every slot."""

    def clear(self) -> None:
        """Forgets the last step."""


def make_arrays(native: NativeModel | None, dtype: Any, device: Any) -> Arrays:
    """`native`: the model, where the CPU engine runs it. Says so where a GPU has no kernels of ours."""
    if native is not None:
        return HostArrays()
    from penstock.engine.torch_arrays import TorchArrays

    if device.type == "cuda":
        if (reason := why_not()) is not None:
            log(
                "WARNING",
                f"plain torch computes on the GPU, several times slower than our kernels: {reason}",
                progress=True,
            )
        elif (unwritable := unwritable_cache()) is not None:
            log(
                "WARNING",
                f"kernels are compiled anew at every start: {unwritable} cannot be written (TRITON_CACHE_DIR)",
                progress=True,
            )
    return TorchArrays(dtype, device)


def make_sampler(native: NativeModel | None, limits: Limits, device: Any) -> SlotSampling:
    """For all slots of these limits."""
    slots, vocabulary = limits.max_slots, limits.vocab_size
    if native is not None:
        return NativeSampler(slots, vocabulary, native)
    from penstock.engine.sampling import Sampler

    return Sampler(slots, vocabulary, device, limits.max_step_drafts)


def make_step_maker(
    model: Model,
    slots: SlotTable,
    logits_rows: int,
    zero_row: int,
    dtype: Any,
    device: Any,
    deterministic: bool,
) -> StepMaker:
    """`logits_rows`: how many exist at once, for which the CPU engine takes its memory here. `zero_row`: of the cache."""
    has_encoder = model.config.has_encoder
    if isinstance(model, NativeModel):
        limits = slots.limits
        model.reserve(limits.max_step_tokens, logits_rows, limits.max_sequence_tokens)
        return NativeEncoderDecoderSteps(slots) if has_encoder else NativeSteps(slots, model.narrows)
    from penstock.engine.decoder_steps import DecoderSteps
    from penstock.engine.encoder_decoder_metadata import EncoderDecoderSteps

    where = (slots, zero_row, dtype, device, deterministic)
    return EncoderDecoderSteps(*where) if has_encoder else DecoderSteps(model, *where)


def make_graphs(
    model: Model,
    layer_caches: list[LayerCache],
    steps: StepMaker,
    arrays: Arrays,
    last_sampled: Array,
    logits_SV: Array,
    spare_place: int,
) -> "StepGraphs | None":
    """Steps that are launched at once, where a GPU runs a decoder of ours. `spare_place`: of a state that nobody has."""
    if not may_record_graphs():
        return None
    from penstock.engine.decoder_steps import DecoderSteps
    from penstock.engine.step_graphs import StepGraphs
    from penstock.models.decoder import Decoder

    if not isinstance(model, Decoder) or not isinstance(steps, DecoderSteps) or steps.pages is None:
        return None
    where = (last_sampled, logits_SV, spare_place)
    try:
        with arrays.computing():
            return StepGraphs(model, layer_caches, steps, steps.pages, *where)
    except RuntimeError as error:  # out of memory, or something in the model that cannot be recorded
        log("WARNING", f"steps are not recorded as graphs, and take longer: {error}", progress=True)
        return None
