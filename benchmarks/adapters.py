"""What adapters cost: decode speed of the worker's engine with LoRA adapters that nobody uses, one that all rows use, and one for each row, beside the
same model without any, and beside peft on transformers, in one run.

    python benchmarks/adapters.py MODEL [--rank 16] [--adapters 8] [--batches 1,8,32] [--tokens 64] [--prefill 512]
        [--quantize int8] [--peft]

Adapters are random, in bf16, of all matrices of attention and feed-forward layers, as most are that are published. All are measured in turn, one
repetition after the other. Needs PYTHONPATH or an installed penstock, with --peft peft as well.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine_speed import Generate, by_transformers, measure, penstock
from penstock.adapters import Adapter, read
from penstock.models.adapting import adaptable


def write(folder: Path, model: Path, rank: int, seed: int) -> None:
    """A random adapter of everything that one may change."""
    config = json.loads((model / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    modules = adaptable(config, model)
    for module, (outputs, inputs) in modules.items():
        at = f"base_model.model.{module}"
        tensors[f"{at}.lora_A.weight"] = (
            torch.randn(rank, inputs, generator=generator) * inputs**-0.5
        ).bfloat16()
        tensors[f"{at}.lora_B.weight"] = (torch.randn(outputs, rank, generator=generator) * 0.05).bfloat16()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(said))


def with_peft(model: Path, adapter: Path) -> Generate:
    """`generate` of transformers with one adapter beside the weights, as peft loads it."""
    import peft
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    return by_transformers(peft.PeftModel.from_pretrained(plain, adapter))


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quantize", default="")
    parser.add_argument("--peft", action="store_true")
    arguments = parser.parse_args()
    longest = max(32 + arguments.tokens, arguments.prefill)
    with tempfile.TemporaryDirectory() as at:
        folders = [Path(at) / str(number) for number in range(arguments.adapters)]
        for number, folder in enumerate(folders):
            write(folder, arguments.model, arguments.rank, number)
        loaded: list[Adapter] = [read(folder.name, folder) for folder in folders]
        engine = {"quantize": arguments.quantize}
        count = arguments.adapters
        runs: dict[str, Generate] = {
            "without": penstock(arguments.model, torch.bfloat16, longest, **engine),
            "unused": penstock(
                arguments.model, torch.bfloat16, longest, lambda rows: [0] * rows, adapters=loaded, **engine
            ),
            "one": penstock(
                arguments.model, torch.bfloat16, longest, lambda rows: [1] * rows, adapters=loaded, **engine
            ),
            "each": penstock(
                arguments.model,
                torch.bfloat16,
                longest,
                lambda rows: [1 + row % count for row in range(rows)],
                adapters=loaded,
                **engine,
            ),
        }
        if arguments.peft:
            runs["peft"] = with_peft(arguments.model, folders[0])
        vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
        compare("prefill", prefills(runs, arguments.prefill, vocabulary, arguments.repetitions))
        for batch in map(int, arguments.batches.split(",")):
            rates: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(arguments.repetitions):
                for name, generate in runs.items():
                    rates[name] += measure(
                        generate, batch, 32, arguments.tokens, vocabulary, 1, time.perf_counter
                    )
            compare(f"batch {batch}", rates)


def prefills(
    runs: dict[str, Generate], tokens: int, vocabulary: int, repetitions: int
) -> dict[str, list[float]]:
    """Tokens per second of one prompt, until its first token."""
    rng = random.Random(0)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repetitions + 1):
        prompt = [rng.randrange(3, vocabulary) for _ in range(tokens)]
        for name, generate in runs.items():
            begin = time.perf_counter()
            generate([prompt], 1)
            if turn:
                rates[name].append(tokens / (time.perf_counter() - begin))
    return rates


def compare(what: str, rates: dict[str, list[float]]) -> None:
    """A line for each."""
    plain = statistics.median(rates["without"])
    for name, some in rates.items():
        median = statistics.median(some)
        print(
            f"{what:10} {name:8} {median:9.1f} tok/s  ({min(some):.1f} .. {max(some):.1f})  {median / plain:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
