"""The meter of the benchmark, proven by a fake engine with known delays and bursts."""

import io
from collections.abc import Sequence

import pytest
from bench_fake import FakeClock, FakeEngine

from tools.bench.figures import Figures, find_percentiles, make_spread, read_answer, total_rate
from tools.bench.serve import measure, serve
from tools.bench.wire import Answer, Failure, Hello, Job, decode, encode


def answer(bursts: Sequence[tuple[float, int]]) -> Answer:
    clock = FakeClock()
    job = Job(prompt_ids=(1, 2), max_tokens=64, settings={"bursts": bursts})
    return measure(FakeEngine(clock), job, clock=clock)


def figures(bursts: Sequence[tuple[float, int]]) -> Figures:
    return read_answer(answer(bursts))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_tokens_are_counted_by_ids_however_they_are_chunked(width: int) -> None:
    # 17 tokens: the first after 2 s, 16 more at 0.05 s each, in bursts of `width`.
    found = figures([(2.0, 1), *[(0.05 * width, width)] * (16 // width)])
    assert found.tokens == 17
    assert found.first_token_s == pytest.approx(2.0)
    assert found.decode_tokens == 16
    assert found.decode_s == pytest.approx(0.8)
    assert found.token_s == pytest.approx(0.05)  # (E2E - TTFT) / (n - 1) = 0.8 / 16
    assert found.gaps_s == pytest.approx([0.05 * width] * (16 // width))


def test_the_time_of_the_reset_is_nobodys() -> None:
    assert answer([(1.0, 1)]).wall_s == pytest.approx(1.0)


def test_what_comes_with_the_first_chunk_is_no_decoding() -> None:
    found = figures([(1.0, 3), (0.5, 2)])
    assert (found.tokens, found.decode_tokens, found.token_s) == (5, 2, pytest.approx(0.25))


def test_an_answer_of_one_token_has_no_rate() -> None:
    found = figures([(1.0, 1)])
    assert found.tokens == 1
    assert found.first_token_s == pytest.approx(1.0)
    assert found.token_s is None
    assert total_rate([found]) is None
    assert find_percentiles([found]) == {}


def test_an_empty_answer_has_no_times() -> None:
    found = figures([])
    assert (found.tokens, found.first_token_s, found.token_s) == (0, None, None)


def test_chunks_without_tokens_are_neither_tokens_nor_gaps() -> None:
    # Held-back text and a flush at the end: the first id, not the first chunk, is the first token.
    found = figures([(0.4, 0), (0.6, 1), (0.2, 0), (0.3, 2), (9.0, 0)])
    assert found.first_token_s == pytest.approx(1.0)
    assert found.tokens == 3
    assert found.decode_s == pytest.approx(0.5)
    assert found.gaps_s == pytest.approx([0.5])


def test_the_first_text_may_come_later_than_the_first_token() -> None:
    clock = FakeClock()

    class Holding(FakeEngine):
        def run(self, job, emit):  # type: ignore[no-untyped-def]
            for shows in (False, False, True):
                self.clock.now += 0.5
                emit([1], shows_text=shows)
            return {}

    found = read_answer(measure(Holding(clock), Job(prompt_ids=(1,), max_tokens=3), clock=clock))
    assert found.first_token_s == pytest.approx(0.5)
    assert found.first_text_s == pytest.approx(1.5)


def test_the_total_rate_is_all_tokens_over_all_time() -> None:
    slow = figures([(1.0, 1), (1.0, 1)])
    fast = figures([(1.0, 1), *[(0.1, 1)] * 10])
    assert total_rate([slow, fast]) == pytest.approx(11 / 2.0)


def test_percentiles_pool_the_gaps_between_chunks() -> None:
    found = find_percentiles([figures([(1.0, 1), *[(0.1, 4)] * 99, (2.0, 4)])])
    assert found["p50"] == pytest.approx(0.1)
    assert found["p95"] == pytest.approx(0.1)
    assert found["p99"] == pytest.approx(0.1 + 0.01 * 1.9)


def test_a_spread_leaves_out_what_is_unknown() -> None:
    spread = make_spread([3.0, None, 1.0, 2.0])
    assert spread is not None
    assert (spread.low, spread.median, spread.high) == (1.0, 2.0, 3.0)
    assert make_spread([None]) is None


def test_a_message_survives_the_wire() -> None:
    for message in (
        Job(prompt_ids=(1, 2), max_tokens=3, settings={"k": 2}),
        answer([(1.0, 1), (0.5, 3)]),
        Hello(versions={"a": "1"}, threads=2, load_s=0.5),
        Failure(reason="too big"),
    ):
        assert decode(encode(message)) == message
        assert encode(message).count("\n") == 1


@pytest.mark.parametrize("line", ["", "[]", '{"kind": "Other"}', "a traceback"])
def test_a_line_that_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(line)


def test_a_failing_job_ends_neither_the_worker_nor_the_next_job() -> None:
    clock, out = FakeClock(), io.StringIO()
    jobs = [
        Job(prompt_ids=(1,), max_tokens=1, settings={"crash": True}),
        Job(prompt_ids=(1,), max_tokens=2),
    ]
    code = serve(
        lambda: FakeEngine(clock),
        jobs=io.StringIO("".join(map(encode, jobs))),
        answers=out,
        clock=clock,
    )
    hello, failure, good = map(decode, out.getvalue().splitlines())
    assert code == 0
    assert isinstance(hello, Hello)
    assert failure == Failure(reason="ValueError: the fake was told to fail; and says more")
    assert isinstance(good, Answer)
    assert good.token_ids == (0, 1)
