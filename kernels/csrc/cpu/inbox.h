// A connection's frames: what was read of it and not taken. The caller and Python's `FrameCall` take turns with it.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock_cpu.h"
#include "wire.h"

namespace penstock {

// Of a frame: the length of the message, and a status code.
constexpr int64_t kHead = 8;

enum class Found { kYes, kMore, kOther };  // kMore: not all of it is there. kOther: it is not usual

class Inbox {
public:
    explicit Inbox(penstock_run &all) : all_(all) {}

    // The plan of the first message.
    Found find_plan(Fields &plan) const;
    // The masks of the last plan.
    Found find_masks(Bytes &masks) const;
    // Brings more bytes. False: there are none, or nothing came for a while, which `was_quiet` tells.
    bool receive();
    bool was_quiet() const { return was_quiet_; }
    // Gives up messages of which all was taken.
    void drop();
    // Sends a whole frame.
    void send(const std::vector<uint8_t> &frame);

private:
    // A frame that holds a message, from its head to the next one's.
    struct Frame {
        int64_t begin = 0, end = 0;
        Bytes message;
    };

    // The frame that begins there, if all of it is there.
    bool frame_at(int64_t begin, Frame &found) const;

    penstock_run &all_;
    bool was_quiet_ = false;
};

}  // namespace penstock
