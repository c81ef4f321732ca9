// Products of rows of bf16 with packed tiles, where all time goes: by AMX' tiles, by VDPBF16PS, by BFMMLA, or by multiplication in
// fp32 of what is converted (with AVX-512 as well, where processors lack VDPBF16PS). Of a row and an output the sum is over pairs of inputs in their order, whatever else is
// computed beside it, so it does not depend on the number of rows. And products of bytes with tiles of int8: by the same
// tiles, by VPDPBUSD or VPMADDUBSW (of 64 bytes or of 32), by SMMLA or SDOT, or one after the other; those are exact.
#pragma once

#include "tiles.h"
#if defined(PENSTOCK_NEON)
#include "neon.h"
#endif

namespace {

#if defined(PENSTOCK_AMX)

struct alignas(64) TileConfiguration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// GCC 12's _tile_loadconfig says that it reads 8 of the 64 bytes, and stores to the others are dropped; and its other
// intrinsics do not say that they touch memory. Hence assembly.
INLINE void configure(const TileConfiguration &configuration) {
    asm volatile("ldtilecfg %0" ::"m"(configuration));
}
#define TILE_ZERO(t) asm volatile("tilezero %%tmm" #t::: "memory")
#define TILE_LOAD(t, from, stride) \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #t::"r"(from), "r"((long)(stride)) : "memory")
#define TILE_STORE(t, to, stride) \
    asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((long)(stride)) : "memory")
// Of the type that `numbers` says, where it is used.
#define TILE_PRODUCT(c, a, b)                                                              \
    do {                                                                                   \
        if constexpr (numbers == kBytes)                                                   \
            asm volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c::: "memory");    \
        else                                                                               \
            asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c::: "memory"); \
    } while (0)

// Registers 0 to 3 are sums, the others factors: `rows` rows of 64 bytes, and tiles.
INLINE void configure_products(int rows) {
    TileConfiguration c = {};
    c.palette = 1;
    for (int t = 0; t < 8; t++) c.row_bytes[t] = 64, c.rows[t] = 16;
    for (int t = 0; t < 5; t++) c.rows[t] = static_cast<uint8_t>(rows);
    configure(c);
}

// Registers 0 to 3 are sums, 4 queries and 6 keys; 5 is weights of 16 keys (rows x 16 bf16), 7 their values (8 pairs x
// 16 numbers).
INLINE void configure_attention(int rows) {
    TileConfiguration c = {};
    c.palette = 1;
    for (int t = 0; t < 8; t++) c.row_bytes[t] = 64, c.rows[t] = 16;
    for (int t = 0; t < 5; t++) c.rows[t] = static_cast<uint8_t>(rows);
    c.rows[5] = static_cast<uint8_t>(rows);
    c.row_bytes[5] = 32;
    c.rows[7] = 8;
    configure(c);
}

// Of up to 16 rows and `count` columns of tiles: c[column][row][output] = sum over k tiles; `goes_on`: added to what is
// there.
template <int count, Use use, Numbers numbers>
INLINE void product_of(const uint8_t *a, long a_bytes, const uint8_t *const *b, int k_tiles, long step, bool goes_on,
                       float *c) {
    if (goes_on) {
        TILE_LOAD(0, c, 64);
        if (count > 1) TILE_LOAD(1, c + kBlockFloats, 64);
        if (count > 2) TILE_LOAD(2, c + 2 * kBlockFloats, 64);
        if (count > 3) TILE_LOAD(3, c + 3 * kBlockFloats, 64);
    } else {
        TILE_ZERO(0);
        if (count > 1) TILE_ZERO(1);
        if (count > 2) TILE_ZERO(2);
        if (count > 3) TILE_ZERO(3);
    }
    for (int k = 0; k < k_tiles; k++) {
        const long at = (long)k * kTileBytes;
        if (use == kOfStream)
            for (int i = 0; i < count; i++) fetch_ahead(ahead_of(b[i], k, k_tiles, kTileBytes, step), kTileBytes);
        if (use == kOfAttention && step == kNextPages)
            for (int i = 0; i < count; i++) fetch_far(b[i + kPagesInSplit] + at, kTileBytes);
        TILE_LOAD(4, a + k * 64, a_bytes);
        TILE_LOAD(6, b[0] + at, 64);
        TILE_PRODUCT(0, 4, 6);
        if (use == kOfAttention) {  // register 7 has another shape
            if (count > 1) {
                TILE_LOAD(6, b[1] + at, 64);
                TILE_PRODUCT(1, 4, 6);
            }
        } else if (count > 1) {
            TILE_LOAD(7, b[1] + at, 64);
            TILE_PRODUCT(1, 4, 7);
        }
        if (count > 2) {
            TILE_LOAD(6, b[2] + at, 64);
            TILE_PRODUCT(2, 4, 6);
        }
        if (count > 3) {
            if (use == kOfAttention) {
                TILE_LOAD(6, b[3] + at, 64);
                TILE_PRODUCT(3, 4, 6);
            } else {
                TILE_LOAD(7, b[3] + at, 64);
                TILE_PRODUCT(3, 4, 7);
            }
        }
    }
    TILE_STORE(0, c, 64);
    if (count > 1) TILE_STORE(1, c + kBlockFloats, 64);
    if (count > 2) TILE_STORE(2, c + 2 * kBlockFloats, 64);
    if (count > 3) TILE_STORE(3, c + 3 * kBlockFloats, 64);
}

// 32 rows and one or two columns of tiles: c[column][block of 16 rows]; `goes_on`: added to what is there. `step`: of weights
// that are in a cache, those that are multiplied next in their place are asked for from far, if it is not 0.
template <int count, Use use, Numbers numbers>
INLINE void wide_product_of(const uint8_t *a, long a_bytes, const uint8_t *const *b, int k_tiles, long step,
                            bool goes_on, float *c) {
    const uint8_t *const lower = a + 16 * a_bytes;
    TILE_LOAD(4, a, a_bytes);
    TILE_LOAD(6, b[0], 64);
    if (goes_on) {
        TILE_LOAD(0, c, 64);
        TILE_LOAD(1, c + kBlockFloats, 64);
        if (count > 1) TILE_LOAD(2, c + 2 * kBlockFloats, 64);
        if (count > 1) TILE_LOAD(3, c + 3 * kBlockFloats, 64);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        if (count > 1) TILE_ZERO(2);
        if (count > 1) TILE_ZERO(3);
    }
    for (int k = 0; k < k_tiles; k++) {
        const long at = (long)k * kTileBytes;
        if (use == kOfStream)
            for (int i = 0; i < count; i++) fetch_ahead(ahead_of(b[i], k, k_tiles, kTileBytes, step), kTileBytes);
        if (use == kOfCached && step)
            for (int i = 0; i < count; i++) fetch_far(b[i] + at + step, kTileBytes);
        // What is multiplied next is loaded as soon as its registers are free. Behind the last tile that is the last again.
        const long following = k + 1 < k_tiles ? k + 1 : k;
        TILE_LOAD(5, lower + k * 64, a_bytes);
        TILE_PRODUCT(0, 4, 6);
        if (count > 1) TILE_LOAD(7, b[1] + at, 64);
        TILE_PRODUCT(1, 5, 6);
        if (count > 1) TILE_PRODUCT(2, 4, 7);
        TILE_LOAD(4, a + following * 64, a_bytes);
        TILE_LOAD(6, b[0] + following * kTileBytes, 64);
        if (count > 1) TILE_PRODUCT(3, 5, 7);
    }
    TILE_STORE(0, c, 64);
    TILE_STORE(1, c + kBlockFloats, 64);
    if (count > 1) TILE_STORE(2, c + 2 * kBlockFloats, 64);
    if (count > 1) TILE_STORE(3, c + 3 * kBlockFloats, 64);
}

#else

INLINE void configure_products(int) {}
INLINE void configure_attention(int) {}

// c[row][output] of `rows` rows and `count` columns of tiles, `pairs` of the 16 pairs of each.
#if defined(PENSTOCK_NEON)
// In neon.h.
#elif defined(__AVX512BF16__)
template <int rows, int count, bool ahead>
INLINE void product_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int k_tiles, long step, int pairs,
                         long a_step, const uint8_t *const *pages, long offset, float *c) {
    __m512 sum[rows][count];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) sum[r][i] = _mm512_setzero_ps();
    for (int k = 0; k < k_tiles; k++) {
        const uint8_t *next[count];
        for (int i = 0; ahead && i < count; i++) next[i] = next_of(b, i, k, k_tiles, step, pages, offset);
        for (int p = 0; p < pairs; p++) {
            __m512bh factor[count];
            for (int i = 0; i < count; i++) {
                const uint8_t *tile = pages ? pages[k] + offset + i * (kTileBytes / 2) : b[i] + (long)k * kTileBytes;
                factor[i] = (__m512bh)_mm512_loadu_si512(tile + p * 64);
                if (ahead) fetch_next(next[i] + p * 64, 64, step);
            }
            for (int r = 0; r < rows; r++) {
                const int32_t *pair = reinterpret_cast<const int32_t *>(a + r * a_bytes + k * a_step + p * 4);
                const __m512bh x = (__m512bh)_mm512_set1_epi32(*pair);
                for (int i = 0; i < count; i++) sum[r][i] = _mm512_dpbf16_ps(sum[r][i], x, factor[i]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) _mm512_storeu_ps(c + i * kBlockFloats + r * 16, sum[r][i]);
}
#elif defined(PENSTOCK_AVX512)
// Products in fp32. What is in one register of a row becomes two, inputs at even places and at odd ones, and from there each is one load to
// all lanes: to shift and to mask it there would take the ports of products.
template <int rows, int count, bool ahead>
INLINE void product_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int k_tiles, long step, int pairs,
                         long a_step, const uint8_t *const *pages, long offset, float *c) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
    __m512 sum[rows][count];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) sum[r][i] = _mm512_setzero_ps();
    for (int k = 0; k < k_tiles; k++) {
        alignas(64) float inputs[rows][2][16];
        for (int r = 0; r < rows; r++) {
            const uint8_t *const from = a + r * a_bytes + k * a_step;
            // Of 8 pairs there is no more than their 32 bytes.
            const __m512i both = pairs == 16 ? _mm512_loadu_si512(from)
                                             : _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
            _mm512_store_si512(inputs[r][0], _mm512_slli_epi32(both, 16));
            _mm512_store_si512(inputs[r][1], _mm512_and_si512(both, upper));
        }
        const uint8_t *next[count];
        for (int i = 0; ahead && i < count; i++) next[i] = next_of(b, i, k, k_tiles, step, pages, offset);
        for (int p = 0; p < pairs; p++) {
            for (int odd = 0; odd < 2; odd++) {
                __m512 factor[count];
                for (int i = 0; i < count; i++) {
                    const uint8_t *tile = pages ? pages[k] + offset + i * (kTileBytes / 2) : b[i] + (long)k * kTileBytes;
                    const __m512i both = _mm512_loadu_si512(tile + p * 64);
                    factor[i] = _mm512_castsi512_ps(odd ? _mm512_and_si512(both, upper) : _mm512_slli_epi32(both, 16));
                    if (ahead && !odd) fetch_next(next[i] + p * 64, 64, step);
                }
                for (int r = 0; r < rows; r++) {
                    const __m512 x = _mm512_set1_ps(inputs[r][odd][p]);
                    for (int i = 0; i < count; i++) sum[r][i] = _mm512_fmadd_ps(factor[i], x, sum[r][i]);
                }
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) _mm512_storeu_ps(c + i * kBlockFloats + r * 16, sum[r][i]);
}
#elif defined(__AVX2__)
template <int rows, int count, bool ahead>
INLINE void product_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int k_tiles, long step, int pairs,
                         long a_step, const uint8_t *const *pages, long offset, float *c) {
    // One column after another: of four rows eight registers of sums, four of factors, and three more.
    const __m256i upper = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    for (int i = 0; i < count; i++) {
        __m256 sum[rows][2];
        for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
        for (int k = 0; k < k_tiles; k++) {
            const uint8_t *tile = pages ? pages[k] + offset + i * (kTileBytes / 2) : b[i] + (long)k * kTileBytes;
            if (ahead) fetch_next(next_of(b, i, k, k_tiles, step, pages, offset), pairs * 64, step);
            for (int p = 0; p < pairs; p++) {
                __m256 even[2], odd[2];
                for (int half = 0; half < 2; half++) {
                    const auto *from = reinterpret_cast<const __m256i *>(tile + p * 64 + half * 32);
                    const __m256i both = _mm256_loadu_si256(from);
                    even[half] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
                    odd[half] = _mm256_castsi256_ps(_mm256_and_si256(both, upper));
                }
                for (int r = 0; r < rows; r++) {
                    const auto *pair = reinterpret_cast<const int32_t *>(a + r * a_bytes + k * a_step + p * 4);
                    const __m256i x = _mm256_set1_epi32(*pair);
                    const __m256 low = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                                 high = _mm256_castsi256_ps(_mm256_and_si256(x, upper));
                    for (int half = 0; half < 2; half++) {
                        sum[r][half] = _mm256_fmadd_ps(even[half], low, sum[r][half]);
                        sum[r][half] = _mm256_fmadd_ps(odd[half], high, sum[r][half]);
                    }
                }
            }
        }
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++)
                _mm256_storeu_ps(c + i * kBlockFloats + r * 16 + half * 8, sum[r][half]);
    }
}
#else
template <int rows, int count, bool ahead>
INLINE void product_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int k_tiles, long step, int pairs,
                         long a_step, const uint8_t *const *pages, long offset, float *c) {
    // One column after another: sixteen sums of a row are four registers of SSE2.
    for (int i = 0; i < count; i++) {
        F16 sum[rows] = {};
        for (int k = 0; k < k_tiles; k++) {
            const uint8_t *tile = pages ? pages[k] + offset + i * (kTileBytes / 2) : b[i] + (long)k * kTileBytes;
            if (ahead) fetch_next(next_of(b, i, k, k_tiles, step, pages, offset), pairs * 64, step);
            for (int p = 0; p < pairs; p++) {
                const U16 both = *reinterpret_cast<const U16 *>(tile + p * 64);
                const F16 even = (F16)(both << 16), odd = (F16)(both & 0xffff0000u);
                for (int r = 0; r < rows; r++) {
                    const uint32_t pair = *reinterpret_cast<const uint32_t *>(a + r * a_bytes + k * a_step + p * 4);
                    union {
                        uint32_t bits;
                        float number;
                    } low = {pair << 16}, high = {pair & 0xffff0000u};
                    sum[r] += even * low.number;
                    sum[r] += odd * high.number;
                }
            }
        }
        for (int r = 0; r < rows; r++) store(c + i * kBlockFloats + r * 16, sum[r]);
    }
}
#endif

// Four products of bytes, added to each lane. Without VPDPBUSD two are added in 16 bits before, of the sizes of the tokens' numbers and of
// weights with their signs: either is at most 127, so that they fit.
#if defined(__AVX512VNNI__)
INLINE __m512i add_quads(__m512i sum, __m512i x, __m512i factor) {
    return _mm512_dpbusd_epi32(sum, x, factor);
}
#elif defined(PENSTOCK_AVX512)
INLINE __m512i add_quads(__m512i sum, __m512i x, __m512i factor) {
    const __m512i with_sign = _mm512_mask_sub_epi8(factor, _mm512_movepi8_mask(x), _mm512_setzero_si512(), factor);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(x), with_sign);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#elif defined(__AVXVNNI__)
INLINE __m256i add_quads(__m256i sum, __m256i x, __m256i factor) {
    return _mm256_dpbusd_avx_epi32(sum, x, factor);
}
#elif defined(__AVX2__)
INLINE __m256i add_quads(__m256i sum, __m256i x, __m256i factor) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(factor, x));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif

// Of bytes, likewise, of so many quads of inputs; beyond them a tile has zeros. Sums of 32 bits in c, added to what is there where
// `goes_on`.
#if defined(PENSTOCK_NEON)
#elif defined(PENSTOCK_AVX512)
template <int rows, int count, bool ahead>
INLINE void byte_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int quads, long step, bool goes_on,
                      float *c) {
    const int whole = quads / 16, k_tiles = tiles_of_quads(quads);
    __m512i sum[rows][count];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++)
            sum[r][i] = goes_on ? _mm512_loadu_si512(c + i * kBlockFloats + r * 16) : _mm512_setzero_si512();
    for (int k = 0; k < whole; k++) {
        const uint8_t *next[count];
        for (int i = 0; ahead && i < count; i++) next[i] = ahead_of(b[i], k, k_tiles, kTileBytes, step);
        for (int p = 0; p < 16; p++) {
            __m512i factor[count];
            for (int i = 0; i < count; i++) {
                factor[i] = _mm512_loadu_si512(b[i] + (long)k * kTileBytes + p * 64);
                if (ahead) fetch_ahead(next[i] + p * 64, 64);
            }
            for (int r = 0; r < rows; r++) {
                const int32_t *quad = reinterpret_cast<const int32_t *>(a + r * a_bytes + k * 64 + p * 4);
                const __m512i x = _mm512_set1_epi32(*quad);
                for (int i = 0; i < count; i++) sum[r][i] = add_quads(sum[r][i], x, factor[i]);
            }
        }
    }
    // Of a last tile that is not full; in a loop of its own, since the other one's length is known.
    for (int p = 0; p < quads - whole * 16; p++)
        for (int r = 0; r < rows; r++) {
            const int32_t *quad = reinterpret_cast<const int32_t *>(a + r * a_bytes + whole * 64 + p * 4);
            const __m512i x = _mm512_set1_epi32(*quad);
            for (int i = 0; i < count; i++) {
                const __m512i factor = _mm512_loadu_si512(b[i] + (long)whole * kTileBytes + p * 64);
                sum[r][i] = add_quads(sum[r][i], x, factor);
            }
        }
    for (int i = 0; ahead && whole < k_tiles && i < count; i++)
        fetch_ahead(ahead_of(b[i], whole, k_tiles, kTileBytes, step), kTileBytes);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) _mm512_storeu_si512(c + i * kBlockFloats + r * 16, sum[r][i]);
}
#elif defined(__AVX2__)
template <int rows, int count, bool ahead>
INLINE void byte_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int quads, long step, bool goes_on,
                      float *c) {
    const int k_tiles = tiles_of_quads(quads);
    for (int i = 0; i < count; i++) {
        __m256i sum[rows][2];
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++) {
                const auto *so_far = reinterpret_cast<const __m256i *>(c + i * kBlockFloats + r * 16 + half * 8);
                sum[r][half] = goes_on ? _mm256_loadu_si256(so_far) : _mm256_setzero_si256();
            }
        for (int k = 0; k < k_tiles; k++) {
            if (ahead) fetch_ahead(ahead_of(b[i], k, k_tiles, kTileBytes, step), kTileBytes);
            for (int p = 0; p < quads_in(k, quads); p++) {
                const auto *tile = reinterpret_cast<const __m256i *>(b[i] + (long)k * kTileBytes + p * 64);
                const __m256i factor[2] = {_mm256_loadu_si256(tile), _mm256_loadu_si256(tile + 1)};
                for (int r = 0; r < rows; r++) {
                    const int32_t *quad = reinterpret_cast<const int32_t *>(a + r * a_bytes + k * 64 + p * 4);
                    const __m256i x = _mm256_set1_epi32(*quad);
                    for (int half = 0; half < 2; half++) sum[r][half] = add_quads(sum[r][half], x, factor[half]);
                }
            }
        }
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++)
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(c + i * kBlockFloats + r * 16 + half * 8), sum[r][half]);
    }
}
#else
template <int rows, int count, bool ahead>
INLINE void byte_rows(const uint8_t *a, long a_bytes, const uint8_t *const *b, int quads, long step, bool goes_on,
                      float *c) {
    const int k_tiles = tiles_of_quads(quads);
    for (int i = 0; i < count; i++) {
        I16 sum[rows];
        for (int r = 0; r < rows; r++) sum[r] = goes_on ? (I16)load(c + i * kBlockFloats + r * 16) : I16{};
        for (int k = 0; k < k_tiles; k++) {
            if (ahead) fetch_ahead(ahead_of(b[i], k, k_tiles, kTileBytes, step), kTileBytes);
            for (int p = 0; p < quads_in(k, quads); p++) {
                const I16 fours = *reinterpret_cast<const I16 *>(b[i] + (long)k * kTileBytes + p * 64);
                for (int at = 0; at < 4; at++) {
                    const I16 factor = fours << (24 - 8 * at) >> 24;
                    for (int r = 0; r < rows; r++)
                        sum[r] += factor * (int32_t) static_cast<int8_t>(a[r * a_bytes + k * 64 + p * 4 + at]);
                }
            }
        }
        for (int r = 0; r < rows; r++) store(c + i * kBlockFloats + r * 16, (F16)sum[r]);
    }
}
#endif

// Of up to `most` rows; `ahead`: what is multiplied later is asked for.
template <int count, bool ahead, int most>
INLINE void some_byte_rows(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *b, int quads, long step,
                           bool goes_on, float *c) {
    if constexpr (most > 0) {
        if (rows == most)
            byte_rows<most, count, ahead>(a, a_bytes, b, quads, step, goes_on, c);
        else
            some_byte_rows<count, ahead, most - 1>(a, a_bytes, rows, b, quads, step, goes_on, c);
    }
}

// The first pass over the columns brings them from far.
template <int count>
INLINE void byte_blocks(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *b, int quads, Use use,
                        long step, bool goes_on, float *c) {
    constexpr int most = kRowsAtOnce<count>;
    // In equal parts: few rows leave registers for sums, and their latency shows.
    for (int row = 0, parts = (rows + most - 1) / most; row < rows; parts--) {
        const int some = (rows - row + parts - 1) / parts;
        const uint8_t *from = a + row * a_bytes;
        if (row == 0 && use == kOfStream)
            some_byte_rows<count, true, most>(from, a_bytes, some, b, quads, step, goes_on, c);
        else
            some_byte_rows<count, false, most>(from, a_bytes, some, b, quads, 0, goes_on, c + row * 16);
        row += some;
    }
}

template <int count, bool ahead, int most>
INLINE void some_product_rows(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *b, int k_tiles, long step,
                              int pairs, long a_step, const uint8_t *const *pages, long offset, float *c) {
    if constexpr (most > 0) {
        if (rows == most)
            product_rows<most, count, ahead>(a, a_bytes, b, k_tiles, step, pairs, a_step, pages, offset, c);
        else
            some_product_rows<count, ahead, most - 1>(a, a_bytes, rows, b, k_tiles, step, pairs, a_step, pages, offset,
                                                      c);
    }
}

template <int count>
INLINE void product_blocks(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *b, int k_tiles, Use use,
                           long step, int pairs, long a_step, const uint8_t *const *pages, long offset, float *c) {
    constexpr int most = kRowsAtOnce<count>;
    // In equal parts: few rows leave registers for sums, and their latency shows.
    for (int row = 0, parts = (rows + most - 1) / most; row < rows; parts--) {
        const int some = (rows - row + parts - 1) / parts;
        const uint8_t *from = a + row * a_bytes;
        if (row == 0 && (use == kOfStream || step == kNextPages))
            some_product_rows<count, true, most>(from, a_bytes, some, b, k_tiles, step, pairs, a_step, pages, offset,
                                                 c);
        else
            some_product_rows<count, false, most>(from, a_bytes, some, b, k_tiles, 0, pairs, a_step, pages, offset,
                                                  c + row * 16);
        row += some;
    }
}

#endif

#if defined(PENSTOCK_AMX)
template <int count, Numbers numbers>
INLINE void product_for(const uint8_t *a, long a_bytes, const uint8_t *const *b, int k_tiles, Use use, long step,
                        bool goes_on, float *c) {
    switch (use) {
        case kOfStream:
            product_of<count, kOfStream, numbers>(a, a_bytes, b, k_tiles, step, goes_on, c);
            break;
        case kOfCached:
            product_of<count, kOfCached, numbers>(a, a_bytes, b, k_tiles, step, goes_on, c);
            break;
        case kOfAttention:
            if constexpr (numbers == kShorts)
                product_of<count, kOfAttention, numbers>(a, a_bytes, b, k_tiles, step, goes_on, c);
            break;
    }
}
#else
template <int count>
INLINE void product_for(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *b, int k_tiles, Use use,
                        long step, float *c) {
    product_blocks<count>(a, a_bytes, rows, b, k_tiles, use, step, 16, 64, nullptr, 0, c);
}
#endif

// c[column][row][output], blocks of 16 x 16, of up to 16 rows and up to kMostTiles columns of tiles. `step`: of a stream,
// from each column to the one that is multiplied next in its place; of pages kNextPages, or 0.
static void product(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *b, int count, int k_tiles, Use use,
                    long step, float *c) {
#if defined(PENSTOCK_AMX)
    (void)rows;
    switch (count) {
        case 4:
            product_for<4, kShorts>(a, a_bytes, b, k_tiles, use, step, false, c);
            break;
        case 3:
            product_for<3, kShorts>(a, a_bytes, b, k_tiles, use, step, false, c);
            break;
        case 2:
            product_for<2, kShorts>(a, a_bytes, b, k_tiles, use, step, false, c);
            break;
        default:
            product_for<1, kShorts>(a, a_bytes, b, k_tiles, use, step, false, c);
            break;
    }
#else
    switch (count) {
        case 4:
            product_for<4>(a, a_bytes, rows, b, k_tiles, use, step, c);
            break;
        case 3:
            product_for<3>(a, a_bytes, rows, b, k_tiles, use, step, c);
            break;
        case 2:
            product_for<2>(a, a_bytes, rows, b, k_tiles, use, step, c);
            break;
        default:
            product_for<1>(a, a_bytes, rows, b, k_tiles, use, step, c);
            break;
    }
#endif
}

// The same of bytes and tiles of int8, of so many quads of inputs: sums of 32 bits, added to what is there where `goes_on`.
static void byte_product(const uint8_t *a, long a_bytes, int rows, const uint8_t *const *b, int count, int quads,
                         Use use, long step, bool goes_on, float *c) {
#if defined(PENSTOCK_AMX)
    (void)rows;
    const int k_tiles = tiles_of_quads(quads);
    switch (count) {
        case 4:
            return product_for<4, kBytes>(a, a_bytes, b, k_tiles, use, step, goes_on, c);
        case 3:
            return product_for<3, kBytes>(a, a_bytes, b, k_tiles, use, step, goes_on, c);
        case 2:
            return product_for<2, kBytes>(a, a_bytes, b, k_tiles, use, step, goes_on, c);
        default:
            return product_for<1, kBytes>(a, a_bytes, b, k_tiles, use, step, goes_on, c);
    }
#else
    switch (count) {
        case 4:
            return byte_blocks<4>(a, a_bytes, rows, b, quads, use, step, goes_on, c);
        case 3:
            return byte_blocks<3>(a, a_bytes, rows, b, quads, use, step, goes_on, c);
        case 2:
            return byte_blocks<2>(a, a_bytes, rows, b, quads, use, step, goes_on, c);
        default:
            return byte_blocks<1>(a, a_bytes, rows, b, quads, use, step, goes_on, c);
    }
#endif
}

// c[column][row][number] of up to 16 rows of weights of keys, 16 keys of each page, and up to kMostTiles columns of
// values, which begin `offset` bytes into each page. `step`: kNextPages, or 0.
static void product_with_values(const uint8_t *weights, long weight_bytes, int rows, const uint8_t *const *pages,
                                int count, int columns, long offset, long step, float *c) {
#if defined(PENSTOCK_AMX)
    constexpr Numbers numbers = kShorts;
    (void)rows;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int page = 0; page < count; page++) {
        const uint8_t *values = pages[page] + offset;
        if (step == kNextPages) fetch_far(pages[page + kPagesInSplit] + offset, columns * (kTileBytes / 2));
        TILE_LOAD(5, weights + page * 32, weight_bytes);
        TILE_LOAD(7, values, 64);
        TILE_PRODUCT(0, 5, 7);
        if (columns > 1) {
            TILE_LOAD(7, values + 512, 64);
            TILE_PRODUCT(1, 5, 7);
        }
        if (columns > 2) {
            TILE_LOAD(7, values + 1024, 64);
            TILE_PRODUCT(2, 5, 7);
        }
        if (columns > 3) {
            TILE_LOAD(7, values + 1536, 64);
            TILE_PRODUCT(3, 5, 7);
        }
    }
    TILE_STORE(0, c, 64);
    if (columns > 1) TILE_STORE(1, c + kBlockFloats, 64);
    if (columns > 2) TILE_STORE(2, c + 2 * kBlockFloats, 64);
    if (columns > 3) TILE_STORE(3, c + 3 * kBlockFloats, 64);
#else
    switch (columns) {
        case 4:
            product_blocks<4>(weights, weight_bytes, rows, nullptr, count, kOfAttention, step, 8, 32, pages, offset, c);
            break;
        case 3:
            product_blocks<3>(weights, weight_bytes, rows, nullptr, count, kOfAttention, step, 8, 32, pages, offset, c);
            break;
        case 2:
            product_blocks<2>(weights, weight_bytes, rows, nullptr, count, kOfAttention, step, 8, 32, pages, offset, c);
            break;
        default:
            product_blocks<1>(weights, weight_bytes, rows, nullptr, count, kOfAttention, step, 8, 32, pages, offset, c);
            break;
    }
#endif
}

}  // namespace
