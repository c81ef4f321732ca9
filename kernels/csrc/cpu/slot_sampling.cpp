#include "slot_sampling.h"

#include <algorithm>
#include <cmath>

#include "plan.h"

namespace penstock {

namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

uint64_t mixed(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// A number in [0, 1) of a seed and a position: `uniform` in penstock_kernels/draws.py.
double uniform(uint64_t seed, int64_t position) {
    return static_cast<double>(mixed(mixed(seed + kGolden) + (static_cast<uint64_t>(position) + 1) * kGolden) >> 11) * 0x1p-53;
}

}  // namespace

bool SlotSampling::is_usual(const Fields &starts, int64_t count, int64_t free) const {
    constexpr uint32_t lists = bits({kHistory, kEndTokens});
    constexpr uint32_t columns = bits({kSeeds, kTemperatures, kTopKs, kTopPs, kTypicalPs, kMinPs, kRepetitionPenalties, kFrequencyPenalties,
                                       kPresencePenalties, kTopTokens, kHistoryCounts, kHistoryOutputs, kBiasCounts, kFirstEnds, kEndCounts,
                                       kWatermarkDeltas, kWatermarkGreens});
    if ((starts.has & ~lists & ~bits({kAdapters})) != columns || !has_adapters(starts, count) || starts.columns[kSeeds].size != count * 8) return false;
    for (int field = kSeeds + 1; field < static_cast<int>(Fields::kMost); field++)
        if (columns >> field & 1 && starts.columns[static_cast<size_t>(field)].size != count * 4) return false;
    for (int64_t number = 0; number < count; number++) {
        if (starts.columns[kTopTokens].word(number) || starts.columns[kBiasCounts].word(number) || !are_numbers(starts, number)) return false;
        const int64_t greens = starts.columns[kWatermarkGreens].word(number);
        if (starts.columns[kWatermarkDeltas].at<float>(number) > 0 && (greens == 0 || greens >= all_.columns)) return false;
    }
    return has_room(starts, count, free);
}

bool SlotSampling::has_adapters(const Fields &starts, int64_t count) const {
    const Bytes &adapters = starts.columns[kAdapters];
    if (adapters.size != (all_.adapters ? count * 4 : 0)) return false;
    for (int64_t number = 0; number < adapters.words(); number++)
        if (adapters.word(number) > all_.adapters) return false;
    return true;
}

bool SlotSampling::are_numbers(const Fields &starts, int64_t number) {
    for (int field : {kTemperatures, kTopPs, kTypicalPs, kMinPs, kRepetitionPenalties, kWatermarkDeltas}) {
        const auto one = starts.columns[static_cast<size_t>(field)].at<float>(number);
        if (!std::isfinite(one) || one < 0) return false;
    }
    return std::isfinite(starts.columns[kFrequencyPenalties].at<float>(number)) &&
           std::isfinite(starts.columns[kPresencePenalties].at<float>(number)) && starts.columns[kRepetitionPenalties].at<float>(number) != 0;
}

bool SlotSampling::is_penalized(const Fields &starts, int64_t number) {
    return starts.columns[kRepetitionPenalties].at<float>(number) != 1 || starts.columns[kFrequencyPenalties].at<float>(number) != 0 ||
           starts.columns[kPresencePenalties].at<float>(number) != 0;
}

bool SlotSampling::has_room(const Fields &starts, int64_t count, int64_t free) const {
    const auto &columns = starts.columns;
    int64_t history = 0, ends = 0, penalized = 0;
    for (int64_t number = 0; number < count; number++) {
        const int64_t held = columns[kEndCounts].word(number);
        if (columns[kHistoryOutputs].word(number) > columns[kHistoryCounts].word(number) || held > of_.end_width ||
            (held == 0) != (columns[kFirstEnds].word(number) == 0))
            return false;
        history += columns[kHistoryCounts].word(number), ends += held, penalized += is_penalized(starts, number);
    }
    if (penalized > free || columns[kHistory].size != history * 4 || columns[kEndTokens].size != ends * 4) return false;
    for (const Bytes &list : {columns[kHistory], columns[kEndTokens]})
        for (int64_t at = 0; at < list.words(); at++)
            if (list.word(at) >= all_.columns) return false;
    return true;
}

void SlotSampling::release(int64_t slot) {
    if (counts(slot)) of_.free_rows[(*of_.free_count)++] = of_.count_rows[slot];
    of_.count_rows[slot] = -1, of_.bias_counts[slot] = 0;
}

void SlotSampling::start(const Fields &starts, const std::vector<int64_t> &slots) {
    for (int64_t slot : slots) release(slot);
    Start next = {0, 0, 0};
    for (int64_t slot : slots) {
        start(starts, next, slot);
        next.first_history += starts.columns[kHistoryCounts].word(next.number);
        next.first_end += starts.columns[kEndCounts].word(next.number);
        next.number++;
    }
}

void SlotSampling::start(const Fields &starts, const Start &start, int64_t slot) {
    const int64_t number = start.number;
    const auto real = [&](int field) { return starts.columns[static_cast<size_t>(field)].at<float>(number); };
    of_.seeds[slot] = starts.columns[kSeeds].at<uint64_t>(number);
    of_.temperatures[slot] = real(kTemperatures);
    const uint32_t top_k = starts.columns[kTopKs].word(number);
    of_.top_ks[slot] = top_k == 0 ? all_.columns : top_k;
    of_.top_ps[slot] = real(kTopPs), of_.typical_ps[slot] = real(kTypicalPs), of_.min_ps[slot] = real(kMinPs);
    of_.furthest[slot] = static_cast<float>(std::abs(std::log(static_cast<double>(of_.min_ps[slot]))));
    of_.repetitions[slot] = real(kRepetitionPenalties);
    of_.frequencies[slot] = real(kFrequencyPenalties), of_.presences[slot] = real(kPresencePenalties);
    of_.watermark_deltas[slot] = real(kWatermarkDeltas), of_.watermark_greens[slot] = starts.columns[kWatermarkGreens].word(number);
    of_.top_counts[slot] = 0;
    of_.first_ends[slot] = starts.columns[kFirstEnds].word(number);
    const bool is_drawn = of_.temperatures[slot] > 0, is_held = of_.first_ends[slot] > 0, is_counted = is_penalized(starts, number);
    of_.are_simple[slot] = !(is_counted || is_held || of_.watermark_deltas[slot] > 0 || (is_drawn && of_.typical_ps[slot] < 1));
    of_.are_plain[slot] = of_.are_simple[slot] && !is_drawn;
    if (is_counted) take_counts(starts, start, slot);
    if (is_held) hold_back(starts, start, slot);
}

void SlotSampling::take_counts(const Fields &starts, const Start &start, int64_t slot) {
    const int64_t row = of_.count_rows[slot] = of_.free_rows[--*of_.free_count];
    int32_t *const prompt = of_.prompt_counts + row * all_.columns, *const output = of_.output_counts + row * all_.columns;
    std::fill_n(prompt, all_.columns, 0), std::fill_n(output, all_.columns, 0);
    const int64_t length = starts.columns[kHistoryCounts].word(start.number);
    const int64_t prompt_length = length - starts.columns[kHistoryOutputs].word(start.number);
    for (int64_t at = 0; at < length; at++) (at < prompt_length ? prompt : output)[starts.columns[kHistory].word(start.first_history + at)]++;
}

void SlotSampling::hold_back(const Fields &starts, const Start &start, int64_t slot) {
    // To the full width the same once more.
    const int64_t count = starts.columns[kEndCounts].word(start.number);
    for (int64_t at = 0; at < of_.end_width; at++)
        of_.end_tokens[slot * of_.end_width + at] = starts.columns[kEndTokens].word(start.first_end + at % count);
}

penstock_draws *SlotSampling::draws(const Plan &plan, const std::vector<int32_t> &masks, const std::vector<uint32_t> &words,
                                    int64_t mask_words) {
    rows_.clear(), bias_tokens_.clear(), biases_.clear();
    may_lack_ = false;
    for (int64_t sample = 0; sample < plan.samples(); sample++) draw(plan, sample, masks[static_cast<size_t>(sample)]);
    if (rows_.empty()) return nullptr;
    tokens_.resize(rows_.size()), possible_.resize(rows_.size());
    draws_ = {static_cast<int64_t>(rows_.size()), rows_.data(), words.data(), mask_words, bias_tokens_.data(), biases_.data(),
              of_.end_tokens, all_.ids, tokens_.data(), possible_.data()};
    return &draws_;
}

void SlotSampling::draw(const Plan &plan, int64_t sample, int32_t mask) {
    const int64_t row = plan.row_of(sample), slot = plan.slot(row), position = plan.position_of(sample), count_row = of_.count_rows[slot];
    const bool is_biased = of_.bias_counts[slot] > 0, is_held = position < of_.first_ends[slot];
    const bool is_penalized = count_row >= 0, is_marked = of_.watermark_deltas[slot] > 0;
    may_lack_ |= is_biased || is_held;
    if (!(of_.temperatures[slot] > 0 || is_biased || is_held || is_penalized || is_marked)) return;
    penstock_draw_row made = {};
    made.row = sample, made.mask = mask;
    made.uniform = uniform(of_.seeds[slot], position);
    made.temperature = of_.temperatures[slot], made.top_k = of_.top_ks[slot], made.top_p = of_.top_ps[slot];
    made.typical_p = of_.typical_ps[slot], made.furthest = of_.furthest[slot];
    if (is_marked) {
        made.previous = all_.ids[plan.token_of(sample)];
        made.greens = of_.watermark_greens[slot], made.delta = of_.watermark_deltas[slot];
    }
    if (is_held) made.first_end = slot * of_.end_width, made.ends = of_.end_width;
    if (is_biased) {
        made.first_bias = static_cast<int64_t>(biases_.size()), made.biases = of_.bias_counts[slot];
        bias_tokens_.insert(bias_tokens_.end(), of_.bias_tokens[slot], of_.bias_tokens[slot] + made.biases);
        biases_.insert(biases_.end(), of_.biases[slot], of_.biases[slot] + made.biases);
    }
    if (is_penalized) {
        made.repetition = of_.repetitions[slot], made.frequency = of_.frequencies[slot], made.presence = of_.presences[slot];
        made.prompt_counts = of_.prompt_counts + count_row * all_.columns, made.output_counts = of_.output_counts + count_row * all_.columns;
        // Drafts before it count as output.
        made.before = sample - plan.first_sample(row);
        made.first_before = plan.token_of(sample) - made.before + 1;
    }
    rows_.push_back(made);
}

bool SlotSampling::lacks(int64_t sample) const {
    for (size_t at = 0; at < rows_.size(); at++)
        if (rows_[at].row == sample) return !possible_[at];
    return false;
}

void SlotSampling::count(int64_t slot, int64_t token) {
    if (counts(slot)) of_.output_counts[of_.count_rows[slot] * all_.columns + token]++;
}

}  // namespace penstock
