#include "repeats.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>

#include <poll.h>
#include <sys/socket.h>

namespace penstock {

namespace {

// Of a frame: the length of the message, and a status code.
constexpr int64_t kHead = 8;
// For so long is a message waited for, in milliseconds, before the caller may look at signals.
constexpr int kQuiet = 200;

// Fields of proto/penstock.proto.
enum { kPlan = 1, kMasks = 2 };
enum {
    kNumber = 1, kDigest = 2, kSlots = 4, kFlags = 5, kPositions = 6, kCounts = 7, kTokens = 8, kNewBlockCounts = 9, kNewPages = 10,
    kDrafts = 14
};
enum { kOnly = 2, kWords = 3 };
enum { kSampled = 2, kLogprobs = 3, kPrepareNs = 8, kForwardNs = 9, kSampleNs = 10, kAccepted = 13 };
enum : uint8_t { kMaskedFlag = 16 };
enum : uint32_t { kOfWords = 0xffffffff, kNone = 0xfffffffe };

constexpr uint32_t bits(std::initializer_list<int> fields) {
    uint32_t made = 0;
    for (int field : fields) made |= 1u << field;
    return made;
}

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A number in [0, 1) of a seed's key and a position: `uniform_at` in penstock_kernels/draws.py.
double uniform_at(uint64_t key, int64_t position) {
    uint64_t z = key + (static_cast<uint64_t>(position) + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
}

template <typename T>
T *begin_of(std::vector<T> &numbers, int64_t size) {
    numbers.resize(static_cast<size_t>(size));
    return numbers.data();
}

}  // namespace

Repeats::Repeats(Program &program, penstock_repeats &all) : program_(program), all_(all), flags_(all.flags, all.flags + all.rows) {
    for (int64_t row = 0; row < all.rows; row++) {
        const auto slot = static_cast<uint32_t>(all.slots[row]);
        const auto *bytes = reinterpret_cast<const uint8_t *>(&slot);
        slots_.insert(slots_.end(), bytes, bytes + 4);
        if (all.awaits_masks && all.flags[row] & kMaskedFlag) masked_.push_back(row);
    }
}

int Repeats::go_on() {
    const int64_t entered = now_ns();
    all_.made_count = 0;
    for (;;) {
        if (all_.made_count == all_.most_made || (all_.made_count && now_ns() - entered >= all_.most_ns)) return PENSTOCK_PAUSE_STEPS;
        Fields plan;
        const Found found = find_plan(plan);
        if (found == Found::kOther) return PENSTOCK_PAUSE_MESSAGE;
        if (found == Found::kMore) {
            if (!receive()) return was_quiet_ ? PENSTOCK_PAUSE_STEPS : PENSTOCK_PAUSE_MESSAGE;
            continue;
        }
        const int64_t began = now_ns();
        if (!is_usual(plan)) return PENSTOCK_PAUSE_MESSAGE;
        const int kind = kind_of(tokens_);
        if (all_.left[kind] == 0) return PENSTOCK_PAUSE_STEPS;
        all_.left[kind]--;
        take(plan);
        place_draws();
        program_.set_threads(static_cast<int>(all_.threads[kind]));
        const int64_t prepared = now_ns();
        const bool awaits = !masked_.empty();
        program_.decode(*now_->step, now_->logits, now_->stride, all_.columns, awaits ? nullptr : now_->tokens, now_->largest,
                        now_->totals, now_->draws);
        const int64_t forwarded = now_ns();
        all_.tokens = tokens_, all_.prepare_ns = prepared - began, all_.forward_ns = forwarded - prepared;
        int64_t choosing = forwarded;
        closed_.assign(static_cast<size_t>(tokens_), 0);
        if (awaits) {
            Bytes masks;
            Found come;
            while ((come = find_masks(masks)) == Found::kMore)
                if (!receive()) return PENSTOCK_PAUSE_MASKS;
            choosing = now_ns();
            Fields columns;
            if (come == Found::kOther || !read_fields(masks, columns) || !take_masks(columns)) return PENSTOCK_PAUSE_MASKS;
            choose();
        }
        if (!accept()) return awaits ? PENSTOCK_PAUSE_MASKS : PENSTOCK_PAUSE_ANSWER;
        if (awaits) {
            all_.taken_masks = all_.number;
            drop();
        }
        answer(began, prepared, forwarded, choosing);
    }
}

bool Repeats::frame_at(int64_t begin, Frame &found) const {
    if (all_.end - begin < kHead) return false;
    const int64_t size = Bytes{all_.inbox + begin, kHead}.word(0);
    if (all_.end - begin - kHead < size) return false;
    found = {begin, begin + kHead + size, {all_.inbox + begin + kHead, size}};
    return true;
}

bool Repeats::receive() {
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

void Repeats::drop() {
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

Repeats::Found Repeats::find_plan(Fields &plan) {
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

bool Repeats::is_usual(const Fields &plan) {
    if (!plan.lacks_all_but(bits({kNumber, kDigest, kSlots, kFlags, kPositions, kCounts, kTokens, kNewBlockCounts, kNewPages, kDrafts})))
        return false;
    const int64_t rows = all_.rows;
    const auto is_column = [&](int field) { return plan.columns[static_cast<size_t>(field)].size == rows * 4; };
    const auto &columns = plan.columns;
    if (plan.numbers[kNumber] != all_.number + 1 || !columns[kSlots].is(slots_) || !columns[kFlags].is(flags_) ||
        !is_column(kPositions) || !is_column(kCounts) || !is_column(kNewBlockCounts))
        return false;
    const uint64_t number = plan.numbers[kNumber];
    digest_ = crc32(static_cast<uint32_t>(all_.digest), reinterpret_cast<const uint8_t *>(&number), 8);
    for (const Bytes &column : columns) digest_ = crc32(digest_, column.begin, column.size);
    if (digest_ != plan.numbers[kDigest] || !has_usual_drafts(plan, tokens_) || !has_usual_pages(plan)) return false;
    attended_ = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t slot = all_.slots[row], position = columns[kPositions].word(row), first = all_.filled[slot];
        const int64_t count = 1 + drafts_[static_cast<size_t>(row)];
        if (position < first || position > all_.planned[slot]) return false;
        const int64_t blocks = all_.block_counts[slot] + new_blocks_[static_cast<size_t>(row)];
        if (first + count > all_.furthest[row] || (all_.tables > 0 && first + count > blocks * all_.block_size)) return false;
        attended_ += count * first + count * (count + 1) / 2;
    }
    return true;
}

bool Repeats::has_usual_drafts(const Fields &plan, int64_t &tokens) {
    const Bytes &drafts = plan.columns[kDrafts], &guessed = plan.columns[kTokens];
    has_drafts_ = drafts.size > 0;
    int64_t *const made = begin_of(drafts_, all_.rows), total = guessed.size / 4;
    tokens = all_.rows + total;
    std::fill_n(made, all_.rows, 0);
    if (has_drafts_ != (guessed.size > 0)) return false;
    if (has_drafts_) {
        if (!all_.verifying.step || drafts.size != all_.rows * 4 || guessed.size % 4 || total > all_.most_drafts || tokens > all_.most_tokens)
            return false;
        int64_t said = 0;
        for (int64_t row = 0; row < all_.rows; row++) said += made[row] = drafts.word(row);
        if (said != total) return false;
        for (int64_t at = 0; at < total; at++)
            if (guessed.word(at) >= all_.columns) return false;
    }
    for (int64_t row = 0; row < all_.rows; row++)
        if (plan.columns[kCounts].word(row) != made[row] + 1) return false;
    return true;
}

bool Repeats::has_usual_pages(const Fields &plan) {
    const Bytes &added = plan.columns[kNewBlockCounts], &pages = plan.columns[kNewPages];
    int64_t total = 0;
    begin_of(new_blocks_, all_.rows);
    for (int64_t row = 0; row < all_.rows; row++) {
        const int64_t blocks = new_blocks_[static_cast<size_t>(row)] = added.word(row);
        if (all_.block_counts[all_.slots[row]] + blocks > all_.plain.step->width) return false;
        total += blocks;
    }
    if (pages.size != total * all_.tables * 4) return false;
    for (int64_t at = 0; at < total * all_.tables; at++)
        if (pages.word(at) >= all_.pages) return false;
    return true;
}

void Repeats::take(const Fields &plan) {
    all_.number++, all_.digest = digest_, ++*all_.steps;
    now_ = has_drafts_ ? &all_.verifying : &all_.plain;
    const Bytes &positions = plan.columns[kPositions], &pages = plan.columns[kNewPages], &guessed = plan.columns[kTokens];
    auto *const table = const_cast<int64_t *>(now_->step->pages);
    const int64_t slots = now_->step->max_slots, width = now_->step->width;
    begin_of(firsts_, all_.rows);
    begin_of(rows_of_samples_, tokens_);
    now_->step->tokens = tokens_;
    int64_t page = 0, token = 0, guess = 0;
    for (int64_t row = 0; row < all_.rows; row++) {
        const int64_t slot = all_.slots[row], count = 1 + drafts_[static_cast<size_t>(row)];
        for (int64_t block = 0; block < new_blocks_[static_cast<size_t>(row)]; block++) {
            const int64_t number = all_.block_counts[slot]++;
            for (int64_t one = 0; one < all_.tables; one++) table[(one * slots + slot) * width + number] = pages.word(page++);
        }
        now_->first[row] = all_.filled[slot], now_->counts[row] = count;
        all_.filled[slot] += count, all_.planned[slot] = positions.word(row) + count;
        firsts_[static_cast<size_t>(row)] = token;
        for (int64_t at = 0; at < count; at++, token++) {
            now_->ids[token] = at == 0 ? all_.last_sampled[slot] : guessed.word(guess++);
            rows_of_samples_[static_cast<size_t>(token)] = row;
        }
    }
    all_.is_taken = 1;
    drop();
}

void Repeats::place_draws() {
    const penstock_draws *of_rows = all_.plain.draws;
    if (!of_rows) return;
    const auto place = [&](penstock_draw_row &made, int64_t draw, int64_t position, int64_t previous) {
        made.uniform = uniform_at(all_.keys[draw], position);
        if (all_.are_marked) made.previous = previous;
        if (all_.first_ends) made.ends = position < all_.first_ends[draw] ? all_.end_width : 0;
    };
    const penstock_draw_row *rows = all_.plain.rows;
    const int64_t drawn = of_rows->count;
    if (!has_drafts_) {
        for (int64_t draw = 0; draw < drawn; draw++) {
            const int64_t row = rows[draw].row;
            place(all_.plain.rows[draw], draw, now_->first[row] + 1, now_->ids[row]);
        }
        return;
    }
    if (now_->before) std::copy_n(now_->ids, tokens_, now_->before);
    int64_t count = 0;
    for (int64_t draw = 0; draw < drawn; draw++) {
        const int64_t row = rows[draw].row, first = firsts_[static_cast<size_t>(row)];
        for (int64_t at = 0; at < now_->counts[row]; at++) {
            penstock_draw_row &made = now_->rows[count++];
            made = rows[draw];
            made.row = first + at;
            place(made, draw, now_->first[row] + at + 1, now_->ids[first + at]);
            if (!now_->before) continue;
            made.first_before = first + 1, made.before = all_.are_penalized[draw] ? at : 0;
        }
    }
    now_->draws->count = count;
}

Repeats::Found Repeats::find_masks(Bytes &masks) {
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

bool Repeats::take_masks(const Fields &masks) {
    const Bytes &only = masks.columns[kOnly], &words = masks.columns[kWords];
    const int64_t width = (all_.columns + 31) / 32;
    if (!masks.lacks_all_but(bits({kNumber, kOnly, kWords})) || words.size % (width * 4)) return false;
    only_.assign(static_cast<size_t>(tokens_), kOfWords);
    words_.clear();
    std::fill_n(now_->mask_of_row, tokens_, -1);
    int64_t entry = 0, listed = 0, masks_made = 0;
    for (int64_t row : masked_) {
        const int64_t first = firsts_[static_cast<size_t>(row)], count = now_->counts[row];
        for (int64_t at = 0; at < count; at++, entry++) {
            if (entry >= only.size / 4) return false;
            const int64_t sample = first + at;
            const uint32_t token = only_[static_cast<size_t>(sample)] = only.word(entry);
            if (token == kNone) {
                if (at == 0) return false;  // the row samples nothing this time
                closed_[static_cast<size_t>(sample)] = 1;
                continue;
            }
            if (token != kOfWords && token >= all_.columns) return false;
            // What a row samples behind its drafts a bias or a held end may forbid, though it is the only token.
            if (token != kOfWords && at + 1 < count) continue;
            now_->mask_of_row[sample] = static_cast<int32_t>(masks_made++);
            const size_t end = words_.size();
            words_.resize(end + static_cast<size_t>(width));
            if (token != kOfWords) {
                words_[end + token / 32] |= 1u << token % 32;
                continue;
            }
            if ((listed + 1) * width * 4 > words.size) return false;
            std::memcpy(words_.data() + end, words.begin + listed++ * width * 4, static_cast<size_t>(width) * 4);
            if (std::all_of(words_.begin() + static_cast<int64_t>(end), words_.end(), [](uint32_t word) { return word == 0; })) return false;
        }
    }
    return only.size == entry * 4 && listed * width * 4 == words.size;
}

void Repeats::choose() {
    const int64_t width = (all_.columns + 31) / 32;
    if (penstock_draws *draws = now_->draws) {
        draws->masks = words_.data(), draws->mask_words = width;
        for (int64_t i = 0; i < draws->count; i++) now_->rows[i].mask = now_->mask_of_row[now_->rows[i].row];
    }
    program_.choose(now_->logits, now_->stride, tokens_, all_.columns, {words_.data(), width, now_->mask_of_row}, now_->tokens,
                    now_->largest, now_->totals, now_->draws);
    for (int64_t row : masked_)
        for (int64_t at = 0; at + 1 < now_->counts[row]; at++) {
            const int64_t sample = firsts_[static_cast<size_t>(row)] + at;
            const uint32_t token = only_[static_cast<size_t>(sample)];
            if (token < kNone) now_->tokens[sample] = token;
        }
}

bool Repeats::accept() {
    int64_t *const lasts = begin_of(lasts_, all_.rows);
    sampled_.clear(), logprobs_.clear(), accepted_.clear();
    for (int64_t row = 0; row < all_.rows; row++) {
        const int64_t first = firsts_[static_cast<size_t>(row)], drafts = drafts_[static_cast<size_t>(row)];
        int64_t right = 0;
        while (right < drafts && now_->tokens[first + right] == now_->ids[first + right + 1] &&
               !closed_[static_cast<size_t>(first + right + 1)])
            right++;
        lasts[row] = first + right;
        if (!all_.answers) continue;
        if (drafts > 0) accepted_.push_back(static_cast<uint32_t>(right));
        for (int64_t sample = first; sample <= first + right; sample++) {
            if (!std::isfinite(now_->totals[sample])) return false;
            const int64_t token = now_->tokens[sample];
            sampled_.push_back(static_cast<uint32_t>(token));
            // The logarithm in fp64, as `LogitsSummary.logprobs` has it.
            const auto logarithm = static_cast<float>(std::log(static_cast<double>(now_->totals[sample])));
            logprobs_.push_back(now_->logits[sample * now_->stride + token] - now_->largest[sample] - logarithm);
        }
    }
    if (!all_.answers || !all_.may_lack || !now_->draws) return true;
    for (int64_t draw = 0; draw < now_->draws->count; draw++) {
        const int64_t sample = now_->rows[draw].row;
        if (!now_->draws->possible[draw] && sample <= lasts[rows_of_samples_[static_cast<size_t>(sample)]]) return false;
    }
    return true;
}

void Repeats::answer(int64_t began, int64_t prepared, int64_t forwarded, int64_t choosing) {
    for (int64_t row = 0; row < all_.rows; row++) {
        const int64_t slot = all_.slots[row], first = firsts_[static_cast<size_t>(row)], last = lasts_[static_cast<size_t>(row)];
        all_.last_sampled[slot] = now_->tokens[last];
        all_.filled[slot] -= first + drafts_[static_cast<size_t>(row)] - last;
        if (all_.counted[row])
            for (int64_t sample = first; sample <= last; sample++) all_.counted[row][now_->tokens[sample]]++;
    }
    const int64_t ended = now_ns(), sampling = ended - choosing;
    message_.assign(kHead, 0);
    Writer writer(message_);
    writer.number(kNumber, all_.number);
    writer.column(kSampled, sampled_.data(), sampled_.size() * 4);
    writer.column(kLogprobs, logprobs_.data(), logprobs_.size() * 4);
    writer.number(kPrepareNs, static_cast<uint64_t>(prepared - began));
    writer.number(kForwardNs, static_cast<uint64_t>(forwarded - prepared));
    writer.number(kSampleNs, static_cast<uint64_t>(sampling));
    writer.column(kAccepted, accepted_.data(), accepted_.size() * 4);
    const auto size = static_cast<uint32_t>(message_.size() - kHead);
    std::memcpy(message_.data(), &size, 4);
    send(message_);
    int64_t *const made = all_.made[all_.made_count++];
    made[0] = tokens_, made[1] = attended_, made[2] = forwarded - began + sampling, made[3] = ended;
}

void Repeats::send(const std::vector<uint8_t> &frame) {
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

int Repeats::kind_of(int64_t tokens) const {
    int kind = 0;
    while (kind < PENSTOCK_KINDS_OF_STEPS - 1 && tokens > all_.kinds[kind]) kind++;
    return kind;
}

}  // namespace penstock
