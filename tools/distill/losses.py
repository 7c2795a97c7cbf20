"""How far a drafter's laws are from the target's, at places where the target's top laws are known.

In: scores of the kept tokens and the target's listed tokens as columns of them. Out: a loss to
train by, and the acceptance β = Σ min(p, q). Tokens outside the list count as p = 0, those outside
the kept ones as q = 0; β is too small by at most the mass of what is not listed.
Source: β of arXiv 2211.17192, theorem 3.5; KL and total variation for drafters, arXiv 2310.08461.
"""

from typing import Literal

import torch

Loss = Literal["kl", "tv", "ce"]
LOSSES: tuple[Loss, ...] = ("kl", "tv", "ce")
ABSENT = -1  # a column of a token that the drafter cannot propose


def measure_loss(
    kind: Loss,
    scores: torch.Tensor,
    columns: torch.Tensor,
    log_probs: torch.Tensor,
    answers: torch.Tensor,
) -> torch.Tensor:
    """Return the mean loss over places.

    Args:
        kind: `kl`, Σ p log(p / q) over the listed tokens; `tv`, 1 − Σ min(p, q); `ce`, −log q of
            the token that stands in the text.
        scores: `[n, kept]` float32.
        columns: `[n, top]` int64, `ABSENT` where a token is not kept.
        log_probs: `[n, top]` float32, the target's at temperature 1.
        answers: `[n]` int64, the columns of the text's tokens.
    """
    totals = scores.logsumexp(dim=1)  # [n]
    if kind == "ce":
        known = answers != ABSENT
        own = scores.gather(1, answers.clamp(min=0)[:, None])[:, 0] - totals
        return -(own * known).sum() / max(1, len(scores))
    known = columns != ABSENT
    own = scores.gather(1, columns.clamp(min=0)) - totals[:, None]  # log q
    p = log_probs.exp() * known
    if kind == "tv":
        return 1 - torch.minimum(p, own.exp() * known).sum(dim=1).mean()
    return (p * (log_probs - own)).sum(dim=1).mean()


def measure_acceptance(
    scores: torch.Tensor, columns: torch.Tensor, log_probs: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return β `[n]` of each place at a temperature; at 0 it is 1 where both choose one token.

    The arguments are those of `measure_loss`. Laws at temperatures other than 1 are made from the
    listed tokens alone.
    """
    known = columns != ABSENT
    if temperature == 0:
        return (known[:, 0] & (scores.argmax(dim=1) == columns[:, 0])).float()
    p = log_probs.exp() if temperature == 1 else (log_probs / temperature).softmax(dim=1)
    scaled = scores / temperature
    q = (scaled.gather(1, columns.clamp(min=0)) - scaled.logsumexp(dim=1)[:, None]).exp()
    return torch.minimum(p * known, q * known).sum(dim=1)
