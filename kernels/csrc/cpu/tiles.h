// What products with tiles share: sizes, where tiles come from, how many rows are multiplied at once, and what is asked for ahead.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace {

using namespace penstock;

constexpr int kTileBytes = 1024;
constexpr int kMostTiles = 4;
constexpr int kBlockFloats = 256;  // a block: 16 rows x 16 outputs in fp32

// Tiles ahead in a stream of weights that are asked for while one is multiplied: with AMX in the first cache, with AVX-512
// in the second, whose processors read faster so (Zen 4).
#if defined(PENSTOCK_AVX512) && !defined(PENSTOCK_AMX)
constexpr int kAhead = 8;
#else
constexpr int kAhead = 4;
#endif

// Where tiles come from: weights that one block of rows needs, weights that many do, or keys, where registers are few.
enum Use { kOfStream, kOfCached, kOfAttention };

// What is multiplied: bf16 in pairs, into sums in fp32, or int8 in quads, into sums of 32 bits. A tile of either has 16
// groups of 64 bytes.
enum Numbers { kShorts, kBytes };

// Of bytes: VPDPBUSD and TDPBUSD multiply numbers without a sign by those with one. A number plus 128 is its byte with the
// highest bit turned over, and 128 times the sum of the weights is taken off in the end.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kIsTurned = true;
#else
constexpr bool kIsTurned = false;
#endif

// Tiles of int8 that have so many quads of inputs, and how many of them tile `k` has.
INLINE int tiles_of_quads(int quads) {
    return (quads + 15) / 16;
}

INLINE int quads_in(int k, int quads) {
    return quads - k * 16 < 16 ? quads - k * 16 : 16;
}

// Asks for memory in the first cache, or in the second.
INLINE void fetch_near(const uint8_t *from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(from + line, 0, 3);
}

INLINE void fetch_far(const uint8_t *from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(from + line, 0, 2);
}

// The tile that is `ahead` tiles behind tile `k` of a column, which has `tiles` of `bytes` each: beyond its end those of the
// column that is multiplied next, `step` bytes further.
INLINE const uint8_t *ahead_of(const uint8_t *column, int k, int tiles, long bytes, long step, int ahead = kAhead) {
    const int next = k + ahead;
    return column + next * bytes + (next < tiles ? 0 : step - tiles * bytes);
}

// In place of such a step: tiles are pages, and those a split further in their list are asked for.
constexpr long kNextPages = -1;

// What is asked for while tile `k` of column `i` is multiplied. `pages`: values, a column `offset` bytes into each, or none.
INLINE const uint8_t *next_of(const uint8_t *const *b, int i, int k, int k_tiles, long step, const uint8_t *const *pages,
                              long offset) {
    if (step != kNextPages) return ahead_of(b[i], k, k_tiles, kTileBytes, step);
    return pages ? pages[k + kPagesInSplit] + offset + i * (kTileBytes / 2)
                 : b[i + kPagesInSplit] + (long)k * kTileBytes;
}

// Rows whose sums with so many columns fit the registers.
#if defined(PENSTOCK_AMX)
template <int>
constexpr int kRowsAtOnce = 16;
#elif defined(PENSTOCK_AVX512)
template <int count>
constexpr int kRowsAtOnce = count > 2 ? 6 : 12;
#elif defined(PENSTOCK_I8MM)
template <int>
constexpr int kRowsAtOnce = 8;
#elif defined(__AVX2__) || defined(PENSTOCK_NEON)
template <int>
constexpr int kRowsAtOnce = 4;
#else
template <int>
constexpr int kRowsAtOnce = 2;
#endif

INLINE void fetch_ahead(const uint8_t *from, int64_t bytes) {
#if defined(PENSTOCK_AVX512) && !defined(PENSTOCK_AMX)
    fetch_far(from, bytes);
#else
    fetch_near(from, bytes);
#endif
}

INLINE void fetch_next(const uint8_t *from, int64_t bytes, long step) {
    if (step == kNextPages)
        fetch_far(from, bytes);
    else
        fetch_ahead(from, bytes);
}

}  // namespace
