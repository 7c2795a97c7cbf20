"""The order of measuring: alternating, reversed, resumable, and rows that fail leave the rest."""

from tools.bench.prompts import Prompt
from tools.bench.rows import Row, make_own_rows
from tools.bench.turns import Plan, Sample, take_turns, warm_up
from tools.bench.wire import Answer, Job, Timed
from tools.bench.worker import WorkerError

A, B = Row(name="a", worker="w"), Row(name="b", worker="w")
RAW = Row(name="raw", worker="w", emits_answer=False)


def make_plan(*rows: Row, repeats: int = 2) -> Plan:
    prompts = tuple(Prompt(name=name, category="c", ids=(1, 2)) for name in ("p", "q"))
    return Plan(
        rows=rows,
        prompts=prompts,
        repeats=repeats,
        max_tokens=32,
        warm_ups=2,
        lengths={"p": 7, "q": 9},
    )


def answer(_row: Row, _job: Job) -> Answer:
    return Answer(chunks=(Timed(at_s=1.0, token_ids=(5,)),))


def test_rows_alternate_and_turn_round_in_every_other_repeat() -> None:
    order = [(repeat, p.name, row.name) for repeat, p, row in make_plan(A, B, repeats=3).order()]
    assert order[:4] == [(0, "p", "a"), (0, "p", "b"), (0, "q", "a"), (0, "q", "b")]
    assert order[4:8] == [(1, "p", "b"), (1, "p", "a"), (1, "q", "b"), (1, "q", "a")]
    assert [row for _, _, row in order[8:]] == ["a", "b", "a", "b"]


def test_raw_passes_are_as_many_as_the_tokens_of_the_plain_answer() -> None:
    plan = make_plan(A, RAW)
    budgets = {(row.name, p.name): plan.job(row, p).max_tokens for _, p, row in plan.order()}
    assert budgets == {("a", "p"): 32, ("a", "q"): 32, ("raw", "p"): 7, ("raw", "q"): 9}


def test_what_is_done_is_not_asked_again() -> None:
    asked: list[str] = []

    def ask(row: Row, job: Job) -> Answer:
        asked.append(row.name)
        return answer(row, job)

    done = {("", "a", "p", 0), ("", "b", "q", 1)}
    samples = list(take_turns(make_plan(A, B), ask, done=done, failed={}))
    assert len(samples) == 8
    assert samples.count(None) == 2
    assert len(asked) == 6
    places = {sample.place for sample in samples if isinstance(sample, Sample)}
    assert not places & done


def test_a_row_that_fails_has_no_more_turns_and_says_why() -> None:
    asked: list[str] = []

    def ask(row: Row, job: Job) -> Answer:
        asked.append(row.name)
        if row is B and asked.count("b") == 2:
            raise WorkerError("ran out of memory")
        return answer(row, job)

    failed: dict[str, str] = {}
    samples = list(take_turns(make_plan(A, B), ask, done=(), failed=failed))
    assert failed == {"b": "ran out of memory"}
    assert asked.count("a") == 4
    assert asked.count("b") == 2
    assert sum(sample is not None for sample in samples) == 5


def test_warming_up_is_short_and_finds_the_rows_that_cannot() -> None:
    budgets: list[int] = []

    def ask(row: Row, job: Job) -> Answer:
        budgets.append(job.max_tokens)
        if row is B:
            raise WorkerError("no such model")
        return answer(row, job)

    c = Row(name="c", worker="w")
    failed = {"c": "not installed"}
    warm_up(make_plan(A, B, c), ask, failed=failed)
    assert failed == {"c": "not installed", "b": "no such model"}
    assert budgets == [16, 16, 16]


def test_our_rows_are_raw_plain_and_every_stack_at_every_width() -> None:
    rows = make_own_rows([None, ["lookup", "draft"]], [None, 2], ignore_eos=True)
    assert [row.name for row in rows] == [
        *("raw", "plain", "auto", "auto k=2", "lookup+draft", "lookup+draft k=2"),
    ]
    assert not rows[0].emits_answer
    assert rows[1].settings == {"mode": "engine", "ignore_eos": True, "speculate": "off"}
    assert rows[-1].settings == {
        "mode": "engine",
        "ignore_eos": True,
        "speculate": "auto",
        "stages": ["lookup", "draft"],
        "k": 2,
    }
