"""Matrices of whole numbers of 2, 4 or 8 bits, several to a word of 32, with scales (and zero points) for groups of inputs: GPTQ, AWQ and
compressed-tensors. What they stand for is (number - zero) * scale. Must not import torch.

GPTQ (Frantar et al., 2022; AutoGPTQ's layout): words (I / n, O) go down the inputs; of a word of zero points 1 is
taken for each of its numbers, but in `gptq_v2` (GPTQModel's convert_gptq_v2_to_v1_format), so that a 0 borrows from the number above it; `g_idx`
says the group of each input. AWQ (Lin et al., 2023; AutoAWQ's `gemm`): words (I, O / n) go across the outputs, in an order of their own.
AutoRound (intel/auto-round) packs as these do, which its configuration says: AUTO_ROUND.
compressed-tensors (`pack-quantized`: PackedQuantizationCompressor and pack_to_int32): words (O, I / n) of numbers that are moved up by half of their range, as zero
points are, whose words (O / n, G) go down the outputs; `g_idx` as GPTQ's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import UnusableModel
from penstock.loading.model_files import Stored
from penstock.quantization.codes import DIVISORS, FACTORS, OF_MODULE, OF_WEIGHT, groups_of, schemes

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]

BITS = (2, 4, 8)
# -1 as it is read.
UNORDERED = 0xFFFFFFFF
# How AutoRound's `packing_format`, or the `backend` of its first versions, without the kernels behind it, lays words out: as GPTQ's first version
# does (its qlinear_torch_zp.py and AutoGPTQ's own), as AWQ, or as GPTQ with zero points as they are (qlinear_torch.py, and qlinear_triton.py before
# it: dynamic_import_quant_linear_for_packing of export_to_autoround/export.py chooses). That of a file that says nothing is convert_hf_model's.
AUTO_ROUND = {
    "auto": "gptq",
    "gptq": "gptq",
    "auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round:auto_gptq": "gptq",
    "auto_round": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
    "awq": "awq",
    "auto_awq": "awq",
    "auto_round:awq": "awq",
    "auto_round:auto_awq": "awq",
}
KERNELS = (":exllamav2", ":triton", ":tritonv2", ":gemm")
# What compressed-tensors have of experts in one tensor.
OF_STACK = ("_packed", "_scale")
# What says of a matrix of codes or of words, by being there, how the rest is read: beside the weight, and of its module.
SAYS_HOW = ("_zero_point", "_g_idx"), (".qzeros", ".g_idx", ".pre_quant_scale")
# What else such a matrix may be made of.
PARTS = (
    ("_packed", "_blocks", "_scales", *OF_WEIGHT, *FACTORS, *DIVISORS),
    (".qweight", ".scales", *OF_MODULE),
)
# Which of eight outputs AWQ has in each place of a word.
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
# The numbers of each byte, the lowest bits first: words are stored with their lowest byte first.
OF_BYTES: dict[int, F32] = {
    bits: (np.arange(256)[:, None] >> np.arange(0, 8, bits) & (1 << bits) - 1).astype(np.float32)
    for bits in BITS
}
# Of 4 bits as one number of 8 bytes.
PAIRS = OF_BYTES[4].view(np.uint64).ravel()


@dataclass(frozen=True)
class Words:
    """A matrix (O, I), and the names of what it is made of."""

    kind: str
    shape: tuple[int, ...]
    bits: int
    codes: str
    scales: str
    zeros: str | None
    groups: str | None
    """The group of each input; None: as many inputs as it takes, one behind the other."""
    zero_offset: int
    """What is added to words of zero points as they are stored, without what goes beyond 32 bits."""
    uneven: str | None = None
    """What is wrong with groups of as many inputs each, where `groups` would turn out to say no order; None: nothing."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all tensors."""
        return tuple(name for name in (self.codes, self.scales, self.zeros, self.groups) if name is not None)

    def in_order_of(self, parts: Mapping[str, Any]) -> "Words":
        """This matrix as the numbers of `groups` have it, which are looked at here. Raises UnusableModel.

        compressed-tensors take any -1 among them for no order at all (`is_column_order` of their forward.py).
        """
        if self.groups is None:
            return self
        group_I, is_compressed = parts[self.groups], self.kind == "compressed"
        if is_compressed and (group_I == UNORDERED).any():
            if self.uneven is not None:
                raise UnusableModel(f"{self.groups} says no order, and {self.uneven}")
            return replace(self, groups=None)
        count, last = parts[self.scales].shape[1 if is_compressed else 0], int(group_I.max(initial=0))
        if last >= count:
            raise UnusableModel(f"{self.groups} names group {last}, and {self.scales} has {count}")
        return self

    @property
    def holds_rows(self) -> bool:
        """Whether the words of some rows are beside each other in the file."""
        return self.kind == "compressed"

    def decoded(self, parts: Mapping[str, Any], rows: slice, columns: slice) -> F32:
        """What these rows and columns stand for: (R, C) in fp32. `parts`: the tensors, words as uint32 and scales as fp32."""
        words, scales = parts[self.codes], parts[self.scales]
        # Of words that hold several outputs or inputs, those of these and some beside them.
        across, taken = _words_of(rows, self.bits)
        along, kept = _words_of(columns, self.bits)
        places = AWQ_PLACES if self.kind == "awq" else None
        zeros_RG: F32 | np.float32 = np.float32(1 << (self.bits - 1))
        if self.zeros is not None:
            zeros = parts[self.zeros].T if self.kind == "compressed" else parts[self.zeros]
            zeros = zeros[:, across] + np.uint32(self.zero_offset)
            zeros_RG = unpacked(zeros, self.bits, places)[:, taken].T
        if self.kind == "compressed":
            numbers, scales = unpacked(words[rows, along], self.bits)[:, kept], scales.T
        elif self.kind == "awq":
            numbers = unpacked(words[columns, across], self.bits, places)[:, taken].T
        else:
            numbers = unpacked(words[along, rows].T, self.bits)[:, kept]
        scales_RG, size = scales[:, rows].T, self.shape[-1] // len(scales)
        group_I: Any = None
        if self.groups is not None:
            group_I = parts[self.groups][columns].astype(np.int64)
        elif columns.start % size or columns.stop % size:
            group_I = np.arange(columns.start, columns.stop) // size
        else:
            groups = slice(columns.start // size, columns.stop // size)
            scales_RG = scales_RG[:, groups]
            zeros_RG = zeros_RG[:, groups] if isinstance(zeros_RG, np.ndarray) else zeros_RG
        return scaled(np.ascontiguousarray(numbers), zeros_RG, scales_RG, group_I)


def _words_of(some: slice, bits: int) -> tuple[slice, slice]:
    """Which words hold these outputs or inputs, and which of their numbers those are."""
    per_word = 32 // bits
    begin = some.start // per_word
    numbers = slice(some.start - begin * per_word, some.stop - begin * per_word)
    return slice(begin, -(-some.stop // per_word)), numbers


def scaled(numbers: F32, zeros_RG: F32 | np.float32, scales_RG: F32, group_I: Any) -> F32:
    """(number - zero) * scale, in their memory: (R, I). `group_I`: of each input; None: as many inputs each, one group behind the other."""
    if group_I is None:
        parts = numbers.reshape(len(numbers), scales_RG.shape[1], -1)
        parts -= zeros_RG[:, :, None] if isinstance(zeros_RG, np.ndarray) else zeros_RG
        parts *= scales_RG[:, :, None]
        return parts.reshape(len(numbers), -1)
    numbers -= zeros_RG[:, group_I] if isinstance(zeros_RG, np.ndarray) else zeros_RG
    numbers *= scales_RG[:, group_I]
    return numbers


def unpacked(words: U32, bits: int, places: tuple[int, ...] | None = None) -> F32:
    """The numbers of words (N, W) in fp32, the lowest bits first, or put into these places: (N, W 32 / bits)."""
    codes = np.ascontiguousarray(words).view(np.uint8)
    numbers: F32
    if bits == 4:  # many times as fast as below, since numpy need not look whether an index is in the table
        numbers = np.take(PAIRS, codes, mode="clip").view(np.float32).reshape(len(words), -1)
    else:
        numbers = OF_BYTES[bits][codes].reshape(len(words), -1)
    if places is not None:
        numbers = np.take(numbers.reshape(len(words), -1, len(places)), np.argsort(places), 2).reshape(
            len(words), -1
        )
    return numbers


def is_there(name: str, stored: Mapping[str, Any]) -> bool:
    """Whether a weight is such a matrix."""
    return f"{name}_packed" in stored or (name.endswith(".weight") and f"{name[:-7]}.qweight" in stored)


def whole_of(name: str) -> str:
    """What a tensor is asked for by, where it may be the words of a matrix."""
    return (
        f"{name.removesuffix('.qweight')}.weight"
        if name.endswith(".qweight")
        else name.removesuffix("_packed")
    )


def parts_that_say_how(name: str) -> list[str]:
    """The names of tensors without which a matrix of this name would be read as another one."""
    return _names(name, SAYS_HOW)


def parts_of(name: str) -> list[str]:
    """The names of all tensors that a matrix of this name may be made of, but for its own."""
    return _names(name, PARTS) + _names(name, SAYS_HOW)


def _names(name: str, endings: tuple[tuple[str, ...], tuple[str, ...]]) -> list[str]:
    of_weight, of_module = endings
    module = name.removesuffix(".weight")
    return [name + one for one in of_weight] + [module + one for one in of_module if module != name]


def may_be_idle(name: str, stored: Mapping[str, Any]) -> bool:
    """Whether it may be one of the biases that GPTQ's older writers gave to every matrix: zeros, where the model has none."""
    return name.endswith(".bias") and f"{name[:-5]}.qweight" in stored


def find(
    name: str, shape: tuple[int, ...], stored: Mapping[str, Stored], config: Mapping[str, Any]
) -> Words | str | None:
    """The matrix of this name; what is wrong with it, in words; None: it is none of these. Experts in one tensor (compressed-tensors': words
    (X, O, I / n)) are one matrix of all their rows.
    """
    packed = stored.get(f"{name}_packed")
    if not is_there(name, stored) or (packed is not None and packed.dtype == "U8"):  # of fp4: `codes`
        return None
    if len(shape) != 2 and (packed is None or len(shape) != 3):
        return None
    if len(shape) == 3:
        ours = {one: stored[one] for one in (name + ending for ending in OF_STACK) if one in stored}
        if any(one.shape[:2] != shape[:2] or len(one.shape) != 3 for one in ours.values()):
            held_as = ", ".join(f"{one} is {list(part.shape)}" for one, part in ours.items())
            return f"{held_as}: no stack of {list(shape)}"
        stored = {one: replace(held, shape=_flat(held.shape)) for one, held in ours.items()}
        shape = _flat(shape)
    rows, inputs = shape
    zeros: str | None
    groups: str | None
    if packed is not None:
        codes, scales, zeros, groups = (name + one for one in ("_packed", "_scale", "_zero_point", "_g_idx"))
        kind, given = "compressed", stored[codes].shape
        bits = 32 * given[-1] // inputs if len(given) == 2 and given[0] == rows else 0
    else:
        module = name.removesuffix("weight")
        codes, scales, zeros, groups = (module + one for one in ("qweight", "scales", "qzeros", "g_idx"))
        given, kind, bits = stored[codes].shape, "gptq", 0
        if len(given) == 2 and given[1] == rows:
            bits = 32 * given[0] // inputs
        elif len(given) == 2 and given[0] == inputs:
            kind, bits = "awq", 32 * given[1] // rows
    zeros, groups = (one if one in stored else None for one in (zeros, groups))
    if (
        bits not in BITS
        or (kind == "awq" and bits != 4)
        or (rows * inputs * bits != 32 * given[0] * given[1])
    ):
        return f"{codes} is {list(given)}, and {list(shape)} numbers of 2, 4 or 8 bits are not"
    held = stored.get(scales)
    count = 0 if held is None or len(held.shape) != 2 else held.shape[1 if kind == "compressed" else 0]
    if held is None or count < 1 or held.shape[0] * held.shape[1] != count * rows:
        return f"{scales} is {None if held is None else list(held.shape)}, which is no grid of {codes}"
    sizes, uneven = group_sizes(config), None
    if inputs % count:
        uneven = f"{scales} is {list(held.shape)}, which is no grid of {codes}"
    elif sizes and not any(_agree(count, size, inputs) for size in sizes):
        said = " or ".join(str(size) for size in sorted(sizes))
        uneven = f"{scales} has {count} groups of {inputs} inputs, and config.json says group_size {said}"
    if groups is None and uneven is not None:
        return uneven
    wanted = (-(-rows * bits // 32), count) if kind == "compressed" else (count, rows * bits // 32)
    if zeros is not None and stored[zeros].shape != wanted:
        return f"{zeros} is {list(stored[zeros].shape)}, not {list(wanted)}"
    if groups is not None and stored[groups].shape != (inputs,):
        return f"{groups} is {list(stored[groups].shape)}, not {[inputs]}"
    names = [one for one in (codes, zeros, groups) if one is not None]
    wrong = [one for one in names if stored[one].dtype not in ("I32", "U32")]
    wrong += [scales] if held.dtype not in ("F16", "BF16", "F32") else []
    if wrong:
        return f"{wrong[0]} is of {stored[wrong[0]].dtype}"
    is_first_version = kind == "gptq" and not _zeros_are_as_stored(config)
    ones = 0xFFFFFFFF // ((1 << bits) - 1)  # of each number
    return Words(kind, shape, bits, codes, scales, zeros, groups, ones if is_first_version else 0, uneven)


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    """Of a stack as one matrix."""
    return shape[0] * shape[1], shape[2]


def group_sizes(config: Mapping[str, Any]) -> set[int]:
    """How many inputs beside each other have a scale, as config.json has it; -1: all. Empty where it says nothing for all matrices."""
    found: set[int] = set()
    for given in schemes(config):
        # GPTQModel's and AutoRound's: some matrices have another.
        if given.get("dynamic") or given.get("extra_config"):
            return set()
        for held in (given, *(group.get("weights") for group in groups_of(given))):
            if isinstance(held, dict):
                size = held.get("group_size", held.get("q_group_size"))
                if type(size) is int and (size > 0 or size == -1):
                    found.add(size)
                elif held is not given:  # one for each output
                    found.add(-1)
    return found


def _agree(count: int, size: int, inputs: int) -> bool:
    return count == 1 if size == -1 or size >= inputs else count * size == inputs


def layout_of_auto_round(given: Mapping[str, Any]) -> str | None:
    """What AUTO_ROUND has for it; None: it is another."""
    said = str(given.get("packing_format") or given.get("backend") or "auto").lower()
    kernel = next((one for one in KERNELS if said.endswith(one)), "")
    return AUTO_ROUND.get(said.removesuffix(kernel).replace("auto-round", "auto_round"))


def _zeros_are_as_stored(config: Mapping[str, Any]) -> bool:
    """Whether of words of GPTQ's zero points nothing was taken."""
    of_auto_round = (
        given
        for given in schemes(config)
        if str(given.get("quant_method")).lower().replace("_", "-").endswith("auto-round")
    )
    layout = next(map(layout_of_auto_round, of_auto_round), None)
    return (layout or format_of(config)) == "gptq_v2"


def format_of(config: Mapping[str, Any]) -> str:
    """`checkpoint_format` of GPTQ, which its own `quantize_config.json` may call `format`."""
    said = (given.get("checkpoint_format") or given.get("format") for given in schemes(config))
    return next((str(one) for one in said if one), "")
