"""How a model would be served: what the doctor is asked. Made of flags, by its command and by the download."""

from dataclasses import dataclass
from pathlib import Path

from penstock.parallel.group import Pipeline, TensorGroup

# What the server takes at once when its flags do not say otherwise.
SLOTS, STEP_TOKENS = 128, 2048


@dataclass(frozen=True)
class Question:
    """How the model would be served."""

    shards: int = 1
    dtype: str = "auto"
    device: str = "auto"
    memory_fraction: float = 0.9
    trusted: bool = False
    stages: int = 1
    implementation: str = "auto"
    longest: int | None = None  # tokens of a sequence (--max-total-tokens); None: as the model has it
    slots: int = SLOTS  # sequences of a step
    step_tokens: int | None = None  # tokens of a step (--max-batch-prefill-tokens); None: as is usual
    # The program whose router reads the model's texts; without it they are not looked into.
    launcher: Path | None = None
    quantize: str = ""
    quantize_head: bool = False
    cache_dtype: str = "auto"
    draft: Path | None = None  # the folder of a model that makes drafts
    adapters: tuple[str, ...] = ()  # NAME=FOLDER, or the name of one on the hub
    program: bool = False  # what the CPU engine would run is asked for
    deterministic: bool = False
    meets_elsewhere: bool = False  # its processes find each other at --master-addr

    @property
    def processes(self) -> int:
        """Each holds a shard of a stage."""
        return self.shards * self.stages

    def group(self, rank: int) -> TensorGroup:
        """Of the process with this rank."""
        if self.stages == 1:
            return TensorGroup(rank, self.shards, is_local=not self.meets_elsewhere)
        stage, shard = divmod(rank, self.shards)
        everyone = TensorGroup(rank, self.processes)
        return TensorGroup(shard, self.shards, pipeline=Pipeline(stage, self.stages, everyone))
