"""Whether a draft model can serve beside another one, and what it takes. Asked by the examination; must not import torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import quantization
from penstock.doctor.question import Question
from penstock.doctor.report import Report
from penstock.engine import draft_model
from penstock.engine.drafter import FLAG
from penstock.engine.kv_cache import numbers_of
from penstock.engine.tables import BLOCK_SIZE
from penstock.errors import UnusableModel
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.checks import check_folder
from penstock.models import cache_format, native_choice, recipes
from penstock.models.device_packing import DeviceQuantizer
from penstock.models.model import ModelConfig
from penstock.models.packing import Quantizer


@dataclass(frozen=True)
class Drafting:
    """What a draft model takes."""

    shape: ModelConfig
    weight_bytes: int
    layers: int
    row_bytes: int  # that a layer keeps of a token

    def page_bytes(self, full_tables: int) -> int:
        """See `DraftModel.page_bytes`."""
        return BLOCK_SIZE * -(-self.layers // max(full_tables, 1)) * self.row_bytes

    def too_short_for(self, longest: int) -> str:
        """That it does not draft for sequences of so many tokens."""
        return (
            f"{FLAG}: the draft model was made for {self.shape.most_positions} positions, and sequences have up to {longest}; "
            "lower --max-total-tokens"
        )


def drafts(
    draft: Path,
    served: ModelConfig,
    folder: Path,
    dtype: Any,
    device: Any,
    question: Question,
    report: Report,
) -> Drafting | None:
    """Whether the model in `draft` can make drafts for the one that is served, and what it takes."""
    try:
        if question.processes > 1:
            raise UnusableModel("it is for a model in one worker, not for shards or stages")
        config = check_folder(draft, question.trusted)
        shape = draft_model.refuse(config, served, folder, draft)
        quantizer: Quantizer | DeviceQuantizer | None = None
        if question.quantize not in ("", quantization.NONE):
            quantizer = native_choice.quantizer(
                shape, dtype, device, question.group(0), question.quantize, question.quantize_head
            )
        elif not question.quantize:
            quantizer = native_choice.published(config, shape, dtype, device, question.group(0))
        with Checkpoint(draft, dtype, question.trusted) as checkpoint:
            part = recipes.load_from(config, checkpoint, question.group(0), quantizer)
            weight_bytes = checkpoint.bytes_made
    except UnusableModel as error:
        report.problems.append(f"{FLAG}: {error}")
        return None
    rows, size = cache_format.held(cache_format.FORMATS[question.cache_dtype], part.cache_shape)
    layers = len(numbers_of(part.config.cached_layers(question.group(0))))
    found = Drafting(shape, weight_bytes, layers, rows * size * dtype.itemsize)
    report.draft_weight_bytes, report.draft_kv_bytes_per_token = weight_bytes, layers * found.row_bytes
    if question.longest is not None and question.longest > shape.most_positions:
        report.problems.append(found.too_short_for(question.longest))
    return found
