// Numbers of the KV cache in 8 bits: from a head's bf16 to codes when a token is written, and back, a page at a time, where attention
// reads them. Included by attention.h.
//
// A code is a sign and seven bits. e4m3 and e5m2 are the numbers of 8 bits of "FP8 Formats for Deep Learning" (Micikevicius et al.,
// 2022): what is too large becomes the largest, what is no number stays none. int8 is a size up to 127, and a token's key and value
// have a factor each, for each key head: the keys' is multiplied with scores, and the values' with weights, so that nothing is rounded
// a second time.
#pragma once

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
    const F16 small = __builtin_convertvector(sizes, F16) * code.smallest;
    const F16 large = (F16)((sizes << (23 - code.mantissa)) + ((127 - code.bias) << 23));
    const F16 x = select(is_above(I16{} + (1 << code.mantissa), sizes), small, large);
    return select(is_above(sizes, I16{} + code.largest), all(__builtin_nanf("")), x);
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
    made = select(is_above(made, I16{} + code.largest), I16{} + code.largest, made);
    // Infinite, or no number.
    made = select(is_above(size, I16{} + 0x7f7fffff), I16{} + kNoNumber, made);
    return made | signs;
}

// Bf16 of every code, without its sign; and its bytes apart.
struct Decoded {
    alignas(64) uint16_t of[128];
    alignas(64) uint8_t low[128], high[128];
};

SEPARATE void decode_all(penstock_cache_format format, Decoded *decoded) {
    const Code code = code_of(format);
    for (int at = 0; at < 128; at += 16) store_bf16(decoded->of + at, to_bf16(numbers_of(code, lanes() + at)));
    for (int at = 0; at < 128; at++) {
        decoded->low[at] = static_cast<uint8_t>(decoded->of[at]);
        decoded->high[at] = static_cast<uint8_t>(decoded->of[at] >> 8);
    }
}

#if defined(__AVX512BW__)
// The two bytes of 64 numbers by a permutation each: half the work, on what has VBMI (all but the first processors with AVX-512 and BF16).
__attribute__((noinline, target("avx512vbmi"))) static void decode_bytes(const Decoded &decoded, const uint8_t *from,
                                                                        const uint8_t *next, int count, uint8_t *to) {
    const __m512i low_a = _mm512_load_si512(decoded.low), low_b = _mm512_load_si512(decoded.low + 64);
    const __m512i high_a = _mm512_load_si512(decoded.high), high_b = _mm512_load_si512(decoded.high + 64);
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);  // bytes are joined in the halves of each 16
    for (int at = 0; at < count; at += 64) {
        const __m512i codes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(from + at));
        fetch_far(next + at, 64);
        const __m512i low = _mm512_permutex2var_epi8(low_a, codes, low_b);
        const __m512i sizes = _mm512_permutex2var_epi8(high_a, codes, high_b);
        const __m512i high = _mm512_or_si512(sizes, _mm512_and_si512(codes, _mm512_set1_epi8(-128)));
        _mm512_storeu_si512(to + at * 2, _mm512_unpacklo_epi8(low, high));
        _mm512_storeu_si512(to + at * 2 + 64, _mm512_unpackhi_epi8(low, high));
    }
}
#endif

// `count` codes, a multiple of 64, to bf16. As many are asked for from `next` on.
SEPARATE void decode(const Decoded &decoded, const uint8_t *from, const uint8_t *next, int count, uint8_t *to) {
#if defined(__AVX512BW__)
    if (__builtin_cpu_supports("avx512vbmi")) return decode_bytes(decoded, from, next, count, to);
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
