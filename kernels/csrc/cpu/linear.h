// Products with weights and what becomes of them, for all rows of a step or for those of each expert. Included by
// kernels.cpp.
#pragma once

#include "grouped.h"
#include "int4.h"
#include "quantize.h"
#include "work.h"

namespace {

// Rows whose products are taken while weights pass: they are in the processor's second cache, and columns of tiles as well.
constexpr int kRowsInChunk = 256;

INLINE int rows_in_chunk([[maybe_unused]] const LinearArgs &args) {
#if defined(PENSTOCK_AMX)
    // Of 2 MB, or tiles are loaded from further away than they are multiplied.
    if (args.source_bytes * kRowsInChunk > 3 << 19) return kRowsInChunk / 2;
#endif
    return kRowsInChunk;
}

// Of a tile, for `finish`.
struct Finish {
    F16 bias, up_bias;
    float scale, softcap, limit, alpha, lowest;
    int count;  // outputs that there are
};

template <penstock_epilogue epilogue, penstock_activation activation, bool short_target>
INLINE void finish_rows(const Finish &finish, int rows, const float *sums, const float *up, uint8_t *to,
                        int64_t target_bytes) {
    for (int row = 0; row < rows; row++, to += target_bytes) {
        F16 y = load(sums + row * 16) + finish.bias;
        float *long_to = reinterpret_cast<float *>(to);
        if (epilogue == PENSTOCK_GATE && activation == PENSTOCK_CLAMPED_GATE) {
            const F16 gate = minimum(y, all(finish.limit)), limit = all(finish.limit);
            const F16 opened = maximum(minimum(load(up + row * 16) + finish.up_bias, limit), -limit) + 1.0f;
            y = gate * sigmoid(finish.alpha * gate) * opened;
        } else if (epilogue == PENSTOCK_GATE && activation == PENSTOCK_LIMITED_GATE) {
            // What is no number stays none.
            const F16 limit = all(finish.limit), opened = load(up + row * 16) + finish.up_bias;
            y = activated(minimum(limit, y), PENSTOCK_SILU) * maximum(-limit, minimum(limit, opened));
        } else if (epilogue == PENSTOCK_GATE) {
            y = activated(y, activation) * (load(up + row * 16) + finish.up_bias);
        }
        if (epilogue == PENSTOCK_ACTIVATE && activation == PENSTOCK_XIELU) {
            const F16 below = (exponential(minimum(y, all(finish.limit))) - 1.0f - y) * finish.lowest;
            y = select(is_less(F16{}, y), y * y * finish.alpha, below) + y * finish.scale;
        } else if (epilogue == PENSTOCK_ACTIVATE) {
            if (finish.scale != 1.0f) y = y * finish.scale;
            y = activated(y, activation);
        }
        if (epilogue == PENSTOCK_ADD) y = y * finish.scale + load(long_to);
        if (epilogue == PENSTOCK_STORE) {
            if (finish.scale != 1.0f) y = y * finish.scale;
            if (finish.softcap != 0.0f) y = tanh_of(y / finish.softcap) * finish.softcap;
        }
        if (short_target)
            store_bf16_up_to(to, y, finish.count);
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
        case PENSTOCK_XIELU:
            return finish_rows<epilogue, PENSTOCK_XIELU, short_target>(finish, rows, sums, up, to, bytes);
        case PENSTOCK_LIMITED_GATE:
            return finish_rows<epilogue, PENSTOCK_LIMITED_GATE, short_target>(finish, rows, sums, up, to, bytes);
        default:
            return finish_rows<epilogue, PENSTOCK_CLAMPED_GATE, short_target>(finish, rows, sums, up, to, bytes);
    }
}

// From sums of 32 bits to what they stand for, where they are; those of groups have their scales already.
INLINE void scale_sums(const LinearArgs &args, int64_t first_row, int rows, int tile, float *sums) {
    if (group_of(args.format)) {
        const uint8_t *from = args.source + first_row * args.source_bytes + scale_offset(args.inputs);
        for (int row = 0; row < rows; row++, from += args.source_bytes)
            store(sums + row * 16, load(sums + row * 16) * *reinterpret_cast<const float *>(from));
        return;
    }
    const F16 scales = load(args.scales + tile * 16);
    const I16 turned = kIsTurned ? (I16)load(reinterpret_cast<const float *>(args.sums) + tile * 16) : I16{};
    const uint8_t *from = args.source + first_row * args.source_bytes + scale_offset(args.inputs);
    for (int row = 0; row < rows; row++, from += args.source_bytes) {
        const I16 whole = (I16)load(sums + row * 16) - turned;
        store(sums + row * 16, to_floats(whole) * *reinterpret_cast<const float *>(from) * scales);
    }
}

// Of rows of an expert, each added to its token's, times its weight.
SEPARATE void finish_expert(const LinearArgs &args, int64_t first_row, int rows, int tile, const float *sums) {
    const int output = tile * 16, count = static_cast<int>(least(16, args.outputs - output));
    const F16 bias = args.bias ? load(args.bias + output) : F16{};
    for (int row = 0; row < rows; row++) {
        const int64_t entry = first_row + row;
        const float weight = args.weights ? args.weights[entry] : 1.0f;
        float *to = reinterpret_cast<float *>(args.target + args.tokens[entry] * args.target_bytes) + output;
        const F16 y = (load(sums + row * 16) + bias) * (weight * args.scale);
        store_up_to(to, load_up_to(to, count) + y, count);
    }
}

// What adapters make of rows that have one.
SEPARATE void add_adapted(const LinearArgs &args, int64_t first_row, int rows, int tile, float *sums) {
    const int64_t output = int64_t{tile} * 16;
    for (int row = 0; row < rows; row++) {
        if (args.adapters[first_row + row] < 0) continue;
        const auto *from = reinterpret_cast<const float *>(args.added + (first_row + row) * args.added_bytes) + output;
        store(sums + row * 16, load(sums + row * 16) + load_up_to(from, args.outputs - output));
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
    if (args.tokens) return finish_expert(args, first_row, rows, tile, sums);
    if (args.added) {
        add_adapted(args, first_row, rows, tile, sums);
        if (up) add_adapted(args, first_row, rows, up_tile, up);
    }
    const int output = tile * 16, outputs = args.epilogue == PENSTOCK_GATE ? args.outputs / 2 : args.outputs;
    const Finish finish = {args.bias ? load(args.bias + output) : F16{},
                           args.bias && up ? load(args.bias + up_tile * 16) : F16{}, args.scale, args.softcap,
                           args.limit, args.alpha, args.lowest,
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
// Rows, and tiles of inputs at most, whose products are taken while the weights of two columns are in the first cache, which
// holds 48 KB.
constexpr int kRowsNear = 128, kTilesNear = 16;

// Two columns of tiles, or one, of more than 16 rows. `unpacked`: they are int4 yet, of up to 32 rows; memory for what becomes of it.
template <Numbers numbers>
INLINE void wide_block(const LinearArgs &args, int64_t begin, int64_t end, const uint8_t *const *columns,
                       const int *tiles, int count, int k_tiles, Use use, long step, uint8_t *unpacked, float *sums) {
    const int parts = use == kOfStream ? 1 : (k_tiles + kTilesNear - 1) / kTilesNear, at_once = (k_tiles + parts - 1) / parts;
    if (unpacked) {
        const uint8_t *a = args.source + begin * args.source_bytes;
        const int quads = ((args.width ? args.width : args.inputs) + 3) / 4;
        if (count == 1)
            int4_tiles<1, 2>(a, args.source_bytes, columns, quads, step, unpacked, sums);
        else
            int4_tiles<2, 2>(a, args.source_bytes, columns, quads, step, unpacked, sums);
    }
    for (int64_t near = begin; near < end; near += kRowsNear) {
        const int64_t stop = least(near + kRowsNear, end);
        for (int k = 0; k < k_tiles && !unpacked; k += at_once) {
            const int some = static_cast<int>(least(at_once, k_tiles - k));
            const uint8_t *const from[2] = {columns[0] + (int64_t)k * kTileBytes,
                                            columns[count - 1] + (int64_t)k * kTileBytes};
            float *c = sums;
            for (int64_t row = near; row < stop; row += 32, c += 4 * kBlockFloats) {
                const uint8_t *a = args.source + row * args.source_bytes + k * 64;
                const long next = row == begin ? step : 0;
                if (count == 1)
                    wide_product_of<1, kOfCached, numbers>(a, args.source_bytes, from, some, next, k > 0, c);
                else if (use == kOfStream)
                    wide_product_of<2, kOfStream, numbers>(a, args.source_bytes, from, some, step, k > 0, c);
                else
                    wide_product_of<2, kOfCached, numbers>(a, args.source_bytes, from, some, next, k > 0, c);
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

#if defined(PENSTOCK_NIBBLES)
// Products of up to 16 rows with columns of int4, as they are. `asks`: for those that are multiplied next.
INLINE void int4_product(const LinearArgs &args, const uint8_t *a, int rows, const uint8_t *const *columns, int count, int quads,
                         long step, bool asks, uint8_t *memory, float *sums) {
    const int of_row = (quads + 31) / 32 * 4;
    auto *const eights = reinterpret_cast<int16_t *>(memory);
    for (int r = 0; r < rows; r++) sum_groups(a + r * args.source_bytes, quads, -8, eights + r * of_row);
    for (int i = 0; i < count; i++) {
        const long to_next = (i + 1 < count ? columns[i + 1] : columns[0] + step) - columns[i];
        in_parts(rows, asks, [&]<int some, int sides>(int row, int side, Asking asking) {
            int4_block<some, sides>(a + row * args.source_bytes, args.source_bytes, columns[i], side, quads, asking, to_next,
                                    eights + row * of_row, sums + i * kBlockFloats + row * 16);
        });
    }
}
#else
// Tiles of int4 of a column that are brought to int8 at once for few rows: two columns are half of the first cache.
constexpr int kInt4Near = 4;

// Products of up to 16 rows with columns of int4, brought to int8 piece by piece: with AVX-512 in registers, for more rows than their
// sums fit on AMX tile by tile at `unpacked`, and else there some tiles at once; or of one or two rows as they are.
INLINE void int4_product(const LinearArgs &args, const uint8_t *a, int rows, const uint8_t *const *columns,
                         int count, int quads, long step, bool, [[maybe_unused]] uint8_t *unpacked, float *sums) {
    [[maybe_unused]] const int tiles = (quads + 31) / 32;
#if defined(PENSTOCK_AVX512) || defined(PENSTOCK_NEON)
    if (rows <= 2) {
        // Of a gated layer gates are multiplied first, which lie one behind the other, and then what they open.
        const bool are_pairs = args.epilogue == PENSTOCK_GATE && count == 4;
        int order[kMostTiles];
        for (int i = 0; i < count; i++) order[i] = are_pairs ? i % 2 * 2 + i / 2 : i;
#if defined(PENSTOCK_AVX512)
        // Behind the sums.
        auto *const eights = reinterpret_cast<int32_t *>(sums + kMostTiles * kBlockFloats);
        if (rows == 1) sum_int4_inputs(a, quads, eights);
#endif
        for (int i = 0; i < count; i++) {
            const uint8_t *const column = columns[order[i]];
            const long to_next = i + 1 < count ? columns[order[i + 1]] - column : columns[0] + step - column;
            float *const to = sums + order[i] * kBlockFloats;
#if defined(PENSTOCK_AVX512)
            if (rows == 1)
                int4_rows<1>(a, args.source_bytes, column, quads, to_next, eights, to);
            else
                int4_rows<2>(a, args.source_bytes, column, quads, to_next, eights, to);
#else
            if (rows == 1)
                int4_rows<1>(a, args.source_bytes, column, tiles, to_next, to);
            else
                int4_rows<2>(a, args.source_bytes, column, tiles, to_next, to);
#endif
        }
        return;
    }
#endif
#if defined(PENSTOCK_AMX)
    if (rows > kInt4Rows) {
        switch (count) {
            case 4:
                return int4_tiles<4, 1>(a, args.source_bytes, columns, quads, step, unpacked, sums);
            case 3:
                return int4_tiles<3, 1>(a, args.source_bytes, columns, quads, step, unpacked, sums);
            case 2:
                return int4_tiles<2, 1>(a, args.source_bytes, columns, quads, step, unpacked, sums);
            default:
                return int4_tiles<1, 1>(a, args.source_bytes, columns, quads, step, unpacked, sums);
        }
    }
#endif
#if defined(PENSTOCK_AVX512)
    for (int i = 0; i < count; i += 2) {
        const long to_next = i + 2 < count ? columns[i + 2] - columns[i] : columns[0] + step - columns[i];
        if (i + 1 < count)
            int4_blocks<2>(a, args.source_bytes, rows, columns + i, quads, to_next, sums + i * kBlockFloats);
        else
            int4_blocks<1>(a, args.source_bytes, rows, columns + i, quads, to_next, sums + i * kBlockFloats);
    }
#else
    const uint8_t *from[kMostTiles];
    for (int i = 0; i < count; i++) from[i] = unpacked + i * kInt4Near * 2 * kTileBytes;
    for (int first = 0; first < tiles; first += kInt4Near) {
        const int some = static_cast<int>(least(kInt4Near, tiles - first));
        for (int i = 0; i < count; i++)
            for (int k = 0; k < some; k++) {
                const uint8_t *tile = columns[i] + (int64_t)(first + k) * PENSTOCK_INT4_BYTES;
                fetch_ahead(ahead_of(columns[i], first + k, tiles, PENSTOCK_INT4_BYTES, step), PENSTOCK_INT4_BYTES);
                unpack_int4(tile, unpacked + (i * kInt4Near + k) * 2 * kTileBytes);
            }
        byte_product(a + first * 2 * PENSTOCK_BYTE_INPUTS, args.source_bytes, rows, from, count,
                     static_cast<int>(least(32 * some, quads - 32 * first)), kOfCached, 0, first > 0, sums);
    }
#endif
}
#endif

// Up to four tiles of outputs of some rows, of weights in groups.
template <int group, GroupKind kind>
INLINE void group_block(const LinearArgs &args, int64_t begin, int64_t end, const int *tiles, int count, int next,
                        float *sums) {
    const int k_tiles = static_cast<int>(round_up(args.inputs, PENSTOCK_INT4_INPUTS) / PENSTOCK_INT4_INPUTS);
    const int64_t column_bytes = k_tiles * tile_bytes_of(args.format);
    const uint8_t *columns[kMostTiles];
    for (int i = 0; i < count; i++) columns[i] = args.weight + tiles[i] * column_bytes;
    uint8_t *unpacked = reinterpret_cast<uint8_t *>(sums) + kUnpackedOffset;
    const bool gated = args.epilogue == PENSTOCK_GATE;
    for (int64_t first = begin; first < end; first += kRowsOfPass) {
        const int64_t stop = least(first + kRowsOfPass, end);
        group_product<group, kind>(args.source + first * args.source_bytes, args.source_bytes, static_cast<int>(stop - first),
                                     columns, count, k_tiles, first == begin ? next * column_bytes : 0, first == begin, unpacked, sums);
        float *block = sums;
        for (int64_t row = first; row < stop; row += 16, block += kMostTiles * kBlockFloats) {
            const int rows = static_cast<int>(least(16, stop - row));
            for (int i = 0; i < count; i += gated ? 2 : 1)
                finish(args, row, rows, tiles[i], block + i * kBlockFloats,
                       gated ? block + (i + 1) * kBlockFloats : nullptr, gated ? tiles[i + 1] : 0);
        }
    }
}

SEPARATE void any_group_block(const LinearArgs &args, int64_t begin, int64_t end, const int *tiles, int count, int next,
                              float *sums) {
    switch (args.format) {
        case PENSTOCK_FORMAT_GROUPS_32:
            return group_block<32, kWithZeros>(args, begin, end, tiles, count, next, sums);
        case PENSTOCK_FORMAT_GROUPS_64:
            return group_block<64, kWithZeros>(args, begin, end, tiles, count, next, sums);
        case PENSTOCK_FORMAT_FP4_32:
            return group_block<32, kFp4>(args, begin, end, tiles, count, next, sums);
        case PENSTOCK_FORMAT_OFFSET_32:
            return group_block<32, kWithOffsets>(args, begin, end, tiles, count, next, sums);
        default:
            return group_block<128, kWithZeros>(args, begin, end, tiles, count, next, sums);
    }
}

// Up to four tiles of outputs of some rows. `next`: how many tiles further those are that this thread multiplies next; 0:
// not known.
INLINE void linear_block(const LinearArgs &args, int64_t begin, int64_t end, const int *tiles, int count, int next,
                         float *sums) {
    if (group_of(args.format)) return any_group_block(args, begin, end, tiles, count, next, sums);
    const bool gated = args.epilogue == PENSTOCK_GATE, is_bf16 = args.format == PENSTOCK_FORMAT_BF16;
    bool is_int4 = args.format == PENSTOCK_FORMAT_INT4;
    const int k_tiles = args.inputs / (is_bf16 ? PENSTOCK_TILE_INPUTS : PENSTOCK_BYTE_INPUTS);
    const int quads = ((args.width ? args.width : args.inputs) + 3) / 4;
    const int64_t column_bytes = is_int4 ? (int64_t)((k_tiles + 1) / 2) * PENSTOCK_INT4_BYTES
                                         : (int64_t)k_tiles * kTileBytes;
    const long step = next * column_bytes;
    const uint8_t *columns[kMostTiles];
    for (int i = 0; i < count; i++) columns[i] = args.weight + tiles[i] * column_bytes;
    [[maybe_unused]] long step_of_columns = step;
    uint8_t *unpacked = reinterpret_cast<uint8_t *>(sums) + kUnpackedOffset;
    if (is_int4 && args.rows > kInt4Few) {
        step_of_columns = 0;
        // Two columns whole, for all rows.
        const int64_t unpacked_bytes = (int64_t)(k_tiles + 1) / 2 * 2 * kTileBytes;
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < (k_tiles + 1) / 2; k++) {
                // What is unpacked next comes from far while this is multiplied.
                const uint8_t *const tile = columns[i] + k * PENSTOCK_INT4_BYTES;
                if (step) fetch_far(tile + step, PENSTOCK_INT4_BYTES);
                unpack_int4(tile, unpacked + i * unpacked_bytes + k * 2 * kTileBytes);
            }
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
                wide_block<kShorts>(args, begin, end, columns + i, tiles + i, some, k_tiles, use, step_of_columns, nullptr, sums);
            else
                wide_block<kBytes>(args, begin, end, columns + i, tiles + i, some, k_tiles, use, step_of_columns,
                                   is_int4 ? unpacked : nullptr, sums);
        }
        return;
    }
#endif
    for (int64_t row = begin; row < end; row += 16) {
        const Use use = row == begin && args.format != PENSTOCK_FORMAT_INT4 ? kOfStream : kOfCached;
        const int rows = static_cast<int>(least(16, end - row));
        const uint8_t *a = args.source + row * args.source_bytes;
        if (is_bf16)
            product(a, args.source_bytes, rows, columns, count, k_tiles, use, step, sums);
        else if (is_int4)
            int4_product(args, a, rows, columns, count, quads, step, row == begin, unpacked, sums);
        else
            byte_product(a, args.source_bytes, rows, columns, count, quads, use, step, false, sums);
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
    const int in_chunk = rows_in_chunk(args);
    const int64_t chunks = (args.rows + in_chunk - 1) / in_chunk;
    // With offsets inputs are summed, the better for four columns.
    const bool is_unpacked_whole = args.format == PENSTOCK_FORMAT_INT4
                                       ? args.rows > kInt4Few
                                       : group_of(args.format) && kind_of(args.format) != kWithOffsets && args.rows > 16;
    // All rows of a stream pass while it is read: two columns leave registers for more of them than four do.
    const bool is_two = is_unpacked_whole || (kRowsAtOnce<4> < args.rows && args.rows <= kRowsAtOnce<2>);
    const int units_at_once = units * chunks >= 16 * work.members && !is_two ? 2 : 1;
    const int64_t groups = (units + units_at_once - 1) / units_at_once;
    configure_products(static_cast<int>(least(16, args.rows)));
    const int next = (gated ? 1 : 2) * units_at_once;
    // Rows of a chunk stay in the second cache while weights pass.
    for (int64_t item; (item = take_in_order(work, groups * chunks)) >= 0;) {
        const int64_t chunk = item / groups;
        const int first = static_cast<int>(item % groups) * units_at_once;
        int tiles[kMostTiles], count = 0;
        for (int unit = first; unit < least(first + units_at_once, units); unit++) {
            tiles[count++] = gated ? unit : 2 * unit;
            if (gated)
                tiles[count++] = unit + half;
            else if (2 * unit + 1 < all_tiles)
                tiles[count++] = 2 * unit + 1;
        }
        linear_block(args, chunk * in_chunk, least((chunk + 1) * in_chunk, args.rows), tiles, count, next, sums);
    }
}

// ---- experts ----

// Two columns of tiles of an expert's weights.
INLINE int tiles_of(int unit, bool gated, int all_tiles, int *tiles) {
    tiles[0] = gated ? unit : 2 * unit;
    tiles[1] = gated ? unit + all_tiles / 2 : 2 * unit + 1;
    return tiles[1] < all_tiles ? 2 : 1;
}

// The product with one expert's weights, of its entries.
INLINE LinearArgs of_expert(const ExpertsArgs &args, int expert) {
    LinearArgs one = args.linear;
    const int64_t begin = args.grouped.begins[expert];
    one.rows = args.grouped.begins[expert + 1] - begin;
    const int own = expert - args.first;
    one.weight += own * args.weight_bytes;
    one.source += begin * one.source_bytes;
    if (one.bias) one.bias += (int64_t)own * args.bias_step;
    const int64_t whole = round_up(one.outputs, 16);
    if (one.scales) one.scales += own * whole, one.sums += own * whole;
    if (args.sums_up) {
        one.tokens = args.grouped.tokens + begin;
        one.weights = args.weighs ? args.grouped.weights + begin : nullptr;
    } else {
        one.target += begin * one.target_bytes;
    }
    return one;
}

void experts(const ExpertsArgs &args, const Work &work) {
    float *sums = reinterpret_cast<float *>(work.scratch);
    const LinearArgs &linear = args.linear;
    const int all_tiles = static_cast<int>(round_up(linear.outputs, 16) / 16);
    const bool gated = linear.epilogue == PENSTOCK_GATE;
    const int units = gated ? all_tiles / 2 : (all_tiles + 1) / 2;
    const int active = *args.grouped.active_count;
    int tiles[kMostTiles];
    if (!args.sums_up) {
        const int64_t chunks = (*args.grouped.most + kRowsInChunk - 1) / kRowsInChunk;
        for (int64_t item; (item = take(work, 1)) < active * units * chunks;) {
            const LinearArgs one = of_expert(args, args.grouped.active[item / (units * chunks)]);
            const int64_t begin = item % chunks * kRowsInChunk;
            if (begin >= one.rows) continue;
            const int count = tiles_of(static_cast<int>(item / chunks % units), gated, all_tiles, tiles);
            configure_products(static_cast<int>(least(16, one.rows)));
            linear_block(one, begin, least(begin + kRowsInChunk, one.rows), tiles, count, 0, sums);
        }
        return;
    }
    // All experts' parts of two columns are one thread's, which adds them in the experts' order.
    for (int64_t unit; (unit = take(work, 1)) < units;) {
        const int count = tiles_of(static_cast<int>(unit), false, all_tiles, tiles);
        if (linear.epilogue == PENSTOCK_STORE)
            for (int64_t token = 0; token < linear.rows; token++)
                for (int i = 0; i < count; i++)
                    store_up_to(reinterpret_cast<float *>(linear.target + token * linear.target_bytes) + tiles[i] * 16,
                                F16{}, linear.outputs - tiles[i] * 16);
        for (int i = 0; i < active; i++) {
            const LinearArgs one = of_expert(args, args.grouped.active[i]);
            configure_products(static_cast<int>(least(16, one.rows)));
            for (int64_t begin = 0; begin < one.rows; begin += kRowsInChunk)
                linear_block(one, begin, least(begin + kRowsInChunk, one.rows), tiles, count, 0, sums);
        }
    }
}

// ---- adapters ----

// Columns of tiles are what threads take, of one piece after the other: matrices of adapters are small.
void adapt(const AdaptArgs &args, const Work &work) {
    float *sums = reinterpret_cast<float *>(work.scratch);
    const int64_t whole = round_up(args.linear.outputs, 16);
    const int all_tiles = static_cast<int>(whole / 16), units = (all_tiles + 1) / 2;
    for (int64_t item; (item = take(work, 1)) < args.pieces * units;) {
        int tiles[kMostTiles];
        const int count = tiles_of(static_cast<int>(item % units), false, all_tiles, tiles);
        for (int64_t at = args.firsts[item / units]; at < args.firsts[item / units + 1]; at++) {
            const AdaptedTokens &run = args.runs[at];
            LinearArgs one = args.linear;
            one.rows = run.end - run.begin;
            one.weight += run.adapter * args.weight_bytes;
            if (one.scales) one.scales += run.adapter * whole, one.sums += run.adapter * whole;
            one.source += run.begin * one.source_bytes;
            one.target += run.begin * one.target_bytes;
            configure_products(static_cast<int>(least(16, one.rows)));
            linear_block(one, 0, one.rows, tiles, count, 0, sums);
        }
    }
}

// ---- heads ----

void heads_linear(const HeadsArgs &args, const Work &work) {
    float *sums = reinterpret_cast<float *>(work.scratch);
    const int all_tiles = static_cast<int>(round_up(args.linear.outputs, 16) / 16), units = (all_tiles + 1) / 2;
    const int64_t chunks = (args.linear.rows + kRowsInChunk - 1) / kRowsInChunk;
    configure_products(static_cast<int>(least(16, args.linear.rows)));
    for (int64_t item; (item = take(work, 1)) < args.heads * units * chunks;) {
        const int64_t head = item / (units * chunks), begin = item % chunks * kRowsInChunk;
        LinearArgs one = args.linear;
        one.weight += head * args.weight_bytes;
        one.source += head * args.source_step;
        one.target += head * args.target_step;
        int tiles[kMostTiles];
        const int count = tiles_of(static_cast<int>(item / chunks % units), false, all_tiles, tiles);
        linear_block(one, begin, least(begin + kRowsInChunk, one.rows), tiles, count, 0, sums);
    }
}

}  // namespace
