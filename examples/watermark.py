# pip install numpy

"""Whether texts bear the watermark of `"watermark": true`: their z-scores.

`python watermark.py FILE...` tells that of each file; without files, of a text that the server writes with a watermark, and of one
without. After Kirchenbauer et al., "A Watermark for Large Language Models", 2023.
"""

import itertools
import json
import math
import sys
import urllib.request
from pathlib import Path

import numpy as np

SERVER = "http://localhost:3000"
GAMMA = 0.5  # the server's --watermark-gamma
SURE = 4.0  # of 30,000 texts without a watermark one is above this


def mix(numbers):
    """A bijection of uint32 onto itself, as in Penstock's kernels/penstock_kernels/sampling.py."""
    numbers = numbers * np.uint32(0x85EBCA6B)
    return (numbers ^ (numbers >> np.uint32(13))) * np.uint32(0xC2B2AE35)


def green_tokens(previous, vocabulary, gamma=GAMMA):
    """Which tokens of the vocabulary are green behind the token `previous`: a share of gamma, the first in an order that it gives."""
    key = mix(mix(np.array([previous], np.uint32) ^ np.uint32(0x3C6EF372)))
    order = mix(mix(np.arange(vocabulary, dtype=np.uint32)) ^ key).view(np.int32)
    greens = max(int(gamma * vocabulary), 1)
    return order <= np.partition(order, greens - 1)[greens - 1]


def z_score(texts, vocabulary, gamma=GAMMA):
    """By how many standard deviations more tokens are green than by chance.

    texts: lists of token ids. Each pair of neighbours counts once: a repeated one says nothing new.
    """
    pairs = {pair for tokens in texts for pair in itertools.pairwise(tokens)}
    behind = {}
    for previous, token in pairs:
        behind.setdefault(previous, []).append(token)
    green = sum(
        int(green_tokens(previous, vocabulary, gamma)[tokens].sum()) for previous, tokens in behind.items()
    )
    return (green - gamma * len(pairs)) / math.sqrt(max(len(pairs), 1) * gamma * (1 - gamma))


def ask(path, body=None):
    request = urllib.request.Request(
        f"{SERVER}{path}", body and json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def generated(watermark):
    # The model that ships is sure of most tokens, and its texts are short: so that it has 200 choices, a high temperature and no end.
    options = {"max_tokens": 200, "ignore_eos": True, "temperature": 2, "seed": 1, "watermark": watermark}
    return ask("/v1/completions", {"prompt": "Once upon a time", **options})["choices"][0]["text"]


if __name__ == "__main__":
    vocabulary = ask("/info")["vocab_size"]
    texts = {name: Path(name).read_text() for name in sys.argv[1:]} or {
        "with a watermark": generated(True),
        "without": generated(False),
    }
    for name, text in texts.items():
        score = z_score([[token["id"] for token in ask("/tokenize", {"inputs": text})]], vocabulary)
        print(f"{name}: z = {score:.1f}{', marked' if score > SURE else ''}")
