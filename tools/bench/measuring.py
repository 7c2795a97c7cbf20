"""One run from its options to its result: prepare, load, reference answers, warm-up, turns.

In: parsed options. Out: `Result`. Preparing (installing peers, converting) is over before
anything is loaded, and everything is loaded and warm before the first measured turn.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from export.progress import Progress
from runtime.bundle import Bundle, open_bundle
from runtime.errors import ForerunError
from runtime.providers import count_threads
from tools.prompt_sets import Question, read_questions

from .machine import describe_bundle, describe_machine
from .peers import Wanted, find_checkpoint, prepare_peer
from .pool import Pool
from .prompts import Encoder, Prompt, hash_prompts
from .result import Result, find_parted, find_ratios, summarise_row
from .rows import OURS, PLAIN, RAW, Row, make_own_rows
from .turns import Ask, Plan, Sample, take_turns, warm_up
from .wire import Hello, Job
from .worker import Launch

METHOD = (
    "greedy; rows alternate over the prompts, in reverse in every other repeat; one process per "
    "engine, stopped when not on its turn; decoding counts from the first chunk on"
)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What is to be loaded, the rows it serves, and rows that cannot run with their reasons."""

    launches: tuple[Launch, ...]
    rows: tuple[Row, ...]
    failed: dict[str, str]


def measure_bundle(args: argparse.Namespace, *, progress: Progress) -> Result:
    """Run the measurement that the options describe.

    Raises:
        ForerunError: the bundle, the prompts or an option are of no use.
    """
    bundle = open_bundle(args.bundle)
    questions = read_questions(args.prompts, categories=args.categories, limit=args.limit)
    threads = count_threads(args.threads)
    machine = describe_machine()
    prepared = prepare(args, bundle, threads, progress=progress)
    with Pool(prepared.launches, progress=progress) as pool:
        prompts, lengths = ask_references(
            questions, Encoder(bundle), prepared.rows, pool.ask, args.max_tokens, progress=progress
        )
        plan = Plan(
            rows=prepared.rows,
            prompts=prompts,
            repeats=args.repeats,
            max_tokens=args.max_tokens,
            warm_ups=args.warm_ups,
            lengths=lengths,
        )
        header = {
            "command": shlex.join(["python", "-m", "tools.bench", *sys.argv[1:]]),
            "machine": machine,
            "bundle": describe_bundle(bundle),
            "method": METHOD,
            "prompts": f"{len(prompts)}, sha256 {hash_prompts(prompts)[:16]}",
            "prompt tokens": sum(len(prompt.ids) for prompt in prompts),
            "most tokens of an answer": args.max_tokens,
            "repeats": args.repeats,
            "warm-ups": args.warm_ups,
            "threads": threads,
        }
        failed = dict(prepared.failed)
        warm_up(plan, pool.ask, failed=failed)
        samples, complete = run_turns(plan, pool.ask, failed, progress=progress)
        return conclude(plan, samples, failed, header, pool.hellos, args.over, complete=complete)


def prepare(
    args: argparse.Namespace, bundle: Bundle, threads: int, *, progress: Progress
) -> Prepared:
    """Make peers and their models ready; a peer that cannot be is a row with a reason."""
    ours = Launch(
        name=OURS,
        python=sys.executable,
        module="tools.bench.engines.forerun",
        arguments=(str(args.bundle.resolve()), str(threads)),
        threads=threads,
    )
    launches, failed = [ours], {}
    rows = make_own_rows(args.stages or [None], args.k, ignore_eos=args.ignore_eos)
    for name in args.peers:
        try:
            checkpoint = args.checkpoint or find_checkpoint(bundle.manifest.target.source)
            wanted = Wanted(checkpoint=checkpoint, target=bundle.manifest.target, threads=threads)
            launch, more = prepare_peer(name, wanted, progress=progress)
        except ForerunError as error:
            failed[name] = str(error)
            rows.append(Row(name=name, worker=name))
            continue
        launches.append(launch)
        rows += more
    return Prepared(launches=tuple(launches), rows=tuple(rows), failed=failed)


def ask_references(
    questions: Sequence[Question],
    encoder: Encoder,
    rows: Sequence[Row],
    ask: Ask,
    max_tokens: int,
    *,
    progress: Progress,
) -> tuple[tuple[Prompt, ...], dict[str, int]]:
    """Return all prompts and the lengths of plain decoding's answers to them, asked unmeasured."""
    plain = next(row for row in rows if row.name == PLAIN)
    prompts: list[Prompt] = []
    lengths: dict[str, int] = {}
    total = sum(encoder.turns(question) for question in questions)
    with progress.stage("reference answers", total=total) as stage:
        for question in questions:
            answers: list[tuple[int, ...]] = []
            for _ in range(encoder.turns(question)):
                prompt = encoder.encode(question, answers, max_tokens=max_tokens)
                if prompt is None:
                    break
                job = Job(prompt_ids=prompt.ids, max_tokens=max_tokens, settings=plain.settings)
                answers.append(ask(plain, job).token_ids)
                prompts.append(prompt)
                lengths[prompt.name] = len(answers[-1])
                stage.advance(1)
    hash_prompts(prompts)  # refuses an empty list before anything is measured
    return tuple(prompts), lengths


def run_turns(
    plan: Plan, ask: Ask, failed: dict[str, str], *, progress: Progress
) -> tuple[list[Sample], bool]:
    """Return the samples, and whether they are all: Ctrl-C ends the run and keeps what there is."""
    samples: list[Sample] = []
    turns = plan.repeats * len(plan.prompts) * len(plan.rows)
    try:
        with progress.stage("measuring", total=turns) as stage:
            for sample in take_turns(plan, ask, done=(), failed=failed):
                if sample is not None:
                    samples.append(sample)
                stage.advance(1)
    except KeyboardInterrupt:
        return samples, False
    return samples, True


def conclude(
    plan: Plan,
    samples: Sequence[Sample],
    failed: dict[str, str],
    header: dict[str, object],
    workers: dict[str, Hello],
    over: Sequence[str],
    *,
    complete: bool,
) -> Result:
    """Return the result that follows from the samples."""
    answering = [row for row in plan.rows if row.emits_answer]
    bases = list(dict.fromkeys([PLAIN, RAW, *over]))
    return Result(
        header=header,
        workers=workers,
        rows=tuple(summarise_row(row, samples, failed.get(row.name)) for row in plan.rows),
        ratios=tuple(find_ratios(plan, samples, bases)),
        parted={
            f"{row.name} and {PLAIN}": find_parted(samples, plan.prompts, row.name, PLAIN)
            for row in answering
        },
        complete=complete,
        samples=tuple(samples),
    )
