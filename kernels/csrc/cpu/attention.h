// Queries, keys and values into their places, and attention over the pages of the cache. Included by kernels.cpp.
#pragma once

#include "cache_codes.h"
#include "chosen_keys.h"
#include "norms.h"

namespace {

SEPARATE void norm_head(const WriteKvArgs &args, bool normed, float mean, float factor, const float *weight,
                        const float *bias, float *x) {
    if (!normed) return;
    const int size = args.heads.head_dim;
    if (args.norm_over != PENSTOCK_OVER_ALL) statistics(x, size, args.norm, args.eps, &mean, &factor);
    for (int i = 0; i < size; i++)
        x[i] = (x[i] - mean) * factor * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
}

#if defined(PENSTOCK_AVX512)
// One head that is turned and nothing else, as `head_of` does it. Numbers stay in registers: its halves begin anywhere, and a load
// across two stores waits for both. Whole vectors are stored in the order of their places, and what is too much of one is
// overwritten by the next.
INLINE void turned_head(const float *from, const float *cos, const float *sin, int size, int rope, float scale, int width,
                        uint16_t *to) {
    const auto some = [](int count) { return static_cast<__mmask16>(count >= 16 ? 0xffff : (1 << count) - 1); };
    const int half = rope / 2;
    for (int upper = 0; upper < 2; upper++)
        for (int at = 0; at < half; at += 16) {
            const __mmask16 mask = some(half - at);
            const __m512 a = _mm512_maskz_loadu_ps(mask, from + at), b = _mm512_maskz_loadu_ps(mask, from + half + at);
            const __m512 c = _mm512_maskz_loadu_ps(mask, cos + at), s = _mm512_maskz_loadu_ps(mask, sin + at);
            const __m512 turned = upper ? _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s))
                                        : _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s));
            store_bf16(to + upper * half + at, to_bf16((F16)turned * scale));
        }
    for (int at = rope; at < width; at += 16) {
        const F16 x = at < size ? (F16)_mm512_maskz_loadu_ps(some(size - at), from + at) : F16{};
        _mm256_mask_storeu_epi16(to + at, some(width - at), (__m256i)to_bf16(x * scale));
    }
}
#endif

// One head, from (D,) fp32 to (width,) bf16 with zeros beyond D, times `scale`. `x` is memory for the numbers in between.
SEPARATE void head_of(const WriteKvArgs &args, const float *from, bool normed, float mean, float factor,
                      const float *weight, const float *bias, const float *cos, const float *sin, float scale, float *x,
                      int width, uint16_t *to) {
    const int size = args.heads.head_dim;
#if defined(PENSTOCK_AVX512)
    if (cos && !normed && args.clip == 0.0f) return turned_head(from, cos, sin, size, args.rope_dim, scale, width, to);
#endif
    for (int at = 0; at < width; at += 16)
        store(x + at, at + 16 <= size ? load(from + at) : at < size ? load_some(from + at, size - at) : F16{});
    if (args.clip != 0.0f)
        for (int at = 0; at < width; at += 16)
            store(x + at, maximum(minimum(load(x + at), all(args.clip)), all(-args.clip)));
    if (!args.norm_rotated) norm_head(args, normed, mean, factor, weight, bias, x);
    if (cos) {
        const int half = args.rope_dim / 2;
        for (int i = 0; i < half; i++) {
            const float a = x[i], b = x[i + half];
            x[i] = a * cos[i] - b * sin[i];
            x[i + half] = b * cos[i] + a * sin[i];
        }
    }
    if (args.norm_rotated) norm_head(args, normed, mean, factor, weight, bias, x);
    for (int at = 0; at < width; at += 16) store_bf16(to + at, to_bf16(load(x + at) * scale));
}

// A head's value, from (D,) fp32 to (width,) bf16 with zeros beyond D.
SEPARATE void value_of(const WriteKvArgs &args, const float *from, float *x, int width, uint16_t *to) {
    const int size = args.heads.head_dim;
    for (int at = 0; at < width; at += 16) {
        F16 some = at < size ? load_up_to(from + at, size - at) : F16{};
        if (args.clip != 0.0f) some = maximum(minimum(some, all(args.clip)), all(-args.clip));
        store(x + at, some);
    }
    float mean, factor;
    statistics(x, size, args.value_norm, args.value_eps, &mean, &factor);
    if (args.value_norm != PENSTOCK_NORM_NONE)
        for (int i = 0; i < size; i++) x[i] = (x[i] - mean) * factor;
    for (int at = 0; at < width; at += 16) store_bf16(to + at, to_bf16(load(x + at) * args.value_scale));
}

// Of a norm over all heads at once; clipped as the heads will be.
SEPARATE void statistics_over_all(const WriteKvArgs &args, const float *from, int width, float *copy, float *mean,
                                  float *factor) {
    if (args.clip == 0.0f) {
        statistics(from, width, args.norm, args.eps, mean, factor);
        return;
    }
    for (int i = 0; i < width; i++)
        copy[i] = from[i] > args.clip ? args.clip : from[i] < -args.clip ? -args.clip : from[i];
    statistics(copy, width, args.norm, args.eps, mean, factor);
}

void write_kv(const WriteKvArgs &args, const Work &work) {
    const Heads &heads = args.heads;
    const bool has_queries = args.values != PENSTOCK_VALUES_ALONE;
    const int size = heads.head_dim, all_queries = has_queries ? heads.group * heads.kv_heads : 0;
    float *x = reinterpret_cast<float *>(work.scratch);
    uint16_t *key = reinterpret_cast<uint16_t *>(x + heads.key_dim), *value = key + heads.key_dim;
    uint8_t *codes = reinterpret_cast<uint8_t *>(value + heads.value_dim);
    const bool normed = args.norm != PENSTOCK_NORM_NONE, over_all = normed && args.norm_over == PENSTOCK_OVER_ALL;
    const bool over_heads = args.norm_over != PENSTOCK_OVER_HEAD;  // a weight for each head
    const bool writes = args.values != PENSTOCK_VALUES_NONE;
    const int64_t at_once = share(args.tokens, work), parts = (args.tokens + at_once - 1) / at_once;
    for (int64_t item; (item = take(work, 1)) < parts * heads.kv_heads;) {
        const int head = static_cast<int>(item % heads.kv_heads);
        const int64_t begin = item / heads.kv_heads * at_once;
        for (int64_t token = begin; token < least(begin + at_once, args.tokens); token++) {
            const float *from = reinterpret_cast<const float *>(args.source + token * args.source_bytes);
            const float *keys = from + all_queries * size;
            const float *values = args.values == PENSTOCK_VALUES_KEYS ? keys : keys + heads.kv_heads * size;
            const int64_t position = args.token_positions[token];
            const float *cos = args.cos ? args.cos + position * (args.rope_dim / 2) : nullptr;
            const float *sin = args.sin ? args.sin + position * (args.rope_dim / 2) : nullptr;
            const float scale = args.query_factors ? args.query_factors[position] : 1.0f;
            float query_mean = 0, query_factor = 1, key_mean = 0, key_factor = 1;
            if (over_all) {
                // `copy` is behind what the heads need; only clipped models use it.
                float *copy = reinterpret_cast<float *>(work.scratch + 16 * 1024);
                statistics_over_all(args, from, all_queries * size, copy, &query_mean, &query_factor);
                if (writes) statistics_over_all(args, keys, heads.kv_heads * size, copy, &key_mean, &key_factor);
            }
            for (int g = 0; has_queries && g < heads.group; g++) {
                const int query = head * heads.group + g;
                const float *weight = args.query_norm ? args.query_norm + (over_heads ? query * size : 0) : nullptr;
                const float *bias = args.query_bias ? args.query_bias + (over_heads ? query * size : 0) : nullptr;
                uint8_t *to = args.queries + head * args.head_stride + (token * heads.group + g) * heads.key_dim * 2;
                head_of(args, from + query * size, normed, query_mean, query_factor, weight, bias, cos, sin, scale,
                        x, heads.key_dim, reinterpret_cast<uint16_t *>(to));
            }
            if (!writes) continue;
            const int64_t place = args.token_places[token];
            const int64_t page = args.rows[args.token_rows[token]].pages[place / PENSTOCK_PAGE_TOKENS];
            const int at = static_cast<int>(place % PENSTOCK_PAGE_TOKENS);
            uint8_t *there = args.cache + page * heads.page_bytes + head * heads.head_bytes;
            const float *weight = args.key_norm ? args.key_norm + (over_heads ? head * size : 0) : nullptr;
            const float *bias = args.key_bias ? args.key_bias + (over_heads ? head * size : 0) : nullptr;
            head_of(args, keys + head * size, normed, key_mean, key_factor, weight, bias, cos, sin, 1.0f, x,
                    heads.key_dim, key);
            value_of(args, values + head * size, x, heads.value_dim, value);
            put_token(heads, there, at, key, value, codes);
        }
    }
}

// ---- latents ----

// Rotates numbers whose halves are the coordinates of planes.
SEPARATE void rotate(float *x, int size, const float *cos, const float *sin) {
    const int half = size / 2;
    for (int i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

// `size` numbers behind those that are there already, zeros up to `width`, to bf16.
SEPARATE void shorten(float *x, int size, int width, float scale, uint16_t *to) {
    for (int at = size; at < width; at++) x[at] = 0.0f;
    for (int at = 0; at < width; at += 16) store_bf16(to + at, to_bf16(load(x + at) * scale));
}

void write_latent(const WriteLatentArgs &args, const Work &work) {
    const Heads &heads = args.heads;
    const int rank = heads.value_size, size = heads.head_dim, rope = args.rope_dim;
    float *x = reinterpret_cast<float *>(work.scratch);
    uint16_t *key = reinterpret_cast<uint16_t *>(x + heads.key_dim + 16), *value = key + heads.key_dim;
    uint8_t *codes = reinterpret_cast<uint8_t *>(value + heads.value_dim);
    for (int64_t token; (token = take(work, 1)) < args.tokens;) {
        const int64_t position = args.token_positions[token];
        const float *cos = args.cos ? args.cos + position * (rope / 2) : nullptr;
        const float *sin = args.sin ? args.sin + position * (rope / 2) : nullptr;
        const float scale = args.query_factors ? args.query_factors[position] : 1.0f;
        for (int head = 0; head < heads.group; head++) {
            const uint8_t *asked = args.source + token * args.source_bytes + (int64_t)head * rank * 2;
            const uint8_t *turned =
                args.rotated + token * args.rotated_bytes + ((int64_t)(head + 1) * args.query_size - rope) * 2;
            for (int at = 0; at < rank; at += 16) store(x + at, from_bf16(load_bf16(asked + at * 2)));
            for (int at = 0; at < rope; at += 16) store(x + rank + at, from_bf16(load_bf16(turned + at * 2)));
            if (cos) rotate(x + rank, rope, cos, sin);
            shorten(x, size, heads.key_dim, scale,
                    reinterpret_cast<uint16_t *>(args.queries + (token * heads.group + head) * heads.key_dim * 2));
        }
        const float *latent = reinterpret_cast<const float *>(args.latents + token * args.latents_bytes);
        for (int at = 0; at < size; at += 16) store_up_to(x + at, load_up_to(latent + at, size - at), size - at);
        if (cos) rotate(x + rank, rope, cos, sin);
        shorten(x, size, heads.key_dim, 1.0f, key);
        for (int i = 0; i < heads.value_dim; i++) value[i] = i < rank ? key[i] : 0;
        const int64_t place = args.token_places[token];
        const int64_t page = args.rows[args.token_rows[token]].pages[place / PENSTOCK_PAGE_TOKENS];
        put_token(heads, args.cache + page * heads.page_bytes, static_cast<int>(place % PENSTOCK_PAGE_TOKENS), key, value,
                  codes);
    }
}

// What is known of a query after some splits: the largest score, the sum of exponentials relative to it, and the sum of
// values (value_dim). A split adds its own. `total` 0: no key was seen yet, or none in the split.
SEPARATE void join(float *largest, float *total, float *sum, float split_largest, float split_total,
                   const float *split_sum, long stride, int value_dim) {
    if (split_total == 0.0f) return;
    if (*total == 0.0f) {
        *largest = split_largest, *total = split_total;
        for (int at = 0; at < value_dim; at += 16) store(sum + at, load(split_sum + at / 16 * stride));
        return;
    }
    const float both = *largest > split_largest ? *largest : split_largest;
    const F16 factors = exponential(F16{*largest - both, split_largest - both});
    const float old = factors[0], added = factors[1];
    for (int at = 0; at < value_dim; at += 16)
        store(sum + at, load(sum + at) * old + load(split_sum + at / 16 * stride) * added);
    *total = *total * old + split_total * added;
    *largest = both;
}

INLINE int64_t first_seen(const AttentionArgs &args, int64_t position) {
    if (args.window == 0) return 0;
    if (args.chunked) return position / args.window * args.window;
    return most(position + 1 - args.window, 0);
}

constexpr int kScoreFloats = kPagesInSplit * kBlockFloats;
constexpr int kWeightBytes = kSplit * 2 + 64;

struct AttentionScratch {
    float *scores;     // (pages, queries, 16 keys)
    uint8_t *weights;  // (queries, kWeightBytes): exponentials in bf16
    float *values;     // (columns, queries, 16)
    float *sums;       // (queries, value_dim)
    uint8_t *page;     // values of the last page, where it is not full
    uint8_t *decoded;  // keys of kMostTiles pages, or as many columns of values of a split's pages, where the cache has codes
    uint8_t *path;     // kPathPages pages of a key head
    uint8_t *gathered;  // kMostGathered keys of one
};

INLINE AttentionScratch scratch_of(const AttentionArgs &args, const Work &work) {
    AttentionScratch s;
    uint8_t *at = work.scratch;
    s.scores = reinterpret_cast<float *>(at), at += kScoreFloats * 4;
    s.weights = at, at += kQueries * kWeightBytes;
    s.values = reinterpret_cast<float *>(at), at += kMostTiles * kBlockFloats * 4;
    s.page = at, at += args.heads.value_dim * 32;
    s.sums = reinterpret_cast<float *>(at), at += kQueries * args.heads.value_dim * 4;
    s.decoded = at, at += most(kMostTiles * args.heads.key_dim * 32, kPagesInSplit * kMostTiles * 512);
    s.path = at, at += kPathPages * (32 * (args.heads.key_dim + args.heads.value_dim) + 128);
    s.gathered = at;
    return s;
}

// What a linear bias adds to the scores of 16 keys.
INLINE F16 slope_of(const AttentionArgs &args, int query_head, int64_t key) {
    const F16 positions = to_floats(lanes() + static_cast<int32_t>(key));
    const F16 slope = all(args.slopes[query_head]);
    if (!args.slopes_rounded) return slope * positions * args.slopes_scale;
    return from_bf16(to_bf16(from_bf16(to_bf16(slope)) * from_bf16(to_bf16(positions)))) * args.slopes_scale;
}

// What is added to the scores of 16 keys, of which the first is `distance` behind the query.
INLINE F16 added_at(const AttentionArgs &args, int query_head, int64_t distance) {
    const int64_t entry = most(-16, least(args.distance_count, args.at_no_distance + distance));
    return load(args.distances + query_head * (args.distance_count + 32) + 16 + entry);
}

// What a token's query says of distances, times its factor: (rank,).
INLINE void said_by(const AttentionArgs &args, int64_t token, int query_head, int64_t position, float *said) {
    const float *from = reinterpret_cast<const float *>(args.said + token * args.said_bytes) + query_head * args.rank;
    const float factor = args.said_factors ? args.said_factors[position] : 1.0f;
    for (int i = 0; i < args.rank; i++) said[i] = from[i] * factor;
}

// The same of what a query says: (rank,).
INLINE F16 said_at(const AttentionArgs &args, const float *said, int64_t distance) {
    const int64_t entry = most(-16, least(args.distance_count, args.at_no_distance + distance)), row = args.distance_count + 32;
    const float *from = args.profiles + 16 + entry;
    F16 sum = {};
    for (int i = 0; i < args.rank; i++) sum += load(from + i * row) * said[i];
    return sum;
}

SEPARATE F16 changed_score(const AttentionArgs &args, int query_head, const float *said, int64_t key, int64_t position, F16 x) {
    if (args.softcap != 0.0f) x = tanh_of(x / args.softcap) * args.softcap;
    if (args.slopes) x = x + slope_of(args, query_head, key);
    if (args.distances) x = x + added_at(args, query_head, key - position);
    if (said) x = x + said_at(args, said, key - position);
    return x;
}

// Exponentials of a query's scores with the keys of some pages, into weights; their sum and the largest score. `numbers` of the pages
// say which begins 16 keys further each; `chosen`: bits of the keys that are attended to, or null; `last`: of the keys that are seen.
SEPARATE void soften(const AttentionArgs &args, int query_head, float *scores, uint8_t *weights, const uint8_t *const *held,
                     int pages, const int *numbers, const uint16_t *chosen, int64_t first_key, int64_t lowest, int64_t position,
                     int64_t last, float *largest, float *total, const float *said = nullptr) {
    const F16 hidden = all(-__builtin_inff());
    const bool has_factors = args.heads.format == PENSTOCK_CACHE_INT8;
    const bool is_changed = args.softcap != 0.0f || args.slopes || args.distances || said;
    *total = 0.0f, *largest = -__builtin_inff();
    int begin = 0, end = pages;
    while (begin < pages && first_key + numbers[begin] * 16 + 15 < lowest) begin++;
    while (end > begin && first_key + numbers[end - 1] * 16 > last) end--;
    for (int page = 0; page < pages; page++)
        if (page < begin || page >= end) store_bf16(weights + page * 32, H16{});
    if (begin == end) return;
    F16 best = hidden;
    for (int page = begin; page < end; page++) {
        if (chosen && !chosen[page]) continue;
        float *at = scores + page * kBlockFloats;
        F16 x = load(at) * args.scale;
        if (has_factors) x = x * load(factors_of(args.heads, held[page]));
        const int64_t key = first_key + numbers[page] * 16;
        if (is_changed) x = changed_score(args, query_head, said, key, position, x);
        if (key + 15 > last || key < lowest) {
            const I16 keys = lanes() + static_cast<int32_t>(key);
            x = select(is_above(keys, all_integers(static_cast<int32_t>(last))), hidden, x);
            x = select(is_above(all_integers(static_cast<int32_t>(lowest)), keys), hidden, x);
        }
        if (chosen && chosen[page] != 0xffff) x = select(are_set(chosen[page]), x, hidden);
        store(at, x);
        best = maximum(x, best);
    }
    *largest = maximum_of(best);
    const bool has_none = chosen && *largest == -__builtin_inff();
    F16 sum = {};
    for (int page = begin; page < end; page++) {
        if (chosen && (has_none || !chosen[page])) {
            store_bf16(weights + page * 32, H16{});
            continue;
        }
        F16 x = exponential(load(scores + page * kBlockFloats) - *largest);
        sum += x;
        // What is not seen keeps the weight 0, whatever its place has as a factor.
        if (has_factors)
            x = select(is_less(F16{}, x), x * load(factors_of(args.heads, held[page]) + PENSTOCK_PAGE_TOKENS), F16{});
        store_bf16(weights + page * 32, to_bf16(x));
    }
    *total = sum_of(sum);
}

// Puts copies in the places of those pages that hold positions of the row's path out of their order.
SEPARATE void follow_path(const Heads &heads, const uint8_t *cache, const Row &row, int head, int64_t first_page, int pages,
                          uint8_t *memory, const uint8_t **page) {
    int64_t copied = -1;
    uint8_t *copy = nullptr;
    for (int64_t move = 0; move < row.moves; move++) {
        const int64_t position = row.moved[3 * move + 1], place = row.moved[3 * move + 2];
        const int64_t number = position / PENSTOCK_PAGE_TOKENS - first_page;
        if (number < 0 || number >= pages) continue;
        if (number != copied) {
            copied = number, copy = memory, memory += heads.head_bytes;
            __builtin_memcpy(copy, page[number], static_cast<size_t>(heads.head_bytes));
            page[number] = copy;
        }
        const uint8_t *from =
            cache + row.pages[place / PENSTOCK_PAGE_TOKENS] * heads.page_bytes + head * heads.head_bytes;
        copy_token(heads, from, place % PENSTOCK_PAGE_TOKENS, copy, position % PENSTOCK_PAGE_TOKENS);
    }
}

// Of values of a page, in bf16, those of its first `there` tokens; zeros beyond, since a key that is not there yet has the weight 0, and
// what is in its place may be no number. `rows`: of two tokens, eight for each 16 columns.
SEPARATE void copy_filled(const uint8_t *from, int rows, int64_t there, uint8_t *to) {
    for (int at = 0; at < rows; at++) {
        const int token = at % 8 * 2;
        const U16 pair = *reinterpret_cast<const U16 *>(from + at * 64);
        *reinterpret_cast<U16 *>(to + at * 64) = token + 1 < there ? pair : token < there ? pair & 0xffffu : U16{};
    }
}

// The same of codes, of which 0 stands for 0.
SEPARATE void copy_filled_codes(const uint8_t *from, int rows, int64_t there, uint8_t *to) {
    for (int at = 0; at < rows; at++)
        for (int i = 0; i < 32; i++) to[at * 32 + i] = at % 8 * 2 + i % 2 < there ? from[at * 32 + i] : 0;
}

// Bytes of a key head's split, up to which the next one is asked for ahead.
constexpr int64_t kMostAhead = 256 * 1024;

// What an item's queries see of a split, in pages of its row.
struct SplitPages {
    int64_t first;
    int count;  // 0 or less: nothing
};

INLINE SplitPages pages_of(const AttentionArgs &args, const AttentionItem &item, int split) {
    const Row &row = args.rows[item.row];
    const int group = args.heads.group;
    const int64_t last = row.seen ? row.seen - 1 : row.position + (item.first_query + item.queries - 1) / group;
    const int64_t lowest = first_seen(args, row.position + item.first_query / group);
    const int64_t first = most((int64_t)split * kPagesInSplit, lowest / PENSTOCK_PAGE_TOKENS);
    return {first, static_cast<int>(least((int64_t)(split + 1) * kPagesInSplit, last / PENSTOCK_PAGE_TOKENS + 1) - first)};
}

INLINE void find_pages(const AttentionArgs &args, const AttentionItem &item, int head, SplitPages some, const uint8_t **page) {
    const int64_t *numbers = args.rows[item.row].pages + some.first;
    for (int i = 0; i < some.count; i++)
        page[i] = args.cache + numbers[i] * args.heads.page_bytes + head * args.heads.head_bytes;
}

// Into the places a split behind those of `page`: what is asked for while a page is multiplied, its keys with the keys and its values with
// the values. One after the other: an AMD processor forgets what it is asked for all at once. Keys and values of a whole split are so far
// ahead where two splits fit the second cache and the next one's pages are known (`is_whole`), and else some pages.
SEPARATE void ask_for_pages(const Heads &heads, int pages, bool is_whole, const uint8_t *const *following, const uint8_t **page) {
    const int lead = is_whole || pages < kMostTiles ? pages : kMostTiles;
    for (int i = 0; i < kPagesInSplit; i++) {
        const int beyond = i + lead - pages;
        page[kPagesInSplit + i] = beyond < 0 ? page[i + lead] : following[beyond];
    }
    // What no page of this split is there for.
    for (int i = (pages + kMostTiles - 1) / kMostTiles * kMostTiles; i < kPagesInSplit; i++)
        fetch_far(page[kPagesInSplit + i], heads.factors_offset);
}

// Splits of an item of a key head, into largest, total and sums of up to kQueries queries. `next`: the item that this thread will
// take then, in all likelihood, and its key head; or null.
void attend(const AttentionArgs &args, const AttentionItem &item, int head, const AttentionItem *next, int next_head,
            const AttentionScratch &s, const Decoded &codes, float *largest, float *total, float *sums) {
    const Heads &heads = args.heads;
    const Row &row = args.rows[item.row];
    const int queries = item.queries;
    const uint8_t *q =
        args.queries + head * args.head_stride + (row.first_token * heads.group + item.first_query) * heads.key_dim * 2;
    const int64_t last_position = row.seen ? row.seen - 1 : row.position + (item.first_query + queries - 1) / heads.group;
    const int64_t filled = row.seen ? row.seen : row.position + row.count;
    const int columns = heads.value_dim / 16;
    const bool is_coded = heads.format != PENSTOCK_CACHE_BF16;
    for (int i = 0; i < queries; i++) largest[i] = 0.0f, total[i] = 0.0f;
    for (int split = item.split_begin; split < item.split_end; split++) {
        const SplitPages here = pages_of(args, item, split);
        const int64_t first_page = here.first;
        int pages = here.count;
        if (pages <= 0) continue;
        const uint8_t *page[2 * kPagesInSplit];  // behind a split's pages those that are read next
        int numbers[kPagesInSplit];
        uint16_t chosen[kPagesInSplit];
        find_pages(args, item, head, here, page);
        if (row.moves) follow_path(heads, args.cache, row, head, first_page, pages, s.path, page);
        for (int i = 0; i < pages; i++) numbers[i] = i;
        const bool is_choice = args.chosen && last_position >= args.most_chosen;
        bool is_gathered = false;
        if (is_choice) {
            const int64_t first_key = first_page * PENSTOCK_PAGE_TOKENS;
            const auto *list = reinterpret_cast<const int32_t *>(
                args.chosen + (row.first_token + item.first_query / heads.group) * args.chosen_bytes + head * args.chosen_step);
            const int before = places_below(list, args.most_chosen, first_key);
            list += before;
            const int count = places_below(list, args.most_chosen - before, first_key + pages * PENSTOCK_PAGE_TOKENS);
            if (count == 0) continue;
            is_gathered = count <= kMostGathered && !is_coded && !args.has_whole_pages;
            if (is_gathered) {
                pages = gather_chosen(heads, args.has_latents, list, count, first_key, page, s.gathered);
                for (int i = 0; i < pages; i++) page[i] = s.gathered + i * heads.head_bytes, chosen[i] = 0xffff;
                if (count % PENSTOCK_PAGE_TOKENS)
                    chosen[pages - 1] = static_cast<uint16_t>((1u << count % PENSTOCK_PAGE_TOKENS) - 1);
            } else {
                pages = choose_pages(list, count, first_key, numbers, chosen);
                for (int i = 0; i < pages; i++) page[i] = page[numbers[i]];
            }
        }
        // Pages of a decode come from far, and serve these queries only.
        const long step = row.count == 1 && !is_gathered ? kNextPages : 0;
        if (step == kNextPages) {
            const uint8_t *following[kPagesInSplit];
            for (const uint8_t *&one : following) one = page[0];  // nothing
            if (is_choice)
                ;  // of which pages keys are chosen is not known yet
            else if (split + 1 < item.split_end)
                find_pages(args, item, head, pages_of(args, item, split + 1), following);
            else if (next)
                find_pages(args, *next, next_head, pages_of(args, *next, next->split_begin), following);
            ask_for_pages(heads, pages, !is_choice && heads.head_bytes * kPagesInSplit <= kMostAhead, following, page);
        }
        for (int i = 0; i < pages; i += kMostTiles) {
            const int some = static_cast<int>(least(kMostTiles, pages - i));
            const int tiles = heads.key_dim / PENSTOCK_TILE_INPUTS;
            float *const scores = s.scores + i * kBlockFloats;
            if (is_coded)
                product_with_codes({codes, page + i, -1, some, tiles, step, s.decoded}, q, heads.key_dim * 2, queries, scores);
            else
                product(q, heads.key_dim * 2, queries, page + i, some, tiles, kOfAttention, step, scores);
        }
        float split_largest[kQueries], split_total[kQueries];
        for (int i = 0; i < queries; i++) {
            const int64_t at = item.first_query + i, position = row.position + at / heads.group;
            const int query_head = head * heads.group + static_cast<int>(at % heads.group);
            float said[kMostSaid];
            if (args.profiles) said_by(args, row.first_token + at / heads.group, query_head, position, said);
            // What was gathered is seen, wherever it was.
            soften(args, query_head, s.scores + i * 16,
                   s.weights + i * kWeightBytes, page, pages, numbers, is_choice ? chosen : nullptr,
                   is_gathered ? 0 : first_page * PENSTOCK_PAGE_TOKENS, first_seen(args, position), position,
                   is_gathered ? kSplit
                   : row.seen  ? last_position
                               : position,
                   &split_largest[i], &split_total[i], args.profiles ? said : nullptr);
        }
        // Tokens of the last page.
        const int64_t there =
            is_gathered ? PENSTOCK_PAGE_TOKENS : filled - (first_page + numbers[pages - 1]) * PENSTOCK_PAGE_TOKENS;
        if (there < PENSTOCK_PAGE_TOKENS) {
            const uint8_t *values = page[pages - 1] + heads.value_offset;
            if (is_coded)
                copy_filled_codes(values, heads.value_dim / 2, there, s.page);
            else
                copy_filled(values, heads.value_dim / 2, there, s.page);
            page[pages - 1] = s.page - heads.value_offset;
        }
        for (int column = 0; column < columns; column += kMostTiles) {
            const int some = static_cast<int>(least(kMostTiles, columns - column));
            if (is_coded)
                product_with_codes({codes, page, heads.value_offset + column * 256, some, pages, step, s.decoded}, s.weights,
                                   kWeightBytes, queries, s.values);
            else
                product_with_values(s.weights, kWeightBytes, queries, page, pages, some, heads.value_offset + column * 512, step,
                                    s.values);
            for (int i = 0; i < queries; i++) {
                // Each group of columns is joined with the same numbers.
                float so_far = largest[i], so_much = total[i];
                join(&so_far, &so_much, sums + i * heads.value_dim + column * 16, split_largest[i], split_total[i],
                     s.values + i * 16, kBlockFloats, some * 16);
                if (column + kMostTiles >= columns) largest[i] = so_far, total[i] = so_much;
            }
        }
    }
}

SEPARATE void write_attended(const AttentionArgs &args, const AttentionItem &item, int head, int query, float largest,
                             float total, const float *sums) {
    const Heads &heads = args.heads;
    const int64_t at = item.first_query + query, token = args.rows[item.row].first_token + at / heads.group;
    uint8_t *to =
        args.target + token * args.target_bytes + (head * heads.group + at % heads.group) * heads.value_size * 2;
    float factor = 1.0f / total;
    if (args.sinks) {
        const float sink = args.sinks[head * heads.group + at % heads.group];
        const float both = largest > sink ? largest : sink;
        const F16 factors = exponential(F16{largest - both, sink - both});
        factor = factors[0] / (total * factors[0] + factors[1]);
    }
    for (int i = 0; i < heads.value_size; i += 16) {
        const H16 x = to_bf16(load(sums + i) * factor);
        if (heads.value_size - i >= 16)
            store_bf16(to + i * 2, x);
        else
            store_some_bf16(to + i * 2, x, heads.value_size - i);
    }
}

void attention(const AttentionArgs &args, const Work &work) {
    const Heads &heads = args.heads;
    const AttentionScratch s = scratch_of(args, work);
    Decoded codes;
    if (heads.format != PENSTOCK_CACHE_BF16) decode_all(heads.format, &codes);
    int configured = 0;
    const int64_t count = args.item_count * heads.kv_heads;
    for (int64_t number; (number = take_in_order(work, count)) >= 0;) {
        const AttentionItem &item = args.items[number / heads.kv_heads];
        const int head = static_cast<int>(number % heads.kv_heads);
        const AttentionItem *next = number + 1 < count ? &args.items[(number + 1) / heads.kv_heads] : nullptr;
        const int next_head = static_cast<int>((number + 1) % heads.kv_heads);
        if (item.queries != configured) configure_attention(configured = item.queries);
        float largest[kQueries], total[kQueries];
        if (item.part < 0) {
            attend(args, item, head, next, next_head, s, codes, largest, total, s.sums);
            for (int i = 0; i < item.queries; i++)
                write_attended(args, item, head, i, largest[i], total[i], s.sums + i * heads.value_dim);
            continue;
        }
        float *part = args.parts + ((int64_t)item.part * heads.kv_heads + head) * args.part_floats;
        attend(args, item, head, next, next_head, s, codes, part, part + kQueries, part + 2 * kQueries);
    }
}

void join_attention(const AttentionArgs &args, const Work &work) {
    const Heads &heads = args.heads;
    const AttentionScratch s = scratch_of(args, work);
    for (int64_t number; (number = take(work, 1)) < args.join_count * heads.kv_heads;) {
        const AttentionJoin &parts = args.joins[number / heads.kv_heads];
        const int head = static_cast<int>(number % heads.kv_heads);
        const AttentionItem item = {parts.row, parts.first_query, 0, 0, -1, parts.queries};
        for (int i = 0; i < parts.queries; i++) {
            float largest = 0.0f, total = 0.0f;
            for (int split = 0; split < parts.parts; split++) {
                const float *part =
                    args.parts + ((int64_t)(parts.first_part + split) * heads.kv_heads + head) * args.part_floats;
                join(&largest, &total, s.sums, part[i], part[kQueries + i], part + 2 * kQueries + i * heads.value_dim,
                     16, heads.value_dim);
            }
            write_attended(args, item, head, i, largest, total, s.sums);
        }
    }
}

}  // namespace
