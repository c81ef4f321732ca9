// What operations have to be: whatever contradicts itself is refused when a program is made, in one line.
#include <algorithm>

#include "program.h"

namespace penstock {

namespace {

// 255 times 127 for each input stays below 2^31.
constexpr int kMostByteInputs = 1 << 16;

// Of a route, and of a recurrent layer: what their memory holds.
constexpr int kMostExperts = 4096, kMostPerToken = 64, kMostGroups = 256;
constexpr int kMostKernel = 8, kMostPast = 24, kMostKeyDim = 384;

}  // namespace

void Program::check(const std::vector<penstock_operation> &operations, bool is_head) const {
    const auto known = [&](int buffer) { return 0 <= buffer && buffer < static_cast<int>(buffers_.size()); };
    // Whether fp32 has so many columns from there on, where it is read.
    const auto fits = [&](int number, int first, int columns) {
        const Buffer &buffer = buffers_[static_cast<size_t>(number)];
        return first < 0 || (buffer.layout == PENSTOCK_F32 && first + columns <= buffer.width);
    };
    const auto is_fp32 = [](const Buffer &buffer) {
        return buffer.layout == PENSTOCK_F32 || buffer.layout == PENSTOCK_SHARED;
    };
    for (const penstock_operation &operation : operations) {
        if (!known(operation.target) || (operation.kind != PENSTOCK_EMBED && !known(operation.source)))
            throw wrong("an operation names a buffer that is not there");
        if (reads_second(operation) && !known(operation.second))
            throw wrong("an operation names a buffer that is not there");
        if (reads_third(operation) && !known(operation.third))
            throw wrong("an operation names a buffer that is not there");
        const Buffer &target = buffers_[static_cast<size_t>(operation.target)];
        switch (operation.kind) {
            case PENSTOCK_EMBED:
                if (is_head || !is_fp32(target) || !operation.weight)
                    throw wrong("an embedding makes fp32 in the body");
                if ((operation.format != PENSTOCK_FORMAT_BF16 && operation.format != PENSTOCK_FORMAT_ROWS) ||
                    operation.rows < 0 || operation.first_id < -1 ||
                    (operation.format == PENSTOCK_FORMAT_ROWS && (operation.positions || operation.first_id >= 0)))
                    throw wrong("an embedding from a table that this library does not know");
                break;
            case PENSTOCK_NORM:
                if (std::max(operation.heads, 1) * operation.columns + operation.target_at > target.width ||
                    operation.target_at < 0 || operation.source_at < 0 ||
                    ((operation.target_at > 0 || operation.heads > 1) && target.layout == PENSTOCK_BYTES))
                    throw wrong("a norm is wider than its target");
                if (operation.accumulate && target.layout != PENSTOCK_F32) throw wrong("a norm adds to fp32 only");
                break;
            case PENSTOCK_REDUCE: {
                const Buffer &source = buffers_[static_cast<size_t>(operation.source)];
                if (is_head || source.layout != PENSTOCK_SHARED || target.layout != PENSTOCK_F32 ||
                    source.width != target.width)
                    throw wrong("what ranks sum up is shared, and becomes fp32");
                break;
            }
            case PENSTOCK_QUANTIZE: {
                const Buffer &source = buffers_[static_cast<size_t>(operation.source)];
                if (source.layout != PENSTOCK_BF16 || target.layout != PENSTOCK_BYTES || source.width != target.width)
                    throw wrong("what is quantized is as many numbers in bf16");
                break;
            }
            case PENSTOCK_LINEAR:
            case PENSTOCK_EXPERTS: {
                const Buffer &source = buffers_[static_cast<size_t>(operation.source)];
                const int outputs = operation.epilogue == PENSTOCK_GATE ? operation.rows / 2 : operation.rows;
                const bool is_bf16 = operation.format == PENSTOCK_FORMAT_BF16;
                const int group = group_of(static_cast<penstock_format>(operation.format));
                if (!group && (operation.format < PENSTOCK_FORMAT_BF16 || operation.format > PENSTOCK_FORMAT_INT4))
                    throw wrong("a format of weights that this library does not know");
                if (source.layout != (is_bf16 ? PENSTOCK_BF16 : PENSTOCK_BYTES))
                    throw wrong(is_bf16 ? "a product reads bf16" : "a product with quantized weights reads bytes");
                const int inputs = is_bf16 ? PENSTOCK_TILE_INPUTS : PENSTOCK_BYTE_INPUTS;
                if (operation.columns % inputs || operation.columns != round_up(source.width, inputs))
                    throw wrong("a product's inputs are not its source's");
                if (!is_bf16 && (operation.columns > kMostByteInputs || (!group && (!operation.scales || !operation.sums))))
                    throw wrong("quantized weights without scales, or with sums beyond 32 bits");
                if (outputs != target.width || (operation.epilogue == PENSTOCK_GATE && outputs % 16))
                    throw wrong("a product's outputs are not its target's");
                if (operation.epilogue == PENSTOCK_ADD && !is_fp32(target))
                    throw wrong("a product is added to fp32 only");
                if (operation.kind == PENSTOCK_LINEAR && operation.second >= 0 &&
                    (is_head || buffers_[static_cast<size_t>(operation.second)].width != operation.rows ||
                     !fits(operation.second, 0, operation.rows)))
                    throw wrong("what adapters add is as many numbers of fp32");
                if ((operation.epilogue == PENSTOCK_GATE || operation.epilogue == PENSTOCK_ACTIVATE) &&
                    target.layout != PENSTOCK_BF16)
                    throw wrong("an activation makes bf16 only");
                if (operation.epilogue < PENSTOCK_STORE || operation.epilogue > PENSTOCK_GATE ||
                    operation.activation < PENSTOCK_SILU ||
                    (operation.activation > PENSTOCK_CLAMPED_GATE &&
                     (operation.activation != PENSTOCK_XIELU || operation.epilogue != PENSTOCK_ACTIVATE) &&
                     (operation.activation != PENSTOCK_LIMITED_GATE || operation.epilogue != PENSTOCK_GATE)))
                    throw wrong("an epilogue or activation that this library does not know");
                if (reinterpret_cast<uintptr_t>(operation.weight) % kLine || !operation.weight)
                    throw wrong("a weight is not aligned to 64 bytes");
                if (operation.kind == PENSTOCK_EXPERTS) {
                    const bool sums_up =
                        operation.epilogue == PENSTOCK_STORE || operation.epilogue == PENSTOCK_ADD;
                    if (is_head || operation.experts < 1 || operation.experts > kMostExperts ||
                        operation.first_expert < 0 || operation.first_expert >= operation.experts)
                        throw wrong("experts that this library does not know");
                    if (source.per_token != operation.per_token ||
                        target.per_token != (sums_up ? 1 : operation.per_token) ||
                        (sums_up && !is_fp32(target)))
                        throw wrong("experts read what was gathered, and add to fp32");
                }
                break;
            }
            case PENSTOCK_ADAPT: {
                const Buffer &source = buffers_[static_cast<size_t>(operation.source)];
                const bool is_bf16 = operation.format == PENSTOCK_FORMAT_BF16;
                const int inputs = is_bf16 ? PENSTOCK_TILE_INPUTS : PENSTOCK_BYTE_INPUTS;
                if (is_head || operation.experts < 1 || operation.epilogue != PENSTOCK_STORE || !operation.weight ||
                    reinterpret_cast<uintptr_t>(operation.weight) % kLine || operation.rows != target.width ||
                    (target.layout != PENSTOCK_F32 && target.layout != PENSTOCK_BF16) || target.per_token != 1 ||
                    operation.columns != round_up(source.width, inputs) || source.layout != (is_bf16 ? PENSTOCK_BF16 : PENSTOCK_BYTES) ||
                    (!is_bf16 && (operation.format != PENSTOCK_FORMAT_INT8 || !operation.scales || !operation.sums)))
                    throw wrong("adapters that this library does not know");
                break;
            }
            case PENSTOCK_ROUTE:
                if (is_head || operation.experts < 1 || operation.experts > kMostExperts || operation.per_token < 1 ||
                    operation.per_token > std::min(kMostPerToken, operation.experts) || operation.groups < 1 ||
                    operation.groups > kMostGroups || operation.experts % operation.groups ||
                    operation.group_best > kMostPerToken || operation.sigmoid < 0 || operation.sigmoid > 2 ||
                    (operation.groups > 1 && (operation.top_groups < 1 || operation.group_best < 1)))
                    throw wrong("a route that this library does not know");
                if (operation.first_expert < 0 || operation.own_experts < -1 ||
                    operation.first_expert + operation.own_experts > operation.experts)
                    throw wrong("experts of this rank that there are not");
                if (buffers_[static_cast<size_t>(operation.source)].width < operation.experts ||
                    target.width != 2 * operation.per_token || target.layout != PENSTOCK_F32)
                    throw wrong("a route has weights and numbers of a token's experts");
                break;
            case PENSTOCK_GATHER: {
                const Buffer &source = buffers_[static_cast<size_t>(operation.source)];
                if (is_head || target.per_token != operation.per_token || source.per_token != 1 ||
                    source.layout != target.layout || source.width != target.width ||
                    (source.layout != PENSTOCK_BF16 && source.layout != PENSTOCK_BYTES))
                    throw wrong("what is gathered is a product's source");
                break;
            }
            case PENSTOCK_OPEN:
                if ((target.layout != PENSTOCK_BF16 && target.layout != PENSTOCK_F32) ||
                    operation.heads * operation.head_dim > target.width ||
                    !fits(operation.source, operation.source_at, operation.columns))
                    throw wrong("gates of what is not there");
                break;
            case PENSTOCK_GATED_NORM:
                if (target.layout != PENSTOCK_BF16 || operation.target_at < 0 ||
                    operation.target_at + operation.heads * operation.head_dim > target.width ||
                    !fits(operation.source, 0, operation.heads * operation.head_dim) ||
                    !fits(operation.second, operation.source_at, operation.heads * operation.head_dim))
                    throw wrong("a gated norm of what is not there");
                break;
            case PENSTOCK_CONVOLVE:
                if (is_head || operation.rows < 1 || operation.rows > kMostKernel || !operation.norm_weight ||
                    operation.dilation < 1 || (operation.rows - 1) * operation.dilation > kMostPast ||
                    operation.offset < 0 || operation.offset > 3 ||
                    operation.target_at < 0 || (operation.target_at > 0 && target.layout != PENSTOCK_BF16 && target.layout != PENSTOCK_F32) ||
                    operation.target_at + operation.columns > target.width ||
                    !fits(operation.source, operation.source_at, operation.columns) ||
                    !fits(operation.source, operation.inner_at, operation.columns) ||
                    !fits(operation.source, operation.outer_at, operation.columns))
                    throw wrong("a convolution that this library does not know");
                break;
            case PENSTOCK_RATES:
                if (is_head || operation.columns < 1 || target.layout != PENSTOCK_F32 ||
                    target.width < operation.columns * (operation.rule >= PENSTOCK_CHANNELS ? 1 + operation.head_dim : 2) ||
                    !operation.norm_weight ||
                    (operation.rule != PENSTOCK_CONSTANT && !operation.bias) ||
                    (operation.heads > 0 && !fits(operation.second, 0, 2 * operation.heads * operation.head_dim)))
                    throw wrong("rates of states that this library does not know");
                break;
            case PENSTOCK_RECUR:
                if (is_head || operation.kv_heads < 1 || operation.heads % operation.kv_heads ||
                    operation.head_dim < 1 || operation.head_dim > kMostKeyDim || operation.value_dim < 1 ||
                    target.layout != PENSTOCK_F32 || target.width != operation.heads * operation.value_dim ||
                    !fits(operation.source, operation.source_at, operation.kv_heads * operation.head_dim) ||
                    !fits(operation.source, operation.inner_at, operation.kv_heads * operation.head_dim) ||
                    !fits(operation.source, operation.outer_at, operation.heads * operation.value_dim) ||
                    !fits(operation.second, 0, operation.heads * (operation.channels ? 1 + operation.head_dim : 2)) ||
                    (operation.channels && !operation.learns))
                    throw wrong("states that this library does not know");
                break;
            case PENSTOCK_HEADS:
                if (is_head || operation.heads < 1 || operation.format != PENSTOCK_FORMAT_BF16 ||
                    operation.epilogue != PENSTOCK_STORE || operation.columns % PENSTOCK_TILE_INPUTS ||
                    buffers_[static_cast<size_t>(operation.source)].layout != PENSTOCK_BF16 ||
                    operation.heads * operation.head_dim > buffers_[static_cast<size_t>(operation.source)].width ||
                    operation.source_at < 0 || operation.source_at >= operation.head_dim ||
                    target.width != operation.heads * operation.rows || !operation.weight)
                    throw wrong("products of heads that this library does not know");
                break;
            case PENSTOCK_SCAN:
                if (is_head || operation.head_dim < 1 || operation.head_dim > kMostKeyDim || !operation.positions ||
                    !operation.norm_weight || target.layout != PENSTOCK_F32 || target.width != operation.columns ||
                    !fits(operation.source, operation.source_at, operation.columns) ||
                    !fits(operation.second, 0, operation.columns) ||
                    !fits(operation.third, operation.inner_at, operation.head_dim) ||
                    !fits(operation.third, operation.outer_at, operation.head_dim))
                    throw wrong("states that this library does not know");
                break;
            case PENSTOCK_GATED_RECUR: {
                const int channels = operation.heads * operation.head_dim;
                if (is_head || operation.heads < 1 || operation.head_dim < 1 || !operation.norm_weight || !operation.bias ||
                    target.layout != PENSTOCK_F32 || target.width != channels || operation.source_at < 0 ||
                    !fits(operation.source, operation.source_at, channels) || !fits(operation.second, 0, 2 * channels))
                    throw wrong("states that this library does not know");
                break;
            }
            case PENSTOCK_MIX_TOKENS: {
                const Buffer &source = buffers_[static_cast<size_t>(operation.source)];
                if (is_head || operation.columns < 1 || !operation.norm_weight || source.layout != PENSTOCK_BF16 ||
                    target.layout != PENSTOCK_BF16 || source.width != operation.columns || target.width != operation.columns ||
                    operation.target == operation.source)
                    throw wrong("mixtures of tokens that this library does not know");
                break;
            }
            case PENSTOCK_WEIGH_VALUES:
                if (is_head || operation.columns < 1 || !operation.norm_weight || !operation.bias || target.layout != PENSTOCK_BF16 ||
                    target.width != operation.columns)
                    throw wrong("weights of values that this library does not know");
                for (const int read : {operation.source, operation.second, operation.third}) {
                    const Buffer &buffer = buffers_[static_cast<size_t>(read)];
                    if (buffer.layout != PENSTOCK_F32 || buffer.width != operation.columns)
                        throw wrong("weights of values that this library does not know");
                }
                break;
            case PENSTOCK_PREDICT:
            case PENSTOCK_CORRECT:
                if (is_head || operation.heads < 1 || operation.heads > PENSTOCK_MOST_STREAMS || operation.columns < 1 ||
                    operation.offset < 0 || operation.offset >= operation.heads || !operation.norm_weight ||
                    !fits(operation.source, 0, operation.heads * operation.columns) ||
                    !fits(operation.target, 0, operation.heads * operation.columns) ||
                    !fits(operation.second, 0, operation.heads) ||
                    (operation.kind == PENSTOCK_CORRECT && !fits(operation.third, 0, operation.columns)))
                    throw wrong("residual streams that this library does not know");
                break;
            case PENSTOCK_MATCH:
                if (is_head || operation.columns < 1 || operation.source_at < 0 || operation.inner_at < 0 ||
                    operation.target_at < 0 || !fits(operation.source, operation.source_at, operation.columns) ||
                    !fits(operation.second, operation.inner_at, operation.columns) ||
                    !fits(operation.target, operation.target_at, operation.columns))
                    throw wrong("numbers that are to be as large as what is not there");
                break;
            case PENSTOCK_SPARSE_GATE:
                if (is_head || target.layout != PENSTOCK_BF16 || operation.columns < 1 || operation.columns > target.width ||
                    operation.inner_at < operation.columns || !fits(operation.source, operation.inner_at, operation.columns) ||
                    operation.activation < PENSTOCK_SILU || operation.activation > PENSTOCK_RELU_SQUARED)
                    throw wrong("sparse gates that this library does not know");
                break;
            case PENSTOCK_HYPER_READ:
                if (is_head || operation.heads < 1 || operation.heads > PENSTOCK_MOST_STREAMS || operation.columns < 1 ||
                    operation.rounds < 0 ||
                    (operation.rows != operation.heads &&
                     operation.rows != operation.heads * (operation.rounds ? 2 + operation.heads : 2)) ||
                    !operation.norm_weight ||
                    !operation.bias || !operation.scales || !fits(operation.source, 0, operation.heads * operation.columns) ||
                    !fits(operation.target, 0, operation.columns) || !fits(operation.second, 0, 2 * operation.rows + 1) ||
                    operation.target == operation.source)
                    throw wrong("hyper-connections that this library does not know");
                break;
            case PENSTOCK_HYPER_ADD:
                if (is_head || operation.heads < 1 || operation.heads > PENSTOCK_MOST_STREAMS || operation.columns < 1 ||
                    operation.inner_at < 0 || !fits(operation.source, 0, operation.columns) ||
                    !fits(operation.target, 0, operation.heads * operation.columns) ||
                    !fits(operation.second, operation.inner_at, operation.heads * (operation.rounds ? 1 + operation.heads : 1)) ||
                    operation.target == operation.source)
                    throw wrong("hyper-connections that this library does not know");
                break;
            case PENSTOCK_HYPER_MIX: {
                const Buffer &normed = buffers_[static_cast<size_t>(operation.second)];
                const int numbers = operation.heads * operation.columns;
                if (is_head || operation.heads < 1 || operation.heads > PENSTOCK_MOST_STREAMS || operation.columns < 1 ||
                    !fits(operation.source, 0, numbers) || normed.layout != PENSTOCK_BF16 || normed.width < numbers ||
                    !fits(operation.target, 0, operation.columns) ||
                    (operation.third >= 0 && !fits(operation.third, 0, operation.heads)))
                    throw wrong("hyper-connections that this library does not know");
                break;
            }
            case PENSTOCK_NGRAMS:
                if (is_head || operation.rows < 1 || operation.rows > 16 || operation.heads < 1 || operation.head_dim < 1 ||
                    !is_fp32(target) || target.width != operation.rows * operation.heads * operation.head_dim ||
                    !operation.sums || !operation.weight || operation.columns < 0)
                    throw wrong("n-grams that this library does not know");
                break;
            case PENSTOCK_NGRAM_GATE:
                if (is_head || operation.heads < 1 || operation.columns < 1 || !operation.norm_weight ||
                    !operation.second_weight || !fits(operation.source, 0, (operation.heads + 1) * operation.columns) ||
                    !fits(operation.second, 0, operation.heads * operation.columns) ||
                    !fits(operation.target, 0, operation.heads * operation.columns))
                    throw wrong("n-grams that this library does not know");
                break;
            case PENSTOCK_WRITE_BLOCKS:
                if (is_head || operation.kv_heads != 1 || operation.heads < 1 || operation.heads > 1024 ||
                    operation.head_dim < 2 || operation.head_dim > 512 || target.layout != PENSTOCK_QUERIES ||
                    target.width != operation.heads * operation.head_dim || operation.rope_dim < 2 || operation.rope_dim % 2 ||
                    operation.rope_dim > operation.head_dim || !operation.cos || !operation.sin || !operation.norm_weight ||
                    !operation.second_weight || operation.window < 1 ||
                    !fits(operation.source, 0, (operation.heads + 1) * operation.head_dim))
                    throw wrong("an index that this library does not know");
                break;
            case PENSTOCK_TURN:
            case PENSTOCK_POOL: {
                const bool pools = operation.kind == PENSTOCK_POOL;
                const Buffer &source = buffers_[static_cast<size_t>(operation.source)];
                if (is_head || operation.heads < 1 || operation.head_dim < 2 || operation.head_dim > 1024 ||
                    operation.rope_dim < 2 || operation.rope_dim % 2 || operation.rope_dim > operation.head_dim ||
                    !operation.cos || !operation.sin || operation.source_at < 0 || operation.norm < PENSTOCK_NORM_NONE ||
                    operation.norm > PENSTOCK_NORM_RMS)
                    throw wrong("heads to rotate that this library does not know");
                if (!pools && (!fits(operation.source, operation.source_at, operation.heads * operation.head_dim) ||
                               target.width != operation.heads * operation.head_dim ||
                               (target.layout != PENSTOCK_QUERIES && (target.layout != PENSTOCK_BF16 || operation.heads > 1)) ||
                               (target.layout == PENSTOCK_QUERIES && operation.kv_heads != 1)))
                    throw wrong("heads to rotate that this library does not know");
                if (pools && (source.layout != PENSTOCK_BF16 || operation.target != operation.source || operation.rows < 1 ||
                              operation.groups < 1 || operation.groups > 2 || !operation.positions ||
                              operation.source_at + 2 * operation.groups * operation.head_dim > source.width))
                    throw wrong("entries that this library does not know");
                break;
            }
            case PENSTOCK_KEEP:
                if (is_head || operation.columns < 0 || operation.offset < 0 || operation.offset > 1 ||
                    operation.target != operation.source || target.layout != PENSTOCK_BF16)
                    throw wrong("tokens to keep that this library does not know");
                break;
            case PENSTOCK_COMPRESSED_ATTENTION: {
                const Buffer &queries = buffers_[static_cast<size_t>(operation.source)],
                             &near = buffers_[static_cast<size_t>(operation.second)];
                const int width = operation.heads * operation.head_dim;
                if (is_head || operation.heads < 1 || operation.kv_heads != 1 || operation.head_dim < 2 ||
                    operation.head_dim > 1024 || queries.layout != PENSTOCK_QUERIES || queries.width != width ||
                    near.layout != PENSTOCK_BF16 || near.width != operation.head_dim || target.layout != PENSTOCK_BF16 ||
                    target.width != width || operation.window < 1 || operation.rows < 0 || operation.rope_dim < 2 ||
                    operation.rope_dim % 2 || operation.rope_dim > operation.head_dim || !operation.cos || !operation.sin ||
                    !operation.sinks ||
                    (operation.third >= 0 && (operation.rows < 1 || operation.columns < 1 ||
                                              !fits(operation.third, 0, operation.columns))))
                    throw wrong("compressed attention that this library does not know");
                break;
            }
            case PENSTOCK_WRITE_LATENT: {
                const Buffer &source = buffers_[static_cast<size_t>(operation.source)],
                             &rotated = buffers_[static_cast<size_t>(operation.second)];
                if (is_head || operation.kv_heads != 1 || operation.heads < 1 || operation.value_dim < 1 ||
                    operation.head_dim != operation.value_dim + operation.rope_dim || operation.head_dim > 2048 ||
                    source.layout != PENSTOCK_BF16 || source.width != operation.heads * operation.value_dim ||
                    rotated.layout != PENSTOCK_BF16 || rotated.width % operation.heads ||
                    rotated.width / operation.heads < operation.rope_dim ||
                    !fits(operation.third, 0, operation.head_dim))
                    throw wrong("latents that this library does not know");
                break;
            }
            case PENSTOCK_CHOOSE_FOR_HEADS: {
                const Buffer &queries = buffers_[static_cast<size_t>(operation.source)];
                if (is_head || operation.kv_heads != 1 || operation.heads < 1 || operation.heads > 1024 ||
                    operation.head_dim < 2 || operation.head_dim > 512 || queries.layout != PENSTOCK_QUERIES ||
                    queries.width != operation.heads * operation.head_dim)
                    throw wrong("an index that this library does not know");
                if (operation.window < 1 || operation.columns < 1 || operation.columns % operation.window || operation.rows ||
                    operation.offset < 0 || operation.offset > operation.columns / operation.window ||
                    target.layout != PENSTOCK_F32 || target.width != operation.heads * operation.columns)
                    throw wrong("a choice of keys that this library does not know");
                break;
            }
            case PENSTOCK_WRITE_INDEX:
            case PENSTOCK_CHOOSE: {
                const bool writes = operation.kind == PENSTOCK_WRITE_INDEX;
                const Buffer &queries = writes ? target : buffers_[static_cast<size_t>(operation.source)];
                if (is_head || operation.kv_heads != 1 || operation.heads < 1 || operation.heads > 1024 ||
                    operation.head_dim < 2 || operation.head_dim > 512 || queries.layout != PENSTOCK_QUERIES ||
                    queries.width != operation.heads * operation.head_dim || operation.rope_dim < 0 || operation.rope_dim % 2 ||
                    operation.rope_dim > operation.head_dim ||
                    ((writes || !operation.window) &&
                     !fits(operation.second, std::max(operation.inner_at, 0), operation.heads * (writes ? operation.head_dim : 1))) ||
                    (writes && (operation.source_at < 0 || !fits(operation.source, operation.source_at, operation.head_dim))))
                    throw wrong("an index that this library does not know");
                if (!writes && (operation.columns < 1 || operation.rows < 0 || operation.window < 0 ||
                                (operation.window && (operation.rows || operation.columns < operation.window * 2 - 1 ||
                                                      (operation.columns + 1) % operation.window)) || target.layout != PENSTOCK_F32 || target.width != operation.columns))
                    throw wrong("a choice of keys that this library does not know");
                break;
            }
            case PENSTOCK_WRITE_KV:
            case PENSTOCK_ATTENTION:
                if (is_head) throw wrong("the head does not attend");
                if (operation.kind == PENSTOCK_ATTENTION && operation.second >= 0 &&
                    (operation.columns < 1 || !fits(operation.second, 0, operation.columns) || operation.window))
                    throw wrong("attention to keys that were chosen otherwise");
                if (operation.kind == PENSTOCK_ATTENTION && operation.second >= 0)
                    for (const penstock_operation &other : operations)
                        if (other.kind == PENSTOCK_CHOOSE_FOR_HEADS && other.target == operation.second &&
                            (other.heads != operation.kv_heads || other.columns != operation.columns))
                            throw wrong("attention to keys that were chosen otherwise");
                if (operation.kind == PENSTOCK_ATTENTION &&
                    (operation.sees < PENSTOCK_SEES_BEFORE || operation.sees > PENSTOCK_SEES_READ ||
                     (operation.sees == PENSTOCK_SEES_ROW) != (&operations == &encoder_) ||
                     (operation.sees && (operation.window || operation.second >= 0))))
                    throw wrong("attention to what its tokens do not see");
                if (operation.kind == PENSTOCK_ATTENTION && operation.third >= 0 &&
                    (!operation.norm_weight || operation.second >= 0 || operation.sees || operation.rows < 1 ||
                     operation.rows > kMostSaid || operation.columns < 1 || operation.offset < 0 ||
                     operation.offset >= operation.columns || !fits(operation.third, 0, operation.heads * operation.rows)))
                    throw wrong("what queries say of distances otherwise");
                if (operation.kind == PENSTOCK_ATTENTION && operation.positions && operation.third < 0 &&
                    (operation.second >= 0 || operation.columns < 1 || operation.offset < 0 || operation.offset >= operation.columns))
                    throw wrong("what is added to scores at no distance");
                if (operation.kv_heads < 1 || operation.heads % operation.kv_heads || operation.head_dim < 2 ||
                    operation.head_dim > 2048)
                    throw wrong("heads that this library does not know");
                if (operation.kind == PENSTOCK_WRITE_KV) {
                    const bool is_alone = operation.values == PENSTOCK_VALUES_ALONE;
                    const int of_keys = is_alone || operation.values == PENSTOCK_VALUES_OWN ? 2 : operation.values == PENSTOCK_VALUES_KEYS;
                    if (operation.values < PENSTOCK_VALUES_OWN || operation.values > PENSTOCK_VALUES_ALONE ||
                        operation.value_norm < PENSTOCK_NORM_NONE || operation.value_norm > PENSTOCK_NORM_LAYER ||
                        !fits(operation.source, 0,
                              ((is_alone ? 0 : operation.heads) + of_keys * operation.kv_heads) * operation.head_dim))
                        throw wrong("values of what is not there");
                }
                break;
            default:
                throw wrong("an operation of an unknown kind");
        }
    }
    if (is_head && !operations.empty() &&
        (buffers_[static_cast<size_t>(operations.front().source)].layout != PENSTOCK_EXTERNAL ||
         buffers_[static_cast<size_t>(operations.back().target)].layout != PENSTOCK_EXTERNAL))
        throw wrong("the head's ends are not external");
}

}  // namespace penstock
