// RWKV: mixtures of a token and the one before it, and means of values by the weights of their keys. Included by kernels.cpp.
// `mix_with_previous` and `weighted_key_values` of penstock_kernels are the definitions.
#pragma once

#include "recurrence.h"

namespace {

// Up to 64 channels of a row.
SEPARATE void mix_some(const MixTokensArgs &args, const StateRow &row, int channel) {
    constexpr int kMost = kChannelsAtOnce / 16;
    const int count = static_cast<int>(least(kChannelsAtOnce, args.channels - channel)), parts = (count + 15) / 16;
    const auto state_of = [&](int64_t place) { return args.states.places + place * args.states.place_bytes + channel * 2; };
    F16 last[kMost], mix[kMost];
    for (int part = 0; part < parts; part++) {
        last[part] = load_short_up_to(state_of(row.place) + part * 32, count - part * 16);
        mix[part] = load_up_to(args.mix + channel + part * 16, count - part * 16);
    }
    const auto keep = [&](int64_t place) {
        for (int part = 0; part < parts; part++) store_bf16_up_to(state_of(place) + part * 32, last[part], count - part * 16);
    };
    int64_t save = 0;
    for (int64_t i = 0; i < row.count; i++) {
        const int64_t token = row.first_token + i;
        const uint8_t *from = args.source + token * args.source_bytes + channel * 2;
        uint8_t *to = args.target + token * args.target_bytes + channel * 2;
        for (int part = 0; part < parts; part++) {
            const F16 x = load_short_up_to(from + part * 32, count - part * 16);
            store_bf16_up_to(to + part * 32, x * mix[part] + last[part] * (1.0f - mix[part]), count - part * 16);
            last[part] = x;
        }
        for (; args.keeps && save < row.save_count && row.saves[save * 3 + 1] == i + 1; save++) keep(row.saves[save * 3 + 2]);
    }
    if (args.keeps) keep(row.place);
}

void mix_tokens(const MixTokensArgs &args, const Work &work) {
    const int64_t parts = (args.channels + kChannelsAtOnce - 1) / kChannelsAtOnce;
    for (int64_t item; (item = take(work, 1)) < args.row_count * parts;)
        mix_some(args, args.rows[item / parts], static_cast<int>(item % parts) * kChannelsAtOnce);
}

// Up to 16 channels of a row. A state has of each the sum of weighted values, that of weights, and the exponent that both are relative to.
SEPARATE void weigh_some(const WeighValuesArgs &args, const StateRow &row, int channel) {
    const int count = static_cast<int>(least(16, args.channels - channel));
    const auto state_of = [&](int64_t place, int number) {
        return reinterpret_cast<float *>(args.states.places + place * args.states.place_bytes) + number * args.channels + channel;
    };
    const auto read = [&](const uint8_t *from, int64_t token) {
        return load_up_to(reinterpret_cast<const float *>(from + token * args.source_bytes) + channel, count);
    };
    F16 values = load_up_to(state_of(row.place, 0), count), total = load_up_to(state_of(row.place, 1), count);
    // Of a sum of nothing it is as low as can be.
    F16 exponent = select(is_less(F16{}, total), load_up_to(state_of(row.place, 2), count), all(-1e38f));
    const F16 decay = load_up_to(args.decay + channel, count), first = load_up_to(args.first + channel, count);
    const auto keep = [&](int64_t place) {
        store_up_to(state_of(place, 0), values, count);
        store_up_to(state_of(place, 1), total, count);
        store_up_to(state_of(place, 2), exponent, count);
    };
    int64_t save = 0;
    for (int64_t i = 0; i < row.count; i++) {
        const int64_t token = row.first_token + i;
        const F16 k = read(args.keys, token), v = read(args.values, token), own = k + first;
        F16 most = maximum(exponent, own), old = exponential(exponent - most), added = exponential(own - most);
        const F16 mean = (old * values + added * v) / (old * total + added);
        store_bf16_up_to(args.target + token * args.target_bytes + channel * 2, mean * sigmoid(read(args.gates, token)), count);
        const F16 kept = exponent + decay;
        most = maximum(kept, k), old = exponential(kept - most), added = exponential(k - most);
        values = old * values + added * v, total = old * total + added, exponent = most;
        for (; save < row.save_count && row.saves[save * 3 + 1] == i + 1; save++) keep(row.saves[save * 3 + 2]);
    }
    keep(row.place);
}

void weigh_values(const WeighValuesArgs &args, const Work &work) {
    const int64_t parts = (args.channels + 15) / 16;
    for (int64_t item; (item = take(work, 1)) < args.row_count * parts;)
        weigh_some(args, args.rows[item / parts], static_cast<int>(item % parts) * 16);
}

}  // namespace
