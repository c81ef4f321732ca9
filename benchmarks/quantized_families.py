"""How often the likeliest token is that of bf16 with each form of `--quantize`, for every family that the CPU engine runs.

    python benchmarks/quantized_families.py [--families "LLaMA 3,Qwen 3"] [--quantize int8,int4] [--head] [--sequences 8]

Models are those of the parity tests: a family's shape, shrunk, with random weights. Their logits are near-ties, so the figures say how large an
error is beside another's, and that no family's is out of line; of a trained model `quantization.py` says what is lost. The same made-up sequences
for all. Prints a row for each family, then the mean, the median and the lowest of each form, and the bytes of all models' layers.
"""

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "integration-tests" / "parity"))

import ranks  # noqa: F401 - whose folder of tests has the driver
from families import FAMILIES, vocabulary_of
from models import make

from client import row
from driver import Driver
from penstock.models import recipes
from penstock.models.config import DecoderConfig
from penstock.models.native import NativeDecoder
from penstock.models.packing import FORMATS
from penstock.models.recorder import unknown_choice
from penstock_kernels.program import Kind

TOKENS = 96


def served() -> list[str]:
    """Families whose decoder the engine runs."""
    shapes = {name: recipes.read_config(config) for name, config in FAMILIES.items()}
    return [
        name
        for name, shape in shapes.items()
        if isinstance(shape, DecoderConfig) and unknown_choice(shape) is None
    ]


def likeliest(folder: Path, texts: list[list[int]], quantize: str, head: bool) -> tuple[torch.Tensor, int]:
    """Behind every token the likeliest one, and the bytes of the layers' matrices."""
    driver = Driver(
        folder,
        torch.bfloat16,
        max_slots=4,
        max_step_tokens=TOKENS,
        max_sequence_tokens=TOKENS,
        blocks=60,
        quantize=quantize,
        quantize_head=head,
    )
    model = driver.engine.model
    assert isinstance(model, NativeDecoder), "the CPU engine runs it"
    found = []
    for ids in texts:
        driver.engine.clear()
        blocks = list(range(-(-TOKENS // 16)))
        asked = row(0, ids, 0, blocks, start={}, sample=False, targets=[1] * TOKENS)
        found.append(driver.all_logits([asked]).argmax(-1))
    matrices = (one for one in model.program.body if one.kind in (Kind.LINEAR, Kind.EXPERTS))
    return torch.cat(found), sum(one.weight.nbytes for one in matrices if one.weight is not None)


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", default="", help="all by default")
    parser.add_argument("--quantize", default=",".join(FORMATS))
    parser.add_argument("--head", action="store_true", help="of the head as well")
    parser.add_argument("--sequences", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    forms = arguments.quantize.split(",")
    names = [one for one in arguments.families.split(",") if one] or served()
    agreed: dict[str, dict[str, float]] = {form: {} for form in forms}
    held = dict.fromkeys(("", *forms), 0)
    print("| family |", " | ".join(forms), "|")
    print("|---" * (1 + len(forms)) + "|")
    for name in names:
        chance = random.Random(0)
        vocabulary = vocabulary_of(FAMILIES[name])
        texts = [[chance.randrange(3, vocabulary) for _ in range(TOKENS)] for _ in range(arguments.sequences)]
        with tempfile.TemporaryDirectory() as work:
            folder = make(Path(work), FAMILIES[name])
            exact, size = likeliest(folder, texts, "", False)
            held[""] += size
            for form in forms:
                found, size = likeliest(folder, texts, form, arguments.head)
                held[form] += size
                agreed[form][name] = float((found == exact).double().mean())
        print(f"| {name} |", " | ".join(f"{agreed[form][name]:.1%}" for form in forms), "|", flush=True)
    for form in forms:
        shares = agreed[form]
        worst = min(shares, key=shares.__getitem__)
        print(
            f"{form:13} mean {statistics.mean(shares.values()):.2%}, median {statistics.median(shares.values()):.2%},"
            f" lowest {shares[worst]:.1%} ({worst}); {held[form] / held['']:.3f} of the layers' bytes in bf16"
        )


if __name__ == "__main__":
    main()
