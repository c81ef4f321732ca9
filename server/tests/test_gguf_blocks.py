"""Blocks of GGUF stand for what llama.cpp's own package says, to the last bit."""

import gguf
import numpy as np
import pytest
import torch

from penstock import quantization
from penstock.gguf.blocks import BLOCKS
from penstock.gguf.container import PLAIN_BYTES, TYPES
from penstock_kernels import tiles
from penstock_kernels.program import Format
from test_native import SETS

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


@pytest.mark.skipif(not SETS, reason="there is no CPU engine here")
@pytest.mark.parametrize("name", BLOCKS)
def test_what_has_4_bits_and_a_scale_for_32_numbers_is_found_again_in_bf16(name: str) -> None:
    generator = np.random.default_rng(2)
    block = BLOCKS[name]
    held = generator.integers(0, 256, (48, 4 * block.bytes), dtype=np.uint8)
    blocks = held.reshape(-1, block.bytes)
    for at in HALVES[name]:
        scales = generator.uniform(2e-5, 2e-4, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = generator.integers(110, 125, len(blocks))
    matrix_OI = torch.from_numpy(block.decode(held)).bfloat16()
    found = next(tiles.group_formats(matrix_OI, Format.GROUPS_32, SETS[-1]), None)
    expected = {
        "Q4_0": Format.GROUPS_32,
        "MXFP4": Format.FP4_32,
        "Q4_1": Format.OFFSET_32,
        "Q4_K": Format.OFFSET_32,
    }
    assert found == expected.get(name)
    assert (found is not None) == (name in quantization.GGUF_GROUPS)
    assert found is None or tiles.in_tiles(matrix_OI, found, SETS[-1]) is not None


def test_types_have_the_numbers_and_sizes_of_llama_cpp() -> None:
    for number, name in TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == name
        if name in PLAIN_BYTES:
            assert gguf.GGML_QUANT_SIZES[kind] == (1, PLAIN_BYTES[name])
    assert {kind.value for kind in gguf.GGMLQuantizationType} == TYPES.keys()
