// The operations, for one instruction set: this file is compiled once for each, with PENSTOCK_ISA naming it. It
// includes nothing of the C++ library, whose inline functions other objects would share. A number that a row gets is
// computed by the same function in the same order whatever other rows there are; those that several callers share are
// not inlined, since the compiler may fuse a product and a sum in one copy and not in another.
#include "kernels.h"
#include "products.h"
#include "quantize.h"
#include "vector.h"

#define PENSTOCK_JOIN_NAME(a, b) a##b
#define PENSTOCK_NAME_OF(isa) PENSTOCK_JOIN_NAME(kernels_, isa)

namespace penstock {
namespace {

#define SEPARATE __attribute__((noinline)) static

INLINE int64_t take(const Work &work, int64_t count) {
    return __atomic_fetch_add(work.next, static_cast<uint32_t>(count), __ATOMIC_RELAXED);
}

INLINE int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
INLINE int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Rows to take at once of cheap operations: few enough that everyone gets some.
INLINE int64_t share(int64_t rows, const Work &work) {
    const int64_t even = rows / (4 * work.members);
    return even < 1 ? 1 : even > 16 ? 16 : even;
}

INLINE F16 activated(F16 x, penstock_activation activation) {
    switch (activation) {
        case PENSTOCK_SILU:
            return x * sigmoid(x);
        case PENSTOCK_GELU:
            return 0.5f * x * (1.0f + error_function(x * 0.70710678118654752f));
        case PENSTOCK_GELU_TANH:
            return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
        case PENSTOCK_QUICK_GELU:
            return x * sigmoid(1.702f * x);
        case PENSTOCK_RELU:
            return x < F16{} ? F16{} : x;
        default: {
            const F16 positive = x < F16{} ? F16{} : x;
            return positive * positive;
        }
    }
}

// ---- embedding ----

void embed(const EmbedArgs &args, const Work &work) {
    const int pairs = (args.width + 1) / 2;
    const int64_t panel = round_up(args.width, PENSTOCK_TILE_INPUTS) / PENSTOCK_TILE_INPUTS * kTileBytes;
    for (int64_t token; (token = take(work, 1)) < args.tokens;) {
        const int64_t id = args.ids[token];
        const uint8_t *from = args.table + id / 16 * panel + id % 16 * 4;
        float *to = reinterpret_cast<float *>(args.target + token * args.target_bytes);
        for (int pair = 0; pair < pairs; pair++) {
            union {
                uint32_t bits;
                float number;
            } low, high;
            const uint32_t both = *reinterpret_cast<const uint32_t *>(from + pair * 64);
            low.bits = both << 16;
            high.bits = both & 0xffff0000u;
            to[2 * pair] = low.number * args.scale;
            if (2 * pair + 1 < args.width) to[2 * pair + 1] = high.number * args.scale;
        }
        if (args.positions) {
            const float *row = args.positions + (args.token_positions[token] + (int64_t)args.offset) * args.width;
            for (int i = 0; i < args.width; i++) to[i] += row[i];
        }
    }
}

// ---- norms ----

// The sum of (x - mean)^2.
INLINE float squares(const float *x, int width, float mean) {
    F16 sum = {};
    int at = 0;
    for (; at + 16 <= width; at += 16) {
        const F16 d = load(x + at) - mean;
        sum += d * d;
    }
    if (at < width) {
        F16 d = load_some(x + at, width - at) - mean;
        d = lanes() < width - at ? d : F16{};
        sum += d * d;
    }
    return sum_of(sum);
}

INLINE float sum_over(const float *x, int width) {
    F16 sum = {};
    int at = 0;
    for (; at + 16 <= width; at += 16) sum += load(x + at);
    if (at < width) sum += load_some(x + at, width - at);
    return sum_of(sum);
}

// y = (x - mean) factor has mean 0 and variance 1, or mean square 1.
SEPARATE void statistics(const float *x, int width, penstock_norm norm, float eps, float *mean, float *factor) {
    *mean = 0.0f, *factor = 1.0f;
    if (norm == PENSTOCK_NORM_NONE) return;
    if (norm == PENSTOCK_NORM_LAYER) *mean = sum_over(x, width) / static_cast<float>(width);
    *factor = 1.0f / __builtin_sqrtf(squares(x, width, *mean) / static_cast<float>(width) + eps);
}

// A row as bytes: whole numbers, of which the largest is 127 or -127, with zeros up to a multiple of 64, and behind them
// the scale. `numbers(at, count)` are 16 numbers from `at` on, with zeros beyond `count`. Of a row with what is no number,
// or infinite, the scale is no number.
template <typename Numbers16>
INLINE void quantize_row(int width, uint8_t *to, Numbers16 numbers) {
    F16 largest = {}, unsound = {};
    for (int at = 0; at < width; at += 16) {
        const F16 x = numbers(at, static_cast<int>(least(16, width - at)));
        largest = maximum(size_of(x), largest);
        unsound += x - x;
    }
    const float most = maximum_of(largest);
    const bool is_zero = most < 1e-30f;
    const float inverse = is_zero ? 0.0f : 127.0f / most;
    const int64_t padded = scale_offset(width);
    for (int at = 0; at < padded; at += 16) {
        const F16 x = at < width ? numbers(at, static_cast<int>(least(16, width - at))) : F16{};
        const B16 whole = __builtin_convertvector(rounded(x * inverse), B16);
        *reinterpret_cast<B16Memory *>(to + at) = kIsTurned ? whole ^ (int8_t)-128 : whole;
    }
    *reinterpret_cast<float *>(to + padded) = (is_zero ? 0.0f : most / 127.0f) + sum_of(unsound);
}

INLINE F16 normed(const NormArgs &args, const float *x, int at, int count, float mean, float factor) {
    F16 y = ((count == 16 ? load(x + at) : load_some(x + at, count)) - mean) * factor;
    if (args.weight) y = y * (count == 16 ? load(args.weight + at) : load_some(args.weight + at, count));
    if (args.bias) y = y + (count == 16 ? load(args.bias + at) : load_some(args.bias + at, count));
    return y;
}

SEPARATE void norm_row(const NormArgs &args, const float *x, uint8_t *to) {
    float mean, factor;
    statistics(x, args.width, args.norm, args.eps, &mean, &factor);
    if (args.to == PENSTOCK_BYTES) {
        quantize_row(args.width, to, [&](int at, int count) {
            const F16 y = normed(args, x, at, count, mean, factor);
            return count == 16 ? y : lanes() < count ? y : F16{};
        });
        return;
    }
    float *out = reinterpret_cast<float *>(to);
    for (int at = 0; at < args.width; at += 16) {
        const int count = static_cast<int>(least(16, args.width - at));
        F16 y = normed(args, x, at, count, mean, factor);
        if (args.to == PENSTOCK_BF16) {
            if (count == 16)
                store_bf16(to + at * 2, to_bf16(y));
            else
                store_some_bf16(to + at * 2, to_bf16(y), count);
            continue;
        }
        if (args.accumulate) y = y * args.scale + (count == 16 ? load(out + at) : load_some(out + at, count));
        if (count == 16)
            store(out + at, y);
        else
            store_some(out + at, y, count);
    }
}

void norm(const NormArgs &args, const Work &work) {
    const int64_t at_once = work.next ? share(args.rows, work) : args.rows;
    for (int64_t row = 0; (row = work.next ? take(work, at_once) : row) < args.rows; row += at_once)
        for (int64_t r = row; r < least(row + at_once, args.rows); r++)
            norm_row(args, reinterpret_cast<const float *>(args.source + r * args.source_bytes),
                     args.target + r * args.target_bytes);
}

SEPARATE void quantize_bf16_row(const QuantizeArgs &args, const uint8_t *from, uint8_t *to) {
    quantize_row(args.width, to, [&](int at, int count) {
        const F16 x = from_bf16(load_bf16(from + at * 2));  // rows are padded to 32 numbers
        return count == 16 ? x : lanes() < count ? x : F16{};
    });
}

void quantize(const QuantizeArgs &args, const Work &work) {
    const int64_t at_once = work.next ? share(args.rows, work) : args.rows;
    for (int64_t row = 0; (row = work.next ? take(work, at_once) : row) < args.rows; row += at_once)
        for (int64_t r = row; r < least(row + at_once, args.rows); r++)
            quantize_bf16_row(args, args.source + r * args.source_bytes, args.target + r * args.target_bytes);
}

// ---- linear ----

// Rows whose products are taken while a column of tiles is in the processor's second cache.
constexpr int kRowsInChunk = 256;

// Of a tile, for `finish`.
struct Finish {
    F16 bias, up_bias;
    float scale, softcap;
    int count;  // outputs that there are
};

template <penstock_epilogue epilogue, penstock_activation activation, bool short_target>
INLINE void finish_rows(const Finish &finish, int rows, const float *sums, const float *up, uint8_t *to,
                        int64_t target_bytes) {
    for (int row = 0; row < rows; row++, to += target_bytes) {
        F16 y = load(sums + row * 16) + finish.bias;
        float *long_to = reinterpret_cast<float *>(to);
        if (epilogue == PENSTOCK_GATE) y = activated(y, activation) * (load(up + row * 16) + finish.up_bias);
        if (epilogue == PENSTOCK_ACTIVATE) y = activated(y, activation);
        if (epilogue == PENSTOCK_ADD) y = y * finish.scale + load(long_to);
        if (epilogue == PENSTOCK_STORE) {
            if (finish.scale != 1.0f) y = y * finish.scale;
            if (finish.softcap != 0.0f) y = tanh_of(y / finish.softcap) * finish.softcap;
        }
        if (short_target)
            store_bf16(to, to_bf16(y));
        else if (finish.count == 16)
            store(long_to, y);
        else
            store_some(long_to, y, finish.count);
    }
}

template <penstock_epilogue epilogue, bool short_target>
INLINE void finish_activated(penstock_activation activation, const Finish &finish, int rows, const float *sums,
                             const float *up, uint8_t *to, int64_t bytes) {
    switch (activation) {
        case PENSTOCK_SILU:
            return finish_rows<epilogue, PENSTOCK_SILU, short_target>(finish, rows, sums, up, to, bytes);
        case PENSTOCK_GELU:
            return finish_rows<epilogue, PENSTOCK_GELU, short_target>(finish, rows, sums, up, to, bytes);
        case PENSTOCK_GELU_TANH:
            return finish_rows<epilogue, PENSTOCK_GELU_TANH, short_target>(finish, rows, sums, up, to, bytes);
        case PENSTOCK_QUICK_GELU:
            return finish_rows<epilogue, PENSTOCK_QUICK_GELU, short_target>(finish, rows, sums, up, to, bytes);
        case PENSTOCK_RELU:
            return finish_rows<epilogue, PENSTOCK_RELU, short_target>(finish, rows, sums, up, to, bytes);
        case PENSTOCK_RELU_SQUARED:
            return finish_rows<epilogue, PENSTOCK_RELU_SQUARED, short_target>(finish, rows, sums, up, to, bytes);
    }
}

// From sums of 32 bits to what they stand for, where they are.
INLINE void scale_sums(const LinearArgs &args, int64_t first_row, int rows, int tile, float *sums) {
    const F16 scales = load(args.scales + tile * 16);
    const I16 turned = kIsTurned ? (I16)load(reinterpret_cast<const float *>(args.sums) + tile * 16) : I16{};
    const uint8_t *from = args.source + first_row * args.source_bytes + scale_offset(args.inputs);
    for (int row = 0; row < rows; row++, from += args.source_bytes) {
        const I16 whole = (I16)load(sums + row * 16) - turned;
        store(sums + row * 16, __builtin_convertvector(whole, F16) * *reinterpret_cast<const float *>(from) * scales);
    }
}

// 16 outputs of some rows, from sums (rows, 16); `up`: of a gated layer, the sums that the activated ones are
// multiplied with.
SEPARATE void finish(const LinearArgs &args, int64_t first_row, int rows, int tile, float *sums, float *up,
                     int up_tile) {
    if (args.format != PENSTOCK_FORMAT_BF16) {
        scale_sums(args, first_row, rows, tile, sums);
        if (up) scale_sums(args, first_row, rows, up_tile, up);
    }
    const int output = tile * 16, outputs = args.epilogue == PENSTOCK_GATE ? args.outputs / 2 : args.outputs;
    const Finish finish = {args.bias ? load(args.bias + output) : F16{},
                           args.bias && up ? load(args.bias + up_tile * 16) : F16{}, args.scale, args.softcap,
                           static_cast<int>(least(16, outputs - output))};
    uint8_t *to = args.target + first_row * args.target_bytes + (int64_t)output * (args.to_bf16 ? 2 : 4);
    constexpr penstock_activation none = PENSTOCK_RELU;
    switch (args.epilogue) {
        case PENSTOCK_GATE:
            return finish_activated<PENSTOCK_GATE, true>(args.activation, finish, rows, sums, up, to,
                                                         args.target_bytes);
        case PENSTOCK_ACTIVATE:
            return finish_activated<PENSTOCK_ACTIVATE, true>(args.activation, finish, rows, sums, up, to,
                                                             args.target_bytes);
        case PENSTOCK_ADD:
            return finish_rows<PENSTOCK_ADD, none, false>(finish, rows, sums, up, to, args.target_bytes);
        case PENSTOCK_STORE:
            if (args.to_bf16)
                return finish_rows<PENSTOCK_STORE, none, true>(finish, rows, sums, up, to, args.target_bytes);
            return finish_rows<PENSTOCK_STORE, none, false>(finish, rows, sums, up, to, args.target_bytes);
    }
}

#if defined(PENSTOCK_AMX)
// Blocks of rows and tiles of inputs whose products are taken while the weights of two columns and the sums are in the
// first cache, which holds 48 KB.
constexpr int kRowsNear = 128, kTilesNear = 9;

// Two columns of tiles, or one, of more than 16 rows.
template <Numbers numbers>
INLINE void wide_block(const LinearArgs &args, int64_t begin, int64_t end, const uint8_t *const *columns,
                       const int *tiles, int count, int k_tiles, Use use, float *sums) {
    const int at_once = use == kOfStream ? k_tiles : kTilesNear;
    for (int64_t near = begin; near < end; near += kRowsNear) {
        const int64_t stop = least(near + kRowsNear, end);
        for (int k = 0; k < k_tiles; k += at_once) {
            const int some = static_cast<int>(least(at_once, k_tiles - k));
            const uint8_t *const from[2] = {columns[0] + (int64_t)k * kTileBytes,
                                            columns[count - 1] + (int64_t)k * kTileBytes};
            float *c = sums;
            for (int64_t row = near; row < stop; row += 32, c += 4 * kBlockFloats) {
                const uint8_t *a = args.source + row * args.source_bytes + k * 64;
                if (count == 1)
                    wide_product_of<1, kOfCached, numbers>(a, args.source_bytes, from, some, k > 0, c);
                else if (use == kOfStream)
                    wide_product_of<2, kOfStream, numbers>(a, args.source_bytes, from, some, k > 0, c);
                else
                    wide_product_of<2, kOfCached, numbers>(a, args.source_bytes, from, some, k > 0, c);
            }
        }
        float *c = sums;
        for (int64_t row = near; row < stop; row += 16, c += kBlockFloats) {
            if ((row - near) % 32 == 0 && row > near) c += 2 * kBlockFloats;
            const int rows = static_cast<int>(least(16, stop - row));
            float *second = c + 2 * kBlockFloats;
            if (args.epilogue == PENSTOCK_GATE) {
                finish(args, row, rows, tiles[0], c, second, tiles[1]);
            } else {
                finish(args, row, rows, tiles[0], c, nullptr, 0);
                if (count > 1) finish(args, row, rows, tiles[1], second, nullptr, 0);
            }
        }
    }
}
#endif

// Tiles of int4 of a column that are brought to int8 at once for few rows: two columns are half of the first cache.
constexpr int kInt4Near = 4;

// Products of up to 16 rows with columns of int4, brought to int8 piece by piece at `unpacked`, or of one or two rows in
// registers.
INLINE void int4_product(const LinearArgs &args, const uint8_t *a, int rows, const uint8_t *const *columns,
                         const int *outputs, int count, int k_tiles, uint8_t *unpacked, float *sums) {
    const int tiles = (k_tiles + 1) / 2;
#if defined(PENSTOCK_AVX512)
    while (rows <= 2 && count >= 2) {
        const int32_t *const weight_sums[] = {args.sums + outputs[0] * 16, args.sums + outputs[1] * 16};
        if (rows == 1)
            int4_rows<1, 2>(a, args.source_bytes, columns, weight_sums, tiles, sums);
        else
            int4_rows<2, 2>(a, args.source_bytes, columns, weight_sums, tiles, sums);
        columns += 2, outputs += 2, count -= 2, sums += 2 * kBlockFloats;
    }
    if (count == 0) return;
#else
    (void)outputs;
#endif
    const uint8_t *from[kMostTiles];
    for (int i = 0; i < count; i++) from[i] = unpacked + i * kInt4Near * 2 * kTileBytes;
    for (int first = 0; first < tiles; first += kInt4Near) {
        const int some = static_cast<int>(least(kInt4Near, tiles - first));
        for (int i = 0; i < count; i++)
            for (int k = 0; k < some; k++) {
                const uint8_t *tile = columns[i] + (int64_t)(first + k) * PENSTOCK_INT4_BYTES;
                fetch_near(tile + 2 * PENSTOCK_INT4_BYTES, PENSTOCK_INT4_BYTES);
                unpack_int4(tile, unpacked + (i * kInt4Near + k) * 2 * kTileBytes);
            }
        byte_product(a + first * 2 * PENSTOCK_BYTE_INPUTS, args.source_bytes, rows, from, count,
                     static_cast<int>(least(2 * some, k_tiles - 2 * first)), kOfCached, first > 0, sums);
    }
}

// Up to four tiles of outputs of some rows.
INLINE void linear_block(const LinearArgs &args, int64_t begin, int64_t end, const int *tiles, int count, float *sums) {
    const bool gated = args.epilogue == PENSTOCK_GATE, is_bf16 = args.format == PENSTOCK_FORMAT_BF16;
    bool is_int4 = args.format == PENSTOCK_FORMAT_INT4;
    const int k_tiles = args.inputs / (is_bf16 ? PENSTOCK_TILE_INPUTS : PENSTOCK_BYTE_INPUTS);
    const int64_t column_bytes = is_int4 ? (int64_t)((k_tiles + 1) / 2) * PENSTOCK_INT4_BYTES
                                         : (int64_t)k_tiles * kTileBytes;
    const uint8_t *columns[kMostTiles];
    for (int i = 0; i < count; i++) columns[i] = args.weight + tiles[i] * column_bytes;
    uint8_t *unpacked = reinterpret_cast<uint8_t *>(sums) + kUnpackedOffset;
    if (is_int4 && args.rows > 16) {
        // Two columns whole, for all rows.
        const int64_t unpacked_bytes = (int64_t)(k_tiles + 1) / 2 * 2 * kTileBytes;
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < (k_tiles + 1) / 2; k++)
                unpack_int4(columns[i] + k * PENSTOCK_INT4_BYTES, unpacked + i * unpacked_bytes + k * 2 * kTileBytes);
            columns[i] = unpacked + i * unpacked_bytes;
        }
        is_int4 = false;
    }
#if defined(PENSTOCK_AMX)
    if (args.rows > 16) {
        const Use use = args.rows <= 32 && args.format != PENSTOCK_FORMAT_INT4 ? kOfStream : kOfCached;
        for (int i = 0; i < count; i += 2) {
            const int some = static_cast<int>(least(2, count - i));
            if (is_bf16)
                wide_block<kShorts>(args, begin, end, columns + i, tiles + i, some, k_tiles, use, sums);
            else
                wide_block<kBytes>(args, begin, end, columns + i, tiles + i, some, k_tiles, use, sums);
        }
        return;
    }
#endif
    const Use use = args.rows <= 16 ? kOfStream : kOfCached;
    for (int64_t row = begin; row < end; row += 16) {
        const int rows = static_cast<int>(least(16, end - row));
        const uint8_t *a = args.source + row * args.source_bytes;
        if (is_bf16)
            product(a, args.source_bytes, rows, columns, count, k_tiles, use, sums);
        else if (is_int4)
            int4_product(args, a, rows, columns, tiles, count, k_tiles, unpacked, sums);
        else
            byte_product(a, args.source_bytes, rows, columns, count, k_tiles, use, false, sums);
        for (int i = 0; i < count; i += gated ? 2 : 1)
            finish(args, row, rows, tiles[i], sums + i * kBlockFloats, gated ? sums + (i + 1) * kBlockFloats : nullptr,
                   gated ? tiles[i + 1] : 0);
    }
}

void linear(const LinearArgs &args, const Work &work) {
    float *sums = reinterpret_cast<float *>(work.scratch);
    const int all_tiles = static_cast<int>(round_up(args.outputs, 16) / 16);
    const bool gated = args.epilogue == PENSTOCK_GATE;
    const int half = all_tiles / 2;
    const int units = gated ? half : (all_tiles + 1) / 2;  // of two tiles
    const int64_t chunks = (args.rows + kRowsInChunk - 1) / kRowsInChunk;
    const bool is_unpacked_whole = args.format == PENSTOCK_FORMAT_INT4 && args.rows > 16;
    const int units_at_once = units * chunks >= 16 * work.members && !is_unpacked_whole ? 2 : 1;
    const int64_t groups = (units + units_at_once - 1) / units_at_once;
    configure_products(static_cast<int>(least(16, args.rows)));
    for (int64_t item; (item = take(work, 1)) < groups * chunks;) {
        const int64_t chunk = item % chunks;
        const int first = static_cast<int>(item / chunks) * units_at_once;
        int tiles[kMostTiles], count = 0;
        for (int unit = first; unit < least(first + units_at_once, units); unit++) {
            tiles[count++] = gated ? unit : 2 * unit;
            if (gated)
                tiles[count++] = unit + half;
            else if (2 * unit + 1 < all_tiles)
                tiles[count++] = 2 * unit + 1;
        }
        linear_block(args, chunk * kRowsInChunk, least((chunk + 1) * kRowsInChunk, args.rows), tiles, count, sums);
    }
}

// ---- queries, keys and values ----

// One head, from (D,) fp32 to (width,) bf16 with zeros beyond D. `x` is memory for the numbers in between.
SEPARATE void head_of(const WriteKvArgs &args, const float *from, bool normed, float mean, float factor,
                      const float *weight, const float *cos, const float *sin, float *x, int width, uint16_t *to) {
    const int size = args.heads.head_dim;
    for (int at = 0; at < width; at += 16)
        store(x + at, at + 16 <= size ? load(from + at) : at < size ? load_some(from + at, size - at) : F16{});
    if (args.clip != 0.0f)
        for (int at = 0; at < width; at += 16)
            store(x + at, maximum(minimum(load(x + at), all(args.clip)), all(-args.clip)));
    if (normed) {
        if (args.norm_over != PENSTOCK_OVER_ALL) statistics(x, size, args.norm, args.eps, &mean, &factor);
        for (int i = 0; i < size; i++) x[i] = (x[i] - mean) * factor * (weight ? weight[i] : 1.0f);
    }
    if (cos) {
        const int half = args.rope_dim / 2;
        for (int i = 0; i < half; i++) {
            const float a = x[i], b = x[i + half];
            x[i] = a * cos[i] - b * sin[i];
            x[i + half] = b * cos[i] + a * sin[i];
        }
    }
    for (int at = 0; at < width; at += 16) store_bf16(to + at, to_bf16(load(x + at)));
}

// Of a norm over all heads at once; clipped as the heads will be.
SEPARATE void statistics_over_all(const WriteKvArgs &args, const float *from, int width, float *copy, float *mean,
                                  float *factor) {
    if (args.clip == 0.0f) {
        statistics(from, width, args.norm, args.eps, mean, factor);
        return;
    }
    for (int i = 0; i < width; i++)
        copy[i] = from[i] > args.clip ? args.clip : from[i] < -args.clip ? -args.clip : from[i];
    statistics(copy, width, args.norm, args.eps, mean, factor);
}

void write_kv(const WriteKvArgs &args, const Work &work) {
    const Heads &heads = args.heads;
    const int size = heads.head_dim, all_queries = heads.group * heads.kv_heads;
    float *x = reinterpret_cast<float *>(work.scratch);
    uint16_t *short_x = reinterpret_cast<uint16_t *>(x + heads.key_dim);
    const bool normed = args.norm != PENSTOCK_NORM_NONE, over_all = normed && args.norm_over == PENSTOCK_OVER_ALL;
    const bool over_heads = args.norm_over != PENSTOCK_OVER_HEAD;  // a weight for each head
    const int64_t at_once = share(args.tokens, work), parts = (args.tokens + at_once - 1) / at_once;
    for (int64_t item; (item = take(work, 1)) < parts * heads.kv_heads;) {
        const int head = static_cast<int>(item % heads.kv_heads);
        const int64_t begin = item / heads.kv_heads * at_once;
        for (int64_t token = begin; token < least(begin + at_once, args.tokens); token++) {
            const float *from = reinterpret_cast<const float *>(args.source + token * args.source_bytes);
            const float *keys = from + all_queries * size, *values = keys + heads.kv_heads * size;
            const int64_t position = args.token_positions[token];
            const float *cos = args.cos ? args.cos + position * (args.rope_dim / 2) : nullptr;
            const float *sin = args.sin ? args.sin + position * (args.rope_dim / 2) : nullptr;
            float query_mean = 0, query_factor = 1, key_mean = 0, key_factor = 1;
            if (over_all) {
                // `copy` is behind what the heads need; only clipped models use it.
                float *copy = reinterpret_cast<float *>(work.scratch + 16 * 1024);
                statistics_over_all(args, from, all_queries * size, copy, &query_mean, &query_factor);
                statistics_over_all(args, keys, heads.kv_heads * size, copy, &key_mean, &key_factor);
            }
            for (int g = 0; g < heads.group; g++) {
                const int query = head * heads.group + g;
                const float *weight = args.query_norm ? args.query_norm + (over_heads ? query * size : 0) : nullptr;
                uint8_t *to = args.queries + head * args.head_stride + (token * heads.group + g) * heads.key_dim * 2;
                head_of(args, from + query * size, normed, query_mean, query_factor, weight, cos, sin, x, heads.key_dim,
                        reinterpret_cast<uint16_t *>(to));
            }
            const int64_t page = args.rows[args.token_rows[token]].pages[position / PENSTOCK_PAGE_TOKENS];
            const int at = static_cast<int>(position % PENSTOCK_PAGE_TOKENS);
            uint8_t *there = args.cache + page * heads.page_bytes + head * heads.head_bytes;
            const float *weight = args.key_norm ? args.key_norm + (over_heads ? head * size : 0) : nullptr;
            head_of(args, keys + head * size, normed, key_mean, key_factor, weight, cos, sin, x, heads.key_dim,
                    short_x);
            for (int pair = 0; pair < heads.key_dim / 2; pair++)
                *reinterpret_cast<uint32_t *>(there + pair * 64 + at * 4) =
                    short_x[2 * pair] | (uint32_t)short_x[2 * pair + 1] << 16;
            head_of(args, values + head * size, false, 0, 1, nullptr, nullptr, nullptr, x, heads.value_dim, short_x);
            uint8_t *value = there + heads.value_offset + at / 2 * 64 + at % 2 * 2;
            for (int i = 0; i < heads.value_dim; i++)
                *reinterpret_cast<uint16_t *>(value + i / 16 * 512 + i % 16 * 4) = short_x[i];
        }
    }
}

// ---- attention ----

// What is known of a query after some splits: the largest score, the sum of exponentials relative to it, and the sum of
// values (value_dim). A split adds its own. `total` 0: no key was seen yet, or none in the split.
SEPARATE void join(float *largest, float *total, float *sum, float split_largest, float split_total,
                   const float *split_sum, long stride, int value_dim) {
    if (split_total == 0.0f) return;
    if (*total == 0.0f) {
        *largest = split_largest, *total = split_total;
        for (int at = 0; at < value_dim; at += 16) store(sum + at, load(split_sum + at / 16 * stride));
        return;
    }
    const float both = *largest > split_largest ? *largest : split_largest;
    const F16 factors = exponential(F16{*largest - both, split_largest - both});
    const float old = factors[0], added = factors[1];
    for (int at = 0; at < value_dim; at += 16)
        store(sum + at, load(sum + at) * old + load(split_sum + at / 16 * stride) * added);
    *total = *total * old + split_total * added;
    *largest = both;
}

INLINE int64_t first_seen(const AttentionArgs &args, int64_t position) {
    if (args.window == 0) return 0;
    if (args.chunked) return position / args.window * args.window;
    return most(position + 1 - args.window, 0);
}

constexpr int kScoreFloats = kPagesInSplit * kBlockFloats;
constexpr int kWeightBytes = kSplit * 2 + 64;

struct AttentionScratch {
    float *scores;     // (pages, queries, 16 keys)
    uint8_t *weights;  // (queries, kWeightBytes): exponentials in bf16
    float *values;     // (columns, queries, 16)
    float *sums;       // (queries, value_dim)
    uint8_t *page;     // values of the last page, where it is not full
};

INLINE AttentionScratch scratch_of(const AttentionArgs &args, const Work &work) {
    AttentionScratch s;
    uint8_t *at = work.scratch;
    s.scores = reinterpret_cast<float *>(at), at += kScoreFloats * 4;
    s.weights = at, at += kQueries * kWeightBytes;
    s.values = reinterpret_cast<float *>(at), at += kMostTiles * kBlockFloats * 4;
    s.page = at, at += args.heads.value_dim * 32;
    s.sums = reinterpret_cast<float *>(at);
    return s;
}

// Exponentials of a query's scores with the keys of some pages, into weights; their sum and the largest score.
SEPARATE void soften(const AttentionArgs &args, float *scores, uint8_t *weights, int pages, int64_t first_key,
                     int64_t lowest, int64_t position, float *largest, float *total) {
    const F16 hidden = all(-__builtin_inff());
    *total = 0.0f, *largest = -__builtin_inff();
    int begin = 0, end = pages;
    while (begin < pages && first_key + begin * 16 + 15 < lowest) begin++;
    while (end > begin && first_key + (end - 1) * 16 > position) end--;
    for (int page = 0; page < pages; page++)
        if (page < begin || page >= end) store_bf16(weights + page * 32, H16{});
    if (begin == end) return;
    F16 best = hidden;
    for (int page = begin; page < end; page++) {
        float *at = scores + page * kBlockFloats;
        F16 x = load(at) * args.scale;
        if (args.softcap != 0.0f) x = tanh_of(x / args.softcap) * args.softcap;
        const int64_t key = first_key + page * 16;
        if (key + 15 > position || key < lowest) {
            const I16 keys = lanes() + static_cast<int32_t>(key);
            x = keys > static_cast<int32_t>(position) ? hidden : x;
            x = keys < static_cast<int32_t>(lowest) ? hidden : x;
        }
        store(at, x);
        best = maximum(x, best);
    }
    *largest = maximum_of(best);
    F16 sum = {};
    for (int page = begin; page < end; page++) {
        const F16 x = exponential(load(scores + page * kBlockFloats) - *largest);
        sum += x;
        store_bf16(weights + page * 32, to_bf16(x));
    }
    *total = sum_of(sum);
}

// Splits of an item of a key head, into largest, total and sums of up to kQueries queries.
void attend(const AttentionArgs &args, const AttentionItem &item, int head, const AttentionScratch &s, float *largest,
            float *total, float *sums) {
    const Heads &heads = args.heads;
    const Row &row = args.rows[item.row];
    const int queries = static_cast<int>(least(kQueries, row.count * heads.group - item.first_query));
    const uint8_t *q =
        args.queries + head * args.head_stride + (row.first_token * heads.group + item.first_query) * heads.key_dim * 2;
    const int64_t first_position = row.position + item.first_query / heads.group;
    const int64_t last_position = row.position + (item.first_query + queries - 1) / heads.group;
    const int64_t lowest = first_seen(args, first_position), filled = row.position + row.count;
    const int columns = heads.value_dim / 16;
    for (int i = 0; i < queries; i++) largest[i] = 0.0f, total[i] = 0.0f;
    for (int split = item.split_begin; split < item.split_end; split++) {
        const int64_t first_page = most((int64_t)split * kPagesInSplit, lowest / PENSTOCK_PAGE_TOKENS);
        const int64_t end_page = least((int64_t)(split + 1) * kPagesInSplit, last_position / PENSTOCK_PAGE_TOKENS + 1);
        const int pages = static_cast<int>(end_page - first_page);
        if (pages <= 0) continue;
        const uint8_t *page[kPagesInSplit];
        for (int i = 0; i < pages; i++)
            page[i] = args.cache + row.pages[first_page + i] * heads.page_bytes + head * heads.head_bytes;
        const bool is_decode = row.count == 1;  // pages come from far, and serve these queries only
        for (int i = 0; i < pages; i += kMostTiles) {
            if (is_decode)
                for (int next = i; next < least(i + kMostTiles, pages); next++) {
                    if (next + kMostTiles < pages) fetch_near(page[next + kMostTiles], heads.value_offset);
                    fetch_far(page[next] + heads.value_offset, heads.value_dim * 32);
                }
            product(q, heads.key_dim * 2, queries, page + i, static_cast<int>(least(kMostTiles, pages - i)),
                    heads.key_dim / PENSTOCK_TILE_INPUTS, kOfAttention, s.scores + i * kBlockFloats);
        }
        float split_largest[kQueries], split_total[kQueries];
        for (int i = 0; i < queries; i++) {
            const int64_t position = row.position + (item.first_query + i) / heads.group;
            soften(args, s.scores + i * 16, s.weights + i * kWeightBytes, pages, first_page * PENSTOCK_PAGE_TOKENS,
                   first_seen(args, position), position, &split_largest[i], &split_total[i]);
        }
        if (end_page * PENSTOCK_PAGE_TOKENS > filled) {
            // A key that is not there yet has the weight 0, and what is in its place may be no number.
            const uint8_t *from = page[pages - 1] + heads.value_offset;
            const int64_t there = filled - (end_page - 1) * PENSTOCK_PAGE_TOKENS;
            for (int at = 0; at < heads.value_dim / 2; at++) {  // a pair of tokens
                const int token = at % 8 * 2;
                const U16 pair = *reinterpret_cast<const U16 *>(from + at * 64);
                *reinterpret_cast<U16 *>(s.page + at * 64) = token + 1 < there ? pair
                                                             : token < there   ? pair & 0xffffu
                                                                               : U16{};
            }
            page[pages - 1] = s.page - heads.value_offset;
        }
        for (int column = 0; column < columns; column += kMostTiles) {
            const int some = static_cast<int>(least(kMostTiles, columns - column));
            product_with_values(s.weights, kWeightBytes, queries, page, pages, some, heads.value_offset + column * 512,
                                s.values);
            for (int i = 0; i < queries; i++) {
                // Each group of columns is joined with the same numbers.
                float so_far = largest[i], so_much = total[i];
                join(&so_far, &so_much, sums + i * heads.value_dim + column * 16, split_largest[i], split_total[i],
                     s.values + i * 16, kBlockFloats, some * 16);
                if (column + kMostTiles >= columns) largest[i] = so_far, total[i] = so_much;
            }
        }
    }
}

SEPARATE void write_attended(const AttentionArgs &args, const AttentionItem &item, int head, int query, float total,
                             const float *sums) {
    const Heads &heads = args.heads;
    const int64_t at = item.first_query + query, token = args.rows[item.row].first_token + at / heads.group;
    uint8_t *to =
        args.target + token * args.target_bytes + (head * heads.group + at % heads.group) * heads.head_dim * 2;
    const float factor = 1.0f / total;
    for (int i = 0; i < heads.head_dim; i += 16) {
        const H16 x = to_bf16(load(sums + i) * factor);
        if (heads.head_dim - i >= 16)
            store_bf16(to + i * 2, x);
        else
            store_some_bf16(to + i * 2, x, heads.head_dim - i);
    }
}

void attention(const AttentionArgs &args, const Work &work) {
    const Heads &heads = args.heads;
    const AttentionScratch s = scratch_of(args, work);
    int configured = 0;
    for (int64_t number; (number = take(work, 1)) < args.item_count * heads.kv_heads;) {
        const AttentionItem &item = args.items[number / heads.kv_heads];
        const int head = static_cast<int>(number % heads.kv_heads);
        const int queries =
            static_cast<int>(least(kQueries, args.rows[item.row].count * heads.group - item.first_query));
        if (queries != configured) configure_attention(configured = queries);
        float largest[kQueries], total[kQueries];
        if (item.part < 0) {
            attend(args, item, head, s, largest, total, s.sums);
            for (int i = 0; i < queries; i++)
                write_attended(args, item, head, i, total[i], s.sums + i * heads.value_dim);
            continue;
        }
        float *part = args.parts + ((int64_t)item.part * heads.kv_heads + head) * args.part_floats;
        attend(args, item, head, s, part, part + kQueries, part + 2 * kQueries);
    }
}

void join_attention(const AttentionArgs &args, const Work &work) {
    const Heads &heads = args.heads;
    const AttentionScratch s = scratch_of(args, work);
    for (int64_t number; (number = take(work, 1)) < args.join_count * heads.kv_heads;) {
        const AttentionJoin &parts = args.joins[number / heads.kv_heads];
        const int head = static_cast<int>(number % heads.kv_heads);
        const int queries =
            static_cast<int>(least(kQueries, args.rows[parts.row].count * heads.group - parts.first_query));
        const AttentionItem item = {parts.row, parts.first_query, 0, 0, -1};
        for (int i = 0; i < queries; i++) {
            float largest = 0.0f, total = 0.0f;
            for (int split = 0; split < parts.parts; split++) {
                const float *part =
                    args.parts + ((int64_t)(parts.first_part + split) * heads.kv_heads + head) * args.part_floats;
                join(&largest, &total, s.sums, part[i], part[kQueries + i], part + 2 * kQueries + i * heads.value_dim,
                     16, heads.value_dim);
            }
            write_attended(args, item, head, i, total, s.sums);
        }
    }
}

// ---- logits ----

SEPARATE Summary summarize_part(const float *logits, int64_t first, int64_t columns) {
    const F16 hidden = all(-__builtin_inff());
    const auto numbers = [&](int64_t at, F16 beyond) {
        if (at + 16 <= columns) return load(logits + at);
        const int count = static_cast<int>(columns - at);
        return lanes() < count ? load_some(logits + at, count) : beyond;
    };
    F16 best = hidden, unsound = {};
    I16 places = {};
    for (int64_t at = 0; at < columns; at += 16) {
        const F16 x = numbers(at, hidden);
        const I16 is_larger = x > best;
        best = is_larger ? x : best;
        places = is_larger ? I16{} + static_cast<int32_t>(at) : places;
        const F16 real = numbers(at, F16{});
        unsound += real - real;
    }
    Summary made = {maximum_of(best), 0.0f, 0};
    int32_t lowest = 0x7fffffff;
    for (int lane = 0; lane < 16; lane++)
        if (best[lane] == made.largest && places[lane] + lane < lowest) lowest = places[lane] + lane;
    made.token = first + lowest;
    F16 sum = {};
    for (int64_t at = 0; at < columns; at += 16) sum += exponential(numbers(at, hidden) - made.largest);
    made.total = sum_of(sum) + sum_of(unsound);
    return made;
}

void summarize(const SummarizeArgs &args, const Work &work) {
    const int64_t parts = (args.columns + kSummarized - 1) / kSummarized;
    for (int64_t item; (item = take(work, 1)) < args.rows * parts;) {
        const int64_t first = item % parts * kSummarized;
        args.parts[item] = summarize_part(args.logits + item / parts * args.stride + first, first,
                                          least(kSummarized, args.columns - first));
    }
}

void join_summaries(const SummarizeArgs &args, const Work &work) {
    const int64_t parts = (args.columns + kSummarized - 1) / kSummarized;
    for (int64_t row; (row = take(work, 1)) < args.rows;) {
        const Summary *of_row = args.parts + row * parts, *best = of_row;
        for (int64_t part = 1; part < parts; part++)
            if (of_row[part].largest > best->largest) best = of_row + part;
        float total = 0.0f;
        for (int64_t part = 0; part < parts; part++)
            total += of_row[part].total * exponential(all(of_row[part].largest - best->largest))[0];
        args.tokens[row] = best->token, args.largest[row] = best->largest, args.totals[row] = total;
    }
}

// ---- the table ----

void begin() {}

void end() {
#if defined(PENSTOCK_AMX)
    asm volatile("tilerelease");  // or the system saves 8 KB with every switch of threads
#endif
}

}  // namespace

const Kernels *PENSTOCK_NAME_OF(PENSTOCK_ISA)() {
    static const Kernels kernels = {begin,    end,       embed,          norm,           quantize, linear,
                                    write_kv, attention, join_attention, quantize_weight,
                                    summarize, join_summaries};
    return &kernels;
}

}  // namespace penstock
