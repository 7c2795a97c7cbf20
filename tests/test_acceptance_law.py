"""The output's law equals the target's with difference exactly 0: rounds enumerated in rationals.

The code that is enumerated is the product's own `speculate`, rules and stages; only the source of
randomness and the models are replaced.
"""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from fakes import TableModel
from oracle import Oracle, OracleNoise, enumerate_runs
from stacks import (
    WRONG_STACKS,
    Make,
    Sizes,
    chosen_ngram_stack,
    chosen_stack,
    copy_stack,
    draft_stack,
    make_level,
    match_stack,
    ngram_stack,
    staged_stack,
)

import runtime.speculate as speculate_module
from runtime.acceptance import RULES, Rule
from runtime.drafters import NoDrafter
from runtime.drafters import ngram as ngram_module
from runtime.speculate import ModelDrafter, speculate

CONTEXT = [0, 1]
Tokens = tuple[int, ...]
SMALL = Sizes(vocabulary=2, k=2, inner_k=1)
STAGED = {
    f"{outer}-{inner}-{bottom}-{hand_over}": staged_stack(
        RULES[outer], RULES[inner], bottom, hand_over, SMALL
    )
    for outer, inner, bottom, hand_over in product(
        ("token", "block"), ("token", "block"), ("copy", "ngram", "draft"), ("fixed", "variable")
    )
}
FLAT = {
    f"{name}-{rule}": stack(RULES[rule], Sizes())
    for rule in ("token", "block")
    for name, stack in {"draft": draft_stack, "copy": copy_stack, "ngram": ngram_stack}.items()
} | {"draft-match": match_stack(Sizes())}
CHOSEN = {
    f"chosen-ngram-{rule}": chosen_ngram_stack(RULES[rule], Sizes(vocabulary=2, k=3))
    for rule in ("token", "block")
} | {
    f"chosen-{outer}-{inner}": chosen_stack(RULES[outer], RULES[inner], SMALL)
    for outer, inner in product(("token", "block"), repeat=2)
}
RIGHT_STACKS: dict[str, Make] = FLAT | STAGED | CHOSEN


@pytest.fixture(autouse=True)
def no_draw_outside_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (speculate_module, ngram_module):
        monkeypatch.setattr(module, "draw", lambda law, uniform: uniform.oracle.draw(law, uniform))


def emitted_law(make: Make, seed: int, wanted: int) -> dict[Tokens, Fraction]:
    """Return the law of what rounds emit: of one round, or of the first `wanted` tokens."""
    law: dict[Tokens, Fraction] = defaultdict(Fraction)

    def run(oracle: Oracle) -> Tokens:
        level = make(seed, oracle)
        tokens: list[int] = []
        while len(tokens) < max(wanted, 1):
            k = min(level.k, wanted - len(tokens) - 1) if wanted else level.k
            tokens += speculate(level, [*CONTEXT, *tokens], k, noise=OracleNoise(oracle)).tokens
        return tuple(tokens)

    for probability, tokens in enumerate_runs(run):
        law[tokens] += probability
    assert sum(law.values()) == 1
    return law


def local_error(law: dict[Tokens, Fraction], target: TableModel) -> Fraction:
    """Return max over prefixes of |Pr(L ≥ i, x₁…xᵢ) − Pr(L ≥ i, x₁…xᵢ₋₁) · p(xᵢ | x₁…xᵢ₋₁)|."""
    reached: dict[Tokens, Fraction] = defaultdict(Fraction)  # Pr(L ≥ i, x₁…xᵢ)
    longer: dict[Tokens, Fraction] = defaultdict(Fraction)  # Pr(L > i, x₁…xᵢ)
    for tokens, probability in law.items():
        for i in range(1, len(tokens) + 1):
            reached[tokens[:i]] += probability
            longer[tokens[: i - 1]] += probability
    return max(
        abs(reached[(*prefix, token)] - mass * target.law([*CONTEXT, *prefix])[token])
        for prefix, mass in longer.items()
        for token in range(target.vocabulary)
    )


def stream_error(law: dict[Tokens, Fraction], target: TableModel) -> Fraction:
    """Return the total variation between the law of a stream and the target's."""

    def expected(tokens: Sequence[int]) -> Fraction:
        probability = Fraction(1)
        for i, token in enumerate(tokens):
            probability *= target.law([*CONTEXT, *tokens[:i]])[token]
        return probability

    length = len(next(iter(law)))
    every = product(range(target.vocabulary), repeat=length)
    return sum((abs(law.get(t, Fraction(0)) - expected(t)) for t in every), Fraction(0)) / 2


def target_of(make: Make, seed: int) -> TableModel:
    model: Any = make(seed, Oracle([])).model
    return model


@pytest.mark.parametrize("name", RIGHT_STACKS)
def test_one_round_has_the_local_property(name: str) -> None:
    make = RIGHT_STACKS[name]
    for seed in range(6):
        assert local_error(emitted_law(make, seed, 0), target_of(make, seed)) == 0


@pytest.mark.parametrize("name", RIGHT_STACKS)
def test_a_stream_of_tokens_follows_the_target(name: str) -> None:
    make = RIGHT_STACKS[name]
    for seed in range(2):
        assert stream_error(emitted_law(make, seed, 3), target_of(make, seed)) == 0


@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_other_lengths_have_the_local_property_too(rule: str, k: int) -> None:
    make = draft_stack(RULES[rule], Sizes(vocabulary=2, k=k))
    for seed in range(4):
        assert local_error(emitted_law(make, seed, 0), target_of(make, seed)) == 0


@pytest.mark.parametrize("name", WRONG_STACKS)
def test_the_same_checks_reject_a_wrong_rule(name: str) -> None:
    make = WRONG_STACKS[name]
    target = target_of(make, 0)
    assert local_error(emitted_law(make, 0, 0), target) > 0
    assert stream_error(emitted_law(make, 0, 3), target) > Fraction(1, 100)


def expected_accepted(rule: Rule) -> Fraction:
    """Mean accepted tokens for p = (1/3, 2/3), q = (2/3, 1/3), k = 2, context-free."""

    class Fixed(TableModel):
        def __init__(self, law: list[Fraction]) -> None:
            super().__init__(0, vocabulary=2, exact=True)
            self.fixed = law

        def law(self, _context: Any) -> list[Fraction]:
            return self.fixed

    third = Fraction(1, 3)

    def run(oracle: Oracle) -> int:
        inner = make_level(Fixed([2 * third, third]), NoDrafter(), RULES["token"], 0)
        level = make_level(Fixed([third, 2 * third]), ModelDrafter("draft", inner), rule, 2)
        return speculate(level, CONTEXT, 2, noise=OracleNoise(oracle)).accepted

    return sum((p * accepted for p, accepted in enumerate_runs(run)), Fraction(0))


def test_accepted_lengths_match_the_published_values() -> None:
    # arXiv 2403.10444, section 3: 10/9 for the token rule and 11/9 for the block rule.
    assert expected_accepted(RULES["token"]) == Fraction(10, 9)
    assert expected_accepted(RULES["block"]) == Fraction(11, 9)
