"""Answers of the whole engine over tiny bundles: on equals off, cuts are exact, nothing leaks."""

import gc
import itertools
import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from line_costs import line_costs
from tiny_bundle import LETTERS, make_bundle

from runtime import Engine, EngineClosedError, PromptTooLongError, RequestError
from runtime.bundle import Bundle, open_bundle
from runtime.stats import LevelStats

VOCABULARY = 16
CONTEXT = 64
STAGES = (
    ["lookup"],
    ["draft"],
    ["draft1"],
    ["lookup", "draft"],
    ["draft1", "draft"],
    ["lookup", "draft1", "draft"],
    ["lookup", "lookup|draft"],
)
PROMPT = "abcdefgh"
END_IN_PROMPT = "efdgefdgef"  # a lookup copies the end token out of it


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory):
    """Open an engine over a new bundle; all are closed in the end."""
    opened = []

    def make(**options):
        options = {"vocabulary": VOCABULARY, "context": CONTEXT, "seed": 4, **options}
        folder = make_bundle(tmp_path_factory.mktemp("bundle"), **options)
        opened.append(Engine.open(folder, threads=1))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


@pytest.fixture(scope="module")
def engine(make_engine):
    return make_engine(drafts=2)


@pytest.fixture(scope="module")
def twin(make_engine):
    """An engine whose draft is its target: every greedy proposal is accepted."""
    return make_engine(drafts=1, distance=0.0, end_ids=())


def with_ends(engine, *ids):
    """Return an engine over the same models for which `ids` end a text."""
    bundle = Bundle(engine.bundle.folder, replace(engine.bundle.manifest, end_ids=ids))
    return Engine(bundle, engine.target, engine.drafts, engine.tokenizer, None)


def outcome(completion):
    check_stats(completion)
    parts = ("token_ids", "text", "finish_reason", "prompt_tokens", "seed")
    return {part: getattr(completion, part) for part in parts}


def check_stats(completion):
    stats, emitted = completion.stats, len(completion.token_ids)
    assert 0 <= stats.accepted <= stats.tested <= stats.drafted
    # A cut may end the answer with an accepted token: the pass then added none of its own.
    cut = stats.target_passes + stats.accepted - emitted
    assert cut in ((0, 1) if completion.finish_reason == "stop" else (0,))
    assert stats.mean_accepted_length == (emitted / stats.target_passes if emitted else None)
    rate = stats.accepted / stats.tested if stats.tested else None
    assert stats.acceptance_rate == rate
    assert (stats.time_to_first_token_s is None) == (emitted == 0)
    assert (stats.decode_tokens_per_s is None) == (stats.target_passes < 2)


def cached(engine):
    return [model.cache.tokens for model in (engine.target, *engine.drafts.values())]


def check_caches(engine, prompt_ids, completion):
    """Nothing is cached but what was asked and returned."""
    told = [*prompt_ids, *completion.token_ids]
    for tokens in cached(engine):
        assert tokens == told[: len(tokens)]
    if completion.token_ids:
        assert len(engine.target.cache.tokens) >= len(told) - 1


def forget(engine):
    for model in (engine.target, *engine.drafts.values()):
        model.rewind(to=0)


# --- on equals off --------------------------------------------------------------------------------

SETTINGS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1e6},
    "cold": {"temperature": 1e-9},
    "top_k": {"temperature": 1.0, "top_k": 3},
    "top_p": {"temperature": 1.0, "top_p": 0.6},
    "min_p": {"temperature": 1.3, "min_p": 0.2},
    "repetition": {"repetition_penalty": 1.5},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.4},
    "frequency reward": {"frequency_penalty": -0.4},
    "bias": {"logit_bias": {0: 1.5, 2: -math.inf, 3: -2.0}},
    "stop": {"stop": ["pg", "c", "aa", "lm"]},
    "min_tokens": {"min_tokens": 9, "logit_bias": {3: 3.0}},
    "max_tokens": {"max_tokens": 7},
    "ignore_eos": {"ignore_eos": True, "logit_bias": {3: 2.0}},
    "all": {
        "temperature": 0.9,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {3: 1.0},
        "stop": ["ab", "pgn"],
        "min_tokens": 3,
        "max_tokens": 19,
    },
}


@pytest.fixture(scope="module")
def portable(make_engine):
    return make_engine(drafts=2, flavour="portable")


@pytest.mark.parametrize("coupled", [False, True], ids=["greedy", "coupled"])
@pytest.mark.parametrize(
    ("engine_name", "name"), [*(("engine", name) for name in SETTINGS), ("portable", "all")]
)
def test_speculation_changes_no_answer(request, engine_name, name, coupled):
    engine = request.getfixturevalue(engine_name)
    options = {"max_tokens": 20, "seed": 1, **SETTINGS[name]}
    if coupled:
        options = {"temperature": 1.0, **options, "coupled": True}
    else:
        options |= {"temperature": 0}
    for prompt, stages, ks in (
        *[(PROMPT, stages, (1, 2, 4, 8, 20)) for stages in STAGES],
        *[(END_IN_PROMPT, stages, (0, 4)) for stages in STAGES if "lookup" in stages],
    ):
        off = outcome(engine.complete(prompt, speculate="off", **options))
        for k in ks:
            assert outcome(engine.complete(prompt, stages=stages, k=k, **options)) == off, k


def test_the_settings_above_shape_the_answers(engine):
    """Each setting matters: else the comparison above would say nothing."""
    base = {"max_tokens": 30, "temperature": 1.0, "coupled": True}
    plain = [engine.complete(PROMPT, seed=seed, **base).token_ids for seed in range(8)]
    for name, options in SETTINGS.items():
        if options and name != "temperature":
            options = {**base, **options}
            other = [engine.complete(PROMPT, seed=seed, **options).token_ids for seed in range(8)]
            assert other != plain, name


@pytest.mark.parametrize("coupled", [False, True], ids=["greedy", "coupled"])
def test_a_draft_with_a_shorter_context_only_stops_drafting(make_engine, coupled):
    short = make_engine(drafts=2, draft_context=14, end_ids=())
    options = {"max_tokens": 20, "seed": 3, "temperature": float(coupled), "coupled": coupled}
    for prompt in ("ab", PROMPT, "abcdefghijklm", "abcdefghijklmn", "abcdefghijklmnop"):
        off = outcome(short.complete(prompt, speculate="off", **options))
        for stages, k in itertools.product(STAGES, (1, 4, 20)):
            assert outcome(short.complete(prompt, stages=stages, k=k, **options)) == off


@pytest.mark.parametrize("padding", [(5, 0), (0, 5), (5, 3), (3, 5)])
def test_padded_logits_are_never_drafted_sampled_or_fed(make_engine, padding):
    padded, narrow = (make_engine(padding=p, end_ids=()) for p in (padding, (0,)))
    for options in (
        {"temperature": 0},
        {"temperature": 1e6},
        {"temperature": 1.0, "coupled": True},
    ):
        for stages, rule in itertools.product((["lookup"], ["draft"]), ("block", "token")):
            options = {**options, "stages": stages, "k": 4, "seed": 1, "rule": rule}
            answers = [e.complete(PROMPT, max_tokens=50, **options) for e in (padded, narrow)]
            assert outcome(answers[0]) == outcome(answers[1])
            assert max(answers[0].token_ids) < VOCABULARY
            assert all(max(tokens, default=0) < VOCABULARY for tokens in cached(padded))
    with pytest.raises(RequestError, match="token id 16"):
        padded.complete([VOCABULARY])


@pytest.mark.parametrize(
    "stages", [None, ["lookup"], ["suffix", "lookup|draft"], ["draft1:2", "draft"]]
)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "coupled": True}])
def test_lengths_chosen_by_cost_change_no_token(engine, stages, options):
    options = {"max_tokens": 40, "ignore_eos": True, "seed": 3, **options}
    off = engine.complete(PROMPT, speculate="off", **options)
    forget(engine)
    on = engine.complete(PROMPT, stages=stages, **options)
    assert outcome(on) == outcome(off)
    assert sum(chosen.rounds for chosen in on.stats.choices.rounds) > 0
    check_caches(engine, engine.encode(PROMPT), on)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_of_a_short_context_falls_silent_where_it_ends(make_engine, temperature):
    engine = make_engine(drafts=1, context=300, draft_context=64, distance=0.0, end_ids=())
    engine._costs.obtain = lambda *_, **__: line_costs(engine.drafts)
    options = {"max_tokens": 200, "temperature": temperature, "coupled": True, "seed": 1}
    for prompt in (PROMPT, PROMPT * 6, PROMPT * 12):
        off = engine.complete(prompt, speculate="off", **options)
        assert outcome(engine.complete(prompt, **options)) == outcome(off)


def test_a_sampled_text_does_not_depend_on_earlier_requests(make_engine):
    engine = make_engine(drafts=1, context=400, end_ids=())
    engine._costs.obtain = lambda *_, **__: line_costs(engine.drafts)
    prompt = PROMPT * 18
    options = {"temperature": 1.0, "max_tokens": 40}
    for seed in range(4):
        first = engine.complete(prompt, seed=seed, **options)
        assert outcome(engine.complete(prompt, seed=seed, **options)) == outcome(first)


def test_choices_count_what_stayed_of_the_last_round(make_engine):
    engine = make_engine(drafts=1, distance=0.0, end_ids=())  # every proposal stays
    engine._costs.obtain = lambda *_, **__: line_costs(engine.drafts)
    whole = engine.complete(PROMPT, speculate="off", max_tokens=30)
    cut = 0
    for place in range(3, 24):
        answer = engine.complete(PROMPT, stages=["draft"], max_tokens=30, stop=whole.text[place:25])
        choices = answer.stats.choices
        assert choices.emitted_tokens == len(answer.token_ids) - 1
        decided = sum(chosen.rounds * (chosen.tokens + 1) for chosen in choices.rounds)
        cut += decided > choices.emitted_tokens
    assert cut > 0


def test_a_reader_in_another_thread_may_go_on_and_ask_again(make_engine):
    engine = make_engine(drafts=0)
    answer = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
    starter = threading.Thread(target=next, args=(answer,))
    starter.start()
    starter.join()
    next(answer)
    with pytest.raises(RequestError, match="still being read in this thread"):
        engine.complete(PROMPT)
    answer.close()


def test_an_engine_that_measures_nothing_drafts_by_fixed_lengths(make_engine):
    folder = make_engine(drafts=1).bundle.folder
    with Engine.open(folder, threads=1, measure_costs=False) as engine:
        answer = engine.complete(PROMPT, max_tokens=12, ignore_eos=True)
    assert answer.stats.choices is None
    assert [drafter.name for drafter in answer.stats.levels[0].drafters] == ["draft"]


# --- cuts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("budget", [0, 1, 2, 3, 4, 5, 8, 9, 10])
def test_a_budget_is_met_exactly_and_nothing_is_drafted_beyond_it(twin, k, budget):
    answer = twin.complete(PROMPT, stages=["draft"], k=k, max_tokens=budget)
    assert len(answer.token_ids) == budget
    assert answer.finish_reason == "length"
    full = twin.complete(PROMPT, speculate="off", max_tokens=budget)
    assert outcome(answer) == {**outcome(full), "seed": answer.seed}
    drafted, left = 0, budget - 1
    while left > 0:  # the first token comes with the prompt, each round adds one of its own
        drafted += min(k, left - 1)
        left -= min(k, left - 1) + 1
    assert answer.stats.drafted == answer.stats.accepted == drafted
    check_caches(twin, twin.encode(PROMPT), answer)


@pytest.mark.parametrize("stages", STAGES[:4])
@pytest.mark.parametrize("room", [1, 2, 3])
def test_the_last_places_of_the_context_are_used(engine, stages, room):
    prompt = (PROMPT * 8)[: CONTEXT - room]
    off = engine.complete(prompt, speculate="off", ignore_eos=True, seed=0)
    on = engine.complete(prompt, stages=stages, k=4, ignore_eos=True, seed=0)
    assert outcome(on) == outcome(off)
    assert len(on.token_ids) == room
    assert on.finish_reason == "length"


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("place", range(6))
def test_an_end_token_ends_the_answer_wherever_it_stands_in_a_block(twin, k, place):
    whole = twin.complete(PROMPT, speculate="off", max_tokens=12)
    end = whole.token_ids[place]
    place = whole.token_ids.index(end)
    engine = with_ends(twin, end)
    for stages in (["draft"], ["lookup"]):
        forget(twin)
        answer = engine.complete(PROMPT, stages=stages, k=k, max_tokens=12, seed=0)
        assert answer.token_ids == whole.token_ids[: place + 1]
        assert answer.finish_reason == "stop"
        assert answer.text == whole.text[:place]
        check_stats(answer)
        check_caches(engine, engine.encode(PROMPT), answer)
        off = engine.complete(PROMPT, speculate="off", max_tokens=12, seed=0)
        assert outcome(answer) == outcome(off)
        on = engine.complete(PROMPT, stages=stages, k=k, max_tokens=12, ignore_eos=True, seed=0)
        assert on.token_ids == whole.token_ids


def reference_cut(tokens, stops, budget, end):
    """Where an answer over single letters ends: (ids, text, reason)."""
    text = ""
    for count, token in enumerate(tokens[:budget], 1):
        if token == end:
            return tokens[:count], text, "stop"
        text += LETTERS[token]
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            return tokens[:count], text[: min(places)], "stop"
    return tokens[:budget], text, "length"


@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_earliest_of_stop_end_and_budget_wins(twin, k):
    whole = twin.complete(PROMPT, speculate="off", max_tokens=14)
    tokens, text = whole.token_ids, whole.text
    pieces = {text[i : i + size] for i in range(1, 8) for size in (1, 2, 3)}
    for stop, end in itertools.product(sorted(pieces), (-1, tokens[3], tokens[5])):
        engine = with_ends(twin, *[end] * (end >= 0))
        at = text.index(stop) + len(stop)
        for budget in (at - 1, at, at + 1, 14):
            for stops in ([stop], [stop, text[4:6]]):
                ids, shown, reason = reference_cut(tokens, stops, budget, end)
                options = {"stop": stops, "max_tokens": budget, "stages": ["draft"], "k": k}
                answer = engine.complete(PROMPT, seed=0, **options)
                told = (answer.token_ids, answer.text, answer.finish_reason)
                assert told == (ids, shown, reason), options
                check_stats(answer)
                check_caches(engine, engine.encode(PROMPT), answer)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "coupled": True}])
def test_a_second_turn_on_a_warm_cache_equals_a_cold_one(engine, make_engine, options):
    cold = make_engine(drafts=2)
    for stages, k, stop in itertools.product(STAGES, (1, 4), ((), ("c",), ("gn", "m"))):
        options = {**options, "stages": stages, "k": k, "max_tokens": 9, "seed": 5}
        first = engine.complete(PROMPT, stop=stop, **options)
        second = [*engine.encode(PROMPT), *first.token_ids, 0, 1, 2]
        warm = engine.complete(second, **options)
        forget(cold)
        assert outcome(warm) == outcome(cold.complete(second, **options))


def test_a_second_turn_feeds_only_what_is_new(engine, monkeypatch):
    first = engine.complete(PROMPT, max_tokens=8, ignore_eos=True)
    second = [*engine.encode(PROMPT), *first.token_ids, 0, 1]
    fed = []
    real = engine.target._feed
    monkeypatch.setattr(
        engine.target, "_feed", lambda new, rows: fed.append(len(new)) or real(new, rows)
    )
    engine.complete(second, max_tokens=1)
    assert fed == [3]  # the first answer's last token was never fed


# --- seeds and neighbours -------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["block", "token"])
@pytest.mark.parametrize("stages", [[], *STAGES])
def test_a_seed_gives_the_same_text_whatever_happened_before(engine, stages, rule):
    options = {"temperature": 1.0, "stages": stages, "k": 4, "rule": rule, "max_tokens": 20}
    first = [outcome(engine.complete(PROMPT, seed=seed, **options)) for seed in range(1, 21)]
    assert len({answer["token_ids"] for answer in first}) > 10
    forget(engine)
    for seed in range(20, 0, -1):
        engine.complete("ponm", seed=7, **options)
        assert outcome(engine.complete(PROMPT, seed=seed, **options)) == first[seed - 1]


def test_a_fresh_seed_is_reported_and_repeats_the_answer(engine):
    answers = [engine.complete(PROMPT, temperature=1.0, max_tokens=20) for _ in range(4)]
    assert len({answer.seed for answer in answers}) == 4
    for answer in answers:
        again = engine.complete(PROMPT, temperature=1.0, max_tokens=20, seed=answer.seed)
        assert outcome(again) == outcome(answer)


def test_seeds_of_any_whole_type_are_the_same_seed(engine):
    options = {"temperature": 1.0, "max_tokens": 20}
    plain = engine.complete(PROMPT, seed=5, **options)
    assert outcome(engine.complete(PROMPT, seed=np.int64(5), **options)) == outcome(plain)
    assert type(engine.complete(PROMPT, seed=np.uint64(5), **options).seed) is int
    engine.complete(PROMPT, seed=2**64 - 1, **options)


def test_threads_take_turns_and_each_gets_its_own_answer(engine):
    jobs = [
        {"prompt": PROMPT[i % 3 :], "seed": i, "temperature": i % 2 * 1.0, "stages": STAGES[i % 6]}
        for i in range(24)
    ]
    expected = [outcome(engine.complete(max_tokens=20, k=4, **job)) for job in jobs]
    found = [None] * len(jobs)

    def work(start):
        for i in range(start, len(jobs), 2):
            chunks = list(engine.generate(max_tokens=20, k=4, **jobs[i]))
            found[i] = tuple(token for chunk in chunks for token in chunk.token_ids)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found == [answer["token_ids"] for answer in expected]


# --- iterators and closing ------------------------------------------------------------------------


def test_chunks_join_to_the_whole_answer(engine):
    options = {"temperature": 1.0, "seed": 3, "stages": ["draft"], "k": 4, "stop": ["lm"]}
    chunks = list(engine.generate(PROMPT, **options))
    whole = engine.complete(PROMPT, **options)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert sum((chunk.token_ids for chunk in chunks), ()) == whole.token_ids
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == whole.finish_reason
    assert {chunk.seed for chunk in chunks} == {3}
    passes = [chunk.stats.target_passes for chunk in chunks]
    assert passes == sorted(passes)


@pytest.mark.parametrize("read", [0, 1, 3])
@pytest.mark.parametrize("end", ["close", "forget"])
def test_an_abandoned_answer_leaves_nothing_behind(engine, read, end):
    options = {"stages": ["lookup", "draft"], "k": 4, "ignore_eos": True, "seed": 1}
    expected = outcome(engine.complete(PROMPT, **options))
    stream = engine.generate("ponmponm", **options)
    shown = [token for _ in range(read) for token in next(stream).token_ids]
    if read:
        told = [*engine.encode("ponmponm"), *shown]
        for model in (engine.target, engine.drafts["draft"]):
            assert model.cache.tokens == told[: model.length]
    if end == "close":
        stream.close()
    del stream
    gc.collect()
    assert outcome(engine.complete(PROMPT, **options)) == expected


def test_a_second_answer_in_one_thread_is_refused_while_the_first_is_read(engine):
    stream = engine.generate(PROMPT, max_tokens=9)
    next(stream)
    with pytest.raises(RequestError, match="still being read in this thread"):
        engine.complete(PROMPT)
    with pytest.raises(RequestError, match="still being read in this thread"):
        next(engine.generate(PROMPT))
    assert list(stream)[-1].finish_reason
    engine.complete(PROMPT, max_tokens=2)


def test_a_closed_engine_says_so(make_engine):
    engine = make_engine(end_ids=())
    stream, unread = engine.generate(PROMPT), engine.generate(PROMPT)
    next(stream)
    engine.close()
    engine.close()
    for call in (lambda: next(stream), lambda: next(unread), lambda: engine.complete(PROMPT)):
        with pytest.raises(EngineClosedError, match="engine is closed"):
            call()
    with pytest.raises(EngineClosedError):
        engine.encode(PROMPT)


def test_closing_waits_for_the_answer_of_another_thread(make_engine):
    engine = make_engine(end_ids=())
    stream = engine.generate(PROMPT, max_tokens=40)
    next(stream)
    failed = []

    def close():
        try:
            engine.close()
        except Exception as error:  # a thread must not lose it
            failed.append(error)

    threads = [threading.Thread(target=close) for _ in range(3)]
    for thread in threads:
        thread.start()
    rest = list(stream)
    assert rest[-1].finish_reason == "length"
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert not failed
    with pytest.raises(EngineClosedError):
        engine.complete(PROMPT)


def test_leaving_the_block_closes(tmp_path):
    folder = make_bundle(tmp_path / "bundle", end_ids=())
    with Engine.open(folder, threads=1) as engine:
        engine.complete("abc", max_tokens=2)
    with pytest.raises(EngineClosedError):
        engine.complete("abc")


# --- requests that cannot be served ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "options", "match"),
    [
        (None, {}, "either a prompt or messages"),
        (PROMPT, {"messages": [{"role": "user", "content": "a"}]}, "either a prompt or messages"),
        (None, {"messages": [{"role": "user", "content": "a"}]}, "no chat template"),
        ("", {}, "holds no token"),
        ([], {}, "holds no token"),
        ([0, -1], {}, "token id -1"),
        ([0, VOCABULARY], {}, "token id 16"),
        ([0, True], {}, "token id True"),
        ([0.0], {}, "token id 0.0"),
        (b"\x00\x01", {}, "must be a text or a list of token ids"),
        (7, {}, "must be a text or a list of token ids"),
        (PROMPT, {"tempature": 1}, "unknown option 'tempature'"),
        (PROMPT, {"max_tokens": -1}, "max_tokens must be"),
        (PROMPT, {"max_tokens": 1.5}, "max_tokens must be"),
        (PROMPT, {"seed": -1}, "seed must be"),
        (PROMPT, {"seed": 2**64}, "seed must be"),
        (PROMPT, {"seed": "1"}, "seed must be"),
        (PROMPT, {"k": -1}, "k must be"),
        (PROMPT, {"k": 65}, "k must be at most 64"),
        (PROMPT, {"stop": [""]}, "stop must not hold an empty text"),
        (PROMPT, {"stop": [1]}, "stop must be a list of texts"),
        (PROMPT, {"stop": None}, "stop must be a list of texts"),
        (PROMPT, {"ignore_eos": 1}, "ignore_eos must be"),
        (PROMPT, {"speculate": "on"}, "speculate must be auto, off or k=N"),
        (PROMPT, {"rule": "match"}, "rule must be one of"),
        (PROMPT, {"stages": ["nothing"]}, "stages must name drafters"),
        (PROMPT, {"stages": ["draft", "lookup"]}, "lookup has no model"),
        (PROMPT, {"stages": ["draft", "draft"]}, "must not name a model twice"),
        (PROMPT, {"temperature": math.nan}, "temperature must be"),
        (PROMPT, {"logit_bias": {VOCABULARY: 1.0}}, "logit_bias names token 16"),
    ],
)
def test_a_bad_request_is_refused_before_anything_runs(engine, prompt, options, match):
    before = [list(tokens) for tokens in cached(engine)]
    with pytest.raises(RequestError, match=match):
        engine.generate(prompt, **options)
    assert cached(engine) == before


def test_a_prompt_without_room_for_a_token_is_refused(engine):
    with pytest.raises(PromptTooLongError, match="has 64 tokens, but the context holds 64"):
        engine.generate((PROMPT * 8)[:CONTEXT])


def test_bundles_open_side_by_side(engine, make_engine):
    other = make_engine(seed=1)
    alone = outcome(engine.complete(PROMPT, seed=1, max_tokens=20))
    stream = other.generate(PROMPT, max_tokens=20)
    next(stream)
    assert outcome(engine.complete(PROMPT, seed=1, max_tokens=20)) == alone
    assert list(stream)[-1].finish_reason
    assert open_bundle(other.bundle.folder).manifest == other.bundle.manifest


def test_a_cut_round_counts_only_what_stayed():
    stats = LevelStats()
    stats.observe(
        drafter="d", drafted=4, accepted=3, draft_seconds=0, verify_seconds=0, sample_seconds=0
    )
    assert (stats.drafted, stats.tested, stats.accepted) == (4, 4, 3)
    stats.retract(accepted=2, rejected=1)  # a stop fell on the first token
    assert (stats.drafted, stats.tested, stats.accepted) == (4, 1, 1)
