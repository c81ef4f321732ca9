#include "team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <stdexcept>
#include <string>
#include <system_error>

namespace penstock {

namespace {

// Turns of a waiting loop before a member sleeps, some 50 us. Beside another load who is waited for may not be running,
// and gets the processor of who sleeps.
constexpr int kTurnsBetweenJobs = 1000, kTurnsInJob = 1000;
constexpr uint32_t kMemberBits = 12, kMembers = (1u << kMemberBits) - 1;

void sleep_while(std::atomic<uint32_t> &word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t> &word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Waits until the word is another than `value`, and returns it. `sleepers` counts who sleeps: who changes the word
// wakes them.
uint32_t wait_for_change(std::atomic<uint32_t> &word, uint32_t value, std::atomic<uint32_t> &sleepers, int turns) {
    for (int turn = 0; turn < turns; turn++) {
        const uint32_t now = word.load(std::memory_order_acquire);
        if (now != value) return now;
        relax();
    }
    uint32_t now;
    sleepers.fetch_add(1);
    while ((now = word.load()) == value) sleep_while(word, value);
    sleepers.fetch_sub(1);
    return now;
}

}  // namespace

Team::Team(int members) : shares_(static_cast<size_t>(members)) {
    if (static_cast<uint32_t>(members) > kMembers) throw std::invalid_argument("a team has at most 4095 threads");
    helpers_.reserve(static_cast<size_t>(members - 1));
    try {
        for (int member = 1; member < members; member++) helpers_.emplace_back([this, member] { help(member); });
    } catch (const std::system_error &error) {
        const size_t made = helpers_.size();
        end();
        throw std::runtime_error("thread " + std::to_string(made + 2) + " of " + std::to_string(members) + " cannot be made (" + error.what() +
                                 "): a limit on tasks (pids.max, ulimit -u) is in the way, or lower --worker-threads");
    } catch (...) {
        end();
        throw;
    }
}

Team::~Team() {
    end();
}

void Team::end() {
    ends_.store(true);
    started_.fetch_add(1u << kMemberBits);
    wake_all(started_);
    for (std::thread &helper : helpers_) helper.join();
}

void Team::run(int active, Job job, void *context) {
    job_ = job;
    context_ = context;
    active_ = active;
    begin_work();
    if (active > 1) {
        const uint32_t number = (started_.load(std::memory_order_relaxed) >> kMemberBits) + 1;
        started_.store(number << kMemberBits | static_cast<uint32_t>(active));
        if (sleeping_.load() != 0) wake_all(started_);
    }
    job(context, 0);
}

void Team::begin_work() {
    next_ = 0;
    for (Share &share : shares_) share.next = 0;
}

void Team::barrier() {
    // Read before this member arrives: once it has, the job may be over and another one, of other members, begun.
    const auto active = static_cast<uint32_t>(active_);
    if (active == 1) {
        begin_work();
        return;
    }
    const uint32_t round = passed_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == active) {
        arrived_.store(0, std::memory_order_relaxed);
        begin_work();
        passed_.store(round + 1);
        if (waiting_.load() != 0) wake_all(passed_);
        return;
    }
    wait_for_change(passed_, round, waiting_, kTurnsInJob);
}

void Team::help(int member) {
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_change(started_, seen, sleeping_, kTurnsBetweenJobs);
        if (ends_.load()) return;
        if (static_cast<uint32_t>(member) < (seen & kMembers)) job_(context_, member);
    }
}

}  // namespace penstock
