// The frames between router and worker, as far as usual steps need them: proto/penstock.proto says what fields are. The rest is Python's.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace penstock {

// Fields by their numbers.
enum { kPlan = 1, kMasks = 2 };
enum {
    kNumber = 1, kDigest = 2, kReleased = 3, kSlots = 4, kFlags = 5, kPositions = 6, kCounts = 7, kTokens = 8, kNewBlockCounts = 9,
    kNewPages = 10, kStarts = 12, kDrafts = 14, kCopies = 17
};
enum {
    kSeeds = 1, kTemperatures = 2, kTopKs = 3, kTopPs = 4, kTypicalPs = 5, kMinPs = 6, kRepetitionPenalties = 7, kFrequencyPenalties = 8,
    kPresencePenalties = 9, kTopTokens = 10, kHistoryCounts = 11, kHistoryOutputs = 12, kHistory = 13, kBiasCounts = 14, kFirstEnds = 17,
    kEndCounts = 18, kEndTokens = 19, kWatermarkDeltas = 20, kWatermarkGreens = 21, kAdapters = 24
};
enum { kOnly = 2, kWords = 3 };
enum { kSampled = 2, kLogprobs = 3, kErrors = 7, kPrepareNs = 8, kForwardNs = 9, kSampleNs = 10, kAccepted = 13 };
enum { kErrorRow = 1, kErrorMessage = 2 };
enum : uint8_t { kStartFlag = 1, kContinueFlag = 2, kSampleFlag = 4, kMaskedFlag = 16 };
enum : uint32_t { kOfWords = 0xffffffff, kNone = 0xfffffffe };

constexpr uint32_t bits(std::initializer_list<int> fields) {
    uint32_t made = 0;
    for (int field : fields) made |= 1u << field;
    return made;
}

// Part of a message. Nothing is aligned.
struct Bytes {
    const uint8_t *begin = nullptr;
    int64_t size = 0;

    template <typename T>
    T at(int64_t number) const {
        T made;
        std::memcpy(&made, begin + number * static_cast<int64_t>(sizeof(T)), sizeof(T));
        return made;
    }
    uint32_t word(int64_t number) const { return at<uint32_t>(number); }
    int64_t words() const { return size / 4; }
};

// Fields of a message by their numbers, each at most once.
struct Fields {
    static constexpr uint64_t kMost = 25;
    std::array<Bytes, kMost> columns = {};
    std::array<uint64_t, kMost> numbers = {};
    uint32_t has = 0;  // a bit for each

    bool lacks_all_but(uint32_t some) const { return (has & ~some) == 0; }
};

// False for what is no message, or has a field twice or one that is not known here.
inline bool read_fields(Bytes message, Fields &made) {
    const uint8_t *at = message.begin, *const end = at + message.size;
    const auto varint = [&](uint64_t &number) {
        number = 0;
        for (int shift = 0; at < end && shift < 64; shift += 7) {
            const uint8_t byte = *at++;
            number |= static_cast<uint64_t>(byte & 127) << shift;
            if (!(byte & 128)) return true;
        }
        return false;
    };
    made = {};
    while (at < end) {
        uint64_t tag, number;
        if (!varint(tag)) return false;
        const uint64_t field = tag >> 3;
        if (field == 0 || field >= Fields::kMost || made.has >> field & 1) return false;
        made.has |= 1u << field;
        if (!varint(number)) return false;
        if ((tag & 7) == 0) {
            made.numbers[field] = number;
        } else if ((tag & 7) == 2 && number <= static_cast<uint64_t>(end - at)) {
            made.columns[field] = {at, static_cast<int64_t>(number)};
            at += number;
        } else {
            return false;
        }
    }
    return true;
}

// Writes fields one behind the other.
class Writer {
public:
    explicit Writer(std::vector<uint8_t> &to) : to_(to) {}

    void number(int field, uint64_t number) {
        if (number == 0) return;
        varint(static_cast<uint64_t>(field) << 3);
        varint(number);
    }
    void column(int field, const void *numbers, size_t size) {
        if (size > 0) message(field, numbers, size);
    }
    void message(int field, const void *numbers, size_t size) {
        varint(static_cast<uint64_t>(field) << 3 | 2);
        varint(size);
        const auto *bytes = static_cast<const uint8_t *>(numbers);
        to_.insert(to_.end(), bytes, bytes + size);
    }

private:
    void varint(uint64_t number) {
        for (; number > 127; number >>= 7) to_.push_back(static_cast<uint8_t>(number | 128));
        to_.push_back(static_cast<uint8_t>(number));
    }

    std::vector<uint8_t> &to_;
};

// CRC-32 as zlib has it, going on from what it was.
inline uint32_t crc32(uint32_t crc, const uint8_t *bytes, int64_t size) {
    static const std::array<uint32_t, 256> table = [] {
        std::array<uint32_t, 256> made;
        for (uint32_t i = 0; i < 256; i++) {
            made[i] = i;
            for (int bit = 0; bit < 8; bit++) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0xedb88320u : 0);
        }
        return made;
    }();
    crc = ~crc;
    for (int64_t i = 0; i < size; i++) crc = table[(crc ^ bytes[i]) & 255] ^ crc >> 8;
    return ~crc;
}

}  // namespace penstock
