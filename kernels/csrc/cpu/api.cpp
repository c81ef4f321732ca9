// The C interface: exceptions end here, and become the one line that penstock_cpu_error gives.
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa.h"
#include "penstock_cpu.h"
#include "program.h"
#include "run.h"

struct penstock_program {
    penstock::Program program;
};

namespace {

thread_local std::string last_error;

template <typename Call>
int guarded(Call call) {
    try {
        call();
        return 1;
    } catch (const penstock::RankLost &error) {
        last_error = error.what();
        return PENSTOCK_RANK_LOST;
    } catch (const std::bad_alloc &) {
        last_error = "out of memory";
    } catch (const std::exception &error) {
        last_error = error.what();
    }
    return 0;
}

const penstock::InstructionSet *available() {
    static const penstock::InstructionSet *sets = penstock::instruction_sets(penstock::detect_features());
    return sets;
}

const penstock::Kernels &named(const char *instruction_set) {
    const penstock::InstructionSet *set = available();
    while (set->name && std::strcmp(set->name, instruction_set) != 0) set++;
    if (!set->name)
        throw std::invalid_argument("this processor has no instruction set " + std::string(instruction_set));
    return *set->kernels();
}

}  // namespace

int penstock_cpu_abi(void) {
    return PENSTOCK_CPU_ABI;
}

const char *penstock_cpu_error(void) {
    return last_error.c_str();
}

const char *penstock_cpu_instruction_sets(void) {
    static const std::string names = [] {
        std::string joined;
        for (const penstock::InstructionSet *set = available(); set->name; set++)
            joined += (joined.empty() ? "" : " ") + std::string(set->name);
        return joined;
    }();
    return names.c_str();
}

int penstock_cpu_pack(const void *from, void *to, int64_t rows, int64_t columns) {
    return guarded([&] {
        if (rows % PENSTOCK_TILE_OUTPUTS || columns % PENSTOCK_TILE_INPUTS)
            throw std::invalid_argument("a matrix that is not whole tiles");
        // Sixteen rows take as much room before as after; they are copied aside, so that both may be the same memory.
        const size_t panel = static_cast<size_t>(columns) * PENSTOCK_TILE_OUTPUTS * 2;
        std::vector<uint32_t> aside(panel / 4);
        const auto *source = static_cast<const uint8_t *>(from);
        auto *target = static_cast<uint8_t *>(to);
        const int64_t pairs = columns / 2;
        for (int64_t row = 0; row < rows; row += PENSTOCK_TILE_OUTPUTS, source += panel, target += panel) {
            std::memcpy(aside.data(), source, panel);
            auto *out = reinterpret_cast<uint32_t *>(target);
            for (int64_t pair = 0; pair < pairs; pair++)
                for (int64_t output = 0; output < PENSTOCK_TILE_OUTPUTS; output++)
                    *out++ = aside[static_cast<size_t>(output * pairs + pair)];
        }
    });
}

int penstock_cpu_quantize(const char *instruction_set, int32_t format, int32_t rounding, const void *from, int64_t rows,
                          int64_t columns, void *to, float *scales, int32_t *sums) {
    bool is_made = true;
    const int result = guarded([&] {
        const auto wanted = static_cast<penstock_format>(format);
        if (format != PENSTOCK_FORMAT_INT8 && format != PENSTOCK_FORMAT_INT4 && !penstock::group_of(wanted))
            throw std::invalid_argument("a format that this library does not quantize to");
        if (rounding < PENSTOCK_ROUND_NOTHING || rounding > PENSTOCK_ROUND_WITH_ZERO_POINTS ||
            (rounding != PENSTOCK_ROUND_NOTHING && (!penstock::group_of(wanted) || penstock::kind_of(wanted) != penstock::kWithZeros)))
            throw std::invalid_argument("a rounding that this library does not know of the format");
        std::vector<float> row(static_cast<size_t>(penstock::round_up(columns, 2048)) * 3);
        is_made = named(instruction_set)
                      .quantize_weight({wanted, static_cast<penstock_rounding>(rounding), rows, columns, static_cast<const uint16_t *>(from),
                                        static_cast<uint8_t *>(to), scales, sums, row.data()});
    });
    return result == 1 && !is_made ? PENSTOCK_NO_GROUPS : result;
}

penstock_program *penstock_cpu_create(const char *instruction_set, const penstock_buffer *buffers, int32_t buffer_count,
                                      const penstock_operation *encoder, int32_t encoder_count,
                                      const penstock_operation *body, int32_t body_count,
                                      const penstock_operation *head, int32_t head_count, int32_t threads) {
    penstock_program *made = nullptr;
    guarded([&] {
        made = new penstock_program{{named(instruction_set),
                                     {buffers, buffers + buffer_count},
                                     {encoder, encoder + encoder_count},
                                     {body, body + body_count},
                                     {head, head + head_count},
                                     threads}};
    });
    return made;
}

void penstock_cpu_destroy(penstock_program *program) {
    delete program;
}

int64_t penstock_cpu_workspace(const penstock_program *program, int64_t tokens, int64_t rows, int64_t longest) {
    return program->program.workspace(tokens, rows, longest);
}

int penstock_cpu_reserve(penstock_program *program, int64_t tokens, int64_t rows, int64_t longest) {
    return guarded([&] { program->program.reserve(tokens, rows, longest); });
}

int64_t penstock_cpu_shared_bytes(const penstock_program *program, int64_t tokens, int64_t rows, int32_t ranks) {
    return program->program.shared_bytes(tokens, rows, ranks);
}

int penstock_cpu_share(penstock_program *program, void *memory, int64_t tokens, int64_t rows, int32_t rank, int32_t ranks,
                       const int32_t *sockets, int64_t columns) {
    return guarded([&] {
        program->program.share(static_cast<uint8_t *>(memory), tokens, rows, rank, {sockets, sockets + ranks}, columns);
    });
}

int penstock_cpu_tell(penstock_program *program, void *numbers, int64_t bytes) {
    return guarded([&] { program->program.tell(numbers, bytes); });
}

int penstock_cpu_set_cache(penstock_program *program, int32_t layer, void *pages, int64_t page_bytes, int32_t table,
                           int32_t format) {
    return guarded([&] { program->program.set_cache(layer, pages, page_bytes, table, format); });
}

int penstock_cpu_set_state(penstock_program *program, int32_t layer, int32_t state, void *places, int64_t place_bytes) {
    return guarded([&] { program->program.set_state(layer, state, places, place_bytes); });
}

void penstock_cpu_set_adapters(penstock_program *program, const int32_t *of_slots) {
    program->program.set_adapters(of_slots);
}

void penstock_cpu_set_threads(penstock_program *program, int32_t threads) {
    program->program.set_threads(threads);
}

int penstock_cpu_step(penstock_program *program, const penstock_step *step) {
    return guarded([&] { program->program.step(*step); });
}

int penstock_cpu_read(penstock_program *program, const penstock_step *step) {
    return guarded([&] { program->program.read(*step); });
}

int penstock_cpu_move(penstock_program *program, const int64_t *sources, const int64_t *targets, int64_t count) {
    return guarded([&] { program->program.move(sources, targets, count); });
}

int penstock_cpu_head(penstock_program *program, const float *source, int64_t source_stride, int64_t rows,
                      float *target, int64_t target_stride) {
    return guarded([&] { program->program.head(source, source_stride, rows, target, target_stride); });
}

int penstock_cpu_summarize(penstock_program *program, const float *logits, int64_t stride, int64_t rows,
                           int64_t columns, const uint32_t *masks, int64_t mask_words, const int32_t *mask_of_row,
                           int64_t *tokens, float *largest, float *totals) {
    return guarded([&] {
        const penstock::RowMasks of_rows = {masks, mask_words, mask_of_row};
        program->program.summarize(logits, stride, rows, columns, of_rows, tokens, largest, totals);
    });
}

int penstock_cpu_decode(penstock_program *program, const penstock_step *step, float *logits, int64_t stride, int64_t columns,
                        int64_t *tokens, float *largest, float *totals, const penstock_draws *draws) {
    return guarded([&] { program->program.decode(*step, logits, stride, columns, tokens, largest, totals, draws); });
}

int penstock_cpu_choose(penstock_program *program, const float *logits, int64_t stride, int64_t rows, int64_t columns,
                        const uint32_t *masks, int64_t mask_words, const int32_t *mask_of_row, int64_t *tokens,
                        float *largest, float *totals, const penstock_draws *draws) {
    return guarded([&] {
        const penstock::RowMasks of_rows = {masks, mask_words, mask_of_row};
        program->program.choose(logits, stride, rows, columns, of_rows, tokens, largest, totals, draws);
    });
}

int penstock_cpu_draw(penstock_program *program, const float *logits, int64_t stride, int64_t columns,
                      const penstock_draws *draws) {
    return guarded([&] { program->program.draw(logits, stride, columns, *draws); });
}

int penstock_cpu_go_on(penstock_program *program, penstock_run *run) {
    int pause = 0;
    const int result = guarded([&] { pause = penstock::Run(program->program, *run).go_on(); });
    return result == 1 ? pause : result;
}

void *penstock_cpu_buffer(penstock_program *program, int32_t buffer, int64_t *row_bytes) {
    return program->program.buffer(buffer, row_bytes);
}
