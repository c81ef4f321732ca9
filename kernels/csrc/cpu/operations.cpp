// How every thread goes through a program's operations: who waits for whom, and what kernels are given of each. Those of attention, of
// entries and of residual streams are in `attending.cpp`, `entries.cpp` and `residuals.cpp`.
#include <algorithm>

#include "program.h"

namespace penstock {

namespace {

static_assert(kShareStep * sizeof(uint32_t) == Team::kShareBytes);

constexpr int kReadAtOnce = 8;

// From one expert's tiles to the next one's.
int64_t expert_bytes(const penstock_operation &operation) {
    const int64_t panels = round_up(operation.rows, PENSTOCK_TILE_OUTPUTS) / PENSTOCK_TILE_OUTPUTS;
    const auto format = static_cast<penstock_format>(operation.format);
    if (format == PENSTOCK_FORMAT_INT4 || group_of(format))
        return panels * (round_up(operation.columns, PENSTOCK_INT4_INPUTS) / PENSTOCK_INT4_INPUTS) * tile_bytes_of(format);
    const int64_t number = operation.format == PENSTOCK_FORMAT_BF16 ? 2 : 1;
    return panels * PENSTOCK_TILE_OUTPUTS * operation.columns * number;
}

}  // namespace

void Program::run(const std::vector<penstock_operation> &operations, size_t begin, size_t end, int64_t rows) {
    struct Call {
        Program *program;
        const std::vector<penstock_operation> *operations;
        size_t begin, end;
        int64_t rows;
    } call = {this, &operations, begin, end, rows};
    team_.run(
        threads_,
        [](void *context, int member) {
            const Call &call = *static_cast<Call *>(context);
            call.program->execute(*call.operations, call.begin, call.end, call.rows, member);
        },
        &call);
}

void Program::execute(const std::vector<penstock_operation> &operations, size_t begin, size_t end, int64_t rows, int member) {
    // The call is on the caller's stack, and gone once the last barrier is passed: nothing below reads it.
    kernels_.begin();
    // What others may still read for themselves: whoever writes it waits for them.
    int being_read[kReadAtOnce], readers = 0;
    for (size_t i = begin; i < end; i++) {
        const penstock_operation &operation = operations[i];
        bool last = i + 1 == end;
        // Most steps have no token with an adapter: nobody waits for anybody then. A product follows.
        if (operation.kind == PENSTOCK_ADAPT && adapted_.empty()) continue;
        if (std::find(being_read, being_read + readers, operation.target) != being_read + readers ||
            readers == kReadAtOnce) {
            team_.barrier();
            readers = 0;
        }
        const bool waits = compute(operation, rows, member);
        if (operation.kind == PENSTOCK_REDUCE && is_lost_) last = true;
        if (last) kernels_.end();
        if (waits || last)
            team_.barrier(), readers = 0;
        if (last) return;
        if (!waits)
            being_read[readers++] = operation.source;
    }
}

bool Program::compute(const penstock_operation &operation, int64_t rows, int member) {
    const Buffer &target = buffers_[static_cast<size_t>(operation.target)];
    uint8_t *to = at(operation.target, member, rows);
    const bool has_source = operation.kind != PENSTOCK_EMBED;
    const uint8_t *from = has_source ? at(operation.source, member, rows) : nullptr;
    const int64_t from_bytes = has_source ? buffers_[static_cast<size_t>(operation.source)].row_bytes : 0;
    Work work = {team_.next(), team_.shares(), member, threads_,
                 memory_.begin() + scratch_ + member * round_up(scratch_bytes(key_dim_, value_dim_, unpacked_bytes_, gathers_ || !choices_.empty()), kPage)};
    switch (operation.kind) {
        case PENSTOCK_EMBED:
            kernels_.embed({rows, now_->ids, token_positions_.data(), static_cast<const uint8_t *>(operation.weight),
                            operation.format == PENSTOCK_FORMAT_ROWS, operation.rows, operation.first_id, target.width, operation.scale,
                            operation.positions, operation.offset, to, target.row_bytes},
                           work);
            return true;
        case PENSTOCK_NORM: {
            const bool own = target.own_offset >= 0 && rows <= kRowsOfOwn;
            if (own) work.next = nullptr;
            kernels_.norm({rows, operation.columns, std::max(operation.heads, 1),
                           static_cast<penstock_norm>(operation.norm), operation.eps, operation.scale,
                           operation.accumulate != 0, target.layout,
                           operation.norm_weight, operation.bias, from + operation.source_at * 4, from_bytes,
                           to + operation.target_at * (target.layout == PENSTOCK_BF16 ? 2 : 4), target.row_bytes},
                          work);
            return !own;
        }
        case PENSTOCK_REDUCE:
            if (member == 0) is_lost_ = !ranks_->meet();
            team_.barrier();
            if (is_lost_) return true;
            kernels_.sum_ranks({rows, target.width, ranks_->count(), operation.scale, operation.accumulate != 0,
                                ranks_->memory(0) + (from - ranks_->memory(ranks_->rank())),
                                ranks_->memory(1) - ranks_->memory(0), from_bytes, to, target.row_bytes},
                               work);
            return true;
        case PENSTOCK_QUANTIZE: {
            const bool own = target.own_offset >= 0 && rows <= kRowsOfOwn;
            if (own) work.next = nullptr;
            kernels_.quantize({rows * target.per_token, target.width, from, from_bytes, to, target.row_bytes}, work);
            return !own;
        }
        case PENSTOCK_LINEAR:
        case PENSTOCK_HEADS:
        case PENSTOCK_ADAPT:
        case PENSTOCK_EXPERTS: {
            const bool is_adapted = operation.kind == PENSTOCK_LINEAR && operation.second >= 0 && !adapted_.empty();
            const LinearArgs args = {rows,
                                     operation.rows,
                                     operation.columns,
                                     static_cast<penstock_format>(operation.format),
                                     operation.scales,
                                     operation.sums,
                                     static_cast<const uint8_t *>(operation.weight),
                                     operation.bias,
                                     static_cast<penstock_epilogue>(operation.epilogue),
                                     static_cast<penstock_activation>(operation.activation),
                                     operation.scale,
                                     operation.softcap,
                                     operation.limit,
                                     operation.alpha,
                                     operation.lowest,
                                     from,
                                     from_bytes,
                                     to,
                                     target.row_bytes,
                                     target.layout == PENSTOCK_BF16,
                                     nullptr,
                                     nullptr,
                                     buffers_[static_cast<size_t>(operation.source)].width,
                                     token_adapters_.data(),
                                     is_adapted ? at(operation.second, member, rows) : nullptr,
                                     is_adapted ? buffers_[static_cast<size_t>(operation.second)].row_bytes : 0};
            if (operation.kind == PENSTOCK_ADAPT) {
                kernels_.adapt({args, expert_bytes(operation), adapted_.data(), adapted_pieces_.data(),
                                static_cast<int64_t>(adapted_pieces_.size()) - 1},
                               work);
                return true;
            }
            if (operation.kind == PENSTOCK_LINEAR) {
                kernels_.linear(args, work);
                return true;
            }
            if (operation.kind == PENSTOCK_HEADS) {
                HeadsArgs of_heads = {args, operation.heads, expert_bytes(operation), operation.head_dim * 2,
                                      operation.rows * (args.to_bf16 ? 2 : 4)};
                of_heads.linear.source += operation.source_at * 2;
                kernels_.heads(of_heads, work);
                return true;
            }
            const bool sums_up = operation.epilogue == PENSTOCK_STORE || operation.epilogue == PENSTOCK_ADD;
            kernels_.experts({args, groups(), operation.first_expert, expert_bytes(operation),
                              static_cast<int>(round_up(operation.rows, PENSTOCK_TILE_OUTPUTS)), sums_up,
                              operation.weighs_input == 0},
                             work);
            return true;
        }
        case PENSTOCK_ROUTE: {
            const RouteArgs args = {rows,
                                    operation.experts,
                                    operation.per_token,
                                    operation.first_expert,
                                    operation.own_experts < 0 ? operation.experts : operation.own_experts,
                                    operation.sigmoid == 1,
                                    operation.sigmoid == 2,
                                    operation.normalize != 0,
                                    operation.groups,
                                    operation.top_groups,
                                    operation.group_best,
                                    operation.scale,
                                    operation.one_by_one,
                                    operation.bias,
                                    operation.norm_weight,
                                    operation.sums,
                                    now_->ids,
                                    from,
                                    from_bytes,
                                    to,
                                    target.row_bytes,
                                    groups()};
            kernels_.route(args, work);
            team_.barrier();
            if (member == 0) kernels_.group(args);
            return true;
        }
        case PENSTOCK_GATHER:
            kernels_.gather({rows * operation.per_token, groups(), target.layout, target.width,
                             operation.weighs_input != 0, from, from_bytes, to, target.row_bytes},
                            work);
            return true;
        case PENSTOCK_OPEN:
            kernels_.open({rows, operation.heads, operation.head_dim, operation.columns == operation.heads,
                           target.layout == PENSTOCK_F32,
                           static_cast<penstock_activation>(operation.activation),
                           column(operation.source, operation.source_at, member, rows), from_bytes, to,
                           target.row_bytes},
                          work);
            return true;
        case PENSTOCK_GATED_NORM:
            kernels_.gated_norm({rows, operation.heads, operation.head_dim, static_cast<penstock_norm>(operation.norm),
                                 operation.eps, operation.accumulate != 0,
                                 static_cast<penstock_activation>(operation.activation), operation.norm_weight,
                                 operation.norm_over == PENSTOCK_OVER_HEADS ? operation.head_dim : 0, from,
                                 column(operation.second, operation.source_at, member, rows), from_bytes,
                                 buffers_[static_cast<size_t>(operation.second)].row_bytes, to + operation.target_at * 2,
                                 target.row_bytes},
                                work);
            return true;
        case PENSTOCK_CONVOLVE:
        case PENSTOCK_RATES:
        case PENSTOCK_RECUR:
        case PENSTOCK_SCAN:
        case PENSTOCK_GATED_RECUR:
        case PENSTOCK_MIX_TOKENS:
        case PENSTOCK_WEIGH_VALUES:
            recur(operation, work);
            return true;
        case PENSTOCK_PREDICT:
        case PENSTOCK_CORRECT:
        case PENSTOCK_MATCH:
        case PENSTOCK_HYPER_READ:
        case PENSTOCK_HYPER_ADD:
        case PENSTOCK_HYPER_MIX:
        case PENSTOCK_NGRAM_GATE:
            update_streams(operation, work);
            return true;
        case PENSTOCK_NGRAMS:
            find_ngrams(operation, work);
            return true;
        case PENSTOCK_WRITE_BLOCKS:
            write_blocks(operation, work);
            return true;
        case PENSTOCK_SPARSE_GATE:
            kernels_.open_sparsely({rows, operation.columns, operation.inner_at, target.width, operation.alpha,
                                    static_cast<penstock_activation>(operation.activation), from, from_bytes, to,
                                    target.row_bytes},
                                   work);
            return true;
        case PENSTOCK_WRITE_LATENT:
            write_latent(operation, work);
            return true;
        case PENSTOCK_WRITE_INDEX:
            write_index(operation, work);
            return true;
        case PENSTOCK_CHOOSE:
        case PENSTOCK_CHOOSE_FOR_HEADS:
            choose(operation, work);
            return true;
        case PENSTOCK_TURN:
        case PENSTOCK_POOL:
        case PENSTOCK_KEEP:
        case PENSTOCK_COMPRESSED_ATTENTION:
            attend_to_entries(operation, work);
            return true;
        case PENSTOCK_WRITE_KV: {
            const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
            kernels_.write_kv(
                {rows, token_rows_.data(), token_positions_.data(), token_places_.data(), rows_.data() + cache.table * row_count_,
                 cached_heads(operation), operation.rope_dim, operation.cos, operation.sin, operation.clip, operation.eps,
                 static_cast<penstock_norm>(operation.norm), static_cast<penstock_norm_over>(operation.norm_over),
                 operation.norm_rotated != 0, operation.norm_weight, operation.second_weight, operation.bias,
                 operation.second_bias, operation.positions, static_cast<penstock_values>(operation.values),
                 static_cast<penstock_norm>(operation.value_norm), operation.value_eps, operation.value_scale, from,
                 from_bytes, to, target.head_stride, cache.pages},
                work);
            return true;
        }
        default:
            attend(operation, work);
            return true;
    }
}

void Program::recur(const penstock_operation &operation, const Work &work) {
    const Buffer &source = buffers_[static_cast<size_t>(operation.source)],
                 &target = buffers_[static_cast<size_t>(operation.target)];
    const int64_t rows = now_->tokens, row_count = now_->rows;
    uint8_t *to = at(operation.target, work.member, rows);
    const auto of_source = [&](int first) { return column(operation.source, first, work.member, rows); };
    if (operation.kind == PENSTOCK_RATES) {
        const bool has_units = operation.heads > 0;
        const int other = operation.third >= 0 ? operation.third : operation.source;
        kernels_.rates({rows, static_cast<penstock_rule>(operation.rule), operation.columns, operation.norm_weight,
                        operation.bias, operation.scale, operation.lowest, operation.highest,
                        of_source(operation.source_at), column(other, operation.inner_at, work.member, rows),
                        source.row_bytes, buffers_[static_cast<size_t>(other)].row_bytes, operation.head_dim, to,
                        target.row_bytes, operation.heads, operation.head_dim, operation.eps, operation.alpha,
                        has_units ? at(operation.second, work.member, rows) : nullptr,
                        has_units ? buffers_[static_cast<size_t>(operation.second)].row_bytes : 0},
                       work);
        return;
    }
    const States *states = caches_[static_cast<size_t>(operation.layer)].states;
    if (operation.kind == PENSTOCK_CONVOLVE) {
        kernels_.convolve({state_rows_.data(), row_count, states[operation.offset], operation.columns, operation.rows, operation.dilation,
                           operation.norm_weight, operation.bias, static_cast<penstock_activation>(operation.activation),
                           of_source(operation.source_at), of_source(operation.inner_at), of_source(operation.outer_at),
                           source.row_bytes, to + operation.target_at * (target.layout == PENSTOCK_BF16 ? 2 : 4),
                           target.row_bytes, target.layout == PENSTOCK_BF16},
                          work);
        return;
    }
    if (operation.kind == PENSTOCK_MIX_TOKENS) {
        kernels_.mix_tokens({state_rows_.data(), row_count, states[0], operation.columns, operation.accumulate != 0,
                             operation.norm_weight, at(operation.source, work.member, rows), source.row_bytes, to,
                             target.row_bytes},
                            work);
        return;
    }
    if (operation.kind == PENSTOCK_WEIGH_VALUES) {
        kernels_.weigh_values({state_rows_.data(), row_count, states[1], operation.columns, operation.norm_weight, operation.bias,
                               of_source(0), at(operation.second, work.member, rows), at(operation.third, work.member, rows),
                               source.row_bytes, to, target.row_bytes},
                              work);
        return;
    }
    const int64_t second_bytes = buffers_[static_cast<size_t>(operation.second)].row_bytes;
    if (operation.kind == PENSTOCK_SCAN) {
        kernels_.scan({state_rows_.data(), row_count, states[1], operation.columns, operation.head_dim,
                       operation.positions, operation.norm_weight, of_source(operation.source_at),
                       at(operation.second, work.member, rows),
                       column(operation.third, operation.inner_at, work.member, rows),
                       column(operation.third, operation.outer_at, work.member, rows), source.row_bytes, second_bytes,
                       buffers_[static_cast<size_t>(operation.third)].row_bytes, to, target.row_bytes},
                      work);
        return;
    }
    if (operation.kind == PENSTOCK_GATED_RECUR) {
        kernels_.gated_recur({state_rows_.data(), row_count, token_positions_.data(), states[1], operation.heads,
                              operation.head_dim, operation.norm_weight, operation.bias, of_source(operation.source_at),
                              at(operation.second, work.member, rows), source.row_bytes, second_bytes, to,
                              target.row_bytes},
                             work);
        return;
    }
    kernels_.recur({state_rows_.data(), row_count, states[1], operation.heads, operation.kv_heads, operation.head_dim,
                    operation.value_dim, operation.learns != 0, operation.channels != 0, operation.norm_weight, of_source(operation.source_at),
                    of_source(operation.inner_at), of_source(operation.outer_at),
                    at(operation.second, work.member, rows), source.row_bytes, second_bytes, to, target.row_bytes},
                   work);
}

uint8_t *Program::at(int number, int member, int64_t rows) const {
    const Buffer &buffer = buffers_[static_cast<size_t>(number)];
    if (buffer.layout == PENSTOCK_EXTERNAL || buffer.layout == PENSTOCK_SHARED) return buffer.external;
    if (buffer.own_offset >= 0 && rows <= kRowsOfOwn)
        return memory_.begin() + buffer.own_offset + member * kRowsOfOwn * buffer.row_bytes;
    return memory_.begin() + buffer.offset;
}

const uint8_t *Program::column(int buffer, int column, int member, int64_t rows) const {
    return column < 0 ? nullptr : at(buffer, member, rows) + column * 4;
}

Groups Program::groups() {
    return {grouped_.tokens.data(), grouped_.weights.data(),  grouped_.begins.data(),
            grouped_.active.data(), &grouped_.active_count, &grouped_.most};
}

}  // namespace penstock
