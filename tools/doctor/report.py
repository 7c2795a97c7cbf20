"""A diagnosis in words and as plain data.

In: what was found out about a bundle. Out: lines for a terminal, or a mapping for JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runtime.bundle import Bundle
from runtime.costs import CostTable
from runtime.memory import CACHED_TOKENS, memory_bytes, token_bytes

from .forecast import KS, Answer, Forecast, find_best, make_forecast
from .subject import Pair
from .verdict import Verdict

_MIB = 1 << 20


@dataclass(frozen=True)
class Diagnosis:
    """What was measured of one bundle, and the verdict."""

    bundle: Bundle
    table: CostTable
    answers: Sequence[Answer]
    forecasts: Mapping[str, Sequence[Forecast]]
    verdict: Verdict

    def memory(self) -> dict[str, tuple[int, int]]:
        """Return each model's bytes of weights and of cache for a token."""
        models = self.bundle.manifest.models
        return {m.name: (self.bundle.weight_bytes(m), token_bytes(m)) for m in models}

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "is_pair": True,
            "memory": {
                name: {"weight_bytes": weights, "cache_token_bytes": token}
                for name, (weights, token) in self.memory().items()
            },
            "v": {k + 1: self.table.v(k + 1) for k in KS},
            "c": {name: self.table.c(name) for name in self.forecasts},
            "answers": len(self.answers),
            "answer_tokens": sum(answer.length for answer in self.answers),
            "forecasts": {name: [asdict(f) for f in own] for name, own in self.forecasts.items()},
            "is_worth_it": self.verdict.is_worth_it,
            "verdict": self.verdict.sentence,
        }


def describe_diagnosis(found: Diagnosis) -> Iterator[str]:
    """Yield the lines of a diagnosis for a terminal."""
    manifest = found.bundle.manifest
    yield f"language    one tokenizer of {manifest.tokenizer.vocabulary} tokens for all models"
    yield from _describe_memory(found)
    drafts = [entry.name for entry in manifest.drafts]
    costs = ", ".join(f"{name} {found.table.c(name):.2f}" for name in drafts) or "no draft"
    yield f"draft cost  of a target step, a token: {costs}"
    widths = ", ".join(f"{k + 1} tokens {found.table.v(k + 1):.2f}" for k in (1, 2, 3, 7))
    yield f"target      a pass over {widths} times a step over one"
    tokens = sum(answer.length for answer in found.answers)
    yield f"answers     {len(found.answers)}, {tokens} tokens, greedy, not the prompts' reading"
    yield ""
    yield from _align(_forecast_lines(found.forecasts))
    yield ""
    yield from _align(_category_lines(found))
    yield ""
    yield found.verdict.sentence


def estimate_pair(pair: Pair) -> dict[str, Any]:
    """Return what can be said of checkpoints that were not run, as plain data."""
    target, *drafts = pair.weight_bytes.items()
    ratios = {name: size / target[1] for name, size in drafts}
    if pair.mismatch is not None:
        verdict = f"no pair: {pair.mismatch}"
    else:
        costs = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        verdict = (
            "a pair by its language. Estimated from sizes alone, a draft token costs "
            f"{costs or 'nothing (no draft)'} of a target step; a draft pays only if clearly more "
            "than that share of its tokens stays: measure it without --quick"
        )
    return {
        "is_pair": pair.mismatch is None,
        "memory": {name: {"weight_bytes": size} for name, size in pair.weight_bytes.items()},
        "c": ratios,
        "is_worth_it": None if pair.mismatch is None else False,
        "verdict": verdict,
    }


def _describe_memory(found: Diagnosis) -> Iterator[str]:
    for name, (weights, token) in found.memory().items():
        yield (
            f"memory      {name}: {weights / _MIB:.0f} MiB of weights, {token / 1024:.0f} KiB of "
            "cache a token"
        )
    total = sum(memory_bytes(found.bundle, model) for model in found.bundle.manifest.models)
    yield f"            {total / _MIB:.0f} MiB in all with {CACHED_TOKENS} tokens"


def _forecast_lines(forecasts: Mapping[str, Sequence[Forecast]]) -> list[list[str]]:
    lines = [["predicted speed-up, k =", *map(str, KS)]]
    for name, own in forecasts.items():
        lines.append([name, *(f"{f.speedup:.2f}" for f in own)])
        lines.append(["  acceptance", *(_share(f.acceptance) for f in own)])
        lines.append(["  tokens a round", *(f"{f.tokens:.2f}" for f in own)])
    return lines


def _category_lines(found: Diagnosis) -> list[list[str]]:
    lines = [["best k by kind of text", *found.forecasts]]
    for category in dict.fromkeys(answer.category for answer in found.answers):
        answers = [answer for answer in found.answers if answer.category == category]
        best = [
            find_best(make_forecast(answers, name, k, found.table) for k in KS)
            for name in found.forecasts
        ]
        lines.append([category, *(f"{f.speedup:.2f} (k = {f.k})" for f in best)])
    return lines


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _align(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        yield "  ".join([line[0].ljust(widths[0]), *cells])
