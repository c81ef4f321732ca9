#include "plan.h"

#include <algorithm>
#include <limits>

namespace penstock {

namespace {

constexpr uint32_t kUsual = bits({kNumber, kDigest, kReleased, kSlots, kFlags, kPositions, kCounts, kTokens, kNewBlockCounts, kNewPages, kStarts,
                                  kDrafts, kCopies});

constexpr uint8_t kUsualFlags = kStartFlag | kContinueFlag | kSampleFlag | kMaskedFlag;

size_t index(int64_t number) { return static_cast<size_t>(number); }

}  // namespace

Plan::Plan(penstock_run &all, SlotSampling &sampling) : all_(all), sampling_(sampling), named_(index(all.slots.max_slots)) {
    const penstock_slots &slots = all.slots;
    step_.ids = all.ids, step_.slots = all.row_slots, step_.first = all.row_first, step_.counts = all.row_counts;
    step_.pages = slots.pages, step_.max_slots = slots.max_slots, step_.width = slots.width, step_.encoded = slots.encoded;
}

bool Plan::read(const Fields &plan) {
    number_ = plan.numbers[kNumber];
    if (!plan.lacks_all_but(kUsual) || number_ != all_.number + 1) return false;
    starts_ = {};
    if (plan.has >> kStarts & 1 && !read_fields(plan.columns[kStarts], starts_)) return false;
    if (!reads_released(plan.columns[kReleased]) || !reads_rows(plan) || !reads_tokens(plan) || !reads_pages(plan) || !reads_copies(plan))
        return false;
    const auto starting = static_cast<int64_t>(starting_.size());
    if (starting == 0 ? plan.has >> kStarts & 1 : !sampling_.is_usual(starts_, starting, free_)) return false;
    digest_ = digest_of(plan, starts_, static_cast<uint32_t>(all_.digest));
    return digest_ == plan.numbers[kDigest];
}

bool Plan::reads_released(const Bytes &released) {
    if (released.size % 4) return false;
    free_ = *all_.sampling.free_count;
    for (int64_t at = 0; at < released.words(); at++) {
        const uint32_t slot = released.word(at);
        if (slot >= all_.slots.max_slots) return false;
        named_[slot].released = number_;
        ends(slot);
    }
    return true;
}

void Plan::ends(int64_t slot) {
    Named &named = named_[index(slot)];
    free_ += named.ends != number_ && sampling_.counts(slot);
    named.ends = number_;
}

bool Plan::reads_rows(const Fields &plan) {
    const auto &columns = plan.columns;
    const int64_t rows = columns[kSlots].words();
    const auto is_column = [&](int field) { return columns[index(field)].size == rows * 4; };
    const bool has_drafts = columns[kDrafts].size > 0;
    if (rows < 1 || rows > all_.slots.max_slots || !is_column(kSlots) || columns[kFlags].size != rows || !is_column(kPositions) ||
        !is_column(kCounts) || !is_column(kNewBlockCounts) || (has_drafts && !is_column(kDrafts)))
        return false;
    all_.rows = rows, attended_ = 0, has_masks_ = false;
    starting_.clear();
    new_blocks_.resize(index(rows));
    int64_t drafts = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (!reads_row(plan, row, has_drafts ? columns[kDrafts].word(row) : 0)) return false;
        drafts += all_.row_drafts[row];
        has_masks_ |= is_masked(row);
    }
    // Other ranks are told what was sampled, and not which drafts have no mask behind them.
    return drafts <= all_.most_drafts && !(drafts && has_masks_ && all_.ranks > 1);
}

bool Plan::reads_row(const Fields &plan, int64_t row, int64_t drafts) {
    const auto &columns = plan.columns;
    const penstock_slots &slots = all_.slots;
    const int64_t slot = columns[kSlots].word(row), position = columns[kPositions].word(row), count = columns[kCounts].word(row);
    const int64_t blocks = new_blocks_[index(row)] = columns[kNewBlockCounts].word(row);
    const uint8_t flags = columns[kFlags].begin[row];
    if (slot >= slots.max_slots || named_[index(slot)].has_row == number_ || flags & ~kUsualFlags) return false;
    Named &named = named_[index(slot)];
    named.has_row = number_;
    const bool starts = flags & kStartFlag, continues = flags & kContinueFlag, samples = flags & kSampleFlag;
    const bool holds = slots.alive[slot] && named.released != number_;  // a sequence that goes on
    if ((starts && continues) || (flags & kMaskedFlag && !samples)) return false;
    int64_t first = position, held = 0;
    if (continues) {
        // The position may be a bound, if drafts came before.
        first = slots.filled[slot];
        if (!samples || !holds || !slots.has_sampled[slot] || position < first || position > slots.planned[slot] || count != 1 + drafts)
            return false;
    } else if (count < 1 || drafts || slots.encoded) {
        return false;
    }
    if (starts) {
        if (!all_.starts) return false;
        ends(slot);
        starting_.push_back(slot);
    } else {
        held = slots.block_counts[slot];
        if (!holds || first != slots.filled[slot]) return false;
        if (samples && all_.sampling.top_counts[slot]) return false;  // alternatives are listed in Python
    }
    if (held + blocks > slots.width || first + count > room(slot, held + blocks)) return false;
    all_.row_slots[row] = slot, all_.row_first[row] = first, all_.row_counts[row] = count, all_.row_drafts[row] = drafts;
    all_.row_flags[row] = flags;
    attended_ += count * first + count * (count + 1) / 2;
    return true;
}

int64_t Plan::room(int64_t slot, int64_t blocks) const {
    if (all_.tables == 0) return std::numeric_limits<int64_t>::max();
    const int64_t room = blocks * all_.block_size;
    if (all_.most_side == 0) return room;
    return std::min(room, round_up(all_.slots.encoded[slot], all_.block_size) + all_.most_side);
}

bool Plan::reads_tokens(const Fields &plan) {
    const Bytes &given = plan.columns[kTokens];
    int64_t fed = 0, continuing = 0;
    for (int64_t row = 0; row < rows(); row++) fed += all_.row_counts[row], continuing += continues(row);
    if (fed > all_.most_tokens || given.size != (fed - continuing) * 4) return false;
    for (int64_t at = 0; at < given.words(); at++)
        if (given.word(at) >= all_.columns) return false;
    token_rows_.resize(index(fed));
    return true;
}

bool Plan::reads_pages(const Fields &plan) {
    const Bytes &pages = plan.columns[kNewPages];
    given_.clear();
    int64_t at = 0;
    for (int64_t row = 0; row < rows(); row++) {
        const int64_t end = at + new_blocks_[index(row)] * all_.tables;
        if (end * 4 > pages.size) return false;
        for (; at < end; at++) {
            if (pages.word(at) >= all_.pages) return false;  // a block behind a window has none
            if (starts(row)) given_.push_back(pages.word(at));
        }
    }
    return pages.size == at * 4;
}

bool Plan::reads_copies(const Fields &plan) {
    const Bytes &copies = plan.columns[kCopies];
    if (copies.size % 8) return false;
    for (int64_t at = 0; at < copies.words(); at += 2) {
        const uint32_t target = copies.word(at + 1);
        if (copies.word(at) >= all_.pages || std::find(given_.begin(), given_.end(), target) == given_.end()) return false;
    }
    return true;
}

uint32_t Plan::digest_of(const Fields &plan, const Fields &starts, uint32_t before) {
    const uint64_t number = plan.numbers[kNumber];
    uint32_t made = crc32(before, reinterpret_cast<const uint8_t *>(&number), 8);
    for (int field = kDigest + 1; field < static_cast<int>(Fields::kMost); field++) {
        if (field != kStarts) {
            made = crc32(made, plan.columns[index(field)].begin, plan.columns[index(field)].size);
            continue;
        }
        for (const Bytes &column : starts.columns) made = crc32(made, column.begin, column.size);
    }
    return made;
}

void Plan::take(const Fields &plan, Program &program) {
    penstock_slots &slots = all_.slots;
    const auto &columns = plan.columns;
    all_.number++, all_.digest = digest_, ++*all_.steps;
    const Bytes &copies = columns[kCopies], &released = columns[kReleased], &pages = columns[kNewPages], &given = columns[kTokens];
    for (int64_t at = 0; at < copies.words(); at += 2) program.copy_page(copies.word(at), copies.word(at + 1));
    for (int64_t at = 0; at < released.words(); at++) {
        slots.alive[released.word(at)] = 0;
        sampling_.release(released.word(at));
    }
    sampling_.start(starts_, starting_);
    if (slots.adapters)
        for (size_t number = 0; number < starting_.size(); number++)
            slots.adapters[starting_[number]] = static_cast<int32_t>(starts_.columns[kAdapters].word(static_cast<int64_t>(number)));
    int64_t page = 0, token = 0, guess = 0;
    for (int64_t row = 0; row < rows(); row++) {
        const int64_t slot = all_.row_slots[row], first = all_.row_first[row], count = all_.row_counts[row];
        if (starts(row)) slots.alive[slot] = 1, slots.has_sampled[slot] = 0, slots.block_counts[slot] = 0;
        for (int64_t block = 0; block < new_blocks_[index(row)]; block++) {
            const int64_t number = slots.block_counts[slot]++;
            for (int64_t table = 0; table < all_.tables; table++)
                slots.pages[(table * slots.max_slots + slot) * slots.width + number] = pages.word(page++);
        }
        slots.filled[slot] = first + count, slots.planned[slot] = columns[kPositions].word(row) + count;
        if (does_sample(row)) slots.has_sampled[slot] = 1;
        for (int64_t at = 0; at < count; at++, token++) {
            all_.ids[token] = at == 0 && continues(row) ? slots.last_sampled[slot] : given.word(guess++);
            token_rows_[index(token)] = row;
        }
    }
    lay_out();
}

void Plan::lay_out() {
    first_tokens_.resize(index(rows())), first_samples_.resize(index(rows()));
    places_.resize(index(rows())), wanted_.resize(index(rows()));
    sampled_.clear();
    bool all_wanted = true;
    int64_t token = 0;
    for (int64_t row = 0; row < rows(); row++) {
        const int64_t count = all_.row_counts[row], samples = does_sample(row) ? 1 + drafts(row) : 0;
        first_tokens_[index(row)] = token, first_samples_[index(row)] = this->samples();
        token += count;
        for (int64_t at = token - samples; at < token; at++) sampled_.push_back(at);
        wanted_[index(row)] = samples, all_wanted &= samples == count;
        places_[index(row)] = all_.slots.places ? all_.slots.places[slot(row)] : slot(row);
    }
    step_.rows = rows(), step_.tokens = token;
    step_.places = places_.data(), step_.wanted = all_.narrows && !all_wanted ? wanted_.data() : nullptr;
}

int64_t Plan::position_of(int64_t sample) const {
    const int64_t row = row_of(sample);
    return all_.row_first[row] + token_of(sample) - first_token(row) + 1;
}

void Plan::settle(const std::vector<int64_t> &lasts, const int64_t *tokens) {
    for (int64_t row = 0; row < rows(); row++) {
        if (!does_sample(row)) continue;
        const int64_t last = lasts[index(row)];
        all_.slots.last_sampled[slot(row)] = tokens[last];
        all_.slots.filled[slot(row)] -= first_sample(row) + drafts(row) - last;
    }
}

}  // namespace penstock
