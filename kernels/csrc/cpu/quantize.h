// Weights as whole numbers of 8 or 4 bits: included by kernels.cpp. An output's numbers have one scale, and of int4 a
// factor for each group of 32 inputs, which is a whole number as well: so sums of products stay whole numbers, and an
// output is multiplied by its scale once. Scales are those, of some that are tried, that make the squared error least;
// given the whole numbers, the best scale is known (least squares).
#pragma once

#include "kernels.h"
#include "products.h"
#include "vector.h"

namespace {

// Shares of the scale at which an output's largest number is the largest whole number.
constexpr int kByteShares = 8;
constexpr float kByteShareStep = 0.025f;
constexpr float kInt4Shares[] = {1.08f, 1.0f, 0.93f, 0.86f, 0.8f};
constexpr int kMostFactor = 15, kInt4Zero = 8, kFactorsTried = 5;

INLINE F16 bounded(F16 x, float lowest, float highest) {
    return minimum(maximum(x, all(lowest)), all(highest));
}

// sum x q / sum q^2, or `otherwise` where all q are 0.
INLINE float best_scale(F16 with_numbers, F16 squares, float otherwise) {
    const float total = sum_of(squares);
    return total > 0.0f ? sum_of(with_numbers) / total : otherwise;
}

// Whole numbers of a row (columns, a multiple of 64) into `to`. Returns the scale.
static float quantize_row_int8(const float *x, int64_t columns, int8_t *to) {
    F16 largest = {};
    for (int64_t at = 0; at < columns; at += 16) largest = maximum(size_of(load(x + at)), largest);
    const float most = maximum_of(largest);
    if (most < 1e-30f) {
        for (int64_t at = 0; at < columns; at++) to[at] = 0;
        return 0.0f;
    }
    float least_error = __builtin_inff(), scale = most / 127.0f;
    for (int share = 0; share < kByteShares; share++) {
        const float tried = most / 127.0f * (1.0f - kByteShareStep * static_cast<float>(share));
        const float inverse = 1.0f / tried;
        F16 errors = {};
        for (int64_t at = 0; at < columns; at += 16) {
            const F16 q = __builtin_convertvector(rounded(bounded(load(x + at) * inverse, -127.0f, 127.0f)), F16);
            const F16 error = load(x + at) - q * tried;
            errors += error * error;
        }
        const float error = sum_of(errors);
        if (error < least_error) least_error = error, scale = tried;
    }
    const float inverse = 1.0f / scale;
    F16 with_numbers = {}, squares = {};
    for (int64_t at = 0; at < columns; at += 16) {
        const I16 whole = rounded(bounded(load(x + at) * inverse, -127.0f, 127.0f));
        const F16 q = __builtin_convertvector(whole, F16);
        with_numbers += load(x + at) * q, squares += q * q;
        *reinterpret_cast<B16Memory *>(to + at) = __builtin_convertvector(whole, B16);
    }
    return best_scale(with_numbers, squares, scale);
}

// u - 8, for numbers over their group's scale.
INLINE I16 int4_numbers(F16 x) {
    return rounded(bounded(x, -8.0f, 7.0f));
}

// Of 16 groups, one in each lane: their largest numbers.
INLINE F16 largest_of(const float *x) {
    F16 largest = {};
    for (int i = 0; i < PENSTOCK_INT4_GROUP; i++) largest = maximum(size_of(load(x + i * 16)), largest);
    return largest;
}

// Of 16 groups, their factors with this scale and the squared errors.
static F16 best_factors(const float *x, F16 largest, float scale, F16 *factors) {
    F16 least_errors = all(__builtin_inff());
    // The factor at which the largest number is 7.5, and some below and above it.
    const F16 first = __builtin_convertvector(
        __builtin_convertvector(minimum(largest * (0.75f / (7.5f * scale)), all(15.0f)), I16), F16);
    for (int more = 0; more < kFactorsTried; more++) {
        const F16 tried = bounded(first + static_cast<float>(more), 1.0f, kMostFactor);
        const F16 step = tried * scale, inverse = 1.0f / step;
        F16 errors = {};
        for (int i = 0; i < PENSTOCK_INT4_GROUP; i++) {
            const F16 number = load(x + i * 16);
            const F16 error = number - __builtin_convertvector(int4_numbers(number * inverse), F16) * step;
            errors += error * error;
        }
        *factors = select(is_less(errors, least_errors), tried, *factors);
        least_errors = minimum(errors, least_errors);
    }
    return least_errors;
}

// u of a row (columns, a multiple of 128) into `to`, and a factor for each 32 of them. Returns the scale. `lanes`: memory for
// as many floats, rounded up to 16 groups.
static float quantize_row_int4(const float *x, int64_t columns, int8_t *to, int8_t *factors, float *lanes) {
    constexpr int64_t at_once = 16 * PENSTOCK_INT4_GROUP;
    const int64_t groups = columns / PENSTOCK_INT4_GROUP, padded = round_up(columns, at_once);
    for (int64_t i = 0; i < padded; i++) {
        const int64_t group = i / PENSTOCK_INT4_GROUP;
        lanes[group / 16 * at_once + i % PENSTOCK_INT4_GROUP * 16 + group % 16] = i < columns ? x[i] : 0.0f;
    }
    F16 largest = {};
    for (int64_t at = 0; at < padded; at += at_once) largest = maximum(largest_of(lanes + at), largest);
    const float most = maximum_of(largest);
    if (most < 1e-30f) {
        for (int64_t at = 0; at < columns; at++) to[at] = kInt4Zero;
        for (int64_t group = 0; group < groups; group++) factors[group] = 1;
        return 0.0f;
    }
    float scale = 0.0f, least_error = __builtin_inff();
    F16 found = all(1.0f);
    for (const float share : kInt4Shares) {
        const float tried = most / (7.5f * kMostFactor) * share;
        F16 errors = {};
        for (int64_t at = 0; at < padded; at += at_once)
            errors += best_factors(lanes + at, largest_of(lanes + at), tried, &found);
        const float error = sum_of(errors);
        if (error < least_error) least_error = error, scale = tried;
    }
    F16 with_numbers = {}, squares = {};
    for (int64_t group = 0; group < groups; group++) {
        if (group % 16 == 0) {
            const float *at = lanes + group / 16 * at_once;
            best_factors(at, largest_of(at), scale, &found);
        }
        const float factor = found[group % 16];
        factors[group] = static_cast<int8_t>(factor);
        for (int half = 0; half < PENSTOCK_INT4_GROUP; half += 16) {
            const F16 numbers = load(x + group * PENSTOCK_INT4_GROUP + half);
            const I16 whole = int4_numbers(numbers * (1.0f / (factor * scale)));
            const F16 q = __builtin_convertvector(whole, F16) * factor;
            with_numbers += numbers * q, squares += q * q;
            *reinterpret_cast<B16Memory *>(to + group * PENSTOCK_INT4_GROUP + half) =
                __builtin_convertvector(whole + kInt4Zero, B16);
        }
    }
    return best_scale(with_numbers, squares, scale);
}

void quantize_weight(const QuantizeWeightArgs &args) {
    const bool is_int4 = args.format == PENSTOCK_FORMAT_INT4;
    const int64_t tile_inputs = is_int4 ? PENSTOCK_INT4_INPUTS : PENSTOCK_BYTE_INPUTS;
    const int64_t tile_bytes = is_int4 ? PENSTOCK_INT4_BYTES : kTileBytes;
    const int64_t columns = round_up(args.columns, tile_inputs), k_tiles = columns / tile_inputs;
    float *x = args.row, *lanes = x + columns;
    int8_t *numbers = reinterpret_cast<int8_t *>(lanes + round_up(columns, 16 * PENSTOCK_INT4_GROUP));
    int8_t *factors = numbers + columns;
    for (int64_t row = 0; row < round_up(args.rows, PENSTOCK_TILE_OUTPUTS); row++) {
        const int64_t output = row % PENSTOCK_TILE_OUTPUTS;
        uint8_t *panel = args.to + row / PENSTOCK_TILE_OUTPUTS * k_tiles * tile_bytes;
        for (int64_t i = 0; i < columns; i++) {
            union {
                uint32_t bits;
                float number;
            } both = {0};
            if (row < args.rows && i < args.columns) both.bits = (uint32_t)args.from[row * args.columns + i] << 16;
            x[i] = both.number;
        }
        int64_t sum = 0;
        if (!is_int4) {
            args.scales[row] = quantize_row_int8(x, columns, numbers);
            for (int64_t i = 0; i < columns; i++) sum += numbers[i];
            for (int64_t quad = 0; quad < columns / 4; quad++)
                reinterpret_cast<uint32_t *>(panel)[quad * 16 + output] =
                    reinterpret_cast<const uint32_t *>(numbers)[quad];
        } else {
            args.scales[row] = quantize_row_int4(x, columns, numbers, factors, lanes);
            for (int64_t i = 0; i < columns; i++) sum += (numbers[i] - kInt4Zero) * factors[i / PENSTOCK_INT4_GROUP];
            for (int64_t k = 0; k < k_tiles; k++) {
                uint8_t *tile = panel + k * tile_bytes;
                for (int group = 0; group < 4; group++) tile[group * 16 + output] = (uint8_t)factors[k * 4 + group];
                const uint32_t *low = reinterpret_cast<const uint32_t *>(numbers + k * tile_inputs);
                for (int quad = 0; quad < 16; quad++)
                    reinterpret_cast<uint32_t *>(tile + 64)[quad * 16 + output] = low[quad] | low[16 + quad] << 4;
            }
        }
        args.sums[row] = static_cast<int32_t>(128 * sum);
    }
}

}  // namespace
