"""`python -m export`: make a bundle from checkpoints, or change the drafts of one.

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
from typing import NoReturn

from runtime.errors import ForerunError
from runtime.storage import user_path

from .errors import PlanError
from .plan import (
    BLOCK_SIZES,
    ModelPlan,
    make_add_plan,
    make_plan,
    make_trim,
)
from .progress import Progress
from .report import Report, render_report
from .stages import remove_drafts

INTERRUPTED = 130
_TRIM_OPTIONS = {"draft_vocab", "vocab_text", "vocab_counts"}
_MODEL_OPTIONS = {"precision", "block_size", "context", "flavour", "provider"} | _TRIM_OPTIONS
# What is done, by the option that asks for it, and the options that go with it.
_FITTING = {
    "target": _MODEL_OPTIONS | {"draft", "draft_precision", "overwrite"},
    "add_draft": _MODEL_OPTIONS | {"name"},
    "remove_draft": set[str](),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _make_parser().parse_args(arguments)
    interruption = _Interruption()
    handlers = {n: signal.signal(n, interruption.note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        report = _run(options, Progress(quiet=options.quiet, is_cancelled=interruption.came))
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


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m export",
        description="Export a target model, and drafts that propose for it, into one bundle; or "
        "change the drafts of a bundle.",
        epilog="A model is a recipe (see models/recipes), a folder with config.json and "
        "*.safetensors, a GGUF file, an ONNX decoder of another exporter, or a hub id.",
    )
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--target", metavar="T", help="the model to speed up")
    task.add_argument(
        "--add-draft",
        action="append",
        metavar="D",
        help="add a draft to the bundle at DIR, whose other files stay untouched; may be repeated",
    )
    task.add_argument(
        "--remove-draft",
        action="append",
        metavar="NAME",
        help="drop a draft from the bundle at DIR; may be repeated",
    )
    parser.add_argument(
        "--draft",
        action="append",
        metavar="D",
        help="a cheaper model that proposes; repeat for a stack, nearest to the target first",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="the bundle")
    parser.add_argument(
        "--name", metavar="NAME", help="what an added draft is called (default: draft, draft2, ...)"
    )
    parser.add_argument("--precision", metavar="P", help="int4 (default), int8, float32 or float16")
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
    parser.add_argument(
        "--provider",
        metavar="P",
        help="what it is to run on: cpu (default), cuda or tensorrt (with float16 activations)",
    )
    parser.add_argument(
        "--flavour",
        metavar="F",
        help="fused (default for cpu and cuda), portable (standard ops: TensorRT, batches) or "
        "trees (the same, the attention mask an input)",
    )
    parser.add_argument("--context", type=int, metavar="N", help="cap the context at N tokens")
    parser.add_argument(
        "--draft-vocab",
        metavar="N|FILE",
        help="let drafts propose only the N most useful tokens, or those that FILE lists, one id "
        "on a line; special tokens are always in (a cheaper head, the same answers)",
    )
    parser.add_argument(
        "--vocab-text",
        action="extend",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="choose the N by counting these texts' tokens, too (without counts: in the "
        "tokenizer's own order)",
    )
    parser.add_argument(
        "--vocab-counts",
        action="extend",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="or by these counts, such as tools.count_tokens writes",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the bundle at DIR")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    return parser


def _run(options: argparse.Namespace, progress: Progress) -> Report:
    _check_fitting(options)
    if options.remove_draft is not None:
        return remove_drafts(options.output, options.remove_draft, progress=progress)
    trim = make_trim(
        options.draft_vocab, texts=options.vocab_text or (), counts=options.vocab_counts or ()
    )
    provider = "cpu" if options.provider is None else options.provider
    if options.add_draft is None:
        plan = make_plan(
            target=options.target,
            output=options.output,
            drafts=options.draft or (),
            precision=options.precision,
            draft_precision=options.draft_precision,
            block_size=options.block_size,
            context=options.context,
            flavour=options.flavour,
            provider=provider,
            trim=trim,
            overwrite=options.overwrite,
        )
        _stay_offline(plan.models)
        from .pipeline import export_bundle

        return export_bundle(plan, progress=progress)
    addition = make_add_plan(
        drafts=options.add_draft,
        output=options.output,
        name=options.name,
        precision=options.precision,
        block_size=options.block_size,
        context=options.context,
        flavour=options.flavour,
        provider=provider,
        trim=trim,
    )
    _stay_offline(addition.models)
    from .pipeline import add_drafts

    return add_drafts(addition, progress=progress)


def _check_fitting(options: argparse.Namespace) -> None:
    given = {name for name, value in vars(options).items() if not (value is None or value is False)}
    task = next(name for name in _FITTING if name in given)
    for name in sorted(given & (set.union(*_FITTING.values()) - _FITTING[task])):
        raise PlanError(f"{_spelled(name)} does not go with {_spelled(task)}: leave it out")


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _stay_offline(models: Sequence[ModelPlan]) -> None:
    """Keep the libraries off the network if all models are local; they read this when they load."""
    from .recipes import read_recipes

    recipes = {recipe.name for recipe in read_recipes()}
    names = [model.reference for model in models]
    if all(name.lower() in recipes or user_path(name).exists() for name in names):
        os.environ["HF_HUB_OFFLINE"] = "1"


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


if __name__ == "__main__":
    sys.exit(main())
