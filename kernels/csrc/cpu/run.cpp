#include "run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>

namespace penstock {

namespace {

// Logits that one thread looks at in some tens of microseconds.
constexpr int64_t kMostAlone = 1 << 14;

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

int Run::go_on() {
    const int64_t entered = now_ns();
    all_.made_count = 0;
    for (;;) {
        if (all_.made_count == all_.most_made || (all_.made_count && now_ns() - entered >= all_.most_ns)) return PENSTOCK_PAUSE_STEPS;
        Fields columns;
        const Found found = inbox_.find_plan(columns);
        if (found == Found::kOther) return PENSTOCK_PAUSE_MESSAGE;
        if (found == Found::kMore) {
            if (!inbox_.receive()) return inbox_.was_quiet() ? PENSTOCK_PAUSE_STEPS : PENSTOCK_PAUSE_MESSAGE;
            continue;
        }
        const int64_t began = now_ns();
        if (!plan_.read(columns)) return PENSTOCK_PAUSE_MESSAGE;
        const int kind = kind_of(plan_.tokens());
        if (all_.left[kind] == 0) return PENSTOCK_PAUSE_STEPS;
        all_.left[kind]--;
        plan_.take(columns, program_);
        all_.is_taken = 1;
        inbox_.drop();
        program_.set_threads(static_cast<int>(all_.threads[kind]));
        const int64_t prepared = now_ns();
        program_.step(plan_.step(), plan_.sampled_tokens(), all_.logits, all_.stride);
        const auto samples = static_cast<size_t>(plan_.samples());
        masks_.assign(samples, -1), only_.assign(samples, kOfWords), closed_.assign(samples, 0);
        words_.clear();
        summarize();
        const bool awaits = plan_.has_masks() && all_.answers;
        if (!awaits) choose();
        const int64_t forwarded = now_ns();
        all_.tokens = plan_.tokens(), all_.prepare_ns = prepared - began, all_.forward_ns = forwarded - prepared;
        int64_t choosing = forwarded;
        if (awaits) {
            Bytes masks;
            Found come;
            while ((come = inbox_.find_masks(masks)) == Found::kMore)
                if (!inbox_.receive()) return PENSTOCK_PAUSE_MASKS;
            choosing = now_ns();
            if (come == Found::kOther || !take_masks(masks)) return PENSTOCK_PAUSE_MASKS;
            choose();
            all_.taken_masks = all_.number;
            inbox_.drop();
        }
        accept();
        answer(began, prepared, forwarded, choosing);
    }
}

bool Run::take_masks(const Bytes &message) {
    Fields masks;
    if (!read_fields(message, masks) || !masks.lacks_all_but(bits({kNumber, kOnly, kWords}))) return false;
    const Bytes &only = masks.columns[kOnly], &words = masks.columns[kWords];
    listed_ = made_masks_ = 0;
    int64_t entry = 0;
    for (int64_t row = 0; row < plan_.rows(); row++) {
        if (!plan_.is_masked(row)) continue;
        for (int64_t at = 0; at <= plan_.drafts(row); at++, entry++) {
            if (entry >= only.words()) return false;
            const uint32_t token = only.word(entry);
            if (token == kNone && at == 0) return false;  // the row samples nothing this time
            if (!take_mask(words, token, plan_.first_sample(row) + at, at == plan_.drafts(row))) return false;
        }
    }
    return only.size == entry * 4 && words.size == listed_ * mask_words() * 4;
}

bool Run::take_mask(const Bytes &words, uint32_t token, int64_t sample, bool is_last) {
    const auto place = static_cast<size_t>(sample);
    const int64_t width = mask_words();
    only_[place] = token;
    if (token == kNone) {
        closed_[place] = 1;
        return true;
    }
    if (token != kOfWords && token >= all_.columns) return false;
    // What a row samples behind its drafts a bias or a held end may forbid, though it is the only token.
    if (token != kOfWords && !is_last) return true;
    masks_[place] = static_cast<int32_t>(made_masks_++);
    const size_t end = words_.size();
    words_.resize(end + static_cast<size_t>(width));
    if (token != kOfWords) {
        words_[end + token / 32] |= 1u << token % 32;
        return true;
    }
    if ((listed_ + 1) * width * 4 > words.size) return false;
    std::memcpy(words_.data() + end, words.begin + listed_++ * width * 4, static_cast<size_t>(width) * 4);
    return std::any_of(words_.begin() + static_cast<int64_t>(end), words_.end(), [](uint32_t word) { return word != 0; });
}

void Run::summarize() {
    tokens_.resize(masks_.size()), largest_.resize(masks_.size()), totals_.resize(masks_.size());
    if (all_.answers && !masks_.empty())
        program_.summarize(all_.logits, all_.stride, plan_.samples(), all_.columns, {}, tokens_.data(), largest_.data(), totals_.data());
}

void Run::choose() {
    const int64_t samples = plan_.samples();
    if (samples == 0) return;
    if (!words_.empty()) allow();
    const penstock_draws *draws = all_.answers ? sampling_.draws(plan_, masks_, words_, mask_words()) : nullptr;
    program_.finish_choice(all_.logits, all_.stride, samples, all_.columns, tokens_.data(), draws);
    for (int64_t row = 0; row < plan_.rows(); row++)
        for (int64_t at = 0; plan_.is_masked(row) && at < plan_.drafts(row); at++) {
            const auto sample = static_cast<size_t>(plan_.first_sample(row) + at);
            if (only_[sample] < kNone) tokens_[sample] = only_[sample];
        }
}

void Run::allow() {
    const auto mask_of = [&](size_t sample) { return masks_[sample] < 0 ? nullptr : words_.data() + masks_[sample] * mask_words(); };
    const auto is_allowed = [](const uint32_t *mask, int64_t token) { return mask[token / 32] >> (token % 32) & 1; };
    int64_t looked_at = 0;
    for (size_t sample = 0; sample < masks_.size(); sample++)
        if (const uint32_t *mask = mask_of(sample); mask && !is_allowed(mask, tokens_[sample]))
            for (int64_t word = 0; word < mask_words(); word++) looked_at += __builtin_popcount(mask[word]);
    // So many that all threads are faster together.
    if (looked_at > kMostAlone) {
        program_.summarize(all_.logits, all_.stride, plan_.samples(), all_.columns, {words_.data(), mask_words(), masks_.data()},
                           tokens_.data(), largest_.data(), totals_.data());
        return;
    }
    for (size_t sample = 0; sample < masks_.size(); sample++)
        if (const uint32_t *mask = mask_of(sample); mask && !is_allowed(mask, tokens_[sample]))
            tokens_[sample] = likeliest(all_.logits + static_cast<int64_t>(sample) * all_.stride, mask);
}

int64_t Run::likeliest(const float *logits, const uint32_t *mask) const {
    int64_t made = 0;
    float best = -std::numeric_limits<float>::infinity();
    for (int64_t word = 0; word < mask_words(); word++)
        for (uint32_t left = mask[word]; left; left &= left - 1) {
            const int64_t token = word * 32 + __builtin_ctz(left);
            if (token < all_.columns && logits[token] > best) best = logits[token], made = token;
        }
    return made;
}

void Run::accept() {
    lasts_.assign(static_cast<size_t>(plan_.rows()), -1);
    sampled_.clear(), logprobs_.clear(), accepted_.clear();
    for (int64_t row = 0; row < plan_.rows(); row++) {
        if (!plan_.does_sample(row)) continue;
        const int64_t first = plan_.first_sample(row), drafts = plan_.drafts(row);
        const int64_t *const fed = all_.ids + plan_.token_of(first);
        const auto is_right = [&](int64_t draft) {
            const auto sample = static_cast<size_t>(first + draft);
            return tokens_[sample] == fed[draft + 1] && !closed_[sample + 1];
        };
        int64_t right = 0;
        while (right < drafts && is_right(right)) right++;
        lasts_[static_cast<size_t>(row)] = first + right;
        if (drafts > 0) accepted_.push_back(static_cast<uint32_t>(right));
        for (int64_t sample = first; sample <= first + right; sample++) {
            const auto at = static_cast<size_t>(sample);
            sampling_.count(plan_.slot(row), tokens_[at]);
            if (!all_.answers) continue;
            sampled_.push_back(static_cast<uint32_t>(tokens_[at]));
            // The logarithm in fp64, as `LogitsSummary.logprobs` has it.
            const auto logarithm = static_cast<float>(std::log(static_cast<double>(totals_[at])));
            logprobs_.push_back(all_.logits[sample * all_.stride + tokens_[at]] - largest_[at] - logarithm);
        }
    }
    plan_.settle(lasts_, tokens_.data());
}

void Run::answer(int64_t began, int64_t prepared, int64_t forwarded, int64_t choosing) {
    const int64_t ended = now_ns(), sampling = ended - choosing;
    message_.assign(kHead, 0);
    Writer writer(message_);
    writer.number(kNumber, all_.number);
    if (all_.answers) {
        writer.column(kSampled, sampled_.data(), sampled_.size() * 4);
        writer.column(kLogprobs, logprobs_.data(), logprobs_.size() * 4);
        write_errors(writer);
    }
    writer.number(kPrepareNs, static_cast<uint64_t>(prepared - began));
    writer.number(kForwardNs, static_cast<uint64_t>(forwarded - prepared));
    writer.number(kSampleNs, static_cast<uint64_t>(sampling));
    if (all_.answers) writer.column(kAccepted, accepted_.data(), accepted_.size() * 4);
    const auto size = static_cast<uint32_t>(message_.size() - kHead);
    std::memcpy(message_.data(), &size, 4);
    inbox_.send(message_);
    int64_t *const made = all_.made[all_.made_count++];
    made[0] = plan_.tokens(), made[1] = plan_.attended(), made[2] = forwarded - began + sampling, made[3] = ended;
}

void Run::write_errors(Writer &writer) {
    const auto write = [&](const char *message, const auto &is_wrong) {
        for (int64_t row = 0; row < plan_.rows(); row++) {
            if (!plan_.does_sample(row)) continue;
            bool wrong = false;
            for (int64_t sample = plan_.first_sample(row); sample <= lasts_[static_cast<size_t>(row)]; sample++) wrong |= is_wrong(sample);
            if (!wrong) continue;
            error_.clear();
            Writer error(error_);
            error.number(kErrorRow, static_cast<uint64_t>(row));
            error.column(kErrorMessage, message, std::strlen(message));
            writer.message(kErrors, error_.data(), error_.size());
        }
    };
    const auto is_unsound = [&](int64_t sample) { return !std::isfinite(totals_[static_cast<size_t>(sample)]); };
    write(all_.not_numbers, is_unsound);
    if (sampling_.may_lack()) write(all_.nothing_left, [&](int64_t sample) { return !is_unsound(sample) && sampling_.lacks(sample); });
}

int Run::kind_of(int64_t tokens) const {
    int kind = 0;
    while (kind < PENSTOCK_KINDS_OF_STEPS - 1 && tokens > all_.kinds[kind]) kind++;
    return kind;
}

}  // namespace penstock
