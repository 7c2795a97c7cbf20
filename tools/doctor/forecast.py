"""Speed predicted from what a drafter would have got right, and from measured costs.

In: for every place of a greedy answer, how many tokens a drafter would propose there and how many
of these the target would have kept. Greedy rounds follow from that alone, for every k. Out: the
expected speed-up over plain decoding. A draft's reading of the prompt is not part of it: that
happens once, whatever the answer's length.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runtime.costs import TARGET, CostTable, Mode

KS = (1, 2, 3, 4, 5, 6, 7, 8)
_MODE: Mode = "greedy"


@dataclass(frozen=True)
class Guess:
    """What a drafter does at one place: how many tokens it proposes, and how many of them stay."""

    drafted: int
    right: int


@dataclass(frozen=True)
class Answer:
    """A greedy answer of the target: guesses of every drafter, one for each token of the answer."""

    category: str
    prompt_length: int
    guesses: Mapping[str, Sequence[Guess]]

    @property
    def length(self) -> int:
        """Tokens of the answer."""
        return len(next(iter(self.guesses.values())))


@dataclass(frozen=True)
class Round:
    """One simulated round: it starts behind `depth` tokens, drafts, and keeps some."""

    depth: int
    drafted: int
    accepted: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a drafter does for a set of answers with a fixed k.

    `acceptance` is accepted ÷ tested tokens (`None` if none was drafted), `tokens` the emitted ones
    a round, `speedup` the predicted rate ÷ that of plain decoding.
    """

    drafter: str
    k: int
    acceptance: float | None
    tokens: float
    speedup: float


def make_forecast(answers: Sequence[Answer], drafter: str, k: int, table: CostTable) -> Forecast:
    """Return what drafting `k` tokens in a round comes to over all answers."""
    rounds = [step for answer in answers for step in simulate(answer, drafter, k)]
    emitted = sum(step.accepted + 1 for step in rounds)
    tested = sum(min(step.accepted + 1, step.drafted) for step in rounds)
    plain = sum(
        table.step_seconds(mode=_MODE, depth=answer.prompt_length + place)
        for answer in answers
        for place in range(1, answer.length)
    )
    speculative = sum(time_rounds(rounds, drafter, table))
    return Forecast(
        drafter=drafter,
        k=k,
        acceptance=sum(step.accepted for step in rounds) / tested if tested else None,
        tokens=emitted / len(rounds) if rounds else 1.0,
        speedup=plain / speculative if rounds else 1.0,
    )


def simulate(answer: Answer, drafter: str, k: int) -> Iterator[Round]:
    """Yield the rounds that write `answer`; its first token comes with the prompt."""
    guesses = answer.guesses[drafter]
    place = 1
    while place < answer.length:
        drafted = min(k, guesses[place].drafted, answer.length - place - 1)
        accepted = min(drafted, guesses[place].right)
        yield Round(answer.prompt_length + place, drafted, accepted)
        place += accepted + 1


def time_rounds(rounds: Iterable[Round], drafter: str, table: CostTable) -> Iterator[float]:
    """Yield the seconds of each round by the cost table; without a proposal it is a plain step."""
    host = table.host[_MODE]
    for step in rounds:
        if not step.drafted:
            yield table.step_seconds(mode=_MODE, depth=step.depth)
            continue
        verifying = table.seconds(TARGET, width=step.drafted + 1, depth=step.depth)
        judging = (step.drafted + 1) * host.law + step.drafted * host.judge
        if drafter in table.copiers:
            drafting = table.copiers[drafter]
        else:
            each = table.seconds(drafter, width=1, depth=step.depth) + host.law
            drafting = step.drafted * each
        yield verifying + judging + drafting


def find_best(forecasts: Iterable[Forecast]) -> Forecast:
    """Return the fastest forecast, of equal ones the first; k = 0 if none beats plain decoding."""
    best = max(forecasts, key=lambda forecast: forecast.speedup)
    if best.speedup > 1.0:
        return best
    return Forecast(drafter=best.drafter, k=0, acceptance=None, tokens=1.0, speedup=1.0)
