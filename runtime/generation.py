"""The loop of one answer: rounds until a stop, an end token or the budget.

In: a target's level and the prompt. Out: frozen chunks. Commit before you show: a round's tokens
are cut at the first stop before caches, counters and the stream see them, and the caches hold only
committed tokens whenever a chunk is handed out, so a caller may stop at any point.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from .noise import Noise
from .request import Request
from .speculate import Round, speculate
from .stack import Stack
from .stats import Meter, Stats
from .text import TextStream


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What one round added to the answer.

    Attributes:
        text: text that became safe to show; never half a character, never part of a stop string.
        token_ids: the ids that were committed, an end-of-text id or the stop's last id included.
        finish_reason: `stop` or `length` on the last chunk, else `None`.
        stats: figures of the answer so far.
        seed: the seed of the answer's draws.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    stats: Stats
    seed: int


@dataclass(frozen=True)
class _Commit:
    tokens: list[int]
    text: str
    reason: str | None


def generate_chunks(
    stack: Stack,
    prompt: Sequence[int],
    request: Request,
    *,
    stream: TextStream,
    end_ids: frozenset[int],
    started: float,
) -> Iterator[Chunk]:
    """Yield the answer round by round; the last chunk, and only it, has a finish reason.

    Args:
        stack: the levels, fresh for this request.
        prompt: the prompt's token ids, shorter than the target's context.
        request: what was asked.
        stream: turns tokens into text and finds stop strings.
        end_ids: tokens that end the text, unless the request ignores them.
        started: `perf_counter()` when the request came in.
    """
    noise = Noise(request.seed)
    context = list(prompt)
    end = min(len(prompt) + request.max_tokens, stack.target.model.context)
    end_ids = frozenset() if request.ignore_eos else end_ids
    level = stack.target
    meter = Meter([(each.name, each.stats) for each in stack.levels], started, stack.choices)
    reason = "length" if len(context) == end else None
    if reason:
        yield Chunk(
            text="", token_ids=(), finish_reason=reason, stats=meter.stats(), seed=request.seed
        )
    while reason is None:
        # The first token comes from the prompt's own pass, before any drafter reads the prompt.
        left = end - len(context)
        k = min(level.k, left - 1) if meter.emitted else 0
        round_ = speculate(level, context, k, noise=noise)
        commit = _commit(round_, left, stream, end_ids)
        reason = commit.reason
        context += commit.tokens
        _cut(stack, round_, commit, length=len(context))
        meter.count(len(commit.tokens), now=perf_counter())
        yield Chunk(
            text=commit.text,
            token_ids=tuple(commit.tokens),
            finish_reason=reason,
            stats=meter.stats(),
            seed=request.seed,
        )


def _commit(round_: Round, left: int, stream: TextStream, end_ids: frozenset[int]) -> _Commit:
    """Return the part of the round that stays: up to an end token, a stop string or the budget."""
    tokens: list[int] = []
    text = ""
    reason = None
    for token in round_.tokens[:left]:
        tokens.append(token)
        if token in end_ids:
            reason = "stop"
            break
        text += stream.push(token).text
        if stream.stopped:
            return _Commit(tokens, text, "stop")
    if reason is None and len(tokens) == left:
        reason = "length"
    if reason is not None:
        text += stream.flush()
        # What was held back may turn out to be a stop string after all.
        reason = "stop" if stream.stopped else reason
    return _Commit(tokens, text, reason)


def _cut(stack: Stack, round_: Round, commit: _Commit, *, length: int) -> None:
    dropped = len(round_.tokens) - len(commit.tokens)
    if dropped:
        # The dropped tail starts with accepted tokens; the round's own last token is not one.
        stack.retract(accepted=dropped - 1, rejected=int(round_.is_cut))
        stack.target.rewind(to=length)
