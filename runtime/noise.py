"""Randomness as a function: the same (seed, path, position, purpose) always gives the same draw.

In: a seed and where the draw stands. Out: a uniform number, or one per token of the vocabulary.
No state: a rejected token, another request in between or a restart leaves no trace in later draws.
Source: keyed BLAKE2 (RFC 7693) as the counter-based generator for single draws, Philox for vectors.
"""

import secrets
import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_UNIT = 2.0**-53


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

    def inside(self, start: int) -> "Noise":
        """Return the noise of what happens inside the round or level that starts at `start`."""
        return Noise(self.seed, (*self.path, start))

    def uniform(self, position: int, purpose: Purpose) -> float:
        """Return a number in [0, 1) for the token at `position`."""
        return (_digest(self.seed, (*self.path, position, purpose)) >> 11) * _UNIT

    def exponentials(self, position: int, size: int) -> NDArray[np.float64]:
        """Return one standard exponential number per token, `[size] float64`.

        They are keyed by (seed, position, token) and by nothing else, so that every level of a
        stack and every request with this seed sees the same ones: −log of them is Gumbel noise.
        """
        key = _digest(self.seed, (position, Purpose.COUPLED))
        raw = np.random.Philox(key=key).random_raw(size)
        uniform = (raw >> np.uint64(11)).astype(np.float64)  # [size], integers below 2^53
        return -np.log((uniform + 0.5) * _UNIT)


def fresh_seed() -> int:
    """Return a seed nobody has used, below 2^53 so that every JSON reader keeps it exact."""
    return secrets.randbits(53)


def _digest(seed: int, words: tuple[int, ...]) -> int:
    data = struct.pack(f"<{len(words)}q", *words)
    hashed = blake2b(data, digest_size=8, key=seed.to_bytes(8, "little"))
    return int.from_bytes(hashed.digest(), "little")
