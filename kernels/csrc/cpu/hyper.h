// Hyper-connections: residual streams of which every branch reads a mixture, and to all of which it is added, by shares that each token
// makes of all of them (Zhu et al., "Hyper-Connections", 2024). Included by kernels.cpp.
#pragma once

#include "norms.h"
#include "recurrence.h"
#include "work.h"

namespace {

// Rows whose products with a row of weights are taken together, and columns that are mixed or added to by whoever takes them.
constexpr int kRowsTogether = 4;
constexpr int kColumnsTogether = 1024;
constexpr int kMostMixed = 16;  // streams
static_assert(kMostMixed == PENSTOCK_MOST_STREAMS);

// Products of some rows with one row of weights. Where there are fewer rows some are the same: each has the sum that it would have alone.
SEPARATE void weigh_rows(const float *const *rows, const float *weight, int64_t count, float *to) {
    F16 sums[kRowsTogether][2] = {};
    int64_t at = 0;
    for (; at + 32 <= count; at += 32) {
        const F16 first = load(weight + at), second = load(weight + at + 16);
        for (int r = 0; r < kRowsTogether; r++) {
            sums[r][0] += load(rows[r] + at) * first;
            sums[r][1] += load(rows[r] + at + 16) * second;
        }
    }
    for (; at < count; at += 16) {
        const F16 some = load_up_to(weight + at, count - at);
        for (int r = 0; r < kRowsTogether; r++) sums[r][0] += load_up_to(rows[r] + at, count - at) * some;
    }
    for (int r = 0; r < kRowsTogether; r++) to[r] = sum_of(sums[r][0] + sums[r][1]);
}

SEPARATE float mean_square(const float *row, int width) {
    return squares(row, width, 0.0f) / static_cast<float>(width);
}

// What every output's weights make of the streams, and behind that the mean of their squares: of some rows one of these at a time.
void weigh_streams(const HyperReadArgs &args, const Work &work) {
    const int numbers = args.streams * args.width;
    const int64_t blocks = (args.rows + kRowsTogether - 1) / kRowsTogether, outputs = args.outputs + 1;
    for (int64_t item; (item = take(work, 1)) < blocks * outputs;) {
        const int64_t first = item / outputs * kRowsTogether, output = item % outputs;
        const float *rows[kRowsTogether];
        float made[kRowsTogether];
        for (int r = 0; r < kRowsTogether; r++)
            rows[r] = reinterpret_cast<const float *>(args.source + least(first + r, args.rows - 1) * args.source_bytes);
        const int count = static_cast<int>(least(kRowsTogether, args.rows - first));
        if (output < args.outputs)
            weigh_rows(rows, args.weight + output * numbers, numbers, made);
        else
            for (int r = 0; r < count; r++) made[r] = mean_square(rows[r], numbers);
        for (int r = 0; r < count; r++)
            reinterpret_cast<float *>(args.shares + (first + r) * args.shares_bytes)[output] = made[r];
    }
}

// Shares of streams in each other: a softmax of each stream's, of which columns and rows are made to add up to 1 in turn (Sinkhorn and
// Knopp; Xie et al., "mHC", 2025).
SEPARATE void mixing_shares(const HyperReadArgs &args, float *mix) {
    const int streams = args.streams;
    const auto add_up = [&](int step, int other) {
        for (int i = 0; i < streams; i++) {
            float sum = args.lowest;
            for (int j = 0; j < streams; j++) sum += mix[i * other + j * step];
            for (int j = 0; j < streams; j++) mix[i * other + j * step] /= sum;
        }
    };
    for (int i = 0; i < streams; i++) {
        float row[kMostMixed];
        for (int j = 0; j < kMostMixed; j++) row[j] = j < streams ? mix[i * streams + j] : -__builtin_inff();
        const float largest = maximum_of(load(row));
        const F16 made = exponential(load(row) - largest);
        const float sum = sum_of(made);
        for (int j = 0; j < streams; j++) mix[i * streams + j] = made[j] / sum + args.lowest;
    }
    add_up(streams, 1);
    for (int round = 1; round < args.rounds; round++) add_up(1, streams), add_up(streams, 1);
}

// The shares that `weigh_streams` has made the numbers of.
SEPARATE void shares_of(const HyperReadArgs &args, const float *made, float *shares) {
    const float factor = 1.0f / __builtin_sqrtf(made[args.outputs] + args.eps);
    for (int at = 0; at < args.outputs; at += 16) {
        const int count = args.outputs - at;
        const F16 x = load_up_to(made + at, count) * factor * load_up_to(args.scales + at, count) +
                      load_up_to(args.bias + at, count);
        const I16 is_read = is_above(all_integers(args.streams), lanes() + at), is_given = is_above(all_integers(2 * args.streams), lanes() + at);
        const F16 magnitude = select(is_read, all(1.0f), all(args.magnitude));
        const F16 lowest = select(is_read, all(args.lowest), all(args.rounds ? 0.0f : args.lowest));
        store_up_to(shares + at, select(is_given, magnitude * sigmoid(x) + lowest, x), count);
    }
    if (args.rounds && args.outputs > args.streams) mixing_shares(args, shares + 2 * args.streams);
}

SEPARATE void mix_columns(const HyperReadArgs &args, const float *x, const float *shares, float *to, int begin, int end) {
    for (int at = begin; at < end; at += 16) {
        const int count = end - at;
        F16 sum = {};
        for (int i = 0; i < args.streams; i++) sum += load_up_to(x + (int64_t)i * args.width + at, count) * shares[i];
        store_up_to(to + at, sum, count);
    }
}

// Some columns of a row at a time, each by whoever takes it.
template <typename Columns>
INLINE void each_part(int64_t rows, int width, const Work &work, Columns columns) {
    const int64_t parts = (width + kColumnsTogether - 1) / kColumnsTogether, at_once = share(rows * parts, work);
    for (int64_t begin; (begin = take(work, at_once)) < rows * parts;)
        for (int64_t item = begin; item < least(begin + at_once, rows * parts); item++) {
            const int first = static_cast<int>(item % parts) * kColumnsTogether;
            columns(item / parts, first, static_cast<int>(least(first + kColumnsTogether, width)));
        }
}

void mix_streams(const HyperReadArgs &args, const Work &work) {
    each_part(args.rows, args.width, work, [&](int64_t r, int begin, int end) {
        float *made = reinterpret_cast<float *>(args.shares + r * args.shares_bytes);
        float shares[PENSTOCK_MOST_STREAMS * (2 + PENSTOCK_MOST_STREAMS)];
        shares_of(args, made, shares);
        if (begin == 0)
            for (int i = 0; i < args.outputs; i++) made[args.outputs + 1 + i] = shares[i];
        mix_columns(args, reinterpret_cast<const float *>(args.source + r * args.source_bytes), shares,
                    reinterpret_cast<float *>(args.target + r * args.target_bytes), begin, end);
    });
}

SEPARATE void add_columns(const HyperAddArgs &args, const float *given, const float *shares, float *to, int begin, int end) {
    const float *mix = shares + args.streams;  // of each stream its shares in all
    for (int at = begin; at < end; at += 16) {
        const int count = end - at;
        const F16 x = load_up_to(given + at, count);
        F16 streams[PENSTOCK_MOST_STREAMS];
        for (int i = 0; i < args.streams; i++) streams[i] = load_up_to(to + (int64_t)i * args.width + at, count);
        for (int i = 0; i < args.streams; i++) {
            F16 sum = streams[i];
            if (args.mixes) {
                sum = streams[0] * mix[i];
                for (int j = 1; j < args.streams; j++) sum += streams[j] * mix[j * args.streams + i];
            }
            store_up_to(to + (int64_t)i * args.width + at, sum + x * shares[i], count);
        }
    }
}

void add_to_streams(const HyperAddArgs &args, const Work &work) {
    each_part(args.rows, args.width, work, [&](int64_t r, int begin, int end) {
        add_columns(args, reinterpret_cast<const float *>(args.source + r * args.source_bytes),
                    reinterpret_cast<const float *>(args.shares + r * args.shares_bytes),
                    reinterpret_cast<float *>(args.target + r * args.target_bytes), begin, end);
    });
}

// Mixtures by a share for each number.
SEPARATE void mix_some(const MixNumbersArgs &args, const float *shares, const uint8_t *normed, float *to, int begin, int end) {
    const float factor = 1.0f / static_cast<float>(args.streams);
    for (int at = begin; at < end; at += 16) {
        const int count = static_cast<int>(least(16, end - at));
        F16 sum = {};
        for (int i = 0; i < args.streams; i++) {
            const int64_t column = (int64_t)i * args.width + at;
            sum += sigmoid(load_up_to(shares + column, count)) * load_short_up_to(normed + column * 2, count);
        }
        store_up_to(to + at, sum * factor, count);
    }
}

void mix_numbers(const MixNumbersArgs &args, const Work &work) {
    each_part(args.rows, args.width, work, [&](int64_t r, int begin, int end) {
        if (args.given && begin == 0) {
            float *given = reinterpret_cast<float *>(args.given + r * args.given_bytes);
            store_up_to(given, sigmoid(load_up_to(given, args.streams)) * 2.0f, args.streams);
        }
        mix_some(args, reinterpret_cast<const float *>(args.shares + r * args.shares_bytes),
                 args.normed + r * args.normed_bytes, reinterpret_cast<float *>(args.target + r * args.target_bytes), begin, end);
    });
}

}  // namespace
