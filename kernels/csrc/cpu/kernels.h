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

// Keys that a token may have chosen of a split for attention to be to copies of them.
constexpr int kMostGathered = kSplit / 2;

// Queries of a key head that are attended to together: rows of a tile.
constexpr int kQueries = 16;
constexpr int kMostSaid = 64;  // numbers that a query says of distances

// Rows of activations may be read in blocks of so many, so memory has as many more.
constexpr int kRowBlock = 32;

[[maybe_unused]] static constexpr int64_t round_up(int64_t number, int64_t multiple) {
    return (number + multiple - 1) / multiple * multiple;
}

// Each member's number in a line of its own.
constexpr int kShareStep = 16;

// A thread's part of an operation.
struct Work {
    uint32_t *next;    // of what is to be taken
    uint32_t *shares;  // alike, of each member's own part, kShareStep numbers apart
    int member, members;
    uint8_t *scratch;  // of this thread, scratch_bytes()
};

struct EmbedArgs {
    int64_t tokens;
    const int64_t *ids;
    const int32_t *token_positions;
    const uint8_t *table;  // packed, or row by row
    bool by_row;
    int64_t known;  // ids from there on count as 0; 0: all are
    int64_t first;  // what the table begins with, where it is a rank's part: `known` rows, and others are zeros; -1: it is whole
    int width;
    float scale;
    const float *positions;
    int offset;
    uint8_t *target;
    int64_t target_bytes;
};

// Sums of ranks' rows, in the order of the ranks.
struct SumRanksArgs {
    int64_t rows;
    int width, ranks;
    float scale;
    bool accumulate;
    const uint8_t *first;  // of rank 0
    int64_t rank_bytes;    // from a rank's to the next one's
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct NormArgs {
    int64_t rows;
    int width, groups;  // numbers of a group, which is normed by itself
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

struct GatedNormArgs {
    int64_t rows;
    int groups, width;  // numbers of a group, which is normed by itself
    penstock_norm norm;
    float eps;
    bool gate_first;
    penstock_activation activation;
    const float *weight;
    int weight_step;  // numbers from one group's weights to the next one's
    const uint8_t *source, *gates;
    int64_t source_bytes, gates_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct OpenArgs {
    int64_t rows;
    int heads, head_dim;
    bool of_heads;  // one gate for each head
    bool is_fp32;   // what they open
    penstock_activation activation;
    const uint8_t *gates;
    int64_t gates_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct QuantizeArgs {
    int64_t rows;
    int width;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

// Inputs of a group of a format that has a scale for each; 0: a format that has one for an output.
[[maybe_unused]] static constexpr int group_of(penstock_format format) {
    return format == PENSTOCK_FORMAT_GROUPS_32    ? 32
           : format == PENSTOCK_FORMAT_FP4_32     ? 32
           : format == PENSTOCK_FORMAT_OFFSET_32  ? 32
           : format == PENSTOCK_FORMAT_GROUPS_64  ? 64
           : format == PENSTOCK_FORMAT_GROUPS_128 ? 128
                                                  : 0;
}

// What a group's numbers are counted from: a zero point, the one of fp4, or none, and an offset is added.
enum GroupKind { kWithZeros, kFp4, kWithOffsets };
[[maybe_unused]] static constexpr GroupKind kind_of(penstock_format format) {
    return format == PENSTOCK_FORMAT_FP4_32 ? kFp4 : format == PENSTOCK_FORMAT_OFFSET_32 ? kWithOffsets : kWithZeros;
}

// Of what lies in front of the numbers of a tile of 16 outputs x 128 inputs in 4 bits.
[[maybe_unused]] static constexpr int64_t head_bytes(int group, GroupKind kind) {
    return PENSTOCK_INT4_INPUTS / group * (kind == kFp4 ? 16 : 64);
}

// Of such a tile.
[[maybe_unused]] static constexpr int64_t tile_bytes_of(penstock_format format) {
    const int group = group_of(format);
    return group ? 1024 + head_bytes(group, kind_of(format)) : PENSTOCK_INT4_BYTES;
}

// Of such a tile of groups as tiles of int8, and what grouped.h keeps in front of them.
constexpr int kUnpackedHead = 192;
[[maybe_unused]] static constexpr int64_t unpacked_bytes(int group) {
    return PENSTOCK_INT4_INPUTS / group * kUnpackedHead + (group == 32 ? 4096 : 2048);
}

struct QuantizeWeightArgs {
    penstock_format format;
    penstock_rounding rounding;
    int64_t rows, columns;
    const uint16_t *from;
    uint8_t *to;
    float *scales;
    int32_t *sums;
    float *row;  // memory for three times the columns rounded up to 2,048
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
    float scale, softcap, limit, alpha, lowest;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
    bool to_bf16;
    // Of the sum over experts: of each row the token that it is added to, and its weight.
    const int32_t *tokens;
    const float *weights;
    // Of the inputs, which fill whole tiles, those that are not zeros; 0: all of them.
    int width;
    // Of rows that have an adapter (rows,), -1 of the others, what is added to their products, of fp32; or null.
    const int32_t *adapters;
    const uint8_t *added;
    int64_t added_bytes;
};

// Tokens one behind the other that have the same adapter.
struct AdaptedTokens {
    int64_t begin, end;
    int adapter;
};
// Of a piece: runs of one adapter, whose weights are read once for all of them.
constexpr int64_t kAdaptedTokens = 256;

struct AdaptArgs {
    LinearArgs linear;  // of the first adapter; rows are all tokens'
    int64_t weight_bytes;
    const AdaptedTokens *runs;
    const int64_t *firsts;  // (pieces + 1,): of each piece its first run
    int64_t pieces;
};

// A step's tokens by the experts that they go to: entries of an expert are neighbours, in the order of tokens. Written by
// `group`.
struct Groups {
    int32_t *tokens;   // of each entry
    float *weights;    // alike
    int32_t *begins;   // (experts + 1,): entries of each expert
    int32_t *active;   // experts that have some
    int32_t *active_count;
    int32_t *most;     // entries of one expert
};

struct RouteArgs {
    int64_t tokens;
    int experts, per_token;
    int first, own;  // experts of this rank: others are chosen, and never active
    bool sigmoid, root_softplus, normalize;
    int groups, top_groups, group_best;
    float scale, one_by_one;
    const float *correction, *factors;  // of an expert's score for the choice, and of its weight
    const int32_t *by_token;            // (ids, per_token): the experts of each; or null
    const int64_t *ids;
    const uint8_t *logits;
    int64_t logits_bytes;
    uint8_t *target;  // of a token its experts' weights, and behind them their numbers
    int64_t target_bytes;
    Groups grouped;
};

struct GatherArgs {
    int64_t entries;
    Groups grouped;
    penstock_layout layout;
    int width;
    bool weighs;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct ExpertsArgs {
    LinearArgs linear;  // of this rank's first expert; rows are those of the step
    Groups grouped;
    int first;
    int64_t weight_bytes;  // from one expert to the next
    int bias_step;
    bool sums_up;  // over a token's experts, in their order
    bool weighs;
};

// Of a row: a sequence and its tokens in this step.
struct Row {
    int64_t first_token;      // among the step's
    int64_t count, position;  // tokens, and the position of the first
    const int64_t *pages;     // of its slot in the layer's table
    const int64_t *moved;     // (moves, 3): the second is a position on its path, and the third where the cache has it
    int64_t moves;
    int64_t seen = 0;  // keys that all of its queries see; 0: each those up to itself
};

struct Heads {
    int kv_heads, group, head_dim;  // group: queries of a key head
    int value_size;                 // numbers of a value
    int key_dim, value_dim;         // D rounded up to whole tiles
    penstock_cache_format format;
    int64_t page_bytes, head_bytes, value_offset, factors_offset;
};

// Copies what a page has of a token for a key head to a place of another page. `Number`: of the page.
template <typename Number>
[[maybe_unused]] static inline void copy_numbers(const Heads &heads, const uint8_t *from, int64_t from_at, uint8_t *to,
                                                 int64_t to_at) {
    constexpr int size = sizeof(Number), row = 2 * PENSTOCK_PAGE_TOKENS * size;  // bytes of two inputs of a page's keys
    for (int pair = 0; pair < heads.key_dim / 2; pair++)
        __builtin_memcpy(to + pair * row + to_at * 2 * size, from + pair * row + from_at * 2 * size, 2 * size);
    from += heads.value_offset + from_at / 2 * row + from_at % 2 * size;
    to += heads.value_offset + to_at / 2 * row + to_at % 2 * size;
    for (int i = 0; i < heads.value_dim; i++) {
        const int at = i / 16 * 8 * row + i % 16 * 2 * size;
        __builtin_memcpy(to + at, from + at, size);
    }
}

[[maybe_unused]] static inline void copy_token(const Heads &heads, const uint8_t *from, int64_t from_at, uint8_t *to,
                                               int64_t to_at) {
    if (heads.format == PENSTOCK_CACHE_BF16) return copy_numbers<uint16_t>(heads, from, from_at, to, to_at);
    copy_numbers<uint8_t>(heads, from, from_at, to, to_at);
    if (heads.format != PENSTOCK_CACHE_INT8) return;
    for (int64_t at = heads.factors_offset; at < heads.head_bytes; at += PENSTOCK_PAGE_TOKENS * 4)
        __builtin_memcpy(to + at + to_at * 4, from + at + from_at * 4, 4);
}

struct HeadsArgs {
    LinearArgs linear;  // of head 0
    int heads;
    int64_t weight_bytes, source_step, target_step;  // from one head to the next
};

struct WriteLatentArgs {
    int64_t tokens;
    const int32_t *token_rows, *token_positions, *token_places;
    const Row *rows;
    Heads heads;
    int rope_dim, query_size;  // numbers of a head of `rotated`, of which the last are
    const float *cos, *sin, *query_factors;
    const uint8_t *source, *rotated, *latents;
    int64_t source_bytes, rotated_bytes, latents_bytes;
    uint8_t *queries;
    uint8_t *cache;
};

struct WriteKvArgs {
    int64_t tokens;
    const int32_t *token_rows, *token_positions, *token_places;
    const Row *rows;
    Heads heads;
    int rope_dim;
    const float *cos, *sin;
    float clip, eps;
    penstock_norm norm;
    penstock_norm_over norm_over;
    bool norm_rotated;
    const float *query_norm, *key_norm, *query_bias, *key_bias;
    const float *query_factors;  // by position, or none
    penstock_values values;
    penstock_norm value_norm;
    float value_eps, value_scale;
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
    int32_t queries;
};

// A row whose splits are parts, to be joined.
struct AttentionJoin {
    int32_t row, first_query, first_part, parts, queries;
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
    const float *sinks, *slopes;
    bool slopes_rounded;
    float slopes_scale;
    const uint8_t *queries;
    int64_t head_stride;
    const uint8_t *cache;
    float *parts;
    int64_t part_floats;  // of one key head; a part has kv_heads of them
    uint8_t *target;
    int64_t target_bytes;
    // Of each token from position `most_chosen` on, the places of that many keys, ascending, which it attends to; or null. Items are
    // then of one token each. `has_latents`: keys begin with their values.
    const uint8_t *chosen = nullptr;
    int64_t chosen_bytes = 0;
    int most_chosen = 0;
    bool has_latents = false;
    // From one key head's list to the next one's, 0: they share it; whether lists are of whole pages, which are read where they are.
    int64_t chosen_step = 0;
    bool has_whole_pages = false;
    // Added to scores by distance: see penstock_operation. (heads, 16 + distance_count + 16).
    const float *distances = nullptr;
    int distance_count = 0, at_no_distance = 0;
    // Or what queries say of distances: of each token (heads, rank), times that token's factor, times `profiles`, of which each of the
    // rank's rows is like one of `distances`.
    const float *profiles = nullptr;
    int rank = 0;
    const uint8_t *said = nullptr;  // of the first token
    int64_t said_bytes = 0;
    const float *said_factors = nullptr;  // of positions, or null
};

// Of an index: heads have no values, and `cache` is where its keys begin in page 0.
struct WriteIndexArgs {
    int64_t tokens;
    const int32_t *token_rows, *token_positions, *token_places;
    const Row *rows;
    Heads heads;
    int rope_dim;
    float eps;
    const float *query_weight, *key_weight;  // of norms before the rotation, or none
    const float *cos, *sin;
    const uint8_t *source, *asked;
    int64_t source_bytes, asked_bytes;
    uint8_t *queries;
    uint8_t *cache;
};

struct WriteBlocksArgs {
    int64_t tokens;
    const int32_t *token_rows, *token_positions;
    const Row *rows;
    Heads heads;
    int block, rope_dim;
    float eps;
    const float *query_weight, *key_weight, *cos, *sin;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *queries;
    uint8_t *cache;
};

struct ChooseArgs {
    int64_t count;          // of the tokens that choose: others attend to all keys that they see
    const int32_t *tokens;
    const int32_t *token_rows, *token_positions;
    const Row *rows;
    Heads heads;
    float scale;
    int most;
    const uint8_t *queries, *weights, *cache;
    int64_t weights_bytes;
    int rate, entry_rows;  // of entries, whose keys are at `index_offset` of their rows; rate 0: of tokens
    int64_t index_offset;
    int block;  // tokens that have a key together; 0: each has one
    int64_t splits;  // of the longest token's keys, where `score` has been through them: tokens have scores each; 0: members have
    float *scores;
    int64_t score_step;
    uint8_t *target;
    int64_t target_bytes;
    int latest = 0;  // where heads choose blocks for themselves: of a head's `most` blocks the ones that are always taken
};

// Of a row: its tokens in this step and its sequence's state.
struct StateRow {
    int64_t first_token, count, place;
    const int64_t *saves;  // (save_count, 3): the row's
    int64_t save_count;
};

// Places of states in memory.
struct States {
    uint8_t *places;
    int64_t place_bytes;
};

// Rows of bf16 of a step's tokens, and of those before them, which a state has.
struct Past {
    const uint8_t *source;
    int64_t source_bytes;
    const StateRow *rows;
    const int32_t *token_rows;
    States states;
    int64_t kept;  // tokens
    int numbers;   // of a token
};

struct KeepArgs {
    Past past;
    int64_t row_count;
};

struct TurnArgs {
    int64_t tokens;
    const int32_t *token_positions;
    int heads, size, rope_dim;
    penstock_norm norm;
    float eps;
    const float *weight, *cos, *sin;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes, head_bytes;
    int padded;  // numbers of a head in the target: zeros behind its own
};

struct NgramArgs {
    int64_t tokens;
    const int64_t *ids;
    const int32_t *token_rows, *token_positions;
    const StateRow *rows;
    int64_t row_count;
    States states;
    int before, heads, width;  // tokens before one; heads of each length, and their numbers
    int64_t end, first, known;  // first, known: the rows that are here
    const int32_t *numbers;
    const uint8_t *table;
    uint8_t *target;
    int64_t target_bytes;
};

struct NgramGateArgs {
    int64_t tokens;
    int streams, width;
    float eps;
    const float *key_weight, *stream_weight;  // (streams, width)
    const uint8_t *source, *held;
    int64_t source_bytes, held_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct PoolArgs {
    TurnArgs turn;
    Past past;
    const Row *rows;
    int rate, series, entry_rows;  // entry_rows: tokens of a row of entries
    int first;           // column of the numbers
    const float *bias;   // (tokens, size)
    uint8_t *cache;
    int64_t page_bytes, offset;  // in a row of entries
};

struct CompressedArgs {
    int64_t tokens;
    const int32_t *token_positions;
    const Row *rows;
    Heads heads;
    Past near;
    int window, rate, entry_rows, rope_dim;
    const float *cos, *sin, *sinks;
    float scale;
    const uint8_t *queries;
    uint8_t *cache;
    int64_t page_bytes;
    const uint8_t *chosen;  // of tokens that see more than `most` entries; or null
    int64_t chosen_bytes;
    int most;
    uint8_t *target;
    int64_t target_bytes;
};

struct ConvolveArgs {
    const StateRow *rows;
    int64_t row_count;
    States states;
    int channels, kernel, dilation;
    const float *weight, *bias;  // (kernel, channels), (channels,)
    penstock_activation activation;
    const uint8_t *source, *inner, *outer;  // of the first token; inner and outer gates may be none
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
    bool to_bf16;
};

struct RatesArgs {
    int64_t tokens;
    penstock_rule rule;
    int heads;
    const float *decay, *bias;
    float scale, lowest, highest;
    const uint8_t *a, *b;
    int64_t source_bytes, b_bytes;
    int head_dim;     // of channels
    uint8_t *target;  // of a token what each head keeps, and behind that how much it learns
    int64_t target_bytes;
    // Queries and keys of some heads, brought to length 1 where they are; heads 0: none.
    int unit_heads, unit_dim;
    float unit_eps, query_scale;
    uint8_t *units;
    int64_t units_bytes;
};

struct RecurArgs {
    const StateRow *rows;
    int64_t row_count;
    States states;
    int heads, key_heads, key_dim, value_dim;
    bool learns, channels;
    const float *skip;
    const uint8_t *queries, *keys, *values, *rates;
    int64_t source_bytes, rates_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct ScanArgs {
    const StateRow *rows;
    int64_t row_count;
    States states;
    int channels, size;
    const float *decay, *skip;
    const uint8_t *source, *rates, *b, *c;
    int64_t source_bytes, rates_bytes, other_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct GatedRecurArgs {
    const StateRow *rows;
    int64_t row_count;
    const int32_t *token_positions;
    States states;
    int heads, head_dim;
    const float *rate, *bias;
    const uint8_t *source, *gates;
    int64_t source_bytes, gates_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct MixTokensArgs {
    const StateRow *rows;
    int64_t row_count;
    States states;
    int channels;
    bool keeps;  // the state moves on
    const float *mix;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct WeighValuesArgs {
    const StateRow *rows;
    int64_t row_count;
    States states;
    int channels;
    const float *decay, *first;
    const uint8_t *keys, *values, *gates;
    int64_t source_bytes;  // of all three
    uint8_t *target;
    int64_t target_bytes;
};

// Of PREDICT, and with `computed` of CORRECT.
struct StreamsArgs {
    int64_t rows;
    int streams, width, active;
    const float *mix;
    const uint8_t *source, *router, *computed;
    int64_t source_bytes, router_bytes, computed_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct MatchArgs {
    int64_t rows;
    int width;
    float smallest;
    bool accumulate;
    const uint8_t *source, *others;
    int64_t source_bytes, others_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

// Of what a branch reads of residual streams.
struct HyperReadArgs {
    int64_t rows;
    int streams, width, outputs;  // outputs: a share of each stream, and maybe one more of each
    float eps, lowest, magnitude;
    const float *weight, *bias, *scales;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
    int rounds;       // of what makes shares of streams in each other add up to 1; 0: there are none
    uint8_t *shares;  // of a token what the weights make of its streams, the mean of their squares, and then the shares
    int64_t shares_bytes;
};

// Of HYPER_MIX.
struct MixNumbersArgs {
    int64_t rows;
    int streams, width;
    const uint8_t *shares, *normed;
    int64_t shares_bytes, normed_bytes;
    uint8_t *target;
    int64_t target_bytes;
    uint8_t *given;  // what a branch is added with; or null
    int64_t given_bytes;
};

struct HyperAddArgs {
    int64_t rows;
    int streams, width;
    bool mixes;  // shares of streams in each other are behind those in what is added
    const uint8_t *source, *shares;
    int64_t source_bytes, shares_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

struct SparseGateArgs {
    int64_t rows;
    int width, up_at, target_width;
    float deviations;
    penstock_activation activation;
    const uint8_t *source;
    int64_t source_bytes;
    uint8_t *target;
    int64_t target_bytes;
};

// Columns of a row of logits that are summed up together. Such parts are joined in their order, whoever made them.
constexpr int64_t kSummarized = 4096;

struct Summary {
    float largest, total;
    float allowed;  // the largest of those that the mask allows; of all without one
    int64_t token;  // of `allowed`
};

// Which columns a token may be sampled of: bit i % 32 of word i / 32 for column i.
struct RowMasks {
    const uint32_t *words = nullptr;  // (masks, row_words)
    int64_t row_words = 0;
    const int32_t *of_row = nullptr;  // for each row of logits the index of its mask, or -1; null: none has a mask

    const uint32_t *row(int64_t row) const {
        return of_row == nullptr || of_row[row] < 0 ? nullptr : words + of_row[row] * row_words;
    }
};

struct SummarizeArgs {
    int64_t rows, columns;
    const float *logits;
    int64_t stride;
    Summary *parts;  // (rows, columns / kSummarized, rounded up)
    int64_t *tokens;
    float *largest, *totals;
    RowMasks masks;
};

struct DrawArgs {
    int64_t columns;
    const float *logits;
    int64_t stride;
    penstock_draws draws;
    float *memory;  // draw_floats of each member
};

// Tokens that may count once more in a row's penalties.
constexpr int64_t kMostBefore = 4096;

// What a thread draws a row in: five arrays of its columns, of which the last is as long as what counts once more.
[[maybe_unused]] static constexpr int64_t draw_floats(int64_t columns) {
    return 5 * round_up(columns, 16) + kMostBefore;
}

struct Kernels {
    void (*begin)();  // of a thread's part in a job
    void (*end)();
    void (*embed)(const EmbedArgs &, const Work &);
    void (*norm)(const NormArgs &, const Work &);  // by every thread for all rows where work.next is null
    void (*sum_ranks)(const SumRanksArgs &, const Work &);
    void (*gated_norm)(const GatedNormArgs &, const Work &);
    void (*open)(const OpenArgs &, const Work &);
    void (*quantize)(const QuantizeArgs &, const Work &);  // as norm
    void (*linear)(const LinearArgs &, const Work &);
    void (*route)(const RouteArgs &, const Work &);
    void (*group)(const RouteArgs &);  // by one thread, behind `route`
    void (*gather)(const GatherArgs &, const Work &);
    void (*experts)(const ExpertsArgs &, const Work &);
    void (*adapt)(const AdaptArgs &, const Work &);
    void (*write_kv)(const WriteKvArgs &, const Work &);
    void (*heads)(const HeadsArgs &, const Work &);
    void (*write_latent)(const WriteLatentArgs &, const Work &);
    void (*attention)(const AttentionArgs &, const Work &);
    void (*join_attention)(const AttentionArgs &, const Work &);
    void (*write_index)(const WriteIndexArgs &, const Work &);
    void (*score)(const ChooseArgs &, const Work &);
    void (*choose)(const ChooseArgs &, const Work &);
    void (*score_heads)(const ChooseArgs &, const Work &);
    void (*choose_for_heads)(const ChooseArgs &, const Work &);
    void (*convolve)(const ConvolveArgs &, const Work &);
    void (*rates)(const RatesArgs &, const Work &);
    void (*recur)(const RecurArgs &, const Work &);
    void (*scan)(const ScanArgs &, const Work &);
    void (*gated_recur)(const GatedRecurArgs &, const Work &);
    void (*mix_tokens)(const MixTokensArgs &, const Work &);
    void (*weigh_values)(const WeighValuesArgs &, const Work &);
    void (*update_streams)(const StreamsArgs &, const Work &);
    void (*match)(const MatchArgs &, const Work &);
    void (*open_sparsely)(const SparseGateArgs &, const Work &);
    void (*weigh_streams)(const HyperReadArgs &, const Work &);
    void (*mix_streams)(const HyperReadArgs &, const Work &);  // behind `weigh_streams`
    void (*add_to_streams)(const HyperAddArgs &, const Work &);
    void (*mix_numbers)(const MixNumbersArgs &, const Work &);
    void (*find_rows)(const NgramArgs &, const Work &);
    void (*keep_ids)(const NgramArgs &, const Work &);  // behind `find_rows`
    void (*gate_ngrams)(const NgramGateArgs &, const Work &);
    void (*write_blocks)(const WriteBlocksArgs &, const Work &);
    void (*complete_blocks)(const WriteBlocksArgs &, const Work &);  // behind `write_blocks`
    void (*turn)(const TurnArgs &, const Work &);
    void (*pool)(const PoolArgs &, const Work &);
    void (*keep)(const KeepArgs &, const Work &);
    void (*compressed_attention)(const CompressedArgs &, const Work &);
    bool (*quantize_weight)(const QuantizeWeightArgs &);  // see quantize.h
    void (*summarize)(const SummarizeArgs &, const Work &);
    void (*join_summaries)(const SummarizeArgs &, const Work &);
    void (*draw)(const DrawArgs &, const Work &);
};

// Floats of a key head's part: of each query the maximum, the sum of exponentials, and the sum of values.
[[maybe_unused]] static constexpr int64_t part_floats(int value_dim) {
    return kQueries * (2 + value_dim);
}

// Columns of tiles of 4 bits are brought to int8 behind the sums: two whole ones, or some tiles of four.
constexpr int kUnpackedOffset = 32 * 1024;

[[maybe_unused]] static constexpr int64_t unpacked_columns(penstock_format format, int inputs) {
    const int64_t tiles = round_up(inputs, PENSTOCK_INT4_INPUTS) / PENSTOCK_INT4_INPUTS;
    // A tile of each column, or the sums of 16 rows' groups.
    if (group_of(format)) return 4 * unpacked_bytes(group_of(format)) + tiles * 128;
    if (format != PENSTOCK_FORMAT_INT4) return 0;
    return 2 * tiles * 2 * 1024;
}

// The longest path of drafts that are a tree, and pages that it may be in.
constexpr int kLongestPath = 64;
constexpr int kPathPages = kLongestPath / PENSTOCK_PAGE_TOKENS + 1;

[[maybe_unused]] static constexpr int64_t scratch_bytes(int key_dim, int value_dim, int64_t unpacked, bool gathers) {
    // Scores, weights and values of a split, what is decoded of keys or of values at once, and pages of a path.
    const int64_t attending = 64 * 1024 + kQueries * 16 * (key_dim + 2 * value_dim) + 128 * key_dim +
                              kPagesInSplit * 2048 + kPathPages * (32 * (key_dim + value_dim) + 128) +
                              (gathers ? kMostGathered * 2 * (key_dim + value_dim) : 0);
    const int64_t unpacking = kUnpackedOffset + unpacked;
    return attending > unpacking ? attending : unpacking;
}

}  // namespace penstock
