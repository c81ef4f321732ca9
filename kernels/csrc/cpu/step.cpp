// A step over a program: what operations read of its rows, of trees, states and what encoders have read; which part of the body only wanted
// tokens need; and the head.
#include <algorithm>
#include <cstring>
#include <utility>

#include "program.h"

namespace penstock {

void Program::step(const penstock_step &step) {
    pass(body_, step, false);
}

void Program::step(const penstock_step &step, const std::vector<int64_t> &tokens, float *logits, int64_t stride) {
    this->step(step);
    const auto count = static_cast<int64_t>(tokens.size());
    if (count == 0) return;
    const Buffer &hidden = buffers_.front();
    const auto *rows = reinterpret_cast<const float *>(at(0, 0, step.tokens));
    const int64_t row = hidden.row_bytes / 4;
    if (count == step.tokens) return head(rows, row, count, logits, stride);
    sampled_.resize(static_cast<size_t>(count * hidden.width));
    for (int64_t i = 0; i < count; i++) std::copy_n(rows + tokens[static_cast<size_t>(i)] * row, hidden.width, sampled_.data() + i * hidden.width);
    head(sampled_.data(), hidden.width, count, logits, stride);
}

void Program::read(const penstock_step &step) {
    if (encoder_.empty() || step.encoded) throw wrong("an input of what has no encoder, or of its decoder");
    for (int64_t row = 0; row < step.rows; row++)
        if (step.first[row] != 0) throw wrong("a part of what an encoder reads");
    pass(encoder_, step, true);
}

void Program::pass(const std::vector<penstock_operation> &operations, const penstock_step &step, bool is_encoder) {
    if (!memory_.begin()) throw wrong("step before reserve");
    const auto reads = [](const Division &division) { return division.sees == PENSTOCK_SEES_READ; };
    if (!is_encoder && !step.encoded && std::any_of(divisions_.begin(), divisions_.end(), reads))
        throw wrong("a step that does not say what encoders have read");
    if (step.tokens < 1 || step.tokens > most_tokens_ || step.rows > step.tokens)
        throw wrong("a step of more tokens than were reserved");
    bool is_cut = false;
    // Paths of trees name tokens of the whole step: such a step is not cut.
    if (!is_encoder && !narrowed_.empty() && step.wanted && !step.positions)
        for (int64_t row = 0; row < step.rows; row++) {
            if (step.wanted[row] < 0 || step.wanted[row] > step.counts[row]) throw wrong("a row wants tokens that it has not");
            is_cut |= step.wanted[row] < step.counts[row];
        }
    note(step, is_encoder);
    if (has_states_) note_states(step);
    if (reductions_ > 0) place_shared();
    now_ = &step;
    run(operations, 0, is_cut ? tail_ : operations.size(), step.tokens);
    if (is_cut && !is_lost_) pass_wanted(step);
    now_ = nullptr;
    if (is_lost_) throw_lost();
}

void Program::note(const penstock_step &step, bool is_encoder) {
    note_rows(step);
    note_seen(step);
    for (Division &division : divisions_)
        if ((division.sees == PENSTOCK_SEES_ROW) == is_encoder) divide(division);
    note_choices(step);
    note_adapters(step);
}

void Program::pass_wanted(const penstock_step &step) {
    for (std::vector<int64_t> *column : {&wanted_slots_, &wanted_first_, &wanted_counts_}) column->clear();
    int64_t tokens = 0, end = 0;
    for (int64_t row = 0; row < step.rows; row++) {
        const int64_t wanted = step.wanted[row];
        end += step.counts[row];
        if (wanted == 0) continue;
        for (const int buffer : narrowed_) move_rows(buffer, end - wanted, tokens, wanted);
        wanted_slots_.push_back(step.slots[row]);
        wanted_first_.push_back(step.first[row] + step.counts[row] - wanted);
        wanted_counts_.push_back(wanted);
        tokens += wanted;
    }
    if (tokens == 0) return;
    penstock_step narrow = {};
    narrow.rows = static_cast<int64_t>(wanted_slots_.size()), narrow.tokens = tokens;
    narrow.slots = wanted_slots_.data(), narrow.first = wanted_first_.data(), narrow.counts = wanted_counts_.data();
    narrow.pages = step.pages, narrow.max_slots = step.max_slots, narrow.width = step.width;
    note(narrow, false);
    now_ = &narrow;
    run(body_, tail_, body_.size(), tokens);
    // Hidden states to where the step has their tokens: from the last on, since none is moved ahead.
    for (int64_t row = step.rows - 1; row >= 0; row--) {
        tokens -= step.wanted[row];
        move_rows(0, tokens, end - step.wanted[row], step.wanted[row]);
        end -= step.counts[row];
    }
}

void Program::move_rows(int number, int64_t from, int64_t to, int64_t count) {
    const Buffer &buffer = buffers_[static_cast<size_t>(number)];
    uint8_t *begin = memory_.begin() + buffer.offset;
    std::memmove(begin + to * buffer.row_bytes, begin + from * buffer.row_bytes, static_cast<size_t>(count * buffer.row_bytes));
}

void Program::note_rows(const penstock_step &step) {
    const auto is_tree = [&step](int64_t row, int64_t token) {
        if (!step.positions) return false;
        for (int64_t i = 0; i < step.counts[row]; i++)
            if (step.positions[token + i] != step.first[row] + i) return true;
        return false;
    };
    row_count_ = 0;
    int64_t token = 0;
    for (int64_t row = 0; row < step.rows; row++) {
        if (token + step.counts[row] > step.tokens) throw wrong("a step's rows have more tokens than the step");
        row_count_ += is_tree(row, token) ? step.counts[row] : 1;
        token += step.counts[row];
    }
    if (token != step.tokens) throw wrong("a step's rows have fewer tokens than the step");
    if (has_states_ && row_count_ != step.rows) throw wrong("a tree of tokens, and states that cannot be rewound");
    rows_.resize(static_cast<size_t>(tables_ * row_count_));
    int64_t here = 0, move = 0;
    token = 0;
    for (int64_t row = 0; row < step.rows; row++) {
        const int64_t read = step.encoded ? step.encoded[step.slots[row]] : 0;
        const int64_t begin_of_part = round_up(read, PENSTOCK_PAGE_TOKENS);
        const int64_t first = step.first[row] - begin_of_part, count = step.counts[row];
        if (first < 0 || (step.encoded && read < 1)) throw wrong("a row of a decoder before its part of the sequence");
        const bool tree = is_tree(row, token);
        for (int64_t i = 0; i < count; i++, token++) {
            const int64_t position = tree ? step.positions[token] : first + i, begin = move;
            token_positions_[static_cast<size_t>(token)] = static_cast<int32_t>(position);
            token_places_[static_cast<size_t>(token)] = static_cast<int32_t>(first + i);
            if (position < first || position > first + i || (tree && position - first > kLongestPath))
                throw wrong("a token of a tree with no path to it");
            for (; move < step.moves && step.moved[3 * move] == token; move++)
                for (int64_t at = 1; at <= 2; at++)
                    if (!tree || step.moved[3 * move + at] < first || step.moved[3 * move + at] > first + i)
                        throw wrong("a path of tokens that are not its row's");
            if (i == 0 || tree) {
                for (int table = 0; table < tables_; table++)
                    rows_[static_cast<size_t>(table * row_count_ + here)] = {
                        token, tree ? 1 : count, position,
                        step.pages + (table * step.max_slots + step.slots[row]) * step.width +
                            begin_of_part / PENSTOCK_PAGE_TOKENS,
                        step.moved + 3 * begin, move - begin};
                here++;
            }
            token_rows_[static_cast<size_t>(token)] = static_cast<int32_t>(here - 1);
        }
    }
    if (move != step.moves) throw wrong("a path of tokens that are not its row's");
}

void Program::note_seen(const penstock_step &step) {
    if (!encoder_.empty() && !step.encoded) {
        whole_rows_ = rows_;
        for (Row &row : whole_rows_) row.seen = row.count;
    }
    if (!step.encoded) return;
    if (row_count_ != step.rows) throw wrong("a tree of tokens behind what an encoder has read");
    read_rows_ = rows_;
    for (int table = 0; table < tables_; table++)
        for (int64_t row = 0; row < row_count_; row++) {
            Row &here = read_rows_[static_cast<size_t>(table * row_count_ + row)];
            here.seen = step.encoded[step.slots[row]];
            here.pages -= round_up(here.seen, PENSTOCK_PAGE_TOKENS) / PENSTOCK_PAGE_TOKENS;
        }
}

const Row *Program::rows_that_see(penstock_sees sees, int table) const {
    const std::vector<Row> &rows = sees == PENSTOCK_SEES_ROW    ? whole_rows_
                                   : sees == PENSTOCK_SEES_READ ? read_rows_
                                                                : rows_;
    return rows.data() + table * row_count_;
}

void Program::note_states(const penstock_step &step) {
    state_rows_.resize(static_cast<size_t>(step.rows));
    int64_t save = 0;
    for (int64_t row = 0; row < step.rows; row++) {
        const Row &here = rows_[static_cast<size_t>(row)];
        const int64_t first = save;
        int64_t last = 0;
        for (; save < step.saved && step.saves[3 * save] == row; save++) {
            const int64_t tokens = step.saves[3 * save + 1];
            if (tokens < std::max<int64_t>(last, 1) || tokens > here.count)
                throw wrong("a state is to be copied where its row is not");
            last = tokens;
        }
        state_rows_[static_cast<size_t>(row)] = {here.first_token, here.count, step.places[row], step.saves + 3 * first,
                                                 save - first};
    }
    if (save != step.saved) throw wrong("a state is to be copied where its row is not");
}

void Program::note_adapters(const penstock_step &step) {
    adapted_.clear();
    if (adapters_ == 0) return;
    int64_t token = 0;
    for (int64_t row = 0; row < step.rows; row++) {
        const int32_t adapter = adapters_of_slots_ ? adapters_of_slots_[step.slots[row]] - 1 : -1;
        if (adapter >= adapters_) throw wrong("a row has an adapter that is not there");
        for (int64_t i = 0; i < step.counts[row]; i++, token++) {
            token_adapters_[static_cast<size_t>(token)] = adapter;
            if (adapter < 0) continue;
            const bool goes_on = !adapted_.empty() && adapted_.back().end == token && adapted_.back().adapter == adapter &&
                                 token - adapted_.back().begin < kAdaptedTokens;
            if (!goes_on) adapted_.push_back({token, token, adapter});
            adapted_.back().end = token + 1;
        }
    }
    std::sort(adapted_.begin(), adapted_.end(), [](const AdaptedTokens &one, const AdaptedTokens &other) {
        return std::pair(one.adapter, one.begin) < std::pair(other.adapter, other.begin);
    });
    adapted_pieces_.clear();
    int64_t tokens = 0;
    for (size_t at = 0; at < adapted_.size(); at++) {
        const AdaptedTokens &run = adapted_[at];
        tokens += run.end - run.begin;
        if (at > 0 && run.adapter == adapted_[at - 1].adapter && tokens <= kAdaptedTokens) continue;
        adapted_pieces_.push_back(static_cast<int64_t>(at));
        tokens = run.end - run.begin;
    }
    adapted_pieces_.push_back(static_cast<int64_t>(adapted_.size()));
}

void Program::head(const float *source, int64_t source_stride, int64_t rows, float *target, int64_t target_stride) {
    if (!memory_.begin()) throw wrong("head before reserve");
    if (head_.empty() || rows < 1 || rows > most_rows_) throw wrong("a head call of more rows than were reserved");
    Buffer &in = buffers_[static_cast<size_t>(head_.front().source)];
    Buffer &out = buffers_[static_cast<size_t>(head_.back().target)];
    in.external = reinterpret_cast<uint8_t *>(const_cast<float *>(source)), in.row_bytes = source_stride * 4;
    if (ranks_) return head_of_ranks(rows, target, target_stride);
    out.external = reinterpret_cast<uint8_t *>(target), out.row_bytes = target_stride * 4;
    run(head_, 0, head_.size(), rows);
}

}  // namespace penstock
