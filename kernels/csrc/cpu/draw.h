// Chooses a token of a row of logits: bias, penalties, what may not come yet, mask, temperature, truncation, watermark and draw, in the
// order of penstock/engine/sampling.py, which says what each is. Nothing is sorted: a threshold is searched for by halving the range of
// its bits, over fewer and fewer of the numbers. A row is one thread's, so its token depends on nothing else. Included by kernels.cpp.
#pragma once

#include "work.h"

namespace {

constexpr int32_t kInfinityBits = 0x7f800000;

INLINE I16 load_keys(const int32_t *from) {
    return load_as<I16>(from);
}

// A sum of many numbers, in double precision.
struct Sum {
    D8 low = {}, high = {};
};

INLINE void add(Sum &sum, F16 x) {
    sum.low += doubles_of(x, 0);
    sum.high += doubles_of(x, 1);
}

INLINE double total_of(const Sum &sum) {
    const D8 both = sum.low + sum.high;
    return ((both[0] + both[4]) + (both[2] + both[6])) + ((both[1] + both[5]) + (both[3] + both[7]));
}

// Of numbers(at) for every 16th `at`: few of them in single precision, and these in double.
template <typename Numbers16>
INLINE double sum_over(int64_t begin, int64_t end, Numbers16 numbers) {
    Sum sum;
    for (int64_t at = begin; at < end;) {
        F16 few = {};
        for (const int64_t stop = least(at + 256, end); at < stop; at += 16) few += numbers(at);
        add(sum, few);
    }
    return total_of(sum);
}

INLINE bool any_bit(I16 x) {
    const Quarters q = quarters_of((F16)x);
    typedef uint64_t Two __attribute__((vector_size(16)));
    const Two found = (Two)q.parts[0] | (Two)q.parts[1] | (Two)q.parts[2] | (Two)q.parts[3];
    return (found[0] | found[1]) != 0;
}

// Rounded by itself: not fused with the sum that it goes into.
SEPARATE float product_of(float a, float b) {
    return a * b;
}

// Memory of a thread: arrays of the columns, rounded up to 16.
struct Drawing {
    int64_t columns, padded;
    float *numbers;    // logits as they are changed; of a draw how far they are below the largest, infinite where they are out
    float *weights;    // their exponentials
    float *distances;  // of typical-p
    int32_t *kept_keys;
    float *kept_weights;
};

struct Reached {
    int64_t count;
    double weight;
};

// How many of the keys are up to `most`, and what those weigh.
template <bool weighs>
SEPARATE Reached reached_by(const int32_t *keys, const float *weights, int64_t count, int32_t most) {
    I16 counts = {};
    const double weight = sum_over(0, count, [&](int64_t at) {
        const I16 is_in = ~is_above(load_keys(keys + at), all_integers(most));
        counts -= is_in;
        return weighs ? (F16)(is_in & (I16)load(weights + at)) : F16{};
    });
    int64_t found = 0;
    for (int lane = 0; lane < 16; lane++) found += counts[lane];
    return {found, weighs ? weight : static_cast<double>(found)};
}

// Those of the keys that are within, and their weights, one after the other; filled up to 16 with what is never reached.
template <bool weighs>
SEPARATE int64_t keep_within(const int32_t *keys, const float *weights, int64_t count, int32_t low, int32_t high,
                             int32_t *kept_keys, float *kept_weights) {
    int64_t kept = 0;
    for (int64_t at = 0; at < count; at += 16) {
        const I16 here = load_keys(keys + at), is_in = ~(is_above(all_integers(low), here) | is_above(here, all_integers(high)));
        if (!any_bit(is_in)) continue;
        const F16 weighed = weighs ? load(weights + at) : F16{};
        for (int lane = 0; lane < 16; lane++) {
            if (!is_in[lane]) continue;
            kept_keys[kept] = here[lane];
            if (weighs) kept_weights[kept] = weighed[lane];
            kept++;
        }
    }
    for (int64_t at = kept; at % 16 != 0; at++) {
        kept_keys[at] = 0x7fffffff;
        if (weighs) kept_weights[at] = 0.0f;
    }
    return kept;
}

// The smallest key, from `low` to `high`, up to which so many keys are, or so much weight is; `high` where there is none. Keys are
// filled up to 16 with some above `high`; what is left of them goes to kept_keys, which is other memory.
template <bool weighs>
SEPARATE int32_t smallest_reaching(double goal, const int32_t *keys, const float *weights, int64_t count, int32_t low,
                                   int32_t high, int32_t *kept_keys, float *kept_weights) {
    // Distances that are looked for are nearly always between 1/128 and 100: half of their bits say something else.
    constexpr int32_t kLikely[] = {0x42c80000, 0x3c000000};
    double taken = 0.0, below_weight = 0.0;
    int64_t below = 0, up_to_high = count;
    for (int turn = 0; low < high; turn++) {
        auto middle = static_cast<int32_t>(low + (static_cast<int64_t>(high) - low) / 2);
        if (turn < 2 && low == 0 && kLikely[turn] < high) middle = kLikely[turn];
        const Reached found = reached_by<weighs>(keys, weights, count, middle);
        if (taken + found.weight >= goal)
            high = middle, up_to_high = found.count;
        else
            low = middle + 1, below = found.count, below_weight = found.weight;
        if (count > 64 && (up_to_high - below) * 16 < count) {
            count = keep_within<weighs>(keys, weights, count, low, high, kept_keys, kept_weights);
            keys = kept_keys, weights = kept_weights;
            taken += below_weight;
            below = 0, below_weight = 0.0, up_to_high = count;
        }
    }
    return low;
}

// The numbers of a row, with `beyond` where there are none.
INLINE F16 columns_of(const float *from, int64_t at, int64_t columns, float beyond) {
    if (at + 16 <= columns) return load(from + at);
    const int count = static_cast<int>(columns - at);
    return select(are_first(count), load_some(from + at, count), all(beyond));
}

// ---- what changes logits ----

INLINE float penalized(const penstock_draw_row &row, float logit, int32_t in_prompt, int32_t in_output) {
    if (in_prompt + in_output > 0) {
        // No penalty forbids or forces, and what is forbidden or forced stays so.
        const float largest = __FLT_MAX__;
        if (logit < -largest || logit > largest) return logit;
        logit = logit > 0.0f ? logit / row.repetition : product_of(logit, row.repetition);
        logit = logit > largest ? largest : logit < -largest ? -largest : logit;
    }
    logit -= product_of(static_cast<float>(in_output), row.frequency);
    return in_output > 0 ? logit - row.presence : logit;
}

SEPARATE void penalize(const penstock_draw_row &row, const int64_t *before, const Drawing &drawing) {
    // Tokens that count once more are made of what they were.
    float *const as_they_were = drawing.kept_weights;
    for (int64_t i = 0; i < row.before; i++) as_they_were[i] = drawing.numbers[before[i]];
    for (int64_t at = 0; at < drawing.columns; at += 16) {
        const int64_t count = least(16, drawing.columns - at);
        if (count == 16) {
            const I16 seen = load_keys(row.prompt_counts + at) | load_keys(row.output_counts + at);
            if (!any_bit(seen)) continue;
        }
        for (int64_t i = at; i < at + count; i++)
            drawing.numbers[i] = penalized(row, drawing.numbers[i], row.prompt_counts[i], row.output_counts[i]);
    }
    for (int64_t i = 0; i < row.before; i++) {
        int32_t more = 0;
        for (int64_t j = 0; j < row.before; j++) more += before[j] == before[i];
        drawing.numbers[before[i]] = penalized(row, as_they_were[i], row.prompt_counts[before[i]],
                                               row.output_counts[before[i]] + more);
    }
}

// A bias of infinity forces its token: all that are not forced are forbidden.
SEPARATE void add_biases(const int64_t *tokens, const float *biases, int64_t count, const Drawing &drawing) {
    const float infinity = __builtin_inff();
    bool forces = false;
    for (int64_t i = 0; i < count; i++) drawing.numbers[tokens[i]] += biases[i];
    for (int64_t i = 0; i < count; i++) forces |= drawing.numbers[tokens[i]] == infinity;
    if (!forces) return;
    for (int64_t at = 0; at < drawing.padded; at += 16)
        store(drawing.numbers + at,
              select(is_same(load(drawing.numbers + at), all(infinity)), F16{}, all(-infinity)));
}

SEPARATE void hide_masked(const uint32_t *mask, const Drawing &drawing) {
    for (int64_t at = 0; at < drawing.columns; at += 16) {
        const I16 is_allowed = are_set(static_cast<int32_t>(mask[at / 32] >> (at % 32)));
        store(drawing.numbers + at, select(is_allowed, load(drawing.numbers + at), all(-__builtin_inff())));
    }
}

// See `mix` of penstock_kernels/sampling.py.
INLINE U16 mixed(U16 x) {
    x = x * 2246822507u;
    x = x ^ (x >> 13);
    return x * 3266489909u;
}

// Adds a delta to the green tokens; `numbers` are what is added to, which is negative distances where `are_below`.
template <bool are_below>
SEPARATE void mark(const penstock_draw_row &row, const Drawing &drawing) {
    const auto previous = static_cast<uint32_t>(row.previous);
    const uint32_t key = mixed(mixed(U16{} + (previous ^ 0x3C6EF372u)))[0];
    auto *const orders = reinterpret_cast<int32_t *>(drawing.distances);
    for (int64_t at = 0; at < drawing.padded; at += 16) {
        const U16 order = mixed(mixed((U16)(lanes() + static_cast<int32_t>(at))) ^ key);
        const I16 is_there = is_above(all_integers(static_cast<int32_t>(drawing.columns)), lanes() + static_cast<int32_t>(at));
        store_as(orders + at, select(is_there, (I16)order, all_integers(0x7fffffff)));
    }
    const int32_t last =
        smallest_reaching<false>(static_cast<double>(row.greens), orders, nullptr, drawing.padded, -0x7fffffff - 1,
                                 0x7fffffff, drawing.kept_keys, nullptr);
    for (int64_t at = 0; at < drawing.padded; at += 16) {
        const F16 more = select(is_above(load_keys(orders + at), all_integers(last)), F16{}, all(row.delta));
        const F16 x = load(drawing.numbers + at);
        store(drawing.numbers + at, are_below ? more - x : x + more);
    }
}

INLINE float largest_of(const Drawing &drawing) {
    F16 best = all(-__builtin_inff());
    for (int64_t at = 0; at < drawing.padded; at += 16) best = maximum(load(drawing.numbers + at), best);
    return maximum_of(best);
}

// ---- the draw ----

// Puts out what is beyond a key of `keys`.
SEPARATE void drop_beyond(const int32_t *keys, int32_t last, const Drawing &drawing) {
    for (int64_t at = 0; at < drawing.padded; at += 16) {
        const I16 is_in = ~is_above(load_keys(keys + at), all_integers(last));
        store(drawing.numbers + at, select(is_in, load(drawing.numbers + at), all(__builtin_inff())));
        store(drawing.weights + at, (F16)(is_in & (I16)load(drawing.weights + at)));
    }
}

// Top-k, of that top-p, and min-p.
SEPARATE void keep_largest(const penstock_draw_row &row, const Drawing &drawing) {
    const auto *keys = reinterpret_cast<const int32_t *>(drawing.numbers);
    int32_t last = kInfinityBits;
    if (row.top_k < drawing.columns)
        last = smallest_reaching<false>(static_cast<double>(row.top_k), keys, nullptr, drawing.padded, 0, last,
                                        drawing.kept_keys, nullptr);
    if (row.top_p < 1.0f) {
        const double within = reached_by<true>(keys, drawing.weights, drawing.padded, last).weight;
        last = smallest_reaching<true>(row.top_p * within, keys, drawing.weights, drawing.padded, 0, last,
                                       drawing.kept_keys, drawing.kept_weights);
    }
    int32_t furthest;
    __builtin_memcpy(&furthest, &row.furthest, 4);
    drop_beyond(keys, furthest < last ? furthest : last, drawing);
}

// Those whose surprise is nearest to the entropy.
SEPARATE void keep_typical(const penstock_draw_row &row, const Drawing &drawing) {
    const double total = sum_over(0, drawing.padded, [&](int64_t at) { return load(drawing.weights + at); });
    const auto offset = static_cast<float>(__builtin_log(total));
    const double surprise = sum_over(0, drawing.padded, [&](int64_t at) {
        const F16 weight = load(drawing.weights + at);
        return select(is_less(F16{}, weight), weight * (load(drawing.numbers + at) + offset), F16{});
    });
    const auto entropy = static_cast<float>(surprise / total);
    for (int64_t at = 0; at < drawing.padded; at += 16)
        store(drawing.distances + at, size_of(load(drawing.numbers + at) + offset - entropy));
    const auto *keys = reinterpret_cast<const int32_t *>(drawing.distances);
    const int32_t last =
        smallest_reaching<true>(row.typical_p * total, keys, drawing.weights, drawing.padded, 0, kInfinityBits,
                                drawing.kept_keys, drawing.kept_weights);
    drop_beyond(keys, last, drawing);
}

// Where the cumulated weights pass `uniform` of all.
SEPARATE int64_t passing(double uniform, const Drawing &drawing) {
    constexpr int64_t kPart = 1024;
    auto *const parts = reinterpret_cast<double *>(drawing.kept_weights);
    double total = 0.0;
    for (int64_t begin = 0; begin < drawing.padded; begin += kPart) {
        parts[begin / kPart] = sum_over(begin, least(begin + kPart, drawing.padded),
                                        [&](int64_t at) { return load(drawing.weights + at); });
        total += parts[begin / kPart];
    }
    const double goal = uniform * total;
    double passed = 0.0;
    int64_t last = 0;
    for (int64_t begin = 0; begin < drawing.padded; begin += kPart) {
        if (!(passed + parts[begin / kPart] > goal)) {
            passed += parts[begin / kPart];
            continue;
        }
        for (int64_t at = begin; at < least(begin + kPart, drawing.columns); at++) {
            if (!(drawing.weights[at] > 0.0f)) continue;
            passed += drawing.weights[at];
            last = at;
            if (passed > goal) return at;
        }
        return last;  // the sum of the part was rounded up
    }
    return last;
}

// The exponentials of what is `numbers` below the largest.
INLINE void weigh(const Drawing &drawing) {
    for (int64_t at = 0; at < drawing.padded; at += 16)
        store(drawing.weights + at, exponential(-load(drawing.numbers + at)));
}

INLINE int64_t lowest_at(const Drawing &drawing, float number) {
    for (int64_t at = 0; at < drawing.padded; at += 16) {
        const I16 is_it = is_same(load(drawing.numbers + at), all(number));
        if (!any_bit(is_it)) continue;
        for (int lane = 0; lane < 16; lane++)
            if (is_it[lane]) return at + lane;
    }
    return 0;
}

// The token, and whether there was one to choose.
SEPARATE int64_t choose(const penstock_draw_row &row, const penstock_draws &draws, const float *logits,
                        const Drawing &drawing, uint8_t *possible) {
    const float infinity = __builtin_inff();
    for (int64_t at = 0; at < drawing.padded; at += 16)
        store(drawing.numbers + at, columns_of(logits, at, drawing.columns, -infinity));
    if (row.biases > 0) add_biases(draws.bias_tokens + row.first_bias, draws.biases + row.first_bias, row.biases, drawing);
    if (row.prompt_counts) penalize(row, draws.before + row.first_before, drawing);
    for (int64_t i = 0; i < row.ends; i++) drawing.numbers[draws.end_tokens[row.first_end + i]] = -infinity;
    if (row.mask >= 0) hide_masked(draws.masks + row.mask * draws.mask_words, drawing);
    float largest = largest_of(drawing);
    *possible = largest > -infinity;
    if (!*possible) return 0;
    if (row.temperature <= 0.0f) {
        if (row.delta > 0.0f) {
            mark<false>(row, drawing);
            largest = largest_of(drawing);
        }
        return least(lowest_at(drawing, largest), drawing.columns - 1);
    }
    for (int64_t at = 0; at < drawing.padded; at += 16)
        store(drawing.numbers + at, (largest - load(drawing.numbers + at)) / row.temperature);
    weigh(drawing);
    if (row.top_k < drawing.columns || row.top_p < 1.0f || row.furthest < infinity) keep_largest(row, drawing);
    if (row.typical_p < 1.0f) keep_typical(row, drawing);
    if (row.delta > 0.0f) {
        mark<true>(row, drawing);
        largest = largest_of(drawing);
        for (int64_t at = 0; at < drawing.padded; at += 16)
            store(drawing.numbers + at, largest - load(drawing.numbers + at));
        weigh(drawing);
    }
    return passing(row.uniform, drawing);
}

void draw(const DrawArgs &args, const Work &work) {
    const int64_t padded = round_up(args.columns, 16);
    float *const memory = args.memory + work.member * draw_floats(args.columns);
    const Drawing drawing = {args.columns,
                             padded,
                             memory,
                             memory + padded,
                             memory + 2 * padded,
                             reinterpret_cast<int32_t *>(memory + 3 * padded),
                             memory + 4 * padded};
    for (int64_t item; (item = take(work, 1)) < args.draws.count;) {
        const penstock_draw_row &row = args.draws.rows[item];
        args.draws.tokens[item] =
            choose(row, args.draws, args.logits + row.row * args.stride, drawing, args.draws.possible + item);
    }
}

}  // namespace
