// A program: its operations, the memory of its buffers, and a step over it by a team of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "penstock_cpu.h"
#include "ranks.h"
#include "team.h"

namespace penstock {

// Rows up to which a norm is computed by every thread for itself, into memory of its own: that is shorter than a
// barrier.
constexpr int64_t kRowsOfOwn = 4;

// What operations, steps and callers are refused with that contradict themselves; one line.
inline std::invalid_argument wrong(const std::string &what) {
    return std::invalid_argument(what);
}

// Of the first cache, and of memory.
constexpr int64_t kLine = 64, kPage = 4096;

// Pages of zeros from the system, given back in the end.
class Memory {
public:
    Memory() = default;
    explicit Memory(int64_t bytes);  // throws std::bad_alloc
    ~Memory();
    Memory(Memory &&other) noexcept;
    Memory &operator=(Memory &&other) noexcept;
    uint8_t *begin() const { return begin_; }

private:
    uint8_t *begin_ = nullptr;
    size_t bytes_ = 0;
};

// Whether an operation is a product with weights, and whether it reads a second buffer, and a third.
inline bool is_product(const penstock_operation &operation) {
    return operation.kind == PENSTOCK_LINEAR || operation.kind == PENSTOCK_EXPERTS ||
           operation.kind == PENSTOCK_HEADS || operation.kind == PENSTOCK_ADAPT;
}

inline bool reads_third(const penstock_operation &operation) {
    return operation.kind == PENSTOCK_WRITE_LATENT || operation.kind == PENSTOCK_SCAN ||
           operation.kind == PENSTOCK_CORRECT || operation.kind == PENSTOCK_WEIGH_VALUES ||
           ((operation.kind == PENSTOCK_RATES || operation.kind == PENSTOCK_COMPRESSED_ATTENTION ||
             operation.kind == PENSTOCK_HYPER_MIX || operation.kind == PENSTOCK_ATTENTION) && operation.third >= 0);
}

inline bool reads_second(const penstock_operation &operation) {
    return operation.kind == PENSTOCK_GATED_NORM || operation.kind == PENSTOCK_RECUR ||
           operation.kind == PENSTOCK_WRITE_LATENT || operation.kind == PENSTOCK_SCAN ||
           operation.kind == PENSTOCK_GATED_RECUR || operation.kind == PENSTOCK_PREDICT ||
           operation.kind == PENSTOCK_CORRECT || operation.kind == PENSTOCK_MATCH || (operation.kind == PENSTOCK_RATES && operation.heads > 0) ||
           operation.kind == PENSTOCK_WRITE_INDEX || (operation.kind == PENSTOCK_CHOOSE && !operation.window) ||
           operation.kind == PENSTOCK_HYPER_READ || operation.kind == PENSTOCK_HYPER_ADD ||
           operation.kind == PENSTOCK_COMPRESSED_ATTENTION || operation.kind == PENSTOCK_HYPER_MIX ||
           operation.kind == PENSTOCK_NGRAM_GATE || operation.kind == PENSTOCK_WEIGH_VALUES ||
           ((operation.kind == PENSTOCK_ATTENTION || operation.kind == PENSTOCK_LINEAR) && operation.second >= 0);
}

inline bool chooses(const penstock_operation &operation) {
    return operation.kind == PENSTOCK_CHOOSE || operation.kind == PENSTOCK_CHOOSE_FOR_HEADS;
}

inline bool mixes_tokens(const penstock_operation &operation) {
    return operation.kind == PENSTOCK_MIX_TOKENS || operation.kind == PENSTOCK_WEIGH_VALUES;
}

inline bool is_compressed(const penstock_operation &operation) {
    return operation.kind == PENSTOCK_TURN || operation.kind == PENSTOCK_POOL || operation.kind == PENSTOCK_KEEP ||
           operation.kind == PENSTOCK_COMPRESSED_ATTENTION;
}

class Program {
public:
    // Throws std::invalid_argument with one line where the operations contradict each other.
    Program(const Kernels &kernels, std::vector<penstock_buffer> buffers, std::vector<penstock_operation> encoder,
            std::vector<penstock_operation> body, std::vector<penstock_operation> head, int threads);

    int64_t workspace(int64_t tokens, int64_t rows, int64_t longest) const;
    void reserve(int64_t tokens, int64_t rows, int64_t longest);
    int64_t shared_bytes(int64_t tokens, int64_t rows, int ranks) const;
    void share(uint8_t *memory, int64_t tokens, int64_t rows, int rank, std::vector<int> sockets, int64_t columns);
    void set_cache(int layer, void *pages, int64_t page_bytes, int table, int wanted);
    void set_state(int layer, int state, void *places, int64_t place_bytes);
    void set_threads(int threads);
    void set_adapters(const int32_t *of_slots) { adapters_of_slots_ = of_slots; }

    void step(const penstock_step &step);
    // And the head, on the hidden states of some of its tokens, ascending; or of none.
    void step(const penstock_step &step, const std::vector<int64_t> &tokens, float *logits, int64_t stride);
    void read(const penstock_step &step);
    void move(const int64_t *sources, const int64_t *targets, int64_t count);
    // Copies what every layer has in a page to another one.
    void copy_page(int64_t source, int64_t target);
    void head(const float *source, int64_t source_stride, int64_t rows, float *target, int64_t target_stride);
    void tell(void *numbers, int64_t bytes);

    void summarize(const float *logits, int64_t stride, int64_t rows, int64_t columns, const RowMasks &masks,
                   int64_t *tokens, float *largest, float *totals);

    void decode(const penstock_step &step, float *logits, int64_t stride, int64_t columns, int64_t *tokens, float *largest,
                float *totals, const penstock_draws *draws);

    void choose(const float *logits, int64_t stride, int64_t rows, int64_t columns, const RowMasks &masks, int64_t *tokens,
                float *largest, float *totals, const penstock_draws *draws);

    // The rest of a choice behind a summary, whose tokens are those of rows that are not drawn: draws, and tells other ranks.
    void finish_choice(const float *logits, int64_t stride, int64_t rows, int64_t columns, int64_t *tokens, const penstock_draws *draws);

    void draw(const float *logits, int64_t stride, int64_t columns, const penstock_draws &draws);

    uint8_t *buffer(int number, int64_t *row_bytes) const;

private:
    struct Buffer {
        penstock_layout layout;
        int width;
        int per_token = 1;  // rows
        int64_t row_bytes = 0, rows = 0, head_stride = 0;
        int64_t offset = 0;       // in the workspace
        int64_t own_offset = -1;  // where each thread has kRowsOfOwn rows of its own; -1: it has none
        bool in_body = false, in_head = false;
        Heads heads = {};  // of queries
        uint8_t *external = nullptr;
        int turn = -1;  // of a shared one: whether sums read it that are even or odd in their order
    };

    // How the queries of a step are divided, of layers that look as far back.
    struct Division {
        int window;
        bool chunked;
        int group, kv_heads;
        bool by_token;  // where tokens attend to keys that they have chosen
        penstock_sees sees;
        std::vector<AttentionItem> items;
        std::vector<AttentionJoin> joins;
    };

    struct LayerCache {
        uint8_t *pages = nullptr;
        int64_t page_bytes = 0;
        int table = 0;
        penstock_cache_format format = PENSTOCK_CACHE_BF16;
        int64_t index_offset = 0;  // of index keys in a page
        States states[4] = {};  // of a convolution, and of heads; of n-grams two more
    };

    // Of a step's tokens by their experts: written by one ROUTE, and read by what follows it.
    struct Grouped {
        std::vector<int32_t> tokens, begins, active;
        std::vector<float> weights;
        int32_t active_count = 0, most = 0;
    };

    // Tokens of a step that see more keys than so many, of which an index chooses: each of a token, of an entry of `rate` tokens, or of a block.
    struct Choice {
        int columns, rate, block;
        int heads;  // that choose each for itself; 0: they choose together
        int most() const { return block && !heads ? (columns + 1) / block - 1 : columns; }
        int tokens_of_one() const { return heads ? 1 : rate ? rate : block ? block : 1; }
        bool is_of(const penstock_operation &operation) const {
            return columns == operation.columns && rate == operation.rows && block == operation.window && heads == heads_of(operation);
        }
        static int heads_of(const penstock_operation &operation) {
            return operation.kind == PENSTOCK_CHOOSE_FOR_HEADS ? operation.heads : 0;
        }
        std::vector<int32_t> tokens;
        int64_t splits = 0;  // of the keys of the one that sees the most
    };

    // What a rank's memory holds, in bytes from its beginning.
    struct SharedPlaces {
        int64_t regions[2], told[2], logits, end;
    };

    static Heads heads_of(const penstock_operation &operation, penstock_cache_format format = PENSTOCK_CACHE_BF16);
    // The same with the format and the stride of the layer's pages.
    Heads cached_heads(const penstock_operation &operation) const;
    // The heads of an index, as the layer's pages have its keys.
    Heads index_heads(const penstock_operation &operation) const;
    uint8_t *index_keys(const penstock_operation &operation) const;
    void reserve_rows();
    int64_t lay_out(std::vector<Buffer> &buffers, int64_t tokens, int64_t rows, int64_t longest, int64_t *parts,
                    int64_t *scratch, int64_t *scores) const;
    // Tokens whose scores are in memory at once.
    int64_t score_rows() const { return 2 * team_.size(); }
    static int64_t score_floats(int64_t longest) { return round_up(longest + PENSTOCK_PAGE_TOKENS, kSplit); }
    // Of one token, whose heads may have scores each.
    int64_t score_step(int64_t longest) const;
    int64_t part_count(const Division &division, int64_t longest) const;
    int64_t item_count(const Division &division, int64_t tokens, int64_t longest) const;
    static bool may_be_own(const penstock_operation &operation, const Buffer &target);
    int64_t row_bytes_of(const Buffer &buffer) const;
    SharedPlaces shared_places(int64_t tokens, int64_t rows) const;
    [[noreturn]] static void throw_lost();
    // Throws RankLost.
    void meet();
    void place_shared();
    void head_of_ranks(int64_t rows, float *target, int64_t target_stride);
    void check(const std::vector<penstock_operation> &operations, bool is_head) const;
    void divide(Division &division);
    // Of a table, as attention that sees so much has them.
    const Row *rows_that_see(penstock_sees sees, int table) const;
    void take_narrowed();
    void pass(const std::vector<penstock_operation> &operations, const penstock_step &step, bool is_encoder);
    // What operations read of a step's rows.
    void note(const penstock_step &step, bool is_encoder);
    // The body from tail_ on, of wanted tokens alone.
    void pass_wanted(const penstock_step &step);
    // Rows of a buffer of fp32 from one token to another.
    void move_rows(int buffer, int64_t from, int64_t to, int64_t count);
    uint8_t *at(int buffer, int member, int64_t rows) const;
    // Operations from `begin` up to `end`.
    void run(const std::vector<penstock_operation> &operations, size_t begin, size_t end, int64_t rows);
    void execute(const std::vector<penstock_operation> &operations, size_t begin, size_t end, int64_t rows, int member);
    // Whether what follows must wait for all threads.
    bool compute(const penstock_operation &operation, int64_t rows, int member);
    void attend(const penstock_operation &operation, const Work &work);
    // Of what is read, the first token's number in a column; none where the column is -1.
    const uint8_t *column(int buffer, int column, int member, int64_t rows) const;
    Groups groups();
    void recur(const penstock_operation &operation, const Work &work);
    void update_streams(const penstock_operation &operation, const Work &work);
    void write_latent(const penstock_operation &operation, const Work &work);
    void write_index(const penstock_operation &operation, const Work &work);
    void choose(const penstock_operation &operation, const Work &work);
    const Choice &choice_of(const penstock_operation &operation) const;
    void find_ngrams(const penstock_operation &operation, const Work &work);
    void write_blocks(const penstock_operation &operation, const Work &work);
    void attend_to_entries(const penstock_operation &operation, const Work &work);
    // What a layer's operation reads of a step's tokens and of those before them.
    Past past_of(const penstock_operation &operation, int buffer, int state, int64_t kept) const;
    TurnArgs turn_of(const penstock_operation &operation) const;
    void note_choices(const penstock_step &step);
    void note_rows(const penstock_step &step);
    void note_seen(const penstock_step &step);
    void note_states(const penstock_step &step);
    void note_adapters(const penstock_step &step);

    const Kernels &kernels_;
    std::vector<Buffer> buffers_;
    std::vector<penstock_operation> encoder_, body_, head_;
    // From here on the body needs wanted tokens alone, and of these the rows of `narrowed_`. Without such operations its end.
    size_t tail_ = 0;
    std::vector<int> narrowed_;
    std::vector<Division> divisions_;
    std::vector<Choice> choices_;
    std::vector<LayerCache> caches_;
    int tables_ = 1;
    int key_dim_ = 32, value_dim_ = 32;
    int64_t unpacked_bytes_ = 0;  // most of a weight of 4 bits
    int experts_ = 0, per_token_ = 0;
    int adapters_ = 0;
    bool has_states_ = false, gathers_ = false;  // gathers_: keys are copied
    Team team_;
    int threads_;

    Memory memory_;
    int64_t parts_ = 0, scratch_ = 0, scores_ = 0, longest_ = 0, most_tokens_ = 0, most_rows_ = 0;
    const penstock_step *now_ = nullptr;
    // (tables, row_count_): the step's rows as attention sees them. Each token of a tree is one.
    std::vector<Row> rows_;
    // The same rows where all tokens of a row see each other, and where they see what an encoder has read.
    std::vector<Row> whole_rows_, read_rows_;
    int64_t row_count_ = 0;
    std::vector<StateRow> state_rows_;
    std::vector<int32_t> token_rows_, token_positions_, token_places_;
    const int32_t *adapters_of_slots_ = nullptr;
    std::vector<int32_t> token_adapters_;  // -1: none
    std::vector<AdaptedTokens> adapted_;  // by adapter
    std::vector<int64_t> adapted_pieces_;
    std::vector<float> sampled_;  // hidden states that the head reads, where they are not one behind the other
    std::vector<int64_t> wanted_slots_, wanted_first_, wanted_counts_;
    Grouped grouped_;
    std::vector<Summary> summaries_;
    // Where the model is divided over ranks.
    std::unique_ptr<Ranks> ranks_;
    SharedPlaces places_ = {};
    int64_t reduced_ = 0, told_ = 0;   // how often all steps have summed up and told
    int64_t reductions_ = 0;           // of a step
    int64_t logits_columns_ = 0;       // of all ranks
    uint32_t met_at_head_ = 0;
    bool is_lost_ = false;
    Memory draw_memory_;
    int64_t draw_columns_ = 0;  // that it is for
};

}  // namespace penstock
