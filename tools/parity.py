"""Compare answers with speculation on and off, token by token.

In: an engine, prompts and settings whose text must not depend on the drafter (greedy or coupled).
Out: how many agree, and for each that does not the first differing place with its margin: how far
the two best choices were apart there. Graph kernels may round differently for different numbers of
rows; a margin within that rounding is a tie, anything above it is a fault.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from runtime import Completion, Engine
from runtime.noise import Noise
from runtime.request import Options, make_request
from runtime.sampling import Sampler, make_law

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
    target.align(prefix)
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
