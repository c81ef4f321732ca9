// Sixteen floats at once, by GCC's vector extension: one register of AVX-512, two of AVX2, four of SSE2 or NEON.
// Everything is in an unnamed namespace: an inline function that several objects share could be the one of an
// instruction set that the processor lacks.
#pragma once

#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef uint16_t H16 __attribute__((vector_size(32)));
typedef float F16Memory __attribute__((vector_size(64), aligned(4), may_alias));
typedef int8_t B16 __attribute__((vector_size(16)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint8_t B64 __attribute__((vector_size(64)));
typedef uint16_t H32 __attribute__((vector_size(64)));
typedef uint32_t U16Memory __attribute__((vector_size(64), aligned(4), may_alias));
typedef int8_t B16Memory __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t B64Memory __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint16_t H16Memory __attribute__((vector_size(32), aligned(2), may_alias));

#define INLINE __attribute__((always_inline)) static inline

INLINE F16 load(const float *from) {
    return *reinterpret_cast<const F16Memory *>(from);
}
INLINE void store(float *to, F16 x) {
    *reinterpret_cast<F16Memory *>(to) = x;
}
// Past the caches: for numbers that nobody reads soon. `to` is 64-byte aligned. Others see them behind `streamed`.
INLINE void stream(float *to, F16 x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, (__m512)x);
#elif defined(__AVX2__)
    typedef float Half __attribute__((vector_size(32)));
    const union {
        F16 whole;
        Half halves[2];
    } parts = {x};
    _mm256_stream_ps(to, (__m256)parts.halves[0]);
    _mm256_stream_ps(to + 8, (__m256)parts.halves[1]);
#else
    store(to, x);
#endif
}
INLINE void streamed() {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}
INLINE F16 all(float x) {
    return F16{} + x;
}

// GCC compares vectors that are longer than a register, and chooses by them, number by number: so that is done register by register.
#if defined(__AVX512F__)
constexpr int kRegister = 64;
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif
typedef float RegisterF __attribute__((vector_size(kRegister)));
typedef int32_t RegisterI __attribute__((vector_size(kRegister)));
union RegistersF {
    F16 whole;
    RegisterF parts[64 / kRegister];
};
union RegistersI {
    I16 whole;
    RegisterI parts[64 / kRegister];
};

INLINE I16 is_less(F16 a, F16 b) {
    const RegistersF x = {a}, y = {b};
    RegistersI made;
    for (int i = 0; i < 64 / kRegister; i++) made.parts[i] = x.parts[i] < y.parts[i];
    return made.whole;
}
INLINE I16 is_same(F16 a, F16 b) {
    const RegistersF x = {a}, y = {b};
    RegistersI made;
    for (int i = 0; i < 64 / kRegister; i++) made.parts[i] = x.parts[i] == y.parts[i];
    return made.whole;
}
INLINE I16 is_above(I16 a, I16 b) {
    const RegistersI x = {a}, y = {b};
    RegistersI made;
    for (int i = 0; i < 64 / kRegister; i++) made.parts[i] = x.parts[i] > y.parts[i];
    return made.whole;
}

// a where the mask is set, which is all bits or none, and b elsewhere.
INLINE I16 select(I16 mask, I16 a, I16 b) {
#if defined(__AVX512F__)
    return mask ? a : b;
#else
    return (mask & a) | (~mask & b);
#endif
}
INLINE F16 select(I16 mask, F16 a, F16 b) {
#if defined(__AVX512F__)
    return mask ? a : b;
#else
    return (F16)((mask & (I16)a) | (~mask & (I16)b));
#endif
}

// Of what is no number, b.
INLINE F16 maximum(F16 a, F16 b) {
#if defined(__AVX512F__)
    return (F16)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return select(is_less(b, a), a, b);
#endif
}
INLINE F16 minimum(F16 a, F16 b) {
#if defined(__AVX512F__)
    return (F16)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return select(is_less(a, b), a, b);
#endif
}

INLINE I16 lanes() {
    return I16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

// The first `count` numbers; zeros beyond.
INLINE F16 load_some(const float *from, int count) {
    F16 x = {};
    for (int lane = 0; lane < count; lane++) x[lane] = from[lane];
    return x;
}

INLINE void store_some(float *to, F16 x, int count) {
    for (int lane = 0; lane < count; lane++) to[lane] = x[lane];
}

// To the nearest bf16, ties to even; what is no number stays none.
INLINE H16 to_bf16(F16 x) {
#if defined(__AVX512BF16__)
    return (H16)_mm512_cvtneps_pbh((__m512)x);
#else
    const U16 bits = (U16)x;
    const U16 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return __builtin_convertvector((U16)select(is_same(x, x), (I16)rounded, I16{} + 0x7fc0), H16);
#endif
}

INLINE F16 from_bf16(H16 x) {
    return (F16)(__builtin_convertvector(x, U16) << 16);
}
INLINE H16 load_bf16(const void *from) {
    return *reinterpret_cast<const H16Memory *>(from);
}
INLINE void store_bf16(void *to, H16 x) {
    *reinterpret_cast<H16Memory *>(to) = x;
}

INLINE void store_some_bf16(void *to, H16 x, int count) {
    uint16_t *out = reinterpret_cast<uint16_t *>(to);
    for (int lane = 0; lane < count; lane++) out[lane] = x[lane];
}

// To the nearest whole number, ties to even, of numbers under 2^22. By conversion, where there is one: a sum would be
// fused with a product before it, and round another way than where products and sums are not fused.
INLINE I16 rounded(F16 x) {
#if defined(__AVX512F__)
    return (I16)_mm512_cvtps_epi32((__m512)x);
#elif defined(__SSE2__)
    union {
        F16 numbers;
        __m128 quarters[4];
    } from = {x};
    union {
        __m128i quarters[4];
        I16 numbers;
    } to;
    for (int i = 0; i < 4; i++) to.quarters[i] = _mm_cvtps_epi32(from.quarters[i]);
    return to.numbers;
#elif defined(__aarch64__)
    union {
        F16 numbers;
        float32x4_t quarters[4];
    } from = {x};
    union {
        int32x4_t quarters[4];
        I16 numbers;
    } to;
    for (int i = 0; i < 4; i++) to.quarters[i] = vcvtnq_s32_f32(from.quarters[i]);
    return to.numbers;
#else
    const F16 magic = all(12582912.0f);  // 1.5 * 2^23
    return (I16)(x + magic) - (I16)magic;
#endif
}

INLINE F16 size_of(F16 x) {
    return select(is_less(x, F16{}), -x, x);
}

typedef float F4 __attribute__((vector_size(16)));
union QuartersF {
    F16 whole;
    F4 parts[4];
};

// Over the lanes, in one order: those half as far apart each time. In registers: through memory it would take as long as 16 keys' scores.
INLINE float sum_of(F16 x) {
    const QuartersF q = {x};
    const F4 four = (q.parts[0] + q.parts[2]) + (q.parts[1] + q.parts[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

INLINE float maximum_of(F16 x) {
    const QuartersF q = {x};
    const auto larger = [](F4 a, F4 b) { return a > b ? a : b; };
    const F4 four = larger(larger(q.parts[0], q.parts[2]), larger(q.parts[1], q.parts[3]));
    const float even = four[0] > four[2] ? four[0] : four[2], odd = four[1] > four[3] ? four[1] : four[3];
    return even > odd ? even : odd;
}

// e^x to 2 units in the last place: x = n ln 2 + r, and a polynomial for r (Cephes, expf). exp(0) is 1 to the last bit;
// below -87.3 it is 0, and above 88 it stays what it is there.
INLINE F16 exponential(F16 x) {
    const F16 bounded = maximum(minimum(x, all(88.0f)), all(-87.3f));
    const F16 magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const F16 shifted = bounded * 1.44269504088896341f + magic;
    const F16 n = shifted - magic;
    const F16 r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    F16 p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const I16 exponent = ((I16)shifted - (I16)magic + 127) << 23;
    F16 result = p * (F16)exponent;
    result = select(is_less(x, all(-87.3f)), F16{}, result);
    return select(is_same(x, x), result, x);
}

INLINE F16 tanh_of(F16 x) {
    return 1.0f - 2.0f / (exponential(x + x) + 1.0f);
}

INLINE F16 sigmoid(F16 x) {
    return 1.0f / (1.0f + exponential(-x));
}

// To 1.5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
INLINE F16 error_function(F16 x) {
    const F16 size = size_of(x);
    const F16 t = 1.0f / (1.0f + 0.3275911f * size);
    F16 p = all(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const F16 y = 1.0f - p * t * exponential(-size * size);
    return select(is_less(x, F16{}), -y, y);
}

}  // namespace
