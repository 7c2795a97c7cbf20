"""The output's law equals the target's with difference exactly 0: rounds enumerated in rationals.

The code that is enumerated is the product's own `speculate`, rules and stages; only the source of
randomness and the models are replaced.
"""

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fakes import ExactSampler, TableModel
from oracle import Oracle, OracleNoise, enumerate_runs

import runtime.speculate as speculate_module
from runtime.acceptance import RULES, Rule
from runtime.drafters import NoDrafter, Proposal
from runtime.law import Law
from runtime.speculate import Level, ModelDrafter, speculate
from runtime.stats import LevelStats

CONTEXT = [0, 1]
Build = Callable[[], Level]


def make_level(model: TableModel, drafter: Any, rule: Rule, k: int) -> Level:
    return Level(
        model=model, drafter=drafter, sampler=ExactSampler(), rule=rule, k=k, stats=LevelStats()
    )


def exact_point(token: int) -> Law:
    return Law(np.array([Fraction(1)]), np.array([token]))


class CopyDrafter:
    """Point masses that depend on the context, like a lookup: sometimes long, sometimes none."""

    name = "copy"

    def __init__(self, seed: int, vocabulary: int = 3) -> None:
        self.table = TableModel(seed, vocabulary=vocabulary, exact=True)

    def propose(self, context: list[int], k: int, *, noise: object) -> Proposal:
        tokens: list[int] = []
        while len(tokens) < k:
            law = self.table.law([*context, *tokens])
            if law[0] == max(law) and tokens:
                break
            tokens.append(law.index(max(law)))
        return Proposal(tokens, [exact_point(token) for token in tokens])

    def rewind(self, *, to: int) -> None:
        pass


def draft_stack(target_rule: Rule, *, seed: int, k: int, zeros: bool) -> Level:
    draft = TableModel(seed + 1000, exact=True, zeros=zeros)
    inner = make_level(draft, NoDrafter(), RULES["token"], 0)
    target = TableModel(seed, exact=True, zeros=zeros)
    return make_level(target, ModelDrafter("draft", inner), target_rule, k)


def copy_stack(target_rule: Rule, *, seed: int, k: int, zeros: bool) -> Level:
    target = TableModel(seed, exact=True, zeros=zeros)
    return make_level(target, CopyDrafter(seed + 2000), target_rule, k)


def emitted_law(build: Build, oracle_patch: Any) -> dict[tuple[int, ...], Fraction]:
    """Return the law of what one round emits."""
    law: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)

    def run(oracle: Oracle) -> tuple[int, ...]:
        oracle_patch(oracle)
        level = build()
        return tuple(speculate(level, CONTEXT, level.k, noise=OracleNoise(oracle)).tokens)

    for probability, tokens in enumerate_runs(run):
        law[tokens] += probability
    assert sum(law.values()) == 1
    return law


def local_error(law: dict[tuple[int, ...], Fraction], target: TableModel) -> Fraction:
    """Return max over prefixes of |Pr(L ≥ i, x₁…xᵢ) − Pr(L ≥ i, x₁…xᵢ₋₁) · p(xᵢ | x₁…xᵢ₋₁)|."""
    reached: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)  # Pr(L ≥ i, x₁…xᵢ)
    longer: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)  # Pr(L > i, x₁…xᵢ)
    for tokens, probability in law.items():
        for i in range(1, len(tokens) + 1):
            reached[tokens[:i]] += probability
            longer[tokens[: i - 1]] += probability
    return max(
        abs(reached[(*prefix, token)] - mass * target.law([*CONTEXT, *prefix])[token])
        for prefix, mass in longer.items()
        for token in range(target.vocabulary)
    )


@pytest.fixture
def oracle_patch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Oracle], None]:
    return lambda oracle: monkeypatch.setattr(speculate_module, "draw", oracle.draw)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("stack", [draft_stack, copy_stack])
def test_one_round_has_the_local_property(
    stack: Any, rule: str, k: int, zeros: bool, oracle_patch: Any
) -> None:
    for seed in range(4 if k < 3 else 1):
        target = TableModel(seed, exact=True, zeros=zeros)
        law = emitted_law(
            lambda seed=seed: stack(RULES[rule], seed=seed, k=k, zeros=zeros), oracle_patch
        )
        assert local_error(law, target) == 0


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("stack", [draft_stack, copy_stack])
def test_a_stream_of_tokens_follows_the_target(stack: Any, rule: str, oracle_patch: Any) -> None:
    wanted = 3
    law: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)

    def run(oracle: Oracle) -> tuple[int, ...]:
        oracle_patch(oracle)
        level = stack(RULES[rule], seed=5, k=2, zeros=True)
        tokens: list[int] = []
        while len(tokens) < wanted:
            k = min(level.k, wanted - len(tokens) - 1)
            tokens += speculate(level, [*CONTEXT, *tokens], k, noise=OracleNoise(oracle)).tokens
        return tuple(tokens)

    for probability, tokens in enumerate_runs(run):
        law[tokens] += probability
    target = TableModel(5, exact=True, zeros=True)
    for tokens, probability in law.items():
        expected = Fraction(1)
        for i, token in enumerate(tokens):
            expected *= target.law([*CONTEXT, *tokens[:i]])[token]
        assert probability == expected
    assert sum(law.values()) == 1


def expected_accepted(rule: Rule, oracle_patch: Any) -> Fraction:
    """Mean accepted tokens for p = (1/3, 2/3), q = (2/3, 1/3), k = 2, context-free."""

    class Fixed(TableModel):
        def __init__(self, law: list[Fraction]) -> None:
            super().__init__(0, vocabulary=2, exact=True)
            self.fixed = law

        def law(self, _context: Any) -> list[Fraction]:
            return self.fixed

    third = Fraction(1, 3)

    def run(oracle: Oracle) -> int:
        oracle_patch(oracle)
        inner = make_level(Fixed([2 * third, third]), NoDrafter(), RULES["token"], 0)
        level = make_level(Fixed([third, 2 * third]), ModelDrafter("draft", inner), rule, 2)
        return speculate(level, CONTEXT, 2, noise=OracleNoise(oracle)).accepted

    return sum((p * accepted for p, accepted in enumerate_runs(run)), Fraction(0))


def test_accepted_lengths_match_the_published_values(oracle_patch: Any) -> None:
    # arXiv 2403.10444, section 3: 10/9 for the token rule and 11/9 for the block rule.
    assert expected_accepted(RULES["token"], oracle_patch) == Fraction(10, 9)
    assert expected_accepted(RULES["block"], oracle_patch) == Fraction(11, 9)
