"""Compare answers with speculation on and off: `python -m tools.parity BUNDLE`.

In: an engine, prompts and settings whose text must not depend on the drafter (greedy or coupled).
Out: how many agree, and for each that does not the first differing place with its margin: how far
the two best choices were apart there. Graph kernels may round differently for different numbers of
rows; a margin within that rounding is a tie, anything above it is a fault.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np

from export.progress import Progress
from runtime import Completion, Engine, ForerunError
from runtime.arguments import Parser
from runtime.noise import Noise
from runtime.request import NUMERICS, Options, make_request
from runtime.sampling import Sampler, make_law
from runtime.stages import COPIERS, NGRAM

from .prompt_sets import encode_fitting, read_questions

# Rounding between pass widths was seen up to 1e-5 of the logits; ties closer than this are fair.
TIE_MARGIN = 1e-3


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two answers part: `position` counts from the answer's start."""

    prompt: int
    position: int
    plain_token: int
    speculative_token: int
    margin: float

    @property
    def is_tie(self) -> bool:
        """Whether the two choices were equal within the graph's rounding."""
        return self.margin <= TIE_MARGIN

    def __str__(self) -> str:
        kind = "a tie within rounding" if self.is_tie else "NOT a tie"
        return (
            f"prompt {self.prompt}, token {self.position}: plain {self.plain_token}, speculative "
            f"{self.speculative_token}, margin of the two best {self.margin:.2e} ({kind})"
        )


def compare_answers(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    configurations: Iterable[Options],
    **settings: Unpack[Options],
) -> dict[str, list[Difference]]:
    """Return the differences of each speculative configuration from plain decoding.

    Args:
        engine: an open engine.
        prompts: token ids of each prompt.
        configurations: options such as `{"stages": ["draft"], "k": 4}`, compared one by one.
        **settings: the settings they share; greedy or coupled.
    """
    found: dict[str, list[Difference]] = {_name(options): [] for options in configurations}
    for number, prompt in enumerate(prompts):
        plain = engine.complete(prompt, **(settings | {"speculate": "off"}))
        for options in configurations:
            other = engine.complete(prompt, **(settings | options))
            if other.token_ids != plain.token_ids:
                found[_name(options)].append(
                    _locate(engine, number, prompt, plain, other, settings)
                )
    return found


def encode_questions(
    engine: Engine, path: Path | None, *, limit: int | None = None
) -> list[list[int]]:
    """Return the first turns of a prompt file as token ids, those that fit the context.

    Args:
        engine: encodes them, by its chat template where it has one.
        path: JSONL with turns; `None` reads our own prompts.
        limit: how many questions to take, evenly over their categories.

    Raises:
        ToolError: no prompt fits.
    """
    return [ids for _, ids in encode_fitting(engine, read_questions(path, limit=limit))]


def main(argv: list[str] | None = None) -> int:
    """Compare and return 0 if no answer differs but at ties."""
    args = _make_parser().parse_args(argv)
    progress = Progress(quiet=args.quiet)
    found: dict[str, list[Difference]] = {}
    try:
        with Engine.open(args.bundle, threads=args.threads) as engine:
            prompts = encode_questions(engine, args.prompts, limit=args.limit)
            offered = [*COPIERS, *([NGRAM] if engine.bundle.manifest.ngram else []), *engine.drafts]
            stacks = args.stages or [[name] for name in offered]
            configurations = [Options(stages=stack, k=k) for stack in stacks for k in args.k]
            settings = Options(
                max_tokens=args.max_tokens, ignore_eos=args.ignore_eos, numerics=args.numerics
            )
            if args.coupled:
                settings |= {"coupled": True, "temperature": args.coupled, "seed": 1}
            with progress.stage("comparing", total=len(prompts)) as stage:
                for i, prompt in enumerate(prompts):
                    here = compare_answers(engine, [prompt], configurations, **settings)
                    for name, differences in here.items():
                        found.setdefault(name, []).extend(
                            replace(difference, prompt=i) for difference in differences
                        )
                    stage.advance(1)
    except ForerunError as error:
        print(f"parity: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    for name, differences in found.items():
        print(f"{name}: {len(prompts) - len(differences)} of {len(prompts)} answers equal")
        for difference in differences:
            print(f"  {difference}")
    return 0 if all(d.is_tie for differences in found.values() for d in differences) else 1


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m tools.parity", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", type=Path, help="folder that the export wrote")
    add("--prompts", type=Path, metavar="FILE", help="JSONL with turns; by default our own")
    add("--limit", type=int, default=20, metavar="N", help="how many prompts (default 20)")
    add("--max-tokens", type=int, default=100, metavar="N", help="per answer (default 100)")
    add("--k", type=_widths, default=[1, 2, 4, 8], metavar="A,B", help="default 1,2,4,8")
    add(
        "--stages",
        type=lambda text: text.split(","),
        action="append",
        metavar="A,B",
        help="drafters, bottom first; repeatable; by default each by itself",
    )
    add("--coupled", type=float, metavar="T", help="sample coupled at this temperature")
    add("--ignore-eos", action="store_true", help="go on after end-of-text tokens")
    add("--numerics", choices=NUMERICS, default="fixed-width", help="see README, Exactness")
    add("--threads", type=int, metavar="N")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


def _widths(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _name(options: Options) -> str:
    stages = ",".join(options.get("stages") or ["default stages"])
    k = options.get("k")
    return f"{stages}, k = {'default' if k is None else k}"


def _locate(
    engine: Engine,
    number: int,
    prompt: Sequence[int],
    plain: Completion,
    other: Completion,
    settings: Options,
) -> Difference:
    pairs = list(zip(plain.token_ids, other.token_ids, strict=False))
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    prefix = [*prompt, *plain.token_ids[:place]]
    at = slice(place, place + 1)
    return Difference(
        prompt=number,
        position=place,
        plain_token=next(iter(plain.token_ids[at]), -1),
        speculative_token=next(iter(other.token_ids[at]), -1),
        margin=_margin(engine, prefix, len(prompt), settings),
    )


def _margin(engine: Engine, prefix: list[int], prompt_length: int, settings: Options) -> float:
    """Return how far the two best choices are apart, in logits (plus Gumbel noise if coupled)."""
    request = make_request(settings)
    target = engine.target
    target.begin(prefix, even_widths=request.has_even_widths)
    row = target.score(prefix, 1)[0].copy()
    noise = Noise(request.seed)
    sampler = Sampler(
        request.sampling,
        vocabulary=target.vocabulary,
        prompt_length=prompt_length,
        end_ids=engine.bundle.manifest.end_ids,
        noise=noise,
    )
    row = sampler.adjusted(row, prefix, len(prefix))
    scores = row.astype(np.float64)
    if not request.sampling.is_greedy:
        law = make_law(row, request.sampling)
        ids = np.arange(len(row)) if law.ids is None else law.ids
        with np.errstate(divide="ignore"):
            scores = np.log(law.weights) - np.log(noise.exponentials(len(prefix), len(row))[ids])
    best = np.sort(scores)[-2:]
    return float(best[-1] - best[0]) if len(best) == 2 else float("inf")


if __name__ == "__main__":
    sys.exit(main())
