// Recurrent layers: tokens advance states one after the other, in the order of their sequence, so that what a token gets
// does not depend on where a prompt is cut. Each of the operations is that of penstock_kernels under the same name, in
// fp32. Included by kernels.cpp.
#pragma once

#include "work.h"

namespace {

// ---- the short convolution ----

constexpr int kMostKernel = 8, kMostPast = 24;  // kMostPast: tokens before one, of which some have weights
constexpr int kChannelsAtOnce = 64;  // of an item

// Numbers as the state keeps them, in bf16: so a token sees the same ones whether they come from the state or not.
INLINE F16 shortened(F16 x) {
    return from_bf16(to_bf16(x));
}

INLINE F16 load_short_up_to(const uint8_t *from, int count) {
    if (count >= 16) return from_bf16(load_bf16(from));
    H16 x = {};
    for (int lane = 0; lane < count; lane++) x[lane] = reinterpret_cast<const uint16_t *>(from)[lane];
    return from_bf16(x);
}

// Up to 16 channels of a row.
SEPARATE void convolve_some(const ConvolveArgs &args, const StateRow &row, int channel) {
    const int count = static_cast<int>(least(16, args.channels - channel)), step = args.dilation, past = (args.kernel - 1) * step;
    F16 window[kMostPast + 1], weights[kMostKernel];
    const auto state_of = [&](int64_t place, int at) {
        return args.states.places + place * args.states.place_bytes + ((int64_t)at * args.channels + channel) * 2;
    };
    const auto keep = [&](int64_t place) {
        for (int at = 0; at < past; at++) store_bf16_up_to(state_of(place, at), window[at], count);
    };
    for (int at = 0; at < past; at++) window[at] = load_short_up_to(state_of(row.place, at), count);
    for (int at = 0; at < args.kernel; at++)
        weights[at] = load_up_to(args.weight + (int64_t)at * args.channels + channel, count);
    const F16 bias = args.bias ? load_up_to(args.bias + channel, count) : F16{};
    int64_t save = 0;
    for (int64_t i = 0; i < row.count; i++) {
        const int64_t token = row.first_token + i, from = token * args.source_bytes + channel * 4;
        F16 x = shortened(load_up_to(reinterpret_cast<const float *>(args.source + from), count));
        if (args.inner)
            x = shortened(x * shortened(load_up_to(reinterpret_cast<const float *>(args.inner + from), count)));
        window[past] = x;
        F16 y = window[0] * weights[0];
        for (int at = 1; at < args.kernel; at++) y += window[at * step] * weights[at];
        y = activated(y + bias, args.activation);
        if (args.outer) y = y * shortened(load_up_to(reinterpret_cast<const float *>(args.outer + from), count));
        uint8_t *to = args.target + token * args.target_bytes;
        if (args.to_bf16)
            store_bf16_up_to(to + channel * 2, y, count);
        else
            store_up_to(reinterpret_cast<float *>(to) + channel, y, count);
        for (int at = 0; at < past; at++) window[at] = window[at + 1];
        for (; save < row.save_count && row.saves[save * 3 + 1] == i + 1; save++) keep(row.saves[save * 3 + 2]);
    }
    keep(row.place);
}

void convolve(const ConvolveArgs &args, const Work &work) {
    const int64_t parts = (args.channels + kChannelsAtOnce - 1) / kChannelsAtOnce;
    for (int64_t item; (item = take(work, 1)) < args.row_count * parts;) {
        const int first = static_cast<int>(item % parts) * kChannelsAtOnce;
        for (int channel = first; channel < least(first + kChannelsAtOnce, args.channels); channel += 16)
            convolve_some(args, args.rows[item / parts], channel);
    }
}

// ---- what states keep and learn ----

SEPARATE void rates_of(const RatesArgs &args, const float *a, const float *b, float *to) {
    for (int head = 0; head < args.heads; head += 16) {
        const int64_t count = args.heads - head;
        const F16 decay = load_up_to(args.decay + head, count);
        F16 rate = all(1.0f), learnt = rate;
        if (args.rule != PENSTOCK_CONSTANT) {
            rate = softplus(load_up_to(a + head, count) + load_up_to(args.bias + head, count));
            rate = maximum(minimum(rate, all(args.highest)), all(args.lowest));
            learnt = rate;
        }
        if (args.rule == PENSTOCK_DELTA_RULE) learnt = sigmoid(load_up_to(b + head, count)) * args.scale;
        store_up_to(to + head, exponential(-(rate * decay)), count);
        store_up_to(to + args.heads + head, learnt, count);
    }
}

// Of the channels of each head.
SEPARATE void channel_rates_of(const RatesArgs &args, const float *a, const float *b, float *to) {
    const bool is_bounded = args.rule == PENSTOCK_BOUNDED_CHANNELS;
    for (int head = 0; head < args.heads; head++)
        for (int i = 0; i < args.head_dim; i += 16) {
            const int64_t at = (int64_t)head * args.head_dim + i, count = args.head_dim - i;
            const F16 x = load_up_to(a + at, count) + load_up_to(args.bias + at, count);
            const F16 y = is_bounded ? sigmoid(x * args.decay[head]) * args.lowest : softplus(x) * -args.decay[head];
            store_up_to(to + at, exponential(y), count);
        }
    float *learnt = to + (int64_t)args.heads * args.head_dim;
    for (int head = 0; head < args.heads; head += 16) {
        const int64_t count = args.heads - head;
        store_up_to(learnt + head, sigmoid(load_up_to(b + head, count)) * args.scale, count);
    }
}

SEPARATE float dot(const float *a, const float *b, int width) {
    F16 sum = {};
    for (int at = 0; at < width; at += 16) sum += load_up_to(a + at, width - at) * load_up_to(b + at, width - at);
    return sum_of(sum);
}

SEPARATE void to_unit(float *x, int width, float eps, float scale) {
    const float factor = scale / __builtin_sqrtf(dot(x, x, width) + eps);
    for (int at = 0; at < width; at += 16)
        store_up_to(x + at, load_up_to(x + at, width - at) * factor, width - at);
}

void rates(const RatesArgs &args, const Work &work) {
    const int64_t at_once = share(args.tokens, work);
    for (int64_t first; (first = take(work, at_once)) < args.tokens;)
        for (int64_t token = first; token < least(first + at_once, args.tokens); token++) {
            const int64_t from = token * args.source_bytes;
            const float *a = reinterpret_cast<const float *>(args.a + from);
            const float *b = reinterpret_cast<const float *>(args.b + token * args.b_bytes);
            float *to = reinterpret_cast<float *>(args.target + token * args.target_bytes);
            if (args.rule >= PENSTOCK_CHANNELS)
                channel_rates_of(args, a, b, to);
            else
                rates_of(args, a, b, to);
            float *units = reinterpret_cast<float *>(args.units + token * args.units_bytes);
            for (int head = 0; head < 2 * args.unit_heads; head++)
                to_unit(units + (int64_t)head * args.unit_dim, args.unit_dim, args.unit_eps,
                        head < args.unit_heads ? args.query_scale : 1.0f);
        }
}

// ---- states of heads ----

// Columns of a head's state that are advanced together: they stay in the first cache through a whole row.
constexpr int kColumns = 32;

struct Columns {
    F16 low, high;
};

INLINE Columns load_columns(const float *from, int count) {
    return {load_up_to(from, count), count > 16 ? load_up_to(from + 16, count - 16) : F16{}};
}

INLINE void store_columns(float *to, const Columns &x, int count) {
    store_up_to(to, x.low, count);
    if (count > 16) store_up_to(to + 16, x.high, count - 16);
}

// Adds the last token's key times what was new of its value, lets the state decay to the next token, and asks it with that
// one's key and query: one pass over the state for each token.
//
// `kept` is of the head, or of each of its channels.
template <bool channels>
SEPARATE void learn_and_ask(float *state, int size, const float *last_key, const Columns &added, const float *kept,
                            const float *key, const float *query, Columns *known, Columns *answer) {
    F16 known_low = {}, known_high = {}, low = {}, high = {};
    const float share = *kept;
    for (int d = 0; d < size; d++) {
        float *at = state + d * kColumns;
        const F16 x = (load(at) + added.low * last_key[d]) * (channels ? kept[d] : share);
        const F16 y = (load(at + 16) + added.high * last_key[d]) * (channels ? kept[d] : share);
        store(at, x), store(at + 16, y);
        known_low += x * key[d], known_high += y * key[d];
        low += x * query[d], high += y * query[d];
    }
    *known = {known_low, known_high}, *answer = {low, high};
}

SEPARATE void add_and_ask(float *state, int size, const float *key, const Columns &added, float kept,
                          const float *query, Columns *answer) {
    F16 low = {}, high = {};
    for (int d = 0; d < size; d++) {
        float *at = state + d * kColumns;
        const F16 x = load(at) * kept + added.low * key[d];
        const F16 y = load(at + 16) * kept + added.high * key[d];
        store(at, x), store(at + 16, y);
        low += x * query[d], high += y * query[d];
    }
    *answer = {low, high};
}

// Copies columns of a state, with what the last token added, to another place: past the caches, since in most steps of a verify row nobody
// reads it.
SEPARATE void copy_with(const float *state, int size, const float *key, const Columns &added, float *to, int64_t stride,
                        int count) {
    const bool is_whole = count == kColumns && reinterpret_cast<uintptr_t>(to) % 64 == 0 && stride % 16 == 0;
    for (int d = 0; d < size; d++, state += kColumns, to += stride) {
        const Columns now = {load(state) + added.low * key[d], load(state + 16) + added.high * key[d]};
        if (is_whole)
            stream(to, now.low), stream(to + 16, now.high);
        else
            store_columns(to, now, count);
    }
    streamed();
}

// Some columns of one head of a row.
SEPARATE void recur_some(const RecurArgs &args, const StateRow &row, int head, int first, float *state) {
    const int size = args.key_dim, count = static_cast<int>(least(kColumns, args.value_dim - first));
    const int key_head = head / (args.heads / args.key_heads);
    const auto state_of = [&](int64_t place) {
        return reinterpret_cast<float *>(args.states.places + place * args.states.place_bytes) +
               (int64_t)head * size * args.value_dim + first;
    };
    const float *from = state_of(row.place);
    for (int d = 0; d < size; d++) {
        const Columns x = load_columns(from + (int64_t)d * args.value_dim, count);
        store(state + d * kColumns, x.low), store(state + d * kColumns + 16, x.high);
    }
    Columns added = {F16{}, F16{}}, known, answer;
    const float *last_key = nullptr;
    int64_t save = 0;
    for (int64_t i = 0; i < row.count; i++) {
        const int64_t token = row.first_token + i, at = token * args.source_bytes;
        const float *query = reinterpret_cast<const float *>(args.queries + at) + key_head * size;
        const float *key = reinterpret_cast<const float *>(args.keys + at) + key_head * size;
        const Columns value = load_columns(
            reinterpret_cast<const float *>(args.values + at) + (int64_t)head * args.value_dim + first, count);
        const float *rates = reinterpret_cast<const float *>(args.rates + token * args.rates_bytes);
        const int64_t step = args.channels ? size : 1;
        const float *kept = rates + head * step;
        const float learnt = rates[args.heads * step + head];
        if (args.learns) {
            if (args.channels)
                learn_and_ask<true>(state, size, last_key ? last_key : key, added, kept, key, query, &known, &answer);
            else
                learn_and_ask<false>(state, size, last_key ? last_key : key, added, kept, key, query, &known, &answer);
            added = {(value.low - known.low) * learnt, (value.high - known.high) * learnt};
            const float same = dot(query, key, size);
            answer = {answer.low + added.low * same, answer.high + added.high * same};
            last_key = key;
        } else {
            add_and_ask(state, size, key, {value.low * learnt, value.high * learnt}, *kept, query, &answer);
        }
        if (args.skip) {
            const float skip = args.skip[head];
            answer = {answer.low + value.low * skip, answer.high + value.high * skip};
        }
        store_columns(reinterpret_cast<float *>(args.target + token * args.target_bytes) +
                          (int64_t)head * args.value_dim + first,
                      answer, count);
        for (; save < row.save_count && row.saves[save * 3 + 1] == i + 1; save++)
            copy_with(state, size, key, added, state_of(row.saves[save * 3 + 2]), args.value_dim, count);
        if (i + 1 == row.count) {
            float *to = state_of(row.place);
            for (int d = 0; d < size; d++, to += args.value_dim)
                store_columns(to,
                              {load(state + d * kColumns) + added.low * key[d],
                               load(state + d * kColumns + 16) + added.high * key[d]},
                              count);
        }
    }
}

void recur(const RecurArgs &args, const Work &work) {
    const int64_t parts = (args.value_dim + kColumns - 1) / kColumns;
    for (int64_t item; (item = take(work, 1)) < args.row_count * args.heads * parts;)
        recur_some(args, args.rows[item / (args.heads * parts)], static_cast<int>(item / parts % args.heads),
                   static_cast<int>(item % parts) * kColumns, reinterpret_cast<float *>(work.scratch));
}

// ---- states of channels ----

// Of 16 channels at once: a lane is a channel.
SEPARATE void scan_some(const ScanArgs &args, const StateRow &row, int channel, float *scratch) {
    const int size = args.size, count = static_cast<int>(least(16, args.channels - channel));
    float *state = scratch, *decay = state + 16 * size;
    const auto state_of = [&](int64_t place) {
        return reinterpret_cast<float *>(args.states.places + place * args.states.place_bytes) + (int64_t)channel * size;
    };
    const auto keep = [&](int64_t place) {
        float *to = state_of(place);
        for (int lane = 0; lane < count; lane++)
            for (int m = 0; m < size; m++) to[lane * size + m] = state[m * 16 + lane];
    };
    const float *from = state_of(row.place);
    for (int m = 0; m < size; m++)
        for (int lane = 0; lane < 16; lane++) {
            const bool is_there = lane < count;
            state[m * 16 + lane] = is_there ? from[lane * size + m] : 0.0f;
            decay[m * 16 + lane] = is_there ? args.decay[(int64_t)(channel + lane) * size + m] : 0.0f;
        }
    const F16 skip = load_up_to(args.skip + channel, count);
    int64_t save = 0;
    for (int64_t i = 0; i < row.count; i++) {
        const int64_t token = row.first_token + i;
        const F16 x = load_up_to(reinterpret_cast<const float *>(args.source + token * args.source_bytes) + channel, count);
        const F16 rate =
            softplus(load_up_to(reinterpret_cast<const float *>(args.rates + token * args.rates_bytes) + channel, count));
        const float *b = reinterpret_cast<const float *>(args.b + token * args.other_bytes);
        const float *c = reinterpret_cast<const float *>(args.c + token * args.other_bytes);
        const F16 added = rate * x;
        F16 answer = {};
        for (int m = 0; m < size; m++) {
            const F16 now = load(state + m * 16) * exponential(rate * load(decay + m * 16)) + added * b[m];
            store(state + m * 16, now);
            answer += now * c[m];
        }
        store_up_to(reinterpret_cast<float *>(args.target + token * args.target_bytes) + channel, answer + x * skip,
                    count);
        for (; save < row.save_count && row.saves[save * 3 + 1] == i + 1; save++) keep(row.saves[save * 3 + 2]);
    }
    keep(row.place);
}

void scan(const ScanArgs &args, const Work &work) {
    const int64_t parts = (args.channels + 15) / 16;
    for (int64_t item; (item = take(work, 1)) < args.row_count * parts;)
        scan_some(args, args.rows[item / parts], static_cast<int>(item % parts) * 16,
                  reinterpret_cast<float *>(work.scratch));
}

// ---- states of single numbers ----

INLINE F16 root(F16 x) {
    float part[16];
    store(part, x);
    for (int lane = 0; lane < 16; lane++) part[lane] = __builtin_sqrtf(part[lane]);
    return load(part);
}

// Up to 16 channels of a head. What goes in is scaled so that the state keeps its size; a sequence's first token is its state.
SEPARATE void gated_recur_some(const GatedRecurArgs &args, const StateRow &row, int head, int first) {
    const int size = args.head_dim, count = static_cast<int>(least(16, size - first));
    const int64_t channel = (int64_t)head * size + first, gate = channel + (int64_t)head * size;
    const auto state_of = [&](int64_t place) {
        return reinterpret_cast<float *>(args.states.places + place * args.states.place_bytes) + channel;
    };
    const F16 rate = load_up_to(args.rate + channel, count);
    const F16 read_bias = load_up_to(args.bias + gate, count), kept_bias = load_up_to(args.bias + gate + size, count);
    F16 state = load_up_to(state_of(row.place), count);
    int64_t save = 0;
    for (int64_t i = 0; i < row.count; i++) {
        const int64_t token = row.first_token + i;
        const float *gates = reinterpret_cast<const float *>(args.gates + token * args.gates_bytes) + gate;
        const F16 x = load_up_to(reinterpret_cast<const float *>(args.source + token * args.source_bytes) + channel, count);
        const F16 log_kept = -(sigmoid(load_up_to(gates + size, count) + kept_bias) * rate);
        F16 added = x * sigmoid(load_up_to(gates, count) + read_bias);
        if (args.token_positions[token] != 0) {
            const F16 lost = 1.0f - exponential(log_kept + log_kept);
            added = added * root(select(is_less(lost, F16{}), F16{}, lost));
        }
        state = exponential(log_kept) * state + added;
        store_up_to(reinterpret_cast<float *>(args.target + token * args.target_bytes) + channel, state, count);
        for (; save < row.save_count && row.saves[save * 3 + 1] == i + 1; save++)
            store_up_to(state_of(row.saves[save * 3 + 2]), state, count);
    }
    store_up_to(state_of(row.place), state, count);
}

void gated_recur(const GatedRecurArgs &args, const Work &work) {
    const int64_t parts = (args.head_dim + 15) / 16;
    for (int64_t item; (item = take(work, 1)) < args.row_count * args.heads * parts;)
        gated_recur_some(args, args.rows[item / (args.heads * parts)], static_cast<int>(item / parts % args.heads),
                         static_cast<int>(item % parts) * 16);
}

}  // namespace
