"""Checkpoints whose experts are one tensor for each matrix: (X, 2 F, E), gate rows, then up rows; and (X, E, F). Who quantizes such a
model (llm-compressor, GPTQ, AWQ, ModelOpt) leaves each expert in tensors of its own, which are read as well.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import ExpertsConfig
from penstock.models.decoder import Experts
from penstock.models.decoder_loader import Loader
from penstock.parallel.group import ranges
from penstock_kernels.later import Tensor


class StackedExpertsLoader(Loader):
    """Reads these; the names of `ExpertKeys.up` and `down` are whole."""

    # Below which each expert has its own, with {} for its number, where that is not where the stacks are.
    each = ""

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """This rank's experts."""
        keys, width = self.keys.experts, self.config.width
        assert keys is not None
        of_each = apart(keys, self.each)
        if self.checkpoint.has(f"{at}{of_each.down.format(0)}.weight"):
            return self.experts_apart(at, choice, of_each)
        mine = self.group.share(choice.count)
        up_XGE = self.stack(at + keys.up, choice.count, 2 * choice.width, width, mine)
        down_XEF = self.stack(at + keys.down, choice.count, width, choice.width, mine)
        return self.mixture(at, choice, mine.start, up_XGE, None, down_XEF, None)

    def stack(self, name: str, count: int, outputs: int, inputs: int, mine: range) -> Tensor:
        """(X, O, I) of this rank's experts."""
        return self.checkpoint.tensor(name, (count, outputs, inputs), ranges([mine]))


class TransposedExpertsLoader(StackedExpertsLoader):
    """Reads them where they are stored as (X, in, out)."""

    def stack(self, name: str, count: int, outputs: int, inputs: int, mine: range) -> Tensor:
        """(X, O, I) of this rank's experts."""
        stored_XIO = self.checkpoint.tensor(name, (count, inputs, outputs), ranges([mine]))
        return stored_XIO.transpose(1, 2).contiguous()


def apart(keys: ExpertKeys, each: str = "") -> ExpertKeys:
    """What the tensors of each expert are called where those of all have these names."""
    at = each or keys.down.removesuffix("down_proj") + "{}."
    return replace(keys, gate=f"{at}gate_proj", up=f"{at}up_proj", down=f"{at}down_proj")
