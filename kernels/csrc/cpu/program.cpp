#include "program.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace penstock {

namespace {

static_assert(kShareStep * sizeof(uint32_t) == Team::kShareBytes);

constexpr int kReadAtOnce = 8;
std::invalid_argument wrong(const std::string &what) {
    return std::invalid_argument(what);
}

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
            case PENSTOCK_PREDICT: case PENSTOCK_CORRECT: case PENSTOCK_MATCH: case PENSTOCK_SPARSE_GATE:
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

uint8_t *Program::at(int number, int member, int64_t rows) const {
    const Buffer &buffer = buffers_[static_cast<size_t>(number)];
    if (buffer.layout == PENSTOCK_EXTERNAL || buffer.layout == PENSTOCK_SHARED) return buffer.external;
    if (buffer.own_offset >= 0 && rows <= kRowsOfOwn)
        return memory_.begin() + buffer.own_offset + member * kRowsOfOwn * buffer.row_bytes;
    return memory_.begin() + buffer.offset;
}

uint8_t *Program::buffer(int number, int64_t *row_bytes) const {
    const Buffer &buffer = buffers_.at(static_cast<size_t>(number));
    *row_bytes = buffer.row_bytes;
    return memory_.begin() + buffer.offset;
}

void Program::step(const penstock_step &step) {
    pass(body_, step, false);
}

void Program::step(const penstock_step &step, const std::vector<int64_t> &tokens, float *logits, int64_t stride) {
    this->step(step);
    const auto count = static_cast<int64_t>(tokens.size());
    if (count == 0) return;
    const Buffer &hidden = buffers_.front();
    const auto *rows = reinterpret_cast<const float *>(at(0, 0, step.tokens));
    const int64_t row = hidden.row_bytes / 4;
    if (count == step.tokens) return head(rows, row, count, logits, stride);
    sampled_.resize(static_cast<size_t>(count * hidden.width));
    for (int64_t i = 0; i < count; i++) std::copy_n(rows + tokens[static_cast<size_t>(i)] * row, hidden.width, sampled_.data() + i * hidden.width);
    head(sampled_.data(), hidden.width, count, logits, stride);
}

void Program::read(const penstock_step &step) {
    if (encoder_.empty() || step.encoded) throw wrong("an input of what has no encoder, or of its decoder");
    for (int64_t row = 0; row < step.rows; row++)
        if (step.first[row] != 0) throw wrong("a part of what an encoder reads");
    pass(encoder_, step, true);
}

void Program::pass(const std::vector<penstock_operation> &operations, const penstock_step &step, bool is_encoder) {
    if (!memory_.begin()) throw wrong("step before reserve");
    const auto reads = [](const Division &division) { return division.sees == PENSTOCK_SEES_READ; };
    if (!is_encoder && !step.encoded && std::any_of(divisions_.begin(), divisions_.end(), reads))
        throw wrong("a step that does not say what encoders have read");
    if (step.tokens < 1 || step.tokens > most_tokens_ || step.rows > step.tokens)
        throw wrong("a step of more tokens than were reserved");
    bool is_cut = false;
    // Paths of trees name tokens of the whole step: such a step is not cut.
    if (!is_encoder && !narrowed_.empty() && step.wanted && !step.positions)
        for (int64_t row = 0; row < step.rows; row++) {
            if (step.wanted[row] < 0 || step.wanted[row] > step.counts[row]) throw wrong("a row wants tokens that it has not");
            is_cut |= step.wanted[row] < step.counts[row];
        }
    note(step, is_encoder);
    if (has_states_) note_states(step);
    if (reductions_ > 0) place_shared();
    now_ = &step;
    run(operations, 0, is_cut ? tail_ : operations.size(), step.tokens);
    if (is_cut && !is_lost_) pass_wanted(step);
    now_ = nullptr;
    if (is_lost_) throw_lost();
}

void Program::note(const penstock_step &step, bool is_encoder) {
    note_rows(step);
    note_seen(step);
    for (Division &division : divisions_)
        if ((division.sees == PENSTOCK_SEES_ROW) == is_encoder) divide(division);
    note_choices(step);
}

void Program::pass_wanted(const penstock_step &step) {
    for (std::vector<int64_t> *column : {&wanted_slots_, &wanted_first_, &wanted_counts_}) column->clear();
    int64_t tokens = 0, end = 0;
    for (int64_t row = 0; row < step.rows; row++) {
        const int64_t wanted = step.wanted[row];
        end += step.counts[row];
        if (wanted == 0) continue;
        for (const int buffer : narrowed_) move_rows(buffer, end - wanted, tokens, wanted);
        wanted_slots_.push_back(step.slots[row]);
        wanted_first_.push_back(step.first[row] + step.counts[row] - wanted);
        wanted_counts_.push_back(wanted);
        tokens += wanted;
    }
    if (tokens == 0) return;
    penstock_step narrow = {};
    narrow.rows = static_cast<int64_t>(wanted_slots_.size()), narrow.tokens = tokens;
    narrow.slots = wanted_slots_.data(), narrow.first = wanted_first_.data(), narrow.counts = wanted_counts_.data();
    narrow.pages = step.pages, narrow.max_slots = step.max_slots, narrow.width = step.width;
    note(narrow, false);
    now_ = &narrow;
    run(body_, tail_, body_.size(), tokens);
    // Hidden states to where the step has their tokens: from the last on, since none is moved ahead.
    for (int64_t row = step.rows - 1; row >= 0; row--) {
        tokens -= step.wanted[row];
        move_rows(0, tokens, end - step.wanted[row], step.wanted[row]);
        end -= step.counts[row];
    }
}

void Program::move_rows(int number, int64_t from, int64_t to, int64_t count) {
    const Buffer &buffer = buffers_[static_cast<size_t>(number)];
    uint8_t *begin = memory_.begin() + buffer.offset;
    std::memmove(begin + to * buffer.row_bytes, begin + from * buffer.row_bytes, static_cast<size_t>(count * buffer.row_bytes));
}

void Program::note_rows(const penstock_step &step) {
    const auto is_tree = [&step](int64_t row, int64_t token) {
        if (!step.positions) return false;
        for (int64_t i = 0; i < step.counts[row]; i++)
            if (step.positions[token + i] != step.first[row] + i) return true;
        return false;
    };
    row_count_ = 0;
    int64_t token = 0;
    for (int64_t row = 0; row < step.rows; row++) {
        if (token + step.counts[row] > step.tokens) throw wrong("a step's rows have more tokens than the step");
        row_count_ += is_tree(row, token) ? step.counts[row] : 1;
        token += step.counts[row];
    }
    if (token != step.tokens) throw wrong("a step's rows have fewer tokens than the step");
    if (has_states_ && row_count_ != step.rows) throw wrong("a tree of tokens, and states that cannot be rewound");
    rows_.resize(static_cast<size_t>(tables_ * row_count_));
    int64_t here = 0, move = 0;
    token = 0;
    for (int64_t row = 0; row < step.rows; row++) {
        const int64_t read = step.encoded ? step.encoded[step.slots[row]] : 0;
        const int64_t begin_of_part = round_up(read, PENSTOCK_PAGE_TOKENS);
        const int64_t first = step.first[row] - begin_of_part, count = step.counts[row];
        if (first < 0 || (step.encoded && read < 1)) throw wrong("a row of a decoder before its part of the sequence");
        const bool tree = is_tree(row, token);
        for (int64_t i = 0; i < count; i++, token++) {
            const int64_t position = tree ? step.positions[token] : first + i, begin = move;
            token_positions_[static_cast<size_t>(token)] = static_cast<int32_t>(position);
            token_places_[static_cast<size_t>(token)] = static_cast<int32_t>(first + i);
            if (position < first || position > first + i || (tree && position - first > kLongestPath))
                throw wrong("a token of a tree with no path to it");
            for (; move < step.moves && step.moved[3 * move] == token; move++)
                for (int64_t at = 1; at <= 2; at++)
                    if (!tree || step.moved[3 * move + at] < first || step.moved[3 * move + at] > first + i)
                        throw wrong("a path of tokens that are not its row's");
            if (i == 0 || tree) {
                for (int table = 0; table < tables_; table++)
                    rows_[static_cast<size_t>(table * row_count_ + here)] = {
                        token, tree ? 1 : count, position,
                        step.pages + (table * step.max_slots + step.slots[row]) * step.width +
                            begin_of_part / PENSTOCK_PAGE_TOKENS,
                        step.moved + 3 * begin, move - begin};
                here++;
            }
            token_rows_[static_cast<size_t>(token)] = static_cast<int32_t>(here - 1);
        }
    }
    if (move != step.moves) throw wrong("a path of tokens that are not its row's");
}

void Program::note_seen(const penstock_step &step) {
    if (!encoder_.empty() && !step.encoded) {
        whole_rows_ = rows_;
        for (Row &row : whole_rows_) row.seen = row.count;
    }
    if (!step.encoded) return;
    if (row_count_ != step.rows) throw wrong("a tree of tokens behind what an encoder has read");
    read_rows_ = rows_;
    for (int table = 0; table < tables_; table++)
        for (int64_t row = 0; row < row_count_; row++) {
            Row &here = read_rows_[static_cast<size_t>(table * row_count_ + row)];
            here.seen = step.encoded[step.slots[row]];
            here.pages -= round_up(here.seen, PENSTOCK_PAGE_TOKENS) / PENSTOCK_PAGE_TOKENS;
        }
}

const Row *Program::rows_that_see(penstock_sees sees, int table) const {
    const std::vector<Row> &rows = sees == PENSTOCK_SEES_ROW    ? whole_rows_
                                   : sees == PENSTOCK_SEES_READ ? read_rows_
                                                                : rows_;
    return rows.data() + table * row_count_;
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

void Program::note_states(const penstock_step &step) {
    state_rows_.resize(static_cast<size_t>(step.rows));
    int64_t save = 0;
    for (int64_t row = 0; row < step.rows; row++) {
        const Row &here = rows_[static_cast<size_t>(row)];
        const int64_t first = save;
        int64_t last = 0;
        for (; save < step.saved && step.saves[3 * save] == row; save++) {
            const int64_t tokens = step.saves[3 * save + 1];
            if (tokens < std::max<int64_t>(last, 1) || tokens > here.count)
                throw wrong("a state is to be copied where its row is not");
            last = tokens;
        }
        state_rows_[static_cast<size_t>(row)] = {here.first_token, here.count, step.places[row], step.saves + 3 * first,
                                                 save - first};
    }
    if (save != step.saved) throw wrong("a state is to be copied where its row is not");
}

void Program::head(const float *source, int64_t source_stride, int64_t rows, float *target, int64_t target_stride) {
    if (!memory_.begin()) throw wrong("head before reserve");
    if (head_.empty() || rows < 1 || rows > most_rows_) throw wrong("a head call of more rows than were reserved");
    Buffer &in = buffers_[static_cast<size_t>(head_.front().source)];
    Buffer &out = buffers_[static_cast<size_t>(head_.back().target)];
    in.external = reinterpret_cast<uint8_t *>(const_cast<float *>(source)), in.row_bytes = source_stride * 4;
    if (ranks_) return head_of_ranks(rows, target, target_stride);
    out.external = reinterpret_cast<uint8_t *>(target), out.row_bytes = target_stride * 4;
    run(head_, 0, head_.size(), rows);
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
        case PENSTOCK_EXPERTS: {
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
                                     buffers_[static_cast<size_t>(operation.source)].width};
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

const uint8_t *Program::column(int buffer, int column, int member, int64_t rows) const {
    return column < 0 ? nullptr : at(buffer, member, rows) + column * 4;
}

Groups Program::groups() {
    return {grouped_.tokens.data(), grouped_.weights.data(),  grouped_.begins.data(),
            grouped_.active.data(), &grouped_.active_count, &grouped_.most};
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

}  // namespace penstock
