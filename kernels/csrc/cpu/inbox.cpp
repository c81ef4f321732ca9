#include "inbox.h"

#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

namespace penstock {

namespace {

// For so long is a message waited for, in milliseconds, before the caller may look at signals.
constexpr int kQuiet = 200;

}  // namespace

bool Inbox::frame_at(int64_t begin, Frame &found) const {
    if (all_.end - begin < kHead) return false;
    const int64_t size = Bytes{all_.inbox + begin, kHead}.word(0);
    if (all_.end - begin - kHead < size) return false;
    found = {begin, begin + kHead + size, {all_.inbox + begin + kHead, size}};
    return true;
}

bool Inbox::receive() {
    if (all_.begin == all_.end) all_.begin = all_.end = 0;
    if (all_.end == all_.capacity && all_.begin > 0) {
        std::memmove(all_.inbox, all_.inbox + all_.begin, static_cast<size_t>(all_.end - all_.begin));
        all_.end -= all_.begin, all_.begin = 0;
    }
    was_quiet_ = false;
    if (all_.end == all_.capacity) return false;
    const int descriptor = static_cast<int>(all_.descriptor);
    const auto room = static_cast<size_t>(all_.capacity - all_.end);
    ssize_t size = recv(descriptor, all_.inbox + all_.end, room, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
        pollfd wanted = {descriptor, POLLIN, 0};
        if (poll(&wanted, 1, kQuiet) <= 0) {
            was_quiet_ = true;
            return false;
        }
        size = recv(descriptor, all_.inbox + all_.end, room, MSG_DONTWAIT);
    }
    if (size <= 0) return false;
    all_.end += size;
    return true;
}

void Inbox::drop() {
    for (Frame frame; frame_at(all_.begin, frame); all_.begin = frame.end, all_.is_taken = 0) {
        Fields message, masks;
        if (!read_fields(frame.message, message) || (message.has >> kPlan & 1 && !all_.is_taken)) return;
        if (!(message.has >> kMasks & 1)) {
            if (!all_.is_taken) return;  // it is no message
            continue;
        }
        if (!read_fields(message.columns[kMasks], masks) || masks.numbers[kNumber] != all_.taken_masks) return;
        all_.taken_masks = 0;
    }
}

Found Inbox::find_plan(Fields &plan) const {
    Frame frame;
    if (!frame_at(all_.begin, frame)) return Found::kMore;
    Fields message, masks;
    if (all_.is_taken || !read_fields(frame.message, message) || !(message.has >> kPlan & 1) || !message.lacks_all_but(bits({kPlan, kMasks})) ||
        !read_fields(message.columns[kPlan], plan))
        return Found::kOther;
    if (!(message.has >> kMasks & 1)) return Found::kYes;
    if (!read_fields(message.columns[kMasks], masks)) return Found::kOther;
    const uint64_t number = masks.numbers[kNumber];
    return number == all_.taken_masks || number == plan.numbers[kNumber] ? Found::kYes : Found::kOther;
}

Found Inbox::find_masks(Bytes &masks) const {
    Frame frame;
    for (int64_t at = all_.begin; frame_at(at, frame); at = frame.end) {
        Fields message, columns;
        if (!read_fields(frame.message, message)) return Found::kOther;
        if (!(message.has >> kMasks & 1)) continue;
        masks = message.columns[kMasks];
        if (!read_fields(masks, columns)) return Found::kOther;
        const uint64_t number = columns.numbers[kNumber];
        if (number != all_.taken_masks) return number == all_.number ? Found::kYes : Found::kOther;
    }
    return Found::kMore;
}

void Inbox::send(const std::vector<uint8_t> &frame) {
    const int descriptor = static_cast<int>(all_.descriptor);
    for (size_t sent = 0; sent < frame.size();) {
        const ssize_t size = ::send(descriptor, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
        if (size < 0 && errno == EINTR) continue;
        if (size <= 0) {
            // Nobody takes it, and the next message is the end.
            shutdown(descriptor, SHUT_RDWR);
            return;
        }
        sent += static_cast<size_t>(size);
    }
}

}  // namespace penstock
