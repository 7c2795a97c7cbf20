"""Which drafter, and how far: chosen every round by measured costs and learnt survival.

In: the drafters of one level, what passes cost, and every verdict. Out: proposals; an empty one is
a plain step. Each choice maximises E[tokens] − λ · seconds, λ being the rate that the answer has
kept so far: that is the choice with the best long-run rate (renewal reward theorem). A drafted
token is worth the probability that it and all before it stay.

- A copier's proposal is cut where its tokens stop paying. They were never drawn, so a cut tells
  nothing of a draw.
- An n-gram table draws, so that its tokens are asked for one by one: a token's law says if it pays.
- A model drafts a round of its own at a time and goes on while the next token is worth its cost,
  as seen from the tokens before it: never from the token itself, which would bias the output.
- A drafter that does not pay rests, and is asked for one token now and then, at doubling distances.
- A draft looks at the prompt once it would have gained twice what the look takes.
- Speculation may owe plain decoding a share of the answer's time and a few steps, no more. What
  would exceed that if none of it stayed is not drafted: this bounds the loss on any text. A draft's
  first look at the prompt (`window`) comes on top; reading all of it is paid from what was gained.

State is per request and no clock is read, so that the same request chooses the same way.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul

from .candidate import Candidate
from .drafters import NgramDrafter, Proposal
from .noise import Noise
from .speculate import ModelDrafter, Verdict
from .stats import Choices, ChosenRounds
from .window import Window

# Seconds of a pass over `width` tokens behind `depth` tokens of cache, laws and draws included.
PassCost = Callable[[int, int], float]

LONGEST = 16  # tokens in a proposal
_DEBT_SHARE = 0.01  # of the time that plain decoding would have taken
_DEBT_STEPS = 1.5
_RATE_KEPT = 0.97  # the rate forgets a round by this factor
_RATE_STEPS = 8.0  # it starts as if so many plain steps had been made
_LOOKS_MISSED = 2.0  # a draft looks at the prompt once it would have gained so many looks' time
_CATCH_UP_ROUNDS = 8  # a draft that has caught up serves about so many rounds
_DEPTHS = 64  # costs are looked up once for so many tokens of cache


@dataclass(frozen=True)
class _Plan:
    """Draft `count` tokens with `candidate`.

    `gain` is in tokens; `probe_seconds` is what one token would cost if it may be asked for though
    it does not pay. `look` is what a draft that has not read the prompt yet takes for that.
    """

    gain: float = 0.0
    count: int = 0
    candidate: Candidate | None = None
    offer: Proposal = field(default_factory=lambda: Proposal([], []))
    probe_seconds: float = math.inf
    look: float = 0.0


class Controller:
    """Several drafters of one level as one drafter that uses them as far as they pay.

    Args:
        candidates: the drafters on offer.
        pass_cost: what the level's own model costs; width 1 is the plain step.
        draft_costs: the same for the drafters that are models, by name.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        pass_cost: PassCost,
        draft_costs: dict[str, PassCost],
    ) -> None:
        self.name = "|".join(candidate.drafter.name for candidate in candidates)
        self._candidates = candidates
        self._widths = _Widths(pass_cost)
        self._draft_widths = {name: _Widths(cost) for name, cost in draft_costs.items()}
        # Their quotient is the rate so far.
        self._tokens, self._seconds = _RATE_STEPS, _RATE_STEPS * self._widths.at(0)[1]
        self._debt = self._paid = 0.0  # seconds behind plain decoding, and plain decoding's own
        self._was_asked = False
        self._start = sys.maxsize  # where the answer began, as far as it was seen
        self._used: Candidate | None = None
        self._drafting = 0.0  # seconds of this round's drafting
        self._looking = 0.0  # seconds more, of a draft's first look at the prompt
        self._expected = 1.0  # tokens
        self._rounds: Counter[tuple[str, int]] = Counter()
        self._expected_tokens = self._expected_seconds = self._measured_seconds = 0.0
        self._emitted_tokens = 0

    @property
    def token_seconds(self) -> float:
        """Seconds a token, at the rate so far."""
        return self._seconds / self._tokens

    def propose(self, context: Sequence[int], k: int, *, noise: Noise) -> Proposal:
        """Return the proposal that pays best; an empty one if none does."""
        self._was_asked = True
        self._start = min(self._start, len(context))
        passes = self._widths.at(len(context))
        most = min(k, LONGEST)
        plans = self._worth_a_look(
            [self._plan(each, context, most, passes, noise) for each in self._candidates]
        )
        best = max(plans, key=lambda plan: plan.gain, default=_Plan())
        if best.gain <= 0:
            best = self._probe(plans, passes)
        if best.candidate is None:
            return Proposal([], [])
        self._used = best.candidate
        if isinstance(best.candidate.drafter, ModelDrafter):
            proposal = self._draft(best, context, most, passes, noise)
        elif isinstance(best.candidate.drafter, NgramDrafter):
            proposal = self._extend(best, context, most, passes, noise)
        else:
            offer, count = best.offer, best.count
            proposal = Proposal(
                offer.tokens[:count], offer.laws[:count], offer.drafter, offer.signals[:count]
            )
        self._expected = 1.0 + sum(accumulate(best.candidate.chances(proposal), mul))
        return proposal

    def rewind(self, *, to: int) -> None:
        """Rewind every drafter."""
        for candidate in self._candidates:
            candidate.drafter.rewind(to=to)

    def watch(self, verdict: Verdict) -> None:
        """Learn from a round of this level, unless nothing was to be chosen in it."""
        if not self._was_asked:
            return
        passes = self._widths.at(verdict.start)
        drafted, accepted = verdict.drafted, verdict.accepted
        emitted = accepted + 1
        plain = passes[1] * emitted
        seconds = self._drafting + passes[len(drafted.tokens) + 1]
        self._debt += seconds - plain
        self._paid += plain
        self._tokens = _RATE_KEPT * self._tokens + emitted
        self._seconds = _RATE_KEPT * self._seconds + seconds
        for candidate in self._candidates:
            candidate.rested += 1
        if self._used is not None and drafted.tokens:
            self._used.rested = 0
            self._used.learn(drafted, accepted)
        self._rounds[drafted.drafter, len(drafted.tokens)] += 1
        self._expected_tokens += self._expected
        self._emitted_tokens += emitted
        self._expected_seconds += seconds + self._looking
        self._measured_seconds += verdict.seconds
        self._used, self._drafting, self._looking, self._expected = None, 0.0, 0.0, 1.0
        self._was_asked = False

    def retract(self, tokens: int) -> None:
        """Uncount tokens of the last round that a stop or the budget cut off."""
        self._emitted_tokens -= tokens

    def choices(self) -> Choices:
        """Return what was chosen so far."""
        return Choices(
            rounds=tuple(ChosenRounds(*what, count) for what, count in self._rounds.most_common()),
            expected_tokens=self._expected_tokens,
            emitted_tokens=self._emitted_tokens,
            expected_seconds=self._expected_seconds,
            measured_seconds=self._measured_seconds,
            plain_seconds=self._paid,
        )

    def _plan(
        self,
        candidate: Candidate,
        context: Sequence[int],
        most: int,
        passes: list[float],
        noise: Noise,
    ) -> _Plan:
        drafter = candidate.drafter
        if isinstance(drafter, ModelDrafter):
            offer = Proposal([], [])
            most = min(most, drafter.level.model.context - len(context))
            chances = [candidate.acceptance] * most
            cost = self._token_cost(drafter, len(context))
            catch_up = self._catch_up(drafter, len(context))
            look = self._catch_up(drafter, len(context), from_prompt=True) - catch_up
        else:
            draws = isinstance(drafter, NgramDrafter)
            offer = drafter.propose(context, 1 if draws else most, noise=noise)
            chances = candidate.foresee(offer, most) if draws else candidate.chances(offer)
            cost = catch_up = look = 0.0
        gain, count = self._best(chances, cost, passes, catch_up=catch_up)
        may_probe = bool(chances) and candidate.rested >= candidate.rest
        first = catch_up + cost + passes[2] - passes[1] if may_probe else math.inf
        return _Plan(gain, count, candidate, offer, first, look)

    def _worth_a_look(self, plans: Sequence[_Plan]) -> list[_Plan]:
        """Return the plans without those of drafts that should not look at the prompt yet.

        How long the answer gets is not known. A draft that looks once it would have gained some
        times what the look takes loses at most a little more than hindsight would (renting skis
        or buying them); one that disappoints also runs up debt.
        """
        others = max((plan.gain for plan in plans if not plan.look), default=0.0)
        ready = []
        for plan in plans:
            if plan.look and plan.candidate is not None:
                plan.candidate.missed += max(0.0, plan.gain - others) * self._seconds / self._tokens
                if plan.candidate.missed < _LOOKS_MISSED * plan.look:
                    continue
            ready.append(plan)
        return ready

    def _best(
        self,
        chances: Sequence[float],
        cost: float,
        passes: list[float],
        *,
        catch_up: float = 0.0,
        survived: float = 1.0,
        drafted: int = 0,
    ) -> tuple[float, int]:
        """Return the gain in tokens and the number of more tokens that gains most.

        Args:
            chances: of the next tokens, each if all before it stay.
            cost: seconds to draft each of them.
            passes: seconds of the verifying pass by width.
            catch_up: seconds until the drafter has read what it sat out.
            survived: the probability that what is drafted already stays.
            drafted: how many tokens that is.
        """
        price = self._tokens / self._seconds
        room = self._room(passes) - self._drafting - catch_up + passes[1]
        once = price * catch_up / _CATCH_UP_ROUNDS
        here = passes[drafted + 1]
        best_gain, best_count, worth, spent = 0.0, 0, 0.0, 0.0
        for count, chance in enumerate(chances, 1):
            survived *= chance
            worth += survived
            spent += cost
            verify = passes[drafted + count + 1]
            if spent + verify > room:
                break
            gain = worth - price * (spent + verify - here) - once
            if gain > best_gain:
                best_gain, best_count = gain, count
        return best_gain, best_count

    def _room(self, passes: list[float]) -> float:
        """Return how many seconds may be lost now."""
        return _DEBT_STEPS * passes[1] + _DEBT_SHARE * self._paid - self._debt

    def _probe(self, plans: Sequence[_Plan], passes: list[float]) -> _Plan:
        """Return a plan for one token of a drafter that has rested long enough, or none."""
        cheapest = min(plans, key=lambda plan: plan.probe_seconds, default=_Plan())
        if cheapest.probe_seconds > self._room(passes):
            return _Plan()
        return replace(cheapest, count=1)

    def _draft(
        self,
        plan: _Plan,
        context: Sequence[int],
        most: int,
        passes: list[float],
        noise: Noise,
    ) -> Proposal:
        """Draft with a model, round by round of its own, as long as the next token pays."""
        candidate = plan.candidate
        assert candidate is not None
        drafter = candidate.drafter
        assert isinstance(drafter, ModelDrafter)
        self._read_on(drafter, len(context))
        catch_up = self._catch_up(drafter, len(context))
        self._drafting += catch_up
        self._looking = self._catch_up(drafter, len(context), from_prompt=True) - catch_up
        most = min(most, drafter.level.model.context - len(context))
        proposal = Proposal([], [], drafter.name)
        survived, wanted = 1.0, min(plan.count, most)
        while wanted:
            sequence = [*context, *proposal.tokens]
            cost = self._token_cost(drafter, len(sequence))
            part = drafter.propose_round(sequence, wanted, noise=noise)
            if not part.tokens:
                break
            proposal.extend(part)
            self._drafting += len(part.tokens) * cost
            survived *= math.prod(candidate.chances(part))
            _, wanted = self._best(
                [candidate.acceptance] * (most - len(proposal.tokens)),
                cost,
                passes,
                survived=survived,
                drafted=len(proposal.tokens),
            )
        return proposal

    def _extend(
        self,
        plan: _Plan,
        context: Sequence[int],
        most: int,
        passes: list[float],
        noise: Noise,
    ) -> Proposal:
        """Draw from a table, token by token, as long as the next one's law makes it pay."""
        candidate, proposal, wanted = plan.candidate, plan.offer, plan.count
        assert candidate is not None
        survived = math.prod(candidate.chances(proposal))
        while wanted and (left := most - len(proposal.tokens)):
            part = candidate.drafter.propose([*context, *proposal.tokens], 1, noise=noise)
            chances = candidate.foresee(part, left)
            done = len(proposal.tokens)
            _, wanted = self._best(chances, 0.0, passes, survived=survived, drafted=done)
            if wanted:
                proposal.extend(part)
                survived *= chances[0]
        return proposal

    def _read_on(self, drafter: ModelDrafter, depth: int) -> None:
        """Let a draft read the whole prompt once it has earned the time that this takes."""
        model = drafter.level.model
        if isinstance(model, Window) and model.unread and model.fits(depth + LONGEST):
            seconds = self._draft_widths[drafter.name].seconds(depth, depth)
            if seconds < -self._debt:
                model.open()
                self._drafting += seconds

    def _token_cost(self, drafter: ModelDrafter, depth: int) -> float:
        """Return the seconds that a model takes to draft a token, once it has caught up."""
        inner = drafter.level.drafter
        if isinstance(inner, Controller):
            return inner.token_seconds
        return self._draft_widths[drafter.name].at(depth)[1]

    def _catch_up(self, drafter: ModelDrafter, depth: int, *, from_prompt: bool = False) -> float:
        """Return the seconds that a model takes to read the tokens it sat out.

        Its first look at the prompt does not count, unless `from_prompt`: that is prefill.
        """
        level = drafter.level
        lag = depth - level.model.length
        if not (from_prompt or level.stats.passes):
            lag = min(lag, depth - self._start + 1)
        widths = self._draft_widths[drafter.name]
        return widths.seconds(lag, depth) - widths.at(depth)[1] if lag > 1 else 0.0


class _Widths:
    """Seconds of a pass by width (`[LONGEST + 2]`), looked up once for a stretch of depths."""

    def __init__(self, cost: PassCost) -> None:
        self._cost = cost
        self._stretch = -1
        self._seconds: list[float] = []

    def seconds(self, width: int, depth: int) -> float:
        """Return the seconds of a pass of any width."""
        passes = self.at(depth)
        return passes[width] if width < len(passes) else self._cost(width, depth)

    def at(self, depth: int) -> list[float]:
        """Return the seconds behind about `depth` tokens; index 0 means nothing."""
        stretch = depth // _DEPTHS
        if stretch != self._stretch:
            middle = stretch * _DEPTHS + _DEPTHS // 2
            self._seconds = [0.0, *(self._cost(width, middle) for width in range(1, LONGEST + 2))]
            self._stretch = stretch
        return self._seconds
