"""The order of measuring: every row in turn on each prompt, over and over.

In: rows, prompts and a way to ask a row's worker. Out: samples, one after the other. Rows alternate
A B A B over the prompts of a repeat and go the other way round, B A B A, in the next one, so that
neither drift of the machine nor the place in the order favours a row.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .prompts import Prompt
from .rows import Row
from .wire import Answer, Job
from .worker import WorkerError

WARM_UP_TOKENS = 16

Ask = Callable[[Row, Job], Answer]
Place = tuple[str, str, str, int]  # point, row, prompt, repeat


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answer of one row; `point` names the place in a sweep, empty in the main measurement."""

    row: str
    prompt: str
    repeat: int
    answer: Answer
    point: str = ""

    @property
    def place(self) -> Place:
        """Where the sample stands in the plan."""
        return self.point, self.row, self.prompt, self.repeat


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be measured.

    Attributes:
        rows: in their order.
        prompts: in their order.
        repeats: how often each row answers each prompt.
        max_tokens: of an answer.
        warm_ups: unmeasured answers of each row.
        lengths: tokens of plain decoding's answers by prompt, which raw passes are as many as.
        point: of a sweep.
        concurrency: prompts that are asked at the same moment: the next ones beside each.
    """

    rows: tuple[Row, ...]
    prompts: tuple[Prompt, ...]
    repeats: int
    max_tokens: int
    warm_ups: int
    lengths: Mapping[str, int]
    point: str = ""
    concurrency: int = 1

    def order(self) -> Iterator[tuple[int, Prompt, Row]]:
        """Yield the turns: repeats, in them prompts, in them rows, every other repeat reversed."""
        for repeat in range(self.repeats):
            rows: Sequence[Row] = self.rows if repeat % 2 == 0 else self.rows[::-1]
            for prompt in self.prompts:
                for row in rows:
                    yield repeat, prompt, row

    def job(self, row: Row, prompt: Prompt) -> Job:
        """Return what the row is asked; raw passes are as many as plain decoding's tokens."""
        budget = self.max_tokens if row.emits_answer else self.lengths[prompt.name]
        place = self.prompts.index(prompt)
        beside = [self.prompts[(place + i) % len(self.prompts)] for i in range(self.concurrency)]
        return Job(
            prompt_ids=prompt.ids,
            max_tokens=budget,
            settings=row.settings,
            also=tuple(other.ids for other in beside[1:]),
        )


def warm_up(plan: Plan, ask: Ask, *, failed: dict[str, str]) -> None:
    """Let every row answer the first prompt unmeasured; enter those that cannot in `failed`."""
    tokens = min(WARM_UP_TOKENS, plan.max_tokens)
    for row in plan.rows:
        if row.name in failed:
            continue
        job = Job(prompt_ids=plan.prompts[0].ids, max_tokens=tokens, settings=row.settings)
        try:
            for _ in range(plan.warm_ups):
                ask(row, job)
        except WorkerError as error:
            failed[row.name] = str(error)


def take_turns(
    plan: Plan, ask: Ask, *, done: Collection[Place], failed: dict[str, str]
) -> Iterator[Sample | None]:
    """Yield each turn's sample, or None for a turn that was `done` or whose row has failed.

    A row whose worker fails is entered in `failed` with its reason and has no more turns.
    """
    for repeat, prompt, row in plan.order():
        if row.name in failed or (plan.point, row.name, prompt.name, repeat) in done:
            yield None
            continue
        try:
            answer = ask(row, plan.job(row, prompt))
        except WorkerError as error:
            failed[row.name] = str(error)
            yield None
            continue
        yield Sample(
            row=row.name, prompt=prompt.name, repeat=repeat, answer=answer, point=plan.point
        )
