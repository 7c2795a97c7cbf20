"""A language model that scores tokens: the seam between the loop and what computes logits.

`Model` is the contract that the loop, the drafters and the tests' table models share. `OnnxModel`
fulfils it with a graph of the bundle: one path feeds prompts, lagging tokens and proposals alike.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .cache import FIRST_CAPACITY, SCRATCH, Cache, doubled, stepped
from .columns import Widening, cut_to
from .logits import Best
from .manifest import ModelEntry
from .profiles import fit_provider
from .providers import Provider, Threads, make_provider
from .session import Session, onnxruntime_version
from .steps import Steps, check_signature

# Attention holds a buffer of [heads, new tokens, all tokens]; this bounds it for long prompts.
PREFILL_CHUNK = 512
ATTENTION_CELLS = 1 << 22


class Model(Protocol):
    """What scores tokens. A model remembers what it was fed and can be rewound."""

    vocabulary: int
    has_even_widths: bool

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""
        ...

    @property
    def length(self) -> int:
        """Number of tokens that the model's cache holds."""
        ...

    def score(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        """Feed what is new of `tokens` and return the logits of the last `rows` positions.

        Args:
            tokens: the whole sequence from its start; it begins with what the cache holds.
            rows: how many of the last positions to return, 1 ≤ rows ≤ len(tokens).

        Returns:
            `[rows, vocabulary]`: row r is the law of the token after `tokens[len - rows + r]`.
            The array belongs to the model and holds until its next call.
        """
        ...

    def rewind(self, *, to: int) -> None:
        """Forget all but the first `to` tokens; costs nothing."""
        ...

    def begin(self, tokens: Sequence[int], *, even_widths: bool, best: Best | None = None) -> None:
        """Get ready for a request: keep the part of the cache that `tokens` begins with.

        With `even_widths`, passes are run at even widths where that decides the last bits; what
        was computed the other way is then not kept. With `best`, the request looks at no more of a
        row than that.
        """
        ...


class OnnxModel:
    """A graph of a bundle with its cache.

    Args:
        graph: the `.onnx` file.
        entry: what the manifest says of it.
        vocabulary: number of ids that may be drafted, sampled and fed; logits beyond are padding.
        token_ids: the tokens that the columns of a trimmed head stand for.
        provider: where it runs.
        threads: compute threads.

    Attributes:
        threads: compute threads of the present session.
        widen: from logits as the graph makes them to rows over the vocabulary.
        has_even_widths: feed an even number of tokens in every pass, an idle one behind the last if
            need be, and project an even number of rows. Kernels for long blocks of int4 work on
            pairs of rows and round a single one differently; in pairs, any width gives the same.

    Raises:
        BundleError: the graph's inputs are not those that the manifest promises.
    """

    def __init__(
        self,
        graph: Path,
        entry: ModelEntry,
        *,
        vocabulary: int,
        token_ids: NDArray[np.int64] | None = None,
        provider: Provider,
        threads: Threads,
    ) -> None:
        self.name = entry.name
        self.vocabulary = vocabulary
        self.context = entry.context
        self.threads = threads
        self._graph = graph
        fitted = fit_provider(provider, entry, graph, onnxruntime=onnxruntime_version())
        self.session = Session(graph, provider=fitted, threads=threads)
        check_signature(self.session, entry, graph)
        self.cache = make_cache(self.session, entry)
        self._entry = entry
        self.has_even_widths = False
        self.widen = cut_to(vocabulary) if token_ids is None else Widening(token_ids, vocabulary)
        self.steps = Steps(self.session, self.cache, entry, vocabulary)

    @classmethod
    def open(
        cls, graph: Path, entry: ModelEntry, *, provider: str = "cpu", threads: int = 2
    ) -> "OnnxModel":
        """Open a graph by itself, its rows as it makes them (for checks at export)."""
        return cls(
            graph,
            entry,
            vocabulary=entry.logits,
            provider=make_provider(provider),
            threads=Threads(count=threads),
        )

    @property
    def length(self) -> int:
        """Number of tokens that the cache holds."""
        return len(self.cache)

    def rewind(self, *, to: int) -> None:
        """Forget all but the first `to` tokens."""
        self.cache.rewind(to=to)

    def begin(self, tokens: Sequence[int], *, even_widths: bool, best: Best | None = None) -> None:
        """Get ready for a request; see `Model.begin`."""
        self.steps.best = best
        even_widths = even_widths and not self._entry.is_steady
        # Keys and values of other widths have other last bits: the text would depend on history.
        kept = self.cache.shared_prefix(tokens) if even_widths == self.has_even_widths else 0
        self.rewind(to=kept)
        self.cache.trim(len(tokens))
        self.has_even_widths = even_widths

    def pretend(self, length: int) -> None:
        """Let the cache hold `length` tokens of no meaning, to time passes behind them.

        Raises:
            CapacityError: the context is shorter.
        """
        self.cache.reserve(length)
        self.cache.tokens[:] = [0] * length

    def cache_bytes(self, length: int) -> int:
        """Return the memory in bytes that keys and values of `length` tokens take."""
        return length * self.cache.column_bytes

    def reopen(self, threads: Threads) -> None:
        """Open the graph anew with other threads; the cache is empty then.

        Raises:
            BundleError: the graph can no longer be loaded; this model is of no use then.
        """
        provider = self.session.provider
        # The old session goes first: two would take twice the memory.
        del self.steps, self.cache, self.session
        self.session = Session(self._graph, provider=provider, threads=threads)
        self.threads = threads
        self.renew()

    def renew(self) -> None:
        """Begin with an empty cache of the first size; what passes allocated is given back."""
        self.cache = make_cache(self.session, self._entry)
        self.steps = Steps(self.session, self.cache, self._entry, self.vocabulary)

    def score(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        """Feed what is new of `tokens`; see `Model.score`.

        Raises:
            CapacityError: `tokens` do not fit into the context; nothing was fed.
        """
        self.cache.reserve(len(tokens))
        # A row can only be had from a token that is fed now.
        self.rewind(to=min(self.length, len(tokens) - rows))
        chunk = max(rows, min(PREFILL_CHUNK, ATTENTION_CELLS // len(tokens)))
        while len(tokens) - self.length > chunk:
            self._feed(tokens[self.length : min(self.length + chunk, len(tokens) - rows)], 1)
        return self._feed(tokens[self.length :], rows)

    def _feed(self, new: Sequence[int], rows: int) -> NDArray[np.float32]:
        total = self.length + len(new)
        idle = len(new) % 2 if self.has_even_widths and total < self.context else 0
        projected = rows + idle
        if self.has_even_widths:
            projected += projected % 2
        step = self.steps.of(len(new) + idle, projected)
        logits = step.run([[*new, *[0] * idle]], [self.length])  # [projected, logits_width]
        self.cache.tokens.extend(new)
        return self.widen(logits[projected - idle - rows : projected - idle])


def make_cache(session: Session, entry: ModelEntry, *, sequences: int = 1) -> Cache:
    """Return an empty cache for a model, growing as its flavour's kernels like it."""
    provider = session.provider
    is_standard = entry.flavour in ("portable", "trees")
    limits = {"first": FIRST_CAPACITY[provider.device], "most": entry.context + SCRATCH}
    grow: Callable[[int], int] = partial(stepped if is_standard else doubled, **limits)
    if fixed := provider.dimensions.get("capacity"):
        grow = lambda _: fixed  # noqa: E731 - one expression
    return Cache(
        session,
        entry.cache,
        context=entry.context,
        sequences=sequences,
        grow=grow,
        # Such kernels take longer over a larger cache; on a device a move costs more than that.
        shrinks=is_standard and provider.device == "cpu",
        grows_itself=entry.flavour == "growing",
    )
