"""What a drafter would be accepted for on text that it was not trained on.

In: a drafter and held-out samples. Out: `Acceptance`: β by temperature and category, and how likely
the first 1, 2, … drafted tokens all stay. A text counts for the temperature at which it was drawn;
text that the target did not write counts for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .batches import Columns
from .drafter import Drafter
from .losses import measure_acceptance
from .samples import GIVEN, Sample
from .writing import TEMPERATURES

LONGEST_RUN = 8
_BATCH_TOKENS = 2048


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Measured on `tokens` judged places.

    Attributes:
        beta: by temperature, the mean of Σ min(p, q) over places.
        by_category: by category and temperature, the same.
        survival: by temperature, s₁ … s₈: the mean over places of the product of β there and at
            the next ones. At temperature 0 it is the share of places where so many drafted tokens
            are the target's own; else it supposes that the next places are as easy on other text.
        tokens: places.
    """

    beta: Mapping[float, float]
    by_category: Mapping[str, Mapping[float, float]]
    survival: Mapping[float, tuple[float, ...]]
    tokens: int

    @property
    def mean(self) -> float:
        """The mean β over temperatures, by which the best drafter is chosen."""
        return float(np.mean(list(self.beta.values())))


def measure_drafter(drafter: Drafter, samples: Sequence[Sample], columns: Columns) -> Acceptance:
    """Measure a drafter on held-out samples."""
    runs: list[tuple[str, float, np.ndarray]] = []  # category, temperature, β of each place
    ordered = sorted(samples, key=lambda sample: len(sample.tokens))
    with torch.inference_mode():
        for group in _groups(ordered):
            batch = columns.make_batch(group).to(drafter.device)
            scores = drafter.scores(batch.tokens, batch.places)
            by_temperature = {
                t: measure_acceptance(scores, batch.columns, batch.log_probs, t).cpu().numpy()
                for t in TEMPERATURES
            }
            end = 0
            for sample in group:
                begin, end = end, end + len(sample.laws)
                for t, beta in by_temperature.items():
                    if sample.temperature == GIVEN or abs(sample.temperature - t) < 1e-3:
                        runs.append((sample.category, t, beta[begin:end]))
    return _summarise(runs)


def _groups(samples: Sequence[Sample]) -> list[list[Sample]]:
    groups: list[list[Sample]] = [[]]
    for sample in samples:
        if groups[-1] and sum(len(s.tokens) for s in groups[-1]) >= _BATCH_TOKENS:
            groups.append([])
        groups[-1].append(sample)
    return groups


def _summarise(runs: Sequence[tuple[str, float, np.ndarray]]) -> Acceptance:
    temperatures = sorted({t for _, t, _ in runs})
    own = {t: [beta for _, at, beta in runs if at == t] for t in temperatures}
    categories = list(dict.fromkeys(kind for kind, _, _ in runs))
    return Acceptance(
        beta={t: float(np.concatenate(own[t]).mean()) for t in temperatures},
        by_category={
            kind: {
                t: float(np.concatenate(found).mean())
                for t in temperatures
                if (found := [beta for k, at, beta in runs if (k, at) == (kind, t)])
            }
            for kind in categories
        },
        survival={t: _survival(own[t]) for t in temperatures},
        tokens=sum(len(beta) for _, _, beta in runs),
    )


def _survival(texts: Sequence[np.ndarray]) -> tuple[float, ...]:
    """Return the mean product of β over 1, 2, … places in a row, none across two texts."""
    products = [np.ones(len(beta)) for beta in texts]
    survival = []
    for step in range(LONGEST_RUN):
        products = [p[: len(b) - step] * b[step:] for p, b in zip(products, texts, strict=True)]
        found = np.concatenate(products)
        survival.append(float(found.mean()) if len(found) else 0.0)
    return tuple(survival)
