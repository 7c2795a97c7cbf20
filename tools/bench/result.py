"""The outcome of a run as one value: what was measured, on what, and what follows from it.

In: samples. Out: `Result`, whose fields are those of the JSON file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .figures import (
    Figures,
    Spread,
    find_percentiles,
    make_spread,
    read_answer,
    total_rate,
)
from .prompts import Prompt
from .ratios import Ratio, Table, compare_rows
from .rows import Row
from .turns import Plan, Sample
from .wire import Hello


@dataclass(frozen=True, kw_only=True)
class RowResult:
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
        acceptance_rate: accepted / tested.
        drafted: drafted tokens of all answers; with `tested` and `accepted` likewise.
        busy_threads: threads that computed, the median over the answers.
        peak_bytes: greatest resident memory of the worker.
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
    peak_bytes: int | None
    memory: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Everything that a run found."""

    header: Mapping[str, Any]
    workers: Mapping[str, Hello]
    rows: tuple[RowResult, ...]
    ratios: tuple[Ratio, ...]
    parted: Mapping[str, Sequence[str]]
    complete: bool
    samples: tuple[Sample, ...] = field(repr=False, default=())


def summarise_row(row: Row, samples: Sequence[Sample], reason: str | None) -> RowResult:
    """Return the line of one row."""
    answers = [sample.answer for sample in samples if sample.row == row.name]
    figures = [read_answer(answer) for answer in answers]
    table = tabulate(samples, row.name)
    repeats = sorted({i for found in table.values() for i in found})
    rates = (total_rate([found[i] for found in table.values() if i in found]) for i in repeats)
    counts = {name: _sum(answers, name) for name in ("drafted", "tested", "accepted")}
    passes = _sum(answers, "target_passes")
    busy = make_spread(answer.busy_threads for answer in answers)
    return RowResult(
        name=row.name,
        worker=row.worker,
        reason=reason,
        answers=len(answers),
        tokens=sum(one.tokens for one in figures),
        tokens_per_s=make_spread(rates),
        token_s=make_spread(one.token_s for one in figures),
        first_token_s=make_spread(one.first_token_s for one in figures),
        first_text_s=make_spread(one.first_text_s for one in figures),
        answer_s=make_spread(answer.wall_s for answer in answers),
        gaps_s=find_percentiles(figures),
        mean_accepted_length=_divide(sum(one.tokens for one in figures), passes),
        acceptance_rate=_divide(counts["accepted"], counts["tested"]),
        drafted=counts["drafted"],
        tested=counts["tested"],
        accepted=counts["accepted"],
        busy_threads=busy.median if busy else None,
        peak_bytes=max((a.peak_bytes for a in answers if a.peak_bytes), default=None),
        memory=answers[-1].memory if answers else {},
    )


def tabulate(samples: Iterable[Sample], row: str) -> Table:
    """Return the figures of one row by prompt and repeat."""
    table: dict[str, dict[int, Figures]] = {}
    for sample in samples:
        if sample.row == row:
            table.setdefault(sample.prompt, {})[sample.repeat] = read_answer(sample.answer)
    return table


def find_parted(samples: Sequence[Sample], prompts: Sequence[Prompt], a: str, b: str) -> list[str]:
    """Return the prompts to which rows `a` and `b` gave answers with other ids, or `a` several."""
    ids: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for sample in samples:
        ids.setdefault((sample.row, sample.prompt), set()).add(sample.answer.token_ids)
    names = [p.name for p in prompts if (a, p.name) in ids and (b, p.name) in ids]
    return [name for name in names if len(ids[a, name] | ids[b, name]) > 1]


def find_ratios(plan: Plan, samples: Sequence[Sample], over: Sequence[str]) -> list[Ratio]:
    """Return the ratio of every row over every row named in `over`."""
    tables = {row.name: tabulate(samples, row.name) for row in plan.rows}
    found = []
    for base in (row for row in plan.rows if row.name in over):
        for row in plan.rows:
            if row.name == base.name:
                continue
            both_answer = row.emits_answer and base.emits_answer
            ratio = compare_rows(
                row.name,
                base.name,
                tables[row.name],
                tables[base.name],
                parted=find_parted(samples, plan.prompts, row.name, base.name)
                if both_answer
                else None,
                same_engine=both_answer and row.worker == base.worker,
            )
            if ratio is not None:
                found.append(ratio)
    return found


def _sum(answers: Iterable[Any], name: str) -> int | None:
    known = [answer.stats[name] for answer in answers if name in answer.stats]
    return sum(known) if known else None


def _divide(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
