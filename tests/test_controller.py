"""The controller: close to the best fixed length, bounded loss, quick to change, blind to draws."""

import itertools
import math
import random

import numpy as np
import pytest
from fakes import TableModel
from hypothesis import given
from hypothesis import strategies as st

from runtime.acceptance import RULES
from runtime.candidate import COPIER_PRIOR, MODEL_PRIOR, Candidate
from runtime.controller import LONGEST, Controller
from runtime.drafters import LookupDrafter, NoDrafter, Proposal
from runtime.law import Law
from runtime.noise import Noise
from runtime.sampling import Sampler, Sampling
from runtime.speculate import Level, ModelDrafter, speculate
from runtime.stats import LevelStats
from runtime.survival import Prior, Survival

GREEDY = Sampling(temperature=0)


class Scripted:
    """A greedy model that says token `position % 7`, or another with probability 1 − agreement.

    Its logits give the token that it says the odds of being right: the same everywhere at a
    constant agreement, or, if it `knows`, high odds at most places and low ones at the others.
    """

    vocabulary, context, has_even_widths = 9, 10_000, False

    def __init__(self, agreement=lambda _: 1.0, *, seed=0, knows=False):
        self.agreement, self.seed, self.knows = agreement, seed, knows
        self.length, self.passes = 0, []

    def score(self, tokens, rows):
        self.length = min(self.length, len(tokens) - rows)
        self.passes.append(len(tokens) - self.length)
        self.length = len(tokens)
        logits = np.full((rows, self.vocabulary), -99.0, np.float32)
        for row in range(rows):
            position = len(tokens) - rows + 1 + row
            rng = random.Random(f"{self.seed}:{position}")
            chance = self.agreement(position)
            if self.knows:  # the mean over places stays
                chance = 0.97 if rng.random() < (chance - 0.2) / 0.77 else 0.2
            said, other = (position % 7, 8) if rng.random() < chance else (8, position % 7)
            logits[row, said], logits[row, other] = 0.0, -log_odds(chance)
        return logits

    def rewind(self, *, to):
        self.length = min(self.length, to)

    def begin(self, tokens, *, even_widths, best=None):
        self.length = 0


class Copying:
    """A copier that is right with probability `agreement(position)`; signals say `sure`."""

    name = "copier"

    def __init__(self, agreement, *, length=8, seed=1, sure=None):
        self.agreement, self.length, self.seed = agreement, length, seed
        self.sure = sure or (lambda position: log_odds(agreement(position)))

    def propose(self, context, k, *, noise):
        tokens, signals = [], []
        for position in range(len(context), len(context) + min(k, self.length)):
            right = random.Random(f"{self.seed}:{position}").random() < self.agreement(position)
            tokens.append(position % 7 if right else 8)
            signals.append(self.sure(position))
        return Proposal(tokens, [Law.point(token) for token in tokens], self.name, signals)

    def rewind(self, *, to):
        pass


def log_odds(chance):
    chance = min(max(chance, 0.51), 0.99)  # the token it says is its best one
    return math.log(chance / (1 - chance))


def line(slope, first=1.0):
    """Return pass costs 1, 1 + slope, 1 + 2 slope, … times `first`."""
    return lambda width, _depth: first * (1.0 + slope * (width - 1))


def sampler(settings=GREEDY, vocabulary=9):
    return Sampler(
        settings, vocabulary=vocabulary, prompt_length=1, end_ids=(), noise=Noise(0),
        tells_certainty=True,
    )  # fmt: skip


def level_over(model, drafter, *, rule="match", settings=GREEDY, watch=lambda _: None, k=LONGEST):
    return Level(
        name="level", model=model, drafter=drafter, sampler=sampler(settings, model.vocabulary),
        rule=RULES[rule], k=k, stats=LevelStats(), watch=watch,
    )  # fmt: skip


def draft(model, *, settings=GREEDY, rule="match"):
    level = level_over(model, NoDrafter(), rule=rule, settings=settings, k=0)
    return ModelDrafter("level", level)


def control(*drafters, verify, step=None):
    candidates = [
        Candidate(each, Survival(MODEL_PRIOR if isinstance(each, ModelDrafter) else COPIER_PRIOR))
        for each in drafters
    ]
    return Controller(candidates, pass_cost=verify, draft_costs={"level": step or verify})


def run(drafter, *, tokens, verify, step=None, most=LONGEST):
    """Return seconds a token, by the table, of a greedy text drafted by `drafter`."""
    target = Scripted()
    watch = drafter.watch if isinstance(drafter, Controller) else lambda _: None
    level = level_over(target, drafter, watch=watch)
    context = [0]
    model = next((m.level.model for m in _members(drafter) if isinstance(m, ModelDrafter)), None)
    while len(context) <= tokens:
        context += speculate(level, context, most, noise=Noise(0)).tokens
        assert context == [i % 7 for i in range(len(context))]
    seconds = sum(verify(width, 0) for width in target.passes)
    if model is not None:
        seconds += sum(step(width, 0) for width in model.passes)
    return seconds / (len(context) - 1)


def _members(drafter):
    if isinstance(drafter, Controller):
        return [candidate.drafter for candidate in drafter._candidates]
    return [drafter]


def best_static(agreement, *, verify, step=lambda _width, _depth: 0.0):
    """Return the least seconds a token that any fixed k reaches at this agreement."""
    return min(
        (verify(k + 1, 0) + k * step(1, 0)) / sum(agreement**i for i in range(k + 1))
        for k in range(LONGEST + 1)
    )


GRID = list(itertools.product((0.02, 0.13, 0.3), (0.0, 0.3, 0.6, 0.85, 0.97)))


def test_drafters_are_used_as_well_as_by_the_best_fixed_length():
    """That length being known beforehand; what the controller must learn costs it a little."""
    shares = []
    for slope, agreement in GRID:
        for step in (0.05, 0.4):
            costs = {"verify": line(slope), "step": line(slope / 2, first=step)}
            drafter = draft(Scripted(lambda _, a=agreement: a, seed=5))
            taken = run(control(drafter, **costs), tokens=400, **costs)
            shares.append(best_static(agreement, **costs) / taken)
        costs = {"verify": line(slope)}
        copier = Copying(lambda _, a=agreement: a, length=LONGEST)
        taken = run(control(copier, **costs), tokens=400, **costs)
        shares.append(best_static(agreement, **costs) / taken)
    assert min(shares) > 0.92
    assert np.mean(shares) > 0.97


@pytest.mark.parametrize("kind", ["draft", "copier", "both"])
@pytest.mark.parametrize("slope", [0.02, 0.13, 0.5])
@pytest.mark.parametrize("tokens", [60, 200, 1000])
def test_what_is_never_right_costs_at_most_what_may_be_owed(kind, slope, tokens):
    costs = {"verify": line(slope), "step": line(slope / 2, first=0.4)}
    drafters = {
        "draft": [draft(Scripted(lambda _: 0.0))],
        "copier": [Copying(lambda _: 0.0)],
        "both": [Copying(lambda _: 0.0), draft(Scripted(lambda _: 0.0))],
    }[kind]
    lost = (run(control(*drafters, **costs), tokens=tokens, **costs) - 1.0) * tokens
    assert lost <= 1.5 + 0.01 * tokens + 1e-6


@pytest.mark.parametrize(("step", "waits"), [(0.05, False), (0.33, True)])
def test_a_draft_looks_at_the_prompt_when_that_would_have_paid(step, waits):
    """A dear look not at once, for the answer may be short, but not much too late."""
    costs = {"verify": line(0.15), "step": line(0.05, first=step)}
    look = costs["step"](32, 0)
    model = Scripted(lambda _: 0.9)
    controlled = control(draft(model), **costs)
    level = level_over(Scripted(), controlled, watch=controlled.watch)
    context = [i % 7 for i in range(32)]
    level.model.length, waited = 31, 0
    while len(context) < 132:
        context += speculate(level, context, LONGEST, noise=Noise(0)).tokens
        waited += not model.passes
    seconds = sum(costs["verify"](width, 0) for width in level.model.passes)
    seconds += sum(costs["step"](width, 0) for width in model.passes)
    rate = best_static(0.9, **costs)
    assert (waited > 0) == waits
    assert seconds < 100 * rate + 3 * look + 5


def staged(copier, model, *, step):
    """Return a draft model that a copier drafts for, as far as it pays."""
    inner = control(copier, verify=step)
    return ModelDrafter("level", level_over(model, inner, watch=inner.watch))


def test_a_copier_below_a_draft_makes_it_draft_further():
    costs = {"verify": line(0.15), "step": line(0.12, first=0.35)}
    copied = Copying(lambda position: 0.97 if position % 60 < 30 else 0.2)
    alone = run(control(draft(Scripted(lambda _: 0.97)), **costs), tokens=400, **costs)
    nested = control(staged(copied, Scripted(lambda _: 0.97), step=costs["step"]), **costs)
    assert run(nested, tokens=400, **costs) < alone / 1.1


def test_a_copier_below_a_draft_that_is_never_right_costs_next_to_nothing():
    costs = {"verify": line(0.15), "step": line(0.12, first=0.35)}
    alone = run(control(draft(Scripted(lambda _: 0.9)), **costs), tokens=400, **costs)
    copied = Copying(lambda _: 0.0)
    nested = control(staged(copied, Scripted(lambda _: 0.9), step=costs["step"]), **costs)
    assert run(nested, tokens=400, **costs) < 1.03 * alone


def test_it_turns_drafting_on_again_when_it_pays_again():
    costs = {"verify": line(0.13), "step": line(0.1, first=0.2)}

    def agreement(position):
        return 0.95 if position < 200 or position > 500 else 0.0

    controlled = control(draft(Scripted(agreement)), **costs)
    level = level_over(Scripted(), controlled, watch=controlled.watch)
    context, widths = [0], []
    while len(context) < 900:
        context += speculate(level, context, LONGEST, noise=Noise(0)).tokens
        widths.append((len(context), level.model.passes[-1]))
    on = [width for place, width in widths if 100 < place < 200]
    off = [width for place, width in widths if 300 < place < 500]
    again = [width for place, width in widths if place > 620]
    assert np.mean(on) > 3
    assert np.mean(off) < 1.1
    assert np.mean(again) > 3


def test_the_better_of_two_drafters_is_preferred():
    costs = {"verify": line(0.1), "step": line(0.1, first=0.3)}
    weak, strong = Copying(lambda _: 0.2), draft(Scripted(lambda _: 0.95))
    rounds = choose_between(weak, strong, costs)
    assert rounds["level"] > 5 * rounds.get("copier", 0)
    free, dear = Copying(lambda _: 0.95), draft(Scripted(lambda _: 0.95))
    rounds = choose_between(free, dear, costs)
    assert rounds["copier"] > 5 * rounds.get("level", 0)


def choose_between(one, other, costs):
    controller = control(one, other, **costs)
    run(controller, tokens=500, **costs)
    rounds: dict[str, int] = {}
    for chosen in controller.choices().rounds:
        rounds[chosen.drafter] = rounds.get(chosen.drafter, 0) + chosen.rounds
    return rounds


def test_a_signal_that_tells_right_from_wrong_is_worth_tokens():
    costs = {"verify": line(0.25), "step": line(0.1, first=0.1)}
    seconds = {
        knows: run(
            control(draft(Scripted(lambda _: 0.7, knows=knows)), **costs), tokens=600, **costs
        )
        for knows in (False, True)
    }
    assert seconds[True] < 0.95 * seconds[False]


def test_choices_add_up():
    costs = {"verify": line(0.1), "step": line(0.1, first=0.2)}
    controller = control(draft(Scripted(lambda _: 0.8)), **costs)
    taken = run(controller, tokens=400, **costs)
    choices = controller.choices()
    assert choices.emitted_tokens == pytest.approx(400, abs=LONGEST)
    assert choices.expected_seconds == pytest.approx(taken * choices.emitted_tokens, rel=0.02)
    assert choices.expected_tokens == pytest.approx(choices.emitted_tokens, rel=0.1)
    assert choices.plain_seconds == choices.emitted_tokens
    assert sum(chosen.rounds for chosen in choices.rounds) < 400


def test_a_first_look_at_the_prompt_is_foreseen():
    verify, step = line(0.1), line(0.1, first=0.2)
    controller = control(draft(Scripted()), verify=verify, step=step)
    target = level_over(Scripted(), controller, watch=controller.watch)
    speculate(target, [0] * 12, 4, noise=Noise(1))
    choices = controller.choices()
    (drafted,) = [chosen.tokens for chosen in choices.rounds]
    assert drafted > 0
    drafting = step(12, 0) + (drafted - 1) * step(1, 12)
    assert choices.expected_seconds == pytest.approx(drafting + verify(drafted + 1, 12))


@given(seed=st.integers(0, 200), k=st.integers(1, 8), length=st.integers(1, 6))
def test_how_far_it_drafts_does_not_depend_on_the_last_token(seed, k, length):
    """Change the noise of one place: as many tokens are proposed up to and with that place."""
    context = [random.Random(seed).randrange(5) for _ in range(length)]

    def propose(noise):
        settings = Sampling()
        model = TableModel(seed, vocabulary=5)
        drafter = draft(model, settings=settings, rule="token")
        controller = control(
            LookupDrafter(longest=2, shortest=1), drafter,
            verify=line(0.1), step=line(0.1, first=0.2),
        )  # fmt: skip
        return controller.propose(context, k, noise=noise).tokens

    tokens = propose(Noise(seed))
    for place in range(len(tokens)):
        other = propose(_Changed(seed, len(context) + place))
        assert other[:place] == tokens[:place]
        assert len(other) > place


class _Changed(Noise):
    """The same draws but those of one place."""

    def __init__(self, seed, place):
        super().__init__(seed)
        object.__setattr__(self, "place", place)

    def inside(self, start):
        return _ChangedInside(self.seed, (*self.path, start), place=self.place)

    def uniform(self, position, purpose):
        other = Noise(self.seed + 999 * (position == self.place), self.path)
        return other.uniform(position, purpose)


class _ChangedInside(_Changed):
    def __init__(self, seed, path, *, place):
        super().__init__(seed, place)
        object.__setattr__(self, "path", path)


# --- survival -------------------------------------------------------------------------------------


def test_survival_finds_the_curve():
    rng = random.Random(0)
    survival = Survival(Prior(0.0, 0.0, 1.0, 1.0))
    for _ in range(3000):
        signal = rng.uniform(-2, 2)
        survival.learn(signal, accepted=rng.random() < 1 / (1 + np.exp(-(0.5 + 1.5 * signal))))
    for signal, expected in ((-2, 0.076), (0, 0.62), (2, 0.97)):
        assert survival.probability(signal) == pytest.approx(expected, abs=0.12)


def test_survival_follows_a_change_within_a_few_dozen_tokens():
    survival = Survival(Prior(0.0, 1.0, 2.0, 8.0))
    for _ in range(300):
        survival.learn(1.0, accepted=True)
    assert survival.probability(1.0) > 0.9
    for _ in range(40):
        survival.learn(1.0, accepted=False)
    assert survival.probability(1.0) < 0.4


@given(
    st.lists(st.tuples(st.floats(-6, 6), st.booleans()), max_size=200),
    st.floats(-1e6, 1e6),
)
def test_survival_is_a_probability_whatever_it_saw(seen, signal):
    survival = Survival(COPIER_PRIOR)
    for value, accepted in seen:
        survival.learn(value, accepted=accepted)
        assert 0 < survival.probability(value) < 1
    assert 0 <= survival.probability(signal) <= 1


def test_the_same_rounds_teach_the_same():
    costs = {"verify": line(0.13), "step": line(0.1, first=0.3)}
    seen = [
        run(control(draft(Scripted(lambda _: 0.7)), **costs), tokens=200, **costs) for _ in range(2)
    ]
    assert seen[0] == seen[1]
