// Operations on several residual streams, and n-grams.
#include <algorithm>

#include "program.h"

namespace penstock {

void Program::update_streams(const penstock_operation &operation, const Work &work) {
    const auto bytes = [&](int buffer) { return buffers_[static_cast<size_t>(buffer)].row_bytes; };
    const int64_t rows = now_->tokens;
    const auto begin = [&](int buffer) { return at(buffer, work.member, rows); };
    const auto of = [&](int buffer, int first) { return column(buffer, first, work.member, rows); };
    const int64_t from_bytes = bytes(operation.source), second_bytes = bytes(operation.second);
    uint8_t *to = begin(operation.target);
    const int64_t to_bytes = bytes(operation.target);
    switch (operation.kind) {
        case PENSTOCK_HYPER_READ: {
            const HyperReadArgs args = {rows, operation.heads, operation.columns, operation.rows, operation.eps,
                                        operation.lowest, operation.alpha, operation.norm_weight, operation.bias,
                                        operation.scales, begin(operation.source), from_bytes, to, to_bytes,
                                        operation.rounds, begin(operation.second), second_bytes};
            kernels_.weigh_streams(args, work);
            team_.barrier();
            kernels_.mix_streams(args, work);
            return;
        }
        case PENSTOCK_HYPER_MIX:
            kernels_.mix_numbers({rows, operation.heads, operation.columns, begin(operation.source), begin(operation.second),
                                  from_bytes, second_bytes, to, to_bytes,
                                  operation.third < 0 ? nullptr : begin(operation.third),
                                  operation.third < 0 ? 0 : bytes(operation.third)},
                                 work);
            return;
        case PENSTOCK_NGRAM_GATE:
            kernels_.gate_ngrams({rows, operation.heads, operation.columns, operation.eps, operation.norm_weight,
                                  operation.second_weight, begin(operation.source), begin(operation.second), from_bytes,
                                  second_bytes, to, to_bytes},
                                 work);
            return;
        case PENSTOCK_HYPER_ADD:
            kernels_.add_to_streams({rows, operation.heads, operation.columns, operation.rounds > 0, begin(operation.source),
                                     of(operation.second, operation.inner_at), from_bytes, second_bytes, to, to_bytes},
                                    work);
            return;
        case PENSTOCK_MATCH:
            kernels_.match({rows, operation.columns, operation.eps, operation.accumulate != 0,
                            of(operation.source, operation.source_at), of(operation.second, operation.inner_at), from_bytes,
                            second_bytes, to + operation.target_at * 4, to_bytes},
                           work);
            return;
        default: {
            const bool corrects = operation.kind == PENSTOCK_CORRECT;
            kernels_.update_streams({rows, operation.heads, operation.columns, operation.offset, operation.norm_weight,
                                     begin(operation.source), begin(operation.second),
                                     corrects ? begin(operation.third) : nullptr, from_bytes, second_bytes,
                                     corrects ? bytes(operation.third) : 0, to, to_bytes},
                                    work);
        }
    }
}

void Program::find_ngrams(const penstock_operation &operation, const Work &work) {
    const Buffer &target = buffers_[static_cast<size_t>(operation.target)];
    const int64_t first = std::max(operation.first_id, 0);
    const NgramArgs args = {now_->tokens, now_->ids, token_rows_.data(), token_positions_.data(), state_rows_.data(),
                            now_->rows, caches_[static_cast<size_t>(operation.layer)].states[3], operation.rows,
                            operation.heads, operation.head_dim, operation.offset, first, operation.columns,
                            operation.sums, static_cast<const uint8_t *>(operation.weight),
                            at(operation.target, work.member, now_->tokens), target.row_bytes};
    kernels_.find_rows(args, work);
    team_.barrier();
    kernels_.keep_ids(args, work);
}

}  // namespace penstock
