// Attention to the last tokens and to entries that stand for several each, and what makes entries. Keys of the window, and what entries
// that are not finished are made of, are states; an entry is a row of the cache's pages, in bf16, with its index key at the end. Included by
// kernels.cpp. DeepSeek-AI, "DeepSeek-V4", 2026, section 2.3; penstock_kernels/compressed_keys.py is the definition.
#pragma once

#include "indexer.h"
#include "recurrence.h"

namespace {

using penstock::CompressedArgs;
using penstock::KeepArgs;
using penstock::Past;
using penstock::PoolArgs;
using penstock::TurnArgs;

// A head in fp32, normed by itself, and its last numbers rotated, to bf16. `x` is memory for the numbers in between.
SEPARATE void turn_head(const TurnArgs &args, const float *from, int64_t position, float *x, uint16_t *to) {
    float mean, factor;
    statistics(from, args.size, args.norm, args.eps, &mean, &factor);
    for (int at = 0; at < args.size; at += 16) {
        const int count = args.size - at;
        F16 y = load_up_to(from + at, count) * factor;
        if (args.weight) y = y * load_up_to(args.weight + at, count);
        store(x + at, y);
    }
    const int half = args.rope_dim / 2;
    rotate(x + args.size - args.rope_dim, args.rope_dim, args.cos + position * half, args.sin + position * half);
    shorten(x, args.size, args.padded, 1.0f, to);
}

// Heads in fp32, each normed by itself, and its last numbers rotated, to bf16.
void turn(const TurnArgs &args, const Work &work) {
    float *x = reinterpret_cast<float *>(work.scratch);
    const int64_t count = args.tokens * args.heads, at_once = share(count, work);
    for (int64_t first; (first = take(work, at_once)) < count;)
        for (int64_t item = first; item < least(first + at_once, count); item++) {
            const int64_t token = item / args.heads, head = item % args.heads;
            const auto *from = reinterpret_cast<const float *>(args.source + token * args.source_bytes) + head * args.size;
            turn_head(args, from, args.token_positions[token], x,
                      reinterpret_cast<uint16_t *>(args.target + token * args.target_bytes + head * args.head_bytes));
        }
}

// ---- what is kept of tokens ----

// The numbers of the token that is so many before one: of the step, or of the state.
INLINE const uint16_t *past_of(const Past &past, int64_t token, int64_t before) {
    const StateRow &row = past.rows[past.token_rows[token]];
    const int64_t at = token - row.first_token - before;
    const uint8_t *found = at >= 0 ? past.source + (row.first_token + at) * past.source_bytes
                                   : past.states.places + row.place * past.states.place_bytes +
                                         (past.kept + at) * past.numbers * 2;
    return reinterpret_cast<const uint16_t *>(found);
}

constexpr int kNumbersAtOnce = 256;  // of a token, that a thread keeps

// Some numbers of the last tokens up to the one that is `count` behind the row's first, to a place. Of the row's own place each comes
// from further behind, and from the first on.
SEPARATE void keep_some(const Past &past, const StateRow &row, int64_t count, int64_t place, int first, int numbers) {
    for (int64_t at = 0; at < past.kept; at++) {
        const int64_t from = count - past.kept + at;
        const uint8_t *found = from >= 0 ? past.source + (row.first_token + from) * past.source_bytes
                                         : past.states.places + row.place * past.states.place_bytes +
                                               (past.kept + from) * past.numbers * 2;
        uint8_t *to = past.states.places + place * past.states.place_bytes + at * past.numbers * 2;
        __builtin_memcpy(to + first * 2, found + first * 2, static_cast<size_t>(numbers) * 2);
    }
}

void keep(const KeepArgs &args, const Work &work) {
    const Past &past = args.past;
    const int64_t parts = (past.numbers + kNumbersAtOnce - 1) / kNumbersAtOnce;
    for (int64_t item; (item = take(work, 1)) < args.row_count * parts;) {
        const StateRow &row = past.rows[item / parts];
        const int first = static_cast<int>(item % parts) * kNumbersAtOnce;
        const int numbers = static_cast<int>(least(kNumbersAtOnce, past.numbers - first));
        for (int64_t save = 0; save < row.save_count; save++)
            keep_some(past, row, row.saves[save * 3 + 1], row.saves[save * 3 + 2], first, numbers);
        keep_some(past, row, row.count, row.place, first, numbers);
    }
}

// ---- entries ----

// Up to 16 numbers of an entry: of each the sum over tokens, weighted by the softmax of its gates over them.
SEPARATE F16 pooled(const PoolArgs &args, int64_t token, int first_token, int at) {
    const int count = static_cast<int>(least(16, args.turn.size - at)), reads = args.rate * args.series;
    const auto column = [&](int of) { return args.first + (args.series > 1 && of >= args.rate ? args.turn.size : 0) + at; };
    const auto score = [&](int of, const uint16_t *numbers) {
        const auto *gate = reinterpret_cast<const uint8_t *>(numbers + column(of) + args.series * args.turn.size);
        return load_short_up_to(gate, count) + load_up_to(args.bias + (int64_t)of * args.turn.size + at, count);
    };
    F16 largest = all(-__builtin_inff());
    for (int of = first_token; of < reads; of++)
        largest = maximum(score(of, past_of(args.past, token, reads - 1 - of)), largest);
    F16 total = {}, sum = {};
    for (int of = first_token; of < reads; of++) {
        const uint16_t *numbers = past_of(args.past, token, reads - 1 - of);
        const F16 weight = exponential(score(of, numbers) - largest);
        total += weight;
        sum += weight * load_short_up_to(reinterpret_cast<const uint8_t *>(numbers + column(of)), count);
    }
    return sum / total;
}

// Entries whose last token is in the step.
void pool(const PoolArgs &args, const Work &work) {
    float *x = reinterpret_cast<float *>(work.scratch);
    uint16_t *made = reinterpret_cast<uint16_t *>(x + args.turn.size + 32);
    for (int64_t token; (token = take(work, 1)) < args.turn.tokens;) {
        const int64_t position = args.turn.token_positions[token], entry = position / args.rate;
        if ((position + 1) % args.rate) continue;
        // Of the first entry nothing is before it.
        const int first_token = args.series > 1 && entry == 0 ? args.rate : 0;
        for (int at = 0; at < args.turn.size; at += 16) store(x + at, pooled(args, token, first_token, at));
        turn_head(args.turn, x, entry * args.rate, x, made);
        const Row &row = args.rows[args.past.token_rows[token]];
        uint8_t *to = entry_at(args.cache, args.page_bytes, row, args.rate, args.entry_rows, entry) + args.offset;
        __builtin_memcpy(to, made, static_cast<size_t>(args.turn.size) * 2);
    }
}

// ---- attention ----

// Copies of rows as pages have keys that are their values, zeros behind the last. Returns the pages.
SEPARATE int gather_rows(const Heads &heads, const uint16_t *const *rows, int count, uint8_t *memory) {
    constexpr int kTokens = PENSTOCK_PAGE_TOKENS;
    const int columns = heads.value_dim / 16;
    for (int begin = 0; begin < count; begin += kTokens, memory += heads.head_bytes) {
        uint8_t *values = memory + heads.value_offset;
        for (int token = 0; token < kTokens; token += 2) {
            const uint16_t *first = begin + token < count ? rows[begin + token] : nullptr;
            const uint16_t *second = begin + token + 1 < count ? rows[begin + token + 1] : nullptr;
            for (int column = 0; column < columns; column++)
                store_as(values + column * 512 + token * 32, both_of(first, second, column * 16, heads.head_dim));
        }
        for (int column = 0; column < columns; column++) values_to_keys(values + column * 512, memory + column * 512);
        for (int pair = columns * 8; pair < heads.key_dim / 2; pair++)
            store_as(memory + pair * 64, U16{});
    }
    return (count + kTokens - 1) / kTokens;
}

// What a query was given, rotated back by its position, so that what is left says how far values are from it.
SEPARATE void write_turned(const CompressedArgs &args, int64_t token, int head, float largest, float total, const float *sums,
                           float *x) {
    const int size = args.heads.head_dim, half = args.rope_dim / 2;
    const float sink = args.sinks[head], both = largest > sink ? largest : sink;
    const F16 factors = exponential(F16{largest - both, sink - both});
    const float factor = factors[0] / (total * factors[0] + factors[1]);
    for (int at = 0; at < size; at += 16) store(x + at, load(sums + at) * factor);
    const int64_t first = args.token_positions[token] * half;
    float *turned = x + size - args.rope_dim;
    for (int i = 0; i < half; i++) {
        const float a = turned[i], b = turned[i + half], cos = args.cos[first + i], sin = args.sin[first + i];
        turned[i] = a * cos + b * sin;
        turned[i + half] = b * cos - a * sin;
    }
    uint8_t *to = args.target + token * args.target_bytes + (int64_t)head * size * 2;
    for (int at = 0; at < size; at += 16) store_bf16_up_to(to + at * 2, load(x + at), size - at);
}

// Up to kQueries heads of a token, over the keys that it sees: those of the window, then entries, each block copied.
SEPARATE void attend_compressed(const CompressedArgs &args, const AttentionArgs &of, int64_t token, int first_head, int queries,
                                const AttentionScratch &s) {
    const Heads &heads = args.heads;
    const int64_t position = args.token_positions[token];
    const Row &row = args.rows[args.near.token_rows[token]];
    const int64_t near = least(args.window, position + 1);
    int64_t entries = args.rate ? (position + 1) / args.rate : 0;
    const int32_t *list = nullptr;
    if (args.chosen && entries > args.most)
        list = reinterpret_cast<const int32_t *>(args.chosen + token * args.chosen_bytes), entries = args.most;
    const uint8_t *q = args.queries + (token * heads.group + first_head) * heads.key_dim * 2;
    const int columns = heads.value_dim / 16;
    float largest[kQueries] = {}, total[kQueries] = {};
    for (int64_t begin = 0; begin < near + entries; begin += kMostGathered) {
        const int count = static_cast<int>(least(kMostGathered, near + entries - begin));
        const uint16_t *rows[kMostGathered];
        for (int i = 0; i < count; i++) {
            const int64_t key = begin + i;
            if (key < near)
                rows[i] = past_of(args.near, token, near - 1 - key);
            else
                rows[i] = reinterpret_cast<const uint16_t *>(entry_at(args.cache, args.page_bytes, row, args.rate, args.entry_rows,
                                                                      list ? list[key - near] : key - near));
        }
        const int pages = gather_rows(heads, rows, count, s.gathered);
        const uint8_t *page[kMostGathered / PENSTOCK_PAGE_TOKENS];
        int numbers[kMostGathered / PENSTOCK_PAGE_TOKENS];
        uint16_t there[kMostGathered / PENSTOCK_PAGE_TOKENS];
        for (int i = 0; i < pages; i++) page[i] = s.gathered + i * heads.head_bytes, numbers[i] = i, there[i] = 0xffff;
        if (count % PENSTOCK_PAGE_TOKENS) there[pages - 1] = static_cast<uint16_t>((1u << count % PENSTOCK_PAGE_TOKENS) - 1);
        for (int i = 0; i < pages; i += kMostTiles)
            product(q, heads.key_dim * 2, queries, page + i, static_cast<int>(least(kMostTiles, pages - i)),
                    heads.key_dim / PENSTOCK_TILE_INPUTS, kOfAttention, 0, s.scores + i * kBlockFloats);
        float block_largest[kQueries], block_total[kQueries];
        for (int i = 0; i < queries; i++)
            soften(of, first_head + i, s.scores + i * 16, s.weights + i * kWeightBytes, page, pages, numbers, there, 0, 0, kSplit, kSplit,
                   &block_largest[i], &block_total[i]);
        for (int column = 0; column < columns; column += kMostTiles) {
            const int some = static_cast<int>(least(kMostTiles, columns - column));
            product_with_values(s.weights, kWeightBytes, queries, page, pages, some, heads.value_offset + column * 512, 0,
                                s.values);
            for (int i = 0; i < queries; i++) {
                // Each group of columns is joined with the same numbers.
                float so_far = largest[i], so_much = total[i];
                join(&so_far, &so_much, s.sums + i * heads.value_dim + column * 16, block_largest[i], block_total[i],
                     s.values + i * 16, kBlockFloats, some * 16);
                if (column + kMostTiles >= columns) largest[i] = so_far, total[i] = so_much;
            }
        }
    }
    for (int i = 0; i < queries; i++)
        write_turned(args, token, first_head + i, largest[i], total[i], s.sums + i * heads.value_dim,
                     reinterpret_cast<float *>(s.page));
}

void compressed_attention(const CompressedArgs &args, const Work &work) {
    AttentionArgs of = {};
    of.heads = args.heads, of.scale = args.scale;
    const AttentionScratch s = scratch_of(of, work);
    const int tiles = (args.heads.group + kQueries - 1) / kQueries;
    int configured = 0;
    for (int64_t item; (item = take(work, 1)) < args.tokens * tiles;) {
        const int first = static_cast<int>(item % tiles) * kQueries;
        const int queries = static_cast<int>(least(kQueries, args.heads.group - first));
        if (queries != configured) configure_attention(configured = queries);
        attend_compressed(args, of, item / tiles, first, queries, s);
    }
}

}  // namespace
