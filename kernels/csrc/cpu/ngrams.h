// N-gram embeddings: rows of a table that each token and those before it name, and how much of them each residual stream takes. Included
// by kernels.cpp. Cheng et al., "Conditional Memory via Scalable Lookup", 2026; penstock/models/ngram_embeddings.py is the definition.
#pragma once

#include "norms.h"
#include "work.h"

namespace {

using penstock::NgramArgs;
using penstock::NgramGateArgs;

// The id of the token that is so many before one: of the step, or of the state, which has them in fp32.
INLINE int64_t id_before(const NgramArgs &args, const StateRow &row, int64_t token, int64_t before) {
    const int64_t at = token - row.first_token - before;
    if (at >= 0) return args.ids[row.first_token + at];
    const auto *kept = reinterpret_cast<const float *>(args.states.places + row.place * args.states.place_bytes);
    return static_cast<int64_t>(kept[args.before + at]);
}

SEPARATE void find_ngrams(const NgramArgs &args, int64_t token, float *to) {
    const StateRow &row = args.rows[args.token_rows[token]];
    const auto multiplier = [&](int place) {
        uint64_t made;
        __builtin_memcpy(&made, args.numbers + 2 * place, sizeof made);
        return made;
    };
    const int32_t *parts = args.numbers + 2 * (args.before + 1), *begins = parts + args.before * args.heads;
    uint64_t mixed = static_cast<uint64_t>(args.ids[token]) * multiplier(0);
    int64_t nearer = -1;
    for (int place = 1; place <= args.before; place++) {
        // No n-gram reaches over the end of a text, nor over its beginning.
        const bool is_none = args.token_positions[token] < place || nearer == args.end;
        nearer = is_none ? args.end : id_before(args, row, token, place);
        mixed ^= static_cast<uint64_t>(nearer) * multiplier(place);
        for (int head = 0; head < args.heads; head++) {
            const int part = (place - 1) * args.heads + head;
            const int64_t found = static_cast<int64_t>(mixed % static_cast<uint64_t>(parts[part])) + begins[part] - args.first;
            const bool is_here = found >= 0 && found < args.known;
            for (int at = 0; at < args.width; at += 16) {
                const int64_t count = least(16, args.width - at);
                F16 x = {};
                if (is_here) {
                    const uint8_t *from = args.table + (found * args.width + at) * 2;
                    if (count == 16)
                        x = from_bf16(load_bf16(from));
                    else
                        x = from_bf16(load_bf16_up_to(reinterpret_cast<const uint16_t *>(from), count));
                }
                store_up_to(to + part * args.width + at, x, count);
            }
        }
    }
}

void find_rows(const NgramArgs &args, const Work &work) {
    each_row(args.tokens, work, [&](int64_t token) {
        find_ngrams(args, token, reinterpret_cast<float *>(args.target + token * args.target_bytes));
    });
}

// The last ids, of a row's own place each from further behind, and from the first on.
void keep_ids(const NgramArgs &args, const Work &work) {
    each_row(args.row_count, work, [&](int64_t number) {
        const StateRow &row = args.rows[number];
        const auto keep = [&](int64_t count, int64_t place) {
            auto *to = reinterpret_cast<float *>(args.states.places + place * args.states.place_bytes);
            for (int at = 0; at < args.before; at++)
                to[at] = static_cast<float>(id_before(args, row, row.first_token + count, args.before - at));
        };
        for (int64_t save = 0; save < row.save_count; save++) keep(row.saves[save * 3 + 1], row.saves[save * 3 + 2]);
        keep(row.count, row.place);
    });
}

// What a stream takes of a token's value: as much as its key and the stream, each normed, agree.
SEPARATE void gate_stream(const NgramGateArgs &args, const float *key, const float *stream, const float *value, int number,
                          float *to) {
    const int width = args.width;
    const float *key_weight = args.key_weight + (int64_t)number * width, *weight = args.stream_weight + (int64_t)number * width;
    F16 sum = {};
    for (int at = 0; at < width; at += 16) {
        const int count = width - at;
        sum += load_up_to(key + at, count) * load_up_to(key_weight + at, count) * load_up_to(stream + at, count) *
               load_up_to(weight + at, count);
    }
    const float size = static_cast<float>(width);
    const float key_factor = 1.0f / __builtin_sqrtf(squares(key, width, 0.0f) / size + args.eps);
    const float factor = 1.0f / __builtin_sqrtf(squares(stream, width, 0.0f) / size + args.eps);
    const float agree = sum_of(sum) * key_factor * factor / __builtin_sqrtf(size), far = agree < 0.0f ? -agree : agree;
    const float root = __builtin_sqrtf(far < 1e-6f ? 1e-6f : far);
    const F16 gate = sigmoid(all(agree < 0.0f ? -root : agree > 0.0f ? root : agree));
    for (int at = 0; at < width; at += 16) store_up_to(to + at, load_up_to(value + at, width - at) * gate, width - at);
}

void gate_ngrams(const NgramGateArgs &args, const Work &work) {
    each_row(args.tokens * args.streams, work, [&](int64_t item) {
        const int64_t token = item / args.streams, stream = item % args.streams, at = stream * args.width;
        const auto *made = reinterpret_cast<const float *>(args.source + token * args.source_bytes);
        gate_stream(args, made + at, reinterpret_cast<const float *>(args.held + token * args.held_bytes) + at,
                    made + (int64_t)args.streams * args.width, static_cast<int>(stream),
                    reinterpret_cast<float *>(args.target + token * args.target_bytes) + at);
    });
}

}  // namespace
