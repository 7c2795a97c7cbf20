"""Would this draft make this target faster here? `python -m tools.doctor --target T --draft D`.

In: checkpoints, recipes or a bundle. Out: do they speak one language, what memory they need, what a
draft token costs, how often it is right on a few prompts, the speed-up predicted for each k, and a
verdict. The exit code is 0 whatever the verdict, unless the input is bad.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from export.plan import make_plan
from export.progress import Progress
from runtime import Engine
from runtime.arguments import Parser
from runtime.errors import ForerunError
from runtime.pass_counter import PassCounter
from runtime.storage import user_path
from tools.errors import ToolError
from tools.prompt_sets import encode_fitting, read_questions

from .forecast import KS, make_forecast
from .report import Diagnosis, describe_diagnosis, estimate_pair
from .sample import sample_answer
from .subject import compare_checkpoints, export_checkpoints, is_bundle
from .verdict import judge_drafts


def main(argv: Sequence[str] | None = None) -> int:
    """Diagnose, print, and return the exit status."""
    args = _make_parser().parse_args(argv)
    progress = Progress(quiet=args.quiet)
    try:
        found = _diagnose(args, progress)
    except ForerunError as error:
        print(f"doctor: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    if isinstance(found, Diagnosis):
        print(json.dumps(found.as_json()) if args.json else "\n".join(describe_diagnosis(found)))
    else:
        print(json.dumps(found) if args.json else found["verdict"])
    return 0


def _diagnose(args: argparse.Namespace, progress: Progress) -> Diagnosis | dict[str, Any]:
    if is_bundle(args.target):
        if args.draft or args.output or args.quick:
            raise ToolError(
                f"{args.target} is a bundle, which has its drafts: give it without --draft, "
                "--output and --quick"
            )
        return _measure(args, user_path(args.target), progress)
    references = [args.target, *args.draft]
    # What the export would refuse is refused before minutes are spent.
    make_plan(
        target=args.target,
        output=args.output or Path("bundle"),
        drafts=args.draft,
        precision=args.precision,
    )
    pair = compare_checkpoints(references, precision=args.precision, progress=progress)
    if pair.mismatch is not None or args.quick:
        return estimate_pair(pair)
    with tempfile.TemporaryDirectory(prefix="forerun-doctor-") as folder:
        output = args.output or Path(folder) / "bundle"
        export_checkpoints(references, output, precision=args.precision, is_quiet=args.quiet)
        return _measure(args, output, progress)


def _measure(args: argparse.Namespace, bundle: Path, progress: Progress) -> Diagnosis:
    with Engine.open(bundle, threads=args.threads) as engine:
        questions = read_questions(args.prompts, limit=args.limit)
        prompts = encode_fitting(engine, questions)
        with PassCounter(StringIO() if args.quiet else sys.stderr) as counter:
            table = engine.costs(on_pass=counter)
        answers = []
        with progress.stage("answering", total=len(prompts)) as stage:
            for question, ids in prompts:
                answers.append(
                    sample_answer(
                        engine, ids, category=question.category, max_tokens=args.max_tokens
                    )
                )
                stage.advance(1)
        drafters = answers[0].guesses
        forecasts = {
            name: tuple(make_forecast(answers, name, k, table) for k in KS) for name in drafters
        }
        return Diagnosis(engine.bundle, table, answers, forecasts, judge_drafts(forecasts, table))


def _make_parser() -> Parser:
    parser = Parser(
        prog="python -m tools.doctor",
        description="Say whether a draft would make a target faster on this machine.",
        epilog="Checkpoints are exported into a temporary bundle first, which takes minutes; keep "
        "it with --output, or look at languages and sizes alone with --quick.",
    )
    add = parser.add_argument
    add("--target", required=True, metavar="T", help="a bundle, or as for python -m export")
    add("--draft", action="append", default=[], metavar="D", help="repeatable")
    add("--precision", default="int4", metavar="P", help="of the export (default int4)")
    add("--output", type=Path, metavar="DIR", help="keep the exported bundle here")
    add("--quick", action="store_true", help="export and run nothing: languages and sizes")
    add("--prompts", type=Path, metavar="FILE", help="JSONL with turns; by default our own")
    add("--limit", type=_count, default=7, metavar="N", help="how many prompts (default 7)")
    add("--max-tokens", type=_count, default=64, metavar="N", help="per answer (default 64)")
    add("--threads", type=int, metavar="N")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise ValueError
    return count


_count.__name__ = "whole number of at least 1"


if __name__ == "__main__":
    sys.exit(main())
