"""Certify that a bundle's speculative output is the target's own: `python -m tools.certify BUNDLE`.

It runs the bundle on prompts, greedy and coupled with speculation on and off, samples under several
settings and prints a certificate: parity, three statistics per setting with their p-values, and the
same statistics for a deliberately wrong rule, which must be rejected. Exit status 0 only when
everything holds.
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from export.progress import Progress, Stage
from runtime import Engine, ForerunError
from runtime.acceptance import TokenRule
from runtime.arguments import Parser
from runtime.drafters import SuffixDrafter
from runtime.generation import generate_chunks
from runtime.law import Law
from runtime.providers import count_threads
from runtime.request import Options, Request, make_request
from runtime.session import onnxruntime_version
from runtime.speculate import Verdict
from runtime.stack import TARGET, Stack
from runtime.text import TextStream

from .errors import ToolError
from .evidence import Evidence, Score
from .parity import compare_answers, encode_questions

REJECT_BELOW = 1e-4
DEFAULT_TOKENS = 40_000
ANSWER_TOKENS = 96
FIXED_K = 4
_SLICES = 8
PARITY_TOKENS = 64
SETTINGS: dict[str, Options] = {
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1.0": {"temperature": 1.0},
    "temperature 1.0, top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "temperature 1.0, repetition penalty 1.1": {"temperature": 1.0, "repetition_penalty": 1.1},
}


class ResidualIsTarget(TokenRule):
    """A wrong rule seen in the field: after a rejection, draw from p and not from the residual."""

    name = "wrong"

    def last(self, p: Sequence[Law], _q: object, _tokens: object, accepted: int, /) -> Law:
        """Return p where norm(max(0, p − q)) is due."""
        return p[accepted]


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Answers compared with speculation on and off: `equal` of `answers`, and first differences.

    `fair` says whether every difference lies at a tie within the graph's rounding.
    """

    setting: str
    answers: int
    tokens: int
    equal: int
    differences: tuple[str, ...]
    fair: bool


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What sampling under one setting showed, by the right rule and by the wrong one."""

    setting: str
    rule: str
    scores: tuple[Score, ...]
    wrong_scores: tuple[Score, ...]
    acceptance_rate: float | None
    mean_accepted_length: float
    exposed_variation: float

    @property
    def holds(self) -> bool:
        """Whether no statistic rejects the right rule."""
        return all(score.p_value >= REJECT_BELOW for score in self.scores)

    @property
    def wrong_is_rejected(self) -> bool:
        """Whether some statistic rejects the wrong rule."""
        return any(score.p_value < REJECT_BELOW for score in self.wrong_scores)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Everything that was run and what it showed."""

    bundle: str
    stages: str
    parity: tuple[Parity, ...]
    sampled: tuple[Sampled, ...]
    tokens: int
    seconds: float
    versions: dict[str, str]

    @property
    def holds(self) -> bool:
        """Whether every check of the certificate holds."""
        same = all(parity.fair for parity in self.parity)
        right = all(sampled.holds and sampled.wrong_is_rejected for sampled in self.sampled)
        return same and right


def main(argv: list[str] | None = None) -> int:
    """Run the certificate and return 0 only when everything holds."""
    args = _make_parser().parse_args(argv)
    progress = Progress(quiet=args.quiet)
    try:
        _check_arguments(args)
        with Engine.open(args.bundle, threads=args.threads, verify_hashes=True) as engine:
            certificate = certify(engine, args, progress)
    except ForerunError as error:
        print(f"certify: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("certify: stopped before the end; nothing is certified", file=sys.stderr)
        return 130
    print("\n".join(render(certificate)))
    if args.json:
        report = asdict(certificate) | {"holds": certificate.holds}
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if certificate.holds else 1


def certify(engine: Engine, args: argparse.Namespace, progress: Progress) -> Certificate:
    """Run every check of the certificate on an open engine."""
    began = perf_counter()
    prompts = encode_questions(engine, args.prompts)
    stack: Options = {} if args.k is None else {"k": args.k}
    if args.stages:
        stack["stages"] = args.stages
    parity = tuple(
        _compare(engine, prompts[: args.parity_prompts], stack, name, settings, progress)
        for name, settings in {
            "greedy": Options(temperature=0.0),
            "coupled, temperature 1.0": Options(temperature=1.0, coupled=True, seed=1),
        }.items()
    )
    sampled = tuple(
        _sample(engine, prompts, name, stack | settings, args.tokens, progress)
        for name, settings in SETTINGS.items()
    )
    return Certificate(
        bundle=str(args.bundle),
        stages=",".join(args.stages or []) or "default",
        parity=parity,
        sampled=sampled,
        tokens=args.tokens,
        seconds=perf_counter() - began,
        versions=_versions(engine, threads=count_threads(args.threads)),
    )


def render(certificate: Certificate) -> Iterator[str]:
    """Yield the lines of a certificate."""
    yield f"certificate of {certificate.bundle}, stages {certificate.stages}"
    yield "  " + ", ".join(f"{name} {value}" for name, value in certificate.versions.items())
    for parity in certificate.parity:
        verdict = "holds" if parity.fair else "FAILS"
        yield (
            f"{verdict}  {parity.setting}: {parity.equal} of {parity.answers} answers equal with "
            f"speculation on and off ({parity.tokens} tokens)"
        )
        yield from (f"         {difference}" for difference in parity.differences)
    for sampled in certificate.sampled:
        yield from _render_sampled(sampled)
    result = "everything holds" if certificate.holds else "NOT everything holds"
    yield f"{result}; {certificate.seconds:.0f} s"


def _render_sampled(sampled: Sampled) -> Iterator[str]:
    rate = sampled.acceptance_rate
    shown = "n/a" if rate is None else f"{rate:.3f}"
    yield (
        f"{'holds' if sampled.holds else 'FAILS'}  {sampled.setting}, {sampled.rule} rule: "
        f"acceptance {shown}, mean accepted length {sampled.mean_accepted_length:.2f}, exposes a "
        f"total variation of {sampled.exposed_variation:.3f}"
    )
    for right, wrong in zip(sampled.scores, sampled.wrong_scores, strict=True):
        yield (
            f"         {right.name:<13} {right.value:+8.3f}  p = {right.p_value:.3g} over "
            f"{right.tokens} tokens; wrong rule {wrong.value:+8.3f}  p = {wrong.p_value:.3g}"
        )
    if not sampled.wrong_is_rejected:
        yield "         FAILS: the wrong rule was not rejected; run with more --tokens"


def _compare(
    engine: Engine,
    prompts: list[list[int]],
    stack: Options,
    name: str,
    settings: Options,
    progress: Progress,
) -> Parity:
    differences: list[str] = []
    fair = True
    with progress.stage(f"parity, {name}", total=len(prompts)) as stage:
        for i, prompt in enumerate(prompts):
            asked = settings | {
                "max_tokens": PARITY_TOKENS,
                "ignore_eos": True,
                "numerics": "fixed-width",
            }
            for found in compare_answers(engine, [prompt], [stack], **asked).values():
                differences += [str(replace(difference, prompt=i)) for difference in found]
                fair &= all(difference.is_tie for difference in found)
            stage.advance(1)
    return Parity(
        setting=name,
        answers=len(prompts),
        tokens=len(prompts) * PARITY_TOKENS,
        equal=len(prompts) - len(differences),
        differences=tuple(differences),
        fair=fair,
    )


def _sample(
    engine: Engine,
    prompts: list[list[int]],
    name: str,
    options: Options,
    tokens: int,
    progress: Progress,
) -> Sampled:
    right, wrong = Evidence(seed=1), Evidence(seed=2)
    with progress.stage(f"sampling, {name}", total=tokens) as stage:
        rule = _collect(engine, prompts, options, right, tokens, stage, is_wrong=False)
    with progress.stage(f"wrong rule, {name}", total=tokens) as stage:
        for part in range(1, _SLICES + 1):  # only as long as it takes to reject it
            goal = tokens * part // _SLICES
            _collect(engine, prompts, options, wrong, goal, stage, is_wrong=True)
            if any(score.p_value < REJECT_BELOW for score in wrong.scores()):
                break
    return Sampled(
        setting=name,
        rule=rule,
        scores=right.scores(),
        wrong_scores=wrong.scores(),
        acceptance_rate=right.accepted / right.tested if right.tested else None,
        mean_accepted_length=right.emitted / right.rounds,
        exposed_variation=right.exposed_variation(p_value=REJECT_BELOW),
    )


def _collect(
    engine: Engine,
    prompts: list[list[int]],
    options: Options,
    evidence: Evidence,
    tokens: int,
    stage: Stage,
    *,
    is_wrong: bool,
) -> str:
    """Sample answers until `tokens` tokens were seen; return the name of the rule that judged.

    Without a k asked for, every other answer drafts `FIXED_K` tokens a round, so that the rule is
    also seen where drafting does not pay and would rest. The wrong one always drafts.
    """
    answer = evidence.answers
    rule = ""
    while evidence.emitted < tokens:
        prompt = prompts[answer % len(prompts)]
        asked = Options(seed=answer, max_tokens=ANSWER_TOKENS, ignore_eos=True)
        if is_wrong or answer % 2:
            asked["k"] = FIXED_K
        request = make_request(asked | options)
        before = evidence.emitted
        rule = _watch_answer(engine, prompt, request, evidence, answer, is_wrong=is_wrong)
        stage.advance(min(evidence.emitted, tokens) - min(before, tokens))
        answer += 1
    evidence.answers = answer
    return rule


def _watch_answer(
    engine: Engine,
    prompt: list[int],
    request: Request,
    evidence: Evidence,
    answer: int,
    *,
    is_wrong: bool,
) -> str:
    seen: list[Verdict] = []
    stack = engine.make_stack(
        request,
        prompt,
        watch=lambda verdict: seen.append(verdict) if verdict.level == TARGET else None,
    )
    if isinstance(stack.target.drafter, SuffixDrafter):
        # One token in common is enough here: text that hardly repeats is then judged all the same.
        stack = _with_target(stack, drafter=SuffixDrafter(shortest=1))
    if is_wrong:
        stack = _with_target(stack, rule=ResidualIsTarget())
    for chunk in generate_chunks(
        stack,
        prompt,
        request,
        stream=TextStream(engine.tokenizer),
        end_ids=frozenset(),
        started=perf_counter(),
    ):
        if seen:
            evidence.add(seen.pop(), request=answer, kept=len(chunk.token_ids))
    return stack.target.rule.name


def _with_target(stack: Stack, **changes: Any) -> Stack:
    return Stack((replace(stack.target, **changes), *stack.levels[1:]), stack.controller)


def _check_arguments(args: argparse.Namespace) -> None:
    if args.tokens < 1 or args.parity_prompts < 1:
        raise ToolError("--tokens and --parity-prompts must be at least 1")
    if args.json and not Path(args.json).absolute().parent.is_dir():
        raise ToolError(f"--json {args.json}: the folder does not exist; make it first")


def _versions(engine: Engine, *, threads: int) -> dict[str, str]:
    manifest = engine.bundle.manifest
    files = [file for file in manifest.files if file.path.startswith(manifest.target.name + "/")]
    return {
        "target": f"{manifest.target.source} {manifest.target.precision}",
        "weights": ", ".join(file.sha256[:12] for file in files),
        "onnxruntime": onnxruntime_version(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {threads} threads",
    }


def _make_parser() -> Parser:
    parser = Parser(prog="python -m tools.certify", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", type=Path, help="folder that the export wrote")
    add("--tokens", type=int, default=DEFAULT_TOKENS, metavar="N", help="sampled per setting")
    add("--prompts", type=Path, metavar="FILE", help="JSONL with turns; by default our own")
    add("--parity-prompts", type=int, default=20, metavar="N", help="prompts compared on and off")
    add("--stages", type=lambda text: text.split(","), metavar="A,B", help="drafters, bottom first")
    add("--k", type=int, metavar="N", help="tokens drafted in a round")
    add("--threads", type=int, metavar="N")
    add("--json", metavar="OUT", help="also write the certificate as JSON")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
