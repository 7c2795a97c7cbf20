"""Worth it or not, and what would be: one sentence from the forecasts.

In: the forecasts of every drafter and the cost table. Out: `Verdict`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.costs import TARGET, CostTable, break_even_acceptance

from .forecast import Forecast, find_best

WORTH_IT = 1.1  # below, the memory and the care that a draft takes are not repaid
_WHERE_IT_WOULD_BE = 1.2
_NO_GAIN = "beats plain decoding with no k"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a draft is worth it, and the sentence that says so."""

    is_worth_it: bool
    sentence: str


def judge_drafts(forecasts: Mapping[str, Sequence[Forecast]], table: CostTable) -> Verdict:
    """Return the verdict on the draft models over a target that can also copy from its own text.

    Args:
        forecasts: by drafter, one for each k; copiers among them.
        table: measured costs.
    """
    copied = find_best(f for name in forecasts if name in table.copiers for f in forecasts[name])
    drafted = [f for name in forecasts if name not in table.copiers for f in forecasts[name]]
    copying = f"{copied.drafter}, which needs no model, " + (
        f"reaches {copied.speedup:.2f}x with k = {copied.k}" if copied.k else _NO_GAIN
    )
    if not drafted:
        return Verdict(
            is_worth_it=copied.speedup >= WORTH_IT,
            sentence=f"there is no draft to judge; {copying}",
        )
    best = find_best(drafted)
    reaches = f"{best.drafter} " + (
        f"with k = {best.k} is predicted to reach {best.speedup:.2f}x" if best.k else _NO_GAIN
    )
    if best.speedup < WORTH_IT:
        wanted = _missing(best, drafted, table)
        sentence = f"not worth it: {reaches}; {wanted}; {copying}"
        return Verdict(is_worth_it=False, sentence=sentence)
    if copied.speedup >= best.speedup:
        sentence = f"worth speculating, but not with a draft: {reaches}, while {copying}"
        return Verdict(is_worth_it=False, sentence=sentence)
    return Verdict(is_worth_it=True, sentence=f"worth it: {reaches}; {copying}")


def _missing(best: Forecast, drafted: Sequence[Forecast], table: CostTable) -> str:
    """Say which acceptance, or which cost of a draft step, would have made it worth it."""
    own = [f for f in drafted if f.drafter == best.drafter]
    needed = [
        (acceptance, f)
        for f in own
        if (acceptance := break_even_acceptance(table, f.k, f.drafter, gain=_WHERE_IT_WOULD_BE))
        is not None
    ]
    wishes = []
    if needed:
        acceptance, at = min(needed, key=lambda pair: pair[0])
        has = "it drafted nothing" if at.acceptance is None else f"it has {at.acceptance:.2f}"
        wishes.append(f"with an acceptance of {acceptance:.2f} at k = {at.k} ({has})")
    cost, at = max(((_affordable(f, table), f) for f in own), key=lambda pair: pair[0])
    if cost > 0:
        wishes.append(
            f"with a draft that costs {cost:.2f} of a target step a token "
            f"(it costs {table.c(best.drafter):.2f}) and is right as often"
        )
    if not wishes:
        return "no draft can be worth it here: wider passes of the target cost too much"
    return f"{_WHERE_IT_WOULD_BE:g}x would be reached {', or '.join(wishes)}"


def _affordable(forecast: Forecast, table: CostTable) -> float:
    """Return the c at which this forecast's accepted tokens would be worth it."""
    budget = forecast.tokens * table.step_seconds() / _WHERE_IT_WOULD_BE
    left = budget - table.seconds(TARGET, width=forecast.k + 1, depth=table.depth)
    return left / forecast.k / table.plain_seconds(table.depth)
