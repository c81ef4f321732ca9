"""How experts are chosen, as a recipe says it and `experts.route` does it. Must not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Routing:
    """How a family chooses experts. Names as in Hugging Face configurations where they have one."""

    per_token: int  # A
    sigmoid: bool = False  # scores are sigmoids of the logits; else their softmax over all experts
    root_softplus: bool = False  # scores are square roots of softplus(logit), one by one as sigmoids are
    normalize: bool = False  # weights of a token are made to add up to 1
    scale: float = 1.0
    groups: int = 1  # experts are chosen from the best `top_groups` of these groups
    top_groups: int = 1
    group_best: int = 1  # a group's score is the sum of its `group_best` best experts' scores
    # One expert after another is chosen, each by its share among those whose logits are within this relative distance
    # of the largest that is left; 0: all at once.
    one_by_one: float = 0.0
