"""What the doctor found, as JSON for programs and as lines for people. docs/doctor.md explains every name."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.engine.cache_groups import CacheGroup
from penstock.loading.model_files import gigabytes

# What computes, by `Report.engine`.
CPU_ENGINE, TORCH = "cpu", "torch"
RUNS = {CPU_ENGINE: "CPU engine", TORCH: "torch"}


@dataclass
class Fit:
    """So many sequences of `context` tokens are in the cache at once."""

    context: int
    sequences: int


@dataclass
class Report:
    """What was found, None where it could not be; `docs/doctor.md` explains every name."""

    model: str = ""
    folder: str = ""
    commit: str | None = None
    architecture: str | None = None
    family: str | None = None
    recipe: str | None = None
    fallback: bool = False
    engine: str | None = None
    why_torch: str | None = None
    quantization: str | None = None
    parameters: int | None = None
    stored_dtypes: dict[str, int] = field(default_factory=dict)
    dtype: str | None = None
    device: str | None = None
    weight_files: list[str] = field(default_factory=list)
    pickled: bool = False
    weight_bytes: int | None = None
    num_shard: int = 1
    pipeline_parallel: int = 1
    weight_bytes_per_shard: list[int] = field(default_factory=list)
    kv_bytes_per_token: list[int] = field(default_factory=list)
    state_bytes: list[int] = field(default_factory=list)  # of a model with recurrent layers
    cache_groups: list[CacheGroup] = field(default_factory=list)  # of the first rank
    draft_model: str | None = None
    draft_weight_bytes: int | None = None
    draft_kv_bytes_per_token: int | None = None
    adapters: list[str] = field(default_factory=list)
    context: int | None = None
    longer_context: bool = False
    memory_bytes: int | None = None
    free_bytes: int | None = None
    cache_bytes_per_shard: int | None = None
    fits: list[Fit] = field(default_factory=list)
    tokenizer: str | None = None
    tokens: int | None = None
    chat_template: str | None = None
    eos_token_ids: list[int] = field(default_factory=list)
    program: list[str] = field(default_factory=list)  # one operation a line
    missing_files: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def would_serve(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems


def as_json(report: Report) -> dict[str, Any]:
    """The report's fields, and the verdict."""
    return {**dataclasses.asdict(report), "would_serve": report.would_serve}


def as_text(report: Report) -> str:
    """For people."""
    lines = [f"{name:<13} {value}" for name, value in facts(report)]
    if report.fits:
        lines.append(f"{'fits':<13} {'context':>9} {'sequences at once':>18}")
        lines += [f"{'':<13} {fit.context:>9} {fit.sequences:>18}" for fit in report.fits]
    for what, found in (
        ("missing", report.missing_files),
        ("warning", report.warnings),
        ("problem", report.problems),
    ):
        lines += [f"{what:<13} {line}" for line in found]
    if report.program:
        lines += ["program", *report.program]
    return "\n".join([*lines, "would be served" if report.would_serve else "would not be served"])


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """What is known, in the order in which it is read."""
    yield "model", report.model + (f" at {report.commit}" if report.commit else "")
    if report.architecture is not None:
        yield "architecture", report.architecture
    if report.family is not None or report.fallback:
        by = [f"recipe {report.recipe}"] if report.recipe else []
        by += ["no recipe, through transformers"] if report.fallback else []
        by += [RUNS[report.engine]] if report.engine else []
        why = f": {report.why_torch}" if report.why_torch else ""
        yield "family", f"{report.family or 'not known by a name'} ({', '.join(by)}{why})"
    if report.quantization is not None:
        yield "quantized", report.quantization
    if report.parameters is not None:
        yield "parameters", f"{report.parameters / 1e6:,.0f} million"
    if report.stored_dtypes:
        yield "stored as", ", ".join(f"{name} ({gigabytes(n)})" for name, n in report.stored_dtypes.items())
    if report.dtype is not None:
        yield "served as", f"{report.dtype} on {report.device}"
    if report.weight_bytes is not None:
        files = "1 file" if len(report.weight_files) == 1 else f"{len(report.weight_files)} files"
        each = (
            f"; {shown(report.weight_bytes_per_shard)} on each of {divided(report)}"
            if divided(report)
            else ""
        )
        yield "weights", f"{gigabytes(report.weight_bytes)} in {files}{each}"
    if report.kv_bytes_per_token:
        each = f" on each of {divided(report)}" if divided(report) else ""
        yield "KV cache", f"{shown(report.kv_bytes_per_token, 'bytes')} for a token{each}"
        if len(report.cache_groups) > 1:
            yield "caches", "; ".join(group.told() for group in report.cache_groups)
    if report.state_bytes:
        each = f" on each of {divided(report)}" if divided(report) else ""
        yield "state", f"{shown(report.state_bytes, 'bytes')} for a sequence, however long{each}"
    if report.draft_model is not None:
        size, token_bytes = report.draft_weight_bytes, report.draft_kv_bytes_per_token
        takes = (
            "" if size is None else f": {gigabytes(size)}, and {token_bytes} bytes of KV cache for a token"
        )
        yield "draft model", report.draft_model + takes
    if report.adapters:
        yield "adapters", ", ".join(report.adapters)
    if report.context is not None:
        more = "; more with --max-total-tokens, at a loss of quality" if report.longer_context else ""
        yield "context", f"{report.context} tokens{more}"
    if report.memory_bytes is not None and report.free_bytes is not None:
        yield "memory", f"{gigabytes(report.memory_bytes)}, {gigabytes(report.free_bytes)} free"
    if report.tokenizer is not None:
        yield "tokenizer", report.tokenizer + (f", {report.tokens} tokens" if report.tokens else "")
    if report.chat_template is not None:
        yield "template", report.chat_template
    if report.eos_token_ids:
        yield "end tokens", ", ".join(map(str, report.eos_token_ids))


def divided(report: Report) -> str:
    """Over what the model is divided; nothing if it is not."""
    shards, stages = report.num_shard, report.pipeline_parallel
    if stages == 1:
        return f"{shards} shards" if shards > 1 else ""
    return f"{stages} stages" + (f" of {shards} shards" if shards > 1 else "")


def shown(sizes: list[int], unit: str = "") -> str:
    """One size, or from the smallest to the largest."""
    ends = (
        [f"{size} {unit}" if unit else gigabytes(size) for size in (min(sizes), max(sizes))]
        if sizes
        else ["?"]
    )
    return ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}"
