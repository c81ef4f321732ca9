// The C interface of the CPU engine, called by penstock_kernels/cpu_engine.py through ctypes.
//
// A program is a list of operations over buffers, made once by Python; a step runs it over some tokens. Nothing here
// knows a model: what is computed is in the list. Functions that can fail return 0, or less, or a null handle, and
// penstock_cpu_error() says why in one line. One thread at a time may use a program.
#ifndef PENSTOCK_CPU_H
#define PENSTOCK_CPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_CPU_API __attribute__((visibility("default")))

// What is returned where another rank of the model has ended.
enum { PENSTOCK_RANK_LOST = -1, PENSTOCK_NO_GROUPS = -2 };

// Raised with every change of a structure or function below; cpu_engine.py asks for the one it knows.
enum { PENSTOCK_CPU_ABI = 22 };

// A tile of weights or keys: 16 outputs x 32 inputs in bf16, 1 KB. Inputs are in pairs: the number of input 2 p + i and
// output n is at [p][n][i]. That is the B operand of AMX' TDPBF16PS, and 16 registers for VDPBF16PS.
enum { PENSTOCK_TILE_OUTPUTS = 16, PENSTOCK_TILE_INPUTS = 32, PENSTOCK_PAGE_TOKENS = 16 };

// What a weight's tiles hold. Quantized, an output's numbers are whole numbers times its entry of `scales`, and so are a
// token's: sums of products are whole numbers of 32 bits, and exact.
enum penstock_format {
    PENSTOCK_FORMAT_BF16 = 0,
    // 16 outputs x 64 inputs, from -127 to 127, in quads: the number of input 4 p + i and output n is at [p][n][i]. The
    // B operand of AMX' TDPBUSD, and 16 registers for VPDPBUSD.
    PENSTOCK_FORMAT_INT8 = 1,
    // 16 outputs x 128 inputs in 64 bytes and 1 KB. The bytes are factors from 1 to 15, [group of 32 inputs][output].
    // The byte at [p][n][i] holds u of input 4 p + i in its low half and of input 64 + 4 p + i in its high half; the
    // number is (u - 8) times its group's factor, from -120 to 105.
    PENSTOCK_FORMAT_INT4 = 2,
    // bf16 row by row, in no tiles: of EMBED alone.
    PENSTOCK_FORMAT_ROWS = 3,
    // Groups of 32, 64 or 128 inputs, as checkpoints of 4 bits are published and as rounding makes them: 16 outputs x 128 inputs in 64 bytes for each
    // group, and 1 KB as INT4 has it. Of a group and an output there is a word: its lowest five bits are a zero point from 0
    // to 31, and the word without them is a scale in fp32. The number is (u - zero) times scale; sums of a group are whole
    // numbers, and groups are added in fp32, in their order. A weight has no `scales` and no `sums`.
    PENSTOCK_FORMAT_GROUPS_32 = 4,
    PENSTOCK_FORMAT_GROUPS_64 = 5,
    PENSTOCK_FORMAT_GROUPS_128 = 6,
    // Groups of 32 inputs in fp4 (e2m1): a sign, and a number that is half of 0, 1, 2, 3, 4, 6, 8 or 12. In front of a tile's numbers are 16
    // bytes for each group, of each output the exponent (bits 23 to 30) of half of its scale, a power of two. u is twice the number plus 12.
    PENSTOCK_FORMAT_FP4_32 = 7,
    // Groups of 32 inputs as GGUF's Q4_K and Q4_1 have them: a weight is scale u + offset. In front of a tile's numbers are 64 bytes for each group,
    // of each output the scale, then of each the offset, in fp16. Inputs are a multiple of 32: a zero point, which fills up others, need not be whole.
    PENSTOCK_FORMAT_OFFSET_32 = 8,
};
// What becomes of numbers in a format with groups, but for fp4: those that are of such groups stay what they are, or all are rounded
// to the nearest, with 8 as every zero point or with the best one of each group.
enum penstock_rounding { PENSTOCK_ROUND_NOTHING = 0, PENSTOCK_ROUND_SYMMETRIC = 1, PENSTOCK_ROUND_WITH_ZERO_POINTS = 2 };
enum { PENSTOCK_BYTE_INPUTS = 64, PENSTOCK_INT4_INPUTS = 128, PENSTOCK_INT4_GROUP = 32, PENSTOCK_INT4_BYTES = 1088 };

enum penstock_kind {
    PENSTOCK_EMBED = 0,      // target = rows of a table by token id; an id from `rows` on counts as 0, where that is not 0. Of a
                             // table that ranks have parts of, this one has `rows` from first_id on, and others' are zeros
    PENSTOCK_NORM = 1,       // target = norm(source), or target += scale norm(source); of `heads` neighbours of `columns`
                             // numbers each by itself, with one weight, where there are several
    PENSTOCK_LINEAR = 2,     // target = epilogue(source W^T + bias)
    PENSTOCK_WRITE_KV = 3,   // norms and rotates queries and keys; queries to target, keys and values (`values`) to the cache
    PENSTOCK_ATTENTION = 4,  // target = attention of queries over the cache, to what `sees` says
    PENSTOCK_QUANTIZE = 5,   // target, of bytes, = source, of bf16
    PENSTOCK_GATED_NORM = 6,  // target, of bf16, = norm(source) activation(gates), or norm(source activation(gates)) where
                              // `accumulate` is set; gates are in `second` from column source_at on
    PENSTOCK_OPEN = 7,        // target, of bf16 or fp32, times activation(source), `columns` gates: one of each head, or number
    PENSTOCK_ROUTE = 8,       // target = weights of the experts that logits choose for a token, and behind them their numbers;
                              // weights are multiplied with norm_weight (experts,) in the end, where there is one
    PENSTOCK_GATHER = 9,      // target = rows of the source, one for each expert of each token, by expert
    PENSTOCK_EXPERTS = 10,    // as LINEAR, of gathered rows, each with its expert's weight. What is stored or added is the
                              // sum over a token's experts in their order, each times its weight
    PENSTOCK_CONVOLVE = 11,   // target = outer activation(convolution of `columns` channels inner x), kernel `rows`, weight
                              // norm_weight (kernel, channels); x, inner and outer begin at columns of the source
    PENSTOCK_RATES = 12,      // target = what each of `columns` heads keeps of its state, then how much it learns, by `rule`
                              // from a (source_at) and b (inner_at); decay is norm_weight. Brings queries and keys, `heads`
                              // of each in `second`, to length 1, and queries to length alpha
    PENSTOCK_RECUR = 13,      // target = answers of states (heads, head_dim, value_dim) to queries, once they have kept and
                              // learnt what `second` says of keys and values; queries, keys and values begin at source_at,
                              // inner_at and outer_at, the first two of kv_heads heads. norm_weight times values is added
    PENSTOCK_HEADS = 14,      // target = each of `heads` heads, of bf16 and `head_dim` apart, times `rows` outputs of its own
    PENSTOCK_WRITE_LATENT = 15,  // queries to target, of `value_dim` numbers of the source, a head's latents, and the last
                                 // rope_dim of each head of `second`, all bf16; latents of `third`, and what is rotated
                                 // behind them, to the cache as keys, and the latents as values as well
    PENSTOCK_SCAN = 16,       // target = answers of `columns` channels' states of head_dim numbers; rates, before softplus, are
                              // `second`, and B and C begin at inner_at and outer_at of `third`. decay is weight `positions`
                              // (columns, head_dim), negative; norm_weight times what is read is added
    PENSTOCK_GATED_RECUR = 17,  // target = states of `heads` times `head_dim` channels, of one number each, once they have kept
                                // and learnt what gates say, which `second` has before their sigmoid and `bias`: of each head
                                // those of what is read, then those of what is kept; that to the power norm_weight, as e^-x
    // Residual streams, `heads` of `columns` numbers one behind the other, which a token weighs by tanh of as many numbers of `second`.
    PENSTOCK_PREDICT = 18,  // target = each stream of the source, and what a mixture of all adds to it, by norm_weight
                            // (heads, heads, heads)
    PENSTOCK_CORRECT = 19,  // target = each stream of the source, and its share, 1 and what norm_weight (heads, heads) says, of what
                            // `third` is more than stream `offset`
    PENSTOCK_MATCH = 20,    // target (target_at) = source (source_at) times the root mean square of `second` (inner_at) over its own,
                            // whose square is at least eps; added to the target where `accumulate` is set. `columns` numbers each
    PENSTOCK_SPARSE_GATE = 21,  // target, of bf16, = activation(gate - shut) times the number at inner_at, of `columns` gates of the
                                // source that are over `shut`, their mean and `alpha` deviations; 0 for others, and beyond
    PENSTOCK_REDUCE = 22,       // target = the sum of every rank's source, which is shared, in their order; or target += scale times it
    // An index, whose heads score keys. A token attends to all keys that it sees, where those are `columns` or fewer, and else to so many.
    PENSTOCK_WRITE_INDEX = 23,  // queries, of `heads` times head_dim numbers of `second`, to target, and a key of as many of the source
                                // to the cache, behind keys and values; the first rope_dim numbers of each rotated. They begin at inner_at and
                                // source_at, and are normed where there are norm_weight, of queries, and second_weight
    PENSTOCK_CHOOSE = 24,       // target = of tokens that see more, the places of the `columns` keys for which the sum over heads of
                                // scale, weight in `second` and relu(query key) is largest, in whole numbers of 32 bits, ascending;
                                // equal ones go to the earlier key. ATTENTION with them as `second` is to these keys alone. Where `rows` is
                                // not 0, keys are of entries that stand for so many tokens each; where `window` is not, of blocks of so
                                // many: weights are 1, and `columns` keys are those of the best blocks, and the ones behind the last block
    // Hyper-connections of residual streams, `heads` of `columns` numbers one behind the other, by shares that norm_weight (rows, heads
    // times columns) makes of all of them over their root mean square. Rows: a share of each stream, and then one more of each.
    // Where streams are mixed (`rounds`), then of each stream its shares in all.
    PENSTOCK_HYPER_READ = 25,  // target = the streams of the source, each times a share: `lowest` and the sigmoid of what its row makes, times its
                               // entry of `scales`, and of `bias`. `second`, of 2 rows and 1, has in its last rows the shares of all rows;
                               // the sigmoids of those that are one more are times alpha, without `lowest` where streams are mixed. Shares
                               // in streams are a softmax of each, of which columns, and then rows, are made to add up to 1 `rounds` times
    PENSTOCK_HYPER_ADD = 26,   // target = its streams, or mixtures of them (`rounds`), and of each its share (`second`, inner_at) of the source
    // Attention to a window of the last tokens, and to entries that stand for `rows` tokens each (0: there are none). Both are rows of
    // bf16, keys and values at once. An entry is in the layer's pages, where the last of its tokens is, which has a row of as many tokens as
    // divide `rows` and PENSTOCK_PAGE_TOKENS for it; index keys end these rows.
    PENSTOCK_TURN = 27,        // target, of bf16 or queries, = `heads` heads of head_dim numbers of the source, from source_at on, each normed,
                               // and its last rope_dim numbers rotated
    PENSTOCK_POOL = 28,        // entries of head_dim numbers, of which the last token is in the step, to the cache: of each number the sum over
                               // `groups` times `rows` tokens, by the softmax over them of its gate and `positions` (tokens, head_dim), normed
                               // and rotated as TURN does. The source, which is the target, too, and state 1 have of each token, from source_at
                               // on, `groups` times head_dim numbers, then as many gates: of two groups the first for the entry behind the
                               // token's own. At the end of the row where `accumulate` is set
    PENSTOCK_KEEP = 29,        // state `offset` = the last `columns` tokens of what it has and of the source, which is the target, too
    PENSTOCK_COMPRESSED_ATTENTION = 30,  // target, of bf16, = attention of queries to the last `window` tokens of state 0 and `second`, of bf16,
                                         // and to all entries, or those of `third` (see CHOOSE), rotated back by the query's position
    // Hyper-connections whose shares are one for each number: the sigmoid of the source's, of `second`, of bf16, which has streams normed.
    PENSTOCK_HYPER_MIX = 31,  // target = the sum of `heads` streams' numbers, each times its share, over `heads`. `third`, where it is there,
                              // becomes what a branch is added with: twice its sigmoid
    // N-grams of up to `rows` tokens before each, of whose lengths each has `heads` heads with `head_dim` numbers.
    PENSTOCK_NGRAMS = 32,     // target = rows of a table in bf16 that `sums` names: multipliers of 64 bits of a token and those before it, then
                              // for each head its rows, and the first of them. Tokens that are none count as `offset`. Of a table that ranks
                              // have parts of, this one has `columns` rows from first_id on, and others' are zeros. State 3 has the last ids
    PENSTOCK_NGRAM_GATE = 33,  // target = of each of `heads` streams of `second` the value of the source, which is behind as many keys, times a
                               // gate: what key and stream, normed with norm_weight and second_weight, agree in
    PENSTOCK_WRITE_BLOCKS = 34,  // as WRITE_INDEX of `heads` queries and a key behind them in the source, all normed, where blocks of `window`
                                 // tokens have one key, made of the mean of theirs, with the rotation of the first, in the place of the last
    PENSTOCK_CHOOSE_FOR_HEADS = 35,  // target = as CHOOSE, where each of `heads` heads has a list of `columns` keys of its own, one behind the
                                     // other: those of the blocks, of `window` keys, whose largest query key is largest, the `offset` up to the
                                     // token's own among them. What is left of a list is beyond all keys. ATTENTION of as many key heads reads them
    PENSTOCK_MIX_TOKENS = 36,    // target, of bf16, = norm_weight times the source, of bf16, and what it lacks of 1 times the token before, of
                                 // `columns` numbers. State 0, of which that is read, moves on where `accumulate` is set
    PENSTOCK_WEIGH_VALUES = 37,  // target, of bf16, = sigmoid(`third`) times the mean of what `second` had so far, by e to the source's keys, of
                                 // `columns` numbers: norm_weight is added to a key with each token that follows, and `bias` to the
                                 // token's own. State 1 is (3, columns)
    PENSTOCK_NARROW = 38,  // of the body: what is behind reads the source, which is the target, too, of fp32, of wanted tokens alone (see
                           // penstock_step). One behind the other of all that it reads. It writes no cache and no state
    PENSTOCK_ADAPT = 39,  // target, of bf16 or fp32, = of each token that has an adapter the source times that adapter's matrix: `weight` has
                          // `experts` of them, of `rows` rows each, filled up to whole tiles. Other tokens' rows stay what they are
};

// Residual streams of a model.
enum { PENSTOCK_MOST_STREAMS = 16 };

// Bytes that rank 0 tells the others in one meeting.
enum { PENSTOCK_MOST_TOLD = 1 << 16 };

enum penstock_norm { PENSTOCK_NORM_NONE = 0, PENSTOCK_NORM_RMS = 1, PENSTOCK_NORM_LAYER = 2 };

// What one weight of the norm of queries and keys covers.
enum penstock_norm_over { PENSTOCK_OVER_HEAD = 0, PENSTOCK_OVER_HEADS = 1, PENSTOCK_OVER_ALL = 2 };

// Where WRITE_KV has values from.
enum penstock_values {
    PENSTOCK_VALUES_OWN = 0,   // behind the keys
    PENSTOCK_VALUES_KEYS = 1,  // they are the keys as they are read: neither normed as those are, nor rotated
    PENSTOCK_VALUES_NONE = 2,  // there are queries alone: the layer attends to what another one has written
    PENSTOCK_VALUES_ALONE = 3,  // there are keys and values alone, without queries before them: others attend to them
};

// What a token attends to.
enum penstock_sees {
    PENSTOCK_SEES_BEFORE = 0,  // its sequence up to itself; of an encoder-decoder, the decoder's part of it
    PENSTOCK_SEES_ROW = 1,     // all tokens of its row, which begins at position 0: in an encoder
    PENSTOCK_SEES_READ = 2,    // all that its sequence's encoder has read
};

// How pages hold keys and values. Of PENSTOCK_CACHE_INT8 each has a factor, for each token and key head.
typedef enum {
    PENSTOCK_CACHE_BF16 = 0,
    PENSTOCK_CACHE_FP8_E4M3 = 1,
    PENSTOCK_CACHE_FP8_E5M2 = 2,
    PENSTOCK_CACHE_INT8 = 3,
} penstock_cache_format;

enum penstock_epilogue {
    PENSTOCK_STORE = 0,  // y scale, soft capped where softcap is not 0
    PENSTOCK_ADD = 1,    // target += y scale
    PENSTOCK_ACTIVATE = 2,  // activation(y scale)
    PENSTOCK_GATE = 3,  // activation(gate) up; the weight's rows are gate, then up
};

enum penstock_activation {
    PENSTOCK_SILU = 0,
    PENSTOCK_GELU = 1,
    PENSTOCK_GELU_TANH = 2,
    PENSTOCK_QUICK_GELU = 3,
    PENSTOCK_RELU = 4,
    PENSTOCK_RELU_SQUARED = 5,
    PENSTOCK_CLAMPED_GATE = 6,  // of a gate and what it opens: min(gate, limit) sigmoid(alpha gate) (1 + up within limit)
    PENSTOCK_SIGMOID = 7,
    PENSTOCK_SOFTPLUS = 8,
    PENSTOCK_IDENTITY = 9,
    // Above 0 alpha x^2 + scale x, else lowest (exp(min(x, limit)) - 1 - x) + scale x.
    PENSTOCK_XIELU = 10,
    PENSTOCK_LIMITED_GATE = 11,  // of a gate and what it opens: silu(min(gate, limit)) times up within limit
};

// From what RATES reads a and b to what a state keeps and learns.
enum penstock_rule {
    PENSTOCK_DELTA_RULE = 0,   // kept exp(-decay softplus(a + bias)), learnt scale sigmoid(b)
    PENSTOCK_STATE_SPACE = 1,  // kept exp(-decay rate), learnt rate = softplus(a + bias) from `lowest` to `highest`
    PENSTOCK_CONSTANT = 2,     // kept exp(-decay), learnt 1
    // The same as the delta rule of each of a head's head_dim channels, which a is read of; and kept exp(lowest sigmoid(
    // decay (a + bias))).
    PENSTOCK_CHANNELS = 3,
    PENSTOCK_BOUNDED_CHANNELS = 4,
};

// What a buffer holds for each token.
enum penstock_layout {
    PENSTOCK_F32 = 0,
    PENSTOCK_BF16 = 1,
    PENSTOCK_QUERIES = 2,   // bf16, by key head: all tokens' queries of it, each padded to whole tiles
    PENSTOCK_EXTERNAL = 3,  // fp32 in the caller's memory, given with each call
    // fp32 where the other ranks of the model see it. Sums take turns: one that is even in their order and one that is odd do not read
    // the same buffer, since others may still read what was summed up last.
    PENSTOCK_SHARED = 5,
    // Whole numbers from -127 to 127, and behind the padding to 64 the row's scale in fp32. Some instruction sets hold
    // them with the highest bit turned over, which only their products know.
    PENSTOCK_BYTES = 4,
};

typedef struct {
    int32_t layout;
    int32_t width;  // numbers of a row; of queries those of all heads, without padding
    int32_t rows;   // of each token: of what experts read and give, as many as it has experts, by expert
} penstock_buffer;

typedef struct {
    int32_t kind;
    int32_t source, second, third, target;  // buffers; of RATES, b is read of the third where there is one; of LINEAR, what ADAPT made of
                                            // tokens that have an adapter is added to the product, or -1
    int32_t source_at, inner_at, outer_at;  // first columns of what is read; -1: nothing is
    int32_t target_at;  // first column of a target that a convolution writes, or a gated norm, of bf16
    int32_t rows, columns;   // of the weight: outputs and inputs; of a norm: 0 and the width
    int32_t norm, norm_over;
    int32_t norm_rotated;  // of queries and keys: behind the rotation
    int32_t accumulate;  // of a norm: whether the target is added to
    int32_t epilogue, activation;
    int32_t layer;  // whose cache
    int32_t heads, kv_heads, head_dim, rope_dim;
    int32_t window, chunked;  // of attention: keys that a query sees; 0: all before it
    int32_t offset;           // row of `positions` for position 0; of a convolution, and of KEEP, the state
    int32_t format;           // of the weight
    int32_t experts, per_token;
    int32_t sigmoid, normalize;                // of a route: scores are roots of softplus (2), sigmoids (1), or their softmax; add up to 1
    int32_t groups, top_groups, group_best;    // of a route: experts are chosen from the best groups
    int32_t slopes_rounded;                    // of attention: slopes, positions and their products are rounded to bf16
    int32_t weighs_input;                      // of experts: weights are factors of what they read
    int32_t value_dim, rule;                   // of states (heads, head_dim, value_dim)
    int32_t channels;  // of states: whether each of the head_dim rows keeps a share of its own
    int32_t learns;   // of states: a value is what the state's answer to the key lacks of it
    int32_t values, value_norm;  // of WRITE_KV: where values come from, and how they are normed, without a weight
    int32_t first_id;            // of EMBED: -1: the table is whole
    int32_t first_expert, own_experts;  // of ROUTE and EXPERTS: what this rank has of them; -1: all
    int32_t rounds;  // of hyper-connections: 0: streams are not mixed
    int32_t dilation;  // of a convolution: of so many tokens one has a weight
    int32_t sees;                       // of attention: a penstock_sees
    float eps, scale, softcap, clip;
    float limit, alpha;      // of a clamped or limited gate, and of xIELU; alpha of a hyper-connection, too
    float lowest, highest;   // of rates, and the lower one of xIELU and of a hyper-connection
    float slopes_scale;      // a factor of what slopes add
    float one_by_one;        // of a route: see penstock_kernels/experts.py; 0: all at once
    float value_eps, value_scale;  // of WRITE_KV: of the norm of values, and what they are multiplied with
    const void *weight;          // packed, 64-byte aligned
    const float *bias;           // (rows,) rounded up to whole tiles, or of a norm (columns,)
    const float *norm_weight;    // of a norm; of WRITE_KV that of queries
    const float *second_weight;  // of WRITE_KV that of keys
    const float *cos, *sin;      // (positions, rope_dim / 2)
    const float *positions;      // of EMBED, (positions, columns), or null; of WRITE_KV, factors of queries (positions,), or null; of
                                 // attention, (heads, 16 + columns + 16), added to scores by distance, or null: of a key d behind its query
                                 // entry 16 + offset + d, and of one further away the first or the last of all, which the 16 repeat. Of
                                 // attention with a third buffer, factors (positions,) of what queries say of distances, or null: of each
                                 // token (heads, rows) there, times `norm_weight`, (rows, 16 + columns + 16) like the above
    const float *scales;         // of a quantized weight, (rows,) rounded up to whole tiles; of a hyper-connection (rows,)
    const int32_t *sums;         // alike: 128 times the sum of an output's whole numbers; of ROUTE (ids, per_token) experts, or null
    const float *sinks;          // of attention, (heads,): a score of each that has no value; or null
    const float *slopes;         // of attention, (heads,): times a key's position, added to its score; or null
    const float *second_bias;    // of WRITE_KV that of the norm of keys; `bias` is that of queries
} penstock_operation;

typedef struct {
    int64_t rows, tokens;
    const int64_t *ids;     // (tokens,), row by row
    const int64_t *slots;   // (rows,)
    const int64_t *places;  // (rows,): where the states of the row's slot are
    const int64_t *first;   // (rows,): the position of the row's first token
    const int64_t *counts;  // (rows,): its tokens
    const int64_t *pages;   // (tables, max_slots, width): the page of each block of a slot
    int64_t max_slots, width;
    // States are copied on the way: behind so many tokens of a row, to a place. (saved, 3), ascending by row and tokens, of which two
    // may have the same.
    const int64_t *saves;
    int64_t saved;
    // (tokens,): of each token, where some are not one behind the token before them in their row; or null. A row with such tokens is a
    // tree: each of its tokens attends to what is before the row, and to its own path, whose tokens have one position after the
    // other. The cache has them in the order of `ids` all the same.
    const int64_t *positions;
    // Of tokens of trees, what they read for a position where the cache has it at another place: (moves, 3), (token, position, place),
    // ascending by token and position.
    const int64_t *moved;
    int64_t moves;
    // Of an encoder-decoder, (max_slots,): tokens that each slot's encoder has read. They are at the first positions of its sequence, in
    // whole blocks, and the decoder's part, whose positions count from 0 for operations, is behind these. Null: of a decoder.
    const int64_t *encoded;
    // (rows,): of how many of the row's last tokens the body's hidden states are read; what the others have then is anything. Null: of all.
    const int64_t *wanted;
} penstock_step;

// How a token is chosen of a row of logits. `first_...` are places in the lists of penstock_draws, and the number behind it says how
// many there are. penstock_kernels/sampling.py has the same fields.
typedef struct {
    int64_t row;  // of the logits
    int64_t top_k;  // as many as there are columns: off
    int64_t previous, greens;  // of the watermark: the token before, and how many tokens are green
    const int32_t *prompt_counts, *output_counts;  // (columns,): how often a token was there; null: no penalties
    int64_t first_bias, biases;
    int64_t first_end, ends;       // what may not come yet
    int64_t first_before, before;  // drafts that count as output for this row
    double uniform;                // in [0, 1)
    float temperature;             // 0: the likeliest is taken
    float top_p, typical_p;        // 1: off
    float furthest;  // of min-p: how far below the largest a logit may be, over the temperature; infinite: off
    float repetition, frequency, presence;
    float delta;   // what the watermark adds; 0: none
    int32_t mask;  // of the row; -1: none
    int32_t unused;
} penstock_draw_row;

typedef struct {
    int64_t count;
    const penstock_draw_row *rows;
    const uint32_t *masks;  // (masks, mask_words), as of penstock_cpu_summarize
    int64_t mask_words;
    const int64_t *bias_tokens;
    const float *biases;
    const int64_t *end_tokens, *before;
    int64_t *tokens;    // what is chosen
    uint8_t *possible;  // whether anything was left to choose
} penstock_draws;

// Why penstock_cpu_go_on returns.
enum penstock_pause {
    // The first message is for the caller, or more is needed than there is room for, or there is no more: the other side has left.
    PENSTOCK_PAUSE_MESSAGE = 1,
    // A step was run, and what comes of its masks is for the caller.
    PENSTOCK_PAUSE_MASKS = 2,
    // There were as many steps as may be in a row, or nothing came for a while.
    PENSTOCK_PAUSE_STEPS = 3,
};
enum { PENSTOCK_KINDS_OF_STEPS = 4 };

// The slots, as server/penstock/engine/slots.py has them: columns (max_slots,).
typedef struct {
    int64_t max_slots, width;  // width: blocks that a slot has room for
    uint8_t *alive, *has_sampled;
    int64_t *filled, *planned, *block_counts;
    int64_t *pages;         // (tables, max_slots, width)
    int64_t *last_sampled;
    const int64_t *places;   // where their states are; null: of a model without any
    const int64_t *encoded;  // of an encoder-decoder: tokens that their encoders have read; or null
    int32_t *adapters;       // which of the model's each is computed with, counted from 1; 0: none; null: of a model without any
} penstock_slots;

// What slots are sampled with, as server/penstock/engine/slot_sampling.py has it: columns (max_slots,).
typedef struct {
    uint64_t *seeds;
    float *temperatures, *top_ps, *typical_ps, *min_ps, *furthest, *repetitions, *frequencies, *presences, *watermark_deltas;
    int64_t *top_ks, *top_counts, *first_ends, *watermark_greens;
    uint8_t *are_simple, *are_plain;
    int64_t *count_rows;   // of `prompt_counts` and `output_counts`; -1: no penalties
    int64_t *free_rows;    // those that no slot has: the first `free_count`, (1,)
    int64_t *free_count;
    int64_t *bias_counts;
    const int64_t *const *bias_tokens;  // of a slot without biases anything
    const float *const *biases;
    int64_t *end_tokens;  // (max_slots, end_width)
    int64_t end_width;
    int32_t *prompt_counts, *output_counts;  // (rows, columns)
} penstock_sampling;

// The steps of one Run, from a connection's plans to their answers.
typedef struct {
    // A connection, of whose bytes some have been read: those from `begin` to `end`, whole frames and the start of one. `is_taken`: of the
    // first message the plan has been taken, and not the masks.
    int64_t descriptor;
    uint8_t *inbox;
    int64_t capacity, begin, end;
    int64_t is_taken;
    // The last plan, the digest of all, and the plan whose masks were taken of a message of which something is left; 0: none.
    uint64_t number, digest, taken_masks;
    penstock_slots slots;
    penstock_sampling sampling;
    int64_t columns;               // of logits
    int64_t tables, pages, block_size;
    int64_t adapters;              // of the model
    int64_t most_tokens, most_drafts;  // of a step
    int64_t most_side;             // tokens of an encoder-decoder's decoder; 0: no limit
    int64_t starts;                // whether slots may start here; else the caller does
    int64_t narrows;               // whether the model can leave out hidden states that nobody reads
    int64_t answers;               // whether this rank answers, and is sent masks
    int64_t ranks;
    float *logits;                 // of as many rows as a step may sample
    int64_t stride;
    const char *not_numbers, *nothing_left;  // what is answered of a row without a token
    // Where a step's rows are, with room for all slots, and the tokens that it feeds, with room for `most_tokens`.
    int64_t rows;
    int64_t *row_slots, *row_first, *row_counts, *row_drafts;
    uint8_t *row_flags;
    int64_t *ids;
    int64_t *steps;                // begun since the worker began
    // Threads of steps of so many tokens: kinds as `penstock_cpu_go_on` has them. So many steps of a kind may be made before the caller
    // is asked, and all of them together may take `most_ns`, and one more.
    int64_t kinds[PENSTOCK_KINDS_OF_STEPS - 1], threads[PENSTOCK_KINDS_OF_STEPS], left[PENSTOCK_KINDS_OF_STEPS];
    int64_t most_ns;
    // Of each step that was made and answered: tokens fed, keys attended to, nanoseconds it took, and when it ended by the monotonic clock.
    int64_t (*made)[4];
    int64_t most_made, made_count;
    // Of the step that is for the caller: its tokens, and how long it took to read its plan and to compute it.
    int64_t tokens, prepare_ns, forward_ns;
} penstock_run;

typedef struct penstock_program penstock_program;

PENSTOCK_CPU_API int penstock_cpu_abi(void);

// The reason of the last failure on this thread.
PENSTOCK_CPU_API const char *penstock_cpu_error(void);

// Names of the instruction sets that this library has and this processor runs, best first, with spaces between.
PENSTOCK_CPU_API const char *penstock_cpu_instruction_sets(void);

// Brings a matrix (rows, columns) of bf16 into tiles: all tiles of the first 16 rows, then of the next. `columns` must
// be a multiple of 32, and `rows` of 16. `from` and `to` may be the same memory.
PENSTOCK_CPU_API int penstock_cpu_pack(const void *from, void *to, int64_t rows, int64_t columns);

// Quantizes a matrix (rows, columns) of bf16 into tiles of `format`, as many as cover it: rounded to the nearest, by the
// scales that make the squared error least. `to` is 64-byte aligned; `scales` and `sums` are those of an operation. In a
// format with groups it is done as `rounding` says: PENSTOCK_NO_GROUPS where nothing shall be rounded, and the numbers are not of 4 bits in such groups.
PENSTOCK_CPU_API int penstock_cpu_quantize(const char *instruction_set, int32_t format, int32_t rounding, const void *from,
                                           int64_t rows, int64_t columns, void *to, float *scales, int32_t *sums);

// `encoder`, `body` and `head` are operations that run one after the other; of a decoder there is no encoder. The head reads its first operation's source, which is
// external, and writes its last one's target, which is too. `instruction_set` is one of the names above.
PENSTOCK_CPU_API penstock_program *penstock_cpu_create(const char *instruction_set, const penstock_buffer *buffers,
                                                       int32_t buffer_count, const penstock_operation *encoder,
                                                       int32_t encoder_count, const penstock_operation *body,
                                                       int32_t body_count, const penstock_operation *head,
                                                       int32_t head_count, int32_t threads);

PENSTOCK_CPU_API void penstock_cpu_destroy(penstock_program *program);

// Bytes that `reserve` takes for steps of up to so many tokens and head calls of so many rows, of sequences up to
// `longest`.
PENSTOCK_CPU_API int64_t penstock_cpu_workspace(const penstock_program *program, int64_t tokens, int64_t rows,
                                                int64_t longest);

PENSTOCK_CPU_API int penstock_cpu_reserve(penstock_program *program, int64_t tokens, int64_t rows, int64_t longest);

// Of a program whose model is divided: how much memory ranks share in steps and heads of this size, of which `share` tells where it is.
// It begins with zeros. `sockets` has for each rank a connected one, at whose end that rank has ended, and -1 for this one. The head of
// a rank makes its part of `columns` logits, all parts but the last of one size; rank 0 is given the whole.
PENSTOCK_CPU_API int64_t penstock_cpu_shared_bytes(const penstock_program *program, int64_t tokens, int64_t rows, int32_t ranks);

PENSTOCK_CPU_API int penstock_cpu_share(penstock_program *program, void *memory, int64_t tokens, int64_t rows, int32_t rank,
                                        int32_t ranks, const int32_t *sockets, int64_t columns);

// Gives every rank what rank 0 has in `numbers`.
PENSTOCK_CPU_API int penstock_cpu_tell(penstock_program *program, void *numbers, int64_t bytes);

// Memory of a layer's pages, `page_bytes` from one to the next, the table they are in, and a penstock_cache_format, which all layers
// share. A layer uses kv_heads (D rounded up to 32 + D rounded up to 16) 32 bytes of each of its pages; of formats of 8 bits half of
// that, and of int8 kv_heads 128 more. Behind them 32 bytes for each number of an index key, rounded up to 32.
PENSTOCK_CPU_API int penstock_cpu_set_cache(penstock_program *program, int32_t layer, void *pages, int64_t page_bytes,
                                            int32_t table, int32_t format);

// Memory of a layer's states, a place of `place_bytes` for each slot and then for each snapshot: what a convolution keeps
// (kernel - 1, channels) in bf16 is its `state` 0, and (heads, head_dim, value_dim) in fp32 its `state` 1. Of mixtures of tokens
// 0 is (1, columns) in bf16. Of compressed attention both are
// (tokens, numbers) in bf16: keys of the window, and what entries are made of. N-grams have behind these two a convolution's, and ids in
// fp32.
PENSTOCK_CPU_API int penstock_cpu_set_state(penstock_program *program, int32_t layer, int32_t state, void *places,
                                            int64_t place_bytes);

// (max_slots,): the adapter that each slot is computed with, counted from 1; 0: none. The caller keeps it, and changes it between steps.
PENSTOCK_CPU_API void penstock_cpu_set_adapters(penstock_program *program, const int32_t *of_slots);

// Threads that compute from now on, the caller's among them: 1 to those that the program was created with.
PENSTOCK_CPU_API void penstock_cpu_set_threads(penstock_program *program, int32_t threads);

// Runs the body. Its buffers hold what it computed until the next call.
PENSTOCK_CPU_API int penstock_cpu_step(penstock_program *program, const penstock_step *step);

// Runs the encoder over rows that are inputs, each whole and from position 0 on; writes what the body attends to of them.
PENSTOCK_CPU_API int penstock_cpu_read(penstock_program *program, const penstock_step *step);

// Copies what every layer has of tokens to other places, one after the other: `sources` and `targets` (tables, count) are a page
// times PENSTOCK_PAGE_TOKENS, and the place in it.
PENSTOCK_CPU_API int penstock_cpu_move(penstock_program *program, const int64_t *sources, const int64_t *targets,
                                       int64_t count);

// Runs the head on `rows` rows of fp32, `source_stride` numbers apart; `target` alike.
PENSTOCK_CPU_API int penstock_cpu_head(penstock_program *program, const float *source, int64_t source_stride,
                                       int64_t rows, float *target, int64_t target_stride);

// Of rows of logits (rows, columns) in fp32, `stride` numbers apart: the lowest column of the largest that the row's mask
// allows, the largest of all, and the sum of the exponentials of all, each less the largest; no number where one of the row
// is none, or infinite. `masks` (masks, mask_words): bit i % 32 of word i / 32 for column i; `mask_of_row` (rows): the index
// of a row's mask, or -1; null: no row has one.
PENSTOCK_CPU_API int penstock_cpu_summarize(penstock_program *program, const float *logits, int64_t stride,
                                            int64_t rows, int64_t columns, const uint32_t *masks,
                                            int64_t mask_words, const int32_t *mask_of_row, int64_t *tokens,
                                            float *largest, float *totals);

// A whole step that samples behind each of its tokens: the body, the head on all rows of buffer 0, and the choice without masks. `tokens`
// null: no choice, which `penstock_cpu_choose` then makes.
PENSTOCK_CPU_API int penstock_cpu_decode(penstock_program *program, const penstock_step *step, float *logits, int64_t stride,
                                         int64_t columns, int64_t *tokens, float *largest, float *totals,
                                         const penstock_draws *draws);

// The summary, and where `draws` is not null those, of which the tokens are the rows'. Of a divided model every rank is given the tokens, and
// rank 0 the rest. Masks as of `penstock_cpu_summarize`; rows of `draws` name them as well.
PENSTOCK_CPU_API int penstock_cpu_choose(penstock_program *program, const float *logits, int64_t stride, int64_t rows,
                                         int64_t columns, const uint32_t *masks, int64_t mask_words,
                                         const int32_t *mask_of_row, int64_t *tokens, float *largest, float *totals,
                                         const penstock_draws *draws);

// Chooses a token of each of some rows of logits (rows, columns) in fp32, `stride` numbers apart. Of a row that has what is no
// number any token is chosen.
PENSTOCK_CPU_API int penstock_cpu_draw(penstock_program *program, const float *logits, int64_t stride, int64_t columns,
                                       const penstock_draws *draws);

// Reads plans and masks from a connection, makes their steps and sends their answers, for as long as they ask for nothing unusual. Then it
// returns why not, and everything is as the last step left it. `kinds` are the most tokens of a step of each kind but the last, rising. A step
// has been run before.
PENSTOCK_CPU_API int penstock_cpu_go_on(penstock_program *program, penstock_run *run);

// Where a buffer is, and the bytes from one token to the next; queries: from one token of a key head to the next.
PENSTOCK_CPU_API void *penstock_cpu_buffer(penstock_program *program, int32_t buffer, int64_t *row_bytes);

#ifdef __cplusplus
}
#endif

#endif
