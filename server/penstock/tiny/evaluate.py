"""The held-out evaluation: `python -m penstock.tiny.evaluate DIR`.

Greedy decoding; an answer counts when the whole text is the expected one and the model stopped by itself.
The decoding is the one of `transformers`, on the files that ship: neither the network of the training nor the
server has a part in the figures. Called by `train` and by the tests.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from penstock.tiny.corpus import TASKS, Item, evaluation_items
from penstock.tiny.template import END_OF_TEXT, IM_END, render

_BATCH = 64


def evaluate(folder: Path, items: list[Item]) -> dict[str, tuple[int, int]]:
    """task -> (right answers, items)."""
    return score(items, answer(folder, items))


def score(items: list[Item], answers: list[str | None]) -> dict[str, tuple[int, int]]:
    results: dict[str, list[bool]] = defaultdict(list)
    for item, text in zip(items, answers, strict=True):
        results[item.task].append(text == item.answer)
    return {task: (sum(right), len(right)) for task, right in results.items()}


@torch.inference_mode()
def answer(folder: Path, items: list[Item]) -> list[str | None]:
    """The greedy answer to every item in float32, or None where the model did not stop in time."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stops = [tokenizer.token_to_id(IM_END), tokenizer.token_to_id(END_OF_TEXT)]
    prompts = [
        tokenizer.encode(render(i.messages, i.tools, True), add_special_tokens=False).ids for i in items
    ]
    limits = [len(tokenizer.encode(item.answer).ids) + 8 for item in items]
    order = sorted(range(len(items)), key=lambda index: (limits[index] // 16, len(prompts[index])))
    answers: list[str | None] = [None] * len(items)
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        longest = max(len(prompts[index]) for index in chosen)
        ids = torch.zeros(len(chosen), longest, dtype=torch.int64)
        real = torch.zeros_like(ids)
        for row, index in enumerate(chosen):
            ids[row, longest - len(prompts[index]) :] = torch.tensor(prompts[index])
            real[row, longest - len(prompts[index]) :] = 1
        written = model.generate(
            input_ids=ids,
            attention_mask=real,
            do_sample=False,
            temperature=None,
            top_p=None,
            max_new_tokens=max(limits[index] for index in chosen),
            eos_token_id=stops,
            pad_token_id=stops[0],
        )[:, longest:].tolist()
        for index, row_ids in zip(chosen, written, strict=True):
            end = next((at for at, token in enumerate(row_ids) if token in stops), None)
            answers[index] = None if end is None else tokenizer.decode(row_ids[:end])
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-task", type=int, default=150)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print per task")
    parser.add_argument("--json", type=Path, help="file for the scores")
    arguments = parser.parse_args()
    items = [item for item in evaluation_items(arguments.per_task) if item.task in arguments.tasks]
    answers = answer(arguments.folder, items)
    wrong: dict[str, int] = defaultdict(int)
    for item, text in zip(items, answers, strict=True):
        if text != item.answer and wrong[item.task] < arguments.show:
            wrong[item.task] += 1
            print(
                f"{item.task}: {item.messages[-1]['content']!r}\n  wanted {item.answer!r}\n  wrote  {text!r}"
            )
    scores = score(items, answers)
    for task, (right, asked) in scores.items():
        print(f"{task:12} {right:4} of {asked:4}  {right / asked:.0%}")
    if arguments.json:
        arguments.json.write_text(json.dumps(scores) + "\n")


if __name__ == "__main__":
    main()
