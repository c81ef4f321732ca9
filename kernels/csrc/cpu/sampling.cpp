// Tokens of logits: the largest of each row with the sum that makes it a probability, draws, and what other ranks are told. What a slot is
// sampled with says `slot_sampling.cpp`.
#include <algorithm>

#include "program.h"

namespace penstock {

void Program::decode(const penstock_step &step, float *logits, int64_t stride, int64_t columns, int64_t *tokens,
                     float *largest, float *totals, const penstock_draws *draws) {
    const int64_t rows = step.tokens;
    this->step(step);
    const Buffer &hidden = buffers_.front();
    head(reinterpret_cast<const float *>(at(0, 0, rows)), hidden.row_bytes / 4, rows, logits, stride);
    if (tokens == nullptr) return;
    choose(logits, stride, rows, columns, {}, tokens, largest, totals, draws);
}

void Program::choose(const float *logits, int64_t stride, int64_t rows, int64_t columns, const RowMasks &masks, int64_t *tokens,
                     float *largest, float *totals, const penstock_draws *draws) {
    if (!ranks_ || ranks_->rank() == 0) summarize(logits, stride, rows, columns, masks, tokens, largest, totals);
    finish_choice(logits, stride, rows, columns, tokens, draws);
}

void Program::finish_choice(const float *logits, int64_t stride, int64_t rows, int64_t columns, int64_t *tokens,
                            const penstock_draws *draws) {
    if (draws && (!ranks_ || ranks_->rank() == 0)) {
        draw(logits, stride, columns, *draws);
        for (int64_t i = 0; i < draws->count; i++) tokens[draws->rows[i].row] = draws->tokens[i];
    }
    if (ranks_) tell(tokens, rows * static_cast<int64_t>(sizeof(int64_t)));
}

void Program::summarize(const float *logits, int64_t stride, int64_t rows, int64_t columns, const RowMasks &masks,
                        int64_t *tokens, float *largest, float *totals) {
    if (rows < 1 || columns < 1) throw wrong("no logits to sum up");
    if (masks.of_row != nullptr && masks.row_words * 32 < columns) throw wrong("masks of fewer bits than there are logits");
    summaries_.resize(static_cast<size_t>(rows * ((columns + kSummarized - 1) / kSummarized)));
    struct Call {
        Program *program;
        SummarizeArgs args;
    } call = {this, {rows, columns, logits, stride, summaries_.data(), tokens, largest, totals, masks}};
    team_.run(
        threads_,
        [](void *context, int member) {
            // The call is on the caller's stack: see `execute`.
            const SummarizeArgs args = static_cast<Call *>(context)->args;
            Program &program = *static_cast<Call *>(context)->program;
            const Work work = {program.team_.next(), program.team_.shares(), member, program.threads_, nullptr};
            program.kernels_.summarize(args, work);
            program.team_.barrier();
            program.kernels_.join_summaries(args, work);
            program.team_.barrier();
        },
        &call);
}

void Program::draw(const float *logits, int64_t stride, int64_t columns, const penstock_draws &draws) {
    if (columns < 1 || columns > (int64_t{1} << 30)) throw wrong("logits of no or too many columns");
    const auto check = [&](const int64_t *tokens, int64_t first, int64_t count) {
        if (!std::all_of(tokens + first, tokens + first + count, [&](int64_t token) { return token >= 0 && token < columns; }))
            throw wrong("a token that there are no logits of");
    };
    for (int64_t i = 0; i < draws.count; i++) {
        const penstock_draw_row &row = draws.rows[i];
        if (row.mask >= 0 && draws.mask_words * 32 < columns) throw wrong("masks of fewer bits than there are logits");
        if (row.before > kMostBefore) throw wrong("more drafts before a sample than there may be");
        check(draws.bias_tokens, row.first_bias, row.biases);
        check(draws.end_tokens, row.first_end, row.ends);
        check(draws.before, row.first_before, row.before);
    }
    // Pages of threads that draw nothing are never touched.
    if (draw_columns_ < columns) {
        draw_memory_ = Memory(draw_floats(columns) * 4 * team_.size());
        draw_columns_ = columns;
    }
    struct Call {
        Program *program;
        DrawArgs args;
    } call = {this, {columns, logits, stride, draws, reinterpret_cast<float *>(draw_memory_.begin())}};
    team_.run(
        threads_,
        [](void *context, int member) {
            // The call is on the caller's stack: see `execute`.
            const DrawArgs args = static_cast<Call *>(context)->args;
            Program &program = *static_cast<Call *>(context)->program;
            program.kernels_.draw(args, {program.team_.next(), program.team_.shares(), member, program.threads_, nullptr});
            program.team_.barrier();
        },
        &call);
}

}  // namespace penstock
