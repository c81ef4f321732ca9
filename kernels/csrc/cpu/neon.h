// Products of rows with tiles on ARM: by FMLA, of bf16 that is widened by shifts, and by SDOT; or by BFMMLA and SMMLA, where there are both
// (PENSTOCK_I8MM). Of int4 those of few rows by SDOT with either. Included by products.h, which says what is computed.
#pragma once

#include "tiles.h"

namespace {

// Of a row four pairs of bf16, or four quads of bytes; of a tile one pair, or quad, of four outputs.
INLINE uint8x16_t load_bytes(const uint8_t *from) {
    return vld1q_u8(from);
}

INLINE const uint8_t *tile_at(const uint8_t *const *b, const uint8_t *const *pages, long offset, int i, int k) {
    return pages ? pages[k] + offset + i * (kTileBytes / 2) : b[i] + (long)k * kTileBytes;
}

// One column is multiplied after another, by the same code for any number of them.
#define COLUMNS __attribute__((noinline))

#if defined(PENSTOCK_I8MM)

// Sums of two rows and two outputs, [row][output], and their products with two pairs or quads, [row][of two] and
// [output][of two]. BFMMLA adds the products of the first pair to each other and then to the sum, and so with the second's.
INLINE float32x4_t add_products(float32x4_t sums, uint8x16_t rows, uint8x16_t outputs) {
    return vbfmmlaq_f32(sums, vreinterpretq_bf16_u8(rows), vreinterpretq_bf16_u8(outputs));
}
INLINE int32x4_t add_products(int32x4_t sums, uint8x16_t rows, uint8x16_t outputs) {
    return vmmlaq_s32(sums, vreinterpretq_s8_u8(rows), vreinterpretq_s8_u8(outputs));
}

// Both kinds of products: `groups` of the 16 pairs or quads of each tile, `a_step` bytes of a row for each tile.
template <typename Sums, int rows, bool ahead>
COLUMNS void matrix_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int count, int k_tiles, long step,
                         int groups, long a_step, const uint8_t *const *pages, long offset, bool goes_on, float *c) {
    constexpr int twos = (rows + 1) / 2;
    constexpr int quarters = rows > 4 ? 2 : 4;  // of the 16 outputs at once: up to 16 registers of sums
    const uint8_t *from[2 * twos];              // the last row is beside itself where there is no other
    for (int r = 0; r < 2 * twos; r++) from[r] = a + (r < rows ? r : rows - 1) * a_bytes;
    for (int i = 0; i < count; i++)
        for (int first = 0; first < 4; first += quarters) {
            uint64_t *to[2 * twos];
            for (int r = 0; r < 2 * twos; r++)
                to[r] = reinterpret_cast<uint64_t *>(c + i * kBlockFloats + (r < rows ? r : rows - 1) * 16 + first * 4);
            Sums sums[twos][quarters][2];
#pragma GCC unroll 4
            for (int t = 0; t < twos; t++)
#pragma GCC unroll 4
                for (int q = 0; q < quarters; q++) {
                    const uint64x2_t upper = goes_on ? vld1q_u64(to[2 * t] + 2 * q) : vdupq_n_u64(0);
                    const uint64x2_t lower = goes_on ? vld1q_u64(to[2 * t + 1] + 2 * q) : vdupq_n_u64(0);
                    sums[t][q][0] = (Sums)vtrn1q_u64(upper, lower);
                    sums[t][q][1] = (Sums)vtrn2q_u64(upper, lower);
                }
            for (int k = 0; k < k_tiles; k++) {
                const uint8_t *tile = tile_at(b, pages, offset, i, k) + first * 16;
                if (ahead && first == 0) fetch_next(next_of(b, i, k, k_tiles, step, pages, offset), groups * 64, step);
#pragma GCC unroll 1
                for (int group = 0; group < groups; group += 4, tile += 256) {
                    uint8x16_t x[twos][2];
                    for (int t = 0; t < twos; t++) {
                        const auto upper = (uint64x2_t)load_bytes(from[2 * t] + k * a_step + group * 4);
                        const auto lower = (uint64x2_t)load_bytes(from[2 * t + 1] + k * a_step + group * 4);
                        x[t][0] = (uint8x16_t)vtrn1q_u64(upper, lower);
                        x[t][1] = (uint8x16_t)vtrn2q_u64(upper, lower);
                    }
                    for (int two = 0; two < 2; two++)
                        for (int q = 0; q < quarters; q++) {
                            const auto one = (uint32x4_t)load_bytes(tile + two * 128 + q * 16);
                            const auto next = (uint32x4_t)load_bytes(tile + two * 128 + 64 + q * 16);
                            const uint8x16_t y[2] = {(uint8x16_t)vzip1q_u32(one, next),
                                                     (uint8x16_t)vzip2q_u32(one, next)};
                            for (int t = 0; t < twos; t++)
                                for (int n = 0; n < 2; n++) sums[t][q][n] = add_products(sums[t][q][n], x[t][two], y[n]);
                        }
                }
            }
#pragma GCC unroll 4
            for (int t = 0; t < twos; t++)
#pragma GCC unroll 4
                for (int q = 0; q < quarters; q++) {
                    const auto low = (uint64x2_t)sums[t][q][0], high = (uint64x2_t)sums[t][q][1];
                    vst1q_u64(to[2 * t] + 2 * q, vtrn1q_u64(low, high));
                    if (2 * t + 1 < rows) vst1q_u64(to[2 * t + 1] + 2 * q, vtrn2q_u64(low, high));
                }
        }
}

template <int rows, int count, bool ahead>
INLINE void product_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int k_tiles, long step, int pairs,
                         long a_step, const uint8_t *const *pages, long offset, float *c) {
    matrix_rows<float32x4_t, rows, ahead>(a, a_bytes, b, count, k_tiles, step, pairs, a_step, pages, offset, false, c);
}

template <int rows, int count, bool ahead>
INLINE void byte_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int quads, long step, bool goes_on,
                      float *c) {
    matrix_rows<int32x4_t, rows, ahead>(a, a_bytes, b, count, tiles_of_quads(quads), step, 16, 64, nullptr, 0,
                                          goes_on, c);
}

#else

// The products of four outputs with one pair: numbers 2 `pair` and 2 `pair` + 1 of the rows' four.
template <int pair, int rows>
INLINE void add_pair(float32x4_t (*sum)[4], const float32x4_t *x, const uint8_t *tile) {
    const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
    for (int q = 0; q < 4; q++) {
        const auto both = (uint32x4_t)load_bytes(tile + pair * 64 + q * 16);
        const auto even = (float32x4_t)vshlq_n_u32(both, 16), odd = (float32x4_t)vandq_u32(both, upper);
        for (int r = 0; r < rows; r++) sum[r][q] = vfmaq_laneq_f32(sum[r][q], even, x[r], 2 * pair);
        for (int r = 0; r < rows; r++) sum[r][q] = vfmaq_laneq_f32(sum[r][q], odd, x[r], 2 * pair + 1);
    }
}

// Of four rows sixteen registers of sums, four of numbers, and four more.
template <int rows, bool ahead>
COLUMNS void short_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int count, int k_tiles, long step, int pairs,
                        long a_step, const uint8_t *const *pages, long offset, float *c) {
    for (int i = 0; i < count; i++) {
        float32x4_t sum[rows][4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) sum[r][q] = vdupq_n_f32(0.0f);
        for (int k = 0; k < k_tiles; k++) {
            const uint8_t *tile = tile_at(b, pages, offset, i, k);
            if (ahead) fetch_next(next_of(b, i, k, k_tiles, step, pages, offset), pairs * 64, step);
#pragma GCC unroll 1
            for (int pair = 0; pair < pairs; pair += 2, tile += 128) {
                float32x4_t x[rows];
                for (int r = 0; r < rows; r++) {
                    const auto *from = reinterpret_cast<const uint16_t *>(a + r * a_bytes + k * a_step + pair * 4);
                    x[r] = (float32x4_t)vshlq_n_u32(vmovl_u16(vld1_u16(from)), 16);
                }
                add_pair<0, rows>(sum, x, tile);
                add_pair<1, rows>(sum, x, tile);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) vst1q_f32(c + i * kBlockFloats + r * 16 + q * 4, sum[r][q]);
    }
}

template <int rows, int count, bool ahead>
INLINE void product_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int k_tiles, long step, int pairs,
                         long a_step, const uint8_t *const *pages, long offset, float *c) {
    short_rows<rows, ahead>(a, a_bytes, b, count, k_tiles, step, pairs, a_step, pages, offset, c);
}

// The products of four outputs with one quad, of the rows' four.
template <int quad, int rows>
INLINE void add_quad(int32x4_t (*sum)[4], const int8x16_t *x, const uint8_t *tile) {
    for (int q = 0; q < 4; q++) {
        const auto numbers = (int8x16_t)load_bytes(tile + quad * 64 + q * 16);
        for (int r = 0; r < rows; r++) sum[r][q] = vdotq_laneq_s32(sum[r][q], numbers, x[r], quad);
    }
}

template <int rows, bool ahead>
COLUMNS void whole_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int count, int k_tiles, long step,
                        bool goes_on, float *c) {
    for (int i = 0; i < count; i++) {
        int32_t *to = reinterpret_cast<int32_t *>(c + i * kBlockFloats);
        int32x4_t sum[rows][4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) sum[r][q] = goes_on ? vld1q_s32(to + r * 16 + q * 4) : vdupq_n_s32(0);
        for (int k = 0; k < k_tiles; k++) {
            const uint8_t *tile = b[i] + (long)k * kTileBytes;
            if (ahead) fetch_ahead(ahead_of(b[i], k, k_tiles, kTileBytes, step), kTileBytes);
#pragma GCC unroll 1
            for (int quad = 0; quad < 16; quad += 4, tile += 256) {
                int8x16_t x[rows];
                for (int r = 0; r < rows; r++) x[r] = (int8x16_t)load_bytes(a + r * a_bytes + k * 64 + quad * 4);
                add_quad<0, rows>(sum, x, tile);
                add_quad<1, rows>(sum, x, tile);
                add_quad<2, rows>(sum, x, tile);
                add_quad<3, rows>(sum, x, tile);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) vst1q_s32(to + r * 16 + q * 4, sum[r][q]);
    }
}

template <int rows, int count, bool ahead>
INLINE void byte_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int quads, long step, bool goes_on,
                      float *c) {
    whole_rows<rows, ahead>(a, a_bytes, b, count, tiles_of_quads(quads), step, goes_on, c);
}

#endif

// ---- int4 ----

// The products of four outputs with one quad of the low group and one of the high one, of the rows' four each.
template <int quad, int rows>
INLINE void add_quads(int32x4_t (*low)[4], int32x4_t (*high)[4], const int8x16_t *x, const int8x16_t *y,
                      const uint8_t *tile) {
    for (int q = 0; q < 4; q++) {
        const uint8x16_t both = load_bytes(tile + quad * 64 + q * 16);
        const auto first = (int8x16_t)vandq_u8(both, vdupq_n_u8(15)), second = (int8x16_t)vshrq_n_u8(both, 4);
        for (int r = 0; r < rows; r++) {
            low[r][q] = vdotq_laneq_s32(low[r][q], first, x[r], quad);
            high[r][q] = vdotq_laneq_s32(high[r][q], second, y[r], quad);
        }
    }
}

// 8 times the sum of a row's 32 inputs, to be taken off.
INLINE int32x4_t eights(int8x16_t x, int8x16_t y) {
    const int8x16_t eight = vdupq_n_s8(-8);
    return vdupq_n_s32(vaddvq_s32(vdotq_s32(vdotq_s32(vdupq_n_s32(0), x, eight), y, eight)));
}

// Each of four groups of outputs times its factors, of 16 bytes.
template <int rows>
INLINE void add_groups(int32x4_t (*sum)[4], int32x4_t (*of_group)[4], const uint8_t *factors) {
    const uint8x16_t bytes = load_bytes(factors);
    const uint16x8_t lower = vmovl_u8(vget_low_u8(bytes)), upper = vmovl_high_u8(bytes);
    const uint32x4_t factor[4] = {vmovl_u16(vget_low_u16(lower)), vmovl_high_u16(lower), vmovl_u16(vget_low_u16(upper)),
                                  vmovl_high_u16(upper)};
    for (int r = 0; r < rows; r++)
        for (int q = 0; q < 4; q++) sum[r][q] = vmlaq_s32(sum[r][q], of_group[r][q], (int32x4_t)factor[q]);
}

// One or two rows times a column of int4. A group's numbers are multiplied as they are, from 0 to 15, less 8 times the sum
// of its inputs, and what comes of it by the group's factor.
template <int rows>
COLUMNS void int4_rows(const uint8_t *a, long a_bytes, const uint8_t *column, int tiles, long step, float *c) {
    int32x4_t sum[rows][4];
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) sum[r][q] = vdupq_n_s32(0);
    for (int k = 0; k < tiles; k++) {
        const uint8_t *tile = column + (long)k * PENSTOCK_INT4_BYTES;
        fetch_ahead(ahead_of(column, k, tiles, PENSTOCK_INT4_BYTES, step), PENSTOCK_INT4_BYTES);
#pragma GCC unroll 1
        for (int half = 0; half < 2; half++) {  // groups 0 and 2, then 1 and 3
            int8x16_t x[2][rows], y[2][rows];   // beyond the inputs there are other bytes, and weights of 0
            int32x4_t low[rows][4], high[rows][4];
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++) {
                const uint8_t *group = a + r * a_bytes + (long)k * PENSTOCK_INT4_INPUTS + half * PENSTOCK_INT4_GROUP;
                for (int some = 0; some < 2; some++) {
                    x[some][r] = (int8x16_t)load_bytes(group + some * 16);
                    y[some][r] = (int8x16_t)load_bytes(group + PENSTOCK_BYTE_INPUTS + some * 16);
                }
                const int32x4_t of_low = eights(x[0][r], x[1][r]), of_high = eights(y[0][r], y[1][r]);
#pragma GCC unroll 4
                for (int q = 0; q < 4; q++) low[r][q] = of_low, high[r][q] = of_high;
            }
#pragma GCC unroll 2
            for (int some = 0; some < 2; some++) {
                const uint8_t *numbers = tile + 64 + half * 512 + some * 256;
                add_quads<0, rows>(low, high, x[some], y[some], numbers);
                add_quads<1, rows>(low, high, x[some], y[some], numbers);
                add_quads<2, rows>(low, high, x[some], y[some], numbers);
                add_quads<3, rows>(low, high, x[some], y[some], numbers);
            }
            add_groups<rows>(sum, low, tile + half * 16);
            add_groups<rows>(sum, high, tile + (2 + half) * 16);
        }
    }
    int32_t *to = reinterpret_cast<int32_t *>(c);
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) vst1q_s32(to + r * 16 + q * 4, sum[r][q]);
}

}  // namespace
