// Operations over rows by themselves: embedding, norms, gates, and numbers as bytes. Included by kernels.cpp.
#pragma once

#include "work.h"

namespace {

// A row of a table that is in no tiles.
SEPARATE void embed_row(const EmbedArgs &args, const uint8_t *from, float *to) {
    for (int at = 0; at + 16 <= args.width; at += 16) store(to + at, from_bf16(load_bf16(from + at * 2)) * args.scale);
    for (int at = args.width / 16 * 16; at < args.width; at++)
        to[at] = from_bf16(H16{reinterpret_cast<const uint16_t *>(from)[at]})[0] * args.scale;
}

void embed(const EmbedArgs &args, const Work &work) {
    const int pairs = (args.width + 1) / 2;
    const int64_t panel = round_up(args.width, PENSTOCK_TILE_INPUTS) / PENSTOCK_TILE_INPUTS * kTileBytes;
    for (int64_t token; (token = take(work, 1)) < args.tokens;) {
        int64_t id = args.ids[token] - most(args.first, 0);
        const bool known = !args.known || (id >= 0 && id < args.known);
        if (!known) id = 0;
        const uint8_t *from = args.table + id / 16 * panel + id % 16 * 4;
        float *to = reinterpret_cast<float *>(args.target + token * args.target_bytes);
        if (args.by_row) {
            embed_row(args, args.table + id * args.width * 2, to);
            continue;
        }
        const float scale = known || args.first < 0 ? args.scale : 0.0f;
        for (int pair = 0; pair < pairs; pair++) {
            union {
                uint32_t bits;
                float number;
            } low, high;
            const uint32_t both = *reinterpret_cast<const uint32_t *>(from + pair * 64);
            low.bits = both << 16;
            high.bits = both & 0xffff0000u;
            to[2 * pair] = low.number * scale;
            if (2 * pair + 1 < args.width) to[2 * pair + 1] = high.number * scale;
        }
        if (args.positions) {
            const float *row = args.positions + (args.token_positions[token] + (int64_t)args.offset) * args.width;
            for (int i = 0; i < args.width; i++) to[i] += row[i];
        }
    }
}

void sum_ranks(const SumRanksArgs &args, const Work &work) {
    each_row(args.rows, work, [&](int64_t row) {
        const auto *from = reinterpret_cast<const float *>(args.first + row * args.source_bytes);
        auto *to = reinterpret_cast<float *>(args.target + row * args.target_bytes);
        for (int at = 0; at < args.width; at += 16) {
            const int count = args.width - at;
            F16 sum = load_up_to(from + at, count);
            for (int rank = 1; rank < args.ranks; rank++)
                sum += load_up_to(from + rank * args.rank_bytes / 4 + at, count);
            store_up_to(to + at, args.accumulate ? load_up_to(to + at, count) + sum * args.scale : sum * args.scale, count);
        }
    });
}

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
        d = select(are_first(width - at), d, F16{});
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
        const B16 whole = to_bytes(rounded(x * inverse));
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
            return count == 16 ? y : select(are_first(count), y, F16{});
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
            for (int64_t at = 0; at < (int64_t)args.groups * args.width; at += args.width)
                norm_row(args, reinterpret_cast<const float *>(args.source + r * args.source_bytes) + at,
                         args.target + r * args.target_bytes + at * (args.to == PENSTOCK_BF16 ? 2 : 4));
}

SEPARATE void quantize_bf16_row(const QuantizeArgs &args, const uint8_t *from, uint8_t *to) {
    quantize_row(args.width, to, [&](int at, int count) {
        const F16 x = from_bf16(load_bf16(from + at * 2));  // rows are padded to 32 numbers
        return count == 16 ? x : select(are_first(count), x, F16{});
    });
}

void quantize(const QuantizeArgs &args, const Work &work) {
    const int64_t at_once = work.next ? share(args.rows, work) : args.rows;
    for (int64_t row = 0; (row = work.next ? take(work, at_once) : row) < args.rows; row += at_once)
        for (int64_t r = row; r < least(row + at_once, args.rows); r++)
            quantize_bf16_row(args, args.source + r * args.source_bytes, args.target + r * args.target_bytes);
}

// ---- gates ----

INLINE F16 gated(const GatedNormArgs &args, const float *x, const float *gates, int at) {
    const int count = args.width - at;
    const F16 y = load_up_to(x + at, count);
    return args.gate_first ? y * activated(load_up_to(gates + at, count), args.activation) : y;
}

SEPARATE void gated_norm_group(const GatedNormArgs &args, const float *x, const float *gates, const float *weight,
                               uint8_t *to) {
    float factor = 1.0f;
    if (args.norm != PENSTOCK_NORM_NONE) {
        F16 sum = {};
        for (int at = 0; at < args.width; at += 16) {
            const F16 y = gated(args, x, gates, at);  // zeros beyond the width
            sum += y * y;
        }
        factor = 1.0f / __builtin_sqrtf(sum_of(sum) / static_cast<float>(args.width) + args.eps);
    }
    for (int at = 0; at < args.width; at += 16) {
        const int count = args.width - at;
        F16 y = gated(args, x, gates, at) * factor;
        if (weight) y = y * load_up_to(weight + at, count);
        if (!args.gate_first) y = y * activated(load_up_to(gates + at, count), args.activation);
        store_bf16_up_to(to + at * 2, y, count);
    }
}

void gated_norm(const GatedNormArgs &args, const Work &work) {
    each_row(args.rows, work, [&](int64_t r) {
        for (int group = 0; group < args.groups; group++) {
            const int64_t at = (int64_t)group * args.width;
            gated_norm_group(args, reinterpret_cast<const float *>(args.source + r * args.source_bytes) + at,
                             reinterpret_cast<const float *>(args.gates + r * args.gates_bytes) + at,
                             args.weight ? args.weight + (int64_t)group * args.weight_step : nullptr,
                             args.target + r * args.target_bytes + at * 2);
        }
    });
}

SEPARATE void open_row(const OpenArgs &args, const float *gates, uint8_t *to) {
    for (int head = 0; head < args.heads; head++) {
        F16 gate = args.of_heads ? activated(all(gates[head]), args.activation) : F16{};
        for (int i = 0; i < args.head_dim; i += 16) {
            const int count = args.head_dim - i;
            const int64_t at = (int64_t)head * args.head_dim + i;
            if (!args.of_heads) gate = activated(load_up_to(gates + at, count), args.activation);
            if (args.is_fp32) {
                float *x = reinterpret_cast<float *>(to) + at;
                store_up_to(x, load_up_to(x, count) * gate, count);
                continue;
            }
            store_bf16_up_to(to + at * 2, from_bf16(load_bf16(to + at * 2)) * gate, count);
        }
    }
}

void open_gates(const OpenArgs &args, const Work &work) {
    each_row(args.rows, work, [&](int64_t r) {
        open_row(args, reinterpret_cast<const float *>(args.gates + r * args.gates_bytes),
                 args.target + r * args.target_bytes);
    });
}

}  // namespace
