"""The gate: a finished graph must compute what the checkpoint computes.

In: logits of the PyTorch model and graphs on disk, opened and run by the product's own session.
Out: figures for the manifest, or `ParityError`. The only file here that imports the runtime's
session: what is checked is what will run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from runtime.batch import BatchModel
from runtime.cache import Cache
from runtime.manifest import ModelEntry
from runtime.model import OnnxModel
from runtime.session import view, write

from .errors import ParityError

# (tokens in the cache, tokens fed at once); new > 1 on a non-empty cache is where masks go wrong.
GRID = ((0, 1), (0, 7), (5, 1), (5, 4), (1, 8), (40, 16))
LENGTH = max(past + new for past, new in GRID)
TOLERANCE = 1e-3  # of the range of the logits, in float32
_ROLLBACK = (37, 5)  # go back to this many tokens, then feed so many others
_POISON = 1e4  # lies in the cache wherever no token was fed
_KL_LIMIT = {"int4": 1.0, "int8": 0.1, "float16": 0.1}  # nats per token; beyond, a graph is broken
_BLOCK_LIMIT = 0.2  # of the range of the logits; rounding was seen up to 0.05
_HALF_TOLERANCE = 0.02  # of the range of the logits, where anything is float16
_LONGEST_PROMPT = 64  # tokens


@dataclass(frozen=True)
class Reference:
    """What PyTorch computes: tokens and logits of one text and of one that leaves it half-way."""

    tokens: tuple[int, ...]
    logits: NDArray[np.float32]  # [LENGTH, vocabulary]
    other_tokens: tuple[int, ...]
    other_logits: NDArray[np.float32]  # [sum(_ROLLBACK), vocabulary]

    def of_columns(self, kept: NDArray[np.int64]) -> "Reference":
        """Return what a head must compute that is trimmed to the tokens `kept`."""
        return replace(self, logits=self.logits[:, kept], other_logits=self.other_logits[:, kept])


@dataclass(frozen=True)
class Passed:
    """A graph that passed: its largest error, and its logits for every prompt."""

    error: float  # relative to the range of the logits
    rows: list[NDArray[np.float32]]  # each [tokens, vocabulary]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a quantised graph is from the float one, over `tokens` rows of the fixed texts."""

    mean_kl: float  # nats per token, KL(float || quantised)
    top1_agreement: float
    tokens: int


def make_reference(model: PreTrainedModel, *, vocabulary: int) -> Reference:
    """Compute the reference logits with the model's own eager attention."""
    rng = np.random.default_rng(20)
    past, new = _ROLLBACK
    # Padding is no text: some models do not count it.
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)

    def draw(count: int) -> list[int]:
        ids = rng.integers(0, vocabulary, count)
        return [int(n) if n != padding else (int(n) + 1) % vocabulary for n in ids]

    tokens = tuple(draw(LENGTH))
    other = (*tokens[:past], *draw(new))
    return Reference(tokens, _torch_logits(model, tokens), other, _torch_logits(model, other))


def check_float(
    graph: Path, entry: ModelEntry, reference: Reference, prompts: Sequence[Sequence[int]]
) -> Passed:
    """Hold a float32 graph against PyTorch over the grid, and after a rollback.

    Raises ParityError that names the first (past, new) beyond the tolerance.
    """
    model = OnnxModel.open(graph, entry)
    _poison(model.cache)
    worst = 0.0
    for past, new in GRID:
        model.rewind(to=0)
        if past:
            model.score(reference.tokens[:past], 1)
        rows = model.score(reference.tokens[: past + new], new)
        wanted = reference.logits[past : past + new]
        worst = max(worst, _compare(rows, wanted, f"{new} new tokens on a cache of {past}"))
    past, _ = _ROLLBACK
    model.rewind(to=past)
    rows = model.score(reference.other_tokens, len(reference.other_tokens) - past)
    wanted = reference.other_logits[past:]
    worst = max(worst, _compare(rows, wanted, f"a rollback to {past} tokens"))
    if entry.flavour in ("portable", "trees"):
        worst = max(worst, _check_batch(model, entry, reference))
    return Passed(worst, _score_prompts(model, prompts))


def _check_batch(model: OnnxModel, entry: ModelEntry, reference: Reference) -> float:
    """Feed two texts of different lengths together, and roll back one of them."""
    batch = BatchModel(model.session, entry, sequences=2, vocabulary=entry.logits)
    _poison(batch.cache)
    texts = (reference.tokens, reference.other_tokens)
    wanted = (reference.logits, reference.other_logits)
    worst = 0.0
    for lengths, rows in (((9, 21), (1, 3)), ((12, 22), (3, 1)), ((12, 15), (2, 4))):
        fed = [text[:length] for text, length in zip(texts, lengths, strict=True)]
        for found, logits, length in zip(batch.score(fed, rows), wanted, lengths, strict=True):
            expected = logits[length - len(found) : length]
            worst = max(worst, _compare(found, expected, f"texts of {lengths} tokens together"))
    return worst


def compare_blocks(
    graph: Path, entry: ModelEntry, reference: Reference, prompts: Sequence[Sequence[int]]
) -> Passed:
    """Measure how far a block's rows are from the same tokens fed singly, in a larger cache.

    Kernels sum in another order for one row than for several. Where activations are rounded to
    int8, such a difference of one in 10^7 can flip a rounding, and a few layers later it shows.
    """
    model = OnnxModel.open(graph, entry)
    _poison(model.cache)
    past, new = 40, 8
    end = past + new
    block = model.score(reference.tokens[:end], new).copy()
    model.rewind(to=past)
    model.cache.reserve(min(2 * model.cache.capacity, entry.context))
    steps = [model.score(reference.tokens[:stop], 1)[0].copy() for stop in range(past + 1, end + 1)]
    return Passed(_relative_error(block, np.stack(steps)), _score_prompts(model, prompts))


def score_singly(graph: Path, entry: ModelEntry) -> list[NDArray[np.float32]]:
    """Return the logits of a text and of one that leaves it half-way, a token a pass.

    What a graph that was made elsewhere is held against: there is nothing else to compare it with.
    """
    model = OnnxModel.open(graph, entry)
    scored = []
    for tokens in _texts(entry.embeddings):
        model.rewind(to=0)
        rows = [model.score(tokens[: i + 1], 1)[0].copy() for i in range(len(tokens))]
        scored.append(np.stack(rows))
    return scored


def compare_with_steps(
    graph: Path, entry: ModelEntry, steps: Sequence[NDArray[np.float32]]
) -> dict[str, Any]:
    """Hold a graph's blocks, over the grid and after a rollback, against its own single steps.

    Returns the figures for the manifest.
    Raises ParityError that names the first (past, new) beyond the limit.
    """
    limit = _BLOCK_LIMIT if entry.precision in ("int4", "int8") else TOLERANCE
    if "float16" in (entry.precision, entry.cache.dtype):
        limit = max(limit, _HALF_TOLERANCE)
    model = OnnxModel.open(graph, entry)
    tokens, other = _texts(entry.embeddings)
    worst = 0.0

    def hold(text: Sequence[int], past: int, wanted: NDArray[np.float32], what: str) -> None:
        nonlocal worst
        error = _relative_error(model.score(text, len(text) - past), wanted)
        if not error <= limit:  # NaN fails too
            raise ParityError(
                f"the graph's block differs from its own single steps by {error:.2g} of the "
                f"logits' range (limit {limit:g}) for {what}: it cannot verify drafted tokens"
            )
        worst = max(worst, error)

    for past, new in GRID:
        model.rewind(to=0)
        if past:
            model.score(tokens[:past], 1)
        end = past + new
        hold(tokens[:end], past, steps[0][past:end], f"{new} new tokens on a cache of {past}")
    past, _ = _ROLLBACK
    model.rewind(to=past)
    hold(other, past, steps[1][past:], f"a rollback to {past} tokens")
    return {"grid": [list(pair) for pair in GRID], "block_error": _rounded(worst)}


def _texts(vocabulary: int) -> tuple[list[int], list[int]]:
    rng = np.random.default_rng(20)
    past, new = _ROLLBACK
    tokens = [int(n) for n in rng.integers(0, vocabulary, LENGTH)]
    return tokens, [*tokens[:past], *(int(n) for n in rng.integers(0, vocabulary, new))]


def measure_drift(
    wanted: Sequence[NDArray[np.float32]],
    found: Sequence[NDArray[np.float32]],
    *,
    vocabulary: int,
) -> Drift:
    """Compare the laws that two graphs give for the same prompts."""
    divergences, agreements = [], []
    for a, b in zip(wanted, found, strict=True):
        p, q = _log_law(a[:, :vocabulary]), _log_law(b[:, :vocabulary])
        divergences.append((np.exp(p) * (p - q)).sum(axis=1))
        agreements.append(p.argmax(axis=1) == q.argmax(axis=1))
    kl, agree = np.concatenate(divergences), np.concatenate(agreements)
    return Drift(
        mean_kl=_rounded(float(kl.mean())),
        top1_agreement=_rounded(float(agree.mean())),
        tokens=len(kl),
    )


def measure_kept(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    kept: NDArray[np.int64],
    *,
    vocabulary: int,
) -> float:
    """Return the probability that `model` gives to the tokens `kept`, on average over the prompts.

    What a draft gives to others can no longer be proposed once its head is trimmed.
    """
    shares = [
        np.exp(_log_law(_torch_logits(model, prompt[:_LONGEST_PROMPT])[:, :vocabulary]))[:, kept]
        for prompt in prompts
    ]
    return _rounded(float(np.concatenate(shares).sum(axis=1).mean()))


def check_drift(drift: Drift, *, precision: str) -> None:
    """Raise ParityError when a graph is so far from the float one that it must be broken."""
    if not drift.mean_kl <= _KL_LIMIT[precision]:  # NaN fails too
        raise ParityError(
            f"the {precision} graph is {drift.mean_kl:.3g} nats per token from the float graph "
            f"(limit {_KL_LIMIT[precision]}): choose a finer precision (--precision int8) or a "
            "smaller --block-size"
        )


def as_figures(*, error: float, block_error: float, drift: Drift | None = None) -> dict[str, Any]:
    """Return the figures as the manifest records them.

    `max_error` is that of the float graph against PyTorch, `block_error` that of a block against
    single steps, both relative to the range of the logits; the rest compares with the float graph.
    """
    figures: dict[str, Any] = {
        "grid": [list(pair) for pair in GRID],
        "max_error": _rounded(error),
        "tolerance": TOLERANCE,
        "block_error": _rounded(block_error),
    }
    if drift is not None:
        figures |= {
            "mean_kl": drift.mean_kl,
            "top1_agreement": drift.top1_agreement,
            "tokens": drift.tokens,
        }
    return figures


def _torch_logits(model: PreTrainedModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    with torch.no_grad():
        out = model(input_ids=torch.tensor([list(tokens)]), use_cache=False)
    logits: NDArray[np.float32] = out.logits[0].float().numpy()
    return logits


def _compare(found: NDArray[np.float32], wanted: NDArray[np.float32], what: str) -> float:
    error = _relative_error(found, wanted)
    if not error <= TOLERANCE:  # NaN fails too
        raise ParityError(
            f"the graph differs from PyTorch by {error:.2g} of the logits' range (tolerance "
            f"{TOLERANCE:g}) for {what}: this model does something that the export does not carry"
        )
    return error


def _score_prompts(model: OnnxModel, prompts: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
    scored = []
    for prompt in prompts:
        tokens = list(prompt)[:_LONGEST_PROMPT]
        model.rewind(to=0)
        scored.append(model.score(tokens, len(tokens)).copy())
    return scored


def _relative_error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    spread = float(wanted.max() - wanted.min()) or 1.0
    return float(np.abs(found - wanted).max()) / spread


def _poison(cache: Cache) -> None:
    cache.reserve(LENGTH)
    for tensor in cache.named("past").values():
        values = view(tensor)
        write(tensor, np.full(values.shape, _POISON, values.dtype))


def _log_law(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    law: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return law


def _rounded(value: float) -> float:
    """Two exports on one machine agree to these digits."""
    return float(f"{value:.3g}")
