"""Greedy answers of a bundle's target, and what its drafters would have made of them.

The draft model reads a finished answer in one pass: its choice after every prefix is what it would
have drafted there. In: an engine and questions. Out: answers with guesses, for `forecast`.
"""

from collections.abc import Sequence

from runtime import Engine
from runtime.drafters import Drafter, SuffixDrafter
from runtime.model import OnnxModel
from runtime.noise import Noise

from .forecast import KS, Answer, Guess

LONGEST = max(KS)


def sample_answer(
    engine: Engine, prompt: Sequence[int], *, category: str, max_tokens: int
) -> Answer:
    """Let the target answer, and return what each drafter would have proposed along the way."""
    completion = engine.complete(
        list(prompt), max_tokens=max_tokens, speculate="off", temperature=0.0
    )
    tokens = list(completion.token_ids)
    guesses = {name: guess_by_model(model, prompt, tokens) for name, model in engine.drafts.items()}
    copier = SuffixDrafter()
    guesses[copier.name] = guess_by_copier(copier, prompt, tokens)
    return Answer(category, len(prompt), guesses)


def guess_by_model(
    model: OnnxModel, prompt: Sequence[int], tokens: Sequence[int]
) -> tuple[Guess, ...]:
    """Return the draft's guess before each of `tokens`; none where its context ends."""
    within = list(tokens[: max(0, model.context - len(prompt))])
    if not within:
        return tuple(Guess(0, 0) for _ in tokens)
    model.begin(prompt, even_widths=False)
    logits = model.score([*prompt, *within[:-1]], len(within))  # [len(within), vocabulary]
    agrees = [int(row.argmax()) == token for row, token in zip(logits, within, strict=True)]
    known = [
        Guess(min(LONGEST, len(within) - i), run_length(agrees[i:])) for i in range(len(within))
    ]
    return (*known, *(Guess(0, 0) for _ in tokens[len(within) :]))


def guess_by_copier(
    copier: Drafter, prompt: Sequence[int], tokens: Sequence[int]
) -> tuple[Guess, ...]:
    """Return what a drafter without a model proposes before each of `tokens`."""
    noise = Noise(0)
    guesses = []
    for i in range(len(tokens)):
        proposed = copier.propose([*prompt, *tokens[:i]], LONGEST, noise=noise).tokens
        hits = [a == b for a, b in zip(proposed, tokens[i:], strict=False)]
        guesses.append(Guess(len(proposed), run_length(hits)))
    return tuple(guesses)


def run_length(hits: Sequence[bool]) -> int:
    """Return how many are true before the first that is not, at most `LONGEST`."""
    return next((i for i, hit in enumerate(hits[:LONGEST]) if not hit), min(LONGEST, len(hits)))
