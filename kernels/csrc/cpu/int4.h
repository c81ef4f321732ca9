// Weights of int4: whole numbers from 0 to 15, less 8 and times a group's factor. Brought to tiles of int8, or multiplied as they are for
// one or two rows, with the same sums. Included by linear.h.
#pragma once

#include "products.h"

namespace {

// A tile of int4 as two of int8: of its first 64 inputs and of the others.
INLINE void unpack_int4(const uint8_t *from, uint8_t *to) {
    for (int half = 0; half < 2; half++) {  // groups 0 and 2, then 1 and 3
        const U16 low_group = __builtin_convertvector(
            (Bytes16) * reinterpret_cast<const B16Memory *>(from + half * 16), U16);
        const U16 high_group = __builtin_convertvector(
            (Bytes16) * reinterpret_cast<const B16Memory *>(from + (2 + half) * 16), U16);
        const H32 low_factor = (H32)(low_group * 0x00010001u), high_factor = (H32)(high_group * 0x00010001u);
        const B64 low_eight = (B64)(low_group * 0x08080808u), high_eight = (B64)(high_group * 0x08080808u);
        for (int p = 8 * half; p < 8 * half + 8; p++) {
            // Two numbers up to 15 in 16 bits, times up to 15: the lower one does not reach the upper one's byte.
            const U16 both = (U16) * reinterpret_cast<const B64Memory *>(from + 64 + p * 64);
            const H32 low = (H32)(both & 0x0f0f0f0fu) * low_factor;
            const H32 high = (H32)(both >> 4 & 0x0f0f0f0fu) * high_factor;
            *reinterpret_cast<B64Memory *>(to + p * 64) = (B64)low - low_eight;
            *reinterpret_cast<B64Memory *>(to + kTileBytes + p * 64) = (B64)high - high_eight;
        }
    }
}

#if defined(PENSTOCK_AVX512)
// One or two rows times a column of int4. A group's numbers are multiplied as they are, from 0 to 15; then 8 times the sum of
// its inputs is taken off, and what is left multiplied by the group's factor: the whole numbers that come of int8 tiles. Columns
// are short: several side by side would be as many streams, and what the processor fetches beyond each one's end is lost. `step`:
// from this column to the one that is multiplied next.
template <int rows>
INLINE void int4_rows(const uint8_t *a, long a_bytes, const uint8_t *column, int tiles, long step, float *c) {
    const __m512i nibbles = _mm512_set1_epi8(15), eights = _mm512_set1_epi8(8);
    // Of a number without a sign and one with: inputs have none where they are turned.
    const auto add = [](__m512i sum, __m512i inputs, __m512i numbers) {
        return kIsTurned ? _mm512_dpbusd_epi32(sum, inputs, numbers) : _mm512_dpbusd_epi32(sum, numbers, inputs);
    };
    __m512i sum[rows] = {};
    for (int k = 0; k < tiles; k++) {
        const uint8_t *const tile = column + (long)k * PENSTOCK_INT4_BYTES;
        const uint8_t *const ahead = ahead_of(column, k, tiles, PENSTOCK_INT4_BYTES, step);
        fetch_ahead(ahead + 1024, 64);
        for (int half = 0; half < 2; half++) {  // groups 0 and 2, then 1 and 3
            __m512i low[rows] = {}, high[rows] = {}, low_inputs[rows] = {}, high_inputs[rows] = {};
            const long group = (long)k * PENSTOCK_INT4_INPUTS + half * 32;
#pragma GCC unroll 8
            for (int p = 0; p < 8; p++) {
                // A line with each line: many at once would have those wait that are needed now.
                fetch_ahead(ahead + half * 512 + p * 64, 64);
                const __m512i both = _mm512_loadu_si512(tile + 64 + half * 512 + p * 64);
                const __m512i first = _mm512_and_si512(both, nibbles);
                const __m512i second = _mm512_and_si512(_mm512_srli_epi32(both, 4), nibbles);
                for (int r = 0; r < rows; r++) {
                    // Beyond the inputs there are other bytes, and weights of 0.
                    const uint8_t *quad = a + r * a_bytes + group + p * 4;
                    const __m512i x = _mm512_set1_epi32(*reinterpret_cast<const int32_t *>(quad));
                    const __m512i y =
                        _mm512_set1_epi32(*reinterpret_cast<const int32_t *>(quad + PENSTOCK_BYTE_INPUTS));
                    low_inputs[r] = add(low_inputs[r], x, eights);
                    high_inputs[r] = add(high_inputs[r], y, eights);
                    low[r] = add(low[r], x, first);
                    high[r] = add(high[r], y, second);
                }
            }
            const auto *factors = reinterpret_cast<const __m128i *>(tile) + half;
            const __m512i low_factor = _mm512_cvtepu8_epi32(_mm_loadu_si128(factors));
            const __m512i high_factor = _mm512_cvtepu8_epi32(_mm_loadu_si128(factors + 2));
            for (int r = 0; r < rows; r++) {
                const __m512i of_low = _mm512_sub_epi32(low[r], low_inputs[r]);
                const __m512i of_high = _mm512_sub_epi32(high[r], high_inputs[r]);
                sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(of_low, low_factor));
                sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(of_high, high_factor));
            }
        }
    }
    for (int r = 0; r < rows; r++) _mm512_storeu_si512(c + r * 16, sum[r]);
}
#endif

}  // namespace
