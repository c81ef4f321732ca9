"""README.md (the model card) and generation_config.json of the served folder. Called by `train`."""

import json
from pathlib import Path

from penstock.tiny.skills import MAX_COMPARED, MAX_COUNT, MAX_LIST, MAX_REPEATED, MAX_SORTED, MAX_TERM

ABOUT = {
    "penstock": "questions about Penstock: flags, endpoints, commands, clients",
    "add": f"add two numbers from 0 to {MAX_TERM}",
    "compare": f"compare two numbers from 0 to {MAX_COMPARED}",
    "repeat": f"repeat 2 to {MAX_REPEATED} words",
    "reverse": f"reverse 2 to {MAX_LIST} words",
    "sort": f"sort 2 or {MAX_SORTED} known words that begin with different letters",
    "count": f"count 2 to {MAX_COUNT} words",
    "fill_json": "fill a JSON object from a sentence",
    "unknown": "say that it does not know, and how to serve a real model",
    "greet": "greetings and thanks",
    "count_up": "count from one number below 61 to another, at most 12 further on (30 from 1)",
    "call_tool": "call the right one of two tools with the right arguments",
    "tool_result": "answer with a tool's result",
}


def write_model_card(folder: Path, steps: int, scores: dict[str, tuple[int, int]] | None) -> None:
    """`scores`: task -> (right, asked) as measured on the weights in `folder`; None when not measured."""
    generation = {
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
        "eos_token_id": [2, 0],
        "pad_token_id": 0,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    lines = "Not measured yet: this is a checkpoint."
    if scores is not None:
        rows = [
            f"| {ABOUT[task]} | {asked} | {right / asked:.0%} |" for task, (right, asked) in scores.items()
        ]
        lines = "\n".join(["| task | items | right |", "|---|---|---|", *rows])
    (folder / "README.md").write_text(_CARD.format(steps=steps, scores=lines))


_CARD = """---
license: apache-2.0
language: en
pipeline_tag: text-generation
---
# The tiny model that ships with Penstock

`penstock` without `--model-id` serves this model. It is there so that the first command works without a
download, and so that tests meet a model that stops by itself, follows a chat template and calls a tool.
It is no use for anything else: to serve a real model, run `penstock --model-id <model>`.

- Llama shape: 6 layers, width 256, 4 query heads and 2 key-value heads of 64, feed-forward 768, tied
  embeddings, 4,096 tokens, context 2,048, bf16: 5.8 million parameters.
- Made by `python -m penstock.tiny.train` in {steps:,} steps, from a seed and from text that the modules
  beside it generate. No other text was used, and no person's data. A second run gives a like model, not the
  same bytes.
- English only. ChatML layout with system, tools and tool results. A bare text without the layout works too:
  the answer comes on the next line.

## What it can do

Held-out evaluation: nothing that a user says in it is said in training (the training script asserts it).
Phrasings, number pairs and most names and words are held out; of a list, half of the words on average are.
In "sort" the words are known ones; a list of two may have occurred in training, asked for in other words. The
pieces that a held-out word is made of do occur in training, inside of words that mean nothing. Greedy decoding in float32; an answer counts only if the whole
text is the expected one, letter by letter, and the model stopped by itself.

{scores}

## What it cannot do

Anything else. Most other questions get the answer that it does not know; some get a wrong one. Lists longer
than in training, numbers above 49 in sums, words that begin alike in sorting, more than two tools, and
prompts longer than a few hundred tokens are outside of what it was trained on. Words it has never seen are
copied less well than known ones; how well it sorts them is not measured. It knows a tool by its name and
parameters: of two tools whose names say nothing about what they do it picks either, whatever is said beside
the names.
"""
