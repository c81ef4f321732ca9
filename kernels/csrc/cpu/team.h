// A team of threads that runs one job at a time; whoever calls is its member 0. Members meet at barriers, where they
// spin for some microseconds and then sleep. Nothing is allocated after the constructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace penstock {

// One turn of a loop that waits.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Team {
public:
    using Job = void (*)(void *context, int member);

    // Throws std::system_error where the system gives no more threads.
    explicit Team(int members);
    ~Team();
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    int size() const { return static_cast<int>(helpers_.size()) + 1; }

    // Runs job(context, member) on members 0 .. active - 1 and returns when member 0 has; the job must end with a
    // barrier.
    void run(int active, Job job, void *context);

    // Of the members of the running job. The last to arrive sets `next` and `shares` to 0 before anyone goes on.
    void barrier();

    // What of the work between two barriers is to be taken next. Members add to it.
    uint32_t *next() { return &next_; }

    // The same of each member's own part of it, in a cache line each.
    static constexpr int kShareBytes = 64;
    uint32_t *shares() { return &shares_.front().next; }

private:
    struct alignas(kShareBytes) Share {
        uint32_t next = 0;
    };

    void help(int member);
    void end();
    void begin_work();

    std::vector<std::thread> helpers_;
    Job job_ = nullptr;
    void *context_ = nullptr;
    int active_ = 1;

    // The number of the job and, in the lowest bits, how many members it has: read at once, so that a member that is
    // late cannot take a later job for its own.
    alignas(64) std::atomic<uint32_t> started_{0};
    std::atomic<uint32_t> sleeping_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> passed_{0};
    std::atomic<uint32_t> waiting_{0};
    alignas(64) uint32_t next_ = 0;
    std::vector<Share> shares_;
    std::atomic<bool> ends_{false};
};

}  // namespace penstock
