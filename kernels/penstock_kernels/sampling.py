"""Choosing tokens from logits, for all rows at once.

Letters: S rows, V vocabulary, R rows of penalty counts, C candidates of a row, M pairs of a row and a token. Every
result for a row depends on that row alone: ties are kept together or broken by the lower token id, never by the order
of a sort.
"""

import numpy as np
import numpy.typing as npt

from penstock_kernels.draws import LogitsSummary, RowMasks
from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import Tensor, torch

# Alternatives looked at before the whole vocabulary is sorted: enough for nearly every top-k and top-p.
SHORTLIST = 1024


def count_tokens(
    counts_RV: Tensor, rows_S: Tensor, tokens_S: Tensor, counted_S: Tensor | None = None
) -> None:
    """Adds one to counts[row, token] for each pair, in place; the same pair may come more than once.

    counts (R, V) int32; rows and tokens (S,) int64; counted (S,) bool, which pairs count, None: all.
    """
    if counted_S is None:
        counted_S = torch.ones_like(tokens_S, dtype=torch.bool)
    counts_RV.index_put_((rows_S, tokens_S), counted_S.to(counts_RV.dtype), accumulate=True)


def accept_drafts(
    sampled_S: Tensor, drafts_S: Tensor, firsts_R: Tensor, counts_R: Tensor, most: int
) -> Tensor:
    """How many drafts of each row agree with what was sampled, up to the first that does not: (R,) int64.

    sampled (S,) int64: row r has the `counts[r]` samples from `firsts[r]` on, one more than drafts, and none has more
    than `most`. drafts (S,) int64: the token that was guessed in each sample's place; any for a row's last.
    """
    offsets_N = torch.arange(most - 1, device=sampled_S.device)
    is_draft_RN = offsets_N < (counts_R - 1).unsqueeze(1)
    samples_RN = (firsts_R.unsqueeze(1) + offsets_N).clamp(max=len(sampled_S) - 1)
    agrees_RN = (sampled_S == drafts_S)[samples_RN] & is_draft_RN
    return agrees_RN.to(torch.int64).cumprod(1).sum(1)


def accept_draft_trees(sampled_S: Tensor, fed_S: Tensor, parents_S: Tensor, deepest: int) -> Tensor:
    """Which samples are behind accepted drafts, or behind none: (S,) bool.

    sampled (S,) int64; fed (S,) int64: the token that each sample follows; parents (S,) int64: the sample in whose place
    that token was guessed, -1 where it is no draft. No draft has more than `deepest` - 1 before it. Of one parent no two drafts
    may be the same token: then each row has one path of them.
    """
    is_first_S = parents_S < 0
    before_S = parents_S.clamp(min=0)
    agrees_S = sampled_S[before_S] == fed_S
    kept_S = is_first_S
    for _ in range(deepest):
        kept_S = is_first_S | (agrees_S & kept_S[before_S])
    return kept_S


def penalize(
    logits_SV: Tensor,
    prompt_SV: Tensor,
    output_SV: Tensor,
    repetition_S1: Tensor,
    frequency_S1: Tensor,
    presence_S1: Tensor,
) -> Tensor:
    """Logits after repetition, frequency and presence penalties.

    prompt and output (S, V) int32: how often each token occurs in the prompt and in the output. The
    repetition penalty divides positive and multiplies negative logits of tokens that occur in either
    (Keskar et al., "CTRL", 2019, as in Hugging Face transformers), and none becomes infinite, which would forbid or
    force its token; the other two are OpenAI's, over the output: count * frequency + (count > 0) * presence is
    subtracted. Returns (S, V) fp32.
    """
    seen_SV = (prompt_SV + output_SV) > 0
    repeated_SV = torch.where(logits_SV > 0, logits_SV / repetition_S1, logits_SV * repetition_S1)
    largest = torch.finfo(logits_SV.dtype).max
    repeated_SV = torch.where(logits_SV.isinf(), logits_SV, repeated_SV.clamp(-largest, largest))
    logits_SV = torch.where(seen_SV, repeated_SV, logits_SV)
    return logits_SV - output_SV * frequency_S1 - (output_SV > 0) * presence_S1


def add_bias(logits_SV: Tensor, rows_M: Tensor, tokens_M: Tensor, biases_M: Tensor) -> Tensor:
    """Logits with each bias added to logits[row, token].

    rows and tokens (M,) int64, biases (M,) fp32. A bias of -inf forbids its token, one of +inf forces it:
    of a row with forced tokens all others are forbidden, and the forced ones are equally likely.
    """
    logits_SV = logits_SV.index_put((rows_M, tokens_M), biases_M, accumulate=True)
    forced_SV = logits_SV == torch.inf
    only_forced_SV = torch.where(forced_SV, 0.0, -torch.inf)
    return torch.where(forced_SV.any(-1, keepdim=True), only_forced_SV, logits_SV)


def mask_tokens(logits_SV: Tensor, words_SW: Tensor) -> Tensor:
    """Logits with those of tokens whose bit is not set at -inf.

    words (S, W) int32, W = ceil(V / 32): token t has bit t % 32 of word t // 32, the lowest first.
    """
    vocabulary = logits_SV.shape[1]
    if words_SW.device.type == "cpu":
        bits_SV = torch.from_numpy(np.unpackbits(words_SW.numpy().view(np.uint8), axis=1, bitorder="little"))
    else:
        places_32 = torch.arange(32, dtype=torch.int32, device=words_SW.device)
        bits_SV = ((words_SW.unsqueeze(-1) >> places_32) & 1).flatten(1)
    return logits_SV.masked_fill(bits_SV[:, :vocabulary] == 0, -torch.inf)


def mix(x: Tensor) -> Tensor:
    """A bijection of int32 onto itself whose high bits depend on all bits of x.

    The two multiplications of MurmurHash3's 32-bit finaliser (Appleby), with the shift between them.
    """
    x = x * -2048144789
    x = x ^ ((x >> 13) & 0x7FFFF)
    return x * -1028477387


def green_tokens(previous_S: Tensor, vocabulary: int, greens: int) -> Tensor:
    """Which tokens are green after each of these: (S, V) bool, exactly `greens` in each row.

    previous (S,) int64. Kirchenbauer et al., "A Watermark for Large Language Models", 2023: the token
    before seeds the partition of the vocabulary. Here it is the key of a bijection, under which the lowest
    are green: the same on every device, and for the whole batch at once, without a generator for each row.
    """
    tokens_V = mix(torch.arange(vocabulary, dtype=torch.int32, device=previous_S.device))
    keys_S1 = mix(mix(previous_S.to(torch.int32) ^ 0x3C6EF372)).unsqueeze(1)
    order_SV = mix(tokens_V ^ keys_S1)
    return order_SV <= order_SV.kthvalue(greens, dim=-1, keepdim=True).values


def add_watermark(
    logits_SV: Tensor, previous_S: Tensor, greens_S: npt.NDArray[np.int64], deltas_S1: Tensor
) -> Tensor:
    """Logits with each row's delta added to its green tokens; `greens` is their number in each row.

    logits (S, V) fp32, previous (S,) int64, greens on the host, deltas (S, 1) fp32. See `green_tokens`.
    """
    sizes = np.unique(greens_S)
    if len(sizes) == 1:  # what one server gives all its rows
        green_SV = green_tokens(previous_S, logits_SV.shape[1], int(sizes[0]))
        return logits_SV + green_SV * deltas_S1
    marked_SV = logits_SV.clone()
    for size in sizes:
        rows = torch.from_numpy(np.flatnonzero(greens_S == size)).to(logits_SV.device, non_blocking=True)
        green_SV = green_tokens(previous_S.index_select(0, rows), logits_SV.shape[1], int(size))
        some_SV = logits_SV.index_select(0, rows) + green_SV * deltas_S1.index_select(0, rows)
        marked_SV.index_copy_(0, rows, some_SV)
    return marked_SV


def keep_largest(
    logits_SV: Tensor, top_k_S: Tensor | None, top_p_S: Tensor | None, min_p_S: Tensor | None
) -> Tensor:
    """Logits with all but the most likely tokens at -inf: top-k, then top-p, then min-p.

    top_k (S,) int64, V or more: off; top_p (S,) fp32, 1: off (Holtzman et al., 2020): the fewest tokens
    that reach the mass, of what top-k left; min_p (S,) fp32, 0: off (Nguyen et al., 2024): tokens at
    least that fraction as likely as the likeliest. None: off for all rows. Each is a threshold on the logit, so tokens that tie
    with the last one kept are kept too.
    """
    if usable(logits_SV):
        from penstock_kernels.gpu import sampling

        return sampling.keep_largest(logits_SV, top_k_S, top_p_S, min_p_S)
    rows, vocabulary = logits_SV.shape
    if top_k_S is None:
        top_k_S = torch.full((rows,), vocabulary, device=logits_SV.device)
    if top_p_S is None:
        top_p_S = torch.ones(rows, device=logits_SV.device)
    if min_p_S is None:
        min_p_S = torch.zeros(rows, device=logits_SV.device)
    cut_S1 = (top_k_S < vocabulary).unsqueeze(1)
    top_k_S1, top_p_S1 = top_k_S.unsqueeze(1), top_p_S.unsqueeze(1)
    total_S1 = logits_SV.logsumexp(-1, keepdim=True)
    # Whether a shortlist is enough is known once it is computed, and for that the host had to wait for an accelerator.
    shortlist = min(SHORTLIST, vocabulary) if logits_SV.device.type == "cpu" else vocabulary
    while True:
        top_SC = logits_SV.topk(shortlist, dim=-1).values
        mass_SC = (top_SC - total_S1).exp().cumsum(-1, dtype=torch.float64)
        last_S1 = top_SC.gather(1, top_k_S1.clamp(max=shortlist) - 1)
        if shortlist == vocabulary:
            break
        # The whole vocabulary is sorted when a row needs it, which must not change another row's result:
        # so what ties with the last token of top-k must be on the shortlist, too.
        enough_S1 = torch.where(
            cut_S1,
            (top_k_S1 < shortlist) & (top_SC[:, -1:] < last_S1),
            (top_p_S1 >= 1) | (mass_SC[:, -1:] >= top_p_S1),
        )
        if bool(enough_S1.all()):
            break
        shortlist = vocabulary
    floor_S1 = torch.where(cut_S1, last_S1, -torch.inf)

    # A token is kept while the mass before it is short of top-p's share of what top-k left.
    kept_SC = top_SC >= floor_S1
    within_S1 = torch.where(cut_S1, (mass_SC * kept_SC).amax(-1, keepdim=True), 1.0)
    before_SC = mass_SC - (top_SC - total_S1).exp()
    wanted_SC = kept_SC & (before_SC < top_p_S1 * within_S1)
    wanted_SC[:, 0] = True
    nucleus_S1 = torch.where(wanted_SC, top_SC, torch.inf).amin(-1, keepdim=True)
    nucleus_S1 = torch.where(top_p_S1 < 1, nucleus_S1, -torch.inf)

    likely_S1 = top_SC[:, :1] + min_p_S.unsqueeze(1).log()
    floor_S1 = torch.maximum(torch.maximum(floor_S1, nucleus_S1), likely_S1)
    return logits_SV.masked_fill(logits_SV < floor_S1, -torch.inf)


def keep_typical(logits_SV: Tensor, typical_p_S: Tensor) -> Tensor:
    """Logits with all but the locally typical tokens at -inf.

    typical_p (S,) fp32, 1: off. Of the distribution given, the tokens whose surprise is closest to the
    entropy, as few as reach the mass; ties are kept. Meister et al., "Locally Typical Sampling", 2022.
    """
    logp_SV = logits_SV.log_softmax(-1)
    p_SV = logp_SV.exp()
    entropy_S1 = -(logp_SV * p_SV).nan_to_num(0.0).sum(-1, keepdim=True)
    distance_SV = (-logp_SV - entropy_S1).abs()
    sorted_SV, order_SV = distance_SV.sort(dim=-1, stable=True)
    mass_SV = p_SV.gather(1, order_SV).cumsum(-1, dtype=torch.float64)
    # The last token kept is the first that reaches the mass.
    short_S1 = (mass_SV < typical_p_S.unsqueeze(1)).sum(-1, keepdim=True)
    last_S1 = short_S1.clamp(max=logits_SV.shape[1] - 1)
    reach_S1 = torch.where(typical_p_S.unsqueeze(1) < 1, sorted_SV.gather(1, last_S1), torch.inf)
    return logits_SV.masked_fill(distance_SV > reach_S1, -torch.inf)


def log_softmax(logits_SV: Tensor, out_SV: Tensor) -> Tensor:
    """Log probabilities of each row, (S, V) fp32, into `out`, which is returned."""
    return torch.log_softmax(logits_SV, -1, out=out_SV)


def argmax(logits_SV: Tensor) -> Tensor:
    """The largest logit's token, (S, V) to (S,) int64; of several the lowest id.

    In two levels where V can be cut into equal pieces: finding a maximum is several times as fast as
    finding where it is.
    """
    rows, vocabulary = logits_SV.shape
    piece = next((size for size in range(256, 15, -1) if vocabulary % size == 0), vocabulary)
    pieces_SMC = logits_SV.view(rows, vocabulary // piece, piece)
    best_S1 = pieces_SMC.amax(-1).argmax(-1, keepdim=True)
    within_SC = pieces_SMC.gather(1, best_S1.unsqueeze(-1).expand(rows, 1, piece)).squeeze(1)
    return best_S1.squeeze(1) * piece + within_SC.argmax(-1)


def greedy(logits_SV: Tensor, spare_SV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit's token (S,) int64, as `argmax` gives it, its log probability (S,) fp32, and whether all logits of its
    row are numbers (S,) bool.

    logits (S, V) fp32. What is in the memory of `spare`, (S, V) fp32, is lost.
    """
    if usable(logits_SV):
        from penstock_kernels.gpu import sampling

        return sampling.greedy(logits_SV)
    tokens_S = argmax(logits_SV)
    logprobs_S1 = log_softmax(logits_SV, spare_SV).gather(1, tokens_S.unsqueeze(1))
    return tokens_S, logprobs_S1.squeeze(1), logits_SV.sum(-1).isfinite()


def summarize(logits_SV: Tensor, masks: RowMasks | None = None) -> LogitsSummary:
    """See LogitsSummary. logits (S, V) fp32 on a CPU. The CPU engine has one of its own, `CpuProgram.summarize`."""
    largest_S = logits_SV.amax(-1)
    total_S = (logits_SV - largest_S.unsqueeze(1)).exp().sum(-1) + (logits_SV - logits_SV).sum(-1)
    allowed_SV = logits_SV
    if masks is not None and len(masks.rows):
        rows = torch.from_numpy(masks.rows)
        allowed = mask_tokens(logits_SV.index_select(0, rows), torch.from_numpy(masks.words_MW))
        allowed_SV = logits_SV.index_copy(0, rows, allowed)
    return LogitsSummary(argmax(allowed_SV).numpy(), largest_S.numpy(), total_S.numpy())


def choose(logits_SV: Tensor, uniform_S: Tensor) -> Tensor:
    """The token at which the cumulated distribution, in the order of the vocabulary, passes `uniform`.

    logits (S, V) fp32, of which -inf is never chosen; uniform (S,) float64 in [0, 1). Returns (S,) int64.
    """
    if usable(logits_SV):
        from penstock_kernels.gpu import sampling

        return sampling.choose(logits_SV, uniform_S)
    cumulated_SV = logits_SV.softmax(-1).cumsum(-1, dtype=torch.float64)
    goal_S1 = uniform_S.unsqueeze(1) * cumulated_SV[:, -1:]
    return torch.searchsorted(cumulated_SV, goal_S1, right=True).squeeze(1).clamp_(max=logits_SV.shape[1] - 1)
