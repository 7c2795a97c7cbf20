"""Exact stacks for enumeration: table models, drafters of every kind, right ones and wrong ones.

The wrong rules and drafters are those that public implementations were seen to use. Each breaks
the output's law, so every check of exactness must reject each of them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from fakes import ExactSampler, TableModel
from oracle import Oracle

from runtime.acceptance import RULES, Rule, TokenRule
from runtime.candidate import Candidate
from runtime.controller import Controller, PassCost
from runtime.drafters import Drafter, NgramDrafter, NoDrafter, Proposal
from runtime.law import Law
from runtime.speculate import Level, ModelDrafter, speculate
from runtime.stats import LevelStats
from runtime.survival import Prior, Survival
from tools.counting import count_ngrams


def exact_point(token: int) -> Law:
    return Law(np.array([Fraction(1)]), np.array([token]))


def make_level(model: TableModel, drafter: Any, rule: Rule, k: int, sampler: Any = None) -> Level:
    return Level(
        name="level",
        model=model,
        drafter=drafter,
        sampler=sampler or ExactSampler(),
        rule=rule,
        k=k,
        stats=LevelStats(),
    )


class CopyDrafter:
    """Point masses that depend on the context, like a lookup: sometimes long, sometimes none."""

    name = "copy"

    def __init__(self, seed: int, vocabulary: int = 3, *, is_shy: bool = False) -> None:
        self.table = TableModel(seed, vocabulary=vocabulary, exact=True)
        self.is_shy = is_shy

    def propose(self, context: Sequence[int], k: int, *, noise: object) -> Proposal:
        tokens: list[int] = []
        while len(tokens) < k:
            law = self.table.law([*context, *tokens])
            if law[0] == max(law) and (tokens or self.is_shy):
                break
            tokens.append(law.index(max(law)))
        laws = [exact_point(token) for token in tokens]
        return Proposal(tokens, laws, self.name, [float(token) for token in tokens])

    def rewind(self, *, to: int) -> None:
        pass


class OneRoundDrafter:
    """Hands up whatever one round of its level emitted: a variable number of tokens."""

    name = "one round"

    def __init__(self, level: Level) -> None:
        self.level = level

    def propose(self, context: Sequence[int], k: int, *, noise: Any) -> Proposal:
        round_ = speculate(self.level, context, min(self.level.k, k - 1), noise=noise)
        return Proposal(round_.tokens, round_.laws)

    def rewind(self, *, to: int) -> None:
        self.level.rewind(to=to)


@dataclass(frozen=True)
class Sizes:
    """How big an enumeration is: vocabulary, k of the target's level, k of the inner level."""

    vocabulary: int = 3
    k: int = 2
    inner_k: int = 1
    zeros: bool = True

    def model(self, seed: int) -> TableModel:
        return TableModel(seed, vocabulary=self.vocabulary, exact=True, zeros=self.zeros)


class ExactNgram(NgramDrafter):
    """A drafter over counts in rationals, of a random text."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        rng = random.Random(seed)
        text = [rng.randrange(vocabulary) for _ in range(9)]
        table = count_ngrams([text], order=3, vocabulary=vocabulary)
        counts = tuple(counts.astype(object) * Fraction(1) for counts in table.counts)
        super().__init__(replace(table, counts=counts), ExactSampler())


Make = Callable[[int, Oracle], Level]


def draft_stack(rule: Rule, sizes: Sizes) -> Make:
    """Return target ← draft."""

    def make(seed: int, _oracle: Oracle) -> Level:
        inner = make_level(sizes.model(seed + 1000), NoDrafter(), RULES["token"], 0)
        return make_level(sizes.model(seed), ModelDrafter("draft", inner), rule, sizes.k)

    return make


def copy_stack(rule: Rule, sizes: Sizes) -> Make:
    """Return target ← copy."""

    def make(seed: int, _oracle: Oracle) -> Level:
        drafter = CopyDrafter(seed + 2000, sizes.vocabulary)
        return make_level(sizes.model(seed), drafter, rule, sizes.k)

    return make


def ngram_stack(rule: Rule, sizes: Sizes) -> Make:
    """Return target ← n-grams."""

    def make(seed: int, _oracle: Oracle) -> Level:
        drafter = ExactNgram(seed + 2000, sizes.vocabulary)
        return make_level(sizes.model(seed), drafter, rule, sizes.k)

    return make


def staged_stack(outer: Rule, inner: Rule, bottom: str, hand_over: str, sizes: Sizes) -> Make:
    """Return target ← draft ← (copy, ngram or draft), handing up a fixed or variable number."""

    def make(seed: int, _oracle: Oracle) -> Level:
        below: Drafter = CopyDrafter(seed + 2000, sizes.vocabulary)
        if bottom == "ngram":
            below = ExactNgram(seed + 2000, sizes.vocabulary)
        if bottom == "draft":
            lowest = make_level(sizes.model(seed + 3000), NoDrafter(), RULES["token"], 0)
            below = ModelDrafter("draft2", lowest)
        level = make_level(sizes.model(seed + 1000), below, inner, sizes.inner_k)
        fixed, variable = ModelDrafter("draft", level), OneRoundDrafter(level)
        drafter = fixed if hand_over == "fixed" else variable
        return make_level(sizes.model(seed), drafter, outer, sizes.k)

    return make


class ChoosingSampler:
    """Point laws at random choices, one for each sequence, as greedy or shared noise makes them."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.chosen: dict[tuple[int, ...], int] = {}

    def laws(self, rows: Any, prefix: Sequence[int]) -> list[Law]:
        laws = []
        for i, row in enumerate(rows):
            before = tuple(prefix[: len(prefix) - len(rows) + 1 + i])
            if before not in self.chosen:
                self.chosen[before] = self.oracle.choose(list(row))
            laws.append(exact_point(self.chosen[before]))
        return laws


_FLAT = Prior(1.0, 1.0, 1.0, 1.0)


def control(pass_cost: PassCost, *drafters: Drafter, prior: Prior = _FLAT) -> Controller:
    """Return a controller over drafters, with little to learn from."""
    candidates = [Candidate(each, Survival(prior)) for each in drafters]
    return Controller(candidates, pass_cost=pass_cost, draft_costs={"draft": _cheap})


def chosen_stack(rule: Rule, inner: Rule, sizes: Sizes) -> Make:
    """Return target ← (copy | (draft ← copy)), both levels drafted for as far as it pays."""

    def make(seed: int, _oracle: Oracle) -> Level:
        below = control(_cheap, CopyDrafter(seed + 2000, sizes.vocabulary))
        level = make_level(sizes.model(seed + 1000), below, inner, sizes.inner_k)
        level = replace(level, watch=below.watch)
        beside = CopyDrafter(seed + 3000, sizes.vocabulary, is_shy=True)
        drafter = control(_dear, beside, ModelDrafter("draft", level))
        target = make_level(sizes.model(seed), drafter, rule, sizes.k)
        return replace(target, watch=drafter.watch)

    return make


def chosen_ngram_stack(rule: Rule, sizes: Sizes, *, is_disguised: bool = False) -> Make:
    """Return target ← n-grams, drafted for as far as it pays where one more row costs nothing.

    Disguised as a copier, drawn tokens are dropped or not by what follows them: that is wrong.
    """

    def make(seed: int, _oracle: Oracle) -> Level:
        ngram: Drafter = ExactNgram(seed + 2017, sizes.vocabulary)
        drafter = control(
            _stepped, Disguised(ngram) if is_disguised else ngram, prior=Prior(0.0, 2.0, 1.0, 1.0)
        )
        level = make_level(sizes.model(seed), drafter, rule, sizes.k)
        return replace(level, watch=drafter.watch)

    return make


class Disguised:
    """A drafter whose kind nobody knows."""

    name = "disguised"

    def __init__(self, drafter: Drafter) -> None:
        self.propose = drafter.propose
        self.rewind = drafter.rewind


def _dear(width: int, _depth: int) -> float:
    return 1.0 + 0.3 * (width - 1)


def _stepped(width: int, _depth: int) -> float:
    return 1.0 if width == 1 else 1.6


def _cheap(width: int, _depth: int) -> float:
    return 0.1 * _dear(width, 0)


def match_stack(sizes: Sizes) -> Make:
    """Return target ← draft under the match rule; the draft chooses by itself."""

    def make(seed: int, oracle: Oracle) -> Level:
        inner = make_level(
            sizes.model(seed + 1000), NoDrafter(), RULES["match"], 0, ChoosingSampler(oracle)
        )
        drafter = ModelDrafter("draft", inner)
        sampler = ChoosingSampler(oracle)
        return make_level(sizes.model(seed), drafter, RULES["match"], sizes.k, sampler)

    return make


class ResidualIsTarget(TokenRule):
    """Wrong: after a rejection the token is drawn from p, not from norm(max(0, p − q))."""

    def last(self, p: Any, q: Any, tokens: Any, accepted: int, /) -> Law:
        return p[accepted]


class BonusFromDraft(TokenRule):
    """Wrong: after a fully accepted proposal the bonus is drawn from the draft's last law."""

    def last(self, p: Any, q: Any, tokens: Any, accepted: int, /) -> Law:
        is_bonus = accepted == len(tokens) and tokens
        return q[-1] if is_bonus else super().last(p, q, tokens, accepted)


class AlwaysAccept(TokenRule):
    """Wrong: every drafted token stays."""

    def thresholds(self, p: Any, q: Any, tokens: Any, /) -> Any:
        return [1] * len(tokens)


class EqualsADraw(TokenRule):
    """Wrong: keep a token that equals a draw from p, else emit another draw from p."""

    def thresholds(self, p: Any, q: Any, tokens: Any, /) -> Any:
        return [p[i].probability(token) for i, token in enumerate(tokens)]

    def last(self, p: Any, q: Any, tokens: Any, accepted: int, /) -> Law:
        return p[accepted]


class Misreporting:
    """Wrong drafters: tokens that do not follow the laws they come with."""

    name = "misreporting"

    def __init__(self, table: TableModel, oracle: Oracle, fault: str) -> None:
        self.table, self.oracle, self.fault = table, oracle, fault

    def propose(self, context: Sequence[int], k: int, *, noise: object) -> Proposal:
        proposal = Proposal([], [])
        while len(proposal.tokens) < k:
            law = self.table.law([*context, *proposal.tokens])
            token, reported = self._draw(law)
            if self.fault == "low probability dropped" and law[token] < Fraction(1, 3):
                break
            proposal.tokens.append(token)
            proposal.laws.append(Law(np.array(reported)))
        return proposal

    def rewind(self, *, to: int) -> None:
        pass

    def _draw(self, law: list[Fraction]) -> tuple[int, list[Fraction]]:
        if self.fault == "greedy with soft law":
            return law.index(max(law)), law
        if self.fault == "top-k with raw law":
            kept = sorted(range(len(law)), key=lambda i: -law[i])[:2]
            mass = sum(law[i] for i in kept)
            cut = [law[i] / mass if i in kept else Fraction(0) for i in range(len(law))]
            return self.oracle.choose(cut), law
        return self.oracle.choose(law), law


def misreporting_stack(fault: str, sizes: Sizes) -> Make:
    def make(seed: int, oracle: Oracle) -> Level:
        drafter = Misreporting(sizes.model(seed + 1000), oracle, fault)
        return make_level(sizes.model(seed), drafter, RULES["token"], sizes.k)

    return make


_POSITIVE = Sizes(zeros=False)
WRONG_STACKS: dict[str, Make] = {
    "residual replaced by p": draft_stack(ResidualIsTarget(), _POSITIVE),
    "bonus from q": draft_stack(BonusFromDraft(), _POSITIVE),
    "residual replaced by p over n-grams": ngram_stack(ResidualIsTarget(), _POSITIVE),
    "drawn tokens cut by their successors": chosen_ngram_stack(
        RULES["token"], Sizes(vocabulary=2, k=3, zeros=False), is_disguised=True
    ),
    "always accept": draft_stack(AlwaysAccept(), _POSITIVE),
    "equal to a draw, else draw again": draft_stack(EqualsADraw(), _POSITIVE),
    "greedy with soft law": misreporting_stack("greedy with soft law", _POSITIVE),
    "top-k with raw law": misreporting_stack("top-k with raw law", _POSITIVE),
    "low probability dropped": misreporting_stack("low probability dropped", _POSITIVE),
}
