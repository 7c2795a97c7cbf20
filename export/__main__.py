"""`python -m export`: make a bundle from checkpoints.

In: the command line. Out: a bundle, a summary (or with `--json` the report alone) and an exit code:
0 done, 1 refused or failed with one sentence on standard error, 2 wrong options, 130 interrupted.
`--help` answers without loading PyTorch.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from runtime.errors import ForerunError

from .plan import BLOCK_SIZES, Plan, make_plan
from .progress import Progress

if TYPE_CHECKING:
    from .pipeline import Report

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _make_parser().parse_args(arguments)
    interruption = _Interruption()
    handlers = {n: signal.signal(n, interruption.note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        plan = make_plan(
            target=options.target,
            output=options.output,
            drafts=options.draft,
            precision=options.precision,
            draft_precision=options.draft_precision,
            block_size=options.block_size,
            context=options.context,
            overwrite=options.overwrite,
        )
        report = _run(plan, Progress(quiet=options.quiet, is_cancelled=interruption.came))
    except ForerunError as error:
        print(f"forerun-export: {_one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("forerun-export: interrupted; nothing was published", file=sys.stderr)
        return INTERRUPTED
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if options.json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=True))
    elif not options.quiet:
        print(render_report(report))
    return 0


def render_report(report: "Report") -> str:
    """Return the summary for a person."""
    lines = [f"{report.output}: {_size(sum(f.bytes for f in report.manifest.files))}"]
    for model in report.manifest.models:
        parity = model.parity
        lines.append(
            f"  {model.name}: {model.source}, {model.precision}, "
            f"{model.parameters / 1e6:.0f} M weights in {_size(report.model_bytes(model))}, "
            f"context {model.context}"
        )
        lines.append(
            f"    float graph against PyTorch: largest error {parity['max_error']:.1e} of the "
            f"logits' range (limit {parity['tolerance']:.0e})"
        )
        if "mean_kl" in parity:
            lines.append(
                f"    {model.precision} against float: {parity['mean_kl']:.4f} nats per token, "
                f"same first choice {100 * parity['top1_agreement']:.1f} % "
                f"({parity['tokens']} tokens)"
            )
        if "block_error" in parity:
            exact = "to the last bit" if parity["block_error"] == 0 else "but for rounding"
            lines.append(
                f"    a block of tokens equals the same tokens fed singly {exact} "
                f"({parity['block_error']:.1e} of the range)"
            )
    lines += [f"  note: {note}" for note in report.notes]
    lines.append(f"  {sum(report.seconds.values()):.0f} s in all")
    return "\n".join(lines)


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m export",
        description="Export a target model, and drafts that propose for it, into one bundle.",
        epilog="A model is a recipe (see models/recipes), a folder with config.json and "
        "*.safetensors, a GGUF file, or a hub id.",
    )
    parser.add_argument("--target", required=True, metavar="T", help="the model to speed up")
    parser.add_argument(
        "--draft",
        action="append",
        default=[],
        metavar="D",
        help="a cheaper model that proposes; repeat for a stack, nearest to the target first",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="the bundle")
    parser.add_argument(
        "--precision",
        default="int4",
        metavar="P",
        help="int4 (default), int8, float32 or float16",
    )
    parser.add_argument(
        "--draft-precision", metavar="P", help="the drafts' precision (default: as the target's)"
    )
    parser.add_argument(
        "--block-size",
        type=int,
        metavar="N",
        help=f"weights that share a scale: {', '.join(map(str, BLOCK_SIZES))} "
        "(default: the larger of 128 and 32 that is faithful enough)",
    )
    parser.add_argument("--context", type=int, metavar="N", help="cap the context at N tokens")
    parser.add_argument("--overwrite", action="store_true", help="replace the bundle at DIR")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    return parser


def _run(plan: Plan, progress: Progress) -> "Report":
    # Before the libraries are loaded, which read it once: local files never touch the network.
    from .recipes import read_recipes

    recipes = {recipe.name for recipe in read_recipes()}
    names = [model.reference for model in plan.models]
    if all(name.lower() in recipes or Path(name).expanduser().exists() for name in names):
        os.environ["HF_HUB_OFFLINE"] = "1"
    from .pipeline import export_bundle

    return export_bundle(plan, progress=progress)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage around it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


class _Interruption:
    """Remembers a Ctrl-C or a termination: tracing may swallow the exception that it raises."""

    def __init__(self) -> None:
        self._came = False

    def note(self, *_: object) -> None:
        """Take the signal."""
        self._came = True
        raise KeyboardInterrupt

    def came(self) -> bool:
        """Whether a signal has come."""
        return self._came


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"


if __name__ == "__main__":
    sys.exit(main())
