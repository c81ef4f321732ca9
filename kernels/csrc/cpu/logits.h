// What greedy sampling asks of logits. Included by kernels.cpp.
#pragma once

#include "work.h"

namespace {

// The lowest place of the largest, of those of the lanes.
INLINE int32_t lowest_of(F16 best, I16 places, float largest) {
    int32_t lowest = 0x7fffffff;
    for (int lane = 0; lane < 16; lane++)
        if (best[lane] == largest && places[lane] + lane < lowest) lowest = places[lane] + lane;
    return lowest;
}

// The largest that the mask allows, and its token; where it allows none of this part, what is less than any logit.
SEPARATE void choose_allowed(Summary &made, const float *logits, int64_t first, int64_t columns, const uint32_t *mask) {
    const F16 hidden = all(-__builtin_inff());
    F16 best = hidden;
    I16 places = {};
    for (int64_t at = 0; at < columns; at += 16) {
        const int count = static_cast<int>(least(16, columns - at));
        const int32_t bits = mask[(first + at) / 32] >> (at % 32) & ((1 << count) - 1);
        if (bits == 0) continue;
        const F16 x = count == 16 ? load(logits + at) : load_some(logits + at, count);
        const I16 is_larger = are_set(bits) & is_less(best, x);
        best = select(is_larger, x, best);
        places = select(is_larger, all_integers(static_cast<int32_t>(at)), places);
    }
    made.allowed = maximum_of(best);
    made.token = made.allowed == hidden[0] ? first : first + lowest_of(best, places, made.allowed);
}

SEPARATE Summary summarize_part(const float *logits, int64_t first, int64_t columns, const uint32_t *mask) {
    const F16 hidden = all(-__builtin_inff());
    const auto numbers = [&](int64_t at, F16 beyond) {
        if (at + 16 <= columns) return load(logits + at);
        const int count = static_cast<int>(columns - at);
        return select(are_first(count), load_some(logits + at, count), beyond);
    };
    F16 best = hidden, unsound = {};
    I16 places = {};
    for (int64_t at = 0; at < columns; at += 16) {
        const F16 x = numbers(at, hidden);
        const I16 is_larger = is_less(best, x);
        best = select(is_larger, x, best);
        places = select(is_larger, all_integers(static_cast<int32_t>(at)), places);
        const F16 real = numbers(at, F16{});
        unsound += real - real;
    }
    const float largest = maximum_of(best);
    Summary made = {largest, 0.0f, largest, first + lowest_of(best, places, largest)};
    F16 sum = {};
    for (int64_t at = 0; at < columns; at += 16) sum += exponential(numbers(at, hidden) - made.largest);
    made.total = sum_of(sum) + sum_of(unsound);
    if (mask != nullptr) choose_allowed(made, logits, first, columns, mask);
    return made;
}

void summarize(const SummarizeArgs &args, const Work &work) {
    const int64_t parts = (args.columns + kSummarized - 1) / kSummarized;
    for (int64_t item; (item = take(work, 1)) < args.rows * parts;) {
        const int64_t first = item % parts * kSummarized, row = item / parts;
        args.parts[item] = summarize_part(args.logits + row * args.stride + first, first,
                                          least(kSummarized, args.columns - first), args.masks.row(row));
    }
}

void join_summaries(const SummarizeArgs &args, const Work &work) {
    const int64_t parts = (args.columns + kSummarized - 1) / kSummarized;
    for (int64_t row; (row = take(work, 1)) < args.rows;) {
        const Summary *of_row = args.parts + row * parts, *chosen = of_row;
        float largest = of_row->largest, total = 0.0f;
        for (int64_t part = 1; part < parts; part++) {
            if (of_row[part].allowed > chosen->allowed) chosen = of_row + part;
            if (of_row[part].largest > largest) largest = of_row[part].largest;
        }
        for (int64_t part = 0; part < parts; part++)
            total += of_row[part].total * exponential(all(of_row[part].largest - largest))[0];
        args.tokens[row] = chosen->token, args.largest[row] = largest, args.totals[row] = total;
    }
}

}  // namespace
