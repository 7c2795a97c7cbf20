"""The options of `python -m tools.bench` and of its two companions, `compare` and `report`."""

import argparse
from pathlib import Path

from runtime.arguments import Parser

from .peers import PEERS

DEFAULT_TOKENS = 64
DEFAULT_REPEATS = 3
DEFAULT_PROMPTS = 10


def make_parser() -> Parser:
    """Return the parser of a measurement."""
    parser = Parser(
        prog="python -m tools.bench",
        description="Measure a bundle beside the raw graph, PyTorch and peers, in turns.",
        epilog="python -m tools.bench compare OLD.json NEW.json says what changed beyond noise; "
        "python -m tools.bench report RESULT.json shows a result again, as text, Markdown or HTML.",
    )
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", type=Path, help="folder that the export wrote")
    add = parser.add_argument_group("rows").add_argument
    add("--stages", type=_names, action="append", metavar="A,B", help="drafters, bottom first")
    add("--k", type=_widths, metavar="N,M", help="tokens drafted in a round; auto is by cost")
    add(
        "--torch",
        nargs="?",
        const="",
        metavar="CHECKPOINT",
        help="PyTorch's rows, from a recipe, folder or GGUF file (default: the bundle's source)",
    )
    add("--peers", type=_names, default=[], metavar="NAME,…", help=f"of: {', '.join(PEERS)}")
    add("--checkpoint", metavar="REF", help="what peers' models are made from")
    add("--draft-checkpoint", metavar="REF", help="draft of PyTorch and of peers that take one")
    add("--over", type=_names, default=[], metavar="ROW,…", help="more rows to compare all with")
    add = parser.add_argument_group("method").add_argument
    add("--prompts", type=Path, metavar="FILE", help="JSONL with turns; by default our own")
    add("--categories", type=_names, default=[], metavar="A,B", help="only these")
    add("--limit", type=positive, default=DEFAULT_PROMPTS, metavar="N", help="most questions")
    add("--max-tokens", type=positive, default=DEFAULT_TOKENS, metavar="N", help="of an answer")
    add("--repeats", type=positive, default=DEFAULT_REPEATS, metavar="N", help="of every turn")
    add("--warm-ups", type=positive, default=1, metavar="N", help="unmeasured answers of each row")
    add("--ignore-eos", action="store_true", help="our rows go on after end-of-text tokens")
    add("--threads", type=positive, metavar="N", help="of every engine (default: usable cores)")
    add(
        "--sweep",
        nargs="+",
        default=[],
        metavar="AXIS=N,M",
        help="measure also along prompt, output, concurrency, threads",
    )
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="OUT", help="write everything measured")
    add("--html", type=Path, metavar="OUT", help="write one page with plots")
    add("--resume", action="store_true", help="go on with an interrupted run of the same --json")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


def make_compare_parser() -> Parser:
    """Return the parser of `compare`."""
    parser = Parser(
        prog="python -m tools.bench compare", description="Say what changed beyond noise."
    )
    parser.add_argument("old", metavar="OLD.json", type=Path)
    parser.add_argument("new", metavar="NEW.json", type=Path)
    return parser


def make_report_parser() -> Parser:
    """Return the parser of `report`."""
    parser = Parser(prog="python -m tools.bench report", description="Show a result again.")
    parser.add_argument("result", metavar="RESULT.json", type=Path)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="as Markdown")
    form.add_argument("--brief", action="store_true", help="as one small table in Markdown")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write one page with plots")
    return parser


def positive(text: str) -> int:
    """Return the whole number of at least 1 that `text` spells."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {value}")
    return value


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _widths(text: str) -> list[int | None]:
    return [None if part == "auto" else positive(part) for part in text.split(",")]
