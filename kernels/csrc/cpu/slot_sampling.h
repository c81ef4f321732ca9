// What slots are sampled with, and what follows for a step's samples: server/penstock/engine/slot_sampling.py and native_sampling.py, of whose
// columns this is the other user.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock_cpu.h"
#include "wire.h"

namespace penstock {

class Plan;

class SlotSampling {
public:
    explicit SlotSampling(penstock_run &all) : all_(all), of_(all.sampling) {}

    // Whether so many sequences begin without penalties, biases, ends that are held back, watermarks and alternatives.
    static bool is_usual(const Fields &starts, int64_t count);
    // Whether a slot has counts or biases, which Python gives up when its sequence is over.
    static bool holds_lists(const penstock_sampling &of, int64_t slot) { return of.count_rows[slot] >= 0 || of.bias_counts[slot] > 0; }

    // Takes over what a slot's sequence is sampled with: one of `starts`, which are usual.
    void start(const Fields &starts, int64_t number, int64_t slot);

    // How the samples of a step are drawn that nothing but a mask, or nothing, has choose the likeliest token. Null: all are those.
    // `masks`: of each sample, as `RowMasks` has it.
    penstock_draws *draws(const Plan &plan, const std::vector<int32_t> &masks, const std::vector<uint32_t> &words, int64_t mask_words);
    // Of the draws that were made last, whether some sample had no token left, and whether this one had not.
    bool may_lack() const { return may_lack_; }
    bool lacks(int64_t sample) const;
    // Counts a token for the penalties of a slot that has some.
    void count(int64_t slot, int64_t token);

private:
    void draw(const Plan &plan, int64_t sample, int32_t mask);

    penstock_run &all_;
    penstock_sampling &of_;
    bool may_lack_ = false;
    penstock_draws draws_ = {};
    std::vector<penstock_draw_row> rows_;
    std::vector<int64_t> bias_tokens_, tokens_;
    std::vector<float> biases_;
    std::vector<uint8_t> possible_;
};

}  // namespace penstock
