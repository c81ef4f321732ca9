// Numbers of the KV cache in 8 bits: from a head's bf16 to codes when a token is written, and back, a page at a time, where attention
// reads them. Included by attention.h.
//
// A code is a sign and seven bits. e4m3 and e5m2 are the numbers of 8 bits of "FP8 Formats for Deep Learning" (Micikevicius et al.,
// 2022): what is too large becomes the largest, what is no number stays none. int8 is a size up to 127, and a token's key and value
// have a factor each, for each key head: the keys' is multiplied with scores, and the values' with weights, so that nothing is rounded
// a second time.
#pragma once

#include "products.h"
#include "work.h"

namespace {

using penstock::Heads;

struct Code {
    int mantissa, bias, largest;  // bits, and the code of the largest number; above it there are none
    float smallest;               // above 0
};

INLINE Code code_of(penstock_cache_format format) {
    switch (format) {
        case PENSTOCK_CACHE_FP8_E4M3:
            return {3, 7, 0x7e, 0x1p-9f};
        case PENSTOCK_CACHE_FP8_E5M2:
            return {2, 15, 0x7b, 0x1p-16f};
        default:
            return {7, 0, 0x7f, 1.0f};
    }
}

constexpr int kNoNumber = 0x7f;

// Sixteen numbers whose sizes have the codes `sizes`.
INLINE F16 numbers_of(const Code &code, I16 sizes) {
    const F16 small = to_floats(sizes) * code.smallest;
    const F16 large = (F16)((sizes << (23 - code.mantissa)) + ((127 - code.bias) << 23));
    const F16 x = select(is_above(all_integers(1 << code.mantissa), sizes), small, large);
    return select(is_above(sizes, all_integers(code.largest)), all(__builtin_nanf("")), x);
}

// The nearest codes, ties to even.
INLINE I16 codes_of(const Code &code, F16 x) {
    const I16 bits = (I16)x, size = bits & 0x7fffffff, signs = (I16)((U16)(bits & ~size) >> 24);
    const int cut = 23 - code.mantissa;
    const I16 large = ((size + ((1 << (cut - 1)) - 1) + ((size >> cut) & 1)) >> cut) - ((127 - code.bias) << code.mantissa);
    const F16 first_large = all(code.smallest * static_cast<float>(1 << code.mantissa));
    const F16 sizes = (F16)size;
    const I16 small = rounded(minimum(sizes, first_large) * (1.0f / code.smallest));
    I16 made = code.bias == 0 ? small : select(is_less(sizes, first_large), small, large);
    made = select(is_above(made, all_integers(code.largest)), all_integers(code.largest), made);
    // Infinite, or no number.
    made = select(is_above(size, all_integers(0x7f7fffff)), all_integers(kNoNumber), made);
    return made | signs;
}

// Bf16 of every code, without its sign; and its bytes apart.
struct Decoded {
    alignas(64) uint16_t of[128];
    alignas(64) uint8_t low[128], high[128];
    bool by_bytes;  // the processor has VBMI: those from Ice Lake and Zen 4 on
};

SEPARATE void decode_all(penstock_cache_format format, Decoded *decoded) {
    const Code code = code_of(format);
    for (int at = 0; at < 128; at += 16) store_bf16(decoded->of + at, to_bf16(numbers_of(code, lanes() + at)));
    for (int at = 0; at < 128; at++) {
        decoded->low[at] = static_cast<uint8_t>(decoded->of[at]);
        decoded->high[at] = static_cast<uint8_t>(decoded->of[at] >> 8);
    }
#if defined(__AVX512BW__)
    decoded->by_bytes = __builtin_cpu_supports("avx512vbmi");
#else
    decoded->by_bytes = false;
#endif
}

#if defined(__AVX512BW__)
#define WITH_VBMI __attribute__((target("avx512vbmi")))

// The two bytes of 64 numbers by a permutation each.
struct ByteTables {
    __m512i low_a, low_b, high_a, high_b;
};
WITH_VBMI INLINE ByteTables tables_of(const Decoded &decoded) {
    return {_mm512_load_si512(decoded.low), _mm512_load_si512(decoded.low + 64), _mm512_load_si512(decoded.high),
            _mm512_load_si512(decoded.high + 64)};
}
WITH_VBMI INLINE void numbers_of_bytes(const ByteTables &tables, const uint8_t *from, __m512i *first, __m512i *second) {
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);  // bytes are joined in the halves of each 16
    const __m512i codes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(from));
    const __m512i low = _mm512_permutex2var_epi8(tables.low_a, codes, tables.low_b);
    const __m512i sizes = _mm512_permutex2var_epi8(tables.high_a, codes, tables.high_b);
    const __m512i high = _mm512_or_si512(sizes, _mm512_and_si512(codes, _mm512_set1_epi8(-128)));
    *first = _mm512_unpacklo_epi8(low, high), *second = _mm512_unpackhi_epi8(low, high);
}

WITH_VBMI __attribute__((noinline)) static void decode_bytes(const Decoded &decoded, const uint8_t *from, const uint8_t *next,
                                                            int count, uint8_t *to) {
    const ByteTables tables = tables_of(decoded);
    for (int at = 0; at < count; at += 64) {
        __m512i first, second;
        fetch_far(next + at, 64);
        numbers_of_bytes(tables, from + at, &first, &second);
        _mm512_storeu_si512(to + at * 2, first);
        _mm512_storeu_si512(to + at * 2 + 64, second);
    }
}
#endif

// `count` codes, a multiple of 64, to bf16. As many are asked for from `next` on.
SEPARATE void decode(const Decoded &decoded, const uint8_t *from, const uint8_t *next, int count, uint8_t *to) {
#if defined(__AVX512BW__)
    if (decoded.by_bytes) return decode_bytes(decoded, from, next, count, to);
    fetch_far(next, count);
    const __m512i a = _mm512_load_si512(decoded.of), b = _mm512_load_si512(decoded.of + 32);
    const __m512i c = _mm512_load_si512(decoded.of + 64), d = _mm512_load_si512(decoded.of + 96);
    for (int at = 0; at < count; at += 32) {
        const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + at)));
        const __m512i low = _mm512_permutex2var_epi16(a, codes, b), high = _mm512_permutex2var_epi16(c, codes, d);
        const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
        const __m512i signs = _mm512_slli_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(0x80)), 8);
        _mm512_storeu_si512(to + at * 2, _mm512_or_si512(_mm512_mask_blend_epi16(is_high, low, high), signs));
    }
#elif defined(PENSTOCK_NEON)
    fetch_far(next, count);
    // The two bytes of 16 numbers by two looks into tables of 64 each.
    const auto table = [](const uint8_t *from) {
        return uint8x16x4_t{{vld1q_u8(from), vld1q_u8(from + 16), vld1q_u8(from + 32), vld1q_u8(from + 48)}};
    };
    const uint8x16x4_t low_a = table(decoded.low), low_b = table(decoded.low + 64);
    const uint8x16x4_t high_a = table(decoded.high), high_b = table(decoded.high + 64);
    const uint8x16_t sign = vdupq_n_u8(0x80), half = vdupq_n_u8(64);
    for (int at = 0; at < count; at += 16) {
        const uint8x16_t codes = vld1q_u8(from + at), sizes = vbicq_u8(codes, sign), beyond = vsubq_u8(sizes, half);
        const uint8x16_t low = vqtbx4q_u8(vqtbl4q_u8(low_a, sizes), low_b, beyond);
        const uint8x16_t high = vqtbx4q_u8(vqtbl4q_u8(high_a, sizes), high_b, beyond);
        const uint8x16x2_t both = {{low, vorrq_u8(high, vandq_u8(codes, sign))}};
        vst2q_u8(to + at * 2, both);
    }
#else
    fetch_far(next, count);
    uint16_t *out = reinterpret_cast<uint16_t *>(to);
    for (int at = 0; at < count; at++) out[at] = decoded.of[from[at] & 0x7f] | (uint16_t)((from[at] & 0x80) << 8);
#endif
}

// Keys of some pages, or values of some columns of pages, in codes, and memory for what they become.
struct CodedTiles {
    const Decoded &decoded;
    const uint8_t *const *pages;
    int64_t offset;  // of values in a page, of the first of these columns; -1: keys
    int count;       // columns: pages of keys, or columns of values
    int tiles;       // of each: of a page's keys, or pages of values
    long step;       // kNextPages: of what is multiplied the same is asked for in the pages a split further
    uint8_t *memory;

    const uint8_t *from(int column, int tile, int further = 0) const {
        return offset < 0 ? pages[column + further] + tile * 512 : pages[tile + further] + offset + column * 256;
    }
    uint8_t *to(int column, int tile) const {
        return memory + (offset < 0 ? (column * tiles + tile) * 1024 : (tile * count + column) * 512);
    }
};

#if defined(__AVX512BF16__) && !defined(PENSTOCK_AMX)
// Rows whose sums with so many columns fit the registers beside tables.
template <int count>
constexpr int kRowsOfCodes = count > 2 ? 4 : 6;

// `product_rows` of numbers that come from their codes in registers. They are kept for other rows if there are some.
template <int rows, int count, bool keeps>
WITH_VBMI __attribute__((noinline)) static void coded_rows(const CodedTiles &coded, const uint8_t *a, long a_bytes, float *c) {
    const ByteTables tables = tables_of(coded.decoded);
    const int pairs = coded.offset < 0 ? 16 : 8;
    __m512 sum[rows][count];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) sum[r][i] = _mm512_setzero_ps();
    for (int k = 0; k < coded.tiles; k++) {
        const uint8_t *from[count], *next[count];
        uint8_t *to[count];
        for (int i = 0; i < count; i++) {
            from[i] = coded.from(i, k);
            next[i] = coded.step == kNextPages ? coded.from(i, k, kPagesInSplit) : from[i];
            to[i] = coded.to(i, k);
        }
        for (int p = 0; p < pairs; p += 2) {
            __m512bh x[rows][2];
            for (int r = 0; r < rows; r++) {
                const auto *pair = reinterpret_cast<const int32_t *>(a + r * a_bytes + k * pairs * 4 + p * 4);
                x[r][0] = (__m512bh)_mm512_set1_epi32(pair[0]), x[r][1] = (__m512bh)_mm512_set1_epi32(pair[1]);
            }
            for (int i = 0; i < count; i++) {
                __m512i first, second;
                fetch_far(next[i] + p * 32, 64);
                numbers_of_bytes(tables, from[i] + p * 32, &first, &second);
                if (keeps) {
                    _mm512_storeu_si512(to[i] + p * 64, first);
                    _mm512_storeu_si512(to[i] + p * 64 + 64, second);
                }
                for (int r = 0; r < rows; r++) sum[r][i] = _mm512_dpbf16_ps(sum[r][i], x[r][0], (__m512bh)first);
                for (int r = 0; r < rows; r++) sum[r][i] = _mm512_dpbf16_ps(sum[r][i], x[r][1], (__m512bh)second);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) _mm512_storeu_ps(c + i * kBlockFloats + r * 16, sum[r][i]);
}

template <int count, bool keeps, int most>
INLINE void some_coded_rows(const CodedTiles &coded, const uint8_t *a, long a_bytes, int rows, float *c) {
    if constexpr (most > 0) {
        if (rows == most)
            coded_rows<most, count, keeps>(coded, a, a_bytes, c);
        else
            some_coded_rows<count, keeps, most - 1>(coded, a, a_bytes, rows, c);
    }
}

// Of the first rows. Returns how many.
template <int count>
INLINE int first_coded_rows(const CodedTiles &coded, const uint8_t *a, long a_bytes, int rows, float *c) {
    constexpr int most = kRowsOfCodes<count>;
    const int parts = (rows + most - 1) / most, some = (rows + parts - 1) / parts;
    if (some < rows)
        some_coded_rows<count, true, most>(coded, a, a_bytes, some, c);
    else
        some_coded_rows<count, false, most>(coded, a, a_bytes, some, c);
    return some;
}
#endif

// Multiplies up to 16 rows with them: c[column][row][number]. Sums are those of what was bf16 before.
static void product_with_codes(const CodedTiles &coded, const uint8_t *a, long a_bytes, int rows, float *c) {
    const bool are_keys = coded.offset < 0;
    int done = 0;
#if defined(__AVX512BF16__) && !defined(PENSTOCK_AMX)
    if (coded.decoded.by_bytes) {
        done = coded.count == 4   ? first_coded_rows<4>(coded, a, a_bytes, rows, c)
               : coded.count == 3 ? first_coded_rows<3>(coded, a, a_bytes, rows, c)
               : coded.count == 2 ? first_coded_rows<2>(coded, a, a_bytes, rows, c)
                                  : first_coded_rows<1>(coded, a, a_bytes, rows, c);
        if (done == rows) return;
    }
#endif
    const uint8_t *tiles[kPagesInSplit];
    for (int at = 0; at < (are_keys ? coded.count : coded.tiles); at++) {
        uint8_t *const to = are_keys ? coded.to(at, 0) : coded.to(0, at);
        tiles[at] = to;
        if (done > 0) continue;
        const uint8_t *from = are_keys ? coded.from(at, 0) : coded.from(0, at), *next = from;
        if (coded.step == kNextPages) next = are_keys ? coded.from(at, 0, kPagesInSplit) : coded.from(0, at, kPagesInSplit);
        decode(coded.decoded, from, next, are_keys ? coded.tiles * 512 : coded.count * 256, to);
    }
    a += done * a_bytes, c += done * 16, rows -= done;
    if (are_keys)
        product(a, a_bytes, rows, tiles, coded.count, coded.tiles, kOfAttention, 0, c);
    else
        product_with_values(a, a_bytes, rows, tiles, coded.tiles, coded.count, 0, 0, c);
}

// The factor of `count` numbers as int8, and their codes, one behind the other.
SEPARATE void encode(penstock_cache_format format, const uint16_t *x, int count, uint8_t *codes, float *factor) {
    const Code code = code_of(format);
    F16 scale = all(1.0f);
    if (format == PENSTOCK_CACHE_INT8) {
        F16 largest = {};
        for (int at = 0; at < count; at += 16) {
            const F16 sizes = size_of(from_bf16(load_bf16(x + at)));
            largest = select(is_same(sizes, sizes), maximum(largest, sizes), all(__builtin_inff()));
        }
        const float most = maximum_of(largest);
        // What is infinite, or no number, leaves none of the token's.
        const bool is_finite = most < __builtin_inff(), is_small = most < 1e-30f;
        *factor = is_finite ? is_small ? 0.0f : most / 127.0f : __builtin_nanf("");
        scale = all(is_finite && !is_small ? 127.0f / most : 0.0f);
    }
    for (int at = 0; at < count; at += 16) {
        const I16 made = codes_of(code, from_bf16(load_bf16(x + at)) * scale);
        for (int lane = 0; lane < 16; lane++) codes[at + lane] = static_cast<uint8_t>(made[lane]);
    }
}

// Where a head's page has the factors of its keys, and behind them those of its values.
INLINE const float *factors_of(const Heads &heads, const uint8_t *page) {
    return reinterpret_cast<const float *>(page + heads.factors_offset);
}

// Into a head's page, at a token's place: its key (key_dim) and its value (value_dim) in bf16. `codes` is memory for so many bytes.
SEPARATE void put_token(const Heads &heads, uint8_t *page, int at, const uint16_t *key, const uint16_t *value, uint8_t *codes) {
    uint8_t *values = page + heads.value_offset;
    if (heads.format == PENSTOCK_CACHE_BF16) {
        for (int pair = 0; pair < heads.key_dim / 2; pair++)
            *reinterpret_cast<uint32_t *>(page + pair * 64 + at * 4) = key[2 * pair] | (uint32_t)key[2 * pair + 1] << 16;
        values += at / 2 * 64;
#if defined(__AVX512BW__)
        // Only this token's half of each pair is written: another thread may write the other one.
        for (int i = 0; i < heads.value_dim; i += 16) {
            const __m512i numbers = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(value + i)));
            uint8_t *to = values + i * 32;
            if (at % 2)
                _mm512_mask_storeu_epi16(to, 0xaaaaaaaau, _mm512_slli_epi32(numbers, 16));
            else
                _mm512_mask_storeu_epi16(to, 0x55555555u, numbers);
        }
#else
        values += at % 2 * 2;
        for (int i = 0; i < heads.value_dim; i++)
            *reinterpret_cast<uint16_t *>(values + i / 16 * 512 + i % 16 * 4) = value[i];
#endif
        return;
    }
    float factors[2];
    encode(heads.format, key, heads.key_dim, codes, factors);
    for (int pair = 0; pair < heads.key_dim / 2; pair++)
        *reinterpret_cast<uint16_t *>(page + pair * 32 + at * 2) =
            static_cast<uint16_t>(codes[2 * pair] | codes[2 * pair + 1] << 8);
    encode(heads.format, value, heads.value_dim, codes, factors + 1);
    values += at / 2 * 32 + at % 2;
    for (int i = 0; i < heads.value_dim; i++) values[i / 16 * 256 + i % 16 * 2] = codes[i];
    if (heads.format != PENSTOCK_CACHE_INT8) return;
    float *there = reinterpret_cast<float *>(page + heads.factors_offset);
    there[at] = factors[0], there[PENSTOCK_PAGE_TOKENS + at] = factors[1];
}

}  // namespace
