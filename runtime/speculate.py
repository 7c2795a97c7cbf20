"""One round: propose, verify in one pass, accept. The only place where acceptance happens.

`speculate` serves every level of a stack alike: the engine calls it on the target, and a
`ModelDrafter` calls it on its own model with the drafter below. Tokens of an inner level follow the
inner model's law exactly and carry the rows they were drawn from, so no level needs a special case.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from .acceptance import Rule
from .drafters import Drafter, Proposal
from .errors import NoTokenLeftError
from .law import Law, draw
from .model import Model
from .noise import Noise, Purpose
from .sampling import Sampler
from .stats import LevelStats

_LEAST_CERTAIN = 1 / 400


@dataclass(frozen=True)
class Round:
    """What a round emitted.

    `tokens` `[accepted + 1]` end with the recovered token if `is_cut`, else with the bonus;
    `laws[i]` is the model's law that `tokens[i]` follows.
    """

    tokens: list[int]
    laws: list[Law]
    accepted: int
    is_cut: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One round as a watcher sees it: what was drafted, by which laws it was judged, what stayed.

    `start` is the position of the first token; `p` has one law more than `drafted` has tokens. The
    model's pass fed what lay behind `depth` tokens, `width` of them, in `verify_seconds`.
    """

    level: str
    start: int
    drafted: Proposal
    p: list[Law]
    accepted: int
    emitted: list[int]
    seconds: float
    depth: int
    width: int
    verify_seconds: float


Watch = Callable[[Verdict], None]


def watch_nothing(_verdict: Verdict) -> None:
    """Look away."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A model, how its laws are made, the rule that guards them, and the drafter below.

    `k` is the most tokens the drafter is asked for in a round of this level; `watch` is told of
    every round.
    """

    name: str
    model: Model
    drafter: Drafter
    sampler: Sampler
    rule: Rule
    k: int
    stats: LevelStats
    watch: Watch = watch_nothing

    def rewind(self, *, to: int) -> None:
        """Forget everything from position `to` on, here and below."""
        self.model.rewind(to=to)
        self.drafter.rewind(to=to)


def speculate(level: Level, context: Sequence[int], k: int, *, noise: Noise) -> Round:
    """Run one round after `context` and return what it emits, at least one token.

    Args:
        level: model, sampler, rule and drafter.
        context: the sequence so far, not empty.
        k: the most tokens to draft; 0 is a plain decoding step.
        noise: the draws of this level.

    Source: arXiv 2211.17192, algorithm 1, with the rule as a parameter.
    """
    start = len(context)
    here = noise.inside(start)
    began = perf_counter()
    drafted = level.drafter.propose(context, k, noise=here) if k > 0 else Proposal([], [])
    proposed = perf_counter()

    sequence = [*context, *drafted.tokens]
    depth = min(level.model.length, start - 1)  # a row needs a token that is fed
    logits = level.model.score(sequence, len(drafted.tokens) + 1)  # [drafted + 1, vocabulary]
    verified = perf_counter()

    # The test of token i holds with probability h[i]; the rule says how many tokens that keeps.
    p, q = level.sampler.laws(logits, sequence), drafted.laws
    h = level.rule.thresholds(p, q, drafted.tokens)
    held = [here.uniform(start + i, Purpose.ACCEPT) < h[i] for i in range(len(h))]
    accepted = level.rule.accepted(held)
    last = level.rule.last(p, q, drafted.tokens, accepted)
    token = draw(last, here.uniform(start + accepted, Purpose.EMIT))

    emitted = [*drafted.tokens[:accepted], token]

    level.rewind(to=start + accepted)
    ended = perf_counter()
    level.stats.observe(
        drafter=drafted.drafter,
        drafted=len(drafted.tokens),
        accepted=accepted,
        draft_seconds=proposed - began,
        verify_seconds=verified - proposed,
        sample_seconds=ended - verified,
    )
    level.watch(
        Verdict(
            level=level.name,
            start=start,
            drafted=drafted,
            p=p,
            accepted=accepted,
            emitted=emitted,
            seconds=ended - began,
            depth=depth,
            width=len(sequence) - depth,
            verify_seconds=verified - proposed,
        )
    )
    return Round(emitted, p[: accepted + 1], accepted, accepted < len(drafted.tokens))


class ModelDrafter:
    """A draft model as a drafter: the rounds of its own level, handed up with their laws.

    With nothing below it this is the classic draft model; with a drafter below it is a stage
    (arXiv 2308.04623).
    """

    def __init__(self, name: str, level: Level) -> None:
        self.name = name
        self.level = level

    def propose(self, context: Sequence[int], k: int, *, noise: Noise) -> Proposal:
        """Return tokens that follow the draft model's law; fewer than `k` at its context's end."""
        level = self.level
        k = min(k, level.model.context - len(context))
        proposal = Proposal([], [], self.name)
        while (wanted := k - len(proposal.tokens)) > 0:
            part = self.propose_round([*context, *proposal.tokens], wanted, noise=noise)
            if not part.tokens:
                break
            proposal.extend(part)
        return proposal

    def propose_round(self, context: Sequence[int], k: int, *, noise: Noise) -> Proposal:
        """Return what one round of the draft model emits, 1 to `k` tokens.

        None where the model's head was trimmed and the request bans all that is left of it. A
        token's signal is the log-odds that the draft model gave it.
        """
        inner = min(self.level.k, k - 1)  # a round emits one token more than it accepts
        try:
            round_ = speculate(self.level, context, inner, noise=noise)
        except NoTokenLeftError:
            return Proposal([], [], self.name)
        signals = [_log_odds(law, x) for law, x in zip(round_.laws, round_.tokens, strict=True)]
        return Proposal(round_.tokens, round_.laws, self.name, signals)

    def rewind(self, *, to: int) -> None:
        """Forget everything from position `to` on, here and below."""
        self.level.rewind(to=to)


def _log_odds(law: Law, token: int) -> float:
    sure = float(law.probability(token)) if law.certainty is None else law.certainty
    sure = min(max(sure, _LEAST_CERTAIN), 1 - _LEAST_CERTAIN)
    return math.log(sure / (1 - sure))
