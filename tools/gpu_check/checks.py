"""The checks: each asks one question of a bundle on a provider and yields rows.

In: opened models or an engine. Out: rows with a verdict; what cannot be asked here says why. Target
figures are those that a graphics card of the server class should reach.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from runtime import Engine
from runtime.bundle import open_bundle
from runtime.model import OnnxModel
from runtime.providers import Threads, count_threads, make_provider
from runtime.request import Options
from runtime.tokenizer import Tokenizer

from ..parity import compare_answers
from ..prompt_sets import encode_fitting, read_questions
from .meter import MemoryWatch, metered
from .rows import Row, judge
from .subjects import Subject

WIDTHS = tuple(range(1, 18))
PAST = 256
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "int4": 2e-1}  # of the logits' range, by precision
STEP_RATIO = 1.25  # portable ÷ fused, on the CPU
WIDE = 1.3  # v(8) of a pair on a GPU
GAIN = 1.8  # speculative ÷ plain, greedy, code
HOST_SHARE = 0.2
_WARM_UPS = 3
_TEXT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1)"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured: passes by width, prompts, tokens of an answer."""

    passes: int
    prompts: int
    tokens: int


QUICK = Effort(passes=8, prompts=2, tokens=32)
FULL = Effort(passes=30, prompts=6, tokens=128)


def check_loading(folder: Path, provider: str) -> Iterator[Row]:
    """Does the provider load, and which nodes does it leave to the CPU?"""
    model = open_target(folder, provider)
    placement = model.session.placement
    if placement is None:
        yield Row(check="loads", subject=provider, found="which nodes run there is not told")
        return
    strays = sum(placement.strays.values())
    left = f"{strays} nodes left to the CPU" if strays else "no node left to the CPU"
    yield Row(
        check="loads",
        subject=provider,
        found=f"{left} ({', '.join(sorted(placement.strays))})" if strays else left,
        verdict=judge(good=not strays),
        figures={"strays": strays},
    )


def check_parity(subject: Subject, folder: Path) -> Iterator[Row]:
    """Does the device compute what the CPU provider computes from the same bundle?"""
    here = _logits(
        open_target(folder / subject.name, subject.provider), _ids(folder / subject.name)
    )
    there = _logits(open_target(folder / subject.name, "cpu"), _ids(folder / subject.name))
    yield _compare(
        "parity with the CPU",
        f"{subject.name} on {subject.provider}",
        here,
        there,
        TOLERANCE[subject.precision],
    )


def check_flavours(folder: Path, fused: Subject, portable: Subject) -> Iterator[Row]:
    """Do the two flavours of one model compute the same, and what does a step cost in each?"""
    ids = _ids(folder / fused.name)
    models = {s.name: open_target(folder / s.name, "cpu") for s in (fused, portable)}
    rows = [_logits(model, ids) for model in models.values()]
    subject = f"{portable.name} beside {fused.name}"
    yield _compare("parity of flavours", subject, rows[1], rows[0], TOLERANCE[fused.precision])
    seconds = time_in_turns(list(models.values()), width=1, passes=60)
    ratios = [b / a for a, b in zip(*seconds, strict=True)]
    ratio = median(ratios)
    yield Row(
        check="step time",
        subject=subject,
        found=f"{ratio:.3f} times as long past {PAST} (quarters {_quarters(ratios)})",
        verdict=judge(good=ratio <= STEP_RATIO),
        figures={"ratio": ratio},
    )


def check_widths(subject: Subject, folder: Path, effort: Effort) -> Iterator[Row]:
    """What does a pass over m tokens cost in plain steps?"""
    for captures in (False, True) if subject.provider == "cuda" else (False,):
        model = open_target(folder / subject.name, subject.provider, captures=captures)
        seconds = time_widths(model, effort.passes)
        relative = {m: s / seconds[1] for m, s in seconds.items()}
        is_aim = subject.provider == "cuda" and subject.precision == "float16" and subject.draft
        yield Row(
            check="v(m)",
            subject=f"{subject.name} on {subject.provider}{_with_graphs(captures)}",
            found=f"v(1) {1000 * seconds[1]:.2f} ms; "
            + ", ".join(f"v({m}) {relative[m]:.2f}" for m in (2, 3, 5, 8, 9, 13, 17)),
            verdict=judge(good=not is_aim or relative[8] <= WIDE),
            figures={f"v({m})": ratio for m, ratio in relative.items()},
        )


def check_answers(subject: Subject, folder: Path, effort: Effort) -> Iterator[Row]:
    """Is greedy text the same with speculation on and off, and how much sooner does it come?"""
    for graphs in (False, True) if subject.provider == "cuda" else (False,):
        name = f"{subject.name} on {subject.provider}{_with_graphs(graphs)}"
        with (
            MemoryWatch() as memory,
            Engine.open(
                folder / subject.name,
                provider=subject.provider,
                cuda_graphs=graphs,
                measure_costs=subject.draft is not None,
            ) as engine,
        ):
            prompts = _prompts(engine, effort.prompts)
            settings = Options(max_tokens=effort.tokens, ignore_eos=True)
            (differences,) = compare_answers(engine, prompts, [Options()], **settings).values()
            faults = [d for d in differences if not d.is_tie]
            yield Row(
                check="greedy on = off",
                subject=name,
                found=f"{len(prompts) - len(differences)} of {len(prompts)} answers equal, "
                f"{len(differences) - len(faults)} part at a tie",
                verdict=judge(good=not faults, otherwise="failed"),
            )
            is_aim = graphs and subject.precision == "float16" and subject.draft is not None
            yield from _time_answers(engine, prompts, settings, name=name, is_aim=is_aim)
        if memory.peak is not None:
            yield Row(
                check="device memory",
                subject=name,
                found=f"{memory.peak / (1 << 20):.0f} MiB in use at most, other programs included",
                figures={"bytes": memory.peak},
            )


def _time_answers(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    settings: Options,
    *,
    name: str,
    is_aim: bool,
) -> Iterator[Row]:
    rates: dict[str, list[float]] = {"off": [], "auto": []}
    with metered() as reading:
        for ids in prompts:
            for speculate, found in rates.items():
                answer = engine.complete(ids, **(settings | {"speculate": speculate}))
                found.append(answer.stats.decode_tokens_per_s or 0.0)
    plain, sped = median(rates["off"]), median(rates["auto"])
    gain = median(b / a for a, b in zip(*rates.values(), strict=True) if a)
    yield Row(
        check="tokens a second",
        subject=name,
        found=f"plain {plain:.1f}, speculative {sped:.1f}: {gain:.2f} times",
        verdict=judge(good=not is_aim or gain >= GAIN),
        figures={"plain": plain, "speculative": sped, "gain": gain},
    )
    share = reading.host_share
    into, out = (total / reading.passes for total in (reading.bytes_in, reading.bytes_out))
    yield Row(
        check="host share",
        subject=name,
        found=f"{100 * share:.0f} % of the time; a pass reads {into:.0f} bytes of the host, "
        f"and {out:.0f} come back",
        verdict=judge(good=not is_aim or share <= HOST_SHARE),
        figures={"share": share, "bytes in": into, "bytes out": out},
    )


def check_engine_build(subject: Subject, folder: Path) -> Iterator[Row]:
    """How long does TensorRT take to build its engine, and to read it back?"""
    seconds = []
    for _ in range(2):
        began = perf_counter()
        model = open_target(folder / subject.name, subject.provider)
        model.score([1] * 8, 1)
        seconds.append(perf_counter() - began)
        del model
    yield Row(
        check="engine build",
        subject=f"{subject.name} on {subject.provider}",
        found=f"{seconds[0]:.1f} s the first time, {seconds[1]:.1f} s the second",
        verdict=judge(good=seconds[1] <= max(5.0, seconds[0] / 2)),
        figures={"first": seconds[0], "second": seconds[1]},
    )


def open_target(folder: Path, provider: str, *, captures: bool = False) -> OnnxModel:
    """Open a bundle's target by itself."""
    bundle = open_bundle(folder)
    entry = bundle.manifest.target
    return OnnxModel(
        bundle.graph(entry),
        entry,
        vocabulary=bundle.manifest.tokenizer.vocabulary,
        provider=make_provider(provider, captures=captures),
        threads=Threads(count=count_threads(None)),
    )


def time_widths(model: OnnxModel, passes: int) -> dict[int, float]:
    """Return the seconds of a pass by its width, past `PAST` tokens, the widths taking turns."""
    model.cache.reserve(PAST + max(WIDTHS))
    model.score([1] * PAST, 1)
    found: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for turn in range(passes + _WARM_UPS):
        for width in WIDTHS:
            seconds = _time_pass(model, width)
            if turn >= _WARM_UPS:
                found[width].append(seconds)
    return {width: median(seconds) for width, seconds in found.items()}


def time_in_turns(models: Sequence[OnnxModel], *, width: int, passes: int) -> list[list[float]]:
    """Return the seconds of each model's passes past `PAST` tokens, the models taking turns."""
    for model in models:
        model.score([1] * PAST, 1)
    found: list[list[float]] = [[] for _ in models]
    for turn in range(passes + _WARM_UPS):
        for model, seconds in zip(models, found, strict=True):
            taken = _time_pass(model, width)
            if turn >= _WARM_UPS:
                seconds.append(taken)
    return found


def _time_pass(model: OnnxModel, width: int) -> float:
    step = model.steps.of(width, width)
    began = perf_counter()
    step.run([[1] * width], [PAST])
    return perf_counter() - began


def _compare(
    check: str, subject: str, found: np.ndarray, wanted: np.ndarray, tolerance: float
) -> Row:
    error = float(np.abs(found - wanted).max() / (wanted.max() - wanted.min()))
    agree = float((found.argmax(1) == wanted.argmax(1)).mean())
    return Row(
        check=check,
        subject=subject,
        found=f"within {error:.1e} of the logits' range, same first choice "
        f"{100 * agree:.0f} % of {len(found)} tokens",
        verdict=judge(good=error <= tolerance, otherwise="failed"),
        figures={"error": error, "agreement": agree},
    )


def _logits(model: OnnxModel, ids: Sequence[int]) -> np.ndarray:
    """Return the logits of every token: a prompt's piece, proposals, single steps, a rollback."""
    half = len(ids) // 2
    rows = [model.score(ids[:half], half).copy()]
    for start, end in zip(range(half, len(ids), 4), range(half + 4, len(ids) + 4, 4), strict=False):
        rows.append(model.score(ids[:end], len(ids[start:end])).copy())
    model.rewind(to=half)
    rows.append(model.score(ids[: half + 1], 1).copy())
    return np.concatenate(rows)


def _ids(folder: Path) -> list[int]:
    return Tokenizer.load(open_bundle(folder).tokenizer).encode(_TEXT, add_special=False)[:48]


def _prompts(engine: Engine, count: int) -> list[list[int]]:
    questions = [q for q in read_questions(None) if q.category == "code"]
    return [ids for _, ids in encode_fitting(engine, questions)][:count]


def _quarters(values: Sequence[float]) -> str:
    low, high = np.quantile(values, (0.25, 0.75))
    return f"{low:.3f} to {high:.3f}"


def _with_graphs(captures: bool) -> str:  # noqa: FBT001 - a word for a flag
    return " with CUDA graphs" if captures else ""
