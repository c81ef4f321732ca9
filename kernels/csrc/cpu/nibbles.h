// Numbers of 4 bits, two in a byte, and with AVX2 their products as they are, by VPMADDUBSW or, where there is one of 32 bytes, by VPDPBUSD. Included by grouped.h and int4.h.
#pragma once

#include "tiles.h"

namespace {

// What 4 bits of each byte stand for: themselves, or of fp4 their number with the zero point.
constexpr int8_t kFp4Numbers[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
template <bool is_fp4>
INLINE B64 numbers_of(B64 x) {
    if constexpr (!is_fp4) return x;
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

#if defined(PENSTOCK_AVX2)
// Rows whose products with eight outputs are summed in registers; those of two are with sixteen.
constexpr int kNibbleRows = 4;

// What the bytes of inputs are turned by, so that they have a sign.
INLINE __m256i signs_of_inputs() {
    return _mm256_set1_epi8(kIsTurned ? -128 : 0);
}

// Of `rows` rows and `sides` times eight outputs, sums of four products each in 32 bits by VPDPBUSD, or of two in 16 bits by VPMADDUBSW, of so
// many steps that they fit (`whole_of` makes them the former). `is_turned`: of inputs as they are, where they have no sign, and else of what
// they stand for. `low` is the group of the lower bits, `high` that of the upper ones, 64 inputs further.
template <int rows, int sides, int quads, bool has_high, bool is_fp4, bool is_turned>
INLINE void add_nibbles(const uint8_t *inputs, long a_bytes, const uint8_t *numbers, __m256i (*low)[sides], __m256i (*high)[sides]) {
    const auto number_of = [](__m256i x) {
        if (!is_fp4) return x;
        return _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(kFp4Numbers))), x);
    };
    const auto add_one = [](__m256i &sum, __m256i number, __m256i x) {
#if defined(__AVXVNNI__)
        sum = is_turned ? _mm256_dpbusd_avx_epi32(sum, x, number) : _mm256_dpbusd_avx_epi32(sum, number, x);
#else
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(number, x));
        // One after another: GCC would add what is added later first, and keep all of it in memory.
        asm("" : "+x"(sum));
#endif
    };
    const auto input_of = [](const uint8_t *quad) {
        const __m256i x = _mm256_set1_epi32(*reinterpret_cast<const int32_t *>(quad));
        return is_turned || !kIsTurned ? x : _mm256_xor_si256(x, signs_of_inputs());
    };
    const __m256i bits = _mm256_set1_epi8(15);
#pragma GCC unroll 8
    for (int p = 0; p < quads; p++) {
        __m256i first[sides], second[sides];
        for (int s = 0; s < sides; s++) {
            const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(numbers + p * 64 + s * 32));
            first[s] = number_of(_mm256_and_si256(both, bits));
            second[s] = number_of(_mm256_and_si256(_mm256_srli_epi16(both, 4), bits));
        }
        for (int r = 0; r < rows; r++) {
            const uint8_t *const quad = inputs + r * a_bytes + p * 4;
            const __m256i x = input_of(quad);
            for (int s = 0; s < sides; s++) add_one(low[r][s], first[s], x);
            if (!has_high) continue;
            const __m256i y = input_of(quad + PENSTOCK_BYTE_INPUTS);
            for (int s = 0; s < sides; s++) add_one(high[r][s], second[s], y);
        }
    }
}

// Such sums in 32 bits.
INLINE __m256i whole_of(__m256i sums) {
#if defined(__AVXVNNI__)
    return sums;
#else
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
#endif
}

// Sums of the groups of 32 inputs of a row, times a factor, in 16 bits: of the groups of a byte's lower and upper bits beside each other.
INLINE void sum_groups(const uint8_t *a, int quads, int factor, int16_t *sums) {
    const __m256i ones = _mm256_set1_epi8(1), units = _mm256_set1_epi16(1);
    for (int group = 0; group < (quads + 7) / 8; group++) {
        const auto *inputs = reinterpret_cast<const __m256i *>(a + group * PENSTOCK_INT4_GROUP);
        const __m256i signed_inputs = _mm256_xor_si256(_mm256_loadu_si256(inputs), signs_of_inputs());
        const __m256i of_four = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, signed_inputs), units);
        const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(of_four), _mm256_extracti128_si256(of_four, 1));
        const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        const int sum = _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
        sums[group / 4 * 4 + group % 2 * 2 + group / 2 % 2] = static_cast<int16_t>(factor * sum);
    }
}

// Both of them, in every lane.
INLINE __m256i pair_of_sums(const int16_t *sums) {
    return _mm256_set1_epi32(*reinterpret_cast<const int32_t *>(sums));
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

// Up to 16 rows in equal parts, each by `part.template operator()<rows, sides>(row, side, asking)`: those of up to two rows with sixteen
// outputs, others with eight and then with the others.
template <typename Part>
INLINE void in_parts(int rows, bool asks, Part part) {
    const int parts = (rows + kNibbleRows - 1) / kNibbleRows, of = !asks ? 0 : rows <= 2 ? 1 : 2 * parts;
    for (int row = 0, at = 0; at < parts; at++) {
        const int some = (rows - row + parts - at - 1) / (parts - at);
        const Asking both = {2 * at, of == 1 ? 1 : 2 * at + 2, of};
        if (some == 1) part.template operator()<1, 2>(row, 0, both);
        if (some == 2) part.template operator()<2, 2>(row, 0, both);
        for (int side = 0; side < 2; side++) {
            const Asking one = {2 * at + side, 2 * at + side + 1, of};
            if (some == 3) part.template operator()<3, 1>(row, side, one);
            if (some == 4) part.template operator()<4, 1>(row, side, one);
        }
        row += some;
    }
}
#endif

}  // namespace
