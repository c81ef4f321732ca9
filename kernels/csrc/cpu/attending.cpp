// How a step's queries are divided for attention, what tokens choose, and the operations that attend and choose.
#include <algorithm>
#include <numeric>

#include "program.h"

namespace penstock {

// Parts of attention at once: those of as many of the longest rows as have a key head for each thread, and of one more. None where a token's
// queries are more than a tile or one thread computes, see `divide`.
int64_t Program::part_count(const Division &division, int64_t longest) const {
    if (division.group > kQueries || team_.size() == 1) return 0;
    const int64_t rows = (team_.size() + division.kv_heads - 1) / division.kv_heads + 1;
    return rows * (longest / kSplit + 2);
}

int64_t Program::item_count(const Division &division, int64_t tokens, int64_t longest) const {
    return tokens * (division.group + 16) / 16 + part_count(division, longest);
}

void Program::note_choices(const penstock_step &step) {
    for (Choice &choice : choices_) {
        choice.tokens.clear();
        int64_t last = 0;
        for (int64_t token = 0; token < step.tokens; token++) {
            const int32_t position = token_positions_[static_cast<size_t>(token)];
            const int32_t seen = (position + 1) / choice.tokens_of_one();
            if (seen <= choice.most()) continue;
            choice.tokens.push_back(static_cast<int32_t>(token));
            last = std::max<int64_t>(last, seen - 1);
        }
        choice.splits = last / kSplit + 1;
    }
}

void Program::divide(Division &division) {
    division.items.clear();
    division.joins.clear();
    const Row *rows = rows_that_see(division.sees, 0);
    // Of a tile all queries are of the row, or of one token.
    const auto unit_of = [&](const Row &row) { return division.by_token ? division.group : row.count * division.group; };
    // Some queries of a row, from `first` on, and the splits of its keys that they see.
    const auto item_of = [&](int64_t row, int64_t first, int64_t count) {
        const Row &here = rows[row];
        const int64_t last_position = here.seen ? here.seen - 1 : here.position + (first + count - 1) / division.group;
        const int64_t position = here.position + first / division.group;
        int64_t lowest = 0;
        if (division.window)
            lowest = division.chunked ? position / division.window * division.window
                                      : std::max<int64_t>(position + 1 - division.window, 0);
        return AttentionItem{static_cast<int32_t>(row), static_cast<int32_t>(first), static_cast<int32_t>(lowest / kSplit),
                             static_cast<int32_t>(last_position / kSplit + 1), -1, static_cast<int32_t>(count)};
    };
    // The longest first: what is short fills the gaps in the end.
    int64_t splits = 0;
    for (int64_t row = row_count_ - 1; row >= 0; row--) {
        const int64_t unit = unit_of(rows[row]), tiles = (unit + kQueries - 1) / kQueries;
        for (int64_t tile = rows[row].count * division.group / unit * tiles - 1; tile >= 0; tile--) {
            const int64_t begin_of_unit = tile / tiles * unit, first = begin_of_unit + tile % tiles * kQueries;
            division.items.push_back(item_of(row, first, std::min<int64_t>(kQueries, begin_of_unit + unit - first)));
            splits += division.items.back().split_end - division.items.back().split_begin;
        }
    }
    if (threads_ == 1) return;
    // Where one key head of a row of one tile is more than its part of all the work, its splits are items of their own, as long as there is
    // room for their results. Whole rows come first, and splits fill the gaps.
    const int64_t most_parts = part_count(division, longest_);
    int part = 0;
    const size_t whole = division.items.size();
    size_t kept = 0;
    for (size_t at = 0; at < whole; at++) {
        const AttentionItem item = division.items[at];
        const int count = item.split_end - item.split_begin;
        const bool is_alone = rows[item.row].count * division.group <= std::min<int64_t>(kQueries, unit_of(rows[item.row]));
        if (!is_alone || count < 2 || 4 * threads_ * count <= division.kv_heads * splits || part + count > most_parts) {
            division.items[kept++] = item;
            continue;
        }
        division.joins.push_back({item.row, item.first_query, part, count, item.queries});
        for (int split = item.split_begin; split < item.split_end; split++)
            division.items.push_back({item.row, item.first_query, split, split + 1, part++, item.queries});
    }
    division.items.erase(division.items.begin() + static_cast<int64_t>(kept), division.items.begin() + static_cast<int64_t>(whole));
}

void Program::attend(const penstock_operation &operation, const Work &work) {
    const Buffer &queries = buffers_[static_cast<size_t>(operation.source)],
                 &target = buffers_[static_cast<size_t>(operation.target)];
    const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
    const Division &division = *std::find_if(divisions_.begin(), divisions_.end(), [&](const Division &one) {
        return one.window == operation.window && one.chunked == (operation.chunked != 0) &&
               one.group == operation.heads / operation.kv_heads && one.kv_heads == operation.kv_heads &&
               one.by_token == (operation.second >= 0) && one.sees == operation.sees;
    });
    const bool has_choice = operation.second >= 0, has_said = operation.third >= 0;
    const auto has_lists = [&](const penstock_operation &one) { return chooses(one) && one.target == operation.second; };
    const auto choosing = has_choice ? std::find_if(body_.begin(), body_.end(), has_lists) : body_.end();
    const bool is_by_head = choosing != body_.end() && choosing->kind == PENSTOCK_CHOOSE_FOR_HEADS;
    const AttentionArgs args = {division.items.data(),
                                static_cast<int64_t>(division.items.size()),
                                division.joins.data(),
                                static_cast<int64_t>(division.joins.size()),
                                rows_that_see(division.sees, cache.table),
                                cached_heads(operation),
                                operation.scale,
                                operation.softcap,
                                operation.window,
                                operation.chunked != 0,
                                operation.sinks,
                                operation.slopes,
                                operation.slopes_rounded != 0,
                                operation.slopes_scale,
                                memory_.begin() + queries.offset,
                                queries.head_stride,
                                cache.pages,
                                reinterpret_cast<float *>(memory_.begin() + parts_),
                                part_floats(value_dim_),
                                memory_.begin() + target.offset,
                                target.row_bytes,
                                has_choice ? at(operation.second, work.member, now_->tokens) : nullptr,
                                has_choice ? buffers_[static_cast<size_t>(operation.second)].row_bytes : 0,
                                operation.columns,
                                operation.value_dim != 0,
                                is_by_head ? operation.columns * int64_t{4} : 0,
                                is_by_head && choosing->window % PENSTOCK_PAGE_TOKENS == 0,
                                has_said ? nullptr : operation.positions,
                                operation.columns,
                                operation.offset,
                                has_said ? operation.norm_weight : nullptr,
                                operation.rows,
                                has_said ? at(operation.third, work.member, now_->tokens) : nullptr,
                                has_said ? buffers_[static_cast<size_t>(operation.third)].row_bytes : 0,
                                has_said ? operation.positions : nullptr};
    kernels_.attention(args, work);
    if (args.join_count == 0) return;
    team_.barrier();
    kernels_.join_attention(args, work);
}

void Program::write_latent(const penstock_operation &operation, const Work &work) {
    const auto bytes = [&](int buffer) { return buffers_[static_cast<size_t>(buffer)].row_bytes; };
    const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
    const int64_t rows = now_->tokens;
    const Buffer &rotated = buffers_[static_cast<size_t>(operation.second)];
    kernels_.write_latent(
        {rows, token_rows_.data(), token_positions_.data(), token_places_.data(), rows_.data() + cache.table * row_count_,
         cached_heads(operation), operation.rope_dim, rotated.width / operation.heads, operation.cos, operation.sin,
         operation.positions, at(operation.source, work.member, rows), at(operation.second, work.member, rows),
         at(operation.third, work.member, rows), bytes(operation.source), bytes(operation.second),
         bytes(operation.third), at(operation.target, work.member, rows), cache.pages},
        work);
}

void Program::write_index(const penstock_operation &operation, const Work &work) {
    const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
    const int64_t rows = now_->tokens;
    kernels_.write_index({rows, token_rows_.data(), token_positions_.data(), token_places_.data(),
                          rows_.data() + cache.table * row_count_, index_heads(operation), operation.rope_dim, operation.eps,
                          operation.norm_weight, operation.second_weight, operation.cos, operation.sin,
                          column(operation.source, operation.source_at, work.member, rows),
                          column(operation.second, std::max(operation.inner_at, 0), work.member, rows),
                          buffers_[static_cast<size_t>(operation.source)].row_bytes,
                          buffers_[static_cast<size_t>(operation.second)].row_bytes, at(operation.target, work.member, rows),
                          index_keys(operation)},
                         work);
}

const Program::Choice &Program::choice_of(const penstock_operation &operation) const {
    return *std::find_if(choices_.begin(), choices_.end(), [&](const Choice &one) { return one.is_of(operation); });
}

void Program::choose(const penstock_operation &operation, const Work &work) {
    const Choice &choice = choice_of(operation);
    if (choice.tokens.empty()) return;
    const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
    const int64_t rows = now_->tokens, count = static_cast<int64_t>(choice.tokens.size());
    const bool few = count <= score_rows();
    const bool is_by_head = operation.kind == PENSTOCK_CHOOSE_FOR_HEADS;
    const int weights = operation.window ? operation.source : operation.second;  // of blocks there are none
    const int entry_rows = std::gcd(operation.rows, int{PENSTOCK_PAGE_TOKENS});
    const ChooseArgs args = {count,
                             choice.tokens.data(),
                             token_rows_.data(),
                             token_positions_.data(),
                             rows_.data() + cache.table * row_count_,
                             index_heads(operation),
                             operation.scale,
                             is_by_head ? operation.columns / operation.window : choice.most(),
                             at(operation.source, work.member, rows),
                             at(weights, work.member, rows),
                             operation.rows ? cache.pages : index_keys(operation),
                             buffers_[static_cast<size_t>(weights)].row_bytes,
                             operation.rows,
                             entry_rows,
                             cache.page_bytes / PENSTOCK_PAGE_TOKENS * entry_rows - operation.head_dim * 2,
                             operation.window,
                             few ? choice.splits : 0,
                             reinterpret_cast<float *>(memory_.begin() + scores_),
                             is_by_head ? score_floats(longest_) * operation.heads : score_floats(longest_),
                             at(operation.target, work.member, rows),
                             buffers_[static_cast<size_t>(operation.target)].row_bytes,
                             operation.offset};
    if (few) {
        (is_by_head ? kernels_.score_heads : kernels_.score)(args, work);
        team_.barrier();
    }
    (is_by_head ? kernels_.choose_for_heads : kernels_.choose)(args, work);
}

}  // namespace penstock
