"""The CPU engine: csrc/cpu by ctypes, which lets go of the interpreter's lock while a step runs.

`instruction_set` says which one to use, or why there is none; a `CpuProgram` runs a program's steps. Structures are those of
csrc/cpu/penstock_cpu.h, which says more. Must not import torch: what has to lie somewhere may be of torch or of numpy, and what comes
back is of numpy.
"""

import ctypes
import os
from ctypes import POINTER, Structure, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_kernels.draws import Draws, LogitsSummary, RowMasks
from penstock_kernels.program import PAGE_TOKENS, Array, CacheFormat, HostArray, Layout, Operation, Program

LIBRARY = Path(__file__).with_name("libpenstock_cpu.so")
ABI = 22

# Forces an instruction set; `none`: torch computes.
VARIABLE = "PENSTOCK_CPU_ISA"
KNOWN = ("amx", "avx512", "avx512vnni", "avx512bw", "avxvnni", "avx2", "i8mm", "neon", "generic")

I64 = npt.NDArray[np.int64]

NUMBERS = (
    *(
        "kind",
        "source",
        "second",
        "third",
        "target",
        "source_at",
        "inner_at",
        "outer_at",
        "target_at",
        "rows",
        "columns",
        "norm",
        "norm_over",
        "norm_rotated",
        "accumulate",
        "epilogue",
        "activation",
    ),
    *("layer", "heads", "kv_heads", "head_dim", "rope_dim", "window", "chunked", "offset", "format"),
    *(
        "experts",
        "per_token",
        "sigmoid",
        "normalize",
        "groups",
        "top_groups",
        "group_best",
        "slopes_rounded",
        "weighs_input",
    ),
    *(
        "value_dim",
        "rule",
        "channels",
        "learns",
        "values",
        "value_norm",
        "first_id",
        "first_expert",
        "own_experts",
        "rounds",
        "dilation",
        "sees",
    ),
)
FLOATS = (
    "eps",
    "scale",
    "softcap",
    "clip",
    "limit",
    "alpha",
    "lowest",
    "highest",
    "slopes_scale",
    "one_by_one",
    "value_eps",
    "value_scale",
)
TENSORS = (
    *("weight", "bias", "norm_weight", "second_weight", "cos", "sin", "positions", "scales", "sums"),
    *("sinks", "slopes", "second_bias"),
)
RANK_LOST, NO_GROUPS = -1, -2
NO_SAVES: I64 = np.zeros((0, 3), np.int64)
NO_MOVES: I64 = np.zeros((0, 3), np.int64)


class CBuffer(Structure):
    _fields_ = [("layout", c_int32), ("width", c_int32), ("rows", c_int32)]


class COperation(Structure):
    _fields_ = [
        *((name, c_int32) for name in NUMBERS),
        *((name, c_float) for name in FLOATS),
        *((name, c_void_p) for name in TENSORS),
    ]


class CStep(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("rows", "tokens")),
        *((name, c_void_p) for name in ("ids", "slots", "places", "first", "counts", "pages")),
        *((name, c_int64) for name in ("max_slots", "width")),
        ("saves", c_void_p),
        ("saved", c_int64),
        ("positions", c_void_p),
        ("moved", c_void_p),
        ("moves", c_int64),
        ("encoded", c_void_p),
        ("wanted", c_void_p),
    ]


class CDraws(Structure):
    _fields_ = [
        ("count", c_int64),
        *((name, c_void_p) for name in ("rows", "masks")),
        ("mask_words", c_int64),
        *(
            (name, c_void_p)
            for name in ("bias_tokens", "biases", "end_tokens", "before", "tokens", "possible")
        ),
    ]


class NoCpuEngine(Exception):
    """Why the engine cannot be used, in one line. `asked`: the environment asks for torch."""

    def __init__(self, why: str, asked: bool = False) -> None:
        super().__init__(why)
        self.asked = asked


class RankLost(Exception):
    """Another rank of the model has ended."""


class WrongInstructionSet(NoCpuEngine):
    """The environment names one that is unknown, or that this processor lacks."""


@cache
def library() -> ctypes.CDLL:
    """The library. Raises NoCpuEngine where it was not built, or by another version of this file."""
    if not LIBRARY.exists():
        raise NoCpuEngine(
            "the CPU engine was not built (`make install` builds it where there is a C++ compiler)"
        )
    try:
        found = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise NoCpuEngine(f"{LIBRARY.name} cannot be loaded: {error}") from error
    for name, result, arguments in (
        ("abi", c_int, []),
        ("error", c_char_p, []),
        ("instruction_sets", c_char_p, []),
        ("pack", c_int, [c_void_p, c_void_p, c_int64, c_int64]),
        (
            "quantize",
            c_int,
            [c_char_p, c_int32, c_int32, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p],
        ),
        (
            "create",
            c_void_p,
            [
                c_char_p,
                POINTER(CBuffer),
                c_int32,
                *(POINTER(COperation), c_int32) * 3,
                c_int32,
            ],
        ),
        ("destroy", None, [c_void_p]),
        ("workspace", c_int64, [c_void_p, c_int64, c_int64, c_int64]),
        ("reserve", c_int, [c_void_p, c_int64, c_int64, c_int64]),
        ("shared_bytes", c_int64, [c_void_p, c_int64, c_int64, c_int32]),
        (
            "share",
            c_int,
            [c_void_p, c_void_p, c_int64, c_int64, c_int32, c_int32, POINTER(c_int32), c_int64],
        ),
        ("tell", c_int, [c_void_p, c_void_p, c_int64]),
        ("set_cache", c_int, [c_void_p, c_int32, c_void_p, c_int64, c_int32, c_int32]),
        ("set_state", c_int, [c_void_p, c_int32, c_int32, c_void_p, c_int64]),
        ("set_adapters", None, [c_void_p, c_void_p]),
        ("set_threads", None, [c_void_p, c_int32]),
        ("step", c_int, [c_void_p, POINTER(CStep)]),
        ("read", c_int, [c_void_p, POINTER(CStep)]),
        ("move", c_int, [c_void_p, c_void_p, c_void_p, c_int64]),
        ("head", c_int, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64]),
        (
            "summarize",
            c_int,
            [c_void_p, c_void_p, *[c_int64] * 3, c_void_p, c_int64, *[c_void_p] * 4],
        ),
        (
            "decode",
            c_int,
            [c_void_p, POINTER(CStep), c_void_p, c_int64, c_int64, *[c_void_p] * 3, POINTER(CDraws)],
        ),
        (
            "choose",
            c_int,
            [c_void_p, c_void_p, *[c_int64] * 3, c_void_p, c_int64, *[c_void_p] * 4, POINTER(CDraws)],
        ),
        ("draw", c_int, [c_void_p, c_void_p, c_int64, c_int64, POINTER(CDraws)]),
        ("go_on", c_int, [c_void_p, c_void_p]),
        ("buffer", c_void_p, [c_void_p, c_int32, POINTER(c_int64)]),
    ):
        function = getattr(found, f"penstock_cpu_{name}")
        function.restype, function.argtypes = result, arguments
    if found.penstock_cpu_abi() != ABI:
        raise NoCpuEngine(f"{LIBRARY.name} is of another version; `make install` builds it anew")
    return found


def instruction_sets() -> list[str]:
    """What this processor runs, best first. Raises NoCpuEngine."""
    return library().penstock_cpu_instruction_sets().decode().split()  # type: ignore[no-any-return]


def instruction_set() -> str:
    """The best one, or the one that the environment names. Raises NoCpuEngine, or WrongInstructionSet."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "none":
        raise NoCpuEngine(f"{VARIABLE} is none", asked=True)
    if wanted and wanted not in KNOWN:
        raise WrongInstructionSet(f"{VARIABLE} is {wanted!r}, not one of {', '.join(KNOWN)} or none")
    found = instruction_sets()
    if wanted and wanted not in found:
        raise WrongInstructionSet(f"{VARIABLE} is {wanted}, and this processor has {', '.join(found)}")
    return wanted or found[0]


class CpuProgram:
    """A program that can be run. Holds its tensors and, after `reserve`, the memory of its buffers."""

    def __init__(self, program: Program, instruction_set: str, threads: int) -> None:
        """`threads`: the most that compute, the caller's among them. Raises ValueError for operations that contradict
        each other."""
        self.program = program
        self.threads = threads
        buffers = [CBuffer(int(buffer.layout), buffer.width, buffer.rows) for buffer in program.buffers]
        encoder, body, head = (
            [_encoded(one) for one in operations]
            for operations in (program.encoder, program.body, program.head)
        )
        self._library = library()
        self._handle = self._library.penstock_cpu_create(
            instruction_set.encode(),
            (CBuffer * len(buffers))(*buffers),
            len(buffers),
            (COperation * len(encoder))(*encoder),
            len(encoder),
            (COperation * len(body))(*body),
            len(body),
            (COperation * len(head))(*head),
            len(head),
            threads,
        )
        if not self._handle:
            raise ValueError(_reason())

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.penstock_cpu_destroy(self._handle)

    def workspace_bytes(self, tokens: int, rows: int, longest: int) -> int:
        """What `reserve` takes."""
        return int(self._library.penstock_cpu_workspace(self._handle, tokens, rows, longest))

    def reserve(self, tokens: int, rows: int, longest: int) -> None:
        """Memory for steps of up to `tokens` tokens and heads of up to `rows` rows, of sequences up to `longest`. Raises
        MemoryError."""
        if not self._library.penstock_cpu_reserve(self._handle, tokens, rows, longest):
            raise MemoryError(_reason())

    def shared_bytes(self, tokens: int, rows: int, ranks: int) -> int:
        """Of the memory that the ranks of a divided model share, for steps and heads of these sizes."""
        return int(self._library.penstock_cpu_shared_bytes(self._handle, tokens, rows, ranks))

    def share(
        self, memory: mmap, tokens: int, rows: int, rank: int, sockets: dict[int, int], columns: int
    ) -> None:
        """Where that memory is, of zeros, and how another rank's end is noticed: the number of a socket that is connected to each.
        `columns`: of the logits of all ranks, which rank 0 is given. The caller keeps the sockets.
        """
        self._shared = memory
        ranks = len(sockets) + 1
        assert len(memory) >= self.shared_bytes(tokens, rows, ranks)
        at = ctypes.addressof(c_char.from_buffer(memory))
        numbers = (c_int32 * ranks)(*(sockets.get(other, -1) for other in range(ranks)))
        shape = (tokens, rows, rank, ranks)
        succeeded(self._library.penstock_cpu_share(self._handle, at, *shape, numbers, columns))

    def tell(self, numbers: HostArray) -> None:
        """Gives every rank what rank 0 has. Raises RankLost."""
        assert numbers.flags.c_contiguous
        succeeded(self._library.penstock_cpu_tell(self._handle, address(numbers), numbers.nbytes))

    def set_cache(self, layer: int, rows: Array, table: int, format: CacheFormat = CacheFormat.BF16) -> None:
        """Where a layer's pages are, which table of a step names them, and how they hold numbers: all layers in one format.
        `rows`: (tokens, ...) of 16 bits, a page's tokens below one another; a layer with fewer numbers than they have room for leaves
        the end of each page as it is.
        """
        page_bytes = rows[:1].nbytes * PAGE_TOKENS
        at = address(rows)
        succeeded(self._library.penstock_cpu_set_cache(self._handle, layer, at, page_bytes, table, format))

    def set_state(self, layer: int, state: int, places: Array) -> None:
        """Where a layer's states are: (places, kernel - 1, channels) in bf16 of its convolution, state 0, and (places, heads, ...)
        in fp32 of what is behind it, state 1; of compressed attention (places, tokens, numbers) in bf16 as both. The caller keeps them.
        """
        at, place_bytes = address(places), places[:1].nbytes
        succeeded(self._library.penstock_cpu_set_state(self._handle, layer, state, at, place_bytes))

    def set_adapters(self, of_slots: HostArray) -> None:
        """The adapter that each slot is computed with, counted from 1; 0: none: (slots,) in int32, which may change between steps."""
        assert of_slots.dtype == np.int32 and of_slots.flags.c_contiguous
        self._adapters = of_slots
        self._library.penstock_cpu_set_adapters(self._handle, address(of_slots))

    def set_threads(self, threads: int) -> None:
        """Threads that compute from now on."""
        self._library.penstock_cpu_set_threads(self._handle, threads)

    def step(
        self,
        ids_T: I64,
        slots_R: I64,
        first_R: I64,
        counts_R: I64,
        pages: I64,
        saves_C3: I64 = NO_SAVES,
        positions_T: I64 | None = None,
        moved_M3: I64 = NO_MOVES,
        places_R: I64 | None = None,
        encoded_S: I64 | None = None,
        wanted_R: I64 | None = None,
    ) -> None:
        """Runs the body over a step of R rows: `counts` tokens of the sequences in `slots`, from position `first` on.
        pages (tables, slots, blocks): the page of each block. places: where the states of the row's slot are; None: at the slot's number.
        saves: (row, tokens, place), ascending by the first two: behind so many of the row's tokens its states are copied to that place. positions: of every token, where some rows are trees of drafts, in which it is less
        than its place in the row; moved: (token, position, place), ascending: what a token of a tree reads for a position that
        the cache has at another place of the row. encoded: of an encoder-decoder, tokens that each slot's encoder has read; positions are the
        sequence's, of which the decoder's begin behind whole blocks of them. wanted: of how many of a row's last tokens hidden states are read;
        None: of all. Raises RankLost."""
        places_R = slots_R if places_R is None else places_R
        columns = (ids_T, slots_R, places_R, first_R, counts_R, pages, saves_C3, moved_M3)
        assert all(column.dtype == np.int64 and column.flags.c_contiguous for column in columns)
        *at, saves, moved = map(address, columns)
        positions = None
        if positions_T is not None:
            assert positions_T.dtype == np.int64 and positions_T.shape == ids_T.shape
            positions = address(positions_T)
        shape = pages.shape[1], pages.shape[2]
        trees = (positions, moved, len(moved_M3))
        encoded = None if encoded_S is None else address(encoded_S)
        wanted = None
        if wanted_R is not None:
            assert (
                wanted_R.dtype == np.int64 and wanted_R.shape == slots_R.shape and wanted_R.flags.c_contiguous
            )
            wanted = address(wanted_R)
        step = CStep(len(slots_R), len(ids_T), *at, *shape, saves, len(saves_C3), *trees, encoded, wanted)
        succeeded(self._library.penstock_cpu_step(self._handle, step))

    def read(self, ids_U: I64, slots_R: I64, counts_R: I64, pages: I64) -> None:
        """Runs the encoder over R inputs, `counts` tokens each, and writes what the body attends to of them to the first pages of their
        slots: see `step`."""
        first_R = np.zeros(len(slots_R), np.int64)
        columns = (ids_U, slots_R, slots_R, first_R, counts_R, pages)  # no states: their places are not read
        assert all(column.dtype == np.int64 and column.flags.c_contiguous for column in columns)
        shape = pages.shape[1], pages.shape[2]
        step = CStep(
            len(slots_R), len(ids_U), *map(address, columns), *shape, None, 0, None, None, 0, None, None
        )
        succeeded(self._library.penstock_cpu_read(self._handle, step))

    def move(self, sources_BM: I64, targets_BM: I64) -> None:
        """Copies what every layer has of M tokens to other places, one after the other. Rows of the cache, by table (tables, M)."""
        assert sources_BM.shape == targets_BM.shape and sources_BM.dtype == targets_BM.dtype == np.int64
        sources, targets = np.ascontiguousarray(sources_BM), np.ascontiguousarray(targets_BM)
        at = address(sources), address(targets)
        succeeded(self._library.penstock_cpu_move(self._handle, *at, sources.shape[1]))

    def head(self, hidden_SE: Array, out_SV: Array) -> None:
        """Runs the head on rows of fp32, into rows of fp32, of which another rank than 0 gets none. Raises RankLost."""
        hidden, out = rows_at(hidden_SE), rows_at(out_SV)
        succeeded(self._library.penstock_cpu_head(self._handle, *hidden, len(hidden_SE), *out))

    def summarize(self, logits_SV: Array, masks: RowMasks | None = None) -> LogitsSummary:
        """What greedy sampling asks of rows of fp32: the same to the last bit, whatever other rows there are."""
        rows, columns = logits_SV.shape
        words, mask_words, of_row = None, 0, None
        if masks is not None:
            words_MW = np.ascontiguousarray(masks.words_MW)
            of_row_S = np.full(rows, -1, np.int32)
            of_row_S[masks.rows] = np.arange(len(masks.rows), dtype=np.int32)
            words, mask_words, of_row = address(words_MW), words_MW.shape[1], address(of_row_S)
        made = LogitsSummary(np.empty(rows, np.int64), np.empty(rows, np.float32), np.empty(rows, np.float32))
        outputs = map(address, (made.tokens_S, made.largest_S, made.totals_S))
        shape = (rows, columns)
        succeeded(
            self._library.penstock_cpu_summarize(
                self._handle, *rows_at(logits_SV), *shape, words, mask_words, of_row, *outputs
            )
        )
        return made

    def draw(self, logits_SV: Array, draws: Draws) -> tuple[I64, npt.NDArray[np.bool_]]:
        """Chooses the tokens, and says which rows had one left: (D,) each, for logits (S, V). The same whatever other rows there are,
        and as torch draws but for the rounding of sums."""
        made, tokens, possible = _encoded_draws(draws)
        at, stride = rows_at(logits_SV)
        succeeded(self._library.penstock_cpu_draw(self._handle, at, stride, logits_SV.shape[1], made))
        return tokens, possible

    def decodes(
        self,
        slots_R: I64,
        pages: I64,
        logits_RV: HostArray,
        draws: Draws | None = None,
        places_R: I64 | None = None,
        encoded_S: I64 | None = None,
        awaits_masks: bool = False,
    ) -> "Decodes":
        """Steps that feed each of these slots one token, or more, at most as many in all as there are rows of logits, and take behind each the
        likeliest or what `draws` says: see `Decodes`. `pages`, `places` and `encoded` as in `step`."""
        places_R = slots_R if places_R is None else places_R
        return Decodes(
            self._library, self._handle, slots_R, places_R, pages, logits_RV, draws, encoded_S, awaits_masks
        )

    def call(self, name: str, structure: Any) -> int:
        """Calls another function of the library with this program."""
        return int(getattr(self._library, f"penstock_cpu_{name}")(self._handle, structure))

    def rows(self, buffer: int, count: int) -> HostArray:
        """The first `count` rows of a buffer, in its memory: (count, width) in fp32, bf16 as uint16, or int8, as the last step left
        them."""
        one = self.program.buffers[buffer]
        row_bytes = c_int64()
        at = self._library.penstock_cpu_buffer(self._handle, buffer, row_bytes)
        dtype: type[Any] = {Layout.F32: np.float32, Layout.BYTES: np.int8}.get(one.layout, np.uint16)
        whole: HostArray = np.frombuffer(memory_at(at, row_bytes.value * count), dtype).reshape(count, -1)
        return whole[:, : one.width]


class Decodes:
    """Steps of one shape, each in one call: the program's body, its head, the summary, and draws. What is given is read where it is, and
    may change between two steps. Those that await masks take a second call, `choose`, for the last two.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        handle: int,
        slots_R: I64,
        places_R: I64,
        pages: I64,
        logits_RV: HostArray,
        draws: Draws | None,
        encoded_S: I64 | None,
        awaits_masks: bool,
    ) -> None:
        rows, most = len(slots_R), len(logits_RV)
        self.ids_T, self.first_R = np.zeros(most, np.int64), np.zeros(rows, np.int64)
        """What the next step feeds, and the position of each row's first token."""
        self.places_R = places_R
        """Where the states of the rows are."""
        self.counts_R = np.ones(rows, np.int64)
        """Tokens of each row, which may change from step to step."""
        self.summary = LogitsSummary(
            np.empty(most, np.int64), np.empty(most, np.float32), np.empty(most, np.float32)
        )
        """Of the last step, of as many rows as it had tokens; which `logits_RV` has as well."""
        self.logits_RV = logits_RV
        made, tokens_D, possible_D = (None, None, None) if draws is None else _encoded_draws(draws)
        self.draws, self.c_draws = draws, made
        self.possible_D: npt.NDArray[np.bool_] | None = possible_D
        """Whether each row that was drawn had a token left."""
        self.saves_C3, self.moved_M3 = NO_SAVES, NO_MOVES
        self.positions_T: I64 | None = None
        self._held = slots_R, places_R, pages, tokens_D, encoded_S
        columns = (self.ids_T, slots_R, places_R, self.first_R, self.counts_R, pages)
        assert all(column.dtype == np.int64 and column.flags.c_contiguous for column in columns)
        at = map(address, columns)
        encoded = None if encoded_S is None else address(encoded_S)
        self.c_step = CStep(
            rows, rows, *at, pages.shape[1], pages.shape[2], None, 0, None, None, 0, encoded, None
        )
        summary = (self.summary.tokens_S, self.summary.largest_S, self.summary.totals_S)
        outputs = tuple(map(address, summary))
        shape = (*rows_at(logits_RV), logits_RV.shape[1])
        now = (None, None, None) if awaits_masks else outputs
        self._arguments = (handle, self.c_step, *shape, *now, made)
        self._call = library.penstock_cpu_decode
        self.mask_of_row_S = np.full(most, -1, np.int32)
        self._of_rows_at = address(self.mask_of_row_S)
        self._masked: I64 | None = None  # the rows that it has
        self._shape, self._outputs = shape, (*outputs, made)
        self.logits_at = shape[:2]
        """Where they begin, and how many numbers are from one row to the next."""
        self._library, self._handle = library, handle
        self._choose = library.penstock_cpu_choose

    def save(self, saves_C3: I64) -> None:
        """Has the steps from now on copy states, as `CpuProgram.step` has it."""
        if not len(saves_C3) + len(self.saves_C3):
            return
        assert saves_C3.dtype == np.int64 and saves_C3.flags.c_contiguous
        self.saves_C3 = saves_C3
        self.c_step.saves, self.c_step.saved = address(saves_C3), len(saves_C3)

    def branch(self, positions_T: I64 | None, moved_M3: I64) -> None:
        """Says where in the steps from now on the tokens of trees are, as `CpuProgram.step` has it; None: there are none."""
        if positions_T is None and self.positions_T is None:
            return
        columns = (moved_M3,) if positions_T is None else (moved_M3, positions_T)
        assert all(column.dtype == np.int64 and column.flags.c_contiguous for column in columns)
        self.positions_T, self.moved_M3 = positions_T, moved_M3
        self.c_step.positions = None if positions_T is None else address(positions_T)
        self.c_step.moved, self.c_step.moves = address(moved_M3), len(moved_M3)

    def run(self, tokens: int, draws: int) -> None:
        """One step of so many tokens, the first of `ids_T`, behind which the first so many of `draws` draw. Raises RankLost."""
        self.c_step.tokens = tokens
        if self.c_draws is not None:
            self.c_draws.count = draws
        succeeded(self._call(*self._arguments))

    def choose(self, masks: RowMasks) -> None:
        """The rest of a step that awaited masks. Raises RankLost. Where `rows` of the masks are the same array as in the last step, so are the
        step's tokens and draws."""
        rows = self.c_step.tokens
        words_MW, draws, made = np.ascontiguousarray(masks.words_MW), self.draws, self.c_draws
        if masks.rows is not self._masked:
            of_row_S, self._masked = self.mask_of_row_S[:rows], masks.rows
            of_row_S[:] = -1
            of_row_S[masks.rows] = np.arange(len(masks.rows), dtype=np.int32)
            if draws is not None and made is not None:
                drawn = draws.rows[: made.count]
                drawn["mask"] = of_row_S[drawn["row"]]
        at, words = address(words_MW), words_MW.shape[1]
        if made is not None:
            made.masks, made.mask_words = at, words
        logits, stride, columns = self._shape
        of_masks = at, words, self._of_rows_at
        succeeded(self._choose(self._handle, logits, stride, rows, columns, *of_masks, *self._outputs))


def address(numbers: Array) -> int:
    """Where they begin."""
    return int(numbers.ctypes.data if isinstance(numbers, np.ndarray) else numbers.data_ptr())


def memory_at(at: int, size: int) -> memoryview:
    """Memory of the library."""
    return memoryview((ctypes.c_char * size).from_address(at))


def rows_at(rows_SV: Array) -> tuple[int, int]:
    """Where rows of fp32 begin, and how many numbers are from one to the next."""
    if isinstance(rows_SV, np.ndarray):
        assert rows_SV.dtype == np.float32 and rows_SV.strides[1] == 4
        return address(rows_SV), rows_SV.strides[0] // 4
    assert rows_SV.element_size() == 4 and rows_SV.stride(1) == 1
    return address(rows_SV), int(rows_SV.stride(0))


def _encoded(operation: Operation) -> COperation:
    made = COperation(**{name: int(getattr(operation, name)) for name in NUMBERS})
    for name in FLOATS:
        setattr(made, name, getattr(operation, name))
    for name in TENSORS:
        tensor = getattr(operation, name)
        setattr(made, name, None if tensor is None else address(tensor))
    return made


def _encoded_draws(draws: Draws) -> tuple[CDraws, I64, npt.NDArray[np.bool_]]:
    """As the library reads them, and where it writes tokens and whether there was one."""
    count = len(draws.rows)
    tokens, possible = np.empty(count, np.int64), np.empty(count, np.bool_)
    lists = (draws.rows, draws.words_MW, draws.bias_tokens, draws.biases, draws.end_tokens, draws.before)
    assert all(one.flags.c_contiguous for one in lists)
    rows, masks, *others = map(address, lists)
    outputs = address(tokens), address(possible)
    return CDraws(count, rows, masks, draws.words_MW.shape[1], *others, *outputs), tokens, possible


def _reason() -> str:
    return str(library().penstock_cpu_error().decode())


def succeeded(result: int) -> None:
    """Raises RuntimeError, which says why, where a call of the library failed, or RankLost."""
    if result == RANK_LOST:
        raise RankLost(_reason())
    if not result:
        raise RuntimeError(f"the CPU engine: {_reason()}")
