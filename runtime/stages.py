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
# Drafters that need no model: they copy from the sequence itself.
COPIERS = (SUFFIX, LOOKUP)


@dataclass(frozen=True)
class Stage:
    """What one level drafts with: copiers, then at most one model of the bundle."""

    copiers: tuple[str, ...] = ()
    model: str | None = None
    k: int | None = None

    def __str__(self) -> str:
        names = "|".join([*self.copiers, *([self.model] if self.model else [])])
        return names if self.k is None else f"{names}:{self.k}"


def default_stages(drafts: Sequence[str], *, is_controlled: bool) -> tuple[Stage, ...]:
    """Return the stack of a bundle with these drafts, nearest to the target first.

    Where lengths are chosen by cost (`is_controlled`), a copier stands beside the nearest draft.
    """
    if not drafts:
        return (Stage((SUFFIX,)),)
    nearest = Stage((SUFFIX,) if is_controlled else (), drafts[0])
    return (*(Stage(model=name) for name in reversed(drafts[1:])), nearest)


def parse_stages(texts: Sequence[str], drafts: Collection[str]) -> tuple[Stage, ...]:
    """Return the stages that `texts` spell, bottom first.

    Raises:
        RequestError: a name is neither a copier nor among `drafts`, or stands where it cannot.
    """
    stages = tuple(_parse(text, drafts) for text in texts)
    for stage in stages[1:]:
        if stage.model is None:
            raise RequestError(
                f"stages: {stage} has no model to guard what is below, so it can only stand first"
            )
    models = [stage.model for stage in stages if stage.model]
    if len(set(models)) != len(models):
        raise RequestError(f"stages must not name a model twice, but are {','.join(texts)}")
    return stages


def _parse(text: str, drafts: Collection[str]) -> Stage:
    spelled, colon, number = text.partition(":")
    names = [name.strip() for name in spelled.split("|")]
    for name in names:
        if name not in COPIERS and name not in drafts:
            offer = ", ".join([*COPIERS, *drafts])
            raise RequestError(f"stages must name drafters of this bundle ({offer}), not {name!r}")
    models = [name for name in names if name not in COPIERS]
    copiers = tuple(name for name in names if name in COPIERS)
    if len(models) > 1 or len(set(copiers)) != len(copiers):
        raise RequestError(f"stages: {spelled} must offer at most one model, and no drafter twice")
    return Stage(copiers, models[0] if models else None, _parse_k(text, number) if colon else None)


def _parse_k(text: str, number: str) -> int:
    if not number.strip().isdecimal() or not 1 <= int(number) <= MAX_DRAFT:
        raise RequestError(
            f"stages: the number of {text!r} must be a whole number from 1 to {MAX_DRAFT}"
        )
    return int(number)
