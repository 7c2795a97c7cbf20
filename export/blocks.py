"""Quantise a weight matrix in blocks along its rows: int4 or int8, one scale per block.

In: a float32 matrix `[N, K]`. Out: `Blocks`, bytes as com.microsoft.MatMulNBits-1 reads them:
`w = (q - zero) * scale`, K padded with the zero point to whole blocks. int4 is stored two to a
byte, the lower half first.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_ROWS_AT_ONCE = 1 << 18  # elements worked on together: what the processor's cache holds
# Tried widths of an int4 block's grid relative to its full range: clipping the few largest
# weights a little makes the many others finer.
_SHRINKS = (1.0, 0.9, 0.8, 0.7)


@dataclass(frozen=True)
class Blocks:
    """A quantised matrix of `rows` x `columns`."""

    packed: NDArray[np.uint8]  # [N, blocks, block_size * bits / 8]
    scales: NDArray[np.float32]  # [N, blocks]
    zeros: NDArray[np.uint8] | None  # [N, ceil(blocks * bits / 8)], None: 2^(bits-1)
    bits: int
    block_size: int
    columns: int


def quantize_matrix(
    weight: NDArray[np.float32],
    *,
    bits: int,
    block_size: int,
    importance: NDArray[np.float32] | None = None,
    is_symmetric: bool = False,
) -> Blocks:
    """Quantise `weight` `[N, K]`; `importance` `[K]` says what an error in a column costs.

    With `is_symmetric` int4 blocks have no zero point either, as int8 ones never have.
    """
    rows, columns = weight.shape
    blocks = -(-columns // block_size)
    matters = np.ones(columns, np.float32) if importance is None else importance
    costs = torch.from_numpy(np.pad(matters, (0, blocks * block_size - columns)))
    costs = costs.reshape(1, blocks, block_size)
    packed = np.empty((rows, blocks, block_size * bits // 8), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    zeros = np.empty((rows, blocks), np.uint8)
    step = max(1, _ROWS_AT_ONCE // (blocks * block_size))

    def quantize_rows(start: int) -> None:
        part = torch.from_numpy(weight[start : start + step].copy())  # mapped files are read-only
        part = torch.nn.functional.pad(part, (0, blocks * block_size - columns))
        part = part.reshape(-1, block_size)
        count = len(part) // blocks
        cost = costs.expand(count, -1, -1).reshape(-1, block_size)
        codes, scale, zero = _quantize_blocks(part, cost, bits, is_symmetric=is_symmetric)
        stop = start + len(weight[start : start + step])
        packed[start:stop] = _pack(codes, bits).reshape(-1, blocks, block_size * bits // 8)
        scales[start:stop] = scale.reshape(-1, blocks).numpy()
        zeros[start:stop] = zero.reshape(-1, blocks).to(torch.uint8).numpy()

    with _one_thread_an_operation(), ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(quantize_rows, range(0, rows, step)):
            pass
    zero_points = None if is_symmetric or bits == 8 else _pack_zeros(zeros)
    return Blocks(packed, scales, zero_points, bits, block_size, columns)


@contextmanager
def _one_thread_an_operation() -> Iterator[None]:
    """Let each small operation run on its own thread: threads that share one wait for each other.

    On a machine that does other work too, waiting takes far longer than the arithmetic.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _quantize_blocks(
    part: torch.Tensor, cost: torch.Tensor, bits: int, *, is_symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes, scales and zero points (`[B, block]`, `[B, 1]`, `[B, 1]`) of `[B, block]`."""
    if bits == 8:
        scale = part.abs().amax(1, keepdim=True) / 127
        zero = torch.full_like(scale, 128)
        return _round(part, scale, zero, 255), scale, zero
    low = part.amin(1, keepdim=True).clamp(max=0)
    high = part.amax(1, keepdim=True).clamp(min=0)
    if is_symmetric:  # as wide on both sides of the zero point, 8
        high = torch.maximum(high, -low * (7 / 8))
        low = -high * (8 / 7)
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    for shrink in _SHRINKS:
        scale = (high - low) * (shrink / 15)
        zero = _divide(-low * shrink, scale).round_().clamp_(0, 15)
        codes = _round(part, scale, zero, 15)
        steps = codes - zero
        # The scale that is best for these codes (weighted least squares).
        weighted = steps * cost
        scale = _ratio(
            (weighted * part).sum(1, keepdim=True), (weighted * steps).sum(1, keepdim=True)
        )
        error = (steps.mul_(scale).sub_(part).square_() * cost).sum(1, keepdim=True)
        if best is None:
            best = (codes, scale, zero, error)
            continue
        better = error < best[3]
        best = (
            torch.where(better, codes, best[0]),
            torch.where(better, scale, best[1]),
            torch.where(better, zero, best[2]),
            torch.where(better, error, best[3]),
        )
    assert best is not None
    return best[:3]


def _round(part: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, top: int) -> torch.Tensor:
    return (_divide(part, scale) + zero).round_().clamp_(0, top)


def _divide(part: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return part * _ratio(torch.ones_like(scale), scale)


def _ratio(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """Return `above / below`, and 0 where `below` is 0."""
    return torch.where(below > 0, above / below, torch.zeros_like(below))


def _pack(codes: torch.Tensor, bits: int) -> NDArray[np.uint8]:
    whole = codes.to(torch.uint8)
    if bits == 4:
        whole = whole[:, 0::2] | (whole[:, 1::2] << 4)
    packed: NDArray[np.uint8] = whole.numpy()
    return packed


def _pack_zeros(zeros: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rows, blocks = zeros.shape
    even = np.zeros((rows, blocks + blocks % 2), np.uint8)
    even[:, :blocks] = zeros
    packed: NDArray[np.uint8] = even[:, 0::2] | (even[:, 1::2] << 4)
    return packed
