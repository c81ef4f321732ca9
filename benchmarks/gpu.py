"""Speed of the worker's engine on a GPU, against what its memory and its matrix units can give, and beside `transformers`.

    python benchmarks/gpu.py [--shapes llama-8b,...] [--batches 1,8,32,128] [--prompts 512,4096] [--context 512]
        [--tokens 64] [--layers N] [--temperature 0.7 --top-p 0.9] [--peers penstock,transformers] [--quantize int4]
        [--profile] [--products]

Models have the shape that is published for their name (`--layers`: fewer of them), random weights in bf16, and are made on the spot
in `--folder`. No router and no gRPC: plans are made here, two steps are in flight as a worker has them, every result is
packed as for the wire. Decode speed is batch x tokens over the time of that many steps behind contexts of `--context`. The limits are
measured in the same run: a copy of 2 GiB (bytes read and written) and a product of 8,192 x 8,192 x 8,192 in bf16. The share of a decode
is (bytes of weights that a step reads and of keys and values) / bandwidth, of a prompt (2 x parameters x tokens) / arithmetic.

`--products` times one row times each matrix of the first shape's layers instead, by cuBLAS and by our kernel, and eight rows by cuBLAS.
"""

import argparse
import gc
import itertools
import json
import statistics
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from penstock.engine.engine import Engine
from penstock.engine.launched import Launched
from penstock.engine.plan import CONTINUE, NO_SNAPSHOT, SAMPLE, START, Plan, greedy_starts
from penstock.engine.preparation import kv_bytes_per_token, prepare
from penstock.proto import penstock_pb2 as pb

NONE = np.zeros(0, np.uint32)
FILES = 8

SHAPES: dict[str, dict[str, Any]] = {
    # As published: names of `transformers` configurations.
    "llama-8b": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
    },
    "llama-1b": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 262144,
        "rope_theta": 10000000.0,
        "rms_norm_eps": 1e-6,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
    },
    "falcon-mamba-7b": {
        "model_type": "falcon_mamba",
        "architectures": ["FalconMambaForCausalLM"],
        "vocab_size": 65024,
        "hidden_size": 4096,
        "expand": 2,
        "intermediate_size": 8192,
        "num_hidden_layers": 64,
        "state_size": 16,
        "time_step_rank": 256,
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
        "mixer_rms_eps": 1e-6,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
    },
}


def make(shape: dict[str, Any], folder: Path, device: str = "cuda", repeats: int = 0) -> None:
    """Writes a checkpoint with random weights, made on the GPU by transformers' class. `repeats`: its text begins again after so many
    tokens, since layers add next to nothing and the head has each token's successor.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        shape["model_type"], **{k: v for k, v in shape.items() if k != "model_type"}
    )
    with torch.device(device):
        classes: Any = AutoModelForCausalLM
        model = classes.from_config(config, dtype=torch.bfloat16)
    if repeats:
        _make_it_repeat(model, repeats)
    if "num_experts" in shape:  # which have other names in files
        model.save_pretrained(folder)
        return
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    # Several files, written side by side.
    tensors = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    if shape.get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    names = sorted(tensors)
    parts = [names[at::FILES] for at in range(FILES)]
    files = [f"model-{at + 1:05}-of-{FILES:05}.safetensors" for at in range(FILES)]

    def save(at: int) -> None:
        save_file({name: tensors[name] for name in parts[at]}, folder / files[at], {"format": "pt"})

    with ThreadPoolExecutor(FILES) as pool:
        list(pool.map(save, range(FILES)))
    of = {name: file for part, file in zip(parts, files, strict=True) for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": of}))
    del model
    gc.collect()
    torch.cuda.empty_cache()


def _make_it_repeat(model: Any, after: int) -> None:
    with torch.no_grad():
        for layer in model.model.layers:
            for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
                matrix.weight.mul_(1e-3)
        rows = torch.arange(model.config.vocab_size, device=model.device)
        before = torch.where(rows % after == 0, (rows + after - 1).clamp_(max=len(rows) - 1), rows - 1)
        model.lm_head.weight.copy_(model.model.embed_tokens.weight[before])


def limits() -> tuple[float, float]:
    """Bytes a second that a copy moves, read and written, and operations a second of a product in bf16."""
    source = torch.empty(1 << 30, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    copied = _seconds(lambda: target.copy_(source))
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    multiplied = _seconds(lambda: a @ b)
    return 2 * source.nbytes / copied, 2 * 8192**3 / multiplied


def _seconds(work: Any, times: int = 10) -> float:
    for _ in range(3):
        work()
    marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))) / 1e3


def products(shape: dict[str, Any]) -> None:
    """Prints bytes a second that products of a few rows read, in a graph over as many matrices as no cache holds."""
    from torch.nn.functional import linear as by_cublas

    from penstock_kernels.gpu.matrix import linear as ours

    size = shape["hidden_size"]
    head = shape.get("head_dim", size // shape["num_attention_heads"])
    queries, kept = head * shape["num_attention_heads"], 2 * head * shape["num_key_value_heads"]
    sizes = [(queries + kept, size), (size, queries), (2 * shape["intermediate_size"], size)]
    for outputs, inputs in [*sizes, (size, shape["intermediate_size"]), (shape["vocab_size"], size)]:
        count = max(2, 600_000_000 // (2 * outputs * inputs))
        weights = [torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        told = []
        for name, rows, linear in (("cuBLAS", 1, by_cublas), ("ours", 1, ours), ("cuBLAS", 8, by_cublas)):
            x_TI = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            linear(x_TI, weights[0], None)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for weight_OI in weights:
                    linear(x_TI, weight_OI, None)
            rate = sum(weight.nbytes for weight in weights) / _seconds(graph.replay)
            told.append(f"{name} {rows} {rate / 1e12:.2f} TB/s")
        print(f"{outputs:7} x {inputs:6}: {', '.join(told)}", flush=True)


class Runner:
    """An engine, and sequences that it decodes."""

    def __init__(self, folder: Path, slots: int, longest: int, step_tokens: int, quantize: str = "") -> None:
        config = json.loads((folder / "config.json").read_text())
        began = time.perf_counter()
        self.engine = Engine(config, folder, torch.bfloat16, torch.device("cuda"), quantize=quantize)
        loaded = time.perf_counter()
        prepared = prepare(
            self.engine,
            pb.PrepareRequest(
                max_slots=slots, max_step_tokens=step_tokens, max_sequence_tokens=longest, memory_fraction=0.9
            ),
        )
        ended = time.perf_counter()
        cost = prepared.cost
        print(
            f"load {loaded - began:.1f} s, prepare {ended - loaded:.1f} s, {prepared.pages} pages; cost model"
            f" {cost.fixed_ns / 1e6:.3f} ms + {cost.per_token_ns / 1e3:.2f} us/token"
            f" + {cost.per_context_token_ns / 1e3:.4f} us/context token",
            flush=True,
        )
        self.vocabulary = config["vocab_size"]
        self.tables = self.engine.tables(longest).count
        self.rng = np.random.default_rng(0)
        self.number = 0

    def begin(self, rows: int, tokens: int, room: int, temperature: float = 0.0, top_p: float = 1.0) -> None:
        """Starts `rows` sequences with prompts of `tokens`, in as many steps as they take; blocks for `room` more."""
        engine, most = self.engine, self.engine.limits.max_step_tokens
        engine.clear()
        self.rows, self.position = rows, tokens
        # What does not change between decodes is the same array in all their plans, as a worker reads them.
        self.slots, self.ones, self.none_new = (
            np.arange(rows),
            np.ones(rows, np.int64),
            np.zeros(rows, np.int64),
        )
        self.flags = np.full(rows, CONTINUE | SAMPLE, np.uint8)
        each = -(-(tokens + room + 1) // 16)
        at_once = max(most // tokens, 1)
        for first in range(0, rows, at_once):
            some = np.arange(first, min(first + at_once, rows))
            starts = replace(
                greedy_starts(len(some)),
                temperatures=np.full(len(some), temperature, np.float32),
                top_ps=np.full(len(some), top_p, np.float32),
                seeds=some.astype(np.uint64),
            )
            if engine.states is not None:
                starts = replace(starts, state_sources=np.full(len(some), NO_SNAPSHOT, np.uint32))
            prompts = self.rng.integers(3, self.vocabulary, len(some) * tokens).astype(np.uint32)
            pages = np.arange(
                some[0] * each * self.tables, (some[-1] + 1) * each * self.tables, dtype=np.uint32
            )
            self.number += 1
            engine.step(
                Plan(self.number, NONE, some, np.full(len(some), START | SAMPLE, np.uint8),
                     np.zeros(len(some), np.int64), np.full(len(some), tokens), prompts,
                     np.full(len(some), each), pages, NONE, starts)
            )  # fmt: skip

    def launch(self) -> Launched:
        """One step of decodes."""
        self.number += 1
        plan = Plan(
            self.number, NONE, self.slots, self.flags, np.full(self.rows, self.position), self.ones, NONE, self.none_new,
            NONE, NONE, None,
        )  # fmt: skip
        self.position += 1
        return self.engine.launch(plan)

    def decode(self, steps: int) -> float:
        """Seconds of so many steps, two in flight."""
        engine = self.engine
        torch.cuda.synchronize()
        began = time.perf_counter()
        flying: deque[Launched] = deque()
        for _ in range(steps):
            flying.append(self.launch())
            if len(flying) >= engine.depth:
                engine.finish(flying.popleft()).SerializeToString()
        while flying:
            engine.finish(flying.popleft()).SerializeToString()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def prompt(self, tokens: int) -> float:
        """Seconds until the first token of a prompt."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        self.begin(1, tokens, 1)
        torch.cuda.synchronize()
        return time.perf_counter() - began


def profile(work: Any, title: str) -> None:
    """Prints where the time of some work goes on the GPU, and on the processor."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    print(f"--- {title}")
    table = found.key_averages().table(sort_by="self_cuda_time_total", row_limit=22, max_name_column_width=70)
    for line in table.splitlines():
        cells = line.split("  ")
        print(" ".join(cell for cell in cells if cell)[:230])


def numbers(text: str) -> list[int]:
    """Of an argument."""
    return [int(number) for number in text.split(",") if number]


def used_parameters(shape: dict[str, Any], engine: Engine) -> int:
    """Parameters that a token is multiplied with: an embedding's rows not counted, and of experts those that it goes to."""
    used = engine.model.parameters
    if not shape.get("tie_word_embeddings"):
        used -= shape["vocab_size"] * shape["hidden_size"]
    experts = shape.get("num_experts")
    if experts:
        each = 3 * shape["hidden_size"] * shape["moe_intermediate_size"] * shape["num_hidden_layers"]
        used -= each * (experts - shape["num_experts_per_tok"])
    return used


def read_bytes(shape: dict[str, Any], engine: Engine, batch: int) -> int:
    """Bytes of weights that a decode of so many rows reads, at least: an embedding's rows not counted, and of experts those that so many
    rows are expected to go to.
    """
    total = sum(int(tensor.nbytes) for tensor in engine.model.weights())
    if not shape.get("tie_word_embeddings"):
        total -= 2 * shape["vocab_size"] * shape["hidden_size"]
    experts = shape.get("num_experts")
    if experts:
        each = 3 * 2 * shape["hidden_size"] * shape["moe_intermediate_size"] * shape["num_hidden_layers"]
        unused = (1 - shape["num_experts_per_tok"] / experts) ** batch
        total -= round(each * experts * unused)
    return total


def transformers_peer(folder: Path, batches: list[int], context: int, tokens: int, vocabulary: int) -> None:
    """Decode speed of `generate`."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda")

    def seconds(batch: int, new: int) -> float:
        ids = torch.randint(3, vocabulary, (batch, context), device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, eos_token_id=None,
                pad_token_id=0,
            )  # fmt: skip
        torch.cuda.synchronize()
        return time.perf_counter() - began

    for batch in batches:
        seconds(batch, 2)
        one, all_ = min(seconds(batch, 1) for _ in range(2)), seconds(batch, tokens)
        print(
            f"transformers decode {batch:4} rows {batch * (tokens - 1) / (all_ - one):9.1f} tok/s", flush=True
        )


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="llama-8b")
    parser.add_argument("--batches", type=numbers, default="1,8,32,128")
    parser.add_argument("--prompts", type=numbers, default="512,4096")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=0, help="0: all")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--peers", default="penstock")
    parser.add_argument(
        "--folder", type=Path, default=Path("/dev/shm/penstock-gpu"), help="of models, which stay there"
    )
    parser.add_argument("--make", action="store_true", help="make the models and nothing else")
    parser.add_argument("--quantize", default="", help="int8, int4, ...: as penstock's")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--products", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py: torch sees no GPU")
    bandwidth, arithmetic = (0.0, 0.0) if arguments.make else limits()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {bandwidth / 1e9:.0f} GB/s,"
        f" {arithmetic / 1e12:.0f} TFLOP/s",
        flush=True,
    )
    if arguments.products:
        products(SHAPES[arguments.shapes.split(",")[0]])
        return
    for name in arguments.shapes.split(","):
        shape = dict(SHAPES[name])
        if arguments.layers:
            shape["num_hidden_layers"] = arguments.layers
        folder = arguments.folder / name
        if not (folder / "config.json").exists():
            began = time.perf_counter()
            make(shape, folder)
            print(f"{name}: made in {time.perf_counter() - began:.1f} s", flush=True)
        if arguments.make:
            continue
        measure(name, shape, folder, arguments, bandwidth, arithmetic)
        gc.collect()
        torch.cuda.empty_cache()
        if "transformers" in arguments.peers:
            transformers_peer(
                folder, arguments.batches, arguments.context, arguments.tokens, shape["vocab_size"]
            )


def measure(
    name: str, shape: dict[str, Any], folder: Path, arguments: Any, bandwidth: float, arithmetic: float
) -> None:
    """Prints what one model's engine reaches."""
    batches, prompts = arguments.batches, arguments.prompts
    longest = max([arguments.context + 4 * arguments.tokens + 64, *prompts]) + 16
    runner = Runner(folder, max(batches), longest, 8192, arguments.quantize)
    engine = runner.engine
    for tokens in prompts:
        took = statistics.median([runner.prompt(tokens) for _ in range(5)][2:])
        share = 2 * used_parameters(shape, engine) * tokens / arithmetic / took
        print(
            f"{name} prompt {tokens:5}: {tokens / took:9.0f} tok/s, {1e3 * took:.2f} ms, {share:.0%}",
            flush=True,
        )
    drawn = (arguments.temperature, arguments.top_p)
    ways = [("", ()), *([(f" at temperature {drawn[0]:g}, top-p {drawn[1]:g}", drawn)] if drawn[0] else [])]
    for batch, (title, how) in itertools.product(batches, ways):
        runner.begin(batch, arguments.context, 4 * arguments.tokens + 16, *how)
        runner.decode(8)
        began = runner.position
        took = statistics.median(runner.decode(arguments.tokens) for _ in range(3)) / arguments.tokens
        cached = kv_bytes_per_token(engine) * batch * (began + runner.position) // 2
        share = (read_bytes(shape, engine, batch) + cached) / bandwidth / took
        print(
            f"{name} decode {batch:4} rows{title}: {batch / took:9.1f} tok/s, {1e3 * took:.3f} ms a step, {share:.0%}",
            flush=True,
        )
        if arguments.profile and batch in (batches[0], batches[-1]):
            profile(partial(runner.decode, 4), f"{name}, 4 steps of {batch}{title}")
    if arguments.profile and prompts:
        profile(partial(runner.prompt, prompts[-1]), f"{name}, prompt of {prompts[-1]}")


if __name__ == "__main__":
    main()
