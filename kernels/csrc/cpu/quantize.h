// Weights as whole numbers of 8 or 4 bits: included by kernels.cpp. An output's numbers have one scale, and of int4 a
// factor for each group of 32 inputs, which is a whole number as well: so sums of products stay whole numbers, and an
// output is multiplied by its scale once. Scales are those, of some that are tried, that make the squared error least;
// given the whole numbers, the best scale is known (least squares). Or each group of inputs has a scale and a zero point of its own: found in the same
// way, or, of numbers that were of 4 bits in groups before they were bf16, recognized, so that they become again what they were. So are groups with a
// scale and an offset.
#pragma once

#include "kernels.h"
#include "products.h"
#include "vector.h"

namespace {

// Shares of the scale at which an output's largest number is the largest whole number.
constexpr int kByteShares = 8;
constexpr float kByteShareStep = 0.025f;
constexpr float kInt4Shares[] = {1.08f, 1.0f, 0.93f, 0.86f, 0.8f};
// Of a group with a scale of its own, shares of the step at which its numbers just fill what 4 bits can say.
constexpr float kGroupShares[] = {1.14f, 1.07f, 1.0f, 0.94f, 0.88f, 0.82f, 0.76f};
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
            const F16 q = to_floats(rounded(bounded(load(x + at) * inverse, -127.0f, 127.0f)));
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
        const F16 q = to_floats(whole);
        with_numbers += load(x + at) * q, squares += q * q;
        *reinterpret_cast<B16Memory *>(to + at) = to_bytes(whole);
    }
    return best_scale(with_numbers, squares, scale);
}

// u - 8, for numbers over their group's scale.
INLINE I16 int4_numbers(F16 x) {
    return rounded(bounded(x, -8.0f, 7.0f));
}

// The groups of a row, 16 at once, one in each lane; filled up with zeros.
template <int group>
static void put_in_lanes(const float *x, int64_t columns, float *lanes) {
    constexpr int64_t at_once = 16 * group;
    for (int64_t i = 0; i < round_up(columns, at_once); i++) {
        const int64_t of = i / group;
        lanes[of / 16 * at_once + i % group * 16 + of % 16] = i < columns ? x[i] : 0.0f;
    }
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
    const F16 first = to_floats(to_integers(minimum(largest * (0.75f / (7.5f * scale)), all(15.0f))));
    for (int more = 0; more < kFactorsTried; more++) {
        const F16 tried = bounded(first + static_cast<float>(more), 1.0f, kMostFactor);
        const F16 step = tried * scale, inverse = 1.0f / step;
        F16 errors = {};
        for (int i = 0; i < PENSTOCK_INT4_GROUP; i++) {
            const F16 number = load(x + i * 16);
            const F16 error = number - to_floats(int4_numbers(number * inverse)) * step;
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
    put_in_lanes<PENSTOCK_INT4_GROUP>(x, columns, lanes);
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
            const F16 q = to_floats(whole) * factor;
            with_numbers += numbers * q, squares += q * q;
            *reinterpret_cast<B16Memory *>(to + group * PENSTOCK_INT4_GROUP + half) =
                to_bytes(whole + kInt4Zero);
        }
    }
    return best_scale(with_numbers, squares, scale);
}

// Half of what lies between a positive number of bf16 and the next one.
INLINE F16 half_step(F16 x) {
    return (F16)((U16)x & 0x7f800000u) * 0.00390625f;
}

// Of 16 groups of bf16, one in each lane: their scales and zero points, if each group is of whole numbers from -zero to 15 - zero times its
// scale, rounded to bf16; else false. A scale of fp16 is taken where one fits: most published ones are.
template <int group>
static bool find_groups(const float *x, F16 *scales, I16 *zeros) {
    F16 largest = {};
    for (int i = 0; i < group; i++) largest = maximum(size_of(load(x + i * 16)), largest);
    const I16 is_empty = is_less(largest, all(1e-30f));
    I16 found = is_empty;
    *scales = F16{}, *zeros = all_integers(kInt4Zero);
    // The largest number may stand for 1, or for any up to 16.
    for (int most = 1; most <= 16; most++) {
        const F16 inverse = select(is_empty, F16{}, static_cast<float>(most) / largest);
        F16 above = {}, below = all(__builtin_inff()), highest = all(-16.0f), lowest = all(16.0f);
        I16 fails = {};
        for (int i = 0; i < group; i++) {
            const F16 number = load(x + i * 16), size = size_of(number);
            const F16 q = to_floats(rounded(number * inverse)), times = size_of(q);
            highest = maximum(q, highest), lowest = minimum(q, lowest);
            const I16 is_zero = is_less(times, all(0.5f));
            const F16 divisor = select(is_zero, all(1.0f), times), step = half_step(number);
            // Below a power of two numbers are half as far apart.
            const F16 down = select(is_zero_bits((I16)((U16)number & 0x7f0000u)), step * 0.5f, step);
            above = select(is_zero, above, maximum((size - down) / divisor, above));
            below = select(is_zero, below, minimum((size + step) / divisor, below));
            fails |= is_zero & is_less(F16{}, size);
        }
        // Scales between these bounds make all the numbers, but where one lies half-way between two of bf16: then some do.
        fails |= is_less(below * 1.000001f, above) | is_less(all(15.0f), highest - lowest) | is_less(all(15.0f), highest);
        const F16 middle = (above + below) * 0.5f;
        const U16 half = ((U16)middle + 0x1000u) & ~0x1fffu;
        const F16 tried[] = {(F16)half, (F16)(half - 0x2000u), (F16)(half + 0x2000u), middle};
        F16 scale = {};
        I16 is_made = {};
        for (const F16 one : tried) {
            const F16 kept = (F16)(((U16)one + 16u) & ~31u);  // its lowest bits are a zero point's
            I16 differs = {};
            for (int i = 0; i < group; i++) {
                const F16 number = load(x + i * 16);
                const F16 q = to_floats(rounded(number * inverse));
                differs |= ~is_same(from_bf16(to_bf16(q * kept)), number);
            }
            scale = select(~differs & ~is_made, kept, scale), is_made |= ~differs;
        }
        const I16 here = ~fails & ~found & is_made;
        const F16 zero = maximum(minimum(all(kInt4Zero), 15.0f - highest), -lowest);
        *scales = select(here, scale, *scales);
        *zeros = select(here, to_integers(zero), *zeros);
        found |= here;
        bool all_found = true;
        for (int lane = 0; lane < 16; lane++) all_found &= found[lane] != 0;
        if (all_found) return true;
    }
    return false;
}

// To the nearest number of fp16 that is not larger than the largest one.
INLINE F16 to_half(F16 x) {
    const U16 rounded = ((U16)x + 0xfffu + ((U16)x >> 13 & 1u)) & ~0x1fffu;
    // Below 2^-14 such numbers are as far apart as those of fp32 beside 0.75.
    return select(is_less(size_of(x), all(0x1p-14f)), (x + 0.75f) - 0.75f, (F16)rounded);
}

// Its bits.
INLINE uint32_t half_bits(float x) {
    union {
        float number;
        uint32_t bits;
    } both = {x};
    const uint32_t sign = both.bits >> 16 & 0x8000u, size = both.bits & 0x7fffffffu;
    both.bits = size;
    return sign | (both.number < 0x1p-14f ? static_cast<uint32_t>(both.number * 0x1p24f) : (size >> 13) - (112u << 10));
}

// Of 16 groups of 32, one in each lane: the scales and offsets whose numbers, with u from 0 to 15, differ from theirs by no more than two steps of bf16
// at the largest, which is less than a hundredth of it. False: of some group there are none. The lowest number is u = 0, and the highest may stand for any
// other; given the whole numbers, scale and offset follow by least squares.
static bool find_offsets(const float *x, F16 *scales, F16 *offsets) {
    constexpr int group = PENSTOCK_INT4_GROUP;
    F16 highest = load(x), lowest = highest, nothing = {};
    for (int i = 0; i < group; i++) {
        const F16 number = load(x + i * 16);
        highest = maximum(number, highest), lowest = minimum(number, lowest);
        nothing += number * 0.0f;  // none, if one of them is none or infinite
    }
    const F16 allowed = maximum(highest, -lowest) * 0x1p-7f, range = highest - lowest;
    I16 found = {};
    *scales = F16{}, *offsets = F16{};
    for (int most = 15; most >= 0; most--) {
        const F16 inverse = select(is_less(F16{}, range), static_cast<float>(most) / range, F16{});
        F16 sum = {}, squares = {}, total = {}, products = {};
        for (int i = 0; i < group; i++) {
            const F16 above = load(x + i * 16) - lowest, u = to_floats(rounded(above * inverse));
            sum += u, squares += u * u, total += above, products += above * u;
        }
        const F16 divisor = squares * static_cast<float>(group) - sum * sum;
        const F16 slope = (products * static_cast<float>(group) - sum * total) / divisor;
        const F16 scale = to_half(select(is_less(F16{}, divisor), slope, F16{}));
        const F16 offset = to_half((total - sum * scale) * (1.0f / group) + lowest);
        const F16 again = select(is_less(F16{}, scale), 1.0f / scale, F16{});
        F16 furthest = {};
        for (int i = 0; i < group; i++) {
            const F16 number = load(x + i * 16);
            const F16 u = to_floats(rounded(bounded((number - offset) * again, 0.0f, 15.0f)));
            furthest = maximum(size_of(u * scale + offset - number), furthest);
        }
        const I16 fails = is_less(allowed, furthest) | is_less(all(65504.0f), size_of(offset)) | ~is_same(nothing, F16{});
        const I16 is_made = ~fails & ~found;
        *scales = select(is_made, scale, *scales);
        *offsets = select(is_made, offset, *offsets);
        found |= is_made;
        bool all_found = true;
        for (int lane = 0; lane < 16; lane++) all_found &= found[lane] != 0;
        if (all_found) return true;
    }
    return false;
}

// u of a row (columns, a multiple of 128) into `to`, and of each 32 of them the scale and in the upper bits the offset, in fp16. False: some group
// is none.
static bool quantize_row_offsets(const float *x, int64_t columns, int8_t *to, uint32_t *words, float *lanes) {
    constexpr int group = PENSTOCK_INT4_GROUP;
    const int64_t groups = columns / group;
    put_in_lanes<group>(x, columns, lanes);
    for (int64_t first = 0; first < groups; first += 16) {
        F16 scales, offsets;
        if (!find_offsets(lanes + first * group, &scales, &offsets)) return false;
        for (int64_t of = first; of < least(first + 16, groups); of++) {
            const float scale = scales[of - first], offset = offsets[of - first];
            const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
            words[of] = half_bits(scale) | half_bits(offset) << 16;
            for (int i = 0; i < group; i += 16)
                *reinterpret_cast<B16Memory *>(to + of * group + i) =
                    to_bytes(rounded(bounded((load(x + of * group + i) - offset) * inverse, 0.0f, 15.0f)));
        }
    }
    return true;
}

// The best so far of 16 groups, one in each lane. Of whole numbers q and their best scale the squared error is sum x^2 - gain.
struct Found {
    F16 gain, scale, zero;
};

// Tries whole numbers of x / step between -zero and 15 - zero.
template <int group>
INLINE void try_step(const float *x, F16 step, F16 zero, Found *found) {
    const F16 inverse = 1.0f / step, lowest = -zero, highest = 15.0f - zero;
    F16 with_numbers = {}, squares = {};
    for (int i = 0; i < group; i++) {
        const F16 number = load(x + i * 16);
        const F16 whole = to_floats(rounded(minimum(maximum(number * inverse, lowest), highest)));
        with_numbers += number * whole, squares += whole * whole;
    }
    // Where all are 0 that is no number, and no better.
    const F16 scale = with_numbers / squares, gain = with_numbers * scale;
    const I16 is_better = is_less(found->gain, gain);
    found->gain = select(is_better, gain, found->gain);
    found->scale = select(is_better, scale, found->scale);
    found->zero = select(is_better, zero, found->zero);
}

// Of 16 groups, one in each lane: the scales and zero points whose whole numbers are nearest to theirs, of those that are tried.
template <int group>
static void round_groups(const float *x, bool with_zero_points, F16 *scales, I16 *zeros) {
    F16 highest = {}, lowest = {}, nothing = {};
    for (int i = 0; i < group; i++) {
        const F16 number = load(x + i * 16);
        highest = maximum(number, highest), lowest = minimum(number, lowest);
        nothing += number * 0.0f;  // none, if one of them is none or infinite
    }
    Found found = {F16{}, F16{}, all(kInt4Zero)};
    // The number that is furthest from 0 becomes -8, of which there is one more than of what is above 0: so a scale may be below 0.
    const F16 furthest = select(is_less(highest, -lowest), lowest, highest);
    for (const float share : kGroupShares) try_step<group>(x, furthest * (-0.125f * share), all(kInt4Zero), &found);
    if (with_zero_points)
        for (const float share : kGroupShares) {
            const F16 step = (highest - lowest) * (share / 15.0f), middle = 7.5f - (highest + lowest) * 0.5f / step;
            const F16 below = to_floats(to_integers(bounded(middle, 0.0f, 15.0f)));
            try_step<group>(x, step, below, &found);
            try_step<group>(x, step, minimum(below + 1.0f, all(15.0f)), &found);
        }
    *scales = (F16)(((U16)(found.scale + nothing) + 16u) & ~31u);  // its lowest bits are a zero point's
    *zeros = to_integers(found.zero);
}

// u of a row (columns, a multiple of 128) into `to`, and a word for each group of them. False: nothing shall be rounded, and some group is none.
template <int group>
static bool quantize_row_groups(penstock_rounding rounding, const float *x, int64_t columns, int8_t *to, uint32_t *words,
                                float *lanes) {
    const int64_t groups = columns / group;
    put_in_lanes<group>(x, columns, lanes);
    for (int64_t first = 0; first < groups; first += 16) {
        F16 scales;
        I16 zeros;
        if (rounding != PENSTOCK_ROUND_NOTHING)
            round_groups<group>(lanes + first * group, rounding == PENSTOCK_ROUND_WITH_ZERO_POINTS, &scales, &zeros);
        else if (!find_groups<group>(lanes + first * group, &scales, &zeros))
            return false;
        for (int64_t of = first; of < least(first + 16, groups); of++) {
            const uint32_t word = ((U16)scales)[of - first];
            words[of] = word | static_cast<uint32_t>(zeros[of - first]);
            union {
                uint32_t bits;
                float number;
            } scale = {word};
            const float inverse = scale.number != 0.0f ? 1.0f / scale.number : 0.0f;
            const float zero = static_cast<float>(zeros[of - first]);
            for (int i = 0; i < group; i += 16)
                *reinterpret_cast<B16Memory *>(to + of * group + i) = to_bytes(
                    rounded(bounded(load(x + of * group + i) * inverse, -zero, 15.0f - zero)) + zeros[of - first]);
        }
    }
    return true;
}

// The same of fp4, whose scales are powers of two and whose numbers have few digits: nothing is rounded.
static bool quantize_row_fp4(const float *x, int64_t columns, int8_t *to, uint32_t *words) {
    constexpr int group = 32;
    constexpr int largest_for[] = {12, 8, 6, 4, 3, 2, 1};
    static constexpr int8_t codes[16] = {0, 1, 2, 3, 4, -1, 5, -1, 6, -1, -1, -1, 7, -1, -1, -1};
    for (int64_t first = 0; first < columns; first += group) {
        F16 largest = {};
        for (int i = 0; i < group; i += 16) largest = maximum(size_of(load(x + first + i)), largest);
        const float most = maximum_of(largest);
        bool found = most == 0.0f;
        union {
            float number;
            uint32_t bits;
        } scale = {0.0f};
        for (const int times : largest_for) {
            if (found) break;
            scale.number = most / static_cast<float>(times);
            if (scale.bits & 0x7fffffu) continue;
            found = true;
            for (int i = 0; i < group; i += 16) {
                // Of a power of two the quotient is exact.
                const F16 size = size_of(load(x + first + i)) * (1.0f / scale.number);
                const I16 whole = rounded(size);
                for (int lane = 0; lane < 16; lane++)
                    found &= static_cast<float>(whole[lane]) == size[lane] && codes[whole[lane] & 15] >= 0;
            }
        }
        if (!found) return false;
        const float inverse = most == 0.0f ? 0.0f : 1.0f / scale.number;
        for (int i = 0; i < group; i++) {
            const float number = x[first + i] * inverse;
            const int8_t code = codes[static_cast<int>(number < 0.0f ? -number : number) & 15];
            to[first + i] = static_cast<int8_t>(number < 0.0f ? code + 8 : code);
        }
        words[first / group] = scale.bits;
    }
    return true;
}

static bool quantize_row_groups(int group, penstock_rounding rounding, const float *x, int64_t columns, int8_t *to,
                                uint32_t *words, float *lanes) {
    if (group == 32) return quantize_row_groups<32>(rounding, x, columns, to, words, lanes);
    if (group == 64) return quantize_row_groups<64>(rounding, x, columns, to, words, lanes);
    return quantize_row_groups<128>(rounding, x, columns, to, words, lanes);
}

// 128 numbers of 4 bits of one output.
INLINE void put_in_tile(const int8_t *numbers, uint8_t *tile, int64_t output) {
    const uint32_t *low = reinterpret_cast<const uint32_t *>(numbers);
    for (int quad = 0; quad < 16; quad++)
        reinterpret_cast<uint32_t *>(tile)[quad * 16 + output] = low[quad] | low[16 + quad] << 4;
}

// False: nothing shall be rounded, and the numbers are not of 4 bits in such groups.
bool quantize_weight(const QuantizeWeightArgs &args) {
    const int group = group_of(args.format);
    const GroupKind kind = kind_of(args.format);
    const bool is_int8 = args.format == PENSTOCK_FORMAT_INT8;
    if (kind == kWithOffsets && args.columns % group) return false;
    const int64_t tile_inputs = is_int8 ? PENSTOCK_BYTE_INPUTS : PENSTOCK_INT4_INPUTS;
    const int64_t tile_bytes = is_int8 ? kTileBytes : tile_bytes_of(args.format);
    const int64_t columns = round_up(args.columns, tile_inputs), k_tiles = columns / tile_inputs;
    float *x = args.row, *lanes = x + columns;
    int8_t *numbers = reinterpret_cast<int8_t *>(lanes + round_up(columns, 16 * PENSTOCK_INT4_INPUTS));
    int8_t *factors = numbers + columns;
    uint32_t *words = reinterpret_cast<uint32_t *>(factors);
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
        if (is_int8) {
            args.scales[row] = quantize_row_int8(x, columns, numbers);
            for (int64_t i = 0; i < columns; i++) sum += numbers[i];
            for (int64_t quad = 0; quad < columns / 4; quad++)
                reinterpret_cast<uint32_t *>(panel)[quad * 16 + output] =
                    reinterpret_cast<const uint32_t *>(numbers)[quad];
        } else if (group) {
            if (!(kind == kFp4           ? quantize_row_fp4(x, columns, numbers, words)
                  : kind == kWithOffsets ? quantize_row_offsets(x, columns, numbers, words, lanes)
                                           : quantize_row_groups(group, args.rounding, x, columns, numbers, words, lanes)))
                return false;
            const int per_tile = PENSTOCK_INT4_INPUTS / group;
            for (int64_t k = 0; k < k_tiles; k++) {
                uint8_t *tile = panel + k * tile_bytes;
                for (int of = 0; of < per_tile; of++) {
                    const uint32_t word = words[k * per_tile + of];
                    auto *const halves = reinterpret_cast<uint16_t *>(tile + of * 64);
                    if (kind == kFp4)
                        tile[of * 16 + output] = static_cast<uint8_t>(word >> 23);
                    else if (kind == kWithOffsets)
                        halves[output] = static_cast<uint16_t>(word), halves[16 + output] = static_cast<uint16_t>(word >> 16);
                    else
                        reinterpret_cast<uint32_t *>(tile)[of * 16 + output] = word;
                }
                put_in_tile(numbers + k * tile_inputs, tile + head_bytes(group, kind), output);
            }
            continue;
        } else {
            args.scales[row] = quantize_row_int4(x, columns, numbers, factors, lanes);
            for (int64_t i = 0; i < columns; i++) sum += (numbers[i] - kInt4Zero) * factors[i / PENSTOCK_INT4_GROUP];
            for (int64_t k = 0; k < k_tiles; k++) {
                uint8_t *tile = panel + k * tile_bytes;
                for (int group = 0; group < 4; group++) tile[group * 16 + output] = (uint8_t)factors[k * 4 + group];
                put_in_tile(numbers + k * tile_inputs, tile + 64, output);
            }
        }
        args.sums[row] = static_cast<int32_t>(128 * sum);
    }
    return true;
}

}  // namespace
