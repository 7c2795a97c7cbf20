"""Statistics that expose a wrong law of acceptance, from rounds of real models.

In: verdicts of the target's rounds. Out: three scores, each standard normal (or uniform) if every
emitted token follows the target's law given what came before, whatever the models are:

- draft excess: A = {x : q(x) > p(x)} holds the tokens a drafter proposes too often. A leak of the
  draft into the output emits them too often. Z = Σ (1[x ∈ A] − p(A)) / √ Σ p(A)(1 − p(A)).
- likelihood: Σ (log p(x) + H(p)) / √ Σ Var log p; too likely or too unlikely tokens move it.
- PIT: u = F(x⁻) + v · p(x), tokens ordered by falling p, v uniform; u is uniform on [0, 1], tested
  by Kolmogorov-Smirnov.

All are sums of martingale differences: the law may change with every token, which a chi-square
test over a vocabulary cannot bear.
"""

import math
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from runtime.law import Law
from runtime.noise import Noise, Purpose
from runtime.speculate import Verdict


@dataclass(frozen=True, kw_only=True)
class Score:
    """One statistic: its value, its two-sided p-value and how many tokens it saw."""

    name: str
    value: float
    p_value: float
    tokens: int


@dataclass
class _Martingale:
    """A sum of centred terms, with the variance each had before it was seen."""

    total: float = 0.0
    variance: float = 0.0
    count: int = 0

    def add(self, term: float, variance: float) -> None:
        self.total += term
        self.variance += variance
        self.count += 1

    def score(self, name: str) -> Score:
        z = self.total / math.sqrt(self.variance) if self.variance > 0 else 0.0
        return Score(
            name=name, value=z, p_value=math.erfc(abs(z) / math.sqrt(2)), tokens=self.count
        )


@dataclass
class Evidence:
    """Collects the target's rounds; `seed` draws the v of the PIT."""

    seed: int
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    rounds: int = 0
    answers: int = 0
    emitted: int = 0
    _excess: _Martingale = field(default_factory=_Martingale)
    _likelihood: _Martingale = field(default_factory=_Martingale)
    _pit: list[float] = field(default_factory=list)

    def add(self, verdict: Verdict, *, request: int, kept: int) -> None:
        """Count one round of the target, of which the first `kept` tokens stayed.

        `request` tells apart the rounds of different answers, which start at equal positions.
        """
        drafted = len(verdict.drafted.tokens)
        self.rounds += 1
        self.emitted += kept
        self.drafted += drafted
        self.tested += min(verdict.accepted + 1, drafted)
        self.accepted += verdict.accepted
        noise = Noise(self.seed).inside(request)
        for i, token in enumerate(verdict.emitted[:kept]):
            p = verdict.p[i]
            if i < drafted:
                self._add_excess(p, verdict.drafted.laws[i], token)
            self._add_likelihood(p, token)
            self._pit.append(_pit(p, token, noise.uniform(verdict.start + i, Purpose.EMIT)))

    def scores(self) -> tuple[Score, ...]:
        """Return the three scores so far."""
        return (
            self._excess.score("draft excess"),
            self._likelihood.score("likelihood"),
            _kolmogorov_smirnov("PIT", self._pit),
        )

    def exposed_variation(self, *, p_value: float, power: float = 0.9) -> float:
        """Return the total variation per drafted place that the draft excess would expose.

        A leak that puts mass δ too much on A moves Z by δ·√n / σ, σ² the mean of p(A)(1 − p(A))
        seen here. Exposed means rejected below `p_value` with probability `power`.
        """
        excess = self._excess
        if excess.count == 0:
            return 1.0
        spread = math.sqrt(excess.variance / excess.count)
        z = NormalDist().inv_cdf(1 - p_value / 2) + NormalDist().inv_cdf(power)
        return min(1.0, z * spread / math.sqrt(excess.count))

    def _add_excess(self, p: Law, q: Law, token: int) -> None:
        mass = float(p.weights[q.over(p) > p.weights].sum())
        hit = q.probability(token) > p.probability(token)
        self._excess.add(hit - mass, mass * (1 - mass))

    def _add_likelihood(self, p: Law, token: int) -> None:
        weights = p.weights[p.weights > 0]
        logs = np.log(weights)
        # Not by `@`: BLAS threads would spin on the cores that the model's passes need.
        mean = float((weights * logs).sum())
        variance = float((weights * (logs - mean) ** 2).sum())
        self._likelihood.add(math.log(p.probability(token)) - mean, variance)


def _pit(p: Law, token: int, v: float) -> float:
    """Return F(x⁻) + v·p(x), tokens ordered by falling probability, equal ones by id."""
    own = p.probability(token)
    ids = np.arange(len(p.weights)) if p.ids is None else p.ids
    before = (p.weights > own) | ((p.weights == own) & (ids < token))
    return float(p.weights[before].sum() + v * own)


def _kolmogorov_smirnov(name: str, values: list[float]) -> Score:
    n = len(values)
    if n == 0:
        return Score(name=name, value=0.0, p_value=1.0, tokens=0)
    ordered = np.sort(values)
    steps = np.arange(n)
    distance = max((ordered - steps / n).max(), ((steps + 1) / n - ordered).max())
    # Stephens' correction makes the asymptotic series good from n = 5 on.
    t = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    tail = 2 * sum((-1) ** (j - 1) * math.exp(-2 * (j * t) ** 2) for j in range(1, 101))
    return Score(name=name, value=float(distance), p_value=min(1.0, max(0.0, tail)), tokens=n)
