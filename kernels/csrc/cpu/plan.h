// A step plan: read, checked against the slots, and taken over, where it is usual. Python has the only full reading of the contract
// (server/penstock/engine/slots.py), and is left whatever is not.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock_cpu.h"
#include "program.h"
#include "slot_sampling.h"
#include "wire.h"

namespace penstock {

class Plan {
public:
    // Its rows are where `all` has them.
    Plan(penstock_run &all, SlotSampling &sampling);

    // Whether a plan is usual: rows that go on with the token behind their last one and drafts or none, chunks of prompts, and sequences that
    // begin with usual sampling. Nothing of the slots is changed. Its rows are those of the plan from now on.
    bool read(const Fields &plan);
    // Takes the plan that was read over: copies of pages, releases, starts, pages, positions, and what is fed.
    void take(const Fields &plan, Program &program);
    // The slots of the step's rows are told what they sampled: of each row its last sample that counts.
    void settle(const std::vector<int64_t> &lasts, const int64_t *tokens);

    int64_t rows() const { return all_.rows; }
    int64_t tokens() const { return static_cast<int64_t>(token_rows_.size()); }
    int64_t samples() const { return static_cast<int64_t>(sampled_.size()); }
    int64_t slot(int64_t row) const { return all_.row_slots[row]; }
    int64_t drafts(int64_t row) const { return all_.row_drafts[row]; }
    bool starts(int64_t row) const { return all_.row_flags[row] & kStartFlag; }
    bool continues(int64_t row) const { return all_.row_flags[row] & kContinueFlag; }
    bool does_sample(int64_t row) const { return all_.row_flags[row] & kSampleFlag; }
    bool is_masked(int64_t row) const { return all_.row_flags[row] & kMaskedFlag; }
    bool has_masks() const { return has_masks_; }
    // Keys that the step's tokens attend to.
    int64_t attended() const { return attended_; }
    // Of a row that samples its first sample; behind it those that follow its drafts.
    int64_t first_sample(int64_t row) const { return first_samples_[static_cast<size_t>(row)]; }
    int64_t row_of(int64_t sample) const { return token_rows_[static_cast<size_t>(token_of(sample))]; }
    // The token behind which it is sampled, among those of the step.
    int64_t token_of(int64_t sample) const { return sampled_[static_cast<size_t>(sample)]; }
    // The position of what is sampled.
    int64_t position_of(int64_t sample) const;
    int64_t first_token(int64_t row) const { return first_tokens_[static_cast<size_t>(row)]; }
    const std::vector<int64_t> &sampled_tokens() const { return sampled_; }
    // What the program is asked for.
    const penstock_step &step() const { return step_; }

private:
    // The last plans that released a slot, ended what it held, and gave it a row.
    struct Named {
        uint64_t released = 0, ends = 0, has_row = 0;
    };

    bool reads_rows(const Fields &plan);
    bool reads_row(const Fields &plan, int64_t row, int64_t drafts);
    bool reads_tokens(const Fields &plan);
    bool reads_pages(const Fields &plan);
    bool reads_copies(const Fields &plan);
    bool reads_released(const Bytes &released);
    // A slot is given up by this plan, or given to another sequence.
    void ends(int64_t slot);
    // Of a slot how far it may be filled with so many blocks.
    int64_t room(int64_t slot, int64_t blocks) const;
    static uint32_t digest_of(const Fields &plan, const Fields &starts, uint32_t before);
    void lay_out();

    penstock_run &all_;
    SlotSampling &sampling_;
    uint64_t number_ = 0;
    uint32_t digest_ = 0;
    Fields starts_;
    int64_t attended_ = 0;
    int64_t free_ = 0;  // rows of counts, with those of slots that end
    std::vector<int64_t> starting_;  // slots
    bool has_masks_ = false;
    std::vector<Named> named_;
    std::vector<uint32_t> given_;  // pages of rows that start
    std::vector<int64_t> new_blocks_, places_, wanted_, first_tokens_, first_samples_, token_rows_, sampled_;
    penstock_step step_ = {};
};

}  // namespace penstock
