"""What Prepare plans for a step on a GPU is what the step holds, term by term. There is no GPU here: shapes are those of models that are
served, on the device "meta", with kernels that are not launched, or a small model's steps in Triton's interpreter.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import checkpoints
import penstock_kernels as ops
from client import DEVICE, row
from held_memory import META, HeldMemory, Unlaunched, most_held
from penstock.doctor.memory import step_bytes
from penstock.doctor.question import Question
from penstock.doctor.report import Report
from penstock.engine import device_pages, preparation, step_memory
from penstock.engine.cache_size import GIB
from penstock.engine.choice_graphs import ChoiceGraphs
from penstock.engine.device_pages import DevicePages
from penstock.engine.plan import Starts, greedy_starts
from penstock.engine.sampling import Sampler
from penstock.engine.slot_sampling import Drafts, Masks
from penstock.engine.slots import Limits, SlotTable
from penstock.engine.step_memory import kernel_step_terms, torch_step_bytes, working_bytes
from penstock.engine.tables import BLOCK_SIZE, divide
from penstock.layers.rope_table import RopeTable
from penstock.models import recipes
from penstock.models.config import DecoderConfig
from penstock.models.decoder import linear_biases
from penstock.parallel.group import ALONE
from penstock_kernels import attention
from penstock_kernels import sampling as sampling_operations
from penstock_kernels.gpu import attention as gpu_attention
from penstock_kernels.gpu import experts as gpu_experts
from penstock_kernels.gpu import sampling as gpu_sampling
from penstock_kernels.later import F
from test_gpu_steps import as_on_gpu

__all__ = ["as_on_gpu"]

CUDA = torch.device("cuda")
BF16 = torch.bfloat16
SLOTS, TOKENS, DRAFTS = 128, 2048, 64

SHAPES: dict[str, dict[str, Any]] = {
    "Llama 3.1 8B": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
    },
    "Gemma 3 12B": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": 262208,
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "Qwen3 30B A3B": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
    },
    "DeepSeek V3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 163840,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
    },
}


def shape_of(name: str) -> DecoderConfig:
    """As its recipe reads it."""
    shape = recipes.read_config(SHAPES[name])
    assert isinstance(shape, DecoderConfig)
    return shape


def terms_of(name: str, longest: int = 32768, tokens: int = TOKENS) -> dict[str, int]:
    """On one GPU."""
    return kernel_step_terms(shape_of(name), BF16, CUDA, 1, SLOTS, tokens, longest, DRAFTS)


@pytest.fixture
def as_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices that are said to be GPUs."""
    monkeypatch.setattr(device_pages, "has_kernels", lambda device: device.type == "cuda")


@pytest.fixture
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is launched."""
    for module, names in (
        (gpu_attention, ("_attend", "_join")),
        (gpu_experts, ("_sort", "_product", "_sum")),
        (gpu_sampling, ("_look", "_join", "_fill", "_find", "_keep", "_weigh", "_pick")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Unlaunched())
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)


def test_nothing_is_planned_for_each_key_where_a_kernel_reads_pages(as_with_kernels: None) -> None:
    """Gigabytes of rows and masks of keys were planned beside the cache that only torch makes of them: contexts were cut, and valid starts
    refused.
    """
    short, long = terms_of("Gemma 3 12B", 4096), terms_of("Gemma 3 12B", 131072)
    by_length = {"page tables", "positions"}
    assert {name for name in long if long[name] != short[name]} == by_length
    assert sum(long[name] for name in by_length) < 0.4 * GIB
    shape = shape_of("Gemma 3 12B")

    def planned(exact: bool) -> int:
        return torch_step_bytes(shape, BF16, CUDA, exact, 1, SLOTS, TOKENS, 131072, DRAFTS)

    assert planned(exact=False) == sum(long.values()) < 4 * GIB
    # Torch gathers keys for what no kernel attends to.
    by_torch = working_bytes(shape, BF16, CUDA, SLOTS, TOKENS, 131072, DRAFTS)
    assert planned(exact=True) == by_torch + long["libraries"]
    assert planned(exact=True) > 8 * GIB


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("exact", [False, True])
def test_the_doctor_plans_what_the_worker_plans(name: str, exact: bool, as_with_kernels: None) -> None:
    shape = shape_of(name)
    question = Question(deterministic=exact)
    engine: Any = SimpleNamespace(
        model=SimpleNamespace(config=shape, weights=list),
        adapters=(),
        native=None,
        dtype=BF16,
        device=CUDA,
        deterministic=exact,
        group=ALONE,
    )
    for longest in (4096, 32768):
        told = step_bytes(shape, BF16, CUDA, longest, question, Report("", "", None))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(preparation, "packed_matrices", lambda model: [])
            assert preparation._step_bytes(engine, SLOTS, TOKENS, longest, DRAFTS) == told


def test_shards_plan_no_graphs(as_with_kernels: None) -> None:
    shape = shape_of("Llama 3.1 8B")
    alone, shared = (
        kernel_step_terms(shape, BF16, CUDA, ranks, SLOTS, TOKENS, 8192, DRAFTS) for ranks in (1, 2)
    )
    assert {name for name in alone if name not in shared} == {"graphs of decodes", "mixed graphs"}


def wishes(slots: int, **columns: Any) -> Starts:
    """START rows that ask for this."""
    starts = greedy_starts(slots)
    for name, value in columns.items():
        setattr(starts, name, np.full(slots, value, getattr(starts, name).dtype))
    return starts


EVERYTHING: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalties": 1.1, "frequency_penalties": 0.1, "presence_penalties": 0.1},
    "truncation": {"temperatures": 0.8, "top_ks": 40, "top_ps": 0.9, "min_ps": 0.05},
    "typical": {"temperatures": 0.8, "typical_ps": 0.9},
    "watermark": {"temperatures": 0.8, "watermark_deltas": 1.0, "watermark_greens": 1000},
    "alternatives": {"top_tokens": 5},
}


@pytest.mark.parametrize("asked", [*EVERYTHING, "all"])
@pytest.mark.parametrize("vocabulary", [32000, 262208])
def test_choosing_holds_no_more_than_planned_whatever_all_rows_ask_for(
    asked: str, vocabulary: int, unlaunched: None
) -> None:
    """With drafts, and a mask for each row."""
    columns: dict[str, Any] = {}
    for name in EVERYTHING if asked == "all" else (asked,):
        columns |= EVERYTHING[name]
    sampler = Sampler(SLOTS, vocabulary, META, DRAFTS)
    slots = np.arange(SLOTS)
    # What a slot's history has is not looked at on this device.
    sampler._set_counts = lambda *_: None  # type: ignore[method-assign]
    sampler.start(slots, wishes(SLOTS, **columns))
    config: Any = SimpleNamespace(vocab_size=vocabulary)
    terms = step_memory._sampling_terms(config, 2, META, SLOTS, DRAFTS)
    rows = SLOTS + DRAFTS
    logits_SV = torch.empty((rows, vocabulary), device=META)
    previous_S = torch.empty(rows, dtype=torch.int64, device=META)
    counts_R = np.ones(SLOTS, np.int64)
    counts_R[:DRAFTS] = 2
    drafts = Drafts(counts_R, previous_S)
    slots_S = np.repeat(slots, counts_R)
    positions_S = np.full(rows, 5)
    words_MW = np.ones((rows, -(-vocabulary // 32)), np.int32)
    for masks in (None, Masks(np.arange(rows), words_MW)):
        held = most_held(sampler.sample, logits_SV, slots_S, positions_S, previous_S, masks, drafts)
        assert held <= terms["choice"], (held, terms)
    if asked == "all":
        assert held > terms["choice"] / 3
    told = most_held(sampler.tell, logits_SV[:64], np.zeros(64, np.int64), 5)
    assert told <= terms["choice"], (told, terms)
    counts = sampler._prompt_RV.nbytes + sampler._output_RV.nbytes
    assert counts == (terms["counts"] if asked in ("penalties", "all") else 0)
    assert sampler._logprobs_SV.nbytes == terms["log probabilities"]
    assert logits_SV.nbytes == terms["logits"]


def test_rows_that_are_chosen_apart_get_what_they_get_together(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, rows = 50, 12
    generator = torch.Generator().manual_seed(0)
    logits_SV = torch.randn((rows + 2, vocabulary), generator=generator)
    history = np.arange(6, dtype=np.uint32)
    asked: list[dict[str, Any]] = [
        {},
        {"temperatures": 0.9, "top_ks": 9, "seeds": 3},
        {"repetition_penalties": 1.5, "presence_penalties": 0.4, "top_tokens": 3},
        {"temperatures": 1.2, "typical_ps": 0.7, "top_tokens": 2},
    ]
    counts_R = np.ones(rows, np.int64)
    counts_R[[2, 6]] = 2  # a draft, whose second sample is in another part
    drafts_S = torch.randint(0, vocabulary, (rows + 2,), generator=generator)
    masks = np.full((4, 2), -1, np.int32)
    masks[:, 0] = 0x00FF00FF
    found = []
    for at_once in (1 << 21, 3 * vocabulary):
        monkeypatch.setitem(step_memory.CHOSEN_AT_ONCE, "cpu", at_once)
        sampler = Sampler(rows, vocabulary, torch.device("cpu"), 2)
        for slot in range(rows):
            starts = wishes(1, **asked[slot % len(asked)])
            if "repetition_penalties" in asked[slot % len(asked)]:
                starts.history_counts, starts.history_outputs = (np.array([n], np.uint32) for n in (6, 2))
                starts.history = history
            sampler.start(np.array([slot]), starts)
        slots_S = np.repeat(np.arange(rows), counts_R)
        sampled = sampler.sample(
            logits_SV.clone(),
            slots_S,
            np.arange(rows + 2),
            torch.zeros(rows + 2, dtype=torch.int64),
            Masks(np.array([0, 3, 5, 13]), masks),
            Drafts(counts_R, drafts_S),
        )
        assert sampled.top_tokens_SN is not None and sampled.verified is not None
        tops = (sampled.top_tokens_SN, sampled.top_logprobs_SN)
        of_drafts = (sampled.verified.accepted_R, sampler._output_RV)
        found.append((sampled.tokens_S, sampled.logprobs_S, *tops, *of_drafts))
    for whole, apart in zip(*found, strict=True):
        assert torch.equal(whole, apart)


def test_counts_of_penalties_take_a_row_for_each_slot_and_no_more() -> None:
    sampler = Sampler(11, 20, torch.device("cpu"))
    for slot in range(11):
        starts = wishes(1, presence_penalties=0.5)
        sampler.start(np.array([slot]), starts)
    assert len(sampler._output_RV) == 11 and len(set(sampler.count_rows.tolist())) == 11


@pytest.mark.parametrize("name", SHAPES)
def test_parts_of_split_keys_are_planned(name: str, unlaunched: None) -> None:
    shape = shape_of(name)
    heads, latent = shape.heads, shape.latents[0].rank if shape.latents else 0
    key_heads, size = shape.key_shape
    cache_NJD = torch.empty((64, key_heads if latent else 2 * key_heads, size), dtype=BF16, device=META)
    held = 0
    for decodes in (1, 2, 7, 8, 33, 64, 128, SLOTS + DRAFTS):
        columns = torch.empty((5, decodes), dtype=torch.int32, device=META)
        pieces = attention_pieces(columns, decodes)
        q_THD = torch.empty((decodes, heads, size), dtype=BF16, device=META)
        out_THD = torch.empty((decodes, heads, latent or size), dtype=BF16, device=META)
        modifiers = ops.ScoreModifiers(latent=latent)
        held = max(
            held,
            most_held(gpu_attention.attend, q_THD, cache_NJD, pieces, 1.0, out_THD, modifiers),
        )
    assert 0 < held <= terms_of(name)["split keys"] <= 4 * held


def attention_pieces(columns_5P: Tensor, decodes: int) -> Any:
    """As `Pieces`, of decodes alone."""
    from penstock_kernels.gpu.pieces import Pieces

    pages = torch.empty((SLOTS + 1, 64), dtype=torch.int32, device=columns_5P.device)
    return Pieces(pages, BLOCK_SIZE, columns_5P, decodes, 0)


@pytest.mark.parametrize("name", ["Qwen3 30B A3B", "DeepSeek V3"])
def test_what_experts_make_is_planned(name: str, unlaunched: None) -> None:
    shape = shape_of(name)
    layer = next(layer.experts for layer in shape.layers if layer.experts is not None)
    count, chosen = layer.count, layer.routing.per_token
    matrices = (
        torch.empty((count, 2 * layer.width, shape.width), dtype=BF16, device=META),
        None,
        torch.empty((count, shape.width, layer.width), dtype=BF16, device=META),
        None,
    )

    def activation(x: Tensor) -> Tensor:
        return ops.gated(x, ops.ACTIVATIONS["silu"])

    for tokens in (1, TOKENS, 8192):
        x_TE = torch.empty((tokens, shape.width), dtype=BF16, device=META)
        weights_TA = torch.empty((tokens, chosen), device=META)
        experts_TA = torch.empty((tokens, chosen), dtype=torch.int64, device=META)
        held = most_held(gpu_experts.mix_experts, x_TE, weights_TA, experts_TA, 0, *matrices, activation)
        planned = step_memory._experts_bytes(shape, 2, tokens)
        # Beside them the order and the table of blocks.
        assert held <= planned + (1 << 20), (tokens, held, planned)
        assert tokens == 1 or planned < 3 * held
    assert terms_of(name)["experts"] == step_memory._experts_bytes(shape, 2, TOKENS)


@pytest.mark.parametrize("name", SHAPES)
def test_page_tables_and_tables_of_positions_are_planned(name: str) -> None:
    shape, longest = shape_of(name), 32768
    tables = divide(shape.layer_windows, longest)
    limits = Limits(
        max_slots=SLOTS,
        max_step_tokens=TOKENS,
        max_sequence_tokens=longest,
        pages=64,
        block_size=BLOCK_SIZE,
        tables=tables,
        vocab_size=shape.vocab_size,
        has_encoder=False,
    )
    slots = SlotTable(limits)
    terms = terms_of(name, longest)
    assert DevicePages(slots, 65, torch.device("cpu")).pages_BSW.nbytes == terms["page tables"]
    ropes = [RopeTable(rope, longest, slots.width * BLOCK_SIZE, BF16, META) for rope in shape.ropes]
    held = sum(rope.cos_N1D.nbytes + rope.sin_N1D.nbytes for rope in ropes)
    assert held <= terms["positions"] <= 1.01 * held


def test_linear_biases_are_planned() -> None:
    config = {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "vocab_size": 250880,
        "hidden_size": 4096,
        "n_layer": 30,
        "n_head": 32,
    }
    shape = recipes.read_config(config)
    assert isinstance(shape, DecoderConfig)
    made = linear_biases(shape, range(32), 2048)
    assert kernel_step_terms(shape, BF16, CUDA, 1, 8, 64, 2048, 0)["positions"] == made.nbytes


@pytest.mark.parametrize("name", ["Llama 3.1 8B", "Gemma 3 12B"])
@pytest.mark.parametrize("fuses", [True, False])
def test_long_prompts_beside_the_kernel_are_planned(
    name: str, fuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch has a fused kernel, of which nothing is known here but its results, and where it has none: behind windows."""
    monkeypatch.setattr(attention, "_fuses", lambda *_: fuses)
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, *_, **__: torch.empty_like(q))
    shape = shape_of(name)
    for tokens in (TOKENS, 3072):
        planned = terms_of(name, tokens=tokens)
        for causal in (True, False):
            held = chunk_held(shape.heads, *shape.key_shape, tokens, BF16, causal=causal)
            rectangles = tokens * 4 * shape.heads * shape.head_dim * 2  # among activations
            assert held <= planned["long prompts"] + rectangles, (tokens, causal, held, planned)


def chunk_held(
    heads: int,
    kv_heads: int,
    size: int,
    queries: int,
    dtype: torch.dtype,
    causal: bool = True,
    cached: int = 0,
    exact: bool = False,
) -> int:
    """By `paged_attention` of one piece of a prompt."""
    keys = cached + queries
    group = ops.ChunkGroup(
        begin=0,
        end=queries,
        sequences=1,
        queries=queries,
        keys=keys,
        slot_mapping_SL=torch.empty(keys, dtype=torch.int64, device=META),
        mask_S1QL=None,
        causal=causal,
        spread_SQ=None,
        gather_T=None,
        make_mask=None
        if causal
        else lambda some, part: torch.empty((1, 1, part.stop - part.start, keys), dtype=dtype, device=META),
    )
    q_THD = torch.empty((queries, heads, size), dtype=dtype, device=META)
    cache_NJD = torch.empty((keys, 2 * kv_heads, size), dtype=dtype, device=META)
    out_THD = torch.empty_like(q_THD)
    metadata = ops.AttentionMetadata(exact, chunks=[group])
    return most_held(ops.paged_attention, q_THD, cache_NJD, metadata, 1.0, out_THD)


@pytest.mark.parametrize(("queries", "cached"), [(4096, 0), (2048, 6144)])
def test_prompts_write_no_more_scores_than_planned_where_torch_has_no_fused_kernel(
    queries: int, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --deterministic on a GPU sums are in fp64, which no fused kernel takes: all scores of a prompt were written at once, 12 GiB for
    4,096 tokens of Llama 8B's shape, which nobody had planned.
    """
    monkeypatch.setattr(attention, "_fuses", lambda *_: False)
    shape = shape_of("Llama 3.1 8B")
    longest = queries + cached
    for exact in (True, False):
        held = chunk_held(32, 8, 128, queries, BF16, causal=cached == 0, cached=cached, exact=exact)
        rectangles = queries * 4 * 8 * shape.heads * shape.head_dim
        planned = ops.workspace_bytes(CUDA, 32, 8, 128, longest, has_score_modifiers=False)
        assert held <= planned + rectangles, (held, planned)


def test_chunks_without_a_fused_kernel_are_attended_to_as_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of few queries; to the last bit in fp64."""
    generator = torch.Generator().manual_seed(0)
    queries, heads, kv_heads, size = 70, 6, 2, 16
    q_THD = torch.randn((queries, heads, size), generator=generator)
    cache_NJD = torch.randn((queries, 2 * kv_heads, size), generator=generator)
    group = ops.ChunkGroup(0, queries, 1, queries, queries, torch.arange(queries), None, True, None, None)
    metadata, found = ops.AttentionMetadata(exact=True, chunks=[group]), []
    for is_fused in (True, False):
        monkeypatch.setattr(attention, "_is_fused", lambda *_, is_fused=is_fused: is_fused)
        monkeypatch.setattr(attention, "SCORES_AT_ONCE", 10 * heads * queries)
        out_THD = torch.empty_like(q_THD)
        ops.paged_attention(q_THD, cache_NJD, metadata, 0.25, out_THD)
        found.append(out_THD)
    assert torch.equal(*found)


def test_what_graphs_of_choices_keep_is_planned(unlaunched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_operations, "usable", lambda tensor: True)
    for name in SHAPES:
        vocabulary = shape_of(name).vocab_size
        logits_SV = torch.empty((SLOTS + DRAFTS, vocabulary), device=META)
        choices = ChoiceGraphs(torch.empty(SLOTS + 1, dtype=torch.int64, device=META), logits_SV)
        slots_R = torch.empty(SLOTS, dtype=torch.int32, device=META)
        drawn, _ = choices.drawn(slots_R)
        held = most_held(drawn)
        head = SLOTS * vocabulary * 2
        assert head + held <= terms_of(name)["graphs of decodes"]


def test_what_a_gpu_step_holds_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Any, unlaunched: None
) -> None:
    """Of a small model: a prompt that no graph has room for, and what graphs compute. Of rows in eights: to those products on a CPU are
    filled up.
    """
    if DEVICE != "cpu":
        pytest.skip("looks at what torch makes on the CPU")
    folder = checkpoints.write(tmp_path, checkpoints.config(num_hidden_layers=2))
    held: dict[str, list[tuple[int, int]]] = {}

    def told(compute: Any, device: torch.device, pool: object) -> Any:
        memory = HeldMemory()
        with memory:
            results = compute()
        kept = sum(result.nbytes for result in results)
        held.setdefault(compute.func.__name__, []).append((memory.most, kept))
        return compute, results

    options: dict[str, Any] = {"max_slots": 8, "max_step_tokens": 512, "max_sequence_tokens": 640}
    driver = as_on_gpu(folder, capture=told, blocks=64, max_step_drafts=8, **options)
    engine = driver.engine
    terms = kernel_step_terms(engine.model.config, torch.float32, CUDA, 1, 8, 512, 640, 8)
    for name, term in (("_compute_decodes", "graphs of decodes"), ("_compute_mixed", "mixed graphs")):
        most, kept = max(one for one, _ in held[name]), sum(one for _, one in held[name])
        assert most + kept <= terms[term], (name, most, kept, terms)
    step: Any = None
    make = engine.step_maker.make

    def keep(*given: Any) -> Any:
        nonlocal step
        made = make(*given)
        step = made[1]
        return made

    monkeypatch.setattr(engine.step_maker, "make", keep)
    driver.step([row(0, [5] * 512, 0, list(range(32)), start={})])
    with engine.arrays.computing():
        held_here = most_held(engine.model.forward, step, engine.layer_caches)
    assert terms["activations"] / 6 < held_here <= terms["activations"] + terms["split keys"]
