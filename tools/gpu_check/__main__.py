"""Check what a machine does with forerun: `python -m tools.gpu_check [--quick] [--json OUT]`.

In: prepared bundles (`--prepare` makes them, where the export toolchain is). Out: a table with a
verdict for each row; what this machine cannot tell says why. Exit code 1 if a row failed. Without a
GPU the rows of the CPU provider are run; with one, each check runs in a process of its own.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import monotonic

from runtime.arguments import Parser
from runtime.errors import ForerunError
from runtime.gpu import gpu_name, tensorrt_version
from runtime.session import onnxruntime_version
from runtime.storage import write_whole

from ..bench.machine import describe_machine
from ..errors import ToolError
from . import checks
from .apart import Find, run_apart
from .rows import Row, guarded, render_rows
from .subjects import FULL, QUICK, Subject, default_folder, prepare

PROVIDERS = ("cpu", "cuda", "tensorrt")
CHECKS = ("loads", "flavours", "engine build", "parity", "v(m)", "answers")
LONGEST_S = 150.0  # of one check


def main(argv: list[str] | None = None) -> int:
    """Run the checks and return 0 unless one failed."""
    args = _make_parser().parse_args(argv)
    folder = default_folder() if args.bundles is None else args.bundles
    subjects = QUICK if args.quick else FULL
    rows: list[Row] = []
    try:
        if args.prepare:
            prepare(folder, subjects, tell=lambda line: print(line, file=sys.stderr))
            return 0
        header = describe()
        print("\n".join(f"{name}: {value}" for name, value in header.items()), file=sys.stderr)
        if header["gpu"] == "none":
            print("no GPU here: only the CPU provider's part is run", file=sys.stderr)
        run = Run(args.only, seconds=60 * args.minutes, is_apart=header["gpu"] != "none")
        for row in run_checks(folder, subjects, run=run, quick=args.quick):
            print(f"{row.verdict}: {row.check}, {row.subject}: {row.found}", file=sys.stderr)
            rows.append(row)
            if args.json is not None:  # at once: what comes next may take the machine down
                content = {"machine": header, "rows": [asdict(row) for row in rows]}
                _write(args.json, json.dumps(content, indent=1) + "\n")
    except ForerunError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\n".join(render_rows(rows)))
        return 130
    print("\n".join(render_rows(rows)))
    return int(any(row.verdict == "failed" for row in rows))


def _make_parser() -> Parser:
    parser = Parser(
        prog="python -m tools.gpu_check", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="the small model, few passes")
    add("--json", type=Path, metavar="OUT", help="also write the rows there")
    add("--bundles", type=Path, metavar="DIR", help="default: the cache folder's")
    add("--prepare", action="store_true", help="only export the bundles")
    add("--only", choices=CHECKS, help="one kind of check")
    add("--minutes", type=float, default=8.0, metavar="N", help="begin none later (default 8)")
    return parser


def describe() -> dict[str, str]:
    """Return the machine, its GPU and the versions."""
    return {
        **describe_machine(),
        "gpu": gpu_name() or "none",
        "tensorrt": tensorrt_version() or "none",
        "onnxruntime": onnxruntime_version(),
    }


class Run:
    """How checks are run: which, until when, and whether apart.

    Args:
        only: the one kind that is wanted, or `None`.
        seconds: no check begins later, and none takes longer than what is left.
        is_apart: each in a process of its own, which a crash or a hang ends alone.
    """

    def __init__(self, only: str | None, *, seconds: float, is_apart: bool) -> None:
        self._only = only
        self._ends = monotonic() + seconds
        self._is_apart = is_apart

    def rows(self, check: str, subject: str, find: Find) -> Iterator[Row]:
        """Yield the rows of a check, none if it is not wanted."""
        if self._only not in (None, check):
            return
        left = self._ends - monotonic()
        if left <= 0:
            yield Row(check=check, subject=subject, found="no time was left", verdict="not here")
        elif self._is_apart:
            yield from run_apart(check, subject, find, seconds=min(left, LONGEST_S))
        else:
            yield from guarded(check, subject, find)


def run_checks(
    folder: Path, subjects: Sequence[Subject], *, run: Run, quick: bool
) -> Iterator[Row]:
    """Yield every row, as it is found.

    Raises:
        ToolError: no bundle is there.
    """
    present = [subject for subject in subjects if (folder / subject.name).exists()]
    if not present:
        raise ToolError(
            f"{folder} holds none of {', '.join(s.name for s in subjects)}: make them with  python "
            "-m tools.gpu_check --prepare, or copy them there"
        )
    effort = checks.QUICK if quick else checks.FULL
    loads: dict[str, bool] = {}
    for provider in PROVIDERS:
        made_for = [subject for subject in present if subject.provider == provider] or present
        find = partial(checks.check_loading, folder / made_for[0].name, provider)
        loaded = list(run.rows("loads", provider, find))
        loads[provider] = all(row.verdict in ("ok", "missed") for row in loaded)
        yield from loaded
    by_name = {subject.name: subject for subject in present}
    if {"fused", "portable"} <= set(by_name):
        find = partial(checks.check_flavours, folder, by_name["fused"], by_name["portable"])
        yield from run.rows("flavours", "portable beside fused", find)
    for subject in _placed(present):
        if loads[subject.provider]:
            yield from _check(subject, folder, effort, run)
        else:
            yield Row(
                check="all",
                subject=_name(subject),
                found=f"{subject.provider} does not load on this machine",
                verdict="not here",
            )
    for subject in subjects:
        if subject not in present:
            yield Row(check="all", subject=subject.name, found="no such bundle", verdict="not here")


def _placed(present: Sequence[Subject]) -> Iterator[Subject]:
    """Yield each bundle where it is meant to run; standard ops without a draft on CUDA too."""
    for subject in present:
        if subject.provider == "tensorrt" and subject.draft is None:
            yield replace(subject, provider="cuda")
        yield subject


def _check(subject: Subject, folder: Path, effort: checks.Effort, run: Run) -> Iterator[Row]:
    effort = checks.QUICK if subject.provider == "cpu" else effort
    asked: dict[str, Find] = {}
    if subject.provider == "tensorrt":
        asked["engine build"] = partial(checks.check_engine_build, subject, folder)
    if subject.provider != "cpu":
        asked["parity"] = partial(checks.check_parity, subject, folder)
    asked["v(m)"] = partial(checks.check_widths, subject, folder, effort)
    asked["answers"] = partial(checks.check_answers, subject, folder, effort)
    for check, find in asked.items():
        yield from run.rows(check, _name(subject), find)


def _name(subject: Subject) -> str:
    return f"{subject.name} on {subject.provider}"


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise ToolError(f"--json {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
