// Products of rows with packed weights, two builds of the kernels in turns in one process; products.py compiles and runs it.
//
// With PENSTOCK_ISA this file is the kernels of one build, under that name; without, it is the program:
//   products FORMAT ROWS OUTPUTS INPUTS GATED MEGABYTES THREADS SECONDS ISA
// MEGABYTES: of matrices that are gone through, so that weights come from memory; 0: one matrix again and again. Prints a line of JSON.
#if defined(PENSTOCK_ISA)
#include "work.h"

#include "linear.h"

#define PENSTOCK_JOIN_NAME(a, b) a##b
#define PENSTOCK_NAME_OF(isa) PENSTOCK_JOIN_NAME(kernels_, isa)

namespace penstock {

const Kernels *PENSTOCK_NAME_OF(PENSTOCK_ISA)() {
    static const Kernels kernels = {.linear = linear};
    return &kernels;
}

}  // namespace penstock
#else
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"
#include "team.h"

namespace penstock {
const Kernels *kernels_before();
const Kernels *kernels_after();
}  // namespace penstock

namespace {

using namespace penstock;

// One product, and the memory of one that goes through layers.
struct Cell {
    penstock_format format;
    int rows, outputs, inputs;
    bool gated;
    int64_t source_bytes, target_bytes, matrix_bytes, layers;
};

// Of one thread its processor time, which others' work changes little; of several the clock's.
clockid_t watched = CLOCK_MONOTONIC;

double now() {
    timespec time;
    clock_gettime(watched, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// On pages of 2 MB, as the worker's weights.
uint8_t *memory(int64_t bytes) {
    constexpr int64_t huge = 2 << 20;
    void *const there = mmap(nullptr, bytes + 2 * huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (there == MAP_FAILED) std::abort();
    auto *const aligned = reinterpret_cast<uint8_t *>(round_up(reinterpret_cast<int64_t>(there), huge));
    madvise(aligned, bytes + huge, MADV_HUGEPAGE);
    return aligned;
}

uint64_t random_bits() {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

// Numbers of ordinary size in each format: bf16 between 0.0078 and 0.031, int8 from -127 on, int4 with factors from 3 to 10; what stands
// for 0 beyond the inputs, as packed weights have it.
void fill_weights(const Cell &cell, uint8_t *weights) {
    const bool is_int4 = cell.format == PENSTOCK_FORMAT_INT4;
    const int64_t tile_inputs = is_int4 ? PENSTOCK_INT4_INPUTS : PENSTOCK_BYTE_INPUTS;
    const int64_t tile_bytes = is_int4 ? PENSTOCK_INT4_BYTES : 1024;
    const int64_t tiles = round_up(cell.inputs, tile_inputs) / tile_inputs;
    for (int64_t at = 0; at < cell.matrix_bytes * cell.layers; at += 8) {
        uint64_t bits = random_bits();
        auto *const bytes = reinterpret_cast<uint8_t *>(&bits);
        const int64_t in_tile = at % tile_bytes - (is_int4 ? 64 : 0);
        const int64_t input = at / tile_bytes % tiles * tile_inputs + in_tile / 64 * 4;
        if (cell.format == PENSTOCK_FORMAT_BF16) {
            bits = (bits & 0x83ff83ff83ff83ffull) | 0x3c003c003c003c00ull;
        } else if (!is_int4) {
            for (int i = 0; i < 8; i++) bytes[i] += bytes[i] == 0x80;
            if (input >= cell.inputs) bits = 0;
        } else if (in_tile < 0) {
            bits = (bits & 0x0707070707070707ull) + 0x0303030303030303ull;
        } else {
            if (input >= cell.inputs) bits = (bits & 0xf0f0f0f0f0f0f0f0ull) | 0x0808080808080808ull;
            if (input + 64 >= cell.inputs) bits = (bits & 0x0f0f0f0f0f0f0f0full) | 0x8080808080808080ull;
        }
        std::memcpy(weights + at, &bits, 8);
    }
}

// What is taken off each output's sum where inputs have no sign: 128 times the sum of its weights, of the first matrix; the others'
// are as large. With any other number results are as large as no model's, and activations of those take their time.
std::vector<int32_t> sums_of(const Cell &cell, const uint8_t *weights) {
    std::vector<int32_t> sums(round_up(cell.outputs, 16));
    if (cell.format == PENSTOCK_FORMAT_BF16) return sums;
    const bool is_int4 = cell.format == PENSTOCK_FORMAT_INT4;
    const int64_t head = is_int4 ? 64 : 0, tile_bytes = head + 1024;
    for (int64_t at = 0; at < cell.matrix_bytes; at++) {
        const int64_t in_tile = at % tile_bytes - head;
        if (in_tile < 0) continue;
        const int64_t column = at / tile_bytes * tile_bytes / (cell.matrix_bytes / static_cast<int64_t>(sums.size() / 16));
        const int64_t output = in_tile / 4 % 16;
        int sum = static_cast<int8_t>(weights[at]);
        if (is_int4) {
            const uint8_t *const factors = weights + at - in_tile - head + in_tile / 512 * 16 + output;
            sum = ((weights[at] & 15) - 8) * factors[0] + ((weights[at] >> 4) - 8) * factors[32];
        }
        sums[column * 16 + output] += 128 * sum;
    }
    return sums;
}

void fill_source(const Cell &cell, uint8_t *source) {
    const bool is_bf16 = cell.format == PENSTOCK_FORMAT_BF16;
    for (int row = 0; row < cell.rows; row++, source += cell.source_bytes) {
        for (int64_t at = 0; at < cell.source_bytes; at += 2) {
            const auto bits = static_cast<uint16_t>(random_bits());
            const uint16_t number = is_bf16 ? (bits & 0x83ff) | 0x3c00 : bits;
            std::memcpy(source + at, &number, 2);
        }
        const float scale = 0.001f * static_cast<float>(row + 1);
        if (!is_bf16) std::memcpy(source + scale_offset(cell.inputs), &scale, 4);
    }
}

struct Job {
    Team *team;
    const Kernels *kernels;
    const LinearArgs *layers;
    int64_t count;
    int members;
    uint8_t *scratch;
    int64_t scratch_bytes;
};

void multiply(void *context, int member) {
    const Job &job = *static_cast<const Job *>(context);
    for (int64_t i = 0; i < job.count; i++) {
        const Work work = {job.team->next(), job.team->shares(), member, job.members,
                           job.scratch + member * job.scratch_bytes};
        job.kernels->linear(job.layers[i], work);
        job.team->barrier();
    }
}

// ---- limits ----

struct Reading {
    Team *team;
    const uint8_t *from;
    int64_t bytes;
    int members, streams;
};

// Each member its part, in one stream or several.
void read(void *context, int member) {
    const Reading &job = *static_cast<const Reading *>(context);
    const int64_t stream = job.bytes / job.members / job.streams / 4096 * 4096;
    const uint8_t *const part = job.from + job.bytes / job.members * member;
    for (int64_t at = 0; at < stream; at += 64)
        for (int i = 0; i < job.streams; i++) {
            const uint8_t *const line = part + stream * i + at;
            __builtin_prefetch(line + 1024, 0, 3);
            asm volatile("vmovdqa (%0), %%ymm0\n\tvmovdqa 32(%0), %%ymm0" ::"r"(line) : "xmm0");
        }
    job.team->barrier();
}

struct Multiplying {
    Team *team;
    bool is_bytes, is_tiles, is_avx2, is_avxvnni, is_avx512bw, is_float;
    int64_t turns;
};

// Four sums of tiles side by side, of factors that stay in their registers.
constexpr int kTileSums = 4;
#define PENSTOCK_TILES(product)                                                                                            \
    product " %%tmm6, %%tmm4, %%tmm0\n\t" product " %%tmm6, %%tmm5, %%tmm1\n\t" product " %%tmm7, %%tmm4, %%tmm2\n\t" product \
            " %%tmm7, %%tmm5, %%tmm3\n\t"

void saturate_tiles(const Multiplying &job) {
    struct alignas(64) {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes = {};
    shapes.palette = 1;
    for (int t = 0; t < 8; t++) shapes.row_bytes[t] = 64, shapes.rows[t] = 16;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
    for (int64_t turn = 0; turn < job.turns; turn++)
        if (job.is_bytes)
            asm volatile(PENSTOCK_TILES("tdpbusd")::);
        else
            asm volatile(PENSTOCK_TILES("tdpbf16ps")::);
    asm volatile("tilerelease");
}

// 12 sums side by side, in registers.
constexpr int kSums = 12;
#define PENSTOCK_TWELVE(one)                                                                                        \
    one("0") one("1") one("2") one("3") one("4") one("5") one("6") one("7") one("8") one("9") one("10") one("11")
#define PENSTOCK_BYTES_OF(register) "vpdpbusd %%zmm12, %%zmm13, %%zmm" register "\n\t"
#define PENSTOCK_SHORTS_OF(register) "vdpbf16ps %%zmm12, %%zmm13, %%zmm" register "\n\t"
#define PENSTOCK_WHOLE_FLOATS_OF(register) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" register "\n\t"
#define PENSTOCK_PAIRS_OF(register) "vpmaddubsw %%zmm12, %%zmm13, %%zmm" register "\n\t"
#define PENSTOCK_HALF_BYTES_OF(register) "vpmaddubsw %%ymm12, %%ymm13, %%ymm" register "\n\t"
#define PENSTOCK_HALF_QUADS_OF(register) "%{vex%} vpdpbusd %%ymm12, %%ymm13, %%ymm" register "\n\t"
#define PENSTOCK_FLOATS_OF(register) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" register "\n\t"
#define PENSTOCK_CLEAR_HALF(register) "vpxor %%ymm" register ", %%ymm" register ", %%ymm" register "\n\t"
#define PENSTOCK_CLEAR(register) "vpxord %%zmm" register ", %%zmm" register ", %%zmm" register "\n\t"
#define PENSTOCK_TOUCHED                                                                                            \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13"

void saturate(void *context, int) {
    const Multiplying &job = *static_cast<const Multiplying *>(context);
    if (job.is_tiles) {
        saturate_tiles(job);
        return job.team->barrier();
    }
    if (job.is_avx2 || job.is_avxvnni) {
        asm volatile(PENSTOCK_TWELVE(PENSTOCK_CLEAR_HALF) PENSTOCK_CLEAR_HALF("12") PENSTOCK_CLEAR_HALF("13")::: PENSTOCK_TOUCHED);
        for (int64_t turn = 0; turn < job.turns; turn++)
            if (job.is_bytes && job.is_avxvnni)
                asm volatile(PENSTOCK_TWELVE(PENSTOCK_HALF_QUADS_OF)::: PENSTOCK_TOUCHED);
            else if (job.is_bytes)
                asm volatile(PENSTOCK_TWELVE(PENSTOCK_HALF_BYTES_OF)::: PENSTOCK_TOUCHED);
            else
                asm volatile(PENSTOCK_TWELVE(PENSTOCK_FLOATS_OF)::: PENSTOCK_TOUCHED);
        return job.team->barrier();
    }
    asm volatile(PENSTOCK_TWELVE(PENSTOCK_CLEAR) PENSTOCK_CLEAR("12") PENSTOCK_CLEAR("13")::: PENSTOCK_TOUCHED);
    for (int64_t turn = 0; turn < job.turns; turn++)
        if (job.is_bytes && job.is_avx512bw)
            asm volatile(PENSTOCK_TWELVE(PENSTOCK_PAIRS_OF)::: PENSTOCK_TOUCHED);
        else if (job.is_bytes)
            asm volatile(PENSTOCK_TWELVE(PENSTOCK_BYTES_OF)::: PENSTOCK_TOUCHED);
        else if (job.is_float)
            asm volatile(PENSTOCK_TWELVE(PENSTOCK_WHOLE_FLOATS_OF)::: PENSTOCK_TOUCHED);
        else
            asm volatile(PENSTOCK_TWELVE(PENSTOCK_SHORTS_OF)::: PENSTOCK_TOUCHED);
    job.team->barrier();
}

double median(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 10) return std::fputs("products FORMAT ROWS OUTPUTS INPUTS GATED MEGABYTES THREADS SECONDS ISA\n", stderr), 2;
    const std::string isa = argv[9];
    const bool is_tiles = isa == "amx", is_avx2 = isa == "avx2", is_avxvnni = isa == "avxvnni", is_half = is_avx2 || is_avxvnni;
    constexpr long ask_for_state = 0x1023, tile_data = 18;
    if (is_tiles && syscall(SYS_arch_prctl, ask_for_state, tile_data)) return std::fputs("no tiles\n", stderr), 2;
    const std::string format = argv[1];
    const bool is_bf16 = format == "bf16", is_int8 = format == "int8";
    Cell cell = {};
    cell.format = is_bf16 ? PENSTOCK_FORMAT_BF16 : is_int8 ? PENSTOCK_FORMAT_INT8 : PENSTOCK_FORMAT_INT4;
    cell.rows = std::atoi(argv[2]), cell.outputs = std::atoi(argv[3]), cell.inputs = std::atoi(argv[4]);
    cell.gated = std::atoi(argv[5]) != 0;
    const int64_t bytes = std::atoll(argv[6]) * 1000000;
    const int threads = std::atoi(argv[7]);
    if (threads == 1) watched = CLOCK_THREAD_CPUTIME_ID;
    const double seconds = std::atof(argv[8]);
    const int64_t all_outputs = round_up(cell.outputs, 16);
    cell.matrix_bytes = is_bf16   ? all_outputs * round_up(cell.inputs, 32) * 2
                        : is_int8 ? all_outputs * round_up(cell.inputs, 64)
                                  : all_outputs / 16 * (round_up(cell.inputs, 128) / 128) * PENSTOCK_INT4_BYTES;
    cell.layers = std::max<int64_t>(1, bytes / cell.matrix_bytes);
    cell.source_bytes = is_bf16 ? round_up(cell.inputs, 32) * 2 : round_up(scale_offset(cell.inputs) + 4, 64);
    cell.target_bytes = round_up(cell.gated ? cell.outputs / 2 : cell.outputs, 16) * 4;

    uint8_t *const weights = memory(cell.matrix_bytes * cell.layers + (1 << 20));
    uint8_t *const source = memory((cell.rows + kRowBlock) * cell.source_bytes);
    uint8_t *const targets[2] = {memory((cell.rows + kRowBlock) * cell.target_bytes),
                                 memory((cell.rows + kRowBlock) * cell.target_bytes)};
    fill_weights(cell, weights);
    fill_source(cell, source);
    const std::vector<float> scales(all_outputs, 0.001f);
    const std::vector<int32_t> sums = sums_of(cell, weights);
    const int64_t scratch = round_up(scratch_bytes(64, 64, unpacked_columns(cell.format, cell.inputs), true), 4096);
    Team team(threads);
    Job job = {&team, nullptr, nullptr, 0, threads, memory(scratch * threads), scratch};

    // As many products at once as take some milliseconds.
    const double operations = 2.0 * cell.rows * cell.outputs * cell.inputs;
    job.count = bytes ? cell.layers : std::max<int64_t>(1, static_cast<int64_t>(4e8 / (operations + 1e6)));
    std::vector<LinearArgs> layers[2];
    for (int which = 0; which < 2; which++)
        for (int64_t i = 0; i < job.count; i++) {
            LinearArgs args = {};
            args.rows = cell.rows, args.outputs = cell.outputs;
            args.inputs = static_cast<int>(round_up(cell.inputs, is_bf16 ? PENSTOCK_TILE_INPUTS : PENSTOCK_BYTE_INPUTS));
            args.format = cell.format, args.scales = scales.data(), args.sums = sums.data();
            args.weight = weights + cell.matrix_bytes * (i % cell.layers);
            args.epilogue = cell.gated ? PENSTOCK_GATE : PENSTOCK_STORE, args.activation = PENSTOCK_SILU;
            args.scale = 1.0f, args.to_bf16 = cell.gated;
            args.source = source, args.source_bytes = cell.source_bytes, args.width = cell.inputs;
            args.target = targets[which], args.target_bytes = cell.target_bytes;
            layers[which].push_back(args);
        }

    const Kernels *const kernels[2] = {kernels_before(), kernels_after()};
    std::vector<double> times[2], limits[2];  // of a product; of its weights alone, and of its operations alone
    const double end = now() + seconds;
    for (int round = 0; now() < end || round < 5; round++) {
        for (int turn = 0; turn < 2; turn++) {
            const int which = (turn + round) % 2;
            job.kernels = kernels[which], job.layers = layers[which].data();
            const double begin = now();
            team.run(threads, multiply, &job);
            times[which].push_back((now() - begin) / static_cast<double>(job.count));
        }
        // Which pattern is the fastest depends on the processor.
        double shortest = 1e9;
        for (const int streams : {1, 4}) {
            Reading reading = {&team, weights, cell.matrix_bytes * cell.layers, threads, streams};
            const double begin = now();
            for (int64_t i = 0; i < job.count; i += cell.layers) team.run(threads, read, &reading);
            shortest = std::min(shortest, (now() - begin) / static_cast<double>(job.count));
        }
        limits[0].push_back(shortest);
        // An instruction of 512 bits multiplies and adds 64 bytes or 32 numbers of bf16; a tile's, 256 sums of as many. One of AVX2 32 bytes,
        // whose sums are then to be widened, as without VNNI those of 64 bytes are, or 8 numbers of fp32.
        const double side_by_side = is_tiles ? 256.0 * kTileSums : kSums;
        const bool is_avx512bw = isa == "avx512bw", is_float = isa == "avx512vnni" || is_avx512bw;
        const double at_once = is_half ? (is_bf16 ? 8 : 32) : !is_bf16 ? 64 : is_float ? 16 : 32, in_a_turn = 2.0 * side_by_side * at_once * threads;
        Multiplying multiplying = {&team, !is_bf16, is_tiles, is_avx2, is_avxvnni, is_avx512bw, is_float,
                                   static_cast<int64_t>(2e-3 * (is_tiles ? 4e12 : is_half ? 1e11 : 4e11) / in_a_turn)};
        const double begin = now();
        team.run(threads, saturate, &multiplying);
        limits[1].push_back((now() - begin) * operations / (in_a_turn * static_cast<double>(multiplying.turns)));
    }
    const bool is_same = !std::memcmp(targets[0], targets[1], cell.rows * cell.target_bytes);
    std::printf("{\"before\": %.4g, \"after\": %.4g, \"fastest_before\": %.4g, \"fastest_after\": %.4g, \"read\": %.4g, \"multiply\": %.4g, "
                "\"fastest_read\": %.4g, \"bytes\": %lld, \"operations\": %.6g, \"turns\": %zu, \"same\": %s}\n",
                median(times[0]), median(times[1]), *std::min_element(times[0].begin(), times[0].end()),
                *std::min_element(times[1].begin(), times[1].end()), median(limits[0]), median(limits[1]),
                *std::min_element(limits[0].begin(), limits[0].end()), static_cast<long long>(cell.matrix_bytes), operations,
                times[0].size(), is_same ? "true" : "false");
    return is_same ? 0 : 1;
}
#endif
