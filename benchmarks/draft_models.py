"""What `--speculate-model` gains, and how often a coupled draft is right.

    .venv/bin/python benchmarks/draft_models.py [--rounds 5] [--tokens 192] [--speculate 4] [--dtype bfloat16] [--added 54] [--coupling]

Without --coupling: servers over HTTP, asked in turn, with and without a draft model. There is no second trained model with the shipped
model's tokenizer, so its own first layers draft for it: all six (the most that drafts can be right; nothing is saved by them), and
fewer. With --added the model that is served has so many layers more, which compute and add nothing: its texts are the shipped model's, and it
costs what a larger model does, so that what good drafts save is seen. With --coupling: no server. Along texts of the shipped model, how often a draft would be accepted whose model draws with the same
uniform number as the model does (what Penstock does), with the same Gumbel noise, and by rejection sampling, which is the
most that any lossless scheme can reach: the sum of min(p, q) over the vocabulary. Greedy texts need no coupling.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from running_server import Server, penstock, processor, spread
from speculation import KINDS, rate


def first_layers(shipped: Path, folder: Path, layers: int) -> Path:
    """The model without its last layers."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    for file in shipped.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    with safe_open(shipped / "model.safetensors", framework="pt") as weights:  # type: ignore[no-untyped-call]
        kept = {
            name: weights.get_tensor(name)
            for name in weights.keys()  # noqa: SIM118
            if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
        }
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def deeper(shipped: Path, folder: Path, added: int) -> Path:
    """The model with so many layers more, whose outputs are zero."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(shipped, folder)
    config = json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers + added}))
    weights = load_file(shipped / "model.safetensors")
    first = {name: tensor for name, tensor in weights.items() if name.startswith("model.layers.0.")}
    for name, tensor in first.items():
        ends = name.endswith(("o_proj.weight", "down_proj.weight"))
        for layer in range(layers, layers + added):
            copy = torch.zeros_like(tensor) if ends else tensor.clone()
            weights[name.replace("layers.0.", f"layers.{layer}.")] = copy
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def noisy(shipped: Path, folder: Path, noise: float) -> Path:
    """The model with noise on every matrix, in parts of its own deviation."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(shipped, folder)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(shipped / "model.safetensors")
    for name, tensor in weights.items():
        if tensor.ndim == 2:
            disturbance = torch.randn(tensor.shape, generator=generator) * tensor.float().std() * noise
            weights[name] = (tensor.float() + disturbance).to(tensor.dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def counted(server: Server) -> tuple[float, float]:
    """Drafts of the model so far, and those that were accepted."""
    metrics = server.metrics()
    return metrics.get("penstock_model_drafts", 0.0), metrics.get("penstock_accepted_model_drafts", 0.0)


def serve(arguments: argparse.Namespace, model: Path, drafts: dict[str, Path]) -> None:
    flags = ("--dtype", arguments.dtype, "--model-id", str(model))
    for name, folder in drafts.items():
        on_flags = (*flags, "--speculate", str(arguments.speculate), "--speculate-model", str(folder))
        with penstock(*flags) as off, penstock(*on_flags) as on:
            for kind in arguments.kinds:
                for batch in arguments.batches:
                    for server in (off, on):
                        rate(server, kind, batch, arguments.tokens)
                    before = counted(on)
                    pairs = []
                    for turn in range(arguments.rounds):
                        order = (off, on) if turn % 2 == 0 else (on, off)
                        found = {id(server): rate(server, kind, batch, arguments.tokens) for server in order}
                        pairs.append((found[id(off)], found[id(on)]))
                    drafted, accepted = (now - then for now, then in zip(counted(on), before, strict=True))
                    ratios = [with_drafts[0] / without[0] for without, with_drafts in pairs]
                    busy = [with_drafts[1] / without[1] for without, with_drafts in pairs]
                    print(
                        f"{name}, batch {batch:>2}, {kind:>18}: off {spread([a for (a, _), _ in pairs], ' tok/s')}, "
                        f"on {spread([b for _, (b, _) in pairs], ' tok/s')}; ratio {statistics.median(ratios):.2f} "
                        f"({min(ratios):.2f}-{max(ratios):.2f}), of tokens per processor time {statistics.median(busy):.2f}; "
                        f"{drafted:.0f} drafts, {accepted:.0f} accepted",
                        flush=True,
                    )


def coupled(p_TV: Any, q_TV: Any, draws: int) -> dict[str, Any]:
    """How often a draft from `q` is the token from `p`, at each of T positions, by the way in which the two are drawn.

    `uniform` is exact: the token is where the cumulated distribution passes one number, so two agree where the intervals of a token
    overlap. `gumbel` is counted over `draws` of noise.
    """
    import torch

    ends = [x.cumsum(-1) for x in (p_TV, q_TV)]
    begins = [end - x for end, x in zip(ends, (p_TV, q_TV), strict=True)]
    overlap = torch.minimum(*ends) - torch.maximum(*begins)
    agreed_T = torch.zeros(len(p_TV), dtype=torch.float64)
    for _ in range(draws):
        noise = -torch.empty_like(p_TV).exponential_().log()
        agreed_T += (p_TV.log() + noise).argmax(-1) == (q_TV.log() + noise).argmax(-1)
    return {
        "rejection": torch.minimum(p_TV, q_TV).sum(-1),
        "uniform": overlap.clamp(min=0).sum(-1),
        "gumbel": agreed_T / draws,
    }


def couple(shipped: Path, drafts: dict[str, Path], tokens: int, draws: int) -> None:
    """Both models along texts that the shipped model samples, with no truncation: logits in float32 over the temperature."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_file(str(shipped / "tokenizer.json"))
    target = AutoModelForCausalLM.from_pretrained(shipped, dtype=torch.float32)
    topics = ("rain", "a river", "two foxes", "numbers")
    for temperature in (0.5, 0.8, 1.0):
        torch.manual_seed(0)
        texts = []
        for topic in topics:
            prompt = f"<|im_start|>user\nTell me a story about {topic}.<|im_end|>\n<|im_start|>assistant\n"
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            given = target.generate(
                ids,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
            )
            texts.append((given, ids.shape[1]))
        for name, folder in drafts.items():
            draft = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            found: dict[str, list[Any]] = {}
            for given, begin in texts:
                with torch.no_grad():
                    p_TV, q_TV = (
                        (model(given).logits[0, begin - 1 : -1].double() / temperature).softmax(-1)
                        for model in (target, draft)
                    )
                for how, rates in coupled(p_TV, q_TV, draws).items():
                    found.setdefault(how, []).append(rates)
            told = ", ".join(f"{how} {float(torch.cat(rates).mean()):.3f}" for how, rates in found.items())
            positions = len(topics) * tokens
            print(f"temperature {temperature}, {name}: accepted of {positions} drafts by {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--speculate", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--kinds", nargs="+", default=["chat", "random"], choices=list(KINDS))
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 5])
    parser.add_argument("--added", type=int, default=0)
    parser.add_argument("--coupling", action="store_true")
    parser.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    print(
        f"{processor()}; {arguments.dtype}, --speculate {arguments.speculate}, {arguments.tokens} tokens each, {arguments.added} layers added"
    )
    from penstock.tiny import MODEL

    with tempfile.TemporaryDirectory() as into:
        drafts = {
            f"the first {layers} of 6 layers": first_layers(MODEL, Path(into) / f"{layers}", layers)
            for layers in arguments.layers
        }
        if arguments.coupling:
            for noise in (0.05, 0.1, 0.2):
                drafts[f"noise of {noise}"] = noisy(MODEL, Path(into) / f"noise-{noise}", noise)
            couple(MODEL, drafts, arguments.tokens, arguments.draws)
        else:
            served = deeper(MODEL, Path(into) / "deeper", arguments.added) if arguments.added else MODEL
            serve(arguments, served, drafts)


if __name__ == "__main__":
    main()
