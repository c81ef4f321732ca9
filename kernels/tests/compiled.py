"""Kernels compiled for a GPU that need not be here: whatever calls them is run with tensors on the CPU, and every launch becomes a
compilation, down to machine code, in place of a computation.

    python kernels/tests/compiled.py [ARCHITECTURE]      (90: H100, 80: A100, 89: RTX 40, 120: RTX 50)

Prints for each kernel how many registers and how much shared memory a program takes. Exits with 1 where one does not fit.
"""

import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
    torch.uint8: "u8",
}
# Of a block, on the architecture's GPUs.
SHARED_MEMORY = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 120: 99 << 10}


class Compilation:
    """What JITFunction.run is while it lasts: kernels are compiled, once for each set of constants."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture
        self.seen: dict[tuple[Any, ...], str] = {}
        self.too_large: list[str] = []

    def __enter__(self) -> "Compilation":
        self._run = JITFunction.run
        compilation = self

        def run(kernel: Any, *arguments: Any, **options: Any) -> None:
            compilation.compile(kernel, arguments, options)

        JITFunction.run = run
        return self

    def __exit__(self, *_: object) -> None:
        JITFunction.run = self._run

    def compile(self, kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """One launch."""
        given = dict(zip(kernel.arg_names, arguments, strict=False))
        given |= {name: value for name, value in options.items() if name in kernel.arg_names}
        constants = {
            kernel.params[i].name for i in range(len(kernel.params)) if kernel.params[i].is_constexpr
        }
        signature, constexprs, attributes = {}, {}, {}
        for at, name in enumerate(kernel.arg_names):
            value = given[name] if name in given else kernel.params[at].default
            if name in constants or value is None or (type(value) is int and value == 1):
                signature[name], constexprs[name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = "*" + TYPES[value.dtype]
                attributes[(at,)] = [["tt.divisibility", 16]]
            elif isinstance(value, bool):
                signature[name] = "i1"
            elif isinstance(value, int):
                signature[name] = "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
                if value % 16 == 0:
                    attributes[(at,)] = [["tt.divisibility", 16]]
            else:
                signature[name] = "fp32"
        tuned = {
            name: options[name] for name in ("num_warps", "num_stages", "enable_fp_fusion") if name in options
        }
        key = (kernel.fn.__name__, *signature.items(), *constexprs.items(), *tuned.items())
        if key in self.seen:
            return
        source = ASTSource(kernel, signature, constexprs, attributes)
        made = triton.compile(source, target=GPUTarget("cuda", self.architecture, 32), options=tuned)
        shared = made.metadata.shared
        wanted = {n: v for n, v in constexprs.items() if isinstance(v, int) and v > 1 and n.isupper()}
        line = f"{kernel.fn.__name__} {wanted} {tuned}: shared memory {shared >> 10} KiB, {_registers(made)}"
        self.seen[key] = line
        if shared > SHARED_MEMORY[self.architecture]:
            self.too_large.append(line)


def _registers(made: Any) -> str:
    """What ptxas or cuobjdump say of a kernel, where one is here."""
    from triton.backends.nvidia.compiler import get_ptxas

    tool = Path(get_ptxas(made.metadata.target.arch).path).with_name("cuobjdump")
    if not tool.exists():
        return "registers unknown"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+).*LOCAL:(\d+)", said.stdout)
    return "registers unknown" if found is None else f"{found[1]} registers, {found[2]} B of stack"


def attention() -> None:
    """Shapes of published models."""
    from penstock_kernels.gpu.attention import attend
    from penstock_kernels.gpu.pieces import Pieces
    from penstock_kernels.score_modifiers import ScoreModifiers

    for dtype, heads, kv_heads, size, latent in (
        (torch.bfloat16, 32, 8, 128, 0),
        (torch.bfloat16, 32, 8, 64, 0),
        (torch.bfloat16, 8, 4, 256, 0),
        (torch.bfloat16, 32, 32, 96, 0),
        (torch.bfloat16, 16, 1, 576, 512),
        (torch.bfloat16, 128, 1, 576, 512),
        (torch.float32, 32, 8, 128, 0),
        (torch.float32, 32, 8, 64, 0),
        (torch.float32, 8, 4, 256, 0),
        (torch.float32, 16, 1, 576, 512),
    ):
        columns = torch.zeros((5, 2), dtype=torch.int32)
        for window, modifiers in (
            (0, ScoreModifiers(latent=latent)),
            (128, ScoreModifiers(50.0, sinks_H=torch.zeros(heads), latent=latent)),
        ):
            pieces = Pieces(
                torch.zeros((64, 64), dtype=torch.int32),
                16,
                columns,
                1,
                100,
                window,
            )
            q_THD = torch.zeros((101, heads, size), dtype=dtype)
            cache = torch.zeros((64, 1 if latent else 2 * kv_heads, size), dtype=dtype)
            out = torch.zeros((101, heads, latent or size), dtype=dtype)
            attend(q_THD, cache, pieces, 1.0, out, modifiers)


def between_products() -> None:
    """Rotation, gates, norms, cache writes and greedy sampling, at Llama 8B's sizes."""
    from penstock_kernels.gpu import elementwise, sampling

    for dtype in (torch.bfloat16, torch.float32):
        heads_THD = torch.zeros((3, 48, 128), dtype=dtype)
        cos_T1D, cache_NJD = torch.zeros((3, 1, 128), dtype=dtype), torch.zeros((64, 16, 128), dtype=dtype)
        slots_T = torch.zeros(3, dtype=torch.int64)
        elementwise.rope(heads_THD[:, :40], cos_T1D, cos_T1D)
        elementwise.rope_and_write(heads_THD, 32, cos_T1D, cos_T1D, cache_NJD, slots_T)
        elementwise.write_kv(heads_THD[:, 32:], cache_NJD, slots_T)
        x_TE, weight_E = torch.zeros((3, 4096), dtype=dtype), torch.zeros(4096, dtype=dtype)
        elementwise.rms_norm(x_TE, weight_E, 1e-5)
        elementwise.rms_norm_in_place(heads_THD[:, :32], weight_E[:128], 1e-5)
        elementwise.add_rms_norm(x_TE, x_TE.clone(), weight_E, 1e-5)
        for kind in ("silu", "gelu", "gelu_tanh", "relu2"):
            elementwise.gated(torch.zeros((3, 28672), dtype=dtype), kind)
        elementwise.gated_clamped(torch.zeros((3, 5760), dtype=dtype), 7.0, 1.702)
    sampling.greedy(torch.zeros((3, 128256)))


def drawing() -> None:
    """Truncation and a draw, of one row and of many."""
    from penstock_kernels.gpu import sampling

    for rows in (1, 128):
        logits_SV = torch.zeros((rows, 128256))
        top_k_S, share_S = torch.full((rows,), 50), torch.full((rows,), 0.5)
        sampling.keep_largest(logits_SV, top_k_S, share_S, share_S)
        sampling.keep_largest(logits_SV, top_k_S, None, None)
        sampling.choose(logits_SV, torch.zeros(rows, dtype=torch.float64))


def experts() -> None:
    """Qwen3-30B-A3B's and GPT-OSS' shapes, with fewer experts: a decode, many of them, a prompt, and a long one."""
    from penstock_kernels.gpu.experts import mix_experts

    for dtype in (torch.bfloat16, torch.float32):
        for width, inner, has_bias in ((2048, 768, False), (2880, 2880, True)):
            matrices: dict[str, Any] = {
                "up_XGE": torch.zeros((8, 2 * inner, width), dtype=dtype),
                "up_bias_XG": torch.zeros((8, 2 * inner), dtype=dtype) if has_bias else None,
                "down_XEF": torch.zeros((8, width, inner), dtype=dtype),
                "down_bias_XE": torch.zeros((8, width), dtype=dtype) if has_bias else None,
                "activation": partial(torch.narrow, dim=1, start=0, length=inner),
            }
            for tokens in (1, 30, 100, 300):
                chosen = torch.zeros((tokens, 4), dtype=torch.int64)
                x_TE = torch.zeros((tokens, width), dtype=dtype)
                mix_experts(x_TE, torch.zeros((tokens, 4)), chosen, 0, **matrices)


def row_products() -> None:
    """One row, of sizes that tiles divide and of others."""
    from penstock_kernels.gpu.matrix import linear

    for dtype in (torch.bfloat16, torch.float32):
        for outputs, inputs in ((6144, 4096), (5760, 2880)):
            x_1I, weight_OI = (
                torch.zeros((1, inputs), dtype=dtype),
                torch.zeros((outputs, inputs), dtype=dtype),
            )
            linear(x_1I, weight_OI, None)
            linear(x_1I, weight_OI, weight_OI[:, 0])


def delta_rules() -> None:
    """At Qwen3-Next's sizes, and with keys of other sizes; the convolution in front."""
    from penstock_kernels.gpu import convolution, delta_rule
    from penstock_kernels.recurrence import Run, StateMetadata, Turn

    runs = StateMetadata(torch.tensor([2, 3]), [Run(2, 30, 0, 1), Run(30, 40, 0)])
    for dtype in (torch.bfloat16, torch.float32):
        weight, state = torch.zeros((4, 8192)), torch.zeros((4, 3, 8192))
        convolution.causal_conv(torch.zeros((40, 8192), dtype=dtype), weight, None, state, runs)
    for heads, size, values in ((32, 128, 128), (8, 256, 256), (4, 64, 128)):
        x, v = torch.zeros((40, heads, size)), torch.zeros((40, heads, values))
        by_head, state = torch.zeros((40, heads)), torch.zeros((4, heads, size, values))
        places = torch.tensor([2, 3])
        for step in (
            runs,
            StateMetadata(places, [Run(2, 20, 0), Run(20, 40, 1)]),
            StateMetadata(torch.arange(40), []),
            StateMetadata(places, [], turns=[Turn(places, places)]),
        ):
            for decay in (by_head, x):
                delta_rule.delta_rule(x, x, v, decay, by_head, state, step)


def scans() -> None:
    """At Falcon Mamba's, RecurrentGemma's and RWKV 4's sizes, and with states of other sizes."""
    from penstock_kernels.gpu import scan
    from penstock_kernels.recurrence import Run, StateMetadata, Turn

    places = torch.tensor([2, 3])
    for step in (
        StateMetadata(places, [Run(2, 30, 0, 1), Run(30, 40, 0)]),
        StateMetadata(torch.arange(40), []),
        StateMetadata(places, [], turns=[Turn(places, places)]),
    ):
        for channels, numbers in ((8192, 16), (100, 5), (64, 256)):
            x, state = torch.zeros((40, channels)), torch.zeros((4, channels, numbers))
            # B and C are parts of something wider.
            b = torch.zeros((40, 2 * numbers + 256))[:, 256 : 256 + numbers]
            scan.selective_scan(x, x, state[0], b, b, state, step)
        for channels in (4096, 100):
            x, state = torch.zeros((40, channels)), torch.zeros((4, 3, channels))
            scan.linear_recurrence(x, x, state[:, 0], step)
            scan.weighted_key_values(x, x, x[0], x[0], state, step)


def main() -> None:
    """Compiles and prints."""
    with Compilation(int(sys.argv[1]) if len(sys.argv) > 1 else 90) as compilation:
        attention()
        between_products()
        row_products()
        drawing()
        experts()
        delta_rules()
        scans()
    print("\n".join(compilation.seen.values()))
    if compilation.too_large:
        sys.exit("too large for a block:\n" + "\n".join(compilation.too_large))


if __name__ == "__main__":
    main()
