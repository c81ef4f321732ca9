// The frames between router and worker, as far as steps that go on from each other need them: proto/penstock.proto says what fields are.
// Only what is usual is read here; the rest is Python's.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace penstock {

// Part of a message. Nothing is aligned.
struct Bytes {
    const uint8_t *begin = nullptr;
    int64_t size = 0;

    uint32_t word(int64_t at) const {
        uint32_t word;
        std::memcpy(&word, begin + at * 4, 4);
        return word;
    }
    bool is(const std::vector<uint8_t> &other) const {
        return size == static_cast<int64_t>(other.size()) && std::memcmp(begin, other.data(), other.size()) == 0;
    }
};

// Fields of a message by their numbers, each at most once.
struct Fields {
    static constexpr uint64_t kMost = 18;
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
        if (size == 0) return;
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
