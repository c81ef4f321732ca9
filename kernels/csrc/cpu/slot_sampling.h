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

    // Whether so many sequences begin without biases and alternatives, and there is room for the lists of the others. `free`: rows of counts,
    // with those of slots that the plan has end.
    bool is_usual(const Fields &starts, int64_t count, int64_t free) const;
    // Whether a slot has counts of its tokens.
    bool counts(int64_t slot) const { return of_.count_rows[slot] >= 0; }
    // Gives up what a slot has.
    void release(int64_t slot);
    // Takes over what the sequences of some slots, which were released, are sampled with: `starts` are usual.
    void start(const Fields &starts, const std::vector<int64_t> &slots);

    // How the samples of a step are drawn that nothing but a mask, or nothing, has choose the likeliest token. Null: all are those.
    // `masks`: of each sample, as `RowMasks` has it.
    penstock_draws *draws(const Plan &plan, const std::vector<int32_t> &masks, const std::vector<uint32_t> &words, int64_t mask_words);
    // Of the draws that were made last, whether some sample had no token left, and whether this one had not.
    bool may_lack() const { return may_lack_; }
    bool lacks(int64_t sample) const;
    // Counts a token for the penalties of a slot that has some.
    void count(int64_t slot, int64_t token);

private:
    // How one begins, of its place in columns that have an entry of each, and in those that have lists.
    struct Start {
        int64_t number, first_history, first_end;
    };

    // Whether each names one that there is, or none.
    bool has_adapters(const Fields &starts, int64_t count) const;
    static bool are_numbers(const Fields &starts, int64_t number);
    static bool is_penalized(const Fields &starts, int64_t number);
    bool has_room(const Fields &starts, int64_t count, int64_t free) const;
    void start(const Fields &starts, const Start &start, int64_t slot);
    void take_counts(const Fields &starts, const Start &start, int64_t slot);
    void hold_back(const Fields &starts, const Start &start, int64_t slot);
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
