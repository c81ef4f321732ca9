// Entries of the cache that stand for several tokens each: rows of bf16 in its pages, which are copied into tiles. Included by indexer.h and
// compressed.h.
#pragma once

#include "attention.h"

namespace {

using penstock::ChooseArgs;

// Where an entry is that stands for `rate` tokens: in the place of the last of them, which has a row of `entry_rows` tokens for it.
INLINE uint8_t *entry_at(uint8_t *cache, int64_t page_bytes, const Row &row, int rate, int entry_rows, int64_t entry) {
    const int64_t last = (entry + 1) * rate - 1, row_bytes = page_bytes / PENSTOCK_PAGE_TOKENS * entry_rows;
    return cache + row.pages[last / PENSTOCK_PAGE_TOKENS] * page_bytes + last % PENSTOCK_PAGE_TOKENS / entry_rows * row_bytes;
}

// Of two rows in bf16 16 numbers each, in pairs as values are; a null one has zeros.
INLINE U16 both_of(const uint16_t *first, const uint16_t *second, int at, int size) {
    U16 both = {};
    if (first) both = widen(load_bf16_up_to(first + at, size - at));
    if (second) both |= widen(load_bf16_up_to(second + at, size - at)) << 16;
    return both;
}

// Of the index keys of up to 16 entries a page.
SEPARATE void gather_index(const Heads &heads, const uint16_t *const *rows, int count, uint8_t *memory) {
    for (int column = 0; column < heads.key_dim / 16; column++) {
        alignas(64) uint8_t values[512] = {};
        for (int token = 0; token < PENSTOCK_PAGE_TOKENS; token += 2) {
            const uint16_t *first = token < count ? rows[token] : nullptr;
            const uint16_t *second = token + 1 < count ? rows[token + 1] : nullptr;
            store_as(values + token * 32, both_of(first, second, column * 16, heads.head_dim));
        }
        values_to_keys(values, memory + column * 512);
    }
}

// Index keys of entries from `begin` on, 16 to a page.
SEPARATE void gather_keys(const ChooseArgs &args, const Row &row, int64_t begin, int64_t end, uint8_t *memory) {
    for (; begin < end; begin += PENSTOCK_PAGE_TOKENS, memory += args.heads.head_bytes) {
        const uint16_t *rows[PENSTOCK_PAGE_TOKENS];
        const int count = static_cast<int>(least(PENSTOCK_PAGE_TOKENS, end - begin));
        for (int i = 0; i < count; i++) {
            uint8_t *entry = entry_at(const_cast<uint8_t *>(args.cache), args.heads.page_bytes, row, args.rate, args.entry_rows, begin + i);
            rows[i] = reinterpret_cast<const uint16_t *>(entry + args.index_offset);
        }
        gather_index(args.heads, rows, count, memory);
    }
}

}  // namespace
