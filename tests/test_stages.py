"""How stacks are spelled, and that the levels they make draft what was asked."""

import json

import pytest
from tiny_bundle import make_bundle

from runtime import Engine, RequestError
from runtime.request import make_request
from runtime.stack import plan_stages
from runtime.stages import Stage, default_stages, parse_stages
from runtime.trace import open_trace

DRAFTS = ("draft", "draft1")


@pytest.mark.parametrize(
    ("texts", "stages"),
    [
        (["suffix"], [Stage(("suffix",))]),
        (["draft:2"], [Stage((), "draft", 2)]),
        (["suffix|draft"], [Stage(("suffix",), "draft")]),
        (["draft | lookup : 3"], [Stage(("lookup",), "draft", 3)]),
        (
            ["suffix:4", "draft1", "suffix|lookup|draft"],
            [
                Stage(("suffix",), None, 4),
                Stage((), "draft1"),
                Stage(("suffix", "lookup"), "draft"),
            ],
        ),
    ],
)
def test_stages_are_spelled_bottom_first(texts, stages):
    assert parse_stages(texts, DRAFTS) == tuple(stages)
    assert parse_stages([str(stage) for stage in stages], DRAFTS) == tuple(stages)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["ghost"], "drafters of this bundle .suffix, lookup, draft, draft1., not 'ghost'"),
        ([""], "not ''"),
        (["suffix|"], "not ''"),
        (["draft", "suffix"], "suffix has no model to guard"),
        (["draft", "draft"], "must not name a model twice"),
        (["draft|draft1"], "at most one model"),
        (["suffix|suffix|draft"], "no drafter twice"),
        (["draft:0"], "a whole number from 1 to 64"),
        (["draft:65"], "a whole number from 1 to 64"),
        (["draft:"], "a whole number from 1 to 64"),
        (["draft:x"], "a whole number from 1 to 64"),
    ],
)
def test_what_no_stack_can_be_is_refused(texts, reason):
    with pytest.raises(RequestError, match=reason):
        parse_stages(texts, DRAFTS)


def test_n_grams_are_a_stage_of_bundles_that_have_them():
    stages = (Stage(("suffix", "ngram"), None, 2), Stage((), "draft"))
    assert parse_stages(["suffix|ngram:2", "draft"], DRAFTS, has_ngrams=True) == stages
    with pytest.raises(RequestError, match=r"not 'ngram': build it with  python -m tools.ngram"):
        parse_stages(["ngram"], DRAFTS)
    with pytest.raises(RequestError, match=r"suffix, lookup, ngram, draft, draft1.*'ghost'"):
        parse_stages(["ghost"], DRAFTS, has_ngrams=True)
    with pytest.raises(RequestError, match="ngram has no model to guard"):
        parse_stages(["draft", "ngram"], DRAFTS, has_ngrams=True)


@pytest.mark.parametrize(
    ("drafts", "is_controlled", "stages"),
    [
        (DRAFTS, False, ["draft1", "draft"]),
        (DRAFTS, True, ["draft1", "suffix|draft"]),
        ([], False, ["suffix"]),
        ([], True, ["suffix"]),
    ],
)
def test_by_default_all_drafts_stand_above_each_other(drafts, is_controlled, stages):
    default = default_stages(drafts, is_controlled=is_controlled)
    assert [str(stage) for stage in default] == stages


def plan(**options):
    stages = plan_stages(DRAFTS, make_request(options), is_controlled=True)
    return [str(stage) for stage in stages]


def test_k_is_the_last_stages_number():
    assert plan(stages=["suffix:5", "draft"], k=2) == ["suffix:5", "draft:2"]
    assert plan(stages=["draft:3"]) == ["draft:3"]
    assert plan(speculate="k=4", stages=["draft"]) == ["draft:4"]
    assert plan(k=2) == ["draft1", "draft:2"]
    assert plan() == ["draft1", "suffix|draft"]
    assert plan(speculate="off", stages=["draft"]) == plan(k=0) == plan(stages=[], k=2) == []
    with pytest.raises(RequestError, match="give one of the two"):
        plan(stages=["draft:3"], k=3)


@pytest.mark.parametrize("speculate", ["k=", "k=x", "k=-1", "fast", 4, None])
def test_speculate_is_auto_off_or_a_number(speculate):
    with pytest.raises(RequestError, match="speculate must be"):
        make_request({"speculate": speculate})


def test_two_ways_to_say_k_must_agree():
    assert make_request({"speculate": "k=4", "k": 4}).k == 4
    with pytest.raises(RequestError, match="k the same"):
        make_request({"speculate": "k=4", "k": 5})


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = make_bundle(tmp_path_factory.mktemp("bundle"), drafts=2, context=64, seed=4)
    with Engine.open(folder, threads=1) as engine:
        yield engine


STACKS = [
    ["suffix:3"],
    ["draft:4"],
    ["lookup|draft:4"],
    ["draft1:2", "draft:4"],
    ["suffix:2", "suffix|draft1:3", "lookup|draft:5"],
]


@pytest.mark.parametrize("stages", STACKS)
def test_every_level_counts_its_own_rounds(engine, tmp_path, stages):
    path = tmp_path / "trace.jsonl"
    with open_trace(path) as watch:
        options = {"stages": stages, "temperature": 1.0, "max_tokens": 30, "ignore_eos": True}
        answer = engine.complete("abcabcabcabcab", seed=3, watch=watch, **options)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    levels = {level.name: level for level in answer.stats.levels}
    assert next(iter(levels)) == "target"
    assert set(levels) == {"target", *(line["level"] for line in lines)}
    for name, level in levels.items():
        rounds = [line for line in lines if line["level"] == name]
        assert level.passes == len(rounds)
        for drafter in level.drafters:
            own = [line for line in rounds if line["drafter"] == drafter.name]
            assert drafter.drafted == sum(len(line["drafted"]) for line in own)
            if name != "target":  # what the budget cut from the target's last round is uncounted
                for place in range(len(drafter.accepted)):
                    assert drafter.accepted[place] == sum(line["accepted"] > place for line in own)
        assert all(len(line["drafted"]) <= 5 for line in rounds)
    emitted = [token for line in lines if line["level"] == "target" for token in line["emitted"]]
    assert tuple(emitted[: len(answer.token_ids)]) == answer.token_ids
    target = levels["target"]
    assert sum(map(sum, (drafter.tested for drafter in target.drafters))) == answer.stats.tested


def test_a_trace_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(RequestError, match="cannot be written"), open_trace(tmp_path / "no" / "t"):
        pass
