// Which experts a token goes to, and the tokens of a step by their experts. Included by kernels.cpp. The products are in
// linear.h.
#pragma once

#include "work.h"

namespace {

constexpr int kMostPerToken = 64;

// The lowest place of the largest of `count` numbers, a multiple of 16.
SEPARATE int place_of_largest(const float *x, int64_t count) {
    F16 best = all(-__builtin_inff());
    I16 places = {};
    for (int64_t at = 0; at < count; at += 16) {
        const F16 some = load(x + at);
        const I16 is_larger = is_less(best, some);
        best = select(is_larger, some, best);
        places = select(is_larger, lanes() + static_cast<int32_t>(at), places);
    }
    const float largest = maximum_of(best);
    int32_t lowest = 0x7fffffff;
    for (int lane = 0; lane < 16; lane++)
        if (best[lane] == largest && places[lane] < lowest) lowest = places[lane];
    return lowest == 0x7fffffff ? 0 : lowest;
}

// Logits of experts, filled up to a multiple of 16, to scores.
SEPARATE void score(const RouteArgs &args, const float *logits, float *scores, int64_t padded) {
    if (args.root_softplus) {
        for (int64_t at = 0; at < padded; at += 16) {
            const F16 x = softplus(load(logits + at));
            float roots[16];
            store(roots, x);
            for (int i = 0; i < 16; i++) roots[i] = __builtin_sqrtf(roots[i]);
            store(scores + at, load(roots));
        }
        return;
    }
    if (args.sigmoid) {
        for (int64_t at = 0; at < padded; at += 16) store(scores + at, sigmoid(load(logits + at)));
        return;
    }
    F16 best = all(-__builtin_inff());
    for (int64_t at = 0; at < padded; at += 16) best = maximum(load(logits + at), best);
    const float largest = maximum_of(best);
    F16 sum = {};
    for (int64_t at = 0; at < padded; at += 16) {
        const F16 x = exponential(load(logits + at) - largest);
        sum += x;
        store(scores + at, x);
    }
    const float factor = 1.0f / sum_of(sum);
    for (int64_t at = 0; at < padded; at += 16) store(scores + at, load(scores + at) * factor);
}

// Hides the experts of all but the best groups.
SEPARATE void keep_best_groups(const RouteArgs &args, float *choice) {
    const int size = args.experts / args.groups;
    float *end = choice + args.experts;
    bool kept[256] = {};
    float goodness[256];
    for (int group = 0; group < args.groups; group++) {
        const float *of_group = choice + group * size;
        float best[kMostPerToken];
        int found = 0;
        for (int i = 0; i < size; i++) {
            int at = found < args.group_best ? found++ : args.group_best;
            for (; at > 0 && of_group[i] > best[at - 1]; at--)
                if (at < args.group_best) best[at] = best[at - 1];
            if (at < args.group_best) best[at] = of_group[i];
        }
        goodness[group] = 0.0f;
        for (int i = 0; i < found; i++) goodness[group] += best[i];
    }
    for (int i = 0; i < args.top_groups; i++) {
        int best = -1;
        for (int group = 0; group < args.groups; group++)
            if (!kept[group] && (best < 0 || goodness[group] > goodness[best])) best = group;
        if (best >= 0) kept[best] = true;
    }
    for (float *x = choice; x < end; x++)
        if (!kept[(x - choice) / size]) *x = -__builtin_inff();
}

// One expert after another, each by its share among those near the largest that is left.
SEPARATE void choose_one_by_one(const RouteArgs &args, const float *logits, float *left, int64_t padded, float *weights,
                                int32_t *chosen) {
    const F16 hidden = all(-__builtin_inff());
    for (int64_t at = 0; at < padded; at += 16) store(left + at, load(logits + at));
    for (int i = 0; i < args.per_token; i++) {
        const int place = place_of_largest(left, padded);
        const float largest = left[place];
        F16 sum = {};
        for (int64_t at = 0; at < padded; at += 16) {
            const F16 x = load(logits + at);
            const F16 distance = (largest - x) / maximum(size_of(x), all(largest));
            const F16 near = select(is_less(all(args.one_by_one), distance), hidden, load(left + at));
            sum += exponential(near - largest);
        }
        weights[i] = args.scale / sum_of(sum), chosen[i] = place;
        left[place] = -__builtin_inff();
    }
}

SEPARATE void route_token(const RouteArgs &args, const float *from, const int32_t *named, float *weights, int32_t *chosen, float *scratch) {
    const int64_t padded = round_up(args.experts, 16);
    float *logits = scratch, *scores = logits + padded, *choice = scores + padded;
    const F16 hidden = all(-__builtin_inff());
    for (int64_t at = 0; at < padded; at += 16) {
        const F16 x = load_up_to(from + at, args.experts - at);
        store(logits + at, select(are_first(static_cast<int>(args.experts - at)), x, hidden));
    }
    if (args.one_by_one != 0.0f) return choose_one_by_one(args, logits, choice, padded, weights, chosen);
    score(args, logits, scores, padded);
    for (int64_t at = 0; at < padded; at += 16) {
        F16 x = load(scores + at);
        if (args.correction) x = x + load_up_to(args.correction + at, args.experts - at);
        store(choice + at, select(are_first(static_cast<int>(args.experts - at)), x, hidden));
    }
    if (args.groups > 1) keep_best_groups(args, choice);
    float sum = 0.0f;
    for (int i = 0; i < args.per_token; i++) {
        const int place = named ? named[i] : place_of_largest(choice, padded);
        weights[i] = scores[place], chosen[i] = place;
        sum += weights[i];
        choice[place] = -__builtin_inff();
    }
    const float factor = args.normalize ? args.scale / (sum + 1e-20f) : args.scale;
    for (int i = 0; i < args.per_token; i++) weights[i] *= factor;
}

void route(const RouteArgs &args, const Work &work) {
    const int64_t at_once = share(args.tokens, work);
    for (int64_t first; (first = take(work, at_once)) < args.tokens;)
        for (int64_t token = first; token < least(first + at_once, args.tokens); token++) {
            float *to = reinterpret_cast<float *>(args.target + token * args.target_bytes);
            const int32_t *named = args.by_token ? args.by_token + args.ids[token] * args.per_token : nullptr;
            route_token(args, reinterpret_cast<const float *>(args.logits + token * args.logits_bytes), named, to,
                        reinterpret_cast<int32_t *>(to + args.per_token), reinterpret_cast<float *>(work.scratch));
            if (!args.factors) continue;
            const int32_t *chosen = reinterpret_cast<const int32_t *>(to + args.per_token);
            for (int i = 0; i < args.per_token; i++) to[i] *= args.factors[chosen[i]];
        }
}

// Counts, then places: tokens of an expert stay in their order.
void group(const RouteArgs &args) {
    const Groups &to = args.grouped;
    int32_t *next = to.begins + 1;  // where the next entry of an expert goes: its begin, and in the end the next one's
    for (int expert = 0; expert < args.experts + 2; expert++) to.begins[expert] = 0;
    const auto of_token = [&](int64_t token) {
        return reinterpret_cast<const float *>(args.target + token * args.target_bytes);
    };
    for (int64_t token = 0; token < args.tokens; token++) {
        const int32_t *chosen = reinterpret_cast<const int32_t *>(of_token(token) + args.per_token);
        for (int i = 0; i < args.per_token; i++) next[chosen[i] + 1]++;
    }
    int32_t active = 0, most = 0;
    for (int expert = 0; expert < args.experts; expert++) {
        const int32_t count = next[expert + 1];
        if (count > 0 && expert >= args.first && expert < args.first + args.own) {
            to.active[active++] = expert;
            most = count > most ? count : most;
        }
        next[expert + 1] += next[expert];
    }
    *to.active_count = active, *to.most = most;
    for (int64_t token = 0; token < args.tokens; token++) {
        const float *weights = of_token(token);
        const int32_t *chosen = reinterpret_cast<const int32_t *>(weights + args.per_token);
        for (int i = 0; i < args.per_token; i++) {
            const int32_t entry = next[chosen[i]]++;
            to.tokens[entry] = static_cast<int32_t>(token), to.weights[entry] = weights[i];
        }
    }
}

SEPARATE void gather_row(const GatherArgs &args, int64_t entry) {
    const uint8_t *from = args.source + args.grouped.tokens[entry] * args.source_bytes;
    uint8_t *to = args.target + entry * args.target_bytes;
    const float weight = from_bf16(to_bf16(all(args.grouped.weights[entry])))[0];
    if (args.layout == PENSTOCK_BF16) {
        for (int64_t at = 0; at < round_up(args.width, PENSTOCK_TILE_INPUTS); at += 16) {
            const H16 x = load_bf16(from + at * 2);
            store_bf16(to + at * 2, args.weighs ? to_bf16(from_bf16(x) * weight) : x);
        }
        return;
    }
    const int64_t scale = scale_offset(args.width);
    for (int64_t at = 0; at < scale; at += 64)
        store_as(to + at, load_as<B64>(from + at));
    *reinterpret_cast<float *>(to + scale) =
        *reinterpret_cast<const float *>(from + scale) * (args.weighs ? weight : 1.0f);
}

void gather(const GatherArgs &args, const Work &work) {
    const int64_t at_once = share(args.entries, work);
    for (int64_t first; (first = take(work, at_once)) < args.entries;)
        for (int64_t entry = first; entry < least(first + at_once, args.entries); entry++) gather_row(args, entry);
}

}  // namespace
