"""Mixtures of experts: routing, and the weighted sum of the experts' outputs, which on a GPU is `gpu/experts.py`.

Letters beside those of the package: A experts of one token, G rows of an expert's first matrix.
"""

from collections.abc import Callable

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import F, Tensor, torch
from penstock_kernels.matrix import linear
from penstock_kernels.routing import Routing


def route(logits_TX: Tensor, correction_X: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """Weights (T, A) in fp32 and numbers (T, A) int64 of the experts that each token goes to.

    The correction (X,) fp32 is added to the scores for the choice and not for the weights. Shazeer et al.,
    "Outrageously Large Neural Networks", 2017; groups and correction as in DeepSeek-AI, "DeepSeek-V3 Technical
    Report", 2024.
    """
    logits_TX = logits_TX.float()
    if routing.one_by_one:
        return _route_one_by_one(logits_TX, routing)
    scores_TX = _scores(logits_TX, routing)
    choice_TX = scores_TX if correction_X is None else scores_TX + correction_X
    if routing.groups > 1:
        tokens, experts = choice_TX.shape
        grouped = choice_TX.view(tokens, routing.groups, experts // routing.groups)
        goodness = grouped.topk(routing.group_best, dim=-1).values.sum(-1)
        kept = goodness.topk(routing.top_groups, dim=-1, sorted=False).indices
        hidden = torch.ones_like(goodness, dtype=torch.bool).scatter_(1, kept, False)
        choice_TX = grouped.masked_fill(hidden.unsqueeze(-1), -torch.inf).view(tokens, experts)
    experts_TA = choice_TX.topk(routing.per_token, dim=-1, sorted=False).indices
    return _weights(scores_TX, experts_TA, routing), experts_TA


def weigh(logits_TX: Tensor, experts_TA: Tensor, routing: Routing) -> Tensor:
    """Weights (T, A) in fp32 as `route` gives them, of experts (T, A) that were chosen by something else.

    Roller et al., "Hash Layers for Large Sparse Models", 2021.
    """
    return _weights(_scores(logits_TX.float(), routing), experts_TA, routing)


def _scores(logits_TX: Tensor, routing: Routing) -> Tensor:
    if routing.root_softplus:
        # In float64, whose roundings do not show: libraries compute a few numbers otherwise than many.
        return F.softplus(logits_TX.double()).sqrt().float()
    return logits_TX.sigmoid() if routing.sigmoid else logits_TX.softmax(-1)


def _weights(scores_TX: Tensor, experts_TA: Tensor, routing: Routing) -> Tensor:
    weights_TA = scores_TX.gather(1, experts_TA)
    if routing.normalize:
        weights_TA = weights_TA / (weights_TA.sum(-1, keepdim=True) + 1e-20)
    return weights_TA * routing.scale


def _route_one_by_one(logits_TX: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """Sparse mixing: Liu et al., "GRIN: GRadient-INformed MoE", 2024, as Phi-3.5-MoE has it."""
    left_TX, weights, experts = logits_TX, [], []
    for _ in range(routing.per_token):
        largest_T1, chosen_T1 = left_TX.max(-1, keepdim=True)
        distance_TX = (largest_T1 - logits_TX) / logits_TX.abs().clamp(min=largest_T1)
        shares_TX = left_TX.masked_fill(distance_TX > routing.one_by_one, -torch.inf).softmax(-1)
        weights.append(shares_TX.gather(1, chosen_T1))
        experts.append(chosen_T1)
        left_TX = left_TX.scatter(1, chosen_T1, -torch.inf)
    return torch.cat(weights, 1) * routing.scale, torch.cat(experts, 1)


def mix_experts(
    x_TE: Tensor,
    weights_TA: Tensor,
    experts_TA: Tensor,
    first: int,
    up_XGE: Tensor,
    up_bias_XG: Tensor | None,
    down_XEF: Tensor,
    down_bias_XE: Tensor | None,
    activation: Callable[[Tensor], Tensor],
    tile: int = 0,
    weighs_input: bool = False,
) -> Tensor:
    """Sum over a token's experts of weight * down(activation(up(x))): (T, E) to (T, E), summed in fp32.

    Holds experts `first` .. first + X - 1 of all; what other ranks hold is theirs to add. up (X, G, E), where
    G is F, or 2F for a gate and what it opens (`activation` turns G into F); down (X, E, F). `tile` as in `linear`.
    `weighs_input`: the weight is a factor of x, rounded to its dtype, in place of the output.
    """
    if not tile and usable(x_TE):
        from penstock_kernels.gpu import experts as on_gpu

        return on_gpu.mix_experts(
            x_TE,
            weights_TA,
            experts_TA,
            first,
            up_XGE,
            up_bias_XG,
            down_XEF,
            down_bias_XE,
            activation,
            weighs_input,
        )
    out_TE = torch.zeros(x_TE.shape, dtype=torch.float32, device=x_TE.device)
    for index in range(up_XGE.shape[0]):
        tokens, place = (experts_TA == first + index).nonzero(as_tuple=True)
        if not len(tokens):
            continue
        up_bias = None if up_bias_XG is None else up_bias_XG[index]
        down_bias = None if down_bias_XE is None else down_bias_XE[index]
        read, weight = x_TE.index_select(0, tokens), weights_TA[tokens, place].unsqueeze(1)
        if weighs_input:
            read, weight = read * weight.to(read.dtype), torch.ones_like(weight)
        inner = activation(linear(read, up_XGE[index], up_bias, tile))
        out_TE.index_add_(0, tokens, linear(inner, down_XEF[index], down_bias, tile).float() * weight)
    return out_TE.to(x_TE.dtype)
