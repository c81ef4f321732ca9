// Operations of attention to a window and to entries that stand for several tokens each, and what blocks of keys have in the cache.
#include <algorithm>
#include <numeric>

#include "program.h"

namespace penstock {

Past Program::past_of(const penstock_operation &operation, int buffer, int state, int64_t kept) const {
    const Buffer &source = buffers_[static_cast<size_t>(buffer)];
    return {memory_.begin() + source.offset, source.row_bytes, state_rows_.data(), token_rows_.data(),
            caches_[static_cast<size_t>(operation.layer)].states[state], kept, source.width};
}

TurnArgs Program::turn_of(const penstock_operation &operation) const {
    const Buffer &source = buffers_[static_cast<size_t>(operation.source)],
                 &target = buffers_[static_cast<size_t>(operation.target)];
    const int size = operation.head_dim, padded = static_cast<int>(round_up(size, 16));
    TurnArgs args = {now_->tokens, token_positions_.data(), operation.heads, size, operation.rope_dim,
                     static_cast<penstock_norm>(operation.norm), operation.eps, operation.norm_weight, operation.cos,
                     operation.sin, memory_.begin() + source.offset + operation.source_at * 4, source.row_bytes,
                     memory_.begin() + target.offset, target.row_bytes, size * 2, padded};
    if (target.layout == PENSTOCK_QUERIES) {
        args.padded = target.heads.key_dim;
        args.head_bytes = args.padded * 2, args.target_bytes = args.heads * args.head_bytes;
    }
    return args;
}

void Program::attend_to_entries(const penstock_operation &operation, const Work &work) {
    if (operation.kind == PENSTOCK_TURN) return kernels_.turn(turn_of(operation), work);
    const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
    const Row *rows = rows_.data() + cache.table * row_count_;
    if (operation.kind == PENSTOCK_KEEP)
        return kernels_.keep({past_of(operation, operation.source, operation.offset, operation.columns), now_->rows}, work);
    const int rate = operation.rows, entry_rows = std::gcd(rate, int{PENSTOCK_PAGE_TOKENS});
    if (operation.kind == PENSTOCK_POOL) {
        const int64_t row_bytes = cache.page_bytes / PENSTOCK_PAGE_TOKENS * entry_rows;
        kernels_.pool({turn_of(operation), past_of(operation, operation.source, 1, rate * operation.groups - 1), rows, rate,
                       operation.groups, entry_rows, operation.source_at, operation.positions, cache.pages, cache.page_bytes,
                       operation.accumulate ? row_bytes - operation.head_dim * 2 : 0},
                      work);
        return;
    }
    const Buffer &target = buffers_[static_cast<size_t>(operation.target)];
    const bool has_choice = operation.third >= 0;
    kernels_.compressed_attention(
        {now_->tokens, token_positions_.data(), rows, heads_of(operation),
         past_of(operation, operation.second, 0, operation.window - 1), operation.window, rate, entry_rows, operation.rope_dim,
         operation.cos, operation.sin, operation.sinks, operation.scale,
         memory_.begin() + buffers_[static_cast<size_t>(operation.source)].offset, cache.pages, cache.page_bytes,
         has_choice ? at(operation.third, work.member, now_->tokens) : nullptr,
         has_choice ? buffers_[static_cast<size_t>(operation.third)].row_bytes : 0, operation.columns,
         memory_.begin() + target.offset, target.row_bytes},
        work);
}

void Program::write_blocks(const penstock_operation &operation, const Work &work) {
    const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
    const WriteBlocksArgs args = {now_->tokens, token_rows_.data(), token_positions_.data(),
                                  rows_.data() + cache.table * row_count_, index_heads(operation), operation.window,
                                  operation.rope_dim, operation.eps, operation.norm_weight, operation.second_weight,
                                  operation.cos, operation.sin, at(operation.source, work.member, now_->tokens),
                                  buffers_[static_cast<size_t>(operation.source)].row_bytes,
                                  at(operation.target, work.member, now_->tokens), index_keys(operation)};
    kernels_.write_blocks(args, work);
    team_.barrier();
    kernels_.complete_blocks(args, work);
}

}  // namespace penstock
