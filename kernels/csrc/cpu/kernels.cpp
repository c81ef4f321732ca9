// The operations, for one instruction set: this file is compiled once for each, with PENSTOCK_ISA naming it. It
// includes nothing of the C++ library, whose inline functions other objects would share. A number that a row gets is
// computed by the same function in the same order whatever other rows there are; those that several callers share are
// not inlined, since the compiler may fuse a product and a sum in one copy and not in another.
#include "attention.h"
#include "blocks.h"
#include "compressed.h"
#include "draw.h"
#include "experts.h"
#include "head_blocks.h"
#include "hyper.h"
#include "indexer.h"
#include "kernels.h"
#include "linear.h"
#include "logits.h"
#include "ngrams.h"
#include "norms.h"
#include "quantize.h"
#include "recurrence.h"
#include "streams.h"
#include "token_mix.h"

#define PENSTOCK_JOIN_NAME(a, b) a##b
#define PENSTOCK_NAME_OF(isa) PENSTOCK_JOIN_NAME(kernels_, isa)

namespace {

void begin() {}

void end() {
#if defined(PENSTOCK_AMX)
    asm volatile("tilerelease");  // or the system saves 8 KB with every switch of threads
#endif
}

}  // namespace

namespace penstock {

const Kernels *PENSTOCK_NAME_OF(PENSTOCK_ISA)() {
    static const Kernels kernels = {
        .begin = begin,
        .end = end,
        .embed = embed,
        .norm = norm,
        .sum_ranks = sum_ranks,
        .gated_norm = gated_norm,
        .open = open_gates,
        .quantize = quantize,
        .linear = linear,
        .route = route,
        .group = group,
        .gather = gather,
        .experts = experts,
        .adapt = adapt,
        .write_kv = write_kv,
        .heads = heads_linear,
        .write_latent = write_latent,
        .attention = attention,
        .join_attention = join_attention,
        .write_index = write_index,
        .score = score,
        .choose = choose,
        .score_heads = score_heads,
        .choose_for_heads = choose_for_heads,
        .convolve = convolve,
        .rates = rates,
        .recur = recur,
        .scan = scan,
        .gated_recur = gated_recur,
        .mix_tokens = mix_tokens,
        .weigh_values = weigh_values,
        .update_streams = update_streams,
        .match = match,
        .open_sparsely = open_sparsely,
        .weigh_streams = weigh_streams,
        .mix_streams = mix_streams,
        .add_to_streams = add_to_streams,
        .mix_numbers = mix_numbers,
        .find_rows = find_rows,
        .keep_ids = keep_ids,
        .gate_ngrams = gate_ngrams,
        .write_blocks = write_blocks,
        .complete_blocks = complete_blocks,
        .turn = turn,
        .pool = pool,
        .keep = keep,
        .compressed_attention = compressed_attention,
        .quantize_weight = quantize_weight,
        .summarize = summarize,
        .join_summaries = join_summaries,
        .draw = draw,
    };
    return &kernels;
}

}  // namespace penstock
