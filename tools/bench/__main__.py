"""The command `python -m tools.bench`: measure a bundle, compare two results, show one again."""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from export.progress import Progress
from runtime.errors import ForerunError
from tools.errors import ToolError

from .arguments import make_compare_parser, make_parser, make_report_parser
from .compare import compare_records, render_changes
from .markdown import render_brief, render_markdown
from .measuring import measure_bundle
from .page import render_page
from .record import Record, read_record, write_record
from .summary import summarise
from .table import render_result

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[Sequence[str]], int]] = {"compare": compare, "report": report}
    try:
        command = commands.get(words[0]) if words else None
        return command(words[1:]) if command else measure(words)
    except ForerunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def measure(words: Sequence[str]) -> int:
    """Measure a bundle, print the table and write the files."""
    args = make_parser().parse_args(words)
    args.command = shlex.join(["python", "-m", "tools.bench", *words])
    for path in (args.json, args.html):
        check_writable(path)
    if args.resume and args.json is None:
        raise ToolError("--resume goes on with what --json OUT began: give the same --json")
    record = measure_bundle(args, progress=Progress(quiet=args.quiet))
    summary = summarise(record)
    print(render_result(record, summary))
    if args.json:
        write_record(record, asdict(summary), args.json)
    write_page(record, args.html)
    if not record.complete and args.json:
        print(f"interrupted: the same command with --resume goes on from {args.json}")
    return 0 if record.complete else INTERRUPTED


def compare(words: Sequence[str]) -> int:
    """Say what changed from one result to another beyond noise."""
    args = make_compare_parser().parse_args(words)
    print(render_changes(compare_records(read_record(args.old), read_record(args.new))))
    return 0


def report(words: Sequence[str]) -> int:
    """Show a result again."""
    args = make_report_parser().parse_args(words)
    check_writable(args.html)
    record = read_record(args.result)
    render = render_result
    if args.markdown or args.brief:
        render = render_brief if args.brief else render_markdown
    print(render(record, summarise(record)))
    write_page(record, args.html)
    return 0


def check_writable(path: Path | None) -> None:
    """Refuse an output in a folder that is not there before anything is measured."""
    if path is not None and not path.absolute().parent.is_dir():
        raise ToolError(f"cannot write {path}: there is no folder {path.parent}")


def write_page(record: Record, path: Path | None) -> None:
    """Write the page of a record, if one is wanted."""
    if path is not None:
        path.write_text(render_page(record, summarise(record)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
