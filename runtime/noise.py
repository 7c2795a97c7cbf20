"""Randomness as a function: the same (seed, path, position, purpose) always gives the same draw.

In: a seed and where the draw stands. Out: a uniform number, or one per token of the vocabulary.
No state: a rejected token, another request in between or a restart leaves no trace in later draws.
Source: keyed BLAKE2 (RFC 7693) as the counter-based generator for single draws, SFC64 for vectors.
"""

import secrets
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_UNIT = 2.0**-53
_KEPT_POSITIONS = 32


class Purpose(IntEnum):
    """What a draw is for: draws of different purposes are independent."""

    EMIT = 1
    ACCEPT = 2
    COUPLED = 3


@dataclass(frozen=True)
class Noise:
    """The draws of one request, seen from one level of the stack.

    A round draws at positions it may not emit in the end. What was learnt about those draws must
    not leak into the next round's draws at the same positions, so each draw is keyed by the start
    of its round, and a level inside a round by the starts of all rounds around it (`path`).
    """

    seed: int
    path: tuple[int, ...] = ()
    # Draft and target ask for the same positions in turn; a pure function, so only time is saved.
    _kept: dict[tuple[int, int], NDArray[np.float64]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def inside(self, start: int) -> "Noise":
        """Return the noise of what happens inside the round or level that starts at `start`."""
        return Noise(self.seed, (*self.path, start), self._kept)

    def uniform(self, position: int, purpose: Purpose) -> float:
        """Return a number in [0, 1) for the token at `position`."""
        return (_digest(self.seed, (*self.path, position, purpose)) >> 11) * _UNIT

    def exponentials(self, position: int, size: int) -> NDArray[np.float64]:
        """Return one standard exponential number per token, `[size] float64`, read-only.

        They are keyed by (seed, position, token) and by nothing else, so that every level of a
        stack and every request with this seed sees the same ones: −log of them is Gumbel noise.
        """
        key = (position, size)
        if key not in self._kept:
            if len(self._kept) == _KEPT_POSITIONS:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = _exponentials(self.seed, position, size)
        return self._kept[key]


def fresh_seed() -> int:
    """Return a seed nobody has used, below 2^53 so that every JSON reader keeps it exact."""
    return secrets.randbits(53)


def _exponentials(seed: int, position: int, size: int) -> NDArray[np.float64]:
    key = _digest(seed, (position, Purpose.COUPLED))
    numbers = np.random.Generator(np.random.SFC64(key)).random(size)  # [size] in [0, 1)
    np.subtract(1.0, numbers, out=numbers)
    np.log(numbers, out=numbers)
    np.negative(numbers, out=numbers)
    # A draw of exactly 0 would win any race, even for a token of probability zero.
    np.maximum(numbers, _UNIT, out=numbers)
    numbers.flags.writeable = False
    return numbers


def _digest(seed: int, words: tuple[int, ...]) -> int:
    data = struct.pack(f"<{len(words)}q", *words)
    hashed = blake2b(data, digest_size=8, key=seed.to_bytes(8, "little"))
    return int.from_bytes(hashed.digest(), "little")
