// How a program is made: what its operations ask of buffers, where these lie in memory, and the caches and states of its layers.
#include "program.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

namespace penstock {

Memory::Memory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void *made = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) throw std::bad_alloc();
    madvise(made, bytes_, MADV_HUGEPAGE);
    begin_ = static_cast<uint8_t *>(made);
}

Memory::~Memory() {
    if (begin_) munmap(begin_, bytes_);
}

Memory::Memory(Memory &&other) noexcept {
    *this = std::move(other);
}

Memory &Memory::operator=(Memory &&other) noexcept {
    std::swap(begin_, other.begin_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Program::Program(const Kernels &kernels, std::vector<penstock_buffer> buffers, std::vector<penstock_operation> encoder,
                 std::vector<penstock_operation> body, std::vector<penstock_operation> head, int threads)
    : kernels_(kernels),
      encoder_(std::move(encoder)),
      body_(std::move(body)),
      head_(std::move(head)),
      team_(std::max(threads, 1)),
      threads_(std::max(threads, 1)) {
    for (const penstock_buffer &buffer : buffers) {
        Buffer made;
        made.layout = static_cast<penstock_layout>(buffer.layout);
        made.width = buffer.width;
        made.per_token = buffer.rows;
        if (buffer.rows < 1) throw wrong("a buffer without rows");
        buffers_.push_back(made);
    }
    take_narrowed();
    check(encoder_, false);
    check(body_, false);
    check(head_, true);
    int layers = 0;
    std::vector<penstock_operation> of_tokens = encoder_;
    of_tokens.insert(of_tokens.end(), body_.begin(), body_.end());
    for (const penstock_operation &operation : of_tokens) {
        Buffer &source = buffers_[static_cast<size_t>(std::max(operation.source, 0))];
        Buffer &target = buffers_[static_cast<size_t>(operation.target)];
        if (operation.kind != PENSTOCK_EMBED) source.in_body = true;
        if (reads_second(operation)) buffers_[static_cast<size_t>(operation.second)].in_body = true;
        if (reads_third(operation)) buffers_[static_cast<size_t>(operation.third)].in_body = true;
        target.in_body = true;
        if (may_be_own(operation, target)) target.own_offset = 0;
        if (is_product(operation))
            unpacked_bytes_ = std::max(
                unpacked_bytes_, unpacked_columns(static_cast<penstock_format>(operation.format), operation.columns));
        if (operation.kind == PENSTOCK_ADAPT)
            adapters_ = std::max(adapters_, operation.experts);
        else
            experts_ = std::max(experts_, operation.experts), per_token_ = std::max(per_token_, operation.per_token);
        if (operation.kind == PENSTOCK_CONVOLVE || operation.kind == PENSTOCK_RECUR ||
            operation.kind == PENSTOCK_SCAN || operation.kind == PENSTOCK_GATED_RECUR || operation.kind == PENSTOCK_NGRAMS || is_compressed(operation) ||
            mixes_tokens(operation)) {
            has_states_ = true;
            layers = std::max(layers, operation.layer + 1);
        }
        if (operation.kind == PENSTOCK_WRITE_KV || operation.kind == PENSTOCK_WRITE_LATENT ||
            operation.kind == PENSTOCK_ATTENTION) {
            const Heads heads = heads_of(operation);
            Heads &of_queries = (operation.kind == PENSTOCK_ATTENTION ? source : target).heads;
            if (of_queries.kv_heads && (of_queries.kv_heads != heads.kv_heads || of_queries.group != heads.group ||
                                        of_queries.key_dim != heads.key_dim))
                throw wrong("a buffer of queries of heads of several sizes");
            of_queries = heads;
            key_dim_ = std::max(key_dim_, heads.key_dim), value_dim_ = std::max(value_dim_, heads.value_dim);
            layers = std::max(layers, operation.layer + 1);
        }
        const bool is_compressed_attention = operation.kind == PENSTOCK_COMPRESSED_ATTENTION;
        const bool turns_queries = operation.kind == PENSTOCK_TURN && target.layout == PENSTOCK_QUERIES;
        if (operation.kind == PENSTOCK_WRITE_INDEX || operation.kind == PENSTOCK_WRITE_BLOCKS ||
            chooses(operation) || is_compressed_attention || turns_queries) {
            const Heads heads = heads_of(operation);
            if (is_compressed_attention) value_dim_ = std::max(value_dim_, heads.value_dim), gathers_ = true;
            Heads &of_queries =
                (chooses(operation) || is_compressed_attention ? source : target).heads;
            if (of_queries.kv_heads && (of_queries.group != heads.group || of_queries.key_dim != heads.key_dim))
                throw wrong("a buffer of queries of heads of several sizes");
            of_queries = heads;
            key_dim_ = std::max(key_dim_, heads.key_dim);
            layers = std::max(layers, operation.layer + 1);
        }
        if (chooses(operation) &&
            std::none_of(choices_.begin(), choices_.end(), [&](const Choice &one) { return one.is_of(operation); }))
            choices_.push_back({operation.columns, operation.rows, operation.window, Choice::heads_of(operation), {}});
        if (operation.kind == PENSTOCK_REDUCE) {
            const int turn = static_cast<int>(reductions_++ % 2);
            if (source.turn == 1 - turn) throw wrong("sums of ranks do not take turns");
            source.turn = turn;
        }
        if (operation.kind == PENSTOCK_ATTENTION) {
            const bool chunked = operation.chunked != 0;
            const bool known = std::any_of(divisions_.begin(), divisions_.end(), [&](const Division &division) {
                return division.window == operation.window && division.chunked == chunked &&
                       division.group == operation.heads / operation.kv_heads && division.kv_heads == operation.kv_heads &&
                       division.by_token == (operation.second >= 0) && division.sees == operation.sees;
            });
            if (!known)
                divisions_.push_back({operation.window, chunked, operation.heads / operation.kv_heads, operation.kv_heads,
                                      operation.second >= 0, static_cast<penstock_sees>(operation.sees), {}, {}});
        }
    }
    for (const penstock_operation &operation : head_) {
        buffers_[static_cast<size_t>(operation.source)].in_head = true;
        Buffer &target = buffers_[static_cast<size_t>(operation.target)];
        target.in_head = true;
        if (may_be_own(operation, target)) target.own_offset = 0;
        if (is_product(operation))
            unpacked_bytes_ = std::max(
                unpacked_bytes_, unpacked_columns(static_cast<penstock_format>(operation.format), operation.columns));
    }
    // What anyone writes a part of is everyone's.
    for (const std::vector<penstock_operation> *operations : {&of_tokens, &head_})
        for (const penstock_operation &operation : *operations) {
            Buffer &target = buffers_[static_cast<size_t>(operation.target)];
            if (!may_be_own(operation, target)) target.own_offset = -1;
        }
    caches_.resize(static_cast<size_t>(layers));
}

// NARROW computes nothing: it says where the body is cut.
void Program::take_narrowed() {
    const auto narrows = [](const penstock_operation &operation) { return operation.kind == PENSTOCK_NARROW; };
    const auto begin = std::find_if(body_.begin(), body_.end(), narrows);
    const auto end = std::find_if_not(begin, body_.end(), narrows);
    tail_ = static_cast<size_t>(begin - body_.begin());
    if (begin == end) return;
    for (auto at = begin; at != end; ++at) {
        if (at->source < 0 || at->source >= static_cast<int>(buffers_.size()) || at->source != at->target ||
            buffers_[static_cast<size_t>(at->source)].layout != PENSTOCK_F32 ||
            buffers_[static_cast<size_t>(at->source)].per_token != 1)
            throw wrong("what is narrowed is a buffer of fp32");
        narrowed_.push_back(at->source);
    }
    const auto needs_all = [](const penstock_operation &operation) {
        switch (operation.kind) {
            case PENSTOCK_NORM: case PENSTOCK_LINEAR: case PENSTOCK_ATTENTION: case PENSTOCK_QUANTIZE: case PENSTOCK_OPEN:
            case PENSTOCK_PREDICT: case PENSTOCK_CORRECT: case PENSTOCK_MATCH: case PENSTOCK_SPARSE_GATE: case PENSTOCK_ADAPT:
                return false;
            default:
                return operation.kind != PENSTOCK_WRITE_KV || operation.values != PENSTOCK_VALUES_NONE;
        }
    };
    if (!encoder_.empty() || end == body_.end() || std::any_of(end, body_.end(), needs_all))
        throw wrong("behind what is narrowed are layers that every token needs");
    body_.erase(begin, end);
}

// Whether few rows of the target may be computed by every thread for itself: it is only read as a product's source, or
// gathered.
bool Program::may_be_own(const penstock_operation &operation, const Buffer &target) {
    return target.per_token == 1 && ((operation.kind == PENSTOCK_NORM &&
                                      (target.layout == PENSTOCK_BF16 || target.layout == PENSTOCK_BYTES)) ||
                                     operation.kind == PENSTOCK_QUANTIZE);
}

Heads Program::heads_of(const penstock_operation &operation, penstock_cache_format format) {
    Heads heads;
    heads.kv_heads = operation.kv_heads;
    heads.group = operation.heads / operation.kv_heads;
    heads.head_dim = operation.head_dim;
    heads.key_dim = static_cast<int>(round_up(operation.head_dim, PENSTOCK_TILE_INPUTS));
    heads.value_size = operation.value_dim ? operation.value_dim : operation.head_dim;
    heads.value_dim = static_cast<int>(round_up(heads.value_size, 16));
    heads.format = format;
    const int64_t size = format == PENSTOCK_CACHE_BF16 ? 2 : 1, factors = format == PENSTOCK_CACHE_INT8 ? 2 * 4 : 0;
    heads.value_offset = heads.key_dim * size * PENSTOCK_PAGE_TOKENS;
    heads.factors_offset = (heads.key_dim + heads.value_dim) * size * PENSTOCK_PAGE_TOKENS;
    heads.head_bytes = heads.factors_offset + factors * PENSTOCK_PAGE_TOKENS;
    heads.page_bytes = heads.head_bytes * heads.kv_heads;
    return heads;
}

Heads Program::cached_heads(const penstock_operation &operation) const {
    const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
    Heads heads = heads_of(operation, cache.format);
    heads.page_bytes = cache.page_bytes;
    return heads;
}

Heads Program::index_heads(const penstock_operation &operation) const {
    Heads heads = heads_of(operation);
    heads.value_size = heads.value_dim = 0;
    heads.head_bytes = heads.value_offset;
    heads.page_bytes = caches_[static_cast<size_t>(operation.layer)].page_bytes;
    return heads;
}

uint8_t *Program::index_keys(const penstock_operation &operation) const {
    const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
    return cache.pages + cache.index_offset;
}

int64_t Program::lay_out(std::vector<Buffer> &buffers, int64_t tokens, int64_t rows, int64_t longest, int64_t *parts,
                         int64_t *scratch, int64_t *scores) const {
    int64_t end = 0;
    const auto place = [&end](int64_t bytes) {
        const int64_t begin = end;
        end = round_up(end + bytes, kPage);
        return begin;
    };
    for (Buffer &buffer : buffers) {
        if (buffer.layout == PENSTOCK_EXTERNAL) continue;
        const int64_t most = std::max(buffer.in_body ? tokens : 0, buffer.in_head ? rows : 0);
        buffer.rows = round_up(most * buffer.per_token, kRowBlock);
        if (buffer.layout == PENSTOCK_QUERIES) {
            buffer.row_bytes = buffer.heads.key_dim * 2;
            buffer.head_stride = round_up((buffer.rows + 1) * buffer.heads.group + kQueries, 2) * buffer.row_bytes;
            buffer.offset = place(buffer.head_stride * buffer.heads.kv_heads);
            continue;
        }
        buffer.row_bytes = row_bytes_of(buffer);
        if (buffer.layout == PENSTOCK_SHARED) continue;
        buffer.offset = place(buffer.row_bytes * buffer.rows);
        if (buffer.own_offset >= 0) buffer.own_offset = place(buffer.row_bytes * kRowsOfOwn * team_.size());
    }
    int64_t most_parts = 1;
    for (const Division &division : divisions_)
        most_parts = std::max(most_parts, part_count(division, longest) * division.kv_heads);
    *parts = place(most_parts * part_floats(value_dim_) * 4);
    *scores = place(choices_.empty() ? 0 : score_rows() * score_step(longest) * 4);
    *scratch = place(round_up(scratch_bytes(key_dim_, value_dim_, unpacked_bytes_, gathers_ || !choices_.empty()), kPage) * team_.size());
    return end;
}

int64_t Program::score_step(int64_t longest) const {
    int heads = 1;
    for (const Choice &choice : choices_) heads = std::max(heads, choice.heads);
    return heads * score_floats(longest);
}

int64_t Program::row_bytes_of(const Buffer &buffer) const {
    const int64_t width = buffer.layout == PENSTOCK_BF16 ? round_up(buffer.width, PENSTOCK_TILE_INPUTS) * 2
                          : buffer.layout == PENSTOCK_BYTES ? scale_offset(buffer.width)
                                                         : round_up(buffer.width, 16) * 4;
    // A line more than a multiple of 4 KB: else the rows of a block would all be in one set of the first cache. Of bytes it holds
    // the scale.
    return round_up(width, kLine) + kLine;
}

int64_t Program::workspace(int64_t tokens, int64_t rows, int64_t longest) const {
    std::vector<Buffer> buffers = buffers_;
    int64_t parts, scratch, scores;
    int64_t items = 0;
    for (const Division &division : divisions_) items += item_count(division, tokens, longest);
    return lay_out(buffers, tokens, rows, longest, &parts, &scratch, &scores) +
           items * static_cast<int64_t>(sizeof(AttentionItem)) + tokens * 8 * (1 + per_token_) +
           tokens * 4 * static_cast<int64_t>(choices_.size());
}

void Program::reserve(int64_t tokens, int64_t rows, int64_t longest) {
    memory_ = Memory(lay_out(buffers_, tokens, rows, longest, &parts_, &scratch_, &scores_));
    longest_ = longest, most_tokens_ = tokens, most_rows_ = rows;
    token_rows_.assign(static_cast<size_t>(tokens), 0);
    token_positions_.assign(static_cast<size_t>(tokens), 0);
    token_places_.assign(static_cast<size_t>(tokens), 0);
    if (adapters_ > 0) {
        token_adapters_.assign(static_cast<size_t>(tokens), -1);
        adapted_.reserve(static_cast<size_t>(tokens)), adapted_pieces_.reserve(static_cast<size_t>(tokens) + 1);
    }
    if (experts_ > 0) {
        grouped_.tokens.assign(static_cast<size_t>(tokens * per_token_), 0);
        grouped_.weights.assign(static_cast<size_t>(tokens * per_token_), 0.0f);
        grouped_.begins.assign(static_cast<size_t>(experts_ + 2), 0);
        grouped_.active.assign(static_cast<size_t>(experts_), 0);
    }
    reserve_rows();
    for (std::vector<int64_t> *column : {&wanted_slots_, &wanted_first_, &wanted_counts_})
        if (!narrowed_.empty()) column->reserve(static_cast<size_t>(tokens));
    if (has_states_) state_rows_.reserve(static_cast<size_t>(tokens));
    if (!head_.empty()) {
        const int64_t width = buffers_[static_cast<size_t>(head_.back().target)].width;
        summaries_.reserve(static_cast<size_t>(rows * ((width + kSummarized - 1) / kSummarized)));
    }
    for (Choice &choice : choices_) choice.tokens.reserve(static_cast<size_t>(tokens));
    for (Division &division : divisions_) {
        division.items.reserve(static_cast<size_t>(item_count(division, tokens, longest)));
        division.joins.reserve(static_cast<size_t>(4 * team_.size() + 1));
    }
}

// Of a tree every token is a row.
void Program::reserve_rows() {
    for (std::vector<Row> *rows : {&rows_, &whole_rows_, &read_rows_})
        if (rows == &rows_ || !encoder_.empty()) rows->reserve(static_cast<size_t>(tables_ * most_tokens_));
}

void Program::set_cache(int layer, void *pages, int64_t page_bytes, int table, int wanted) {
    if (wanted < PENSTOCK_CACHE_BF16 || wanted > PENSTOCK_CACHE_INT8) throw wrong("a format of a cache that there is not");
    const auto format = static_cast<penstock_cache_format>(wanted);
    if (layer < 0 || layer >= static_cast<int>(caches_.size()) || table < 0) throw wrong("a layer that is not there");
    int64_t held = 0, index = 0, entries = 0;
    for (const std::vector<penstock_operation> *operations : {&encoder_, &body_})
        for (const penstock_operation &operation : *operations) {
            if (operation.layer != layer) continue;
            if (operation.kind == PENSTOCK_ATTENTION) held = std::max(held, heads_of(operation, format).page_bytes);
            if (operation.kind == PENSTOCK_WRITE_INDEX || operation.kind == PENSTOCK_WRITE_BLOCKS)
                index = heads_of(operation).value_offset;
            if (operation.kind == PENSTOCK_POOL)
                entries += PENSTOCK_PAGE_TOKENS / std::gcd(operation.rows, int{PENSTOCK_PAGE_TOKENS}) * operation.head_dim * 2;
        }
    if (std::max(held + index, entries) > page_bytes) throw wrong("pages that are too short for a layer's heads");
    LayerCache &cache = caches_[static_cast<size_t>(layer)];
    cache.pages = static_cast<uint8_t *>(pages), cache.page_bytes = page_bytes, cache.table = table, cache.format = format;
    cache.index_offset = held;
    tables_ = std::max(tables_, table + 1);
    reserve_rows();
}

void Program::set_state(int layer, int state, void *places, int64_t place_bytes) {
    if (layer < 0 || layer >= static_cast<int>(caches_.size()) || state < 0 || state > 3)
        throw wrong("a state that is not there");
    caches_[static_cast<size_t>(layer)].states[state] = {static_cast<uint8_t *>(places), place_bytes};
}

void Program::set_threads(int threads) {
    threads_ = std::clamp(threads, 1, team_.size());
}

uint8_t *Program::buffer(int number, int64_t *row_bytes) const {
    const Buffer &buffer = buffers_.at(static_cast<size_t>(number));
    *row_bytes = buffer.row_bytes;
    return memory_.begin() + buffer.offset;
}

void Program::move(const int64_t *sources, const int64_t *targets, int64_t count) {
    for (const penstock_operation &operation : body_) {
        const bool is_index = operation.kind == PENSTOCK_WRITE_INDEX || operation.kind == PENSTOCK_WRITE_BLOCKS;
        if (operation.kind != PENSTOCK_WRITE_KV && operation.kind != PENSTOCK_WRITE_LATENT && !is_index) continue;
        if (operation.values == PENSTOCK_VALUES_NONE) continue;  // another layer's
        const LayerCache &cache = caches_[static_cast<size_t>(operation.layer)];
        const Heads heads = is_index ? index_heads(operation) : cached_heads(operation);
        uint8_t *pages = is_index ? index_keys(operation) : cache.pages;
        for (int64_t at = cache.table * count; at < (cache.table + 1) * count; at++)
            for (int head = 0; head < heads.kv_heads; head++) {
                const auto page = [&](int64_t place) {
                    return pages + place / PENSTOCK_PAGE_TOKENS * heads.page_bytes + head * heads.head_bytes;
                };
                copy_token(heads, page(sources[at]), sources[at] % PENSTOCK_PAGE_TOKENS, page(targets[at]),
                           targets[at] % PENSTOCK_PAGE_TOKENS);
            }
    }
}

void Program::copy_page(int64_t source, int64_t target) {
    for (size_t layer = 0; layer < caches_.size(); layer++) {
        const LayerCache &cache = caches_[layer];
        // Layers may share their pages.
        const auto is_its = [&](const LayerCache &other) { return other.pages == cache.pages; };
        if (!cache.pages || std::any_of(caches_.begin(), caches_.begin() + static_cast<int64_t>(layer), is_its)) continue;
        std::memmove(cache.pages + target * cache.page_bytes, cache.pages + source * cache.page_bytes, static_cast<size_t>(cache.page_bytes));
    }
}

}  // namespace penstock
