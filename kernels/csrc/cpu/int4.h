// Weights of int4: whole numbers from 0 to 15, less 8 and times a group's factor. Brought to tiles of int8, or multiplied as they are for
// one or two rows, with the same sums. Included by linear.h.
#pragma once

#include "nibbles.h"
#include "products.h"
#include "work.h"

namespace {

// A tile of int4 as two of int8: of its first 64 inputs and of the others.
INLINE void unpack_int4(const uint8_t *from, uint8_t *to) {
    for (int half = 0; half < 2; half++) {  // groups 0 and 2, then 1 and 3
        const U16 low_group = widen_bytes((Bytes16) * reinterpret_cast<const B16Memory *>(from + half * 16));
        const U16 high_group = widen_bytes((Bytes16) * reinterpret_cast<const B16Memory *>(from + (2 + half) * 16));
        const H32 low_factor = (H32)(low_group * 0x00010001u), high_factor = (H32)(high_group * 0x00010001u);
        const B64 low_eight = (B64)(low_group * 0x08080808u), high_eight = (B64)(high_group * 0x08080808u);
        for (int p = 8 * half; p < 8 * half + 8; p++) {
            // Two numbers up to 15 in 16 bits, times up to 15: the lower one does not reach the upper one's byte.
            const U16 both = load_as<U16>(from + 64 + p * 64);
            const H32 low = (H32)(both & 0x0f0f0f0fu) * low_factor;
            const H32 high = (H32)(both >> 4 & 0x0f0f0f0fu) * high_factor;
            store_as(to + p * 64, (B64)low - low_eight);
            store_as(to + kTileBytes + p * 64, (B64)high - high_eight);
        }
    }
}

// Up to so many rows int4 is brought to int8 piece by piece, for 16 rows at a time; for more of them whole columns are.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int kInt4Few = 32;
#elif defined(__AVX2__)
constexpr int kInt4Few = INT32_MAX;  // it never is
#else
constexpr int kInt4Few = 16;
#endif

#if defined(__AVX512VNNI__)
// Tiles ahead that are asked for, in the second cache: one column at a time leaves the first one's few requests too few for a
// memory that is far (Sapphire Rapids: 1.1 times as fast as four of them in the first).
constexpr int kInt4Ahead = 8;

// 8 times the sums of a row's groups of inputs, less than 0, which sums of one row begin with. Inputs have no sign where
// they are turned.
INLINE void sum_int4_inputs(const uint8_t *a, int quads, int32_t *eights) {
    const __m256i signs = _mm256_set1_epi8(kIsTurned ? 0 : -128);
    for (int group = 0; group < (quads + 7) / 8; group++) {
        const auto *inputs = reinterpret_cast<const __m256i *>(a + group * PENSTOCK_INT4_GROUP);
        const __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(_mm256_loadu_si256(inputs), signs), _mm256_setzero_si256());
        const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        const int sum = static_cast<int>(_mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1));
        eights[group] = -8 * (kIsTurned ? sum : sum - 128 * PENSTOCK_INT4_GROUP);
    }
}

// Quads of one group, or of two in the same bytes, of one or two rows. Of two rows inputs are summed beside their products, in each
// column: with less to do between them the lines that are waited for keep others from being asked for (Zen 4: 0.92 times as fast
// from memory, if 1.4 times from a cache).
template <int rows, bool has_high>
INLINE void int4_groups(const uint8_t *a, long a_bytes, const uint8_t *numbers, const uint8_t *ahead, const uint8_t *factors,
                        const int32_t *eights, __m512i *sum) {
    const __m512i nibbles = _mm512_set1_epi8(15);
    // Of a number without a sign and one with: inputs have none where they are turned.
    const auto add = [](__m512i so_far, __m512i inputs, __m512i some) {
        return kIsTurned ? _mm512_dpbusd_epi32(so_far, inputs, some) : _mm512_dpbusd_epi32(so_far, some, inputs);
    };
    constexpr bool sums_inputs = rows > 1;
    const __m512i eight = _mm512_set1_epi8(8), none = _mm512_setzero_si512();
    __m512i low[rows], high[rows], low_inputs[rows] = {}, high_inputs[rows] = {};
    for (int r = 0; r < rows; r++) {
        low[r] = sums_inputs ? none : _mm512_set1_epi32(eights[0]);
        high[r] = sums_inputs || !has_high ? none : _mm512_set1_epi32(eights[2]);
    }
#pragma GCC unroll 8
    for (int p = 0; p < 8; p++) {
        // A line with each line: many at once would have those wait that are needed now.
        fetch_far(ahead + p * 64, 64);
        const __m512i both = _mm512_loadu_si512(numbers + p * 64);
        const __m512i first = _mm512_and_si512(both, nibbles);
        const __m512i second = _mm512_and_si512(_mm512_srli_epi32(both, 4), nibbles);
        for (int r = 0; r < rows; r++) {
            const uint8_t *quad = a + r * a_bytes + p * 4;
            const __m512i x = _mm512_set1_epi32(*reinterpret_cast<const int32_t *>(quad));
            low[r] = add(low[r], x, first);
            if (sums_inputs) low_inputs[r] = add(low_inputs[r], x, eight);
            if (!has_high) continue;
            const __m512i y = _mm512_set1_epi32(*reinterpret_cast<const int32_t *>(quad + PENSTOCK_BYTE_INPUTS));
            high[r] = add(high[r], y, second);
            if (sums_inputs) high_inputs[r] = add(high_inputs[r], y, eight);
        }
    }
    for (int r = 0; sums_inputs && r < rows; r++) {
        low[r] = _mm512_sub_epi32(low[r], low_inputs[r]);
        if (has_high) high[r] = _mm512_sub_epi32(high[r], high_inputs[r]);
    }
    const auto *from = reinterpret_cast<const __m128i *>(factors);
    const __m512i low_factor = _mm512_cvtepu8_epi32(_mm_loadu_si128(from));
    const __m512i high_factor = _mm512_cvtepu8_epi32(_mm_loadu_si128(from + 2));
    for (int r = 0; r < rows; r++) {
        sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(low[r], low_factor));
        if (has_high) sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(high[r], high_factor));
    }
}

// One or two rows times a column of int4. A group's numbers are multiplied as they are, from 0 to 15; 8 times the sum of
// its inputs is taken off, and what is left multiplied by the group's factor: the whole numbers that come of int8 tiles. Columns
// are short: several side by side would be as many streams, and what the processor fetches beyond each one's end is lost. `step`:
// from this column to the one that is multiplied next; `eights`: of one row.
template <int rows>
INLINE void int4_rows(const uint8_t *a, long a_bytes, const uint8_t *column, int quads, long step, const int32_t *eights,
                      float *c) {
    const int tiles = (quads + 31) / 32;
    __m512i sum[rows];
    for (int r = 0; r < rows; r++) sum[r] = _mm512_setzero_si512();
    for (int k = 0; k < tiles; k++) {
        const uint8_t *const tile = column + (long)k * PENSTOCK_INT4_BYTES;
        const uint8_t *const ahead = ahead_of(column, k, tiles, PENSTOCK_INT4_BYTES, step, kInt4Ahead);
        fetch_far(ahead + 1024, 64);
        for (int half = 0; half < 2; half++) {  // groups 0 and 2, then 1 and 3
            const int left = quads - k * 32 - half * 8;
            const uint8_t *const there = ahead + half * 512;
            if (left <= 0) {
                fetch_far(there, 512);
                continue;
            }
            const uint8_t *const inputs = a + (long)k * PENSTOCK_INT4_INPUTS + half * PENSTOCK_INT4_GROUP;
            const uint8_t *const numbers = tile + 64 + half * 512;
            const int32_t *const of_groups = eights + k * 4 + half;
            if (left > 16)
                int4_groups<rows, true>(inputs, a_bytes, numbers, there, tile + half * 16, of_groups, sum);
            else
                int4_groups<rows, false>(inputs, a_bytes, numbers, there, tile + half * 16, of_groups, sum);
        }
    }
    for (int r = 0; r < rows; r++) _mm512_storeu_si512(c + r * 16, sum[r]);
}
#endif

#if defined(__AVX512VNNI__)
constexpr int kInt4Rows = 8;  // whose sums with two columns leave registers for what tiles are brought to int8 with

// Loads once: GCC would load anew for each use, and Zen 4 loads one such register in a cycle.
INLINE __m512i load_once(const uint8_t *from) {
    __m512i x = _mm512_loadu_si512(from);
    asm("" : "+v"(x));
    return x;
}

// Products of rows with one group of one or two columns, or with two in the same bytes.
template <int rows, int count, bool has_high>
INLINE void int4_block_groups(const uint8_t *inputs, long a_bytes, const uint8_t *const *tile, const uint8_t *const *ahead,
                              int half, __m512i (*sum)[count]) {
    const __m512i nibbles = _mm512_set1_epi8(15);
    constexpr int uppers = has_high ? 2 : 1;
    __m512i factors[2][count], eights[2][count];
    for (int upper = 0; upper < uppers; upper++)
        for (int i = 0; i < count; i++) {
            const auto *from = reinterpret_cast<const __m128i *>(tile[i]) + 2 * upper + half;
            const __m512i factor = _mm512_cvtepu8_epi32(_mm_loadu_si128(from));
            factors[upper][i] = _mm512_or_si512(factor, _mm512_slli_epi32(factor, 16));
            const __m512i eight = _mm512_slli_epi32(factors[upper][i], 3);
            eights[upper][i] = _mm512_or_si512(eight, _mm512_slli_epi32(eight, 8));
        }
#pragma GCC unroll 8
    for (int p = 0; p < 8; p++) {
        __m512i numbers[2][count];
        for (int i = 0; i < count; i++) {
            fetch_far(ahead[i] + half * 512 + p * 64, 64);
            const __m512i both = load_once(tile[i] + 64 + half * 512 + p * 64);
            // Two numbers up to 15 in 16 bits, times up to 15: the lower does not reach the upper one's byte.
            const __m512i low = _mm512_and_si512(both, nibbles);
            numbers[0][i] = _mm512_sub_epi8(_mm512_mullo_epi16(low, factors[0][i]), eights[0][i]);
            if (!has_high) continue;
            const __m512i high = _mm512_and_si512(_mm512_srli_epi32(both, 4), nibbles);
            numbers[1][i] = _mm512_sub_epi8(_mm512_mullo_epi16(high, factors[1][i]), eights[1][i]);
        }
        for (int upper = 0; upper < uppers; upper++)
            for (int r = 0; r < rows; r++) {
                const uint8_t *quad = inputs + r * a_bytes + upper * PENSTOCK_BYTE_INPUTS + p * 4;
                const __m512i x = _mm512_set1_epi32(*reinterpret_cast<const int32_t *>(quad));
                for (int i = 0; i < count; i++) sum[r][i] = _mm512_dpbusd_epi32(sum[r][i], x, numbers[upper][i]);
            }
    }
}

// Rows times one or two columns of int4, of so many quads of inputs, which become int8 in registers: written to memory
// and read again they cost half of what products of eight rows do where registers are stored by halves (Zen 4).
// `step`: from each column to the one that is multiplied next in its place.
template <int rows, int count>
INLINE void int4_block(const uint8_t *a, long a_bytes, const uint8_t *const *columns, int quads, long step,
                       float *c) {
    const int tiles = (quads + 31) / 32;
    __m512i sum[rows][count];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) sum[r][i] = _mm512_setzero_si512();
    const auto find = [&](int k, const uint8_t **tile, const uint8_t **ahead) {
        for (int i = 0; i < count; i++) {
            tile[i] = columns[i] + (long)k * PENSTOCK_INT4_BYTES;
            ahead[i] = ahead_of(columns[i], k, tiles, PENSTOCK_INT4_BYTES, step, kInt4Ahead);
            fetch_far(ahead[i] + 1024, 64);
        }
    };
    const uint8_t *tile[count], *ahead[count];
    const int whole = quads / 32;
    for (int k = 0; k < whole; k++) {
        find(k, tile, ahead);
        for (int half = 0; half < 2; half++)  // groups 0 and 2, then 1 and 3
            int4_block_groups<rows, count, true>(a + (long)k * PENSTOCK_INT4_INPUTS + half * PENSTOCK_INT4_GROUP, a_bytes, tile,
                                                 ahead, half, sum);
    }
    if (whole < tiles) {
        // Groups beyond the inputs are zeros.
        find(whole, tile, ahead);
        for (int half = 0; half < 2; half++) {
            const int left = quads - whole * 32 - half * 8;
            const uint8_t *const inputs = a + (long)whole * PENSTOCK_INT4_INPUTS + half * PENSTOCK_INT4_GROUP;
            if (left > 16)
                int4_block_groups<rows, count, true>(inputs, a_bytes, tile, ahead, half, sum);
            else if (left > 0)
                int4_block_groups<rows, count, false>(inputs, a_bytes, tile, ahead, half, sum);
            else
                for (int i = 0; i < count; i++) fetch_far(ahead[i] + half * 512, 512);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) _mm512_storeu_si512(c + i * kBlockFloats + r * 16, sum[r][i]);
}

template <int count, int most>
INLINE void some_int4_rows(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *columns, int quads,
                           long step, float *c) {
    if constexpr (most > 0) {
        if (rows == most)
            int4_block<most, count>(a, a_bytes, columns, quads, step, c);
        else
            some_int4_rows<count, most - 1>(a, a_bytes, rows, columns, quads, step, c);
    }
}

// Up to 16 rows, in equal parts; the first brings the columns from far.
template <int count>
SEPARATE void int4_blocks(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *columns, int quads,
                          long step, float *c) {
    for (int row = 0, parts = (rows + kInt4Rows - 1) / kInt4Rows; row < rows; parts--) {
        const int some = (rows - row + parts - 1) / parts;
        some_int4_rows<count, kInt4Rows>(a + row * a_bytes, a_bytes, some, columns, quads, row == 0 ? step : 0,
                                         c + row * 16);
        row += some;
    }
}
#endif

#if defined(PENSTOCK_NIBBLES)
// Rows times one side of a column of int4 or more, as its numbers are. Of a group and an output that is the sum of products with numbers from 0
// to 15, less 8 times the sum of the inputs, times the group's factor: with sums of 16 bits two of them and a factor are one VPMADDWD. `eights`: -8 times the groups'
// sums of each row, as `sum_groups` has them, of `tiles` tiles. Where inputs have no sign, 8 times 128 for each of them is what sums begin with.
template <int rows, int sides>
SEPARATE void int4_block(const uint8_t *a, long a_bytes, const uint8_t *column, int side, int quads, Asking asking, long step,
                         const int16_t *eights, float *c) {
    const int tiles = (quads + 31) / 32;
    Integers sum[rows][sides];
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < sides; s++) sum[r][s] = Integers{};
    const auto add = [&]<bool has_high>(int k, int half) {
        const uint8_t *const tile = column + (long)k * PENSTOCK_INT4_BYTES;
        const uint8_t *const inputs = a + (long)k * PENSTOCK_INT4_INPUTS + half * PENSTOCK_INT4_GROUP;
        Integers low[rows][sides], high[rows][sides];
        for (int r = 0; r < rows; r++)
            for (int s = 0; s < sides; s++)
                low[r][s] = high[r][s] = MM(set1_epi32)(kIsTurned ? -8 * 128 * PENSTOCK_INT4_GROUP : 0);
        add_nibbles<rows, sides, 8, has_high, kWithZeros, kIsTurned>(inputs, a_bytes, tile + 64 + half * 512 + side * kRegister, low, high);
        for (int s = 0; s < sides; s++) {
            const uint8_t *const from = tile + half * 16 + (side + s) * kSideOutputs;
            const Integers factor = bytes_in_words(from);
            const Integers upper = MM(slli_epi32)(bytes_in_words(from + 32), 16);
            const Integers factors = has_high ? factor | upper : factor;
            for (int r = 0; r < rows; r++) {
                const Integers less = pair_of_sums(eights + (r * tiles + k) * 4 + half * 2);
                sum[r][s] = MM(add_epi32)(sum[r][s], MM(madd_epi16)(less, factors));
#if defined(__AVXVNNI__)
                sum[r][s] = MM(add_epi32)(sum[r][s], MM(mullo_epi32)(low[r][s], factor));
                if (has_high) sum[r][s] = MM(add_epi32)(sum[r][s], MM(mullo_epi32)(high[r][s], MM(srli_epi32)(upper, 16)));
#else
                const Integers twice = factor | MM(slli_epi32)(factor, 16);
                sum[r][s] = MM(add_epi32)(sum[r][s], MM(madd_epi16)(low[r][s], twice));
                if (!has_high) continue;
                const Integers twice_upper = upper | MM(srli_epi32)(upper, 16);
                sum[r][s] = MM(add_epi32)(sum[r][s], MM(madd_epi16)(high[r][s], twice_upper));
#endif
            }
        }
    };
    for (int k = 0; k < tiles; k++) {
        ask_for(asking, column, k, tiles, PENSTOCK_INT4_BYTES, step);
        for (int half = 0; half < 2; half++) {  // groups 0 and 2, then 1 and 3
            const int left = quads - k * 32 - half * 8;
            if (left > 16)
                add.template operator()<true>(k, half);
            else if (left > 0)
                add.template operator()<false>(k, half);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < sides; s++) MM(storeu_ps)(c + r * 16 + (side + s) * kSideOutputs, (Floats)sum[r][s]);
}
#endif

#if defined(PENSTOCK_AMX)
// 16 rows times up to four columns of int4, or 32 rows times one or two: c[column][block of 16 rows]. Sums stay in registers
// while tile after tile becomes int8, the next one before a tile is multiplied, since tiles are not loaded out of stores under way.
template <int count, int blocks>
INLINE void int4_tiles(const uint8_t *a, long a_bytes, const uint8_t *const *columns, int quads, long step, uint8_t *unpacked,
                       float *c) {
    constexpr Numbers numbers = kBytes;
    const int tiles = (quads + 31) / 32, halves = tiles_of_quads(quads);
    const auto bring = [&](int k) {
        for (int i = 0; i < count; i++) {
            const long at = (long)k * PENSTOCK_INT4_BYTES;
            fetch_ahead(ahead_of(columns[i], k, tiles, PENSTOCK_INT4_BYTES, step), PENSTOCK_INT4_BYTES);
            unpack_int4(columns[i] + at, unpacked + (k % 2 * count + i) * 2 * kTileBytes);
        }
    };
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    bring(0);
    for (int k = 0; k < tiles; k++) {
        if (k + 1 < tiles) bring(k + 1);
        for (int half = 0; half < 2 && 2 * k + half < halves; half++) {
            const uint8_t *x = a + (2 * k + half) * 64, *b = unpacked + (k % 2 * count * 2 + half) * kTileBytes;
            TILE_LOAD(4, x, a_bytes);
            TILE_LOAD(6, b, 64);
            TILE_PRODUCT(0, 4, 6);
            if (blocks > 1) {
                TILE_LOAD(5, x + 16 * a_bytes, a_bytes);
                TILE_PRODUCT(1, 5, 6);
            }
            if (count > 1) {
                TILE_LOAD(7, b + 2 * kTileBytes, 64);
                if (blocks > 1) {
                    TILE_PRODUCT(2, 4, 7);
                    TILE_PRODUCT(3, 5, 7);
                } else {
                    TILE_PRODUCT(1, 4, 7);
                }
            }
            if (count > 2) {
                TILE_LOAD(6, b + 4 * kTileBytes, 64);
                TILE_PRODUCT(2, 4, 6);
            }
            if (count > 3) {
                TILE_LOAD(7, b + 6 * kTileBytes, 64);
                TILE_PRODUCT(3, 4, 7);
            }
        }
    }
    TILE_STORE(0, c, 64);
    if (count * blocks > 1) TILE_STORE(1, c + kBlockFloats, 64);
    if (count * blocks > 2) TILE_STORE(2, c + 2 * kBlockFloats, 64);
    if (count * blocks > 3) TILE_STORE(3, c + 3 * kBlockFloats, 64);
}
#endif

}  // namespace
