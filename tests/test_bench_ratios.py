"""Ratios of rows: right on known figures, careful with other ids, the same on every call."""

import math

import numpy as np
import pytest

from tools.bench.figures import Figures
from tools.bench.ratios import bootstrap, compare_rows, total_ratios


def decoded(tokens: int, seconds: float) -> Figures:
    return Figures(
        tokens=tokens + 1,
        first_token_s=1.0,
        first_text_s=None,
        decode_tokens=tokens,
        decode_s=seconds,
        gaps_s=(),
    )


FAST = {"a": {0: decoded(10, 1.0), 1: decoded(10, 1.25)}, "b": {0: decoded(20, 4.0)}}
SLOW = {"a": {0: decoded(10, 2.0), 1: decoded(10, 2.5)}, "b": {0: decoded(20, 4.0)}}


def test_totals_and_the_geometric_mean_are_those_of_the_same_prompts() -> None:
    ratio = compare_rows("fast", "slow", FAST, SLOW, parted=[], same_engine=True)
    assert ratio is not None
    assert ratio.mean == pytest.approx(math.sqrt(2.0 * 1.0))
    # Repeat 0 has both prompts: (30 / 5) / (30 / 6); repeat 1 only the first: 2.
    assert (ratio.total.low, ratio.total.high) == (pytest.approx(1.2), pytest.approx(2.0))
    assert ratio.low == pytest.approx(1.0)
    assert ratio.high == pytest.approx(2.0)
    assert (ratio.prompts, ratio.parted, ratio.basis) == (2, 0, "same tokens")


def test_prompts_with_other_ids_are_refused_within_one_engine() -> None:
    ratio = compare_rows("fast", "slow", FAST, SLOW, parted=["b"], same_engine=True)
    assert ratio is not None
    assert (ratio.prompts, ratio.parted, ratio.basis) == (1, 1, "same tokens")
    assert ratio.mean == pytest.approx(2.0)
    assert compare_rows("f", "s", FAST, SLOW, parted=["a", "b"], same_engine=True) is None


def test_other_engines_are_compared_per_token() -> None:
    ratio = compare_rows("fast", "slow", FAST, SLOW, parted=["b"], same_engine=False)
    assert ratio is not None
    assert (ratio.prompts, ratio.parted, ratio.basis) == (2, 1, "per token")
    same = compare_rows("fast", "slow", FAST, SLOW, parted=[], same_engine=False)
    assert same is not None
    assert same.basis == "same tokens"
    raw = compare_rows("raw", "slow", FAST, SLOW, parted=None, same_engine=False)
    assert raw is not None
    assert (raw.parted, raw.basis) == (0, "per token")


def test_answers_of_other_lengths_are_weighed_by_their_tokens() -> None:
    long, short = {"a": {0: decoded(100, 10.0)}}, {"a": {0: decoded(10, 2.0)}}
    assert total_ratios(long, short, ["a"]) == [pytest.approx(2.0)]


def test_one_token_answers_have_no_ratio() -> None:
    one = {"a": {0: decoded(0, 0.0)}}
    assert compare_rows("x", "y", one, FAST, parted=[], same_engine=True) is None


def test_the_interval_is_the_same_on_every_call_and_narrows_with_prompts() -> None:
    rng = np.random.default_rng(5)
    few, many = np.log(rng.uniform(1, 2, 5)), np.log(rng.uniform(1, 2, 500))
    assert bootstrap(few) == bootstrap(few)
    mean, low, high = bootstrap(many)
    assert low < mean < high
    assert high - low < 0.1 < bootstrap(few)[2] - bootstrap(few)[1]
    assert mean == pytest.approx(math.exp(np.mean(many)))
