// What every instruction set implements: one function for each kind of operation, over whatever part of it a thread
// takes. Included by kernels.cpp, which is compiled once for each instruction set, so no function here may be shared by
// objects.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "penstock_cpu.h"

namespace penstock {

// Keys are attended to in splits that begin at multiples of this position, and splits are joined in their order: what a
// token gets depends neither on who computes which split nor on how many tokens a step has.
constexpr int kSplit = 256;
constexpr int kPagesInSplit = kSplit / PENSTOCK_PAGE_TOKENS;

// Queries of a key head that are attended to together: rows of a tile.
constexpr int kQueries = 16;

// Rows of activations may be read in blocks of so many, so memory has as many more.
constexpr int kRowBlock = 32;

[[maybe_unused]] static constexpr int64_t round_up(int64_t number, int64_t multiple) {
    return (number + multiple - 1) / multiple * multiple;
}

// A thread's part of an operation.
struct Work {
    uint32_t *next;  // of what is to be taken
    int member, members;
    uint8_t *scratch;  // of this thread, scratch_bytes()
};

struct EmbedArgs {
    int64_t tokens;
    const int64_t *ids;
    const int32_t *token_positions;
    const uint8_t *table;  // packed
    int width;
    float scale;
    const float *positions;
    int offset;
    uint8_t *target;
    int64_t target_bytes;
};

struct NormArgs {
    int64_t rows;
    int width;
    penstock_norm norm;
    float eps, scale;
    bool accumulate;
    penstock_layout to;
    const float *weight, *bias;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

// Where the scale of a row of bytes is.
[[maybe_unused]] static constexpr int64_t scale_offset(int64_t width) {
    return round_up(width, PENSTOCK_BYTE_INPUTS);
}

struct QuantizeArgs {
    int64_t rows;
    int width;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct QuantizeWeightArgs {
    penstock_format format;
    int64_t rows, columns;
    const uint16_t *from;
    uint8_t *to;
    float *scales;
    int32_t *sums;
    float *row;  // memory for three times the columns rounded up to 512
};

struct LinearArgs {
    int64_t rows;
    int outputs, inputs;
    penstock_format format;
    const float *scales;
    const int32_t *sums;
    const uint8_t *weight;
    const float *bias;
    penstock_epilogue epilogue;
    penstock_activation activation;
    float scale, softcap;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
    bool to_bf16;
};

// Of a row: a sequence and its tokens in this step.
struct Row {
    int64_t first_token;      // among the step's
    int64_t count, position;  // tokens, and the position of the first
    const int64_t *pages;     // of its slot in the layer's table
};

struct Heads {
    int kv_heads, group, head_dim;  // group: queries of a key head
    int key_dim, value_dim;         // D rounded up to whole tiles
    int64_t page_bytes, head_bytes, value_offset;
};

struct WriteKvArgs {
    int64_t tokens;
    const int32_t *token_rows, *token_positions;
    const Row *rows;
    Heads heads;
    int rope_dim;
    const float *cos, *sin;
    float clip, eps;
    penstock_norm norm;
    penstock_norm_over norm_over;
    const float *query_norm, *key_norm;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *queries;
    int64_t head_stride;  // bytes from a key head's queries to the next one's
    uint8_t *cache;
};

// Some queries of a row over some splits of its keys, for every key head.
struct AttentionItem {
    int32_t row;
    int32_t first_query;  // of the count * group queries of a key head, token by token
    int32_t split_begin, split_end;
    int32_t part;  // where its part of the sums goes; -1: it is the whole, and goes to the target
};

// A row whose splits are parts, to be joined.
struct AttentionJoin {
    int32_t row, first_query, first_part, parts;
};

struct AttentionArgs {
    const AttentionItem *items;
    int64_t item_count;
    const AttentionJoin *joins;
    int64_t join_count;
    const Row *rows;
    Heads heads;
    float scale, softcap;
    int window;
    bool chunked;
    const uint8_t *queries;
    int64_t head_stride;
    const uint8_t *cache;
    float *parts;
    int64_t part_floats;  // of one key head; a part has kv_heads of them
    uint8_t *target;
    int64_t target_bytes;
};

// Columns of a row of logits that are summed up together. Such parts are joined in their order, whoever made them.
constexpr int64_t kSummarized = 4096;

struct Summary {
    float largest, total;
    int64_t token;
};

struct SummarizeArgs {
    int64_t rows, columns;
    const float *logits;
    int64_t stride;
    Summary *parts;  // (rows, columns / kSummarized, rounded up)
    int64_t *tokens;
    float *largest, *totals;
};

struct Kernels {
    void (*begin)();  // of a thread's part in a job
    void (*end)();
    void (*embed)(const EmbedArgs &, const Work &);
    void (*norm)(const NormArgs &, const Work &);  // by every thread for all rows where work.next is null
    void (*quantize)(const QuantizeArgs &, const Work &);  // alike
    void (*linear)(const LinearArgs &, const Work &);
    void (*write_kv)(const WriteKvArgs &, const Work &);
    void (*attention)(const AttentionArgs &, const Work &);
    void (*join_attention)(const AttentionArgs &, const Work &);
    void (*quantize_weight)(const QuantizeWeightArgs &);
    void (*summarize)(const SummarizeArgs &, const Work &);
    void (*join_summaries)(const SummarizeArgs &, const Work &);
};

// Floats of a key head's part: of each query the maximum, the sum of exponentials, and the sum of values.
[[maybe_unused]] static constexpr int64_t part_floats(int value_dim) {
    return kQueries * (2 + value_dim);
}

// Columns of int4 tiles are brought to int8 behind the sums.
constexpr int kUnpackedOffset = 32 * 1024;

[[maybe_unused]] static constexpr int64_t scratch_bytes(int key_dim, int value_dim, int int4_inputs) {
    const int64_t attending = 64 * 1024 + kQueries * 16 * (key_dim + 2 * value_dim);
    const int64_t unpacking =
        kUnpackedOffset + 2 * PENSTOCK_TILE_OUTPUTS * round_up(int4_inputs, PENSTOCK_INT4_INPUTS);
    return attending > unpacking ? attending : unpacking;
}

}  // namespace penstock
