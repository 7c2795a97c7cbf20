"""Compare the block rule with the token rule on real rounds: `python -m tools.rules BUNDLE`.

Both rules judge the same proposals under the same laws. For each round the expected number of
accepted tokens is computed from the thresholds, so that no noise of acceptance blurs the
difference; what is left is the spread over rounds.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from export.progress import Progress
from runtime import Engine, ForerunError
from runtime.acceptance import RULES, Rule
from runtime.arguments import Parser
from runtime.request import Options
from runtime.speculate import Verdict
from runtime.stack import TARGET

from .parity import encode_questions

ANSWER_TOKENS = 96


def expected_accepted(rule: Rule, verdict: Verdict) -> float:
    """Return the mean number of tokens that `rule` keeps of this proposal under these laws."""
    tokens = verdict.drafted.tokens
    h = [float(t) for t in rule.thresholds(verdict.p, verdict.drafted.laws, tokens)]
    if rule.name == "token":  # kept while every test holds
        return sum(math.prod(h[: i + 1]) for i in range(len(h)))
    missed_after = [math.prod(1 - t for t in h[i + 1 :]) for i in range(len(h))]
    return sum((i + 1) * h[i] * missed_after[i] for i in range(len(h)))


def main(argv: list[str] | None = None) -> int:
    """Run the comparison and print it."""
    args = _make_parser().parse_args(argv)
    rounds: list[tuple[float, float]] = []

    def watch(verdict: Verdict) -> None:
        if verdict.level == TARGET and len(verdict.drafted.tokens) == args.k:
            rounds.append(
                (
                    expected_accepted(RULES["token"], verdict),
                    expected_accepted(RULES["block"], verdict),
                )
            )

    try:
        with Engine.open(args.bundle, threads=args.threads) as engine:
            prompts = encode_questions(engine, args.prompts)
            options = Options(
                k=args.k,
                temperature=args.temperature,
                max_tokens=ANSWER_TOKENS,
                ignore_eos=True,
            )
            if args.stages:
                options["stages"] = args.stages
            with Progress(quiet=args.quiet).stage("rounds", total=args.rounds) as stage:
                answer = 0
                while len(rounds) < args.rounds:
                    before = len(rounds)
                    prompt = prompts[answer % len(prompts)]
                    for _ in engine.generate(prompt, watch=watch, **(options | {"seed": answer})):
                        pass
                    answer += 1
                    stage.advance(len(rounds) - before)
    except ForerunError as error:
        print(f"rules: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    print(_summary(rounds, args))
    return 0


def _summary(rounds: Sequence[tuple[float, float]], args: argparse.Namespace) -> str:
    token, block = np.array(rounds).T
    gain = block - token
    spread = gain.std(ddof=1) / math.sqrt(len(gain))
    return (
        f"{len(gain)} rounds, k = {args.k}, temperature {args.temperature:g}\n"
        f"mean accepted length: token rule {1 + token.mean():.4f}, block rule "
        f"{1 + block.mean():.4f}\n"
        f"gain {gain.mean():+.4f} ± {spread:.4f} tokens a round "
        f"({gain.mean() / (1 + token.mean()):+.2%}); smallest in a round {gain.min():+.4f}"
    )


def _make_parser() -> Parser:
    parser = Parser(prog="python -m tools.rules", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", type=Path, help="folder that the export wrote")
    add("--rounds", type=int, default=2000, metavar="N")
    add("--k", type=int, default=4, metavar="N", help="tokens drafted in a round (default 4)")
    add("--temperature", type=float, default=1.0, metavar="T")
    add("--stages", type=lambda text: text.split(","), metavar="A,B", help="drafters, bottom first")
    add("--prompts", type=Path, metavar="FILE", help="JSONL with turns; by default our own")
    add("--threads", type=int, metavar="N")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
