"""Sweeps: what can be typed, and prompts of exactly the length that was asked for."""

import pytest

from tools.bench.prompts import Prompt
from tools.bench.sweeps import SweepPoint, choose_prompts, parse_sweep, stretch
from tools.errors import ToolError

PROMPTS = [Prompt(name=n, category="c", ids=ids) for n, ids in (("p", (1, 2, 3)), ("q", (4, 5)))]


def test_words_spell_points_in_their_order() -> None:
    points = parse_sweep(["prompt=32,256", "threads=1"])
    assert [point.name for point in points] == ["prompt=32", "prompt=256", "threads=1"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("length=3", "one of prompt, output, concurrency, threads, not 'length'"),
        ("prompt", "'' is not a whole number"),
        ("prompt=a", "'a' is not a whole number of at least 1; give values such as prompt=1,2"),
        ("threads=0", "'0' is not a whole number"),
        ("output=1,-2", "'-2' is not a whole number"),
    ],
)
def test_words_that_spell_no_point_are_refused(word: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        parse_sweep([word])


@pytest.mark.parametrize("length", [1, 3, 4, 11])
def test_a_stretched_prompt_has_exactly_its_length(length: int) -> None:
    assert len(stretch(PROMPTS, length, start=0).ids) == length


def test_stretched_prompts_go_round_the_texts_and_differ() -> None:
    assert stretch(PROMPTS, 7, start=0).ids == (1, 2, 3, 4, 5, 1, 2)
    assert stretch(PROMPTS, 7, start=1).ids == (4, 5, 1, 2, 3, 4, 5)
    chosen = choose_prompts(SweepPoint(axis="prompt", value=4), PROMPTS)
    assert [len(prompt.ids) for prompt in chosen] == [4, 4]
    assert len({prompt.name for prompt in chosen}) == 2


def test_a_load_has_as_many_prompts_as_requests() -> None:
    chosen = choose_prompts(SweepPoint(axis="concurrency", value=5), PROMPTS)
    assert len(chosen) == len({prompt.name for prompt in chosen}) == 5
    assert [prompt.ids for prompt in chosen[:3]] == [(1, 2, 3), (4, 5), (1, 2, 3)]
