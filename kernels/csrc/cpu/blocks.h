// Blocks of neighbouring keys that a query attends to: one index key of each, which lies where the index key of its last token would, and
// lists of the keys of the blocks that score best. Included by kernels.cpp. penstock_kernels/chosen_blocks.py is the definition.
#pragma once

#include "indexer.h"

namespace {

using penstock::WriteBlocksArgs;

// Where the index key of a place of a row is: pairs of its numbers, a line apart.
INLINE uint8_t *index_key_at(const WriteBlocksArgs &args, const Row &row, int64_t place) {
    const int64_t page = row.pages[place / PENSTOCK_PAGE_TOKENS];
    return args.cache + page * args.heads.page_bytes + place % PENSTOCK_PAGE_TOKENS * 4;
}

SEPARATE void put_index_key(uint8_t *there, const uint16_t *key, int width) {
    for (int pair = 0; pair < width / 2; pair++)
        *reinterpret_cast<uint32_t *>(there + pair * 64) = key[2 * pair] | (uint32_t)key[2 * pair + 1] << 16;
}

// Normed by a weight, and the first numbers rotated by a position, to bf16.
SEPARATE void norm_and_rotate(const WriteBlocksArgs &args, const float *weight, int64_t position, float *x, uint16_t *to) {
    const int size = args.heads.head_dim;
    norm_by(weight, args.eps, size, x);
    rotate(x, args.rope_dim, args.cos + position * (args.rope_dim / 2), args.sin + position * (args.rope_dim / 2));
    shorten(x, size, args.heads.key_dim, 1.0f, to);
}

// Queries, and what each token has of its block's key.
void write_blocks(const WriteBlocksArgs &args, const Work &work) {
    const Heads &heads = args.heads;
    const int size = heads.head_dim, width = heads.key_dim;
    float *x = reinterpret_cast<float *>(work.scratch);
    uint16_t *key = reinterpret_cast<uint16_t *>(x + width);
    for (int64_t token; (token = take(work, 1)) < args.tokens;) {
        const auto *from = reinterpret_cast<const float *>(args.source + token * args.source_bytes);
        const auto copied = [&](const float *numbers) {
            for (int at = 0; at < size; at += 16) store_up_to(x + at, load_up_to(numbers + at, size - at), size - at);
        };
        for (int head = 0; head < heads.group; head++) {
            copied(from + head * size);
            norm_and_rotate(args, args.query_weight, args.token_positions[token], x,
                            reinterpret_cast<uint16_t *>(args.queries + (token * heads.group + head) * width * 2));
        }
        copied(from + heads.group * size);
        shorten(x, size, width, 1.0f, key);
        const Row &row = args.rows[args.token_rows[token]];
        put_index_key(index_key_at(args, row, args.token_positions[token]), key, width);
    }
}

// Of blocks that are complete now the key, from what all their tokens have, in the place of the last.
void complete_blocks(const WriteBlocksArgs &args, const Work &work) {
    const int size = args.heads.head_dim, width = args.heads.key_dim;
    float *x = reinterpret_cast<float *>(work.scratch);
    uint16_t *key = reinterpret_cast<uint16_t *>(x + width);
    each_row(args.tokens, work, [&](int64_t token) {
        const int64_t position = args.token_positions[token];
        if ((position + 1) % args.block) return;
        const Row &row = args.rows[args.token_rows[token]];
        for (int i = 0; i < size; i++) {
            float sum = 0.0f;
            for (int at = args.block - 1; at >= 0; at--) {
                const uint8_t *held = index_key_at(args, row, position - at) + i / 2 * 64 + i % 2 * 2;
                sum += from_bf16(H16{} + *reinterpret_cast<const uint16_t *>(held))[0];
            }
            x[i] = sum / static_cast<float>(args.block);
        }
        for (int at = 0; at < size; at += 16)
            store_up_to(x + at, from_bf16(to_bf16(load_up_to(x + at, size - at))), size - at);
        norm_and_rotate(args, args.key_weight, position + 1 - args.block, x, key);
        put_index_key(index_key_at(args, row, position), key, width);
    });
}

}  // namespace
