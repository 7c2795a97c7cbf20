"""One run from its options to its record: prepare, load, reference answers, warm-up, turns.

In: parsed options. Out: `Record`. Everything is loaded and warm before the first measured turn;
Ctrl-C ends the run and keeps what was measured.
"""

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from export.progress import Progress
from runtime.bundle import Bundle, open_bundle
from runtime.providers import count_threads
from runtime.stack import TARGET
from tools.prompt_sets import Question, read_questions

from .journal import Journal
from .machine import describe_bundle, describe_machine
from .pool import Pool
from .prepare import prepare
from .prompts import Encoder, Prompt, hash_prompts
from .record import Record
from .rows import OURS, PLAIN, RAW, Row
from .sweeps import SweepPoint, choose_prompts, parse_sweep
from .turns import Ask, Plan, take_turns, warm_up
from .wire import Job
from .worker import WorkerError

METHOD = (
    "greedy; rows alternate over the prompts, in reverse in every other repeat; one process per "
    "engine, stopped when not on its turn; decoding counts from the first chunk on"
)
_WIDTHS_PAST = 256


@dataclass(frozen=True, kw_only=True)
class Run:
    """What stays the same in all parts of a run."""

    args: argparse.Namespace
    bundle: Bundle
    threads: int
    progress: Progress


def measure_bundle(args: argparse.Namespace, *, progress: Progress) -> Record:
    """Run the measurement that the options describe.

    Raises:
        ForerunError: the bundle, the prompts or an option are of no use.
    """
    points = parse_sweep(args.sweep)
    bundle = open_bundle(args.bundle)
    questions = read_questions(args.prompts, categories=args.categories, limit=args.limit)
    run = Run(args=args, bundle=bundle, threads=count_threads(args.threads), progress=progress)
    machine = describe_machine()
    prepared = prepare(args, bundle, run.threads, progress=progress)
    with Pool(prepared.launches, progress=progress) as pool:
        prompts, lengths, left_out = ask_references(
            questions, Encoder(bundle), prepared.rows, pool.ask, args.max_tokens, progress=progress
        )
        record = Record(
            header=describe_run(run, machine, prompts, left_out),
            workers=pool.hellos,
            rows=tuple(prepared.rows),
            prompts=prompts,
            over=tuple(args.over),
            complete=False,
        )
        plan = Plan(
            rows=record.rows,
            prompts=prompts,
            repeats=args.repeats,
            max_tokens=args.max_tokens,
            warm_ups=args.warm_ups,
            lengths=lengths,
        )
        journal = open_journal(run, record)
        try:
            record = measure_all(run, record, plan, points, pool, prepared.failed, journal)
        except KeyboardInterrupt:
            record = replace(record, samples=tuple(journal.samples), failed=prepared.failed)
        finally:
            journal.close(complete=record.complete)
    return record


def measure_all(
    run: Run,
    record: Record,
    plan: Plan,
    points: Sequence[SweepPoint],
    pool: Pool,
    failed: dict[str, str],
    journal: Journal,
) -> Record:
    """Return the record with its samples, sweeps and widths; rows that fail go to `failed`."""
    measure_plan(plan, pool.ask, failed, journal, progress=run.progress)
    for point in points:
        measure_point(run, plan, point, pool, failed, journal)
    return replace(
        record,
        samples=tuple(journal.samples),
        failed=failed,
        widths=measure_widths(run.bundle, plan.rows, pool.ask),
        complete=True,
    )


def measure_plan(
    plan: Plan, ask: Ask, failed: dict[str, str], journal: Journal, *, progress: Progress
) -> None:
    """Warm up, then take all turns of a plan that the journal does not hold yet."""
    done = {sample.place for sample in journal.samples}
    turns = plan.repeats * len(plan.prompts) * len(plan.rows)
    with progress.stage(f"warming up {plan.point}".strip()):
        warm_up(plan, ask, failed=failed)
    with progress.stage(f"measuring {plan.point}".strip(), total=turns) as stage:
        for sample in take_turns(plan, ask, done=done, failed=failed):
            if sample is not None:
                journal.add(sample)
            stage.advance(1)


def measure_point(
    run: Run,
    plan: Plan,
    point: SweepPoint,
    pool: Pool,
    failed: dict[str, str],
    journal: Journal,
) -> None:
    """Measure one point of a sweep; other thread counts have workers of their own."""
    rows = [row for row in plan.rows if row.name != RAW and row.name not in failed]
    if point.axis == "concurrency":
        # The peers' interfaces here take one request at a time.
        rows = [row for row in rows if row.worker == OURS]
    there = replace(
        plan,
        rows=tuple(rows),
        prompts=choose_prompts(point, plan.prompts),
        max_tokens=point.value if point.axis == "output" else plan.max_tokens,
        point=point.name,
        concurrency=point.value if point.axis == "concurrency" else 1,
    )
    if not rows:
        return
    if point.axis != "threads":
        measure_plan(there, pool.ask, dict(failed), journal, progress=run.progress)
        return
    prepared = prepare(run.args, run.bundle, point.value, progress=run.progress)
    with Pool(prepared.launches, progress=run.progress) as other:
        measure_plan(there, other.ask, dict(failed), journal, progress=run.progress)


def measure_widths(
    bundle: Bundle, rows: Sequence[Row], ask: Ask
) -> dict[str, dict[str, list[float]]]:
    """Return how long passes over several tokens take, for each model of the bundle."""
    plain = next(row for row in rows if row.name == PLAIN)
    widths = {}
    for entry in bundle.manifest.models:
        past = min(_WIDTHS_PAST, entry.context // 2)
        settings = {"mode": "widths", "model": TARGET if entry.role == TARGET else entry.name}
        job = Job(prompt_ids=(0,) * past, max_tokens=1, settings=settings)
        try:
            widths[entry.name] = ask(plain, job).stats["widths"]
        except WorkerError:
            continue  # what fails here failed in the rows before
    return widths


def ask_references(
    questions: Sequence[Question],
    encoder: Encoder,
    rows: Sequence[Row],
    ask: Ask,
    max_tokens: int,
    *,
    progress: Progress,
) -> tuple[tuple[Prompt, ...], dict[str, int], int]:
    """Return all prompts, the lengths of plain decoding's answers, and how many do not fit.

    The answers are not measured: they are what a second turn goes on from.
    """
    plain = next(row for row in rows if row.name == PLAIN)
    prompts: list[Prompt] = []
    lengths: dict[str, int] = {}
    left_out = 0
    total = sum(encoder.turns(question) for question in questions)
    with progress.stage("reference answers", total=total) as stage:
        for question in questions:
            answers: list[tuple[int, ...]] = []
            for _ in range(encoder.turns(question)):
                prompt = encoder.encode(question, answers, max_tokens=max_tokens)
                if prompt is None:
                    left_out += 1
                    break
                job = Job(prompt_ids=prompt.ids, max_tokens=max_tokens, settings=plain.settings)
                answers.append(ask(plain, job).token_ids)
                prompts.append(prompt)
                lengths[prompt.name] = len(answers[-1])
                stage.advance(1)
    hash_prompts(prompts)  # refuses an empty list before anything is measured
    return tuple(prompts), lengths, left_out


def describe_run(
    run: Run, machine: Mapping[str, str], prompts: Sequence[Prompt], left_out: int
) -> dict[str, Any]:
    """Return the header of the report."""
    args = run.args
    return {
        "command": args.command,
        "machine": dict(machine),
        "bundle": describe_bundle(run.bundle),
        "method": METHOD,
        "prompts": {
            "number": len(prompts),
            "tokens": sum(len(prompt.ids) for prompt in prompts),
            "too long for the context": left_out,
            "sha256": hash_prompts(prompts),
        },
        "settings": {
            "most tokens of an answer": args.max_tokens,
            "repeats": args.repeats,
            "warm-ups": args.warm_ups,
            "threads": run.threads,
        },
    }


def open_journal(run: Run, record: Record) -> Journal:
    """Return the journal beside the JSON file, or one in memory without such a file."""
    rows = repr([(row.name, sorted(row.settings.items())) for row in record.rows])
    plan = {
        "bundle": record.header["bundle"],
        "prompts": record.header["prompts"]["sha256"],
        "settings": record.header["settings"],
        "rows": hashlib.sha256(rows.encode()).hexdigest(),
    }
    out = run.args.json
    path = None if out is None else out.with_name(f"{out.name}.journal")
    return Journal(path, plan, resume=run.args.resume)
