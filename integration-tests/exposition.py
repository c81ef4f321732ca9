"""Reads Prometheus' text exposition format (version 0.0.4), and names the metrics the tests look at."""

from __future__ import annotations

import re
from dataclasses import dataclass

SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$"
)
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Exposition:
    samples: list[Sample]
    types: dict[str, str]

    def value(self, name: str, **labels: str) -> float:
        """The sum over all samples of `name` that carry `labels`; 0 when there is none yet."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and all(sample.labels.get(key) == wanted for key, wanted in labels.items())
        )

    def names(self) -> set[str]:
        return set(self.types)


def parse(text: str) -> Exposition:
    samples: list[Sample] = []
    types: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            assert name not in types, f"the type of {name} is given twice"
            types[name] = kind
        elif line and not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, f"not a sample: {line!r}"
            labels = dict(LABEL.findall(match["labels"] or ""))
            samples.append(Sample(match["name"], labels, float(match["value"])))
    return Exposition(samples, types)


# Names that Penstock adds to TGI's, as the tests use them.
KV_USED = "penstock_kv_blocks_used"
KV_CACHED = "penstock_kv_blocks_cached"
KV_FREE = "penstock_kv_blocks_free"
STEPS = "penstock_steps"
BATCH_TOKENS = "penstock_batch_tokens_sum"
PREEMPTIONS = "penstock_preemptions"
PREFIX_HITS = "penstock_prefix_hit_tokens"
RESTARTS = "penstock_worker_restarts"
ANSWERED = "tgi_request_success"
FAILED = "tgi_request_failure"
CANCELLED = "penstock_cancelled_requests"
WASTED = "penstock_tokens_after_disconnect"
LATE_MASKS = "penstock_late_masks"
PROMPT_TOKENS = "penstock_prompt_tokens"
GENERATED_TOKENS = "penstock_generated_tokens"
IN_FLIGHT = "penstock_requests_in_flight"
RUNNING = "tgi_batch_current_size"
QUEUED = "tgi_queue_size"
