// Sixteen floats at once: a register of AVX-512, two of AVX2, four of SSE2 or NEON. Of one register they are a vector of GCC's extension; of
// several an array of such, since GCC takes a vector of two registers that is chosen, converted or set on some way only for memory, and
// copies it there eight bytes at a time.
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

#define INLINE __attribute__((always_inline)) static inline
#define INLINE_MEMBER __attribute__((always_inline)) inline

#if defined(__AVX512F__)
constexpr int kRegister = 64;
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif
constexpr int kRegisters = 64 / kRegister;

// Of a register's length, and half of it.
template <typename Number>
struct Register {
    typedef Number Whole __attribute__((vector_size(kRegister)));
    typedef Number Half __attribute__((vector_size(kRegister / 2)));
};

#if defined(__AVX512F__)
typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef uint8_t B64 __attribute__((vector_size(64)));
typedef uint16_t H32 __attribute__((vector_size(64)));
typedef double D8 __attribute__((vector_size(64)));
#else
template <typename Number>
struct Wide {
    typedef typename Register<Number>::Whole Whole;
    Whole registers[kRegisters];

    INLINE_MEMBER Wide() : registers{} {}
    template <typename... More>
    INLINE_MEMBER Wide(Number first, Number second, More... more) : registers{} {
        const Number numbers[] = {first, second, static_cast<Number>(more)...};
        for (int i = 0; i < static_cast<int>(sizeof(numbers) / sizeof(Number)); i++) set(i, numbers[i]);
    }
    // The same bits.
    template <typename Other>
    INLINE_MEMBER explicit operator Wide<Other>() const {
        Wide<Other> made;
        for (int i = 0; i < kRegisters; i++) made.registers[i] = (typename Wide<Other>::Whole)registers[i];
        return made;
    }
    INLINE_MEMBER Number operator[](int lane) const {
        constexpr int lanes = kRegister / sizeof(Number);
        return registers[lane / lanes][lane % lanes];
    }
    INLINE_MEMBER void set(int lane, Number number) {
        constexpr int lanes = kRegister / sizeof(Number);
        registers[lane / lanes][lane % lanes] = number;
    }
    INLINE_MEMBER Wide operator-() const {
        Wide made;
        for (int i = 0; i < kRegisters; i++) made.registers[i] = -registers[i];
        return made;
    }
    INLINE_MEMBER Wide operator~() const {
        Wide made;
        for (int i = 0; i < kRegisters; i++) made.registers[i] = ~registers[i];
        return made;
    }
#define PENSTOCK_OPERATOR(op)                                                                  \
    INLINE_MEMBER friend Wide operator op(const Wide &a, const Wide &b) {                      \
        Wide made;                                                                             \
        for (int i = 0; i < kRegisters; i++) made.registers[i] = a.registers[i] op b.registers[i]; \
        return made;                                                                           \
    }                                                                                          \
    INLINE_MEMBER friend Wide operator op(const Wide &a, Number b) {                           \
        Wide made;                                                                             \
        for (int i = 0; i < kRegisters; i++) made.registers[i] = a.registers[i] op b;              \
        return made;                                                                           \
    }                                                                                          \
    INLINE_MEMBER friend Wide operator op(Number a, const Wide &b) {                           \
        Wide made;                                                                             \
        for (int i = 0; i < kRegisters; i++) made.registers[i] = a op b.registers[i];              \
        return made;                                                                           \
    }                                                                                          \
    INLINE_MEMBER Wide &operator op##=(const Wide &other) {                                    \
        return *this = *this op other;                                                         \
    }                                                                                          \
    INLINE_MEMBER Wide &operator op##=(Number other) {                                         \
        return *this = *this op other;                                                         \
    }
    PENSTOCK_OPERATOR(+)
    PENSTOCK_OPERATOR(-)
    PENSTOCK_OPERATOR(*)
    PENSTOCK_OPERATOR(/)
    PENSTOCK_OPERATOR(&)
    PENSTOCK_OPERATOR(|)
    PENSTOCK_OPERATOR(^)
    PENSTOCK_OPERATOR(<<)
    PENSTOCK_OPERATOR(>>)
#undef PENSTOCK_OPERATOR
};
typedef Wide<float> F16;
typedef Wide<int32_t> I16;
typedef Wide<uint32_t> U16;
typedef Wide<uint8_t> B64;
typedef Wide<uint16_t> H32;
typedef Wide<double> D8;
#endif
typedef uint16_t H16 __attribute__((vector_size(32)));
typedef int8_t B16 __attribute__((vector_size(16)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef int8_t B16Memory __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t H16Memory __attribute__((vector_size(32), aligned(2), may_alias));

// Any of the types of 64 bytes, from memory and to it.
template <typename Vector>
INLINE Vector load_as(const void *from) {
#if defined(__AVX512F__)
    typedef Vector Memory __attribute__((aligned(1), may_alias));
    return *static_cast<const Memory *>(from);
#else
    Vector x;
    for (int i = 0; i < kRegisters; i++) {
        typedef typename Vector::Whole Memory __attribute__((aligned(1), may_alias));
        x.registers[i] = *reinterpret_cast<const Memory *>(static_cast<const char *>(from) + i * kRegister);
    }
    return x;
#endif
}
template <typename Vector>
INLINE void store_as(void *to, Vector x) {
#if defined(__AVX512F__)
    typedef Vector Memory __attribute__((aligned(1), may_alias));
    *static_cast<Memory *>(to) = x;
#else
    for (int i = 0; i < kRegisters; i++) {
        typedef typename Vector::Whole Memory __attribute__((aligned(1), may_alias));
        *reinterpret_cast<Memory *>(static_cast<char *>(to) + i * kRegister) = x.registers[i];
    }
#endif
}

INLINE F16 load(const float *from) {
    return load_as<F16>(from);
}
INLINE void store(float *to, F16 x) {
    store_as(to, x);
}
// Past the caches: for numbers that nobody reads soon. `to` is 64-byte aligned. Others see them behind `streamed`.
INLINE void stream(float *to, F16 x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, (__m512)x);
#elif defined(__AVX2__)
    for (int i = 0; i < kRegisters; i++) _mm256_stream_ps(to + 8 * i, (__m256)x.registers[i]);
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
    return x - F16{};
}
INLINE I16 all_integers(int32_t x) {
    return I16{} + x;
}

// What an expression makes of registers, one after another; PENSTOCK_PART is the register of an operand.
#if defined(__AVX512F__)
#define PENSTOCK_EACH(made, expression) \
    {                                   \
        constexpr int i = 0;            \
        (void)i;                        \
        made = expression;              \
    }
#define PENSTOCK_PART(x) (x)
#else
#define PENSTOCK_EACH(made, expression) \
    for (int i = 0; i < kRegisters; i++) made.registers[i] = expression;
#define PENSTOCK_PART(x) (x).registers[i]
#endif

INLINE I16 is_less(F16 a, F16 b) {
    I16 made;
    PENSTOCK_EACH(made, PENSTOCK_PART(a) < PENSTOCK_PART(b))
    return made;
}
INLINE I16 is_same(F16 a, F16 b) {
    I16 made;
    PENSTOCK_EACH(made, PENSTOCK_PART(a) == PENSTOCK_PART(b))
    return made;
}
INLINE I16 is_above(I16 a, I16 b) {
    I16 made;
    PENSTOCK_EACH(made, PENSTOCK_PART(a) > PENSTOCK_PART(b))
    return made;
}

INLINE I16 is_zero_bits(I16 a) {
    I16 made;
    PENSTOCK_EACH(made, PENSTOCK_PART(a) == 0)
    return made;
}

// To the nearest float; and to a whole number, towards 0.
INLINE F16 to_floats(I16 x) {
    F16 made;
    PENSTOCK_EACH(made, __builtin_convertvector(PENSTOCK_PART(x), Register<float>::Whole))
    return made;
}
INLINE I16 to_integers(F16 x) {
    I16 made;
    PENSTOCK_EACH(made, __builtin_convertvector(PENSTOCK_PART(x), Register<int32_t>::Whole))
    return made;
}

// a where the mask is set, which is all bits or none, and b elsewhere.
INLINE I16 select(I16 mask, I16 a, I16 b) {
    I16 made;
    PENSTOCK_EACH(made, PENSTOCK_PART(mask) ? PENSTOCK_PART(a) : PENSTOCK_PART(b))
    return made;
}
INLINE F16 select(I16 mask, F16 a, F16 b) {
    F16 made;
    PENSTOCK_EACH(made, PENSTOCK_PART(mask) ? PENSTOCK_PART(a) : PENSTOCK_PART(b))
    return made;
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

// The first `count`.
INLINE I16 are_first(int count) {
    return is_above(all_integers(count), lanes());
}

// The first `count` numbers; zeros beyond.
INLINE F16 load_some(const float *from, int count) {
    alignas(64) float numbers[16] = {};
    for (int lane = 0; lane < count; lane++) numbers[lane] = from[lane];
    return load(numbers);
}

INLINE void store_some(float *to, F16 x, int count) {
    for (int lane = 0; lane < count; lane++) to[lane] = x[lane];
}

// Of 32 bits their lower half, and the other way round.
INLINE H16 narrow(U16 x) {
#if defined(__AVX512F__)
    return __builtin_convertvector(x, H16);
#elif defined(__AVX2__)
    const __m256i both = _mm256_packus_epi32((__m256i)(x.registers[0] & 0xffffu), (__m256i)(x.registers[1] & 0xffffu));
    return (H16)_mm256_permute4x64_epi64(both, 0xd8);
#else
    union {
        Register<uint16_t>::Half halves[kRegisters];
        H16 whole;
    } made;
    for (int i = 0; i < kRegisters; i++) made.halves[i] = __builtin_convertvector(x.registers[i], Register<uint16_t>::Half);
    return made.whole;
#endif
}
INLINE U16 widen(H16 x) {
#if defined(__AVX512F__)
    return __builtin_convertvector(x, U16);
#else
    const union {
        H16 whole;
        Register<uint16_t>::Half halves[kRegisters];
    } from = {x};
    U16 made;
    for (int i = 0; i < kRegisters; i++) made.registers[i] = __builtin_convertvector(from.halves[i], Register<uint32_t>::Whole);
    return made;
#endif
}

// Whole numbers that fit; and of those without a sign the other way round.
INLINE B16 to_bytes(I16 x) {
#if defined(__AVX512F__)
    return __builtin_convertvector(x, B16);
#elif defined(__AVX2__)
    const __m256i both = _mm256_packs_epi32((__m256i)x.registers[0], (__m256i)x.registers[1]);
    const __m256i ordered = _mm256_permute4x64_epi64(both, 0xd8);
    return (B16)_mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
#else
    typedef int8_t Quarter __attribute__((vector_size(kRegister / 4)));
    union {
        Quarter quarters[kRegisters];
        B16 whole;
    } made;
    for (int i = 0; i < kRegisters; i++) made.quarters[i] = __builtin_convertvector(x.registers[i], Quarter);
    return made.whole;
#endif
}
INLINE U16 widen_bytes(Bytes16 x) {
#if defined(__AVX512F__)
    return __builtin_convertvector(x, U16);
#else
    typedef uint8_t Quarter __attribute__((vector_size(kRegister / 4)));
    const union {
        Bytes16 whole;
        Quarter quarters[kRegisters];
    } from = {x};
    U16 made;
    for (int i = 0; i < kRegisters; i++) made.registers[i] = __builtin_convertvector(from.quarters[i], Register<uint32_t>::Whole);
    return made;
#endif
}

// 16 numbers of fp16, which are finite.
constexpr float kHalfExponents = 0x1p112f;  // what the exponents of fp32 and fp16 differ by
INLINE F16 from_halves(const uint8_t *from) {
#if defined(__AVX512F__)
    return (F16)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
#else
    const U16 x = widen(*reinterpret_cast<const H16Memory *>(from));
    return (F16)((x & 0x7fffu) << 13 | (x & 0x8000u) << 16) * kHalfExponents;
#endif
}

// To the nearest bf16, ties to even; what is no number stays none.
INLINE H16 to_bf16(F16 x) {
#if defined(__AVX512BF16__)
    return (H16)_mm512_cvtneps_pbh((__m512)x);
#else
    const U16 bits = (U16)x;
    const U16 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return narrow((U16)select(is_same(x, x), (I16)rounded, all_integers(0x7fc0)));
#endif
}

INLINE F16 from_bf16(H16 x) {
    return (F16)(widen(x) << 16);
}
INLINE H16 load_bf16(const void *from) {
    return *reinterpret_cast<const H16Memory *>(from);
}
INLINE H16 load_bf16_up_to(const uint16_t *from, int64_t count) {
    if (count >= 16) return load_bf16(from);
    H16 x = {};
    for (int lane = 0; lane < count; lane++) x[lane] = from[lane];
    return x;
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
#elif defined(__SSE2__) || defined(__aarch64__)
    I16 made;
    for (int i = 0; i < kRegisters; i++) {
#if defined(__AVX2__)
        made.registers[i] = (Register<int32_t>::Whole)_mm256_cvtps_epi32((__m256)x.registers[i]);
#elif defined(__SSE2__)
        made.registers[i] = (Register<int32_t>::Whole)_mm_cvtps_epi32((__m128)x.registers[i]);
#else
        made.registers[i] = (Register<int32_t>::Whole)vcvtnq_s32_f32((float32x4_t)x.registers[i]);
#endif
    }
    return made;
#else
    const F16 magic = all(12582912.0f);  // 1.5 * 2^23
    return (I16)(x + magic) - (I16)magic;
#endif
}

INLINE F16 size_of(F16 x) {
    return select(is_less(x, F16{}), -x, x);
}

// By fours.
typedef float F4 __attribute__((vector_size(16)));
struct Quarters {
    F4 parts[4];
};
INLINE Quarters quarters_of(F16 x) {
    Quarters made;
    for (int i = 0; i < kRegisters; i++) {
        const union {
            Register<float>::Whole whole;
            F4 fours[kRegister / 16];
        } from = {PENSTOCK_PART(x)};
        for (int four = 0; four < kRegister / 16; four++) made.parts[i * (kRegister / 16) + four] = from.fours[four];
    }
    return made;
}

// The lower and the upper eight of them in double precision.
INLINE D8 doubles_of(F16 x, int half) {
#if defined(__AVX512F__)
    const union {
        F16 whole;
        __m256 halves[2];
    } from = {x};
    return (D8)_mm512_cvtps_pd(from.halves[half]);
#else
    const Quarters q = quarters_of(x);
    const union {
        F4 fours[2];
        Register<float>::Half halves[kRegisters];
    } from = {{q.parts[2 * half], q.parts[2 * half + 1]}};
    D8 made;
    for (int i = 0; i < kRegisters; i++) made.registers[i] = __builtin_convertvector(from.halves[i], D8::Whole);
    return made;
#endif
}

// Over the lanes, in one order: those half as far apart each time. In registers: through memory it would take as long as 16 keys' scores.
INLINE float sum_of(F16 x) {
    const Quarters q = quarters_of(x);
    const F4 four = (q.parts[0] + q.parts[2]) + (q.parts[1] + q.parts[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

INLINE float maximum_of(F16 x) {
    const Quarters q = quarters_of(x);
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
