// Weights of 4 bits in groups, as checkpoints are published: of each group whole numbers from 0 to 15, a scale, and a zero point or an offset. Sums of
// a group's products are whole numbers; groups are added in fp32, in their order, so that a token's sums do not depend on the rows beside
// it. An offset is multiplied with the sum of the group's inputs, and added behind the products. Included by linear.h.
#pragma once

#include "nibbles.h"
#include "products.h"

namespace {

// Of the numbers of a tile that belong to a group: the scale, the zero point and the offset of each output.
template <GroupKind of>
INLINE F16 scale_of(const uint8_t *tile, int group) {
    if (of == kFp4) return (F16)(widen_bytes((Bytes16) * reinterpret_cast<const B16Memory *>(tile + group * 16)) << 23);
    if (of == kWithOffsets) return from_halves(tile + group * 64);
    return (F16)(load_as<U16>(tile + group * 64) & ~31u);
}
template <GroupKind of>
INLINE I16 zero_of(const uint8_t *tile, int group) {
    if (of == kFp4) return all_integers(12);
    if (of == kWithOffsets) return I16{};
    return (I16)(load_as<U16>(tile + group * 64) & 31u);
}
INLINE F16 offset_of(const uint8_t *tile, int group) {
    return from_halves(tile + group * 64 + 32);
}

// One more group. Every path adds with this: so all round alike.
INLINE F16 add_group(F16 sum, I16 whole, F16 scale) {
#if defined(PENSTOCK_AVX512)
    return (F16)_mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)whole), (__m512)scale, (__m512)sum);
#else
    return sum + to_floats(whole) * scale;
#endif
}

// The same of its offset, which all of its inputs have: once their sum.
INLINE F16 add_offset(F16 sum, float inputs, F16 offset) {
#if defined(PENSTOCK_AVX512)
    return (F16)_mm512_fmadd_ps(_mm512_set1_ps(inputs), (__m512)offset, (__m512)sum);
#else
    return sum + offset * inputs;
#endif
}

// What a tile becomes for products of int8: of each group 64 bytes that are taken off where numbers are turned, 64 bytes of scales and 64 of
// offsets; behind them tiles of (u - zero). Groups of 32 are half of a tile each; where products take whole tiles, of a tile each, half of which is zeros.
template <int group>
constexpr int kGroups = PENSTOCK_INT4_INPUTS / group;
template <int group>
constexpr int kTilesOfGroup = group == 128 ? 2 : 1;
template <int group>
constexpr int64_t kUnpackedGroups = unpacked_bytes(group);
#if defined(__AVX512VNNI__) && !defined(PENSTOCK_AMX)
constexpr bool kTakesHalves = true;
#else
constexpr bool kTakesHalves = false;
#endif

template <int group, GroupKind kind>
INLINE void unpack_groups(const uint8_t *from, uint8_t *to) {
    constexpr int groups = kGroups<group>;
    uint8_t *const tiles = to + groups * kUnpackedHead;
    I16 total[groups] = {};
    // Quads 0 to 7 and 8 to 15, of the lower and of the upper 64 inputs: 32 inputs each.
    for (int part = 0; part < 4; part++) {
        const int upper = part / 2, half = part % 2, of = part * 32 / group;
        const B64 zero = (B64)((U16)zero_of<kind>(from, of) * 0x01010101u);
        uint8_t *const tile = tiles + (group == 32 && !kTakesHalves ? part : upper) * kTileBytes;
        B64 bytes = {};
        for (int p = 8 * half; p < 8 * half + 8; p++) {
            const U16 both = load_as<U16>(from + head_bytes(group, kind) + p * 64);
            const B64 u = numbers_of<kind>((B64)((upper ? both >> 4 : both) & 0x0f0f0f0fu));
            bytes += u;  // at most 8 times 24
            store_as(tile + p * 64, u - zero);
            if (group == 32 && !kTakesHalves) store_as(tile + (p ^ 8) * 64, B64{});
        }
        const U16 quads = (U16)bytes;
        const U16 sums = (quads & 255u) + (quads >> 8 & 255u) + (quads >> 16 & 255u) + (quads >> 24);
        total[of] += (I16)sums - zero_of<kind>(from, of) * 32;
    }
    for (int i = 0; i < groups; i++) {
        auto *const head = reinterpret_cast<float *>(to + i * kUnpackedHead);
        store(head, (F16)(total[i] * 128));
        store(head + 16, scale_of<kind>(from, i));
        if (kind == kWithOffsets) store(head + 32, offset_of(from, i));
    }
}

#if defined(__AVX512VNNI__) && !defined(PENSTOCK_AMX)
constexpr int kRowsOfStep = 8;  // with two columns: sums of whole numbers are in registers, those of fp32 are not

template <int group, bool has_offsets, int rows, int count>
INLINE void add_group_rows(const uint8_t *a, long a_bytes, const uint8_t *const *unpacked, const float *of_inputs, float *sums) {
    constexpr int groups = kGroups<group>;
    for (int at = 0; at < groups; at++) {
        __m512i whole[rows][count];
        for (int i = 0; i < count; i++) {
            const auto turned = (__m512i)-(I16)load(reinterpret_cast<const float *>(unpacked[i] + at * kUnpackedHead));
            for (int r = 0; r < rows; r++) whole[r][i] = turned;
        }
#pragma GCC unroll 8
        for (int p = 0; p < group / 4; p++) {
            __m512i numbers[count];
            for (int i = 0; i < count; i++)
                numbers[i] = _mm512_loadu_si512(unpacked[i] + groups * kUnpackedHead + (at * group / 4 + p) * 64);
            for (int r = 0; r < rows; r++) {
                const auto *quad = reinterpret_cast<const int32_t *>(a + r * a_bytes + at * group + p * 4);
                const __m512i x = _mm512_set1_epi32(*quad);
                // By intrinsics GCC keeps two copies of each sum, and moves them for each product.
                for (int i = 0; i < count; i++) asm("vpdpbusd %2, %1, %0" : "+v"(whole[r][i]) : "v"(x), "v"(numbers[i]));
            }
        }
        for (int i = 0; i < count; i++) {
            const auto *const head = reinterpret_cast<const float *>(unpacked[i] + at * kUnpackedHead);
            const F16 scale = load(head + 16), offset = has_offsets ? load(head + 32) : F16{};
            for (int r = 0; r < rows; r++) {
                float *const sum = sums + i * kBlockFloats + r * 16;
                F16 made = add_group(load(sum), (I16)whole[r][i], scale);
                if (has_offsets) made = add_offset(made, of_inputs[r * 4 + at], offset);
                store(sum, made);
            }
        }
    }
}

template <int group, bool has_offsets, int count, int most>
INLINE void some_groups_of(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *unpacked, const float *of_inputs,
                           float *sums) {
    if constexpr (most > 0) {
        if (rows == most)
            add_group_rows<group, has_offsets, most, count>(a, a_bytes, unpacked, of_inputs, sums);
        else
            some_groups_of<group, has_offsets, count, most - 1>(a, a_bytes, rows, unpacked, of_inputs, sums);
    }
}

// Products of some rows with 128 inputs of some columns, added to `sums`. `of_inputs`: for offsets, four sums of each row.
template <int group, bool has_offsets>
SEPARATE void add_groups_of(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *unpacked, int count,
                            const float *of_inputs, float *, float *sums) {
    for (int i = 0; i < count; i += 2) {
        float *const to = sums + i * kBlockFloats;
        if (count - i > 1)
            some_groups_of<group, has_offsets, 2, kRowsOfStep>(a, a_bytes, rows, unpacked + i, of_inputs, to);
        else
            some_groups_of<group, has_offsets, 1, kRowsOfStep>(a, a_bytes, rows, unpacked + i, of_inputs, to);
    }
}
#else
constexpr int kRowsOfStep = 16;

// Products of some rows with 128 inputs of some columns, added to `sums`. `of_inputs`: for offsets, four sums of each row. `whole`: memory for as
// many sums.
template <int group, bool has_offsets>
INLINE void add_groups_of(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *unpacked, int count,
                          const float *of_inputs, float *whole, float *sums) {
    constexpr int groups = kGroups<group>;
    for (int at = 0; at < groups; at++) {
        const uint8_t *from[kMostTiles];
        for (int i = 0; i < count; i++)
            from[i] = unpacked[i] + groups * kUnpackedHead + (int64_t)at * kTilesOfGroup<group> * kTileBytes;
        // Groups of 32 are half of the 64 inputs that their tile is for.
        const int first = at * group / PENSTOCK_BYTE_INPUTS * PENSTOCK_BYTE_INPUTS;
        byte_product(a + first, a_bytes, rows, from, count, 16 * kTilesOfGroup<group>, kOfCached, 0, false, whole);
        for (int i = 0; i < count; i++) {
            const auto *const head = reinterpret_cast<const float *>(unpacked[i] + at * kUnpackedHead);
            const F16 scale = load(head + 16);
            const I16 turned = kIsTurned ? (I16)load(head) : I16{};
            for (int r = 0; r < rows; r++) {
                float *const sum = sums + i * kBlockFloats + r * 16;
                F16 made = add_group(load(sum), (I16)load(whole + i * kBlockFloats + r * 16) - turned, scale);
                if (has_offsets) made = add_offset(made, of_inputs[r * 4 + at], load(head + 32));
                store(sum, made);
            }
        }
    }
}
#endif

#if defined(__AVX512VNNI__)
// One or two rows times columns as they are. Inputs have a sign here: of a group, the sum of products with numbers without one, less the
// zero point times the sum of the inputs.
template <int group, GroupKind kind, int rows, int count>
INLINE void group_rows(const uint8_t *a, long a_bytes, const uint8_t *const *columns, int tiles, long step, float *c) {
    constexpr int groups = kGroups<group>;
    constexpr long head = head_bytes(group, kind), tile_bytes = head + 1024;
    const __m512i nibbles = _mm512_set1_epi8(15), ones = _mm512_set1_epi8(1);
    const __m512i sign = _mm512_set1_epi8(kIsTurned ? -128 : 0);
    F16 sum[rows][count] = {};
    for (int k = 0; k < tiles; k++) {
        const long at = (long)k * tile_bytes;
        for (int i = 0; i < count; i++) fetch_ahead(ahead_of(columns[i], k, tiles, tile_bytes, step), tile_bytes);
        // Groups of 32 in their order, or of the lower and the upper 64 inputs.
        constexpr int parts = group == 32 ? 4 : 2;
        __m512i part[parts][rows][count] = {}, inputs[parts][rows] = {};
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const int lower = group == 32 ? half : 0, upper = group == 32 ? 2 + half : 1;
#pragma GCC unroll 8
            for (int p = 0; p < 8; p++) {
                __m512i x[rows], y[rows];
                for (int r = 0; r < rows; r++) {
                    // Beyond the inputs there are other bytes, and numbers that are their zero point.
                    const uint8_t *quad = a + r * a_bytes + (long)k * PENSTOCK_INT4_INPUTS + half * 32 + p * 4;
                    x[r] = _mm512_xor_si512(_mm512_set1_epi32(*reinterpret_cast<const int32_t *>(quad)), sign);
                    y[r] = _mm512_xor_si512(
                        _mm512_set1_epi32(*reinterpret_cast<const int32_t *>(quad + PENSTOCK_BYTE_INPUTS)), sign);
                    inputs[lower][r] = _mm512_dpbusd_epi32(inputs[lower][r], ones, x[r]);
                    inputs[upper][r] = _mm512_dpbusd_epi32(inputs[upper][r], ones, y[r]);
                }
                for (int i = 0; i < count; i++) {
                    const __m512i both =
                        _mm512_loadu_si512(columns[i] + at + head + half * 512 + p * 64);
                    const auto low = (__m512i)numbers_of<kind>((B64)_mm512_and_si512(both, nibbles));
                    const auto high =
                        (__m512i)numbers_of<kind>((B64)_mm512_and_si512(_mm512_srli_epi32(both, 4), nibbles));
                    for (int r = 0; r < rows; r++) {
                        part[lower][r][i] = _mm512_dpbusd_epi32(part[lower][r][i], low, x[r]);
                        part[upper][r][i] = _mm512_dpbusd_epi32(part[upper][r][i], high, y[r]);
                    }
                }
            }
        }
        for (int g = 0; g < groups; g++)
            for (int i = 0; i < count; i++) {
                const F16 scale = scale_of<kind>(columns[i] + at, g);
                for (int r = 0; r < rows; r++) {
                    I16 whole = (I16)part[g][r][i], of_inputs = (I16)inputs[g][r];
                    if (group == 128) whole += (I16)part[1][r][i], of_inputs += (I16)inputs[1][r];
                    if (kind == kWithOffsets) {
                        sum[r][i] = add_group(sum[r][i], whole, scale);
                        sum[r][i] = add_group(sum[r][i], of_inputs, offset_of(columns[i] + at, g));
                    } else {
                        sum[r][i] = add_group(sum[r][i], whole - of_inputs * zero_of<kind>(columns[i] + at, g), scale);
                    }
                }
            }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) store(c + i * kBlockFloats + r * 16, sum[r][i]);
}

// As many of these columns as their sums leave registers for. Returns how many.
template <int group, GroupKind kind, int rows>
INLINE int some_group_rows(const uint8_t *a, long a_bytes, const uint8_t *const *columns, int count, int tiles, long step,
                           float *c) {
    if constexpr (rows == 1)
        if (count == 4) {
            group_rows<group, kind, rows, 4>(a, a_bytes, columns, tiles, step, c);
            return 4;
        }
    if (count > 1) {
        group_rows<group, kind, rows, 2>(a, a_bytes, columns, tiles, step, c);
        return 2;
    }
    group_rows<group, kind, rows, 1>(a, a_bytes, columns, tiles, step, c);
    return 1;
}
#endif

#if defined(PENSTOCK_NIBBLES)
// Rows times one side of a column as it is or more. Of a group and an output that is the sum of products with numbers without a sign, less
// the zero point times the sum of the inputs, which `of_inputs` has of each row (`sum_groups`).
template <int group, GroupKind kind, int rows, int sides>
SEPARATE void group_rows(const uint8_t *a, long a_bytes, const uint8_t *column, int side, int tiles, Asking asking, long step,
                         const int16_t *of_inputs, float *c) {
    constexpr long head = head_bytes(group, kind), tile_bytes = head + 1024;
    constexpr int quads = kind == kFp4 ? 4 : 8;  // of numbers up to 24, or up to 15
    Floats sum[rows][sides];
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < sides; s++) sum[r][s] = Floats{};
    for (int k = 0; k < tiles; k++) {
        const uint8_t *const tile = column + k * tile_bytes;
        ask_for(asking, column, k, tiles, tile_bytes, step);
        const int16_t *const of_tile = of_inputs + k * 4;
        Integers lower[rows][sides], upper[rows][sides], inputs[rows];
        // `mask`: which of two sums of inputs are the group's.
        const auto add = [&](int at, int mask, const Integers (*whole)[sides]) {
            for (int s = 0; s < sides; s++) {
                if (kind == kWithOffsets) {
                    const uint8_t *const halves = tile + at * 64 + (side + s) * kSideOutputs * 2;
                    const Floats scale = halves_in_words(halves), offset = halves_in_words(halves + 32);
                    for (int r = 0; r < rows; r++) {
                        const Integers own = MM(madd_epi16)(inputs[r], MM(set1_epi32)(mask & 0x00010001));
                        sum[r][s] = MM(fmadd_ps)(MM(cvtepi32_ps)(whole[r][s]), scale, sum[r][s]);
                        sum[r][s] = MM(fmadd_ps)(MM(cvtepi32_ps)(own), offset, sum[r][s]);
                    }
                    continue;
                }
                Integers words = MM(set1_epi32)(12);
                Integers scale;
                if (kind == kFp4) {
                    scale = MM(slli_epi32)(bytes_in_words(tile + at * 16 + (side + s) * kSideOutputs), 23);
                } else {
                    words = load_integers(tile + at * 64 + (side + s) * kRegister);
                    scale = words & ~MM(set1_epi32)(31);
                }
                const Integers zero = words & MM(set1_epi32)(31);
                const Integers zeros = (zero | MM(slli_epi32)(zero, 16)) & MM(set1_epi32)(mask);
                for (int r = 0; r < rows; r++) {
                    const Integers less = MM(sub_epi32)(whole[r][s], MM(madd_epi16)(inputs[r], zeros));
                    sum[r][s] = MM(fmadd_ps)(MM(cvtepi32_ps)(less), (Floats)scale, sum[r][s]);
                }
            }
        };
        for (int half = 0; half < 2; half++) {
            const bool is_first = group == 32 || half == 0;
            for (int r = 0; r < rows; r++) {
                const Integers pair = pair_of_sums(of_tile + r * tiles * 4 + half * 2);
                inputs[r] = is_first ? pair : MM(add_epi16)(inputs[r], pair);
                for (int s = 0; s < sides && is_first; s++) lower[r][s] = upper[r][s] = Integers{};
            }
#pragma GCC unroll 2
            for (int begin = 0; begin < 8; begin += quads) {
                Integers low[rows][sides], high[rows][sides];
                for (int r = 0; r < rows; r++)
                    for (int s = 0; s < sides; s++) low[r][s] = high[r][s] = Integers{};
                const int at = half * 8 + begin;
                add_nibbles<rows, sides, quads, true, kind, false>(a + (long)k * PENSTOCK_INT4_INPUTS + at * 4, a_bytes,
                                                              tile + head + at * 64 + side * kRegister, low, high);
                for (int r = 0; r < rows; r++)
                    for (int s = 0; s < sides; s++) {
                        lower[r][s] = MM(add_epi32)(lower[r][s], whole_of(low[r][s]));
                        // Of 128 inputs all are one group.
                        Integers &others = group == 128 ? lower[r][s] : upper[r][s];
                        others = MM(add_epi32)(others, whole_of(high[r][s]));
                    }
            }
            if (group == 32) {
                add(half, 31, lower);
                add(2 + half, 31 << 16, upper);
            }
        }
        if (group == 64) {
            add(0, 31, lower);
            add(1, 31 << 16, upper);
        }
        if (group == 128) add(0, 31 << 16 | 31, lower);
    }
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < sides; s++) MM(storeu_ps)(c + r * 16 + (side + s) * kSideOutputs, sum[r][s]);
}
#endif

// Rows whose products are taken while a tile of each column is unpacked.
constexpr int kRowsOfPass = 64;

// Up to kRowsOfPass rows times some columns: fp32 sums, of 16 rows in kMostTiles blocks each. `memory`: for a tile of each
// column, or for sums of inputs.
#if defined(PENSTOCK_NIBBLES)
template <int group, GroupKind kind>
INLINE void group_product(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *columns, int count, int tiles,
                          long step, bool asks, uint8_t *memory, float *sums) {
    auto *const of_inputs = reinterpret_cast<int16_t *>(memory);
    for (int first = 0; first < rows; first += 16, a += 16 * a_bytes, sums += kMostTiles * kBlockFloats) {
        const int some = rows - first < 16 ? rows - first : 16;
        for (int r = 0; r < some; r++) sum_groups(a + r * a_bytes, tiles * 32, 1, of_inputs + r * tiles * 4);
        for (int i = 0; i < count; i++) {
            const long to_next = (i + 1 < count ? columns[i + 1] : columns[0] + step) - columns[i];
            in_parts(some, asks && first == 0, [&]<int at_once, int sides>(int row, int side, Asking asking) {
                group_rows<group, kind, at_once, sides>(a + row * a_bytes, a_bytes, columns[i], side, tiles, asking,
                                                          to_next, of_inputs + row * tiles * 4, sums + i * kBlockFloats + row * 16);
            });
        }
    }
}
#else
// Of a row's 128 inputs of a tile, the sums of its four groups of 32.
INLINE void sum_inputs(const uint8_t *a, float *sums) {
#if defined(PENSTOCK_AVX512)
    // Sums of eight bytes each, of a group in four of them.
    const auto eights = [a](int group) {
        __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a + group * PENSTOCK_INT4_GROUP));
        if (!kIsTurned) x ^= _mm256_set1_epi8(-128);
        return _mm256_sad_epu8(x, _mm256_setzero_si256());
    };
    const auto halves = [](__m256i x, __m256i y) {
        return _mm256_add_epi64(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
    };
    const __m256i lower = halves(eights(0), eights(1)), upper = halves(eights(2), eights(3));
    const __m256i whole =
        _mm256_add_epi64(_mm256_permute2x128_si256(lower, upper, 0x20), _mm256_permute2x128_si256(lower, upper, 0x31));
    _mm_storeu_ps(sums, _mm256_cvtepi64_ps(_mm256_sub_epi64(whole, _mm256_set1_epi64x(128 * PENSTOCK_INT4_GROUP))));
#else
    for (int group = 0; group < 4; group++) {
        int sum = 0;
        for (int i = 0; i < PENSTOCK_INT4_GROUP; i++)
            sum += static_cast<int8_t>(a[group * PENSTOCK_INT4_GROUP + i] ^ (kIsTurned ? 128 : 0));
        sums[group] = static_cast<float>(sum);
    }
#endif
}

template <int group, GroupKind kind>
INLINE void group_product(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *columns, int count, int tiles,
                          long step, bool, uint8_t *memory, float *sums) {
#if defined(__AVX512VNNI__)
    while (rows <= 2 && count > 0) {
        const int some = rows == 1 ? some_group_rows<group, kind, 1>(a, a_bytes, columns, count, tiles, step, sums)
                                   : some_group_rows<group, kind, 2>(a, a_bytes, columns, count, tiles, step, sums);
        columns += some, count -= some, sums += some * kBlockFloats;
    }
    if (count == 0) return;
#endif
    constexpr long tile_bytes = head_bytes(group, kind) + 1024;
    constexpr int block = kMostTiles * kBlockFloats;
    float *const whole = sums + kRowsOfPass / 16 * block;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) store(sums + r / 16 * block + i * kBlockFloats + r % 16 * 16, F16{});
    for (int k = 0; k < tiles; k++) {
        const uint8_t *from[kMostTiles];
        for (int i = 0; i < count; i++) {
            uint8_t *const own = memory + i * kUnpackedGroups<group>;
            fetch_ahead(ahead_of(columns[i], k, tiles, tile_bytes, step), tile_bytes);
            unpack_groups<group, kind>(columns[i] + k * tile_bytes, own);
            from[i] = own;
        }
        for (int r = 0; r < rows; r += kRowsOfStep) {
            const uint8_t *const inputs = a + r * a_bytes + (long)k * PENSTOCK_INT4_INPUTS;
            const int some = static_cast<int>(least(kRowsOfStep, rows - r));
            // Rows are far from each other, and no processor sees where the next ones are.
            const uint8_t *const following = r + kRowsOfStep < rows ? inputs + kRowsOfStep * a_bytes : a + (long)(k + 1) * PENSTOCK_INT4_INPUTS;
            for (int row = 0; row < kRowsOfStep; row++) fetch_near(following + row * a_bytes, PENSTOCK_INT4_INPUTS);
            float of_inputs[kRowsOfStep * 4];
            for (int row = 0; kind == kWithOffsets && row < some; row++) sum_inputs(inputs + row * a_bytes, of_inputs + row * 4);
            add_groups_of<group, kind == kWithOffsets>(inputs, a_bytes, some, from, count, of_inputs, whole,
                                                       sums + r / 16 * block + r % 16 * 16);
        }
    }
}
#endif

}  // namespace
