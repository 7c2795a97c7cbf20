"""What follows from a record: a line for each row, ratios, categories, sweeps, widths of a pass.

In: `Record`. Out: `Summary`, computed anew whenever a report is made.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .figures import Figures, Spread, find_percentiles, make_spread, read_answer, total_rate
from .ratios import Ratio, Table, compare_rows
from .record import Record
from .rows import PLAIN, RAW, Row
from .turns import Sample
from .wire import Answer


@dataclass(frozen=True, kw_only=True)
class RowSummary:
    """One line of the table.

    Attributes:
        name: of the row.
        worker: the process that ran it.
        reason: why it did not run, or not to the end; None if it did.
        answers: number of answers measured.
        tokens: tokens of them all.
        tokens_per_s: decoded tokens / decoding time of all prompts, spread over the repeats.
        token_s: seconds per decoded token, spread over prompts and repeats.
        first_token_s: time to the first token, spread over prompts and repeats.
        first_text_s: time to the first visible text, likewise.
        answer_s: whole time of an answer, likewise.
        gaps_s: percentiles of the time between chunks.
        mean_accepted_length: tokens per target pass; None where the engine does not say.
        acceptance_rate: accepted / tested; None where nothing was tested.
        drafted: drafted tokens of all answers; `tested` and `accepted` likewise.
        busy_threads: threads that did the work, the median over the answers; sessions that take
            turns have threads of their own.
        busy_cores: processor time / wall time, likewise.
        peak_bytes: greatest resident memory of the worker's process up to the row's last answer.
        memory: named parts of it.
    """

    name: str
    worker: str
    reason: str | None
    answers: int
    tokens: int
    tokens_per_s: Spread | None
    token_s: Spread | None
    first_token_s: Spread | None
    first_text_s: Spread | None
    answer_s: Spread | None
    gaps_s: Mapping[str, float]
    mean_accepted_length: float | None
    acceptance_rate: float | None
    drafted: int | None
    tested: int | None
    accepted: int | None
    busy_threads: float | None
    busy_cores: float | None
    peak_bytes: int | None
    memory: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Width:
    """How long one pass over `tokens` takes: seconds, and `ratio` to a pass over one token."""

    model: str
    tokens: int
    seconds: Spread
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """A row at one place of a sweep, such as axis `prompt`, value 256.

    Attributes:
        tokens_per_s: of one request, spread over the repeats.
        all_tokens_per_s: all requests together, prompts included in the time: what an engine under
            load delivers.
        first_token_s: spread over requests; waiting for other requests counts.
        answer_s: from submission to the last token, likewise.
    """

    axis: str
    value: int
    row: str
    tokens_per_s: Spread | None
    all_tokens_per_s: Spread | None
    first_token_s: Spread | None
    answer_s: Spread | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Everything that a report shows.

    Attributes:
        rows: the lines of the table.
        ratios: every row over plain decoding and over the rows that were asked for.
        categories: ratios over plain decoding within each category.
        parted: prompts answered with other ids than plain decoding's, by row.
        widths: v(m) of each model.
        points: sweeps.
    """

    rows: tuple[RowSummary, ...]
    ratios: tuple[Ratio, ...]
    categories: Mapping[str, tuple[Ratio, ...]]
    parted: Mapping[str, Sequence[str]]
    widths: tuple[Width, ...] = field(default=())
    points: tuple[Point, ...] = field(default=())


def summarise(record: Record) -> Summary:
    """Return what follows from the record."""
    main = record.main()
    names = [prompt.name for prompt in main.prompts]
    by_category: dict[str, list[str]] = {}
    for prompt in main.prompts:
        by_category.setdefault(prompt.category, []).append(prompt.name)
    answering = [row for row in main.rows if row.emits_answer and row.name != PLAIN]
    return Summary(
        rows=tuple(summarise_row(row, main) for row in main.rows),
        ratios=tuple(
            ratio
            for ratio in find_ratios(main, [PLAIN, RAW, *main.over], names)
            # How near plain decoding comes to the graph is of interest; the rest is noise.
            if ratio.over != RAW or ratio.row == PLAIN or RAW in main.over
        ),
        categories={
            category: tuple(find_ratios(main, [PLAIN], prompts))
            for category, prompts in by_category.items()
        },
        parted={row.name: find_parted(main.samples, row.name, PLAIN) for row in answering},
        widths=tuple(find_widths(record.widths)),
        points=tuple(find_points(record)),
    )


def summarise_row(row: Row, record: Record) -> RowSummary:
    """Return the line of one row."""
    answers = [sample.answer for sample in record.samples if sample.row == row.name]
    figures = [read_answer(answer) for answer in answers]
    counts = {name: _sum(answers, name) for name in ("drafted", "tested", "accepted")}
    tokens = sum(one.tokens for one in figures)
    busy = make_spread(answer.busy_threads for answer in answers)
    cores = make_spread(_divide(answer.cpu_s, answer.wall_s) for answer in answers)
    return RowSummary(
        name=row.name,
        worker=row.worker,
        reason=record.failed.get(row.name),
        answers=len(answers),
        tokens=tokens,
        tokens_per_s=make_spread(rate_repeats(tabulate(record.samples, row.name))),
        token_s=make_spread(one.token_s for one in figures),
        first_token_s=make_spread(one.first_token_s for one in figures),
        first_text_s=make_spread(one.first_text_s for one in figures),
        answer_s=make_spread(answer.wall_s for answer in answers),
        gaps_s=find_percentiles(figures),
        mean_accepted_length=_divide(tokens, _sum(answers, "target_passes")),
        acceptance_rate=_divide(counts["accepted"], counts["tested"]),
        drafted=counts["drafted"],
        tested=counts["tested"],
        accepted=counts["accepted"],
        busy_threads=busy.median if busy else None,
        busy_cores=cores.median if cores else None,
        peak_bytes=max((a.peak_bytes for a in answers if a.peak_bytes), default=None),
        memory=answers[-1].memory if answers else {},
    )


def tabulate(samples: Iterable[Sample], row: str, prompts: Collection[str] | None = None) -> Table:
    """Return the figures of one row by prompt and repeat, of some prompts or all."""
    table: dict[str, dict[int, Figures]] = {}
    for sample in samples:
        if sample.row == row and (prompts is None or sample.prompt in prompts):
            table.setdefault(sample.prompt, {})[sample.repeat] = read_answer(sample.answer)
    return table


def rate_repeats(table: Table) -> list[float | None]:
    """Return the total rate of each repeat."""
    repeats = sorted({i for found in table.values() for i in found})
    return [total_rate([found[i] for found in table.values() if i in found]) for i in repeats]


def find_parted(samples: Iterable[Sample], a: str, b: str) -> list[str]:
    """Return the prompts to which rows `a` and `b` gave answers with other ids, or one several."""
    ids: dict[str, dict[str, set[tuple[int, ...]]]] = {}
    for sample in samples:
        if sample.row in (a, b):
            by_row = ids.setdefault(sample.prompt, {})
            by_row.setdefault(sample.row, set()).add(sample.answer.token_ids)
    return [
        name
        for name, by_row in ids.items()
        if {a, b} <= set(by_row) and len(set.union(*by_row.values())) > 1
    ]


def find_ratios(record: Record, over: Sequence[str], prompts: Collection[str]) -> list[Ratio]:
    """Return the ratio of every row over every row named in `over`, on some prompts."""
    tables = {row.name: tabulate(record.samples, row.name, prompts) for row in record.rows}
    found = []
    for base in (row for row in record.rows if row.name in over):
        for row in record.rows:
            if row.name == base.name:
                continue
            both_answer = row.emits_answer and base.emits_answer
            parted = find_parted(record.samples, row.name, base.name) if both_answer else None
            ratio = compare_rows(
                row.name,
                base.name,
                tables[row.name],
                tables[base.name],
                parted=None if parted is None else [p for p in parted if p in prompts],
                same_engine=both_answer and row.worker == base.worker,
            )
            if ratio is not None:
                found.append(ratio)
    return found


def find_widths(widths: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Width]:
    """Return v(m) of every model, by the medians."""
    found = []
    for model, by_tokens in widths.items():
        for tokens, seconds in by_tokens.items():
            spread, one = make_spread(seconds), make_spread(by_tokens["1"])
            if spread and one:
                ratio = spread.median / one.median
                found.append(Width(model=model, tokens=int(tokens), seconds=spread, ratio=ratio))
    return found


def find_points(record: Record) -> list[Point]:
    """Return every row at every point of the sweeps, in the order of measuring."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in record.samples:
        if sample.point:
            groups.setdefault((sample.point, sample.row), []).append(sample)
    return [make_point(point, row, samples) for (point, row), samples in groups.items()]


def make_point(name: str, row: str, samples: Sequence[Sample]) -> Point:
    """Return one row at one point."""
    axis, _, value = name.partition("=")
    requests = [answer for sample in samples for answer in sample.answer.split()]
    figures = [read_answer(answer) for answer in requests]
    return Point(
        axis=axis,
        value=int(value),
        row=row,
        tokens_per_s=make_spread(rate_repeats(tabulate(samples, row)))
        if axis != "concurrency"
        else make_spread(1 / one.token_s for one in figures if one.token_s),
        all_tokens_per_s=make_spread(
            _divide(len(sample.answer.token_ids), sample.answer.wall_s) for sample in samples
        ),
        first_token_s=make_spread(one.first_token_s for one in figures),
        answer_s=make_spread(answer.chunks[-1].at_s for answer in requests if answer.chunks),
    )


def _sum(answers: Iterable[Answer], name: str) -> int | None:
    known: list[Any] = [answer.stats[name] for answer in answers if name in answer.stats]
    return sum(known) if known else None


def _divide(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
