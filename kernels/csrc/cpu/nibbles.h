// Numbers of 4 bits, two in a byte, and with AVX2, or AVX-512 without VNNI, their products as they are, by VPMADDUBSW or, where there is one of
// 32 bytes, by VPDPBUSD. Included by grouped.h and int4.h.
#pragma once

#include "tiles.h"

// Not where VPDPBUSD takes 64 bytes: there products of int8 cost no more than those of 4 bits, and numbers become int8.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#define PENSTOCK_NIBBLES
#endif

namespace {

// What 4 bits of each byte stand for: themselves, or of fp4 their number with the zero point.
constexpr int8_t kFp4Numbers[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
template <GroupKind of>
INLINE B64 numbers_of(B64 x) {
    if constexpr (of != kFp4) return x;
#if defined(PENSTOCK_AVX512)
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i *>(kFp4Numbers));
    return (B64)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(all), (__m512i)x);
#else
    union {
        B64 whole;
#if defined(__AVX2__)
        __m256i parts[2];
#elif defined(PENSTOCK_NEON)
        uint8x16_t parts[4];
#else
        uint8_t parts[64];
#endif
    } numbers = {x};
#if defined(__AVX2__)
    const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(kFp4Numbers)));
    for (__m256i &part : numbers.parts) part = _mm256_shuffle_epi8(all, part);
#elif defined(PENSTOCK_NEON)
    const uint8x16_t all = vreinterpretq_u8_s8(vld1q_s8(kFp4Numbers));
    for (uint8x16_t &part : numbers.parts) part = vqtbl1q_u8(all, part);
#else
    for (uint8_t &part : numbers.parts) part = static_cast<uint8_t>(kFp4Numbers[part]);
#endif
    return numbers.whole;
#endif
}

#if defined(PENSTOCK_NIBBLES)
// A register, its intrinsics, which are named by its length, and what they do not do alike: 16 bytes in each part of a register, and bytes
// in 32 bits each.
#if defined(PENSTOCK_AVX512)
typedef __m512i Integers;
typedef __m512 Floats;
#define MM(name) _mm512_##name
INLINE Integers in_each_part(__m128i x) {
    return _mm512_broadcast_i32x4(x);
}
INLINE Integers bytes_in_words(const uint8_t *from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}
#else
typedef __m256i Integers;
typedef __m256 Floats;
#define MM(name) _mm256_##name
INLINE Integers in_each_part(__m128i x) {
    return _mm256_broadcastsi128_si256(x);
}
INLINE Integers bytes_in_words(const uint8_t *from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from)));
}
#endif
// Numbers of fp16.
INLINE Floats halves_in_words(const uint8_t *from) {
#if defined(PENSTOCK_AVX512)
    return (Floats)from_halves(from);
#else
    const __m256i x = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
    const __m256i bits = (_mm256_slli_epi32(x, 13) & _mm256_set1_epi32(0x0fffe000)) | (x & _mm256_set1_epi32(INT32_MIN));
    return _mm256_mul_ps((__m256)bits, _mm256_set1_ps(kHalfExponents));
#endif
}
INLINE Integers load_integers(const void *from) {
    typedef Integers Memory __attribute__((aligned(1), may_alias));
    return *static_cast<const Memory *>(from);
}

// Rows whose products with a side, the outputs of a register, are summed in registers; those of two are with all outputs of a tile.
constexpr int kNibbleRows = 8 / kRegisters;
constexpr int kSideOutputs = 16 / kRegisters;

// What the bytes of inputs are turned by, so that they have a sign.
constexpr char kSignOfInputs = kIsTurned ? -128 : 0;

// Of `rows` rows and `sides` sides, sums of four products each in 32 bits by VPDPBUSD, or of two in 16 bits by VPMADDUBSW, of so
// many steps that they fit (`whole_of` makes them the former). `is_turned`: of inputs as they are, where they have no sign, and else of what
// they stand for. `low` is the group of the lower bits, `high` that of the upper ones, 64 inputs further.
template <int rows, int sides, int quads, bool has_high, GroupKind of, bool is_turned>
INLINE void add_nibbles(const uint8_t *inputs, long a_bytes, const uint8_t *numbers, Integers (*low)[sides], Integers (*high)[sides]) {
    const auto number_of = [](Integers x) {
        if (of != kFp4) return x;
        return MM(shuffle_epi8)(in_each_part(_mm_loadu_si128(reinterpret_cast<const __m128i *>(kFp4Numbers))), x);
    };
    const auto add_one = [](Integers &sum, Integers number, Integers x) {
#if defined(__AVXVNNI__)
        sum = is_turned ? _mm256_dpbusd_avx_epi32(sum, x, number) : _mm256_dpbusd_avx_epi32(sum, number, x);
#else
        sum = MM(add_epi16)(sum, MM(maddubs_epi16)(number, x));
        // One after another: GCC would add what is added later first, and keep all of it in memory.
        asm("" : "+v"(sum));
#endif
    };
    const auto input_of = [](const uint8_t *quad) {
        const Integers x = MM(set1_epi32)(*reinterpret_cast<const int32_t *>(quad));
        return is_turned || !kIsTurned ? x : x ^ MM(set1_epi8)(kSignOfInputs);
    };
    const Integers bits = MM(set1_epi8)(15);
#pragma GCC unroll 8
    for (int p = 0; p < quads; p++) {
        Integers first[sides], second[sides];
        for (int s = 0; s < sides; s++) {
            const Integers both = load_integers(numbers + p * 64 + s * kRegister);
            first[s] = number_of(both & bits);
            second[s] = number_of(MM(srli_epi16)(both, 4) & bits);
        }
        for (int r = 0; r < rows; r++) {
            const uint8_t *const quad = inputs + r * a_bytes + p * 4;
            const Integers x = input_of(quad);
            for (int s = 0; s < sides; s++) add_one(low[r][s], first[s], x);
            if (!has_high) continue;
            const Integers y = input_of(quad + PENSTOCK_BYTE_INPUTS);
            for (int s = 0; s < sides; s++) add_one(high[r][s], second[s], y);
        }
    }
}

// Such sums in 32 bits.
INLINE Integers whole_of(Integers sums) {
#if defined(__AVXVNNI__)
    return sums;
#else
    return MM(madd_epi16)(sums, MM(set1_epi16)(1));
#endif
}

// Sums of the groups of 32 inputs of a row, times a factor, in 16 bits: of the groups of a byte's lower and upper bits beside each other.
INLINE void sum_groups(const uint8_t *a, int quads, int factor, int16_t *sums) {
    const __m256i ones = _mm256_set1_epi8(1), units = _mm256_set1_epi16(1);
    for (int group = 0; group < (quads + 7) / 8; group++) {
        const auto *inputs = reinterpret_cast<const __m256i *>(a + group * PENSTOCK_INT4_GROUP);
        const __m256i signed_inputs = _mm256_loadu_si256(inputs) ^ _mm256_set1_epi8(kSignOfInputs);
        const __m256i of_four = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, signed_inputs), units);
        const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(of_four), _mm256_extracti128_si256(of_four, 1));
        const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        const int sum = _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
        sums[group / 4 * 4 + group % 2 * 2 + group / 2 % 2] = static_cast<int16_t>(factor * sum);
    }
}

// Both of them, in every lane.
INLINE Integers pair_of_sums(const int16_t *sums) {
    return MM(set1_epi32)(*reinterpret_cast<const int32_t *>(sums));
}

// Which share of what is multiplied later a part of the work asks for: `begin` to `end` of `of`; of 0: nothing.
struct Asking {
    int begin, end, of;
};

// For tile `k` of a column. Where one part does it all that is for some tiles ahead, and else for the column that follows.
INLINE void ask_for(Asking asking, const uint8_t *column, int k, int tiles, long tile_bytes, long step) {
    if (asking.of == 0) return;
    const int ahead = asking.of == 1 ? kAhead : tiles;
    const uint8_t *const tile = ahead_of(column, k, tiles, tile_bytes, step, ahead);
    const int64_t lines = tile_bytes / 64, begin = lines * asking.begin / asking.of, end = lines * asking.end / asking.of;
    if (asking.of == 1)
        fetch_near(tile, tile_bytes);
    else
        fetch_far(tile + begin * 64, (end - begin) * 64);
}

// Rows of a part, by `part.template operator()<rows, sides>(row, side, asking)`: up to two with all outputs of a tile, others with one side
// after the other.
template <int some, typename Part>
INLINE void in_sides(int rows, int row, int at, int of, Part part) {
    if constexpr (some > 0) {
        if (rows != some) return in_sides<some - 1>(rows, row, at, of, part);
        constexpr int sides = some <= 2 ? kRegisters : 1;
        for (int side = 0; side < kRegisters; side += sides) {
            const int begin = kRegisters * at + side;
            part.template operator()<some, sides>(row, side, Asking{begin, begin + sides, of});
        }
    }
}

// Up to 16 rows in equal parts.
template <typename Part>
INLINE void in_parts(int rows, bool asks, Part part) {
    const int parts = (rows + kNibbleRows - 1) / kNibbleRows, of = !asks ? 0 : rows <= 2 ? 1 : kRegisters * parts;
    for (int row = 0, at = 0; at < parts; at++) {
        const int some = (rows - row + parts - at - 1) / (parts - at);
        in_sides<kNibbleRows>(some, row, at, of, part);
        row += some;
    }
}
#endif

}  // namespace
