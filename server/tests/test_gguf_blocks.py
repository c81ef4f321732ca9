"""Blocks of GGUF stand for what llama.cpp's own package says, to the last bit."""

import gguf
import numpy as np
import pytest

from penstock.gguf.blocks import BLOCKS
from penstock.gguf.container import PLAIN_BYTES, TYPES

# Where each type has numbers of fp16, which are to be finite here.
HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "MXFP4": (),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_numbers_are_those_of_llama_cpp(name: str) -> None:
    block, kind = BLOCKS[name], gguf.GGMLQuantizationType[name]
    assert gguf.GGML_QUANT_SIZES[kind] == (block.numbers, block.bytes)
    generator = np.random.default_rng(1)
    held = generator.integers(0, 256, (6, 5 * block.bytes), dtype=np.uint8)
    blocks = held.reshape(-1, block.bytes)
    for at in HALVES[name]:
        scales = generator.normal(size=(len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = generator.integers(2, 250, len(blocks))
    made, wanted = block.decode(held), gguf.quants.dequantize(held, kind)
    assert made.dtype == np.float32 and made.shape == (6, 5 * block.numbers)
    assert np.array_equal(made, wanted)


def test_types_have_the_numbers_and_sizes_of_llama_cpp() -> None:
    for number, name in TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == name
        if name in PLAIN_BYTES:
            assert gguf.GGML_QUANT_SIZES[kind] == (1, PLAIN_BYTES[name])
    assert {kind.value for kind in gguf.GGMLQuantizationType} == TYPES.keys()
