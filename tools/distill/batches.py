"""Samples as tensors: texts of like length side by side, filled up at their ends.

In: samples and the tokens that a drafter keeps. Out: batches. What fills up comes after every text,
where a causal model's texts cannot see it, so no mask is needed and any family will do.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from .losses import ABSENT
from .samples import Sample

_WINDOW = 32  # batches among whose samples like lengths are sought


@dataclass(frozen=True)
class Batch:
    """Texts and the places that are judged in them, n in all.

    Attributes:
        tokens: `[rows, length]` int64, without each text's last token, which no law follows.
        places: `[n]` int64, into the flattened `tokens`: where each judged token is foretold.
        columns: `[n, top]` int64, the listed tokens as the drafter's columns.
        log_probs: `[n, top]` float32.
        answers: `[n]` int64, the text's own tokens as columns.
        samples: what it was made from, in the order of rows.
    """

    tokens: torch.Tensor
    places: torch.Tensor
    columns: torch.Tensor
    log_probs: torch.Tensor
    answers: torch.Tensor
    samples: Sequence[Sample]

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if name != "samples"}
        return replace(self, **moved)


class Columns:
    """Which column of a trimmed head stands for each token."""

    def __init__(self, kept: NDArray[np.int64], vocabulary: int) -> None:
        self._columns = np.full(max(vocabulary, int(kept[-1]) + 1), ABSENT, np.int64)
        self._columns[kept] = np.arange(len(kept))

    def make_batch(self, samples: Sequence[Sample]) -> Batch:
        """Return the samples as one batch."""
        length = max(len(sample.tokens) for sample in samples) - 1
        tokens = np.zeros((len(samples), length), np.int64)
        places = []
        for row, sample in enumerate(samples):
            tokens[row, : len(sample.tokens) - 1] = sample.tokens[:-1]
            begin = row * length + sample.start - 1
            places.append(np.arange(begin, begin + len(sample.laws)))
        ids = np.concatenate([sample.laws.ids for sample in samples])
        log_probs = np.concatenate([sample.laws.log_probs for sample in samples])
        answers = np.concatenate([sample.tokens[sample.start :] for sample in samples])
        return Batch(
            torch.from_numpy(tokens),
            torch.from_numpy(np.concatenate(places)),
            torch.from_numpy(self._columns[ids]),
            torch.from_numpy(log_probs.astype(np.float32)),
            torch.from_numpy(self._columns[answers]),
            samples,
        )


def deal_samples(
    samples: Sequence[Sample], *, tokens: int, epoch: int, seed: int
) -> Iterator[list[Sample]]:
    """Yield every sample once, in an order of the epoch's, about so many judged tokens a batch."""
    chance = random.Random(f"{seed} {epoch}")
    order = list(samples)
    chance.shuffle(order)
    usual = max(1, sum(len(sample.laws) for sample in order) // len(order))
    window = _WINDOW * max(1, tokens // usual)
    batches = []
    for place in range(0, len(order), window):
        alike = sorted(order[place : place + window], key=lambda sample: len(sample.tokens))
        batches += list(_group(alike, tokens))
    chance.shuffle(batches)
    yield from batches


def _group(samples: Sequence[Sample], tokens: int) -> Iterator[list[Sample]]:
    group: list[Sample] = []
    for sample in samples:
        group.append(sample)
        if sum(len(one.laws) for one in group) >= tokens:
            yield group
            group = []
    if group:
        yield group
