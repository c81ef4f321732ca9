// Steps that go on from each other, from a plan's bytes to its answer's, without Python: what stands between two steps of a small model would
// else take as long as the half of one.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock_cpu.h"
#include "program.h"
#include "wire.h"

namespace penstock {

class Repeats {
public:
    Repeats(Program &program, penstock_repeats &all);

    // Returns a penstock_pause.
    int go_on();

private:
    // A frame of the inbox that holds a message, from its head to the next one's.
    struct Frame {
        int64_t begin = 0, end = 0;
        Bytes message;
    };
    enum class Found { kYes, kMore, kOther };

    // The frame that begins there, if all of it is there.
    bool frame_at(int64_t begin, Frame &found) const;
    // Brings more bytes into the inbox. False: there are none, or nothing came for a while, which `was_quiet_` tells.
    bool receive();
    // Messages of which all was taken.
    void drop();
    // The next plan; kMore: not all of it is there.
    Found find_plan(Fields &plan);
    // Whether it goes on from the last one. Nothing is changed where it does not.
    bool is_usual(const Fields &plan);
    bool has_usual_drafts(const Fields &plan, int64_t &tokens);
    bool has_usual_pages(const Fields &plan);
    // Takes the plan over: pages, positions, what is fed.
    void take(const Fields &plan);
    void place_draws();
    // The masks of the step that was run. kOther: they are not usual.
    Found find_masks(Bytes &masks);
    bool take_masks(const Fields &masks);
    void choose();
    // What becomes of the drafts; false where some row has no token.
    bool accept();
    void answer(int64_t began, int64_t prepared, int64_t forwarded, int64_t chosen);
    void send(const std::vector<uint8_t> &frame);
    int kind_of(int64_t tokens) const;

    Program &program_;
    penstock_repeats &all_;
    std::vector<uint8_t> slots_, flags_;  // as the plans have them
    std::vector<int64_t> masked_;         // rows
    bool was_quiet_ = false;
    // Of the plan at hand.
    penstock_samples *now_ = nullptr;
    uint32_t digest_ = 0;
    int64_t tokens_ = 0, attended_ = 0;
    std::vector<int64_t> drafts_, new_blocks_, firsts_, rows_of_samples_, lasts_;
    bool has_drafts_ = false;
    // Of its masks: what they say of each sample, and the words of those that have some.
    std::vector<uint32_t> only_, words_;
    std::vector<uint8_t> closed_;  // samples behind drafts that are not accepted
    std::vector<uint32_t> sampled_, accepted_;
    std::vector<float> logprobs_;
    std::vector<uint8_t> message_;
};

}  // namespace penstock
