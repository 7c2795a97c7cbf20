"""`python -m tools.families`: export a tiny random model of every family and compare it.

In: model types, or `--all` that transformers calls a causal language model. Out: a line for each:
verdict (`ok`, `refused: reason`, `failed: where`), largest error, seconds; exit code 1 if one
failed. With `--json` verdicts are kept as they come: the same command goes on with a sweep that was
stopped, and several may share the work. `--page` writes the verdicts of that file for reading.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from export.progress import Progress
from runtime.arguments import Parser
from runtime.errors import ForerunError

from ..errors import ToolError
from .apart import examine_apart
from .page import render_page
from .record import Record

INTERRUPTED = 130
FLAVOURS = ("fused", "portable")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.all == bool(options.names):
        parser.error("name model types, or give --all")
    if options.page and not options.json:
        parser.error("--page shows the verdicts of --json: name that file too")
    try:
        return run_sweep(options)
    except ForerunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; with --json, the same command goes on", file=sys.stderr)
        return INTERRUPTED


def make_parser() -> Parser:
    """Return the command's parser."""
    parser = Parser(
        prog="python -m tools.families",
        description="Export a tiny random model of every family, and compare it with PyTorch.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a model type, such as llama")
    parser.add_argument("--all", action="store_true", help="every type that transformers knows")
    parser.add_argument(
        "--flavour", choices=FLAVOURS, action="append", help="only this one (default: each)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep verdicts here, and go on")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write them as Markdown too")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def run_sweep(options: argparse.Namespace) -> int:
    """Examine what is asked for; return 1 if something failed, else 0."""
    record = Record(options.json)
    jobs = [
        (name, flavour)
        for name in (known_types() if options.all else checked(options.names))
        for flavour in options.flavour or FLAVOURS
    ]
    if not options.all:
        record.forget(jobs)
    progress = Progress(quiet=options.quiet)
    done = len(jobs) - len(record.left(jobs))
    with progress.stage("families", total=len(jobs), done=done) as stage:
        while (job := record.claim(jobs)) is not None:
            verdict = examine_apart(*job)
            record.add(verdict)
            print(verdict, flush=True)
            stage.move_to(len(jobs) - len(record.left(jobs)))
    if options.page:
        options.page.write_text(render_page(record.verdicts()), encoding="utf-8")
    wanted = [v for v in record.verdicts() if (v.family, v.flavour) in jobs]
    counts = {kind: sum(v.verdict == kind for v in wanted) for kind in ("ok", "refused", "failed")}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["failed"] else 0


def known_types() -> list[str]:
    """Return every model type that transformers calls a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def checked(names: Sequence[str]) -> list[str]:
    """Return `names`; raise ToolError that names the closest type when one is unknown."""
    known = known_types()
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ToolError(f"transformers knows no causal language model of type {name!r}{hint}")
    return list(names)


if __name__ == "__main__":
    sys.exit(main())
