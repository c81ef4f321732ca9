// How threads share an operation, and the functions of single numbers that operations share. Included by the parts of
// kernels.cpp.
#pragma once

#include "kernels.h"
#include "products.h"
#include "vector.h"

namespace {

#define SEPARATE __attribute__((noinline)) static

INLINE int64_t take(const Work &work, int64_t count) {
    return __atomic_fetch_add(work.next, static_cast<uint32_t>(count), __ATOMIC_RELAXED);
}

// One of `count` pieces whose weights lie one behind the other: each member goes through a part of its own, and so through
// memory in one stream, and then helps with the others' parts. -1: nothing is left.
INLINE int64_t take_in_order(const Work &work, int64_t count) {
    for (int turn = 0; turn < work.members; turn++) {
        const int owner = (work.member + turn) % work.members;
        const int64_t begin = count * owner / work.members, end = count * (owner + 1) / work.members;
        uint32_t *taken = work.shares + owner * kShareStep;
        if (begin + __atomic_load_n(taken, __ATOMIC_RELAXED) >= end) continue;
        const int64_t piece = begin + __atomic_fetch_add(taken, 1u, __ATOMIC_RELAXED);
        if (piece < end) return piece;
    }
    return -1;
}

INLINE int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
INLINE int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Rows to take at once of cheap operations: few enough that everyone gets some.
INLINE int64_t share(int64_t rows, const Work &work) {
    const int64_t even = rows / (4 * work.members);
    return even < 1 ? 1 : even > 16 ? 16 : even;
}

// Each of `rows` rows by whoever takes it.
template <typename Row>
INLINE void each_row(int64_t rows, const Work &work, Row row) {
    const int64_t at_once = share(rows, work);
    for (int64_t begin; (begin = take(work, at_once)) < rows;)
        for (int64_t r = begin; r < least(begin + at_once, rows); r++) row(r);
}

// ln(1 + e^x), as the larger of x and 0, and ln(1 + y) with y = e^-|x|: of that the series in y / (2 + y), at most 1/3, up to
// the 13th power.
INLINE F16 softplus(F16 x) {
    const F16 y = exponential(-size_of(x));
    const F16 z = y / (2.0f + y), square = z * z;
    F16 p = all(1.0f / 13.0f);
    p = p * square + 1.0f / 11.0f;
    p = p * square + 1.0f / 9.0f;
    p = p * square + 1.0f / 7.0f;
    p = p * square + 1.0f / 5.0f;
    p = p * square + 1.0f / 3.0f;
    p = p * square + 1.0f;
    return select(is_less(x, F16{}), F16{}, x) + 2.0f * z * p;
}

INLINE F16 activated(F16 x, penstock_activation activation) {
    switch (activation) {
        case PENSTOCK_SILU:
            return x * sigmoid(x);
        case PENSTOCK_GELU:
            return 0.5f * x * (1.0f + error_function(x * 0.70710678118654752f));
        case PENSTOCK_GELU_TANH:
            return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
        case PENSTOCK_QUICK_GELU:
            return x * sigmoid(1.702f * x);
        case PENSTOCK_RELU:
            return select(is_less(x, F16{}), F16{}, x);
        case PENSTOCK_RELU_SQUARED: {
            const F16 positive = select(is_less(x, F16{}), F16{}, x);
            return positive * positive;
        }
        case PENSTOCK_SIGMOID:
            return sigmoid(x);
        case PENSTOCK_SOFTPLUS:
            return softplus(x);
        default:
            return x;
    }
}

// Which of the lowest 16 bits are set.
INLINE I16 are_set(int32_t bits) {
    return -((all_integers(bits) >> lanes()) & 1);
}

// Some numbers, with zeros beyond `count`.
INLINE F16 load_up_to(const float *from, int64_t count) {
    return count >= 16 ? load(from) : load_some(from, static_cast<int>(count));
}

INLINE void store_up_to(float *to, F16 x, int64_t count) {
    if (count >= 16)
        store(to, x);
    else
        store_some(to, x, static_cast<int>(count));
}

INLINE void store_bf16_up_to(uint8_t *to, F16 x, int64_t count) {
    if (count >= 16)
        store_bf16(to, to_bf16(x));
    else
        store_some_bf16(to, to_bf16(x), static_cast<int>(count));
}

}  // namespace
