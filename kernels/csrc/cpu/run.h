// The steps of a Run, from a plan's bytes to its answer's, without Python: what stands between two steps of a small model would else take as
// long as the half of one.
#pragma once

#include <cstdint>
#include <vector>

#include "inbox.h"
#include "penstock_cpu.h"
#include "plan.h"
#include "program.h"
#include "slot_sampling.h"

namespace penstock {

class Run {
public:
    Run(Program &program, penstock_run &all) : program_(program), all_(all), inbox_(all), sampling_(all), plan_(all, sampling_) {}

    // Returns a penstock_pause.
    int go_on();

private:
    // What the samples of the step may be, if its rows await masks. False where that is not usual.
    bool take_masks(const Bytes &message);
    bool take_mask(const Bytes &words, uint32_t token, int64_t sample, bool is_last);
    // What sampling asks of logits that no mask changes: while masks are awaited, so that little is left when they come.
    void summarize();
    void choose();
    // The likeliest tokens that masks allow, behind a summary without masks.
    void allow();
    int64_t likeliest(const float *logits, const uint32_t *mask) const;
    // What becomes of drafts, and what is answered.
    void accept();
    void answer(int64_t began, int64_t prepared, int64_t forwarded, int64_t choosing);
    void write_errors(Writer &writer);
    int kind_of(int64_t tokens) const;
    int64_t mask_words() const { return (all_.columns + 31) / 32; }

    Program &program_;
    penstock_run &all_;
    Inbox inbox_;
    SlotSampling sampling_;
    Plan plan_;
    // Of each sample.
    std::vector<int32_t> masks_;  // its mask in words_; -1: none
    std::vector<uint32_t> only_, words_;
    std::vector<uint8_t> closed_;  // behind a draft that is not accepted
    std::vector<int64_t> tokens_;
    std::vector<float> largest_, totals_;
    int64_t listed_ = 0, made_masks_ = 0;
    // What is answered.
    std::vector<int64_t> lasts_;  // of each row the last sample that counts
    std::vector<uint32_t> sampled_, accepted_;
    std::vector<float> logprobs_;
    std::vector<uint8_t> message_, error_;
};

}  // namespace penstock
