// Blocks of keys that each key head chooses for itself: an index head scores every key, the best of a block scores for the block, and the
// latest blocks are always taken. Included by kernels.cpp. penstock_kernels/chosen_head_blocks.py is the definition.
#pragma once

#include "indexer.h"

namespace {

constexpr uint32_t kInfinite = 0xff800000u;  // what `in_order` makes of it

// Of each head and each of a token's keys in some pages a whole number, in the order of their scores.
SEPARATE void score_for_heads(const ChooseArgs &args, int64_t token, int64_t begin, int64_t end, const IndexScratch &s,
                              int *configured, float *scores) {
    const Heads &heads = args.heads;
    const Row &row = args.rows[args.token_rows[token]];
    const uint8_t *queries = args.queries + token * heads.group * heads.key_dim * 2;
    const int64_t of_head = args.score_step / heads.group;
    for (int64_t first = begin; first < end; first += kPagesInSplit) {
        const int pages = static_cast<int>(least(kPagesInSplit, end - first));
        const uint8_t *page[kPagesInSplit];
        for (int i = 0; i < pages; i++) page[i] = args.cache + row.pages[first + i] * heads.page_bytes;
        if (row.moves) follow_path(heads, args.cache, row, 0, first, pages, s.path, page);
        for (int i = 0; i < pages; i += kMostTiles) {
            const int some = static_cast<int>(least(kMostTiles, pages - i));
            for (int next = i + some; next < least(i + some + kMostTiles, pages); next++) fetch_near(page[next], heads.head_bytes);
            for (int head = 0; head < heads.group; head += kQueries) {
                const int count = static_cast<int>(least(kQueries, heads.group - head));
                if (count != *configured) configure_attention(*configured = count);
                product(queries + head * heads.key_dim * 2, heads.key_dim * 2, count, page + i, some,
                        heads.key_dim / PENSTOCK_TILE_INPUTS, kOfAttention, 0, s.products);
                for (int at = 0; at < some; at++)
                    for (int one = 0; one < count; one++)
                        store(scores + (head + one) * of_head + (first + i + at) * 16,
                              (F16)in_order(load(s.products + at * kBlockFloats + one * 16)));
            }
        }
    }
}

// The keys of a head's blocks, ascending. `order`: of each key that the token sees; of each block afterwards.
SEPARATE void choose_head_blocks(const ChooseArgs &args, int64_t seen, uint32_t *order, uint32_t *histogram, int32_t *list) {
    const int64_t block = args.block, count = (seen + block - 1) / block;
    const int columns = args.most * args.block;
    for (int64_t number = 0; number < count; number++) {
        uint32_t best = 0;
        for (int64_t at = number * block; at < least((number + 1) * block, seen); at++) best = order[at] > best ? order[at] : best;
        order[number] = number < count - args.latest ? best : kInfinite;
    }
    // At the end of the list, where each is read before its keys are written there.
    int32_t *blocks = list + columns - args.most;
    take_largest(order, count, args.most, histogram, blocks);
    int made = 0;
    for (int i = 0; i < args.most; i++) {
        const int64_t first = blocks[i] * block, end = least(first + block, seen);
        for (int64_t key = first; key < end; key++) list[made++] = static_cast<int32_t>(key);
    }
    while (made < columns) list[made++] = INT32_MAX;  // of the token's own block, what is behind it
}

// As `score` of indexer.h.
void score_heads(const ChooseArgs &args, const Work &work) {
    const IndexScratch s = index_scratch_of(work);
    int configured = 0;
    for (int64_t number; (number = take(work, 1)) < args.count * args.splits;) {
        const int64_t token = args.tokens[number / args.splits], first = number % args.splits * kPagesInSplit;
        const int64_t pages = (args.token_positions[token] + PENSTOCK_PAGE_TOKENS) / PENSTOCK_PAGE_TOKENS;
        if (first < pages)
            score_for_heads(args, token, first, least(first + kPagesInSplit, pages), s, &configured,
                            args.scores + number / args.splits * args.score_step);
    }
}

// Behind it where it was there; a token's heads are then shared, too.
void choose_for_heads(const ChooseArgs &args, const Work &work) {
    const IndexScratch s = index_scratch_of(work);
    const int heads = args.heads.group, together = args.splits ? 1 : heads;
    const int64_t of_head = args.score_step / heads;
    int configured = 0;
    for (int64_t number; (number = take(work, 1)) < args.count * heads / together;) {
        const int64_t at = number * together / heads, token = args.tokens[at], seen = args.token_positions[token] + 1;
        const int first = static_cast<int>(number * together % heads);
        float *scores = args.scores + (args.splits ? at : work.member) * args.score_step;
        if (!args.splits)
            score_for_heads(args, token, 0, (seen + PENSTOCK_PAGE_TOKENS - 1) / PENSTOCK_PAGE_TOKENS, s, &configured, scores);
        for (int head = first; head < first + together; head++)
            choose_head_blocks(args, seen, reinterpret_cast<uint32_t *>(scores + head * of_head), s.histogram,
                               chosen_of(args, token) + head * args.most * args.block);
    }
}

}  // namespace
