"""The commands' options: what can be typed, and the request it spells.

In: an argument list. Out: a parsed namespace, and from it the keywords of `Engine.generate`.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import NoReturn

from .cost_report import ACCEPTANCES
from .costs import MODES
from .request import DEFAULT_MAX_TOKENS, NUMERICS, RULES, Options


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage around it."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def make_parser() -> Parser:
    """Return the parser of `python -m runtime`."""
    parser = Parser(
        prog="python -m runtime",
        description="Generate text from a bundle: exactly the target model's, sooner.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    generate = commands.add_parser("generate", help="answer one prompt")
    _add_bundle(generate)
    _add_prompt(generate)
    _add_request(generate)
    generate.add_argument(
        "--json", action="store_true", help="print one JSON object at the end and nothing else"
    )
    chat = commands.add_parser("chat", help="talk in turns")
    _add_bundle(chat)
    chat.add_argument("--system", metavar="TEXT", help="system message to begin with")
    _add_request(chat)
    info = commands.add_parser("info", help="describe a bundle")
    info.add_argument("bundle", metavar="BUNDLE", help="folder that the export wrote")
    info.add_argument("--json", action="store_true", help="print the manifest as JSON")
    info.add_argument("--no-verify", action="store_true", help="do not check files' SHA-256")
    info.add_argument(
        "--provider", metavar="P", help="open the models there, and say which nodes run where"
    )
    _add_places(info)
    store = commands.add_parser("store", help="inspect or clear a store of past answers")
    store.add_argument("path", metavar="PATH", type=Path, help="the file given as --store")
    store.add_argument("--clear", action="store_true", help="remove it")
    store.add_argument("--json", action="store_true", help="print one JSON object")
    costs = commands.add_parser("costs", help="what passes cost here, and when drafting pays")
    _add_bundle(costs)
    _add_costs(costs)
    return parser


def read_options(args: argparse.Namespace) -> Options:
    """Return the keywords of a generation that the options spell."""
    return Options(
        max_tokens=args.max_tokens,
        stop=args.stop,
        ignore_eos=args.ignore_eos,
        seed=args.seed,
        speculate=args.speculate,
        k=args.k,
        stages=args.stages,
        rule=args.rule,
        numerics=args.numerics,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        logit_bias=dict(args.logit_bias),
        min_tokens=args.min_tokens,
        coupled=args.coupled,
    )


def read_prompt(args: argparse.Namespace) -> str:
    """Return the prompt's text from the option, the file or standard input.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    if args.prompt is not None:
        return str(args.prompt)
    if args.prompt_file is None or args.prompt_file == "-":
        return sys.stdin.buffer.read().decode("utf-8")
    with open(args.prompt_file, "rb") as file:  # noqa: PTH123 - bytes, so that newlines stay
        return file.read().decode("utf-8")


def _add_bundle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that the export wrote")
    parser.add_argument("--no-verify", action="store_true", help="do not check files' SHA-256")
    parser.add_argument("--provider", default="cpu", help="cpu, cuda or tensorrt (default cpu)")
    _add_places(parser)
    parser.add_argument(
        "--cuda-graphs", action="store_true", help="replay short passes as CUDA graphs"
    )
    parser.add_argument(
        "--max-memory", type=_bytes, metavar="SIZE", help="such as 1.5GiB: load drafts that fit"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: usable cores)")
    parser.add_argument("--store", metavar="PATH", help="keep answers there to draft from later")


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device-id", type=int, default=0, metavar="N", help="which GPU")
    parser.add_argument(
        "--providers",
        type=_places,
        default={},
        metavar="NAME=P,…",
        help="other providers for some models: draft=cpu",
    )
    parser.add_argument(
        "--strict-provider",
        action="store_true",
        help="refuse a model of which the provider leaves nodes to the CPU",
    )


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT")
    source.add_argument("--prompt-file", metavar="FILE", help="UTF-8 text; - is standard input")
    source.add_argument("stdin", nargs="?", choices=["-"], help="read standard input")
    parser.add_argument("--chat", action="store_true", help="apply the bundle's chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message, with --chat")


def _add_costs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--refresh", action="store_true", help="measure even if a table is kept")
    add("--mode", default="greedy", choices=MODES, help="how tokens are chosen (default greedy)")
    add("--numerics", default="default", choices=NUMERICS, help="see README, Exactness")
    add("--depth", type=_depth, metavar="N", help="tokens in the caches (default: few)")
    add("--acceptance", type=_shares, default=ACCEPTANCES, metavar="A,B", help="for the best k")
    add("--plot", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf")
    add("--json", action="store_true", help="print one JSON object and nothing else")


def _add_request(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("generation").add_argument
    add("--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, metavar="N")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before it; repeatable")
    add("--ignore-eos", action="store_true", help="go on after end-of-text tokens")
    add("--speculate", default="auto", metavar="MODE", help="auto, off or k=N")
    add("--k", type=int, metavar="N", help="most tokens drafted in a round")
    add("--stages", type=_names, metavar="A,B", help="bottom first: suffix,draft or suffix|draft:2")
    add("--rule", default="auto", choices=RULES, help="acceptance rule when sampling")
    add("--numerics", default="default", choices=NUMERICS, help="see README, Exactness")
    add("--trace", metavar="FILE", help="write every round as a line of JSON")
    add("--explain", action="store_true", help="say on standard error what was drafted and why")
    add = parser.add_argument_group("sampling").add_argument
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    add("--top-k", type=int, default=0, metavar="K", help="0 is off")
    add("--top-p", type=float, default=1.0, metavar="P", help="1 is off")
    add("--min-p", type=float, default=0.0, metavar="P", help="0 is off")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="1 is off")
    add("--presence-penalty", type=float, default=0.0, metavar="R")
    add("--frequency-penalty", type=float, default=0.0, metavar="R")
    add("--logit-bias", type=_bias, action="append", default=[], metavar="ID=BIAS")
    add("--min-tokens", type=int, default=0, metavar="N")
    add("--seed", type=int, metavar="N", help="a fresh one by default, reported with --json")
    add("--coupled", action="store_true", help="a seed's text does not depend on the drafter")


def _depth(text: str) -> int:
    if (depth := int(text)) < 0:
        raise ValueError
    return depth


def _shares(text: str) -> list[float]:
    shares = [float(part) for part in text.split(",")]
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError
    return shares


_depth.__name__ = "number of tokens"
_shares.__name__ = "list of numbers from 0 to 1"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _places(text: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",")]
    if not all(name and where for name, _, where in pairs):
        raise ValueError(text)
    return {name.strip(): where.strip() for name, _, where in pairs}


_places.__name__ = "NAME=PROVIDER,…"


def _bytes(text: str) -> int:
    spelled = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip())
    if spelled is None:
        raise ValueError(text)
    return int(float(spelled[1]) * 1024.0 ** " KMG".index(spelled[2] or " "))


_bytes.__name__ = "SIZE"


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    return int(token), float(bias)


_bias.__name__ = "ID=BIAS"  # what the parser calls it when it does not fit
