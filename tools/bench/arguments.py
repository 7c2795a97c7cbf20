"""The options of `python -m tools.bench`."""

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
    )
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", type=Path, help="folder that the export wrote")
    add("--stages", type=_names, action="append", metavar="A,B", help="drafters, bottom first")
    add("--k", type=_widths, default=[None], metavar="N,M", help="tokens drafted in a round")
    add("--peers", type=_names, default=[], metavar="NAME,…", help=f"of: {', '.join(PEERS)}")
    add("--checkpoint", metavar="REF", help="recipe, folder or GGUF file that peers are made from")
    add("--over", type=_names, default=[], metavar="ROW,…", help="more rows to compare all with")
    add("--prompts", type=Path, metavar="FILE", help="JSONL with turns; by default our own")
    add("--categories", type=_names, default=[], metavar="A,B", help="only these")
    add("--limit", type=positive, default=DEFAULT_PROMPTS, metavar="N", help="most questions")
    add("--max-tokens", type=positive, default=DEFAULT_TOKENS, metavar="N", help="of an answer")
    add("--repeats", type=positive, default=DEFAULT_REPEATS, metavar="N", help="of every turn")
    add("--warm-ups", type=positive, default=1, metavar="N", help="unmeasured answers of each row")
    add("--ignore-eos", action="store_true", help="our rows go on after end-of-text tokens")
    add("--threads", type=positive, metavar="N", help="of every engine (default: usable cores)")
    add("--json", type=Path, metavar="OUT", help="write everything measured")
    add("--quiet", action="store_true", help="no progress on standard error")
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
    return [positive(part) for part in text.split(",")]
