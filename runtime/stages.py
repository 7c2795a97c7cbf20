"""How a stack of drafters is spelled, and what a bundle can make of it.

In: texts such as `suffix`, `suffix|draft`, `draft:2`, bottom first. Out: `Stage`s, checked against
the names that a bundle offers. `a|b` offers several drafters side by side; `:k` is the most tokens
that a round of the level above asks for.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .errors import RequestError
from .request import MAX_DRAFT

SUFFIX = "suffix"
LOOKUP = "lookup"
NGRAM = "ngram"
# Drafters that every bundle has: they copy from the sequence itself.
COPIERS = (SUFFIX, LOOKUP)


@dataclass(frozen=True)
class Stage:
    """What one level drafts with: drafters without a model, then at most one of the bundle's."""

    free: tuple[str, ...] = ()
    model: str | None = None
    k: int | None = None

    def __str__(self) -> str:
        names = "|".join([*self.free, *([self.model] if self.model else [])])
        return names if self.k is None else f"{names}:{self.k}"


def default_stages(drafts: Sequence[str], *, is_controlled: bool) -> tuple[Stage, ...]:
    """Return the stack of a bundle with these drafts, nearest to the target first.

    Where lengths are chosen by cost (`is_controlled`), a copier stands beside the nearest draft.
    """
    if not drafts:
        return (Stage((SUFFIX,)),)
    nearest = Stage((SUFFIX,) if is_controlled else (), drafts[0])
    return (*(Stage(model=name) for name in reversed(drafts[1:])), nearest)


def parse_stages(
    texts: Sequence[str],
    drafts: Collection[str],
    *,
    has_ngrams: bool = False,
    left_out: Collection[str] = (),
) -> tuple[Stage, ...]:
    """Return the stages that `texts` spell, bottom first.

    Args:
        texts: one a stage.
        drafts: the names of the bundle's drafts.
        has_ngrams: whether the bundle has an n-gram table too.
        left_out: the names of drafts that are not loaded.

    Raises:
        RequestError: a name is not one that the bundle offers, or stands where it cannot.
    """
    free = (*COPIERS, NGRAM) if has_ngrams else COPIERS
    stages = tuple(_parse(text, drafts, free, left_out) for text in texts)
    for stage in stages[1:]:
        if stage.model is None:
            raise RequestError(
                f"stages: {stage} has no model to guard what is below, so it can only stand first"
            )
    models = [stage.model for stage in stages if stage.model]
    if len(set(models)) != len(models):
        raise RequestError(f"stages must not name a model twice, but are {','.join(texts)}")
    return stages


def _parse(
    text: str, drafts: Collection[str], free: Collection[str], left_out: Collection[str]
) -> Stage:
    spelled, colon, number = text.partition(":")
    names = [name.strip() for name in spelled.split("|")]
    for name in names:
        if name in left_out:
            raise RequestError(
                f"stages: {name} is not loaded, max_memory leaves no room: allow more"
            )
        if name not in free and name not in drafts:
            offer = ", ".join([*free, *drafts])
            cure = ": build it with  python -m tools.ngram" if name == NGRAM else ""
            raise RequestError(
                f"stages must name drafters of this bundle ({offer}), not {name!r}{cure}"
            )
    models = [name for name in names if name not in free]
    unguarded = tuple(name for name in names if name in free)
    if len(models) > 1 or len(set(unguarded)) != len(unguarded):
        raise RequestError(f"stages: {spelled} must offer at most one model, and no drafter twice")
    return Stage(
        unguarded, models[0] if models else None, _parse_k(text, number) if colon else None
    )


def _parse_k(text: str, number: str) -> int:
    if not number.strip().isdecimal() or not 1 <= int(number) <= MAX_DRAFT:
        raise RequestError(
            f"stages: the number of {text!r} must be a whole number from 1 to {MAX_DRAFT}"
        )
    return int(number)
