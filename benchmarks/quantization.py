"""What `--quantize` and `--kv-cache-dtype` do to a model's predictions, beside the same model in bf16 in the same run.

    python benchmarks/quantization.py [MODEL] [--quantize int8,int4] [--head] [--kv-cache-dtype int8] [--sequences 64] [--answers]

Without MODEL, the model that ships, on the answers of its held-out questions (`penstock.tiny`): perplexity, the share of answers
that are right to the last token, and how often the likeliest token is that of bf16. With MODEL, how often that is on made-up
tokens: what random weights say has no perplexity worth telling. `--answers`: MODEL was made of the one that ships, such as the folder that a GGUF file
of it became (`python -m penstock.gguf.unpack`), and `--quantize published` serves it as that. Prints one line for each format.
"""

import argparse
import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from penstock import quantization, tiny
from penstock.engine.engine import Engine
from penstock.engine.plan import NO_TARGET, PROMPT_LOGPROBS, START, Plan, greedy_starts
from penstock.engine.preparation import prepare
from penstock.models import packing
from penstock.proto import penstock_pb2 as pb

LONGEST = 1024
Texts = list[tuple[list[int], int]]  # ids, and where the answer begins


def answers(folder: Path, per_task: int) -> Texts:
    """The held-out questions of the model that ships, with their answers."""
    from tokenizers import Tokenizer

    from penstock.tiny.corpus import evaluation_items
    from penstock.tiny.template import IM_END, render

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = []
    for item in evaluation_items(per_task):
        prompt = render(item.messages, item.tools, True)
        ids, before = (
            tokenizer.encode(text, add_special_tokens=False).ids
            for text in (prompt + item.answer + IM_END, prompt)
        )
        if len(ids) <= LONGEST:
            found.append((ids, len(before)))
    return found


def made_up(vocabulary: int, sequences: int) -> Texts:
    """Tokens in any order."""
    rng = random.Random(0)
    return [([rng.randrange(3, vocabulary) for _ in range(256)], 1) for _ in range(sequences)]


def predictions(
    folder: Path, texts: Texts, quantize: str, head: bool, cache: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], list[bool], int]:
    """Of every token of the answers its log probability and the likeliest token there; of every answer, whether they are
    all the same; and the bytes of the weights."""
    config = json.loads((folder / "config.json").read_text())
    engine = Engine(
        config,
        folder,
        torch.bfloat16,
        torch.device("cpu"),
        quantize=quantize,
        quantize_head=head,
        cache_dtype=cache,
    )
    assert engine.native is not None, "the CPU engine runs it"
    prepare(
        engine,
        pb.PrepareRequest(
            max_slots=8, max_step_tokens=LONGEST, max_sequence_tokens=LONGEST, memory_fraction=0.5
        ),
    )
    tables, none = engine.tables(LONGEST).count, np.zeros(0, np.uint32)
    logprobs, likeliest, right = [], [], []
    for number, (ids, begin) in enumerate(texts, 1):
        engine.clear()
        targets = np.array([*ids[1:], NO_TARGET], np.uint32)
        blocks = -(-len(ids) // 16)
        result = engine.step(
            Plan(
                number,
                none,
                np.zeros(1, np.int64),
                np.array([START | PROMPT_LOGPROBS], np.uint8),
                np.zeros(1, np.int64),
                np.array([len(ids)]),
                np.array(ids, np.uint32),
                np.array([blocks]),
                np.arange(blocks * tables, dtype=np.uint32),
                targets,
                dataclasses.replace(greedy_starts(1), top_tokens=np.ones(1, np.uint32)),
            )
        )
        said = np.frombuffer(result.prompt_logprobs, np.float32)[begin - 1 : -1]
        first = np.frombuffer(result.prompt_top_tokens, np.uint32)[begin - 1 : -1].astype(np.int64)
        logprobs.append(said.astype(np.float64))
        likeliest.append(first)
        right.append(bool((first == np.array(ids[begin:])).all()))
    held = sum(tensor.nbytes for tensor in engine.native.weights())
    return np.concatenate(logprobs), np.concatenate(likeliest), right, held


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--quantize", default="int8,int4")
    parser.add_argument(
        "--answers", action="store_true", help="of the model that ships, which MODEL was made of"
    )
    parser.add_argument("--head", action="store_true", help="of the head as well")
    parser.add_argument("--kv-cache-dtype", default="", help="such as int8,fp8_e4m3fn: each beside bf16")
    parser.add_argument("--sequences", type=int, default=64, help="made up; of questions, a task's")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    folder: Path = arguments.model or tiny.MODEL
    config = json.loads((folder / "config.json").read_text())
    is_shipped = arguments.model is None or arguments.answers
    if is_shipped:
        texts = answers(tiny.MODEL, arguments.sequences)
    else:
        texts = made_up(config["vocab_size"], arguments.sequences)
    of_bf16: npt.NDArray[np.int64] | None = None
    in_bf16 = quantization.NONE if quantization.published(config) else ""
    formats = [(quantize, "auto") for quantize in (in_bf16, *filter(None, arguments.quantize.split(",")))]
    formats += [(in_bf16, cache) for cache in filter(None, arguments.kv_cache_dtype.split(","))]
    for quantize, cache in formats:
        served = "" if quantize == quantization.PUBLISHED else quantize
        logprobs, likeliest, right, held = predictions(
            folder, texts, served, arguments.head and quantize in packing.FORMATS, cache
        )
        of_bf16 = likeliest if of_bf16 is None else of_bf16
        agree = float((likeliest == of_bf16).mean())
        said = f"{quantize or 'bf16':9} {'' if cache == 'auto' else f'cache {cache} '}{held / 1e6:8.1f} MB  top-1 as in bf16 {agree:8.3%} of {len(likeliest)}"
        if is_shipped:
            said += f"  perplexity {np.exp(-logprobs.mean()):.4f}  right answers {np.mean(right):.2%} of {len(right)}"
        print(said, flush=True)


if __name__ == "__main__":
    main()
