// Which keys a token attends to where an indexer has chosen some of them: lists of places, that `choose` of indexer.h writes and attention
// reads. Included by attention.h.
#pragma once

#include "work.h"

namespace {

using penstock::AttentionArgs;
using penstock::Heads;

// A token that has chosen so few keys of a split attends to copies of them, one behind the other; else to the pages, with weights of 0
// between. That depends on nothing but its choice.
static_assert(kMostGathered % PENSTOCK_PAGE_TOKENS == 0 && kMostGathered <= kSplit);

// How many places of a list, ascending, are below `key`.
SEPARATE int places_below(const int32_t *list, int count, int64_t key) {
    int at = 0;
    while (count > 0) {
        const int half = count / 2;
        if (list[at + half] < key)
            at += half + 1, count -= half + 1;
        else
            count = half;
    }
    return at;
}

// Of some pages those that have keys of a list: how many, their numbers, and a bit for each key.
SEPARATE int choose_pages(const int32_t *list, int count, int64_t first_key, int *numbers, uint16_t *bits) {
    int pages = 0;
    for (int at = 0; at < count; at++) {
        const int key = static_cast<int>(list[at] - first_key), page = key / PENSTOCK_PAGE_TOKENS;
        if (pages == 0 || numbers[pages - 1] != page) numbers[pages] = page, bits[pages++] = 0;
        bits[pages - 1] |= static_cast<uint16_t>(1u << key % PENSTOCK_PAGE_TOKENS);
    }
    return pages;
}

// 16 numbers of 16 tokens, from values, in pairs of tokens, to keys, in pairs of numbers: 8 lines of 64 bytes each.
INLINE void values_to_keys(const uint8_t *values, uint8_t *keys) {
#if defined(__AVX512BW__)
    alignas(64) static constexpr uint16_t kPairs[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    alignas(64) static constexpr uint32_t kFour[2][16] = {
        {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27},
        {4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31}};
    alignas(64) static constexpr uint32_t kEight[2][16] = {
        {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23},
        {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31}};
    const __m512i pairs = _mm512_load_si512(kPairs);
    const __m512i four[2] = {_mm512_load_si512(kFour[0]), _mm512_load_si512(kFour[1])};
    const __m512i eight[2] = {_mm512_load_si512(kEight[0]), _mm512_load_si512(kEight[1])};
    __m512i two[8];  // of two tokens: all pairs of numbers of one, then of the other
    for (int i = 0; i < 8; i++) two[i] = _mm512_permutexvar_epi16(pairs, _mm512_loadu_si512(values + i * 64));
    for (int half = 0; half < 2; half++) {  // pairs of numbers
        __m512i of_four[4];
        for (int i = 0; i < 4; i++) of_four[i] = _mm512_permutex2var_epi32(two[2 * i], four[half], two[2 * i + 1]);
        for (int quarter = 0; quarter < 2; quarter++) {
            const __m512i low = _mm512_permutex2var_epi32(of_four[0], eight[quarter], of_four[1]),
                          high = _mm512_permutex2var_epi32(of_four[2], eight[quarter], of_four[3]);
            uint8_t *to = keys + (half * 4 + quarter * 2) * 64;
            _mm512_storeu_si512(to, _mm512_shuffle_i64x2(low, high, 0x44));
            _mm512_storeu_si512(to + 64, _mm512_shuffle_i64x2(low, high, 0xee));
        }
    }
#else
    const uint16_t *from = reinterpret_cast<const uint16_t *>(values);
    uint32_t *to = reinterpret_cast<uint32_t *>(keys);
    for (int pair = 0; pair < 8; pair++)
        for (int token = 0; token < PENSTOCK_PAGE_TOKENS; token++) {
            const uint16_t *at = from + token / 2 * 32 + pair * 4 + token % 2;
            to[pair * 16 + token] = at[0] | (uint32_t)at[2] << 16;
        }
#endif
}

// Copies of the keys of a list, which `page` has from `first_key` on, in bf16: whole pages in `memory`, zeros behind the last.
// `has_latents`: a key begins with its value. Returns the pages.
SEPARATE int gather_chosen(const Heads &heads, bool has_latents, const int32_t *list, int count, int64_t first_key,
                           const uint8_t *const *page, uint8_t *memory) {
    constexpr int kTokens = PENSTOCK_PAGE_TOKENS;
    const int columns = heads.value_dim / 16, known = has_latents ? heads.value_size / 16 : 0;
    for (int begin = 0; begin < count; begin += kTokens, memory += heads.head_bytes) {
        const uint8_t *keys[kTokens];
        int at[kTokens];
        const int some = static_cast<int>(least(kTokens, count - begin));
        for (int token = 0; token < some; token++) {
            const int key = static_cast<int>(list[begin + token] - first_key);
            keys[token] = page[key / kTokens], at[token] = key % kTokens;
        }
        uint8_t *values = memory + heads.value_offset;
        for (int token = 0; token < kTokens; token += 2) {
            const auto line = [&](int number) { return keys[number] + heads.value_offset + at[number] / 2 * 64; };
            const uint8_t *first = token < some ? line(token) : nullptr, *second = token + 1 < some ? line(token + 1) : nullptr;
            const int low = first ? at[token] % 2 * 16 : 0, high = second ? at[token + 1] % 2 * 16 : 0;
            for (int column = 0; column < columns; column++) {
                U16 both = {};
                if (first) both = load_as<U16>(first + column * 512) >> low & 0xffffu;
                if (second) both |= load_as<U16>(second + column * 512) >> high << 16;
                store_as(values + column * 512 + token * 32, both);
            }
        }
        for (int column = 0; column < known; column++) values_to_keys(values + column * 512, memory + column * 512);
        for (int pair = known * 8; pair < heads.key_dim / 2; pair++) {
            uint32_t *to = reinterpret_cast<uint32_t *>(memory + pair * 64);
            for (int token = 0; token < some; token++)
                to[token] = *reinterpret_cast<const uint32_t *>(keys[token] + pair * 64 + at[token] * 4);
            for (int token = some; token < kTokens; token++) to[token] = 0;
        }
    }
    return (count + kTokens - 1) / kTokens;
}

}  // namespace
