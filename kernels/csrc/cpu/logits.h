// What greedy sampling asks of logits. Included by kernels.cpp.
#pragma once

#include "work.h"

namespace {

SEPARATE Summary summarize_part(const float *logits, int64_t first, int64_t columns) {
    const F16 hidden = all(-__builtin_inff());
    const auto numbers = [&](int64_t at, F16 beyond) {
        if (at + 16 <= columns) return load(logits + at);
        const int count = static_cast<int>(columns - at);
        return lanes() < count ? load_some(logits + at, count) : beyond;
    };
    F16 best = hidden, unsound = {};
    I16 places = {};
    for (int64_t at = 0; at < columns; at += 16) {
        const F16 x = numbers(at, hidden);
        const I16 is_larger = x > best;
        best = is_larger ? x : best;
        places = is_larger ? I16{} + static_cast<int32_t>(at) : places;
        const F16 real = numbers(at, F16{});
        unsound += real - real;
    }
    Summary made = {maximum_of(best), 0.0f, 0};
    int32_t lowest = 0x7fffffff;
    for (int lane = 0; lane < 16; lane++)
        if (best[lane] == made.largest && places[lane] + lane < lowest) lowest = places[lane] + lane;
    made.token = first + lowest;
    F16 sum = {};
    for (int64_t at = 0; at < columns; at += 16) sum += exponential(numbers(at, hidden) - made.largest);
    made.total = sum_of(sum) + sum_of(unsound);
    return made;
}

void summarize(const SummarizeArgs &args, const Work &work) {
    const int64_t parts = (args.columns + kSummarized - 1) / kSummarized;
    for (int64_t item; (item = take(work, 1)) < args.rows * parts;) {
        const int64_t first = item % parts * kSummarized;
        args.parts[item] = summarize_part(args.logits + item / parts * args.stride + first, first,
                                          least(kSummarized, args.columns - first));
    }
}

void join_summaries(const SummarizeArgs &args, const Work &work) {
    const int64_t parts = (args.columns + kSummarized - 1) / kSummarized;
    for (int64_t row; (row = take(work, 1)) < args.rows;) {
        const Summary *of_row = args.parts + row * parts, *best = of_row;
        for (int64_t part = 1; part < parts; part++)
            if (of_row[part].largest > best->largest) best = of_row + part;
        float total = 0.0f;
        for (int64_t part = 0; part < parts; part++)
            total += of_row[part].total * exponential(all(of_row[part].largest - best->largest))[0];
        args.tokens[row] = best->token, args.largest[row] = best->largest, args.totals[row] = total;
    }
}

}  // namespace
