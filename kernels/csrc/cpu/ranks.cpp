#include "ranks.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "team.h"

namespace penstock {

namespace {

// Turns of a waiting loop before a rank sleeps, and how long it sleeps before it looks whether the other one has ended.
constexpr int kTurns = 2000;
constexpr timespec kPatience = {0, 50'000'000};

bool has_ended(int socket) {
    pollfd found = {socket, POLLRDHUP, 0};
    return poll(&found, 1, 0) > 0 && (found.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace

Ranks::Ranks(uint8_t *memory, int64_t rank_bytes, int rank, std::vector<int> sockets)
    : memory_(memory), rank_bytes_(rank_bytes), rank_(rank), sockets_(std::move(sockets)) {}

bool Ranks::meet() {
    Door &own = door(rank_);
    own.met.store(++met_);
    if (own.sleepers.load() != 0) syscall(SYS_futex, &own.met, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    for (int other = 0; other < count(); other++)
        if (other != rank_ && !wait_for(other)) return false;
    return true;
}

bool Ranks::wait_for(int rank) {
    Door &other = door(rank);
    // It may be one further: it has seen that this rank is here.
    const auto is_here = [&](uint32_t met) { return static_cast<int32_t>(met - met_) >= 0; };
    for (int turn = 0; turn < kTurns; turn++) {
        if (is_here(other.met.load(std::memory_order_acquire))) return true;
        relax();
    }
    other.sleepers.fetch_add(1);
    bool here = true;
    for (uint32_t met; !is_here(met = other.met.load());) {
        const long woken = syscall(SYS_futex, &other.met, FUTEX_WAIT, met, &kPatience, nullptr, 0);
        if (woken == 0 || !has_ended(sockets_[static_cast<size_t>(rank)])) continue;
        here = is_here(other.met.load());
        break;
    }
    other.sleepers.fetch_sub(1);
    return here;
}

}  // namespace penstock
