// What chooses the keys that a query attends to: keys of an index behind a page's keys and values, scores by small heads, and of each
// token those that score best. Included by kernels.cpp. DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025, section 2 (the "lightning indexer");
// penstock_kernels/chosen_keys.py is the definition.
#pragma once

#include "entries.h"

namespace {

using penstock::WriteIndexArgs;

// Over the root of the mean square, times a weight.
SEPARATE void norm_by(const float *weight, float eps, int size, float *x) {
    const float factor = 1.0f / __builtin_sqrtf(squares(x, size, 0.0f) / static_cast<float>(size) + eps);
    for (int at = 0; at < size; at += 16)
        store_up_to(x + at, load_up_to(x + at, size - at) * factor * load_up_to(weight + at, size - at), size - at);
}

void write_index(const WriteIndexArgs &args, const Work &work) {
    const Heads &heads = args.heads;
    const int size = heads.head_dim, width = heads.key_dim, rope = args.rope_dim;
    float *x = reinterpret_cast<float *>(work.scratch);
    uint16_t *key = reinterpret_cast<uint16_t *>(x + width);
    for (int64_t token; (token = take(work, 1)) < args.tokens;) {
        const int64_t position = args.token_positions[token];
        const float *cos = args.cos ? args.cos + position * (rope / 2) : nullptr;
        const float *sin = args.sin ? args.sin + position * (rope / 2) : nullptr;
        const auto turned = [&](const float *from, const float *weight, uint16_t *to) {
            for (int at = 0; at < size; at += 16) store_up_to(x + at, load_up_to(from + at, size - at), size - at);
            if (weight) norm_by(weight, args.eps, size, x);
            if (cos) rotate(x, rope, cos, sin);
            shorten(x, size, width, 1.0f, to);
        };
        const float *asked = reinterpret_cast<const float *>(args.asked + token * args.asked_bytes);
        for (int head = 0; head < heads.group; head++)
            turned(asked + head * size, args.query_weight,
                   reinterpret_cast<uint16_t *>(args.queries + (token * heads.group + head) * width * 2));
        turned(reinterpret_cast<const float *>(args.source + token * args.source_bytes), args.key_weight, key);
        const int64_t place = args.token_places[token];
        const int64_t page = args.rows[args.token_rows[token]].pages[place / PENSTOCK_PAGE_TOKENS];
        uint8_t *there = args.cache + page * heads.page_bytes + place % PENSTOCK_PAGE_TOKENS * 4;
        for (int pair = 0; pair < width / 2; pair++)
            *reinterpret_cast<uint32_t *>(there + pair * 64) = key[2 * pair] | (uint32_t)key[2 * pair + 1] << 16;
    }
}

// Of the key of each score a whole number: the larger the score, the larger it is. -0 is 0, and what is no number is the largest.
INLINE I16 in_order(F16 x) {
    const I16 bits = select(is_same(x, F16{}), I16{}, (I16)x);
    const I16 made = select(is_above(I16{}, bits), ~bits, bits | (all_integers(INT32_MIN)));
    return select(is_same(x, x), made, I16{} - 1);
}

struct IndexScratch {
    float *products;      // kMostTiles blocks
    float *weights;       // of heads
    uint32_t *histogram;  // kBuckets
    uint8_t *path;        // kPathPages pages of index keys
};

constexpr int kBuckets = 1 << 11;

INLINE IndexScratch index_scratch_of(const Work &work) {
    uint8_t *at = work.scratch;
    float *floats = reinterpret_cast<float *>(at);
    return {floats, floats + kMostTiles * kBlockFloats, reinterpret_cast<uint32_t *>(at + 8 * 1024), at + 16 * 1024};
}

// Scores of the keys of some pages, 16 of each: sum over heads, in their order, of weight relu(query key).
SEPARATE void score_pages(const Heads &heads, const uint8_t *queries, const float *weights, const uint8_t *const *pages, int count,
                          float *products, int *configured, float *scores) {
    F16 sums[kMostTiles] = {};
    for (int first = 0; first < heads.group; first += kQueries) {
        const int rows = static_cast<int>(least(kQueries, heads.group - first));
        if (rows != *configured) configure_attention(*configured = rows);
        product(queries + first * heads.key_dim * 2, heads.key_dim * 2, rows, pages, count, heads.key_dim / PENSTOCK_TILE_INPUTS,
                kOfAttention, 0, products);
        for (int page = 0; page < count; page++)
            for (int row = 0; row < rows; row++) {
                const F16 x = load(products + page * kBlockFloats + row * 16);
                sums[page] += select(is_less(x, F16{}), F16{}, x) * weights[first + row];
            }
    }
    for (int page = 0; page < count; page++) store(scores + page * 16, sums[page]);
}

// How many keys a token sees.
INLINE int64_t seen_by(const ChooseArgs &args, int64_t token) {
    const int64_t position = args.token_positions[token];
    return args.rate ? (position + 1) / args.rate : args.block ? (position + 1) / args.block : position + 1;
}

// Copies of the index keys of blocks from `begin` on, 16 to a page: each is in the place of the last of its tokens.
SEPARATE void gather_blocks(const ChooseArgs &args, const Row &row, int64_t begin, int64_t end, uint8_t *memory) {
    for (; begin < end; begin += PENSTOCK_PAGE_TOKENS, memory += args.heads.head_bytes)
        for (int i = 0; i < PENSTOCK_PAGE_TOKENS; i++) {
            const int64_t place = (begin + i + 1) * args.block - 1;
            const bool is_there = begin + i < end;
            const uint8_t *from = is_there ? args.cache + row.pages[place / PENSTOCK_PAGE_TOKENS] * args.heads.page_bytes +
                                                 place % PENSTOCK_PAGE_TOKENS * 4
                                           : nullptr;
            for (int pair = 0; pair < args.heads.key_dim / 2; pair++)
                *reinterpret_cast<uint32_t *>(memory + pair * 64 + i * 4) =
                    is_there ? *reinterpret_cast<const uint32_t *>(from + pair * 64) : 0;
        }
}

// From blocks, ascending, to their keys, and those behind the last block; what is left of the list is beyond all keys.
SEPARATE void spread_blocks(const ChooseArgs &args, int64_t position, const int32_t *blocks, int32_t *list) {
    int made = 0;
    for (int i = 0; i < args.most; i++) {
        const int32_t first = blocks[i] * args.block;
        for (int at = 0; at < args.block; at++) list[made++] = first + at;
    }
    for (int64_t key = (position + 1) / args.block * args.block; key <= position; key++) list[made++] = static_cast<int32_t>(key);
    for (const int end = (args.most + 1) * args.block - 1; made < end;) list[made++] = INT32_MAX;
}

// Scores of a token's keys in some pages of its row, into those of all its keys. Of entries and blocks a page is 16 of them, copied.
SEPARATE void score_keys(const ChooseArgs &args, int64_t token, int64_t begin, int64_t end, const IndexScratch &s, int *configured,
                         float *scores) {
    const Heads &heads = args.heads;
    const Row &row = args.rows[args.token_rows[token]];
    const uint8_t *queries = args.queries + token * heads.group * heads.key_dim * 2;
    const float *weights = reinterpret_cast<const float *>(args.weights + token * args.weights_bytes);
    for (int head = 0; head < heads.group; head++) s.weights[head] = args.block ? 1.0f : weights[head] * args.scale;
    for (int64_t first = begin; first < end; first += kPagesInSplit) {
        const int pages = static_cast<int>(least(kPagesInSplit, end - first));
        const uint8_t *page[kPagesInSplit];
        const bool is_copied = args.rate || args.block;
        if (!is_copied)
            for (int i = 0; i < pages; i++) page[i] = args.cache + row.pages[first + i] * heads.page_bytes;
        if (row.moves && !is_copied) follow_path(heads, args.cache, row, 0, first, pages, s.path, page);
        for (int i = 0; i < pages; i += kMostTiles) {
            const int some = static_cast<int>(least(kMostTiles, pages - i));
            if (is_copied) {
                for (int at = 0; at < some; at++) page[i + at] = s.path + at * heads.head_bytes;
                const int64_t last = least((first + i + some) * 16, seen_by(args, token));
                if (args.rate)
                    gather_keys(args, row, (first + i) * 16, last, s.path);
                else
                    gather_blocks(args, row, (first + i) * 16, last, s.path);
                score_pages(heads, queries, s.weights, page + i, some, s.products, configured, scores + (first + i) * 16);
                continue;
            }
            for (int next = i + some; next < least(i + some + kMostTiles, pages); next++) fetch_near(page[next], heads.head_bytes);
            score_pages(heads, queries, s.weights, page + i, some, s.products, configured, scores + (first + i) * 16);
        }
    }
}

// The places of the `most` largest of more whole numbers, ascending; equal ones go to the earlier place. The smallest that is taken is
// found by its bits, 11 at a time.
SEPARATE void take_largest(const uint32_t *order, int64_t count, int most, uint32_t *histogram, int32_t *chosen) {
    uint32_t smallest = 0, known = 0;  // of the smallest that is taken, these bits
    int64_t left = most;               // to be taken of those that have them
    for (int shift = 21; shift >= 0; shift -= shift > 10 ? 11 : 10) {
        const int bits = shift ? 11 : 10;
        for (int bucket = 0; bucket < 1 << bits; bucket++) histogram[bucket] = 0;
        for (int64_t at = 0; at < count; at++)
            if ((order[at] & known) == smallest) histogram[order[at] >> shift & ((1u << bits) - 1)]++;
        uint32_t bucket = (1u << bits) - 1;
        while (histogram[bucket] < left) left -= histogram[bucket--];
        smallest |= bucket << shift, known |= ((1u << bits) - 1) << shift;
    }
    int64_t made = 0;
    for (int64_t at = 0; at < count && made < most; at++) {
        const bool is_equal = order[at] == smallest && left > 0;
        left -= is_equal;
        chosen[made] = static_cast<int32_t>(at);
        made += is_equal || order[at] > smallest;
    }
}

// The same of scores, which become whole numbers.
SEPARATE void choose_best(float *scores, int64_t count, int most, uint32_t *histogram, int32_t *chosen) {
    for (int64_t at = 0; at < count; at += 16) *reinterpret_cast<I16 *>(scores + at) = in_order(load(scores + at));
    take_largest(reinterpret_cast<const uint32_t *>(scores), count, most, histogram, chosen);
}

INLINE int32_t *chosen_of(const ChooseArgs &args, int64_t token) {
    return reinterpret_cast<int32_t *>(args.target + token * args.target_bytes);
}

// Where few tokens choose, several threads score a token's keys, a split each. `choose` follows behind a barrier.
void score(const ChooseArgs &args, const Work &work) {
    const IndexScratch s = index_scratch_of(work);
    int configured = 0;
    for (int64_t number; (number = take(work, 1)) < args.count * args.splits;) {
        const int64_t token = args.tokens[number / args.splits], first = number % args.splits * kPagesInSplit;
        const int64_t pages = (seen_by(args, token) + PENSTOCK_PAGE_TOKENS - 1) / PENSTOCK_PAGE_TOKENS;
        if (first < pages)
            score_keys(args, token, first, least(first + kPagesInSplit, pages), s, &configured,
                       args.scores + number / args.splits * args.score_step);
    }
}

void choose(const ChooseArgs &args, const Work &work) {
    const IndexScratch s = index_scratch_of(work);
    int configured = 0;
    for (int64_t number; (number = take(work, 1)) < args.count;) {
        const int64_t token = args.tokens[number], seen = seen_by(args, token);
        float *scores = args.scores + (args.splits ? number : work.member) * args.score_step;
        if (!args.splits)
            score_keys(args, token, 0, (seen + PENSTOCK_PAGE_TOKENS - 1) / PENSTOCK_PAGE_TOKENS, s, &configured, scores);
        if (args.block) {
            // At the end of the list, where each is read before its keys are written there.
            int32_t *blocks = chosen_of(args, token) + (args.most + 1) * args.block - 1 - args.most;
            choose_best(scores, seen, args.most, s.histogram, blocks);
            spread_blocks(args, args.token_positions[token], blocks, chosen_of(args, token));
        } else {
            choose_best(scores, seen, args.most, s.histogram, chosen_of(args, token));
        }
    }
}

}  // namespace
