"""Time and memory of loading a checkpoint, beside `transformers` `from_pretrained` of the same, in turn.

    python benchmarks/load.py FOLDER [--make] [--shards 2] [--rounds 5] [--stored bfloat16] [--dtype bfloat16]
        [--cold] [--no-peer]

--make writes a random checkpoint of TinyLlama-1.1B's shape into FOLDER (2.2 GB), and removes it at the end. Every
load is a process of its own, timed without the imports; then a sum over all weights touches each of them, for who
maps a file has read nothing yet. Memory is the peak over what the process had before (VmHWM). --cold drops the files from
the page cache before each load. For comparison, plain reading of the files by one thread is timed as well. Before each
load as much memory is taken and given back, so that none has to come from the host of a virtual machine.
"""

import argparse
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

MADV_POPULATE_WRITE = 23

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(folder: Path, shards: int, dtype: str) -> None:
    """Writes random weights, a file at a time."""
    import torch
    from safetensors.torch import save_file

    width, forward, layers = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["num_hidden_layers"]
    assert isinstance(width, int) and isinstance(forward, int) and isinstance(layers, int)
    rows = {"self_attn.q_proj": width, "self_attn.k_proj": 256, "self_attn.v_proj": 256}
    rows |= {"self_attn.o_proj": width, "mlp.gate_proj": forward, "mlp.up_proj": forward}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32000, width)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}{name}.weight": (count, width) for name, count in rows.items()}
        shapes[f"{at}mlp.down_proj.weight"] = (width, forward)
        shapes |= {f"{at}{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
    shapes |= {"model.norm.weight": (width,), "lm_head.weight": (32000, width)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": dtype}))
    names, where = list(shapes), {}
    generator = torch.Generator().manual_seed(0)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        save_file(
            {
                name: (torch.rand(shapes[name], generator=generator) * 0.04 - 0.02).to(getattr(torch, dtype))
                for name in mine
            },
            folder / file,
            metadata={"format": "pt"},
        )
        where |= dict.fromkeys(mine, file)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def memory(name: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def once(who: str, folder: Path, dtype_name: str) -> None:
    """One load in this process; prints seconds until loaded, until touched, and bytes at the peak."""
    import torch

    dtype = getattr(torch, dtype_name)
    torch.set_grad_enabled(False)
    if who == "penstock":
        from penstock.models import recipes
        from penstock.worker import keep_memory

        keep_memory()
        config = json.loads((folder / "config.json").read_text())
        recipes.read_config(config)  # imports the recipe

        def load() -> list[torch.Tensor]:
            return recipes.load(config, folder, dtype, torch.device("cpu")).weights()
    else:
        from transformers import AutoModelForCausalLM, LlamaForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        assert LlamaForCausalLM

        def load() -> list[torch.Tensor]:
            return list(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).parameters())

    touch(int(1.2 * sum(path.stat().st_size for path in folder.glob("*.safetensors"))))
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    began = time.perf_counter()
    weights = load()
    loaded = time.perf_counter()
    for tensor in weights:
        tensor.sum()
    touched = time.perf_counter()
    print(json.dumps([loaded - began, touched - began, memory("VmHWM") - before]))


def touch(size: int) -> None:
    """Takes so much memory, in pages of both sizes, and gives it back: a virtual machine whose host took its free memory away gets it again
    here, which took up to 3 s per GB where this was measured, and not while a peer is timed.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, size, flags=private) as small, mmap.mmap(-1, size, flags=private) as huge:
        huge.madvise(mmap.MADV_HUGEPAGE)
        small.madvise(MADV_POPULATE_WRITE)
        huge.madvise(MADV_POPULATE_WRITE)


def drop(folder: Path) -> None:
    """Takes the files out of the page cache."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(folder: Path) -> float:
    """Seconds that plain reading takes."""
    piece = bytearray(8 << 20)
    began = time.perf_counter()
    for path in folder.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(piece):
                pass
    return time.perf_counter() - began


def shown(values: list[float], unit: str) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} {unit} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stored", default="bfloat16")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    if arguments.once:
        once(arguments.once, folder, arguments.dtype)
        return
    if arguments.make:
        make(folder, arguments.shards, arguments.stored)
    whos = ["penstock"] if arguments.no_peer else ["penstock", "transformers"]
    times: dict[str, list[list[float]]] = {who: [] for who in whos}
    plain: list[float] = []
    try:
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        read(folder)
        for _ in range(arguments.rounds):
            if arguments.cold:
                drop(folder)
            plain.append(read(folder))
            for who in whos:
                if arguments.cold:
                    drop(folder)
                command = [sys.executable, __file__, str(folder), "--once", who, "--dtype", arguments.dtype]
                ended = subprocess.run(command, capture_output=True, text=True, check=True)
                times[who].append(json.loads(ended.stdout.splitlines()[-1]))
    finally:
        if arguments.make:
            shutil.rmtree(folder)
    print(
        f"{size / 1e9:.2f} GB {arguments.stored}, served as {arguments.dtype}, {'cold' if arguments.cold else 'warm'}"
    )
    print(f"plain reading: {shown(plain, 's')}, {size / 1e9 / statistics.median(plain):.2f} GB/s")
    for who, rounds in times.items():
        loaded, touched, peak = ([row[at] for row in rounds] for at in range(3))
        rate = size / 1e9 / statistics.median(touched)
        print(
            f"{who}: loaded {shown(loaded, 's')}, touched {shown(touched, 's')} ({rate:.2f} GB/s), "
            f"peak {shown([bytes_ / 1e9 for bytes_ in peak], 'GB')}"
        )


if __name__ == "__main__":
    main()
