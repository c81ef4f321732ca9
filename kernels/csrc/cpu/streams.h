// Several residual streams, of which a layer computes one and predicts and corrects the others (AltUp: Baykal et al., "Alternating
// Updates for Efficient Transformers", 2023), and gates of which only the largest open. Included by kernels.cpp.
#pragma once

#include "work.h"

namespace {

constexpr int kMostStreams = PENSTOCK_MOST_STREAMS;

// How a token weighs the streams: tanh of what its router says.
SEPARATE void modes_of(const float *router, int streams, float *modes) {
    for (int k = 0; k < streams; k++) modes[k] = tanh_of(all(router[k]))[0];
}

INLINE float mixed(const float *row, const float *modes, int streams) {
    float sum = 0.0f;
    for (int k = 0; k < streams; k++) sum += row[k] * modes[k];
    return sum;
}

// Of each stream, what a mixture of all of them adds to it.
SEPARATE void predict_row(const StreamsArgs &args, const float *x, const float *router, float *to) {
    float modes[kMostStreams], mix[kMostStreams * kMostStreams];
    modes_of(router, args.streams, modes);
    for (int i = 0; i < args.streams * args.streams; i++) mix[i] = mixed(args.mix + i * args.streams, modes, args.streams);
    for (int at = 0; at < args.width; at += 16) {
        const int count = args.width - at;
        F16 from[kMostStreams];
        for (int j = 0; j < args.streams; j++) from[j] = load_up_to(x + (int64_t)j * args.width + at, count);
        for (int i = 0; i < args.streams; i++) {
            F16 y = from[i];
            for (int j = 0; j < args.streams; j++) y += from[j] * mix[i * args.streams + j];
            store_up_to(to + (int64_t)i * args.width + at, y, count);
        }
    }
}

// To each stream, its share of what the layer made of the active one beyond the prediction.
SEPARATE void correct_row(const StreamsArgs &args, const float *x, const float *computed, const float *router, float *to) {
    float modes[kMostStreams], shares[kMostStreams];
    modes_of(router, args.streams, modes);
    for (int i = 0; i < args.streams; i++) shares[i] = 1.0f + mixed(args.mix + i * args.streams, modes, args.streams);
    for (int at = 0; at < args.width; at += 16) {
        const int count = args.width - at;
        const F16 news = load_up_to(computed + at, count) - load_up_to(x + (int64_t)args.active * args.width + at, count);
        for (int i = 0; i < args.streams; i++) {
            const F16 y = load_up_to(x + (int64_t)i * args.width + at, count) + news * shares[i];
            store_up_to(to + (int64_t)i * args.width + at, y, count);
        }
    }
}

void update_streams(const StreamsArgs &args, const Work &work) {
    each_row(args.rows, work, [&](int64_t r) {
        const auto *x = reinterpret_cast<const float *>(args.source + r * args.source_bytes);
        const auto *router = reinterpret_cast<const float *>(args.router + r * args.router_bytes);
        float *to = reinterpret_cast<float *>(args.target + r * args.target_bytes);
        if (args.computed)
            correct_row(args, x, reinterpret_cast<const float *>(args.computed + r * args.computed_bytes), router, to);
        else
            predict_row(args, x, router, to);
    });
}

// Numbers as large as others are: times the ratio of their root mean squares.
void match(const MatchArgs &args, const Work &work) {
    each_row(args.rows, work, [&](int64_t r) {
        const auto *x = reinterpret_cast<const float *>(args.source + r * args.source_bytes);
        const auto *others = reinterpret_cast<const float *>(args.others + r * args.others_bytes);
        float *to = reinterpret_cast<float *>(args.target + r * args.target_bytes);
        const float width = static_cast<float>(args.width);
        const float own = squares(x, args.width, 0.0f) / width, wanted = squares(others, args.width, 0.0f) / width;
        const float factor = __builtin_sqrtf(wanted) / __builtin_sqrtf(own < args.smallest ? args.smallest : own);
        for (int at = 0; at < args.width; at += 16) {
            const int count = args.width - at;
            const F16 y = load_up_to(x + at, count) * factor;
            store_up_to(to + at, args.accumulate ? load_up_to(to + at, count) + y : y, count);
        }
    });
}

// Gates that are so many deviations over the mean of a token's gates open, by what they are beyond that.
void open_sparsely(const SparseGateArgs &args, const Work &work) {
    each_row(args.rows, work, [&](int64_t r) {
        const auto *gates = reinterpret_cast<const float *>(args.source + r * args.source_bytes);
        const float *up = gates + args.up_at;
        uint8_t *to = args.target + r * args.target_bytes;
        const float width = static_cast<float>(args.width), mean = sum_over(gates, args.width) / width;
        const float shut = mean + args.deviations * __builtin_sqrtf(squares(gates, args.width, mean) / width);
        for (int at = 0; at < args.target_width; at += 16) {
            const int count = args.width - at;
            F16 y = {};
            if (count > 0) {
                const F16 over = load_up_to(gates + at, count) - shut;
                // What is no number stays none.
                const F16 opened = select(is_less(over, F16{}), F16{}, over);
                y = activated(opened, args.activation) * load_up_to(up + at, count);
                if (count < 16) y = select(are_first(count), y, F16{});
            }
            store_bf16_up_to(to + at * 2, y, args.target_width - at);
        }
    });
}

}  // namespace
