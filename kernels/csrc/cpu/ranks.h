// The ranks of one model on one machine: memory that all of them see, and where they wait for each other. Ranks wait by counters in
// that memory, spinning for some microseconds before they sleep; one that has ended is noticed by the end of its socket.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace penstock {

struct RankLost : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Ranks {
public:
    // The first bytes of each rank's part of the memory are its door.
    static constexpr int64_t kDoorBytes = 4096;

    // `memory` has `rank_bytes` for each rank. The sockets are the caller's.
    Ranks(uint8_t *memory, int64_t rank_bytes, int rank, std::vector<int> sockets);

    int rank() const { return rank_; }
    int count() const { return static_cast<int>(sockets_.size()); }
    uint8_t *memory(int rank) const { return memory_ + rank * rank_bytes_; }

    // How often ranks have met.
    uint32_t met() const { return met_; }

    // Waits until every rank is here, and sees what they have written before. False: one has ended.
    bool meet();

private:
    struct Door {
        alignas(64) std::atomic<uint32_t> met;
        alignas(64) std::atomic<uint32_t> sleepers;
    };

    Door &door(int rank) const { return *reinterpret_cast<Door *>(memory(rank)); }
    bool wait_for(int rank);

    uint8_t *memory_;
    int64_t rank_bytes_;
    int rank_;
    std::vector<int> sockets_;
    uint32_t met_ = 0;
};

}  // namespace penstock
