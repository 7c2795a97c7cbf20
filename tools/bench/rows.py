"""The rows of a comparison: what runs in which worker, under which settings.

In: what the user asked for. Out: frozen rows, in the order in which they take turns. A row that
cannot run stays in the table with its reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RAW, PLAIN = "raw", "plain"
OURS = "forerun"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to answer.

    Attributes:
        name: as the table shows it.
        worker: the process that runs it; rows of one worker share its engine.
        settings: what each of its jobs carries.
        emits_answer: whether its ids are the answer (raw passes emit nothing of meaning).
    """

    name: str
    worker: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    emits_answer: bool = True


def make_own_rows(
    stacks: Sequence[Sequence[str] | None], widths: Sequence[int | None], *, ignore_eos: bool
) -> list[Row]:
    """Return raw, plain and one speculative row per stack and width.

    Args:
        stacks: drafters, bottom first; None is the bundle's default stack.
        widths: tokens drafted in a round; None is the stack's default.
        ignore_eos: go on after end-of-text tokens.
    """
    common = {"mode": "engine", "ignore_eos": ignore_eos}
    raw = Row(name=RAW, worker=OURS, settings={"mode": "raw"}, emits_answer=False)
    rows = [raw, Row(name=PLAIN, worker=OURS, settings={**common, "speculate": "off"})]
    for stack in stacks:
        for width in widths:
            settings = {**common, "speculate": "auto"}
            if stack is not None:
                settings["stages"] = list(stack)
            if width is not None:
                settings["k"] = width
            rows.append(Row(name=name_row(stack, width), worker=OURS, settings=settings))
    return rows


def name_row(stack: Sequence[str] | None, width: int | None) -> str:
    """Return a speculative row's name, such as `lookup+draft k=2` or `auto`."""
    name = "auto" if stack is None else "+".join(stack)
    return name if width is None else f"{name} k={width}"
