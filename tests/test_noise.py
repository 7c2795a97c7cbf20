"""Randomness is a function: the same arguments give the same number, other arguments another."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.noise import Noise, Purpose, fresh_seed

SEEDS = st.integers(0, 2**64 - 1)
PATHS = st.lists(st.integers(0, 2**40), max_size=3).map(tuple)


@given(seed=SEEDS, path=PATHS, position=st.integers(0, 2**40), purpose=st.sampled_from(Purpose))
def test_same_arguments_same_number_in_the_unit_interval(seed, path, position, purpose):
    number = Noise(seed, path).uniform(position, purpose)
    assert 0 <= number < 1
    assert number == Noise(seed, path).uniform(position, purpose)


def test_any_other_argument_gives_another_number():
    seeds, paths, positions = (0, 1, 2**64 - 1), ((), (0,), (1,), (0, 0), (0, 1)), (0, 1, 2, 255)
    grid = itertools.product(seeds, paths, positions, Purpose)
    numbers = [Noise(seed, path).uniform(place, purpose) for seed, path, place, purpose in grid]
    assert len(set(numbers)) == len(numbers)


def test_inside_extends_the_path():
    assert Noise(5).inside(3).inside(7) == Noise(5, (3, 7))


def test_exponentials_depend_on_seed_and_position_but_not_on_the_level():
    noise = Noise(1)
    here = noise.exponentials(4, 16)
    assert np.array_equal(here, noise.inside(2).inside(3).exponentials(4, 16))
    for other in (Noise(2).exponentials(4, 16), noise.exponentials(5, 16)):
        assert not np.isin(other, here).any()


@given(seed=SEEDS, position=st.integers(0, 2**40), size=st.integers(1, 300), more=st.integers(0, 9))
def test_a_smaller_vocabulary_sees_the_same_exponentials(seed, position, size, more):
    noise = Noise(seed)
    wide = noise.exponentials(position, size + more)
    assert np.array_equal(noise.exponentials(position, size), wide[:size])
    assert np.isfinite(wide).all()


def test_exponentials_are_positive_at_both_ends_of_the_generator(monkeypatch):
    class Extremes:
        def __init__(self, _bits):
            pass

        def random(self, size):
            return np.array([0.0, 2**-53, 1 - 2**-53])[:size]

    monkeypatch.setattr(np.random, "Generator", Extremes)
    # A zero would win the race over any law, also for a token of probability zero.
    numbers = Noise(0).exponentials(0, 3)
    assert (numbers > 0).all()
    assert np.isfinite(numbers).all()


def test_numbers_look_uniform_and_exponential():
    uniforms = np.array([Noise(9).uniform(i, Purpose.EMIT) for i in range(4000)])
    shares = np.histogram(uniforms, bins=8, range=(0, 1))[0] / 4000
    assert abs(shares - 1 / 8).max() < 0.03  # six standard deviations
    numbers = Noise(9).exponentials(0, 40_000)
    assert abs(numbers.mean() - 1) < 0.03
    assert abs((numbers > 1).mean() - np.exp(-1)) < 0.015


def test_the_function_is_pinned():
    # A change of these numbers changes what every stored seed means: say so in the release notes.
    assert Noise(0).uniform(0, Purpose.EMIT) == 0.42310796003992857
    assert Noise(42, (7, 8)).uniform(9, Purpose.ACCEPT) == 0.8260296191269072
    # Processors differ in the last bits of a logarithm.
    expected = pytest.approx([0.19225662299416313, 0.3453089014799188], rel=1e-12)
    assert Noise(2**64 - 1).exponentials(3, 2).tolist() == expected


def test_fresh_seeds_differ_and_survive_json():
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**53 for seed in seeds)
